// The regularised problem in given modes, and Newton's method that revises them by the signs of what comes out: an active-set method
// (Nocedal and Wright, section 16.5) with the cone's equation in place of a bound.
//
// A contact that slides has unknowns of its own,
//
//     lambda_t = mu lambda_n u,   nu_t = -s u,   nu_n = 0,   |u| = 1,
//
// the angle of its friction u, its speed s and its normal impulse lambda_n, in place of three impulses. The speed stands in one equation of
// each such contact alone, the velocity along its friction: it is eliminated, and two unknowns are left. In these Newton's method follows the
// circle of the friction; on the natural map a step leaves it, and where a contact slides slowly, as fast as eps lets it, that map
// takes dozens of short steps. A contact whose speed turns against its friction sticks at once: on the other
// side the equation of its angle leads away from the solution. The modes to begin with are those of a point; where a few revisions do not
// end at a solution nothing is returned.
//
// A mode holds as long as its values are not negative: two slots of values for a contact, one for a limit or a dry row.
#pragma once
#include "newton.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int ALL_AT_ONCE = 3;        // revisions in which all wrong modes are exchanged, from then on the last alone: that goes in no circle
                                      // where the law is a linear complementarity problem (Murty's rule)
constexpr double SMALL = 1e-2;        // share of the approaching velocities: from there on the signs say whether the modes are right
constexpr double LARGEST_TURN = 0.7;  // radians of a step: half of a right angle, within which cosine and sine are near their tangents
constexpr double NO_FRICTION = 1e-12;  // share of the largest impulse below which friction is none, where a contact opens

// Impulses in given modes: the mode of each contact, limit and dry row; u at 3 c and 3 c + 1 of each contact c. n unknowns, each with the
// row that it stands for, and where a contact slides what it changes: `basis`, of the three rows from `place` on; else `place` is negative.
// speed: s, m/s, of each contact. row: scratch.
struct InModes {
  double *direction, *speed, *basis, *row;
  Point at;
  int *mode, *held, *place;
  int n;
};

class EquationsInModes {
 public:
  EquationsInModes(const Ncp& ncp, InModes& s) : ncp_(ncp), p_(ncp.problem), s_(s) {}

 protected:
  const Ncp& ncp_;
  const ContactProblem& p_;
  InModes& s_;

  bool slides(int row) const { return row < 3 * p_.contacts && s_.mode[row / 3] == SLIDING; }
  // Of a contact that slides, row 3 c stands for the angle of its friction, row 3 c + 2 for its normal; row 3 c + 1 is not there.
  bool is_angle(int row) const { return row % 3 == 0 && slides(row); }

  // Modes, directions and impulses to begin with: those of a point of the regularised problem.
  void begin(const Regularised& of, const Point& at) {
    classify(of, at.x, at.nu, s_.mode);
    std::memcpy(s_.at.x, at.x, sizeof(double) * ncp_.width);
    for (int c = 0, r = 0; c < p_.contacts; ++c, r += 3) {
      set_direction(c, at.x[r] - of.rho(r) * at.nu[r], at.x[r + 1] - of.rho(r + 1) * at.nu[r + 1]);
      s_.speed[c] = std::max(0.0, -along(c, at.nu));
    }
    into_modes();
  }

  // All rows held but for contacts that part before the step, with no impulses: most stay so where no other row moves. False where one moves,
  // or all contacts part.
  bool begin_standing() {
    if (!p_.before) return false;
    std::fill_n(s_.mode, modes_count(p_), static_cast<int>(STICKING));
    bool parts = p_.contacts > 0;
    for (int r = 0; r < ncp_.m; ++r) {
      const bool normal = r < 3 * p_.contacts && r % 3 == 2, moves = !(std::fabs(p_.before[r]) <= HELD * ncp_.approach);
      if (moves && !(normal && p_.before[r] > 0)) return false;
      if (moves) s_.mode[r / 3] = SEPARATING;
      parts &= moves || !normal;
    }
    std::memset(s_.at.x, 0, sizeof(double) * ncp_.width), std::memset(s_.speed, 0, sizeof(double) * p_.contacts);
    return !parts;
  }

