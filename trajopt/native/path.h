// The solution at the end of the path of the regularised problem, eps falling from where it dwarfs G to zero.
//
// With G + eps I in place of G, eps > 0, the law has a solution, and only one where eps dwarfs G. From there the solutions form a curve,
// but for coincidences; modes end on the way, and where the curve turns back eps rises for a while. As impulses do no work on the
// velocities of the law, |lambda| <= |g| / eps: the curve cannot end before eps is zero. It leads to a solution of the problem itself, or
// impulses grow like 1 / eps, where contacts jam (the argument of Lemke's method: Cottle, Pang and Stone, The linear complementarity
// problem, section 4.4). Contacts that contradict each other need nothing of their own: the stress between them grows as eps falls, until
// modes end that let them slip, whatever the order.
//
// The curve is followed by its length, in the unknowns of in_modes.h, speeds among them, and log eps: a step along the tangent, Newton's method across it
// (Allgower and Georg, Numerical continuation methods, chapter 6), and back to the very point where the first mode ends. There the mode
// is exchanged for its neighbour, as in a pivot, and the curve goes on to the side where that holds.
#pragma once
#include "gauss_seidel.h"
#include "in_modes.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double EPS_FIRST = 1e3, EPS_MIN = 1e-17;  // eps, over the largest diagonal entry of G: contacts are alone; less than rounding
constexpr int PATH_STARTS = 20;          // sweeps, and revisions of the modes, at the beginning: some three are taken
constexpr int PATH_CORRECTIONS = 10;     // of Newton's method, which is quadratic here: some three are taken
constexpr int LANDINGS = 6;              // other modes found to end before, one after the other
constexpr double DECADES = 3.0;          // change of log eps that counts as much as all of the impulse, or a radian
constexpr double LONGEST = 0.5;          // step, in these units: with 1 one of 400 recorded problems loses the path
constexpr double AFTER_EVENT = 0.02;     // longest first step, and after the end of a mode
constexpr double LEAST_LENGTH = 1e-10;   // of a step; no path is found on which it is less
constexpr double USUAL_TURN = 0.5;       // radians, after which the next step is as long as this
constexpr double MOST_GROWTH = 1.6;      // and by which factor it may be longer or shorter
constexpr double PAST = 1.05;            // of the way to the first end of a mode that the tangent shows: beyond it, so that it is seen
constexpr double EXACT = 1e-5, ROUGH = 1e-3;  // size of a step of Newton's method after which one more ends at rounding, and one that will do
constexpr double FARTHEST = 2.0;         // size of a step of Newton's method that is not taken: more than all of the impulse
constexpr double MIN_FRICTION_AT_OPENING = 1e-12;  // share of the largest impulse below which friction is none, where a contact opens
constexpr double TOLERATED = 1e-6;       // by which another mode may be over where one ends: of the impulse, or of eps times it
constexpr double EPS_OF_ROUNDING = 1e-10;  // eps over the largest diagonal entry of G from which on rounding of nu is more than that
constexpr double LANDING_SLACK = 1e-4;  // length by which the end of a mode may lie outside of a step, for rounding
constexpr double JAMMED = 1e5;           // |lambda| over what stops the approach: it grows without end

// What the path needs besides an `InModes` for modes, directions, slips and impulses.
struct PathScratch {
  double *x, *direction, *speed;  // a point to go back to
  double *K, *inverse, *shares, *border, *scale, *right, *tangent, *step, *before, *after, *move, *rate;
  int *row, *held;
};

// Follows the path; `s` is where it has come to. A mode holds as long as its values are not negative: two slots of values for a
// contact, one for a limit or a dry row.
class Path {
 public:
  Path(const Ncp& ncp, InModes& s, PathScratch& w, int& iterations)
      : ncp_(ncp), p_(ncp.problem), s_(s), w_(w), iterations_(iterations) {
    for (int r = 0; r < ncp.m; ++r) top_ = std::max(top_, p_.G[(ptrdiff_t)r * p_.stride + r]);
    for (int r = 0; r < ncp.m; ++r) heaviest_ = std::max(heaviest_, ncp.rho[r]);
  }

