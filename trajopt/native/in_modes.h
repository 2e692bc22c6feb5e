// Newton's method on the regularised problem in given modes, which are revised by the signs of what comes out: an active-set method
// (Nocedal and Wright, section 16.5) with the cone's equation in place of a bound.
//
// A contact that slides has unknowns of its own,
//
//     lambda_t = mu lambda_n u,   nu_t = -s u,   nu_n = 0,   |u| = 1,
//
// the angle of its friction u, its speed s and its normal impulse lambda_n, in place of three impulses. In these Newton's method follows
// the circle of the friction; on the natural map a step leaves it, and where a contact slides slowly, as fast as eps lets it, that map
// takes dozens of short steps. The speed stands in one equation of each such contact alone, the velocity along its friction: it is
// eliminated, and two unknowns are left. A contact whose speed turns against its friction sticks at once: on the other side the equation
// of its angle leads away from the solution. The modes to begin with are those of a point on the way to the solution; where a few revisions
// do not end at a solution nothing is returned, and the iteration on the natural map, whose merit falls in every step, goes on.
#pragma once
#include "newton.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int MODE_ITERATIONS = 24, MODE_REVISIONS = 6;  // twice and more what the solved ones of 60,000 steps of robots take
constexpr int REVISED_TOGETHER = 3;   // revisions of all modes that are wrong at once; later ones of the worst alone, which cannot cycle
constexpr int PATIENT_STEPS = 8;      // in the same modes, after which the velocities that remain must be small
constexpr double SMALL = 1e-2;        // share of the approaching velocities: from there on the signs say whether the modes are right
constexpr double LARGEST_TURN = 0.7;  // radians of a step: half of a right angle, within which cosine and sine are near their tangents
constexpr double CONE_SLACK = 1e-12;  // share of its cone by which a sticking contact may pass it: rounding
constexpr double NO_IMPULSE = 1e-9;   // share of the largest impulse below which a sliding contact has none: sqrt of rounding, and a tenth

// Impulses in given modes: the mode of each contact, limit and dry row; u at 3 c and 3 c + 1, and the speed s, m/s, of each contact c.
struct InModes {
  double *direction, *speed;
  Point at;
  int* mode;
  double* basis;  // what an unknown changes, and the first of the three rows that it does
  int* place;
};

inline bool slides(const Ncp& ncp, const InModes& s, int row) {
  return row < 3 * ncp.problem.contacts && s.mode[row / 3] == SLIDING;
}

// Rows that a loop over the held ones takes at once: the three of a sliding contact.
inline int width_of(const Ncp& ncp, const InModes& s, int row) { return slides(ncp, s, row) ? 3 : 1; }

// Turns a direction of the tangent plane by an angle, to first order, and keeps its length of one.
inline void turn_direction(double* u, double angle) {
  const double u0 = u[0] - angle * u[1], u1 = u[1] + angle * u[0], length = std::sqrt(u0 * u0 + u1 * u1);
  u[0] = u0 / length, u[1] = u1 / length;
}

// Puts impulses into the modes: zero where a contact or a limit is open, on the cone where one slides, at the bound where a joint does.
inline void into_modes(const Ncp& ncp, InModes& s) {
  const ContactProblem& p = ncp.problem;
  double* x = s.at.x;
  for (int c = 0; c < p.contacts; ++c) {
    double *y = x + 3 * c, *u = s.direction + 3 * c;
    if (s.mode[c] == SEPARATING) y[0] = y[1] = y[2] = 0.0;
    if (s.mode[c] != SLIDING) continue;
    y[2] = std::max(y[2], 0.0), y[0] = p.mu[c] * y[2] * u[0], y[1] = p.mu[c] * y[2] * u[1];
  }
  for (int k = 0, r = 3 * p.contacts; k < p.limits + p.dry; ++k, ++r)
    if (!s.mode[p.contacts + k]) x[r] = k < p.limits ? 0.0 : std::copysign(p.bound[k - p.limits], x[r]);
}

// Modes, directions, speeds and impulses to begin with: those of a point of the regularised problem.
inline void begin_in_modes(const Regularised& of, const Point& at, InModes& s) {
  classify(of, at.x, at.nu, s.mode);
  std::memcpy(s.at.x, at.x, sizeof(double) * of.ncp.width);
  for (int c = 0; c < of.ncp.problem.contacts; ++c) {
    const int r = 3 * c;
    const double y0 = at.x[r] - of.rho(r) * at.nu[r], y1 = at.x[r + 1] - of.rho(r + 1) * at.nu[r + 1], length = std::sqrt(y0 * y0 + y1 * y1);
    double* u = s.direction + r;
    u[0] = length > 0 ? y0 / length : 1.0, u[1] = length > 0 ? y1 / length : 0.0;
    s.speed[c] = s.mode[c] == SLIDING ? std::max(0.0, -(at.nu[r] * u[0] + at.nu[r + 1] * u[1])) : 0.0;
  }
}

