// Proof that a contact problem has no solution: a ray of impulses without friction that nothing resists and that works against the approach
// (`infeasible`). A ray with friction proves less.
#pragma once
#include "newton.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double RAY = 1e-8;      // |G ray| over |ray|, scaled by rho, below which nothing resists an impulse

// What is proven: that the contacts cannot all stick, or that no solution exists.
enum Proof : int { NO_PROOF, NO_STICKING, NO_SOLUTION };

// Whether d, projected onto the cones, is a ray of impulses that moves nothing, G d = 0, and works against the approach, d . g < 0.
// Then d . nu = d . g < 0 for every impulse. Without tangential parts this contradicts nu_n >= 0: there is no solution. With them the
// contacts cannot all stick, but a solution may exist in which one slides or opens. Gd: scratch.
inline Proof ray(const Ncp& ncp, double* d, double* Gd) {
  const ContactProblem& p = ncp.problem;
  const int cones = 3 * p.contacts, unilateral = cones + p.limits;
  auto measure = [&] {
    double work = 0, size = 0, length = 0, moved = 0;
    std::memset(Gd, 0, sizeof(double) * ncp.width);
    combine(p.G, p.stride, ncp.m, ncp.width, d, Gd, Gd);
    for (int r = 0; r < ncp.m; ++r) {
      work += d[r] * p.g[r], size += std::fabs(d[r]);
      length += d[r] * d[r] / ncp.rho[r], moved += Gd[r] * Gd[r] * ncp.rho[r];
    }
    return size > 0 && moved < RAY * RAY * length && work < -SLOW * ncp.approach * size;
  };
  for (int r = 2; r < cones; r += 3) d[r] = std::max(0.0, d[r]);
  for (int r = cones; r < unilateral; ++r) d[r] = std::max(0.0, d[r]);
  for (int r = unilateral; r < ncp.m; ++r)
    if (std::isfinite(p.bound[r - unilateral])) d[r] = 0.0;
  for (int r = 0; r < cones; r += 3) {
    const double radius = p.mu[r / 3] * d[r + 2], length = std::hypot(d[r], d[r + 1]);
    const double shrink = length > radius ? radius / length : 1.0;
    d[r] *= shrink, d[r + 1] *= shrink;
  }
  const bool slipping = measure();
  for (int r = 0; r < cones; r += 3) d[r] = d[r + 1] = 0.0;
  return measure() ? NO_SOLUTION : slipping ? NO_STICKING : NO_PROOF;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