  // Until `lawful(s.at)`, which is whether it does, with at most so many factorisations.
  template <class Lawful> bool follow(int most, Lawful lawful) {
    if (!(top_ > 0)) return false;
    begin();
    if (!settle_modes()) return false;
    stride_ = AFTER_EVENT, fresh_ = NO_SLOT;
    set_scale();
    std::memset(w_.border, 0, sizeof(double) * ld_);
    w_.border[n_] = -1.0;  // eps falls
    if (!tangent()) return false;
    for (; factorisations_ < most; ++iterations_) {
      if (!advance()) return false;
      const double eps = std::exp(t_);
      if (eps < EPS_MIN * top_ || largest_impulse() > JAMMED * heaviest_ * ncp_.approach) return false;
      evaluate(Regularised{ncp_}, s_.at);
      if (lawful(s_.at)) return true;
    }
    return false;
  }

 private:
  static constexpr int NO_SLOT = -1;
  const Ncp& ncp_;
  const ContactProblem& p_;
  InModes& s_;
  PathScratch& w_;
  int& iterations_;
  double top_ = 0, heaviest_ = 0;
  int n_ = 0, ld_ = 0;  // held rows; these and log eps, padded
  double t_ = 0, saved_t_ = 0;  // log eps
  double stride_ = 0;
  int factorisations_ = 0;
  int fresh_ = NO_SLOT;  // the slot whose mode has begun where this step does

  // One step, or none and a shorter one next; false where no step leads on.
  bool advance() {
    save();
    set_scale();
    values(w_.before);
    const double length = std::min(stride_, std::max(PAST * first_event(), LEAST_LENGTH));
    move(w_.tangent, length);
    set_plane();
    double way = length;
    if (!correct(NO_SLOT, way)) return shorter(length);
    values(w_.after);
    int slot = first_over();
    if (slot == NO_SLOT) return go_on(length);
    if (slot == fresh_ || (slot = land(slot, length)) == NO_SLOT) return shorter(length);
    fresh_ = exchange(slot);
    stride_ = AFTER_EVENT;
    hold();
    set_scale();
    gradient(fresh_, w_.border);
    return tangent();
  }

  bool shorter(double length) {
    load();
    return (stride_ = 0.5 * length) >= LEAST_LENGTH;
  }

  // The tangent at the end of a step in which no mode ends, and the length of the next.
  bool go_on(double length) {
    double* before = w_.step;
    for (int i = 0; i <= n_; ++i) before[i] = w_.tangent[i];
    if (!tangent()) return false;
    double turn = 0;
    for (int i = 0; i <= n_; ++i) turn = std::hypot(turn, (w_.tangent[i] - before[i]) / w_.scale[i]);
    fresh_ = NO_SLOT;
    if (length >= 0.5 * stride_) stride_ = std::min(LONGEST, stride_ * std::clamp(USUAL_TURN / turn, 1 / MOST_GROWTH, MOST_GROWTH));
    return true;
  }

  int slots() const { return 2 * p_.contacts + p_.limits + p_.dry; }
  int row_of(int single) const { return 3 * p_.contacts + single; }  // of a limit or a dry row

  void save() {
    const size_t bytes = sizeof(double) * ncp_.width;
    std::memcpy(w_.x, s_.at.x, bytes), std::memcpy(w_.direction, s_.direction, bytes), std::memcpy(w_.speed, s_.speed, bytes);
    saved_t_ = t_;
  }
  void load() {
    const size_t bytes = sizeof(double) * ncp_.width;
    std::memcpy(s_.at.x, w_.x, bytes), std::memcpy(s_.direction, w_.direction, bytes), std::memcpy(s_.speed, w_.speed, bytes);
    t_ = saved_t_;
  }