// Whether a contact neither approaches nor parts, as between the boxes of a pile that falls as one: whether it closes is up to others,
// and at zero impulse rounding decides.
inline bool rests(const Ncp& ncp, int contact) { return std::fabs(ncp.problem.g[3 * contact + 2]) <= SLOW * ncp.approach; }

// Whether there is one while another approaches.
inline bool rests(const Ncp& ncp) {
  bool some = false, falls = false;
  for (int c = 0; c < ncp.problem.contacts; ++c) some |= rests(ncp, c), falls |= ncp.problem.g[3 * c + 2] < -SLOW * ncp.approach;
  return some && falls;
}

// Contacts that rest: as they are at the point to begin with, or held.
enum class Resting { AS_FOUND, HELD };

// Of a contact that slides, row 3 c stands for the direction across its friction, row 3 c + 2 for its normal; row 3 c + 1 is not there.
inline bool across(const Ncp& ncp, const InModes& s, int row) { return row % 3 == 0 && slides(ncp, s, row); }

// The unknowns in the modes: impulses of what sticks or is held, and of a contact that slides the angle (as a length on its circle,
// where it has one) and the normal impulse. Their number; `held` gets their rows.
inline int unknowns(const Ncp& ncp, const InModes& s, int* held) {
  bool any;
  const int rows = held_rows(ncp.problem, s.mode, held, any);
  int n = 0;
  for (int i = 0; i < rows; ++i) {
    const int r = held[i];
    const bool there = !slides(ncp, s, r) || r % 3 == 2 || (r % 3 == 0 && ncp.problem.mu[r / 3] > 0);
    if (there) held[n++] = r;
  }
  return n;
}

// What is left of the velocity along the friction of contact c beside its speed, m/s.
inline double left_along(const InModes& s, int c) {
  const double *nu = s.at.nu + 3 * c, *u = s.direction + 3 * c;
  return s.speed[c] + u[0] * nu[0] + u[1] * nu[1];
}

// Contacts that begin to slide have no speed yet: they get that at which their impulses on the cones let them move.
inline void first_speeds(const Ncp& ncp, InModes& s) {
  for (int c = 0; c < ncp.problem.contacts; ++c)
    if (s.mode[c] == SLIDING && s.speed[c] == 0) s.speed[c] = std::max(0.0, -left_along(s, c));
}

// rho times the velocities that the held rows have to lose into `right` (n,); the largest velocity that is left, m/s.
inline double error_in_modes(const Ncp& ncp, const InModes& s, const int* held, int n, double* right) {
  double size = 0;
  const auto see = [&](double left) {
    if (!(std::fabs(left) <= size)) size = std::fabs(left);
    return left;
  };
  for (int i = 0; i < n; ++i) {
    const int r = held[i];
    const double *nu = s.at.nu + r, *u = s.direction + r;
    const bool angle = across(ncp, s, r);
    if (angle) see(left_along(s, r / 3));
    right[i] = ncp.rho[r] * see(angle ? u[0] * nu[1] - u[1] * nu[0] : nu[0]);
  }
  return size;
}

// The change of the impulses with unknown j: s.basis[3 j] to s.basis[3 j + 2], of the three rows from s.place[j] on.
inline void basis_in_modes(const Ncp& ncp, InModes& s, const int* held, int n) {
  for (int j = 0; j < n; ++j) {
    const int r = held[j], c = r / 3;
    const bool contact = r < 3 * ncp.problem.contacts;
    double* e = s.basis + 3 * j;
    s.place[j] = contact ? 3 * c : std::max(r - 2, 0);
    e[0] = e[1] = e[2] = 0.0;
    e[r - s.place[j]] = 1.0;
    if (!slides(ncp, s, r)) continue;
    const double *u = s.direction + 3 * c, mu = ncp.problem.mu[c];
    if (r % 3 == 0) e[0] = -u[1], e[1] = u[0];
    else e[0] = mu * u[0], e[1] = mu * u[1];
  }
}

