// The equations of the path (path.h) at a point of it: the law of the problem with G + eps I in given modes.
//
// Unknowns are those of in_modes.h, the speeds of contacts that slide among them, and log eps. One equation is missing: the border, the
// plane in which Newton's method looks for a point, or the end of a mode. A mode holds as long as its values are not negative: two
// slots of values for a contact, one for a limit or a dry row.
#pragma once
#include "in_modes.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double DECADES = 3.0;          // change of log eps that counts as much as all of the impulse, or a radian
constexpr double MIN_FRICTION_AT_OPENING = 1e-12;  // share of the largest impulse below which friction is none, where a contact opens
constexpr double EPS_OF_ROUNDING = 1e-10;  // eps over the largest diagonal entry of G from which on rounding of nu is more than that

// The largest entry on the diagonal of G.
inline double largest_mobility(const ContactProblem& p) {
  double top = 0;
  for (int r = 0; r < p.rows(); ++r) top = std::max(top, p.G[(ptrdiff_t)r * p.stride + r]);
  return top;
}

// What the path needs besides an `InModes` for modes, directions, slips and impulses.
struct PathScratch {
  double *x, *direction, *speed;  // a point to go back to
  double *K, *inverse, *shares, *border, *scale, *right, *tangent, *step, *before, *after, *move, *rate;
  int *row, *held;
};

class PathEquations {
 public:
  PathEquations(const Ncp& ncp, InModes& s, PathScratch& w, int& iterations)
      : ncp_(ncp), p_(ncp.problem), s_(s), w_(w), iterations_(iterations), top_(largest_mobility(ncp.problem)) {
    for (int r = 0; r < ncp.m; ++r) heaviest_ = std::max(heaviest_, ncp.rho[r]);
  }

 protected:
  const Ncp& ncp_;
  const ContactProblem& p_;
  InModes& s_;
  PathScratch& w_;
  int& iterations_;
  const double top_;
  double heaviest_ = 0;
  int n_ = 0, ld_ = 0;          // held rows; these and log eps, padded
  double t_ = 0, saved_t_ = 0;  // log eps
  int factorisations_ = 0;

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

  // What a held row leaves of its equation, m/s: nu + s u along the tangents of a contact that slides, if it has friction, else nu.
  double left(int r) const {
    if (!slides(ncp_, s_, r) || r % 3 == 2) return s_.at.nu[r];
    return p_.mu[r / 3] > 0 ? s_.at.nu[r] + s_.speed[r / 3] * s_.direction[r] : 0.0;
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

  // By how much a mode is over, in its own units: of impulses, or of eps times these.
  double excess(int slot, double value) const {
    const double size = largest_impulse();
    bool impulse = slot % 2;
    if (slot >= 2 * p_.contacts) impulse = s_.mode[slot - p_.contacts];
    else if (!impulse) impulse = s_.mode[slot / 2] == STICKING;
    return -value / (impulse ? size : std::max(std::exp(t_), EPS_OF_ROUNDING * top_) * size);
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
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