  void hold() {
    bool any;
    n_ = held_rows(p_, s_.mode, w_.held, any);
    ld_ = padded(n_ + 1);
  }

  double largest_impulse() const {
    double size = 0;
    for (int r = 0; r < ncp_.m; ++r) size = std::max(size, std::fabs(s_.at.x[r]));
    return size;
  }

  // nu of the regularised problem, summed up with 64 bits: its part along the null space of G is eps lambda alone, and rounding there
  // would move the impulses by itself over eps.
  void exact_velocity() {
    const long double eps = std::exp(t_);
    for (int r = 0; r < ncp_.m; ++r) {
      const double *G = p_.G + (ptrdiff_t)r * p_.stride, *x = s_.at.x;
      long double even = p_.g[r] + eps * x[r], odd = 0;
      int at = 0;
      for (; at + 2 <= ncp_.m; at += 2) even += (long double)G[at] * x[at], odd += (long double)G[at + 1] * x[at + 1];
      if (at < ncp_.m) even += (long double)G[at] * x[at];
      s_.at.nu[r] = (double)(even + odd);
    }
  }

  // The units of the unknowns.
  void set_scale() {
    const double size = std::max(largest_impulse(), 1e-300);
    for (int i = 0; i < ld_; ++i) w_.scale[i] = size;
    for (int i = 0; i < n_; i += width_of(ncp_, s_, w_.held[i]))
      if (slides(ncp_, s_, w_.held[i])) w_.scale[i] = 1.0, w_.scale[i + 1] = ncp_.approach;
    w_.scale[n_] = DECADES;
  }

  // border . change = 0 is the plane through a point across the tangent.
  void set_plane() {
    for (int i = 0; i < ld_; ++i) w_.border[i] = i <= n_ ? w_.tangent[i] / (w_.scale[i] * w_.scale[i]) : 0.0;
  }

  // Row r of the derivative of nu by the unknowns, into `to` (ld).
  void velocity_gradient(int r, double* to) const {
    const double* G = p_.G + (ptrdiff_t)r * p_.stride;
    const double eps = std::exp(t_);
    for (int i = 0; i < n_; ++i) to[i] = G[w_.held[i]] + (w_.held[i] == r ? eps : 0.0);
    for (int i = n_; i < ld_; ++i) to[i] = 0.0;
    for (int i = 0; i < n_; i += width_of(ncp_, s_, w_.held[i])) {
      const int c = w_.held[i] / 3;
      if (!slides(ncp_, s_, w_.held[i])) continue;
      const double *u = s_.direction + 3 * c, mu = p_.mu[c], first = to[i], second = to[i + 1];
      to[i] = mu * s_.at.x[3 * c + 2] * (u[0] * second - u[1] * first), to[i + 1] = 0.0;
      to[i + 2] += mu * (u[0] * first + u[1] * second);
    }
    to[n_] = eps * s_.at.x[r];
  }

  // The derivative of rho (nu + s u) of the held rows by the unknowns, and the border, with rows and columns scaled; factored.
  bool factor() {
    ++factorisations_;
    for (int i = 0; i < n_; ++i) velocity_gradient(w_.held[i], w_.K + (ptrdiff_t)i * ld_);
    for (int i = 0; i < n_; i += width_of(ncp_, s_, w_.held[i])) {
      const int c = w_.held[i] / 3;
      if (!slides(ncp_, s_, w_.held[i])) continue;
      double *first = w_.K + (ptrdiff_t)i * ld_, *second = first + ld_;
      if (p_.mu[c] == 0) {  // whatever the slip is
        std::memset(first, 0, 2 * sizeof(double) * ld_);
        first[i] = second[i + 1] = 1.0;
        continue;
      }
      const double *u = s_.direction + 3 * c, slip = s_.speed[c];
      first[i] -= slip * u[1], second[i] += slip * u[0];
      first[i + 1] += u[0], second[i + 1] += u[1];
    }
    std::memcpy(w_.K + (ptrdiff_t)n_ * ld_, w_.border, sizeof(double) * ld_);
    for (int i = 0; i <= n_; ++i) {
      double *k = w_.K + (ptrdiff_t)i * ld_, most = 0;
      for (int j = 0; j <= n_; ++j) most = std::max(most, std::fabs(k[j] *= w_.scale[j]));
      if (!(most > 0) || !std::isfinite(most)) return false;
      for (int j = 0; j <= n_; ++j) k[j] /= most;
      w_.shares[i] = 1.0 / most;
    }
    return factor_general(w_.K, ld_, n_ + 1, 1e-300, w_.row, w_.inverse) > 1e-300;
  }