// The derivative of `right` of `error_in_modes` by the unknowns, into K (n, ld); row: scratch (m,).
inline void matrix_in_modes(const Regularised& of, const InModes& s, const int* held, int n, double* K, int ld, double* row) {
  const Ncp& ncp = of.ncp;
  const ContactProblem& p = ncp.problem;
  for (int i = 0; i < n; ++i) {
    const int r = held[i], c = r / 3;
    const double *u = s.direction + r, *from = p.G + (ptrdiff_t)r * p.stride;
    const bool angle = across(ncp, s, r);
    if (angle) {
      for (int at = 0; at < ncp.width; at += W) store(row + at, u[0] * load(from + p.stride + at) - u[1] * load(from + at));
      from = row;
    }
    double* to = K + (ptrdiff_t)i * ld;
    for (int j = 0; j < n; ++j) {
      const double *by = from + s.place[j], *e = s.basis + 3 * j;
      to[j] = ncp.rho[r] * (e[0] * by[0] + e[1] * by[1] + e[2] * by[2]);
    }
    const double radius = angle ? p.mu[c] * s.at.x[r + 2] : 0.0;
    to[i] += ncp.rho[r] * (of.weight + (radius > 0 ? s.speed[c] / radius : 0.0));
    for (int j = n; j < ld; ++j) to[j] = 0.0;
  }
}

// `change` (m,) of the impulses, to first order, along `step` of the unknowns.
inline void change_in_modes(const Ncp& ncp, const InModes& s, int n, const double* step, double* change) {
  std::memset(change, 0, sizeof(double) * ncp.width);
  for (int j = 0; j < n; ++j)
    for (int k = 0; k < 3; ++k) change[s.place[j] + k] += s.basis[3 * j + k] * step[j];
}

// Takes `step` off the unknowns, or as much of it as turns no friction too far; `moved` (m,) are the velocities along it. Contacts that
// slide open where they lose their normal impulse, and stick where they slide backwards, faster than `backwards`; whether one does.
inline bool move_in_modes(const Ncp& ncp, InModes& s, const int* held, int n, const double* step, const double* moved, double backwards) {
  const ContactProblem& p = ncp.problem;
  double length = 1.0;
  bool ends = false;
  const auto radius = [&](int r) { return p.mu[r / 3] * s.at.x[r + 2]; };
  for (int i = 0; i < n; ++i)
    if (across(ncp, s, held[i]) && radius(held[i]) > 0 && std::fabs(step[i]) > LARGEST_TURN * radius(held[i]))
      length = std::min(length, LARGEST_TURN * radius(held[i]) / std::fabs(step[i]));
  for (int i = 0; i < n; ++i) {
    const int r = held[i];
    if (!across(ncp, s, r)) {  // the normal impulse of a contact, which its circle depends on, comes after the angle
      s.at.x[r] -= length * step[i];
      continue;
    }
    double* u = s.direction + r;
    s.speed[r / 3] -= length * (left_along(s, r / 3) - u[0] * moved[r] - u[1] * moved[r + 1]);
    if (radius(r) > 0) turn_direction(u, -length * step[i] / radius(r));
  }
  for (int c = 0; c < p.contacts; ++c) {
    const bool opens = !(s.at.x[3 * c + 2] > 0);
    if (s.mode[c] != SLIDING || (!opens && s.speed[c] >= -backwards)) continue;
    s.mode[c] = opens ? SEPARATING : STICKING, s.speed[c] = 0.0, ends = true;
  }
  into_modes(ncp, s);
  return ends;
}

// Makes `mode` that of a contact, limit or dry row `at`, by number: contacts first.
inline void become(const Ncp& ncp, InModes& s, int at, int mode) {
  if (at < ncp.problem.contacts) {
    if (mode == SLIDING) {
      const bool closes = s.mode[at] == SEPARATING;  // friction against the velocity
      const double *along = (closes ? s.at.nu : s.at.x) + 3 * at, length = (closes ? -1.0 : 1.0) * std::hypot(along[0], along[1]);
      s.direction[3 * at] = along[0] / length, s.direction[3 * at + 1] = along[1] / length;
    }
    s.speed[at] = 0.0;
  }
  s.mode[at] = mode;
}