  void set_direction(int c, double x, double y) {
    const double length = std::hypot(x, y);
    s_.direction[3 * c] = length > 0 ? x / length : 1.0, s_.direction[3 * c + 1] = length > 0 ? y / length : 0.0;
  }

  // Puts impulses into the modes: zero where a contact or a limit is open, on the cone where one slides, at the bound where a joint does.
  void into_modes() {
    double* x = s_.at.x;
    for (int c = 0; c < p_.contacts; ++c) {
      double *y = x + 3 * c, *u = s_.direction + 3 * c;
      if (s_.mode[c] == SEPARATING) y[0] = y[1] = y[2] = 0.0;
      if (s_.mode[c] == SLIDING) y[2] = std::max(y[2], 0.0), y[0] = p_.mu[c] * y[2] * u[0], y[1] = p_.mu[c] * y[2] * u[1];
    }
    for (int k = 0, r = 3 * p_.contacts; k < p_.limits + p_.dry; ++k, ++r)
      if (!s_.mode[p_.contacts + k]) x[r] = k < p_.limits ? 0.0 : std::copysign(p_.bound[k - p_.limits], x[r]);
  }

  // The unknowns of the modes: impulses of what sticks or is held, and of a contact that slides its angle, where it has friction, and its
  // normal impulse.
  void hold() {
    bool any;
    const int rows = held_rows(p_, s_.mode, s_.held, any);
    s_.n = 0;
    for (int i = 0; i < rows; ++i) {
      const int r = s_.held[i];
      if (!slides(r) || r % 3 == 2 || (r % 3 == 0 && p_.mu[r / 3] > 0)) s_.held[s_.n++] = r;
    }
  }

  // The velocity of a contact along its friction.
  double along(int c, const double* nu) const { return s_.direction[3 * c] * nu[3 * c] + s_.direction[3 * c + 1] * nu[3 * c + 1]; }

  // What the equation of a held row leaves, m/s.
  double left(int r) const {
    const double *nu = s_.at.nu + r, *u = s_.direction + r;
    return is_angle(r) ? u[0] * nu[1] - u[1] * nu[0] : nu[0];
  }

  void make_basis() {
    for (int j = 0; j < s_.n; ++j) {
      const int r = s_.held[j], c = r / 3;
      if (!slides(r)) {
        s_.place[j] = -1;
        continue;
      }
      double* e = s_.basis + 3 * j;
      s_.place[j] = 3 * c;
      const double *u = s_.direction + 3 * c, mu = p_.mu[c], radius = mu * s_.at.x[3 * c + 2];
      if (is_angle(r)) e[0] = -radius * u[1], e[1] = radius * u[0], e[2] = 0.0;
      else e[0] = mu * u[0], e[1] = mu * u[1], e[2] = 1.0;
    }
  }

  // The derivative of a nu_r + b nu_{r+1} by the unknowns, whose basis is made, into `to` (n,).
  void velocity_gradient(double eps, int r, double a, double b, double* to) const {
    const double* G = p_.G + (ptrdiff_t)r * p_.stride;
    for (int at = 0; at < ncp_.width; at += W)
      store(s_.row + at, b != 0 ? a * load(G + at) + b * load(G + p_.stride + at) : a * load(G + at));
    s_.row[r] += a * eps;
    if (b != 0) s_.row[r + 1] += b * eps;
    for (int j = 0; j < s_.n; ++j) {
      const double *by = s_.row + s_.place[j], *e = s_.basis + 3 * j;
      to[j] = s_.place[j] < 0 ? s_.row[s_.held[j]] : e[0] * by[0] + e[1] * by[1] + e[2] * by[2];
    }
  }

  // The derivative of rho `left` of the held rows by the unknowns, into K (n, ld), zero from column n on.
  void derivative(double eps, double* K, int ld) {
    make_basis();
    for (int i = 0; i < s_.n; ++i) {
      const int r = s_.held[i];
      const double rho = ncp_.rho[r], *u = s_.direction + r;
      double* to = K + (ptrdiff_t)i * ld;
      const bool angle = is_angle(r);
      velocity_gradient(eps, r, angle ? -rho * u[1] : rho, angle ? rho * u[0] : 0.0, to);
      if (angle) to[i] += rho * s_.speed[r / 3];
      for (int j = s_.n; j < ld; ++j) to[j] = 0.0;
    }
  }