  // Solves for the change whose image is `right`, (n + 1), which is overwritten.
  void solve(double* right, double* found) const {
    for (int i = 0; i <= n_; ++i) right[i] *= w_.shares[i];
    solve_general(w_.K, ld_, n_ + 1, w_.row, w_.inverse, right, found);
    for (int i = 0; i <= n_; ++i) found[i] *= w_.scale[i];
  }

  // The tangent at the point, of length one, to the side where border . tangent > 0.
  bool tangent() {
    if (!factor()) return false;
    std::memset(w_.right, 0, sizeof(double) * ld_);
    w_.right[n_] = 1.0;
    solve(w_.right, w_.tangent);
    double size = 0;
    for (int i = 0; i <= n_; ++i) size += w_.tangent[i] * w_.tangent[i] / (w_.scale[i] * w_.scale[i]);
    size = std::sqrt(size);
    for (int i = 0; i <= n_; ++i) w_.tangent[i] /= size;
    return size > 0 && std::isfinite(size);
  }

  void move(const double* change, double share) {
    for (int i = 0; i < n_; i += width_of(ncp_, s_, w_.held[i])) {
      const int r = w_.held[i];
      double *x = s_.at.x + r, *u = s_.direction + r;
      if (!slides(ncp_, s_, r)) {
        x[0] += share * change[i];
        continue;
      }
      if (p_.mu[r / 3] > 0) {
        const double c = std::cos(share * change[i]), s = std::sin(share * change[i]), u0 = u[0], u1 = u[1];
        u[0] = c * u0 - s * u1, u[1] = s * u0 + c * u1;
        s_.speed[r / 3] += share * change[i + 1];
      }
      x[2] += share * change[i + 2];
      x[0] = p_.mu[r / 3] * x[2] * u[0], x[1] = p_.mu[r / 3] * x[2] * u[1];
    }
    t_ += share * change[n_];
  }

  // Newton's method with the border, on whose side a slot's value becomes zero if one is given; `way` sums up what it goes along
  // the tangent.
  bool correct(int slot, double& way) {
    double before = HUGE_VAL;
    for (int k = 0; k < PATH_CORRECTIONS; ++k) {
      if (slot >= 0) gradient(slot, w_.border);
      if (!factor()) return false;
      const double size = newton_step(slot, way);
      if (!(size < FARTHEST)) return false;
      if (size <= EXACT) return newton_step(slot, way) <= ROUGH;  // with the same factors
      if (k >= 3 && size > 0.5 * before) return size <= ROUGH;
      before = size;
    }
    return before <= ROUGH;
  }

  // What a held row leaves of its equation, m/s: nu + s u along the tangents of a contact that slides, if it has friction, else nu.
  double left(int r) const {
    if (!slides(ncp_, s_, r) || r % 3 == 2) return s_.at.nu[r];
    return p_.mu[r / 3] > 0 ? s_.at.nu[r] + s_.speed[r / 3] * s_.direction[r] : 0.0;
  }

