// Block Gauss-Seidel on the regularised problem: contact after contact, with the newest impulses of the others,
//
//     lambda_j <- proj(lambda_j - r_j nu_j),      r_j the inverse of the largest row sum of |D_j|,  D_j the contact's own block,
//
// at which no contact by itself overshoots (trajopt/dynamics/contact/solve/gauss_seidel.py); limits and dry rows likewise.
#pragma once
#include "newton.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Row r of nu at x.
inline double row_velocity(const Regularised& of, int r, const double* x) {
  const ContactProblem& p = of.ncp.problem;
  const double* G = p.G + (ptrdiff_t)r * p.stride;
  Lanes s = {};
  for (int at = 0; at < of.ncp.width; at += W) s += load(G + at) * load(x + at);
  return sum(s) + p.g[r] + of.weight * x[r];
}

// One sweep over all rows; returns the largest change as a velocity.
inline double sweep(const Regularised& of, double* x) {
  const ContactProblem& p = of.ncp.problem;
  const int cones = 3 * p.contacts, unilateral = cones + p.limits;
  double change = 0;
  for (int c = 0; c < p.contacts; ++c) {
    double* lambda = x + 3 * c;
    double nu[3], old[3] = {lambda[0], lambda[1], lambda[2]}, most = 0;
    for (int i = 0; i < 3; ++i) {
      const double* D = p.G + (ptrdiff_t)(3 * c + i) * p.stride + 3 * c;
      nu[i] = row_velocity(of, 3 * c + i, x);
      most = std::max(most, std::fabs(D[0]) + std::fabs(D[1]) + std::fabs(D[2]) + of.weight);
    }
    if (!(most > 0)) continue;
    const double y0 = old[0] - nu[0] / most, y1 = old[1] - nu[1] / most, normal = std::max(0.0, old[2] - nu[2] / most);
    const double length = std::sqrt(y0 * y0 + y1 * y1), radius = p.mu[c] * normal;
    const double shrink = length > radius ? radius / length : 1.0;
    lambda[0] = shrink * y0, lambda[1] = shrink * y1, lambda[2] = normal;
    for (int i = 0; i < 3; ++i) change = std::max(change, std::fabs(lambda[i] - old[i]) / of.rho(3 * c + i));
  }
  for (int r = cones; r < of.ncp.m; ++r) {
    const double own = p.G[(ptrdiff_t)r * p.stride + r] + of.weight;
    if (!(own > 0)) continue;
    const double y = x[r] - row_velocity(of, r, x) / own;
    const double bound = r < unilateral ? 0.0 : p.bound[r - unilateral];
    const double next = r < unilateral ? std::max(0.0, y) : std::fabs(y) <= bound ? y : std::copysign(bound, y);
    change = std::max(change, std::fabs(next - x[r]) / of.rho(r));
    x[r] = next;
  }
  return change;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
