// Newton's method on the regularised problem in given modes, which are revised by the signs of what comes out: an active-set method
// (Nocedal and Wright, section 16.5) with the cone's equation in place of a bound.
//
// A contact that slides has the unknowns of creep.h: the angle of its friction, its speed and its normal impulse. In these Newton's method
// follows the circle of the friction; on the natural map a step leaves it, and where a contact creeps by what eps lets it, that map takes
// dozens of short steps. The speed stands in one equation of each such contact alone, the velocity along its friction: it is eliminated, and
// two unknowns are left. A contact whose speed turns against its friction sticks at once: on the other side the equation of its angle leads
// away from the solution. The modes to begin with are those of a point on the way to the solution; where a few revisions do not end at a solution
// nothing is returned, and the iteration on the natural map, whose merit falls in every step, goes on.
#pragma once
#include "creep.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int MODE_ITERATIONS = 24, MODE_REVISIONS = 6;
constexpr int TOGETHER_IN_MODES = 3;  // revisions of all modes that are wrong at once; later ones of the worst alone
constexpr int PATIENT_STEPS = 8;      // in the same modes, after which the velocities that remain must be small
constexpr double AT_REST = 1e-6;      // share of the approaching velocities up to which a contact neither approaches nor parts
constexpr double SMALL = 1e-2;        // share of the approaching velocities: from there on the signs say whether the modes are right

// Modes, directions, slips and impulses to begin with: those of a point of the regularised problem.
inline void begin_in_modes(const Regularised& of, const Point& at, CreepScratch& s) {
  classify(of, at.x, at.nu, s.mode);
  std::memcpy(s.at.x, at.x, sizeof(double) * of.ncp.width);
  for (int c = 0; c < of.ncp.problem.contacts; ++c) {
    const int r = 3 * c;
    const double y0 = at.x[r] - of.rho(r) * at.nu[r], y1 = at.x[r + 1] - of.rho(r + 1) * at.nu[r + 1], length = std::sqrt(y0 * y0 + y1 * y1);
    double* u = s.direction + r;
    u[0] = length > 0 ? y0 / length : 1.0, u[1] = length > 0 ? y1 / length : 0.0;
    s.slip[c] = s.mode[c] == SLIDING ? std::max(0.0, -(at.nu[r] * u[0] + at.nu[r + 1] * u[1])) : 0.0;
  }
}

// Whether a contact neither approaches nor parts, as between the boxes of a pile that falls as one: whether it closes is up to others,
// and at zero impulse rounding decides.
inline bool rests(const Ncp& ncp, int contact) { return std::fabs(ncp.problem.g[3 * contact + 2]) <= AT_REST * ncp.approach; }

// Whether there is one while another approaches.
inline bool rests(const Ncp& ncp) {
  bool some = false, falls = false;
  for (int c = 0; c < ncp.problem.contacts; ++c) some |= rests(ncp, c), falls |= ncp.problem.g[3 * c + 2] < -AT_REST * ncp.approach;
  return some && falls;
}

// Contacts that rest: as they are at the point to begin with, or held.
enum class Resting { AS_FOUND, HELD };

// Of a contact that slides, row 3 c stands for the direction across its friction, row 3 c + 2 for its normal; row 3 c + 1 is not there.
inline bool across(const Ncp& ncp, const CreepScratch& s, int row) { return row % 3 == 0 && slides(ncp, s, row); }