  // Adds `share` of a change of the unknowns, during which log eps changes by share decay / eps; speeds follow, and lose as much of what
  // their equations leave.
  void move(double eps, const double* change, double share, double decay = 0.0) {
    make_basis();
    double* by = s_.row + ncp_.width;
    for (int c = 0; c < p_.contacts; ++c) {
      if (s_.mode[c] != SLIDING || p_.mu[c] == 0) continue;
      const double* u = s_.direction + 3 * c;
      velocity_gradient(eps, 3 * c, u[0], u[1], by);
      double moved = decay * p_.mu[c] * s_.at.x[3 * c + 2];
      for (int j = 0; j < s_.n; ++j) moved += by[j] * change[j];
      s_.speed[c] -= share * moved + std::fabs(share) * (s_.speed[c] + along(c, s_.at.nu));
    }
    for (int i = 0; i < s_.n; ++i) {
      const int r = s_.held[i];
      if (!is_angle(r)) {
        s_.at.x[r] += share * change[i];
        continue;
      }
      double* u = s_.direction + r;
      const double c = std::cos(share * change[i]), s = std::sin(share * change[i]), u0 = u[0], u1 = u[1];
      u[0] = c * u0 - s * u1, u[1] = s * u0 + c * u1;
    }
    for (int c = 0; c < p_.contacts; ++c) {
      double *y = s_.at.x + 3 * c, *u = s_.direction + 3 * c;
      if (s_.mode[c] == SLIDING) y[0] = p_.mu[c] * y[2] * u[0], y[1] = p_.mu[c] * y[2] * u[1];
    }
  }

  double largest_impulse() const {
    double size = 0;
    for (int r = 0; r < ncp_.m; ++r) size = std::max(size, std::fabs(s_.at.x[r]));
    return size;
  }

  int slots() const { return 2 * p_.contacts + p_.limits + p_.dry; }
  bool of_contact(int slot) const { return slot < 2 * p_.contacts; }
  // The row of a slot's value, the first of a contact's; the place of the mode that it ends.
  int row_of(int slot) const { return of_contact(slot) ? slot / 2 * 3 : p_.contacts + slot; }
  int place_of(int slot) const { return of_contact(slot) ? slot / 2 : slot - p_.contacts; }

  // Whether the value of a slot is an impulse, and no velocity.
  bool is_impulse(int slot) const {
    const int mode = s_.mode[place_of(slot)];
    return of_contact(slot) ? slot % 2 || mode == STICKING : mode;
  }

  // What may not be negative. Of a contact that is open nu_n; that sticks, its distance from the cone; that slides, its speed, and in its
  // second slot lambda_n.
  double value(int slot) const {
    const int at = place_of(slot), r = row_of(slot), mode = s_.mode[at];
    const double *x = s_.at.x + r, *nu = s_.at.nu + r;
    if (!of_contact(slot)) {
      if (at < p_.contacts + p_.limits) return mode ? x[0] : nu[0];
      const double bound = p_.bound[at - p_.contacts - p_.limits];
      return mode ? bound - std::fabs(x[0]) : !(bound > 0) ? HUGE_VAL : x[0] > 0 ? -nu[0] : nu[0];
    }
    if (slot % 2) return mode == SLIDING ? x[2] : HUGE_VAL;
    if (mode == SEPARATING) return nu[2];
    if (mode == STICKING) return p_.mu[at] * x[2] - std::hypot(x[0], x[1]);
    return p_.mu[at] > 0 ? s_.speed[at] : HUGE_VAL;
  }

  // Exchanges the mode that a slot's value ends for its neighbour; the slot whose value grows from here.
  int exchange(int slot) {
    const int at = place_of(slot), r = row_of(slot);
    int& mode = s_.mode[at];
    const double *x = s_.at.x + r, *nu = s_.at.nu + r;
    if (of_contact(slot)) s_.speed[at] = mode == SEPARATING ? std::hypot(nu[0], nu[1]) : 0.0;
    if (!of_contact(slot)) {
      mode = !mode;
    } else if (mode == SEPARATING) {
      const bool slips = s_.speed[at] > 0 || p_.mu[at] == 0;
      mode = slips ? SLIDING : STICKING, slot += slips;
      set_direction(at, -nu[0], -nu[1]);
    } else if (mode == SLIDING) {
      mode = slot % 2 ? SEPARATING : STICKING, slot = 2 * at;
    } else {  // a contact at the tip of its cone opens
      mode = x[2] > 0 && std::hypot(x[0], x[1]) > NO_FRICTION * largest_impulse() ? SLIDING : SEPARATING;
      set_direction(at, x[0], x[1]);
    }
    into_modes();
    return slot;
  }
};