  // A step with the factored derivative; its size.
  double newton_step(int slot, double& way) {
    exact_velocity();
    for (int i = 0; i < n_; ++i) w_.right[i] = -left(w_.held[i]);
    w_.right[n_] = slot >= 0 ? -value(slot) : 0.0;
    solve(w_.right, w_.step);
    double size = 0;
    for (int i = 0; i <= n_; ++i) {
      const double d = std::fabs(w_.step[i] / w_.scale[i]);
      if (!(d <= size)) size = d;
      way += w_.step[i] * w_.tangent[i] / (w_.scale[i] * w_.scale[i]);
    }
    if (size < FARTHEST) move(w_.step, 1.0);
    return size;
  }

  // What may not be negative. Of a contact that is open nu_n; that sticks, its distance from the cone; that slides, the slip, and in its
  // second slot lambda_n.
  double value(int slot) const {
    const double *x = s_.at.x, *nu = s_.at.nu;
    if (slot >= 2 * p_.contacts) {
      const int k = slot - 2 * p_.contacts, r = row_of(k), held = s_.mode[p_.contacts + k];
      if (k < p_.limits) return held ? x[r] : nu[r];
      const double bound = p_.bound[k - p_.limits];
      return held ? bound - std::fabs(x[r]) : !(bound > 0) ? HUGE_VAL : x[r] > 0 ? -nu[r] : nu[r];
    }
    const int c = slot / 2, r = 3 * c;
    if (slot % 2) return s_.mode[c] == SLIDING ? x[r + 2] : HUGE_VAL;
    if (s_.mode[c] == SEPARATING) return nu[r + 2];
    if (s_.mode[c] == STICKING) return p_.mu[c] * x[r + 2] - std::hypot(x[r], x[r + 1]);
    return p_.mu[c] > 0 ? s_.speed[c] : HUGE_VAL;
  }

  // Values of all slots, and nu.
  void values(double* to) {
    exact_velocity();
    for (int slot = 0; slot < slots(); ++slot) to[slot] = value(slot);
  }

  // The derivative of a value by the unknowns.
  void gradient(int slot, double* to) const {
    auto place = [&](int r) { return (int)(std::lower_bound(w_.held, w_.held + n_, r) - w_.held); };
    const double* x = s_.at.x;
    std::memset(to, 0, sizeof(double) * ld_);
    if (slot >= 2 * p_.contacts) {
      const int k = slot - 2 * p_.contacts, r = row_of(k), held = s_.mode[p_.contacts + k];
      if (held) {
        to[place(r)] = k < p_.limits ? 1.0 : x[r] > 0 ? -1.0 : 1.0;
        return;
      }
      velocity_gradient(r, to);
      if (k >= p_.limits && x[r] > 0)
        for (int i = 0; i <= n_; ++i) to[i] = -to[i];
      return;
    }
    const int c = slot / 2, r = 3 * c;
    if (slot % 2) to[place(r) + 2] = 1.0;
    else if (s_.mode[c] == SEPARATING) velocity_gradient(r + 2, to);
    else if (s_.mode[c] == SLIDING) to[place(r) + 1] = 1.0;
    else {
      const int i = place(r);
      const double length = std::hypot(x[r], x[r + 1]);
      if (length > 0) to[i] = -x[r] / length, to[i + 1] = -x[r + 1] / length;
      to[i + 2] = p_.mu[c];
    }
  }

