// Newton's method on the regularised problem in given modes, which are revised by the signs of what comes out: an active-set method
// (Nocedal and Wright, section 16.5) with the cone's equation in place of a bound.
//
// A contact that slides has the unknowns of creep.h: the angle of its friction, its speed and its normal impulse. In these Newton's method
// follows the circle of the friction; on the natural map a step leaves it, and where a contact creeps by what eps lets it, that map takes
// dozens of short steps. The modes to begin with are those of a point near the solution; where a few revisions do not end at a solution
// nothing is returned, and the iteration on the natural map, whose merit falls in every step, goes on.
#pragma once
#include "creep.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int MODE_ITERATIONS = 16, MODE_REVISIONS = 6;
constexpr int TOGETHER_IN_MODES = 3;  // revisions of all modes that are wrong at once; later ones of the worst alone
constexpr int PATIENT_STEPS = 5;      // in the same modes, after which the velocities that remain must be small
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

// Takes `step` off the unknowns, or as much of it as turns no friction too far. Contacts that slide and lose their normal impulse open;
// whether one does.
inline bool move_in_modes(const Ncp& ncp, CreepScratch& s, const int* held, int n, const double* step) {
  const ContactProblem& p = ncp.problem;
  double length = 1.0;
  bool opens = false;
  for (int i = 0; i < n; i += width_of(ncp, s, held[i])) {
    if (!slides(ncp, s, held[i])) continue;
    const double radius = p.mu[held[i] / 3] * s.at.x[held[i] + 2];
    if (radius > 0 && std::fabs(step[i]) > CREEP_TURN * radius) length = std::min(length, CREEP_TURN * radius / std::fabs(step[i]));
  }
  for (int i = 0; i < n; i += width_of(ncp, s, held[i])) {
    const int r = held[i];
    double *x = s.at.x + r, *u = s.direction + r;
    if (!slides(ncp, s, r)) {
      x[0] -= length * step[i];
      continue;
    }
    const double radius = p.mu[r / 3] * x[2], turn = radius > 0 ? -length * step[i] / radius : 0.0;
    const double u0 = u[0] - turn * u[1], u1 = u[1] + turn * u[0], one = std::sqrt(u0 * u0 + u1 * u1);
    u[0] = u0 / one, u[1] = u1 / one;
    s.slip[r / 3] -= length * step[i + 1] / ncp.rho[r];
    x[2] -= length * step[i + 2];
  }
  for (int c = 0; c < p.contacts; ++c)
    if (s.mode[c] == SLIDING && !(s.at.x[3 * c + 2] > 0)) s.mode[c] = SEPARATING, s.slip[c] = 0.0, opens = true;
  into_modes(ncp, s);
  return opens;
}

// The solution of the regularised problem by revisions of the modes of `at`; whether `at` is it now, else `at` is as it was. The memory
// of `work` is used.
inline bool newton_in_modes(const Regularised& of, Point& at, CreepScratch& s, Factor& work, double* right, double tol, int& iterations) {
  const Ncp& ncp = of.ncp;
  work.valid = false;
  begin_in_modes(of, at, s);
  into_modes(ncp, s);
  int revisions = 0, since = 0;
  double before = HUGE_VAL;
  bool any, changed = true;
  for (int k = 0;; ++k, ++since) {
    if (changed) work.n = held_rows(ncp.problem, s.mode, work.held, any), work.ld = padded(work.n), since = 0;
    const int n = work.n, ld = work.ld;
    velocity(of, s.at.x, s.at.nu);
    const double size = creep_error(ncp, s, work.held, n, right);
    if (!std::isfinite(size)) return false;
    if ((since > 0 && size <= SMALL * ncp.approach) || size <= tol) {
      changed = revise_modes(ncp, s, std::max(size, tol), revisions < TOGETHER_IN_MODES, size <= tol ? 0.0 : size);
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
    gather(ncp.problem, work.held, n, work.K, ld);
    for (int i = 0; i < n; ++i) work.K[(ptrdiff_t)i * ld + i] += of.weight, work.right[i] = right[work.held[i]];
    creep_matrix(ncp, s, work.held, n, 0.0, work.K, ld);  // eps is in K already
    factor_general(work.K, ld, n, MACHINE, work.row, work.inverse);
    solve_general(work.K, ld, n, work.row, work.inverse, work.right, work.small);
    changed = move_in_modes(ncp, s, work.held, n, work.small);
  }
  evaluate(of, s.at);
  if (!converged(of, s.at, tol)) return false;
  std::swap(at, s.at);
  return true;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