// Whether a contact neither approaches nor parts, as between the boxes of a pile that falls as one: whether it closes is up to others,
// and at zero impulse rounding decides.
inline bool rests(const Ncp& ncp, int contact) { return std::fabs(ncp.problem.g[3 * contact + 2]) <= SLOW * ncp.approach; }

// Whether there is one while another approaches.
inline bool rests(const Ncp& ncp) {
  bool some = false, falls = false;
  for (int c = 0; c < ncp.problem.contacts; ++c) some |= rests(ncp, c), falls |= ncp.problem.g[3 * c + 2] < -SLOW * ncp.approach;
  return some && falls;
}

// Modes to begin with: those of a point, the same with contacts that rest held, or those of a robot that stands.
enum class Beginning { AS_FOUND, HELD, STANDING };

class NewtonInModes : EquationsInModes {
 public:
  using EquationsInModes::EquationsInModes;

  // The solution of the regularised problem by revisions of modes to begin with, in at most so many iterations; whether `at` is it now, else
  // `at` is as it was. K is factored in `work` but for the contacts that slide.
  bool solve(const Regularised& of, Point& at, Factor& work, double tol, int most, int& iterations, Beginning beginning) {
    if (beginning != Beginning::STANDING) begin(of, at);
    else if (!begin_standing()) return false;
    for (int c = 0; beginning == Beginning::HELD && c < p_.contacts; ++c)
      if (rests(ncp_, c)) s_.mode[c] = STICKING, s_.speed[c] = 0.0;
    int revisions = 0, since = 0;
    bool changed = true;
    for (int k = 0;; ++k, ++since) {
      velocity(of, s_.at.x, s_.at.nu);
      if (changed) hold(), first_speeds(), since = 0;
      changed = false;
      double size = 0;
      for (int i = 0; i < s_.n; ++i) {
        const double error = std::fabs(left(s_.held[i]));
        if (!(error <= size)) size = error;
      }
      if (!std::isfinite(size) || k >= most) return false;
      if ((since > 0 && size <= SMALL * ncp_.approach) || size <= tol) {
        changed = revise(std::max(size, tol), size <= tol ? 0.0 : size, revisions++ >= ALL_AT_ONCE);
        if (changed) continue;
        if (size <= tol) break;
      }
      ++iterations;
      step(of, work);
      changed = ended(since > 0 ? 0.0 : SMALL * ncp_.approach);
    }
    evaluate(of, s_.at);
    if (!converged(of, s_.at, tol)) return false;
    std::swap(at, s_.at);
    return true;
  }