  // Length along the tangent at which the first value vanishes, to first order.
  double first_event() {
    const double* d = w_.tangent;
    double* dx = w_.move;
    std::memset(dx, 0, sizeof(double) * ncp_.width);
    for (int i = 0; i < n_; i += width_of(ncp_, s_, w_.held[i])) {
      const int r = w_.held[i];
      if (!slides(ncp_, s_, r)) {
        dx[r] = d[i];
        continue;
      }
      const double mu = p_.mu[r / 3], *u = s_.direction + r, turn = mu * s_.at.x[r + 2] * d[i];
      dx[r] = mu * d[i + 2] * u[0] - turn * u[1], dx[r + 1] = mu * d[i + 2] * u[1] + turn * u[0], dx[r + 2] = d[i + 2];
    }
    const double eps = std::exp(t_);
    for (int r = 0; r < ncp_.width; ++r) w_.rate[r] = eps * (dx[r] + d[n_] * s_.at.x[r]);
    combine(p_.G, p_.stride, ncp_.m, ncp_.width, dx, w_.rate, w_.rate);
    double first = HUGE_VAL;
    auto falls = [&](int slot, double rate) {
      if (rate < 0 && w_.before[slot] < HUGE_VAL) first = std::min(first, std::max(w_.before[slot], 0.0) / -rate);
    };
    for (int i = 0; i < n_; i += width_of(ncp_, s_, w_.held[i])) {
      const int r = w_.held[i], c = r / 3;
      if (r >= 3 * p_.contacts) {
        const int k = r - 3 * p_.contacts;
        falls(2 * p_.contacts + k, k < p_.limits ? dx[r] : -std::copysign(1.0, s_.at.x[r]) * dx[r]);
      } else if (slides(ncp_, s_, r)) {
        falls(2 * c, d[i + 1]), falls(2 * c + 1, d[i + 2]);
      } else if (r % 3 == 0) {
        const double *x = s_.at.x + r, length = std::hypot(x[0], x[1]);
        falls(2 * c, p_.mu[c] * dx[r + 2] - (length > 0 ? (x[0] * dx[r] + x[1] * dx[r + 1]) / length : 0.0));
      }
    }
    for (int c = 0; c < p_.contacts; ++c)
      if (s_.mode[c] == SEPARATING) falls(2 * c, w_.rate[3 * c + 2]);
    for (int k = 0; k < p_.limits + p_.dry; ++k)
      if (!s_.mode[p_.contacts + k])
        falls(2 * p_.contacts + k, (k < p_.limits ? 1.0 : -std::copysign(1.0, s_.at.x[row_of(k)])) * w_.rate[row_of(k)]);
    return first;
  }

  // By how much a mode is over, in its own units: of impulses, or of eps times these.
  double excess(int slot, double value) const {
    const double size = largest_impulse();
    bool impulse = slot % 2;
    if (slot >= 2 * p_.contacts) impulse = s_.mode[slot - p_.contacts];
    else if (!impulse) impulse = s_.mode[slot / 2] == STICKING;
    return -value / (impulse ? size : std::max(std::exp(t_), EPS_OF_ROUNDING * top_) * size);
  }

  // Of the modes that were over by less before the step, the one that has ended first, if any has.
  int first_over() const {
    int found = NO_SLOT;
    double earliest = HUGE_VAL;
    for (int slot = 0; slot < slots(); ++slot) {
      if (!(w_.after[slot] < 0 && w_.after[slot] < w_.before[slot])) continue;
      const double before = std::max(w_.before[slot], 0.0), share = before / (before - w_.after[slot]);
      if (share < earliest) earliest = share, found = slot;
    }
    return found;
  }

  // To the point where the mode of a slot ends, or that of another which ends before; the slot, if it is found.
  int land(int slot, double length) {
    double way = length;
    for (int k = 0; k < LANDINGS; ++k) {
      if (!correct(slot, way) || way > 1.5 * length + LANDING_SLACK || way < -0.1 * length - LANDING_SLACK) return NO_SLOT;
      values(w_.after);
      int other = NO_SLOT;
      double most = TOLERATED;
      for (int o = 0; o < slots(); ++o) {
        if (o == slot || !(w_.after[o] < w_.before[o])) continue;
        const double size = excess(o, w_.after[o]);
        if (size > most) most = size, other = o;
      }
      if (other == NO_SLOT) return slot;
      slot = other;
    }
    return NO_SLOT;
  }

