// One step of a feedback policy about a motion, u = clip(u_bar + K (x (-) x_bar)): what the forward pass of iLQR follows
// (trajopt/solvers/ddp/iteration.py).
#pragma once
#include <algorithm>

#include "integrate.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

struct PolicyStep {
  const double *x_bar, *u_bar, *K, *lower, *upper;
  int nu;

  // That of step k of the motion.
  PolicyStep at(const Topology& t, int64_t k) const {
    return {x_bar + k * (t.nq + t.nv), u_bar + k * nu, K + k * nu * 2 * t.nv, lower, upper, nu};
  }
};

// The control at (q, v) into u; dx (2 nv): work.
inline void follow_policy(const Topology& t, const std::vector<BallJoint>& balls, const PolicyStep& at, const double* q, const double* v,
                          double* dx, double* u) {
  difference(t, balls, at.x_bar, q, dx);
  for (int i = 0; i < t.nv; ++i) dx[t.nv + i] = v[i] - at.x_bar[t.nq + i];
  const int n = 2 * t.nv;
  for (int r = 0; r < at.nu; ++r) {
    const double* row = at.K + r * n;
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += row[i] * dx[i];
    const double wanted = at.u_bar[r] + sum;
    u[r] = wanted < at.lower[r] ? at.lower[r] : wanted > at.upper[r] ? at.upper[r] : wanted;
  }
}

// tau + arms u, arms (nv, nu), into force.
inline const double* drive(const double* arms, const double* u, const double* tau, int nv, int nu, double* force) {
  for (int i = 0; i < nv; ++i) {
    force[i] = tau[i];
    for (int r = 0; r < nu; ++r) force[i] += arms[i * nu + r] * u[r];
  }
  return force;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