 private:
  // A step of Newton's method, or as much of it as turns no friction too far. Held rows are linear in the impulses: they are eliminated, and
  // the angles and normal impulses of the contacts that slide are left, two unknowns each.
  void step(const Regularised& of, Factor& work) {
    eliminate_linear(of, s_.mode, work);
    const int first = work.linear, k = (work.n - first) / 3, n = 2 * k, ld = padded(n), *held = work.held + first;
    for (int i = 0; i < work.n; ++i) work.right[i] = s_.at.nu[work.held[i]];
    substitute_forward(work.K, work.ld, work.n, first, work.inverse, work.right);
    double *rest = work.right + first, length = 1.0;
    for (int a = 0; a < k; ++a) {
      const int r = held[3 * a], c = r / 3;
      const double *u = s_.direction + r, rho = ncp_.rho[r], rho_n = ncp_.rho[r + 2];
      double *angle = work.S + (ptrdiff_t)(2 * a) * ld, *normal = angle + ld;
      for (int b = 0; b < k; ++b) {
        const int other = held[3 * b];
        const double *w = s_.direction + other, mu = p_.mu[other / 3], radius = mu * s_.at.x[other + 2];
        double by_angle[3], by_normal[3];
        for (int i = 0; i < 3; ++i) {
          const double x = left_of(work, 3 * a + i, 3 * b), y = left_of(work, 3 * a + i, 3 * b + 1), z = left_of(work, 3 * a + i, 3 * b + 2);
          by_angle[i] = radius * (w[0] * y - w[1] * x), by_normal[i] = mu * (w[0] * x + w[1] * y) + z;
        }
        angle[2 * b] = rho * (u[0] * by_angle[1] - u[1] * by_angle[0]), angle[2 * b + 1] = rho * (u[0] * by_normal[1] - u[1] * by_normal[0]);
        normal[2 * b] = rho_n * by_angle[2], normal[2 * b + 1] = rho_n * by_normal[2];
      }
      std::fill(angle + n, angle + ld, 0.0), std::fill(normal + n, normal + ld, 0.0);
      angle[2 * a] += rho * s_.speed[c];
      work.reduced[2 * a] = rho * (u[0] * rest[3 * a + 1] - u[1] * rest[3 * a]), work.reduced[2 * a + 1] = rho_n * rest[3 * a + 2];
      if (p_.mu[c] > 0) continue;
      std::fill_n(angle, n, 0.0), angle[2 * a] = 1.0, work.reduced[2 * a] = 0.0;  // without friction there is no angle
    }
    factor_general(work.S, ld, n, MACHINE, work.row, work.S_inverse);
    if (n > 0) solve_general(work.S, ld, n, work.row, work.S_inverse, work.reduced, work.answer);
    for (int a = 0; a < k; ++a) {
      const int r = held[3 * a];
      const double *u = s_.direction + r, mu = p_.mu[r / 3], along = mu * work.answer[2 * a + 1];
      double& turn = work.answer[2 * a];
      if (!(s_.at.x[r + 2] > 0)) turn = std::clamp(turn, -LARGEST_TURN, LARGEST_TURN);
      else if (std::fabs(turn) > LARGEST_TURN) length = std::min(length, LARGEST_TURN / std::fabs(turn));
      const double across = mu * s_.at.x[r + 2] * turn;
      rest[3 * a] = along * u[0] - across * u[1], rest[3 * a + 1] = along * u[1] + across * u[0], rest[3 * a + 2] = work.answer[2 * a + 1];
    }
    substitute_back(work.K, work.ld, work.n, first, work.inverse, work.right);
    for (int j = 0, linear = 0, sliding = 0; j < s_.n; ++j) {
      const int r = s_.held[j];
      if (slides(r)) sliding += p_.mu[r / 3] == 0, work.small[j] = work.answer[sliding++];
      else work.small[j] = work.right[linear++];
    }
    move(of.weight, work.small, -length);
  }

  // Contacts that begin to slide have no speed yet: they get that at which their impulses on the cones let them move.
  void first_speeds() {
    for (int c = 0; c < p_.contacts; ++c)
      if (s_.mode[c] == SLIDING && s_.speed[c] == 0) s_.speed[c] = std::max(0.0, -along(c, s_.at.nu));
  }

  // Contacts that slide open where they lose their normal impulse, and stick where they slide backwards, faster than `slack`; whether one
  // does.
  bool ended(double slack) {
    bool some = false;
    for (int c = 0; c < p_.contacts; ++c) {
      const bool opens = !(s_.at.x[3 * c + 2] > 0);
      if (s_.mode[c] == SLIDING && (opens || s_.speed[c] < -slack)) s_.mode[c] = opens ? SEPARATING : STICKING, s_.speed[c] = 0.0, some = true;
    }
    into_modes();
    return some;
  }

  // Exchanges all modes whose values are below zero, or the last one; whether there was one. approach: velocity up to which an open contact does not close;
  // slack: velocity, and as rho times it impulse, by which what is not known any better may be wrong.
  bool revise(double approach, double slack, bool one) {
    bool wrong = false;
    for (int slot = slots() - 1; slot >= 0 && !(wrong && one); --slot) {
      const bool opens = of_contact(slot) && s_.mode[slot / 2] == SEPARATING;
      const double allowed = opens ? approach : is_impulse(slot) ? slack * ncp_.rho[row_of(slot)] : slack;
      if (value(slot) < -allowed) exchange(slot), wrong = true;
    }
    return wrong;
  }
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