  // Exchanges the mode that a slot's value ends for its neighbour; the slot whose value grows from here.
  int exchange(int slot) {
    double* x = s_.at.x;
    if (slot >= 2 * p_.contacts) {
      const int k = slot - 2 * p_.contacts, r = row_of(k);
      int& held = s_.mode[p_.contacts + k];
      if (held) x[r] = k < p_.limits ? 0.0 : std::copysign(p_.bound[k - p_.limits], x[r]);
      held = !held;
      return slot;
    }
    const int c = slot / 2;
    double *y = x + 3 * c, *u = s_.direction + 3 * c;
    const double *nu = s_.at.nu + 3 * c, length = std::hypot(y[0], y[1]), speed = std::hypot(nu[0], nu[1]);
    auto open = [&] {
      s_.mode[c] = SEPARATING, y[0] = y[1] = y[2] = 0.0, s_.speed[c] = 0.0;
      return 2 * c;
    };
    if (slot % 2) return open();
    if (s_.mode[c] == STICKING) {
      if (!(length > MIN_FRICTION_AT_OPENING * largest_impulse())) return open();  // at the tip of its cone
      s_.mode[c] = SLIDING, s_.speed[c] = 0.0, u[0] = y[0] / length, u[1] = y[1] / length, y[2] = length / p_.mu[c];
      return 2 * c;
    }
    if (s_.mode[c] == SLIDING) {
      s_.mode[c] = STICKING, s_.speed[c] = 0.0;
      return 2 * c;
    }
    y[0] = y[1] = y[2] = 0.0;
    s_.mode[c] = speed > 0 || p_.mu[c] == 0 ? SLIDING : STICKING, s_.speed[c] = speed;
    u[0] = speed > 0 ? -nu[0] / speed : 1.0, u[1] = speed > 0 ? -nu[1] / speed : 0.0;
    return s_.mode[c] == SLIDING ? 2 * c + 1 : 2 * c;
  }

  // Near the solution where eps dwarfs G, so that every contact is almost alone.
  void begin() {
    t_ = std::log(EPS_FIRST * top_);
    const Regularised regular{ncp_, EPS_FIRST * top_};
    double* x = s_.at.x;
    std::memset(x, 0, sizeof(double) * ncp_.width);
    for (int k = 0; k < PATH_STARTS && sweep(regular, x) > MACHINE * ncp_.approach; ++k) {}
    velocity(regular, x, s_.at.nu);
    classify(regular, x, s_.at.nu, s_.mode);
    std::memset(s_.speed, 0, sizeof(double) * ncp_.width);
    for (int c = 0; c < p_.contacts; ++c) {
      const double *y = x + 3 * c, *nu = s_.at.nu + 3 * c, length = std::hypot(y[0], y[1]), speed = std::hypot(nu[0], nu[1]);
      double* u = s_.direction + 3 * c;
      if (s_.mode[c] == SLIDING) s_.speed[c] = speed;
      u[0] = length > 0 ? y[0] / length : speed > 0 ? -nu[0] / speed : 1.0;
      u[1] = length > 0 ? y[1] / length : speed > 0 ? -nu[1] / speed : 0.0;
    }
    for (int k = 0; k < p_.dry; ++k)
      if (!(p_.bound[k] > 0)) s_.mode[p_.contacts + p_.limits + k] = 0;
  }

  // From near a solution to it, at the same eps: modes that are over become their neighbours, all at once.
  bool settle_modes() {
    for (int k = 0; k < PATH_STARTS; ++k) {
      hold();
      set_scale();
      std::memset(w_.border, 0, sizeof(double) * ld_);
      std::memset(w_.tangent, 0, sizeof(double) * ld_);
      w_.border[n_] = 1.0;
      double way = 0;
      if (!correct(NO_SLOT, way)) return false;
      values(w_.before);
      bool wrong = false;
      for (int slot = 0; slot < slots(); ++slot)
        if (w_.before[slot] < 0) exchange(slot), wrong = true;
      if (!wrong) return true;
    }
    return false;
  }
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
