// One step of free motion by Euler's method or the classical Runge-Kutta method (trajopt/dynamics/integrators.py): no impulses act,
// and the report stays empty. The configuration moves as q (+) theta, with d theta/dt = J_r^-1(theta) omega of every ball joint.
#pragma once
#include "one_sided.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// The acceleration without impulses, M^-1 (tau - h), into `out`; M is factorised.
template <class Size>
void free_acceleration(const Topology& t, const Parameters& p, const double* q, const double* v, const double* tau, double* out,
                       Workspace<Size>& w) {
  const Size n = w.size;
  expand_coordinates(t, p, q, w.tree_q);
  kinematics(n, t, p, w.tree_q, w.kin);
  link_inertias(n, p, w.kin, w.dynamics);
  bias_forces(n, t, p, w.kin, q, v, w.dynamics);
  mass_matrix(n, t, p, w.kin, w.dynamics);
  factorise(n, t, w.dynamics);
  for (int k = 0; k < t.nv; ++k) out[k] = tau[k] - w.dynamics.bias[k];
  solve_mass_matrix(n, t, w.dynamics, out);
}

// J_r^-1(theta) omega = omega + theta x omega / 2 + c theta x (theta x omega), |theta| < 2 pi.
inline V3<double> turning_rate(V3<double> theta, V3<double> omega) {
  const double x = dot(theta, theta);
  double c;  // 1 / t^2 - cot(t / 2) / (2 t)
  if (x < SMALL_SQUARE) {
    c = 1 / 12. + x * (1 / 720. + x * (1 / 30240. + x * (1 / 1209600. + x / 47900160.)));
  } else {
    const double angle = std::sqrt(x);
    c = 1 / x - std::cos(angle / 2) / (2 * angle * std::sin(angle / 2));
  }
  const V3<double> once = cross(theta, omega);
  return omega + 0.5 * once + c * cross(theta, once);
}

// (theta, v) after h along (theta_rate, acceleration), from theta = 0 and v, into s.theta and s.v.
inline void move_stage(int nv, double h, const double* v, StageWork& s) {
  for (int k = 0; k < nv; ++k) s.theta[k] = h * s.theta_rate[k], s.v[k] = v[k] + h * s.acceleration[k];
}

template <class Size>
void explicit_step(const Topology& t, const Parameters& p, const StepInput& in, const StepOutput& out, Workspace<Size>& w) {
  constexpr double AHEAD[] = {0, 0.5, 0.5, 1}, WEIGHT[] = {1 / 6., 1 / 3., 1 / 3., 1 / 6.}, WHOLE[] = {1};
  const bool euler = in.integrator == Integrator::EULER;
  const double* weight = euler ? WHOLE : WEIGHT;
  const int stages = euler ? 1 : 4;
  StageWork& s = w.stage;
  for (double* sum : {s.theta_rate, s.acceleration, s.theta_sum, s.acceleration_sum}) std::memset(sum, 0, sizeof(double) * t.nv);
  for (int stage = 0; stage < stages; ++stage) {
    move_stage(t.nv, AHEAD[stage] * in.dt, in.v, s);
    integrate(t, w.balls, in.q, 1, s.theta, w.middle);
    free_acceleration(t, p, w.middle, s.v, in.tau, s.acceleration, w);
    std::memcpy(s.theta_rate, s.v, sizeof(double) * t.nv);
    for (const BallJoint& ball : w.balls) {
      const V3<double> rate = turning_rate(three(s.theta + ball.v), three(s.v + ball.v));
      s.theta_rate[ball.v] = rate.x, s.theta_rate[ball.v + 1] = rate.y, s.theta_rate[ball.v + 2] = rate.z;
    }
    for (int k = 0; k < t.nv; ++k) s.theta_sum[k] += weight[stage] * s.theta_rate[k], s.acceleration_sum[k] += weight[stage] * s.acceleration[k];
  }
  for (int k = 0; k < t.nv; ++k) out.v[k] = in.v[k] + in.dt * s.acceleration_sum[k];
  integrate(t, w.balls, in.q, in.dt, s.theta_sum, out.q);
  std::memset(out.impulse, 0, sizeof(double) * t.impulses());
  std::memset(out.report, 0, sizeof(double) * report_size(t));
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