// Revises the modes by the signs at the end of Newton's steps: all that are wrong, or the one that is most so, as an impulse; whether
// there was one. Where all are, a contact that closes slides at once where its velocity says so. approach: velocity up to which an open
// contact does not close; slack: velocity, and as rho times it impulse, by which what is not known any better may be wrong.
inline bool revise_modes(const Ncp& ncp, InModes& s, double approach, double slack, bool all) {
  const ContactProblem& p = ncp.problem;
  double largest = 0, worst = -1;
  int which = -1, becomes = 0;
  for (int r = 0; r < ncp.m; ++r) largest = std::max(largest, std::fabs(s.at.x[r]));
  auto wrong = [&](int at, int mode, double size) {
    if (all) become(ncp, s, at, mode);
    if (which < 0 || size > worst) which = at, becomes = mode, worst = size;
  };
  for (int c = 0; c < p.contacts; ++c) {
    const int r = 3 * c;
    const double *x = s.at.x + r, *nu = s.at.nu + r, length = std::hypot(x[0], x[1]);
    if (s.mode[c] == SEPARATING) {
      const bool slips = all && ncp.rho[r] * std::hypot(nu[0], nu[1]) > -p.mu[c] * ncp.rho[r + 2] * nu[2];
      if (nu[2] < -approach) wrong(c, slips ? SLIDING : STICKING, -nu[2] * ncp.rho[r + 2]);
    } else if (x[2] < -slack * ncp.rho[r + 2] || (s.mode[c] == SLIDING && x[2] < NO_IMPULSE * largest)) {
      wrong(c, SEPARATING, std::fabs(x[2]));
    } else if (s.mode[c] == SLIDING && s.speed[c] < -slack) {
      wrong(c, STICKING, -s.speed[c] * ncp.rho[r]);
    } else if (s.mode[c] == STICKING && length > (1 + CONE_SLACK) * p.mu[c] * x[2] + slack * ncp.rho[r]) {
      wrong(c, SLIDING, length - p.mu[c] * x[2]);
    }
  }
  for (int k = 0, r = 3 * p.contacts; k < p.limits + p.dry; ++k, ++r) {
    const int at = p.contacts + k, held = s.mode[at];
    const double x = s.at.x[r], nu = s.at.nu[r], rho = ncp.rho[r];
    if (k < p.limits) {
      if (held ? x < -slack * rho : nu < -slack) wrong(at, !held, held ? -x : -nu * rho);
    } else {
      const double excess = std::fabs(x) - p.bound[k - p.limits];
      const bool turned = x * nu > 0 && std::fabs(nu) > slack;
      if (held ? excess > slack * rho : turned) wrong(at, !held, held ? excess : std::fabs(nu) * rho);
    }
  }
  if (!all && which >= 0) become(ncp, s, which, becomes);
  return which >= 0;
}

// The solution of the regularised problem by revisions of the modes of `at`; whether `at` is it now, else `at` is as it was. The memory
// of `work` is used.
inline bool newton_in_modes(const Regularised& of, Point& at, InModes& s, Factor& work, double tol, int& iterations,
                            Resting resting = Resting::AS_FOUND) {
  const Ncp& ncp = of.ncp;
  work.valid = false;
  begin_in_modes(of, at, s);
  for (int c = 0; resting == Resting::HELD && c < ncp.problem.contacts; ++c)
    if (rests(ncp, c)) s.mode[c] = STICKING, s.speed[c] = 0.0;
  into_modes(ncp, s);
  int revisions = 0, since = 0;
  double before = HUGE_VAL;
  bool changed = true;
  for (int k = 0;; ++k, ++since) {
    if (changed) work.n = unknowns(ncp, s, work.held), work.ld = padded(work.n), since = 0;
    const int n = work.n, ld = work.ld;
    velocity(of, s.at.x, s.at.nu);
    if (changed) first_speeds(ncp, s);
    const double size = error_in_modes(ncp, s, work.held, n, work.right);
    if (!std::isfinite(size)) return false;
    if ((since > 0 && size <= SMALL * ncp.approach) || size <= tol) {
      const bool early = revisions < REVISED_TOGETHER;
      changed = revise_modes(ncp, s, std::max(size, tol), size <= tol ? 0.0 : size, early);
      if (changed) {
        if (++revisions > MODE_REVISIONS) return false;
        into_modes(ncp, s);
        continue;
      }
      if (size <= tol) break;
    }
    if (k >= MODE_ITERATIONS || (since >= 3 && size > before) || (since >= PATIENT_STEPS && size > SMALL * ncp.approach)) return false;
    before = size;
    ++iterations;
    basis_in_modes(ncp, s, work.held, n);
    matrix_in_modes(of, s, work.held, n, work.K, ld, work.other);
    factor_general(work.K, ld, n, MACHINE, work.row, work.inverse);
    solve_general(work.K, ld, n, work.row, work.inverse, work.right, work.small);
    double *change = work.right, *moved = work.other;
    change_in_modes(ncp, s, n, work.small, change);
    for (int at = 0; at < ncp.width; at += W) store(moved + at, of.weight * load(change + at));
    combine(ncp.problem.G, ncp.problem.stride, ncp.m, ncp.width, change, moved, moved);
    changed = move_in_modes(ncp, s, work.held, n, work.small, moved, since > 0 ? 0.0 : SMALL * ncp.approach);
  }
  evaluate(of, s.at);
  if (!converged(of, s.at, tol)) return false;
  std::swap(at, s.at);
  return true;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