// The unknowns in the modes: impulses of what sticks or is held, and of a contact that slides the angle (as a length on its circle,
// where it has one) and the normal impulse. Their number; `held` gets their rows.
inline int unknowns(const Ncp& ncp, const CreepScratch& s, int* held) {
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
inline double left_along(const CreepScratch& s, int c) {
  const double *nu = s.at.nu + 3 * c, *u = s.direction + 3 * c;
  return s.slip[c] + u[0] * nu[0] + u[1] * nu[1];
}

// Contacts that begin to slide have no speed yet: they get that at which their impulses on the cones let them move.
inline void first_speeds(const Ncp& ncp, CreepScratch& s) {
  for (int c = 0; c < ncp.problem.contacts; ++c)
    if (s.mode[c] == SLIDING && s.slip[c] == 0) s.slip[c] = std::max(0.0, -left_along(s, c));
}

// rho times the velocities that the held rows have to lose into `right` (n,); the largest velocity that is left, m/s.
inline double error_in_modes(const Ncp& ncp, const CreepScratch& s, const int* held, int n, double* right) {
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
inline void basis_in_modes(const Ncp& ncp, CreepScratch& s, const int* held, int n) {
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
inline void matrix_in_modes(const Regularised& of, const CreepScratch& s, const int* held, int n, double* K, int ld, double* row) {
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
    to[i] += ncp.rho[r] * (of.weight + (radius > 0 ? s.slip[c] / radius : 0.0));
    for (int j = n; j < ld; ++j) to[j] = 0.0;
  }
}

// `change` (m,) of the impulses, to first order, along `step` of the unknowns.
inline void change_in_modes(const Ncp& ncp, const CreepScratch& s, int n, const double* step, double* change) {
  std::memset(change, 0, sizeof(double) * ncp.width);
  for (int j = 0; j < n; ++j)
    for (int k = 0; k < 3; ++k) change[s.place[j] + k] += s.basis[3 * j + k] * step[j];
}

// Takes `step` off the unknowns, or as much of it as turns no friction too far; `moved` (m,) are the velocities along it. Contacts that
// slide open where they lose their normal impulse, and stick where they slide backwards, faster than `backwards`; whether one does.
inline bool move_in_modes(const Ncp& ncp, CreepScratch& s, const int* held, int n, const double* step, const double* moved, double backwards) {
  const ContactProblem& p = ncp.problem;
  double length = 1.0;
  bool ends = false;
  const auto radius = [&](int r) { return p.mu[r / 3] * s.at.x[r + 2]; };
  for (int i = 0; i < n; ++i)
    if (across(ncp, s, held[i]) && radius(held[i]) > 0 && std::fabs(step[i]) > CREEP_TURN * radius(held[i]))
      length = std::min(length, CREEP_TURN * radius(held[i]) / std::fabs(step[i]));
  for (int i = 0; i < n; ++i) {
    const int r = held[i];
    if (!across(ncp, s, r)) {  // the normal impulse of a contact, which its circle depends on, comes after the angle
      s.at.x[r] -= length * step[i];
      continue;
    }
    double* u = s.direction + r;
    s.slip[r / 3] -= length * (left_along(s, r / 3) - u[0] * moved[r] - u[1] * moved[r + 1]);
    if (radius(r) > 0) turn_direction(u, -length * step[i] / radius(r));
  }
  for (int c = 0; c < p.contacts; ++c) {
    const bool opens = !(s.at.x[3 * c + 2] > 0);
    if (s.mode[c] != SLIDING || (!opens && s.slip[c] >= -backwards)) continue;
    s.mode[c] = opens ? SEPARATING : STICKING, s.slip[c] = 0.0, ends = true;
  }
  into_modes(ncp, s);
  return ends;
}

// The solution of the regularised problem by revisions of the modes of `at`; whether `at` is it now, else `at` is as it was. The memory
// of `work` is used.
inline bool newton_in_modes(const Regularised& of, Point& at, CreepScratch& s, Factor& work, double tol, int& iterations,
                            Resting resting = Resting::AS_FOUND) {
  const Ncp& ncp = of.ncp;
  work.valid = false;
  begin_in_modes(of, at, s);
  for (int c = 0; resting == Resting::HELD && c < ncp.problem.contacts; ++c)
    if (rests(ncp, c)) s.mode[c] = STICKING, s.slip[c] = 0.0;
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
      const bool early = revisions < TOGETHER_IN_MODES;
      changed = revise_modes(ncp, s, std::max(size, tol), early, early, size <= tol ? 0.0 : size);
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
