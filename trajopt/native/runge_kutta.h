// One step of free motion by Euler's method or the classical Runge-Kutta method (trajopt/dynamics/integrators.py), and its Jacobian,
// of a topology that is `free`: the report holds the status alone. The configuration moves as q (+) theta, with d theta/dt = J_r^-1(theta) omega of every
// ball joint.
//
// Slopes are matrices with rows of 3 `lanes`, by [dq, dv, dtau] at the start of the step; those of rates are slopes of dt rate.
#pragma once
#include "dual.h"
#include "stepping.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// The acceleration without impulses, M^-1 (tau - h), into `out`; M is factorised. midpoint: length of the step over which the gyroscopic
// torque is its mean, 0 for that at v.
template <class Size>
void free_acceleration(const Topology& t, const Parameters& p, const double* q, const double* v, const double* tau, double midpoint,
                       double* out, Workspace<Size>& w) {
  const Size n = w.size;
  expand_coordinates(t, p, q, w.tree_q);
  kinematics(n, t, p, w.tree_q, w.kin);
  link_inertias(n, p, w.kin, w.dynamics);
  bias_forces(n, t, p, w.kin, q, v, w.dynamics);
  mass_matrix(n, t, p, w.kin, w.dynamics);
  factorise(n, t, w.dynamics);
  if (midpoint > 0) correct_bias(p, w.balls, midpoint, v, w.kin, w.dynamics, w.turning);
  for (int k = 0; k < t.nv; ++k) out[k] = tau[k] - w.dynamics.bias[k];
  solve_mass_matrix(n, t, w.dynamics, out);
}

// J_r^-1(theta) omega = omega + theta x omega / 2 + c theta x (theta x omega), |theta| < 2 pi.
template <class T> V3<T> turning_rate(V3<T> theta, V3<T> omega) {
  const T x = dot(theta, theta);
  T c;  // 1 / t^2 - cot(t / 2) / (2 t)
  if (value(x) < SMALL_SQUARE) {
    c = 1 / 12. + x * (1 / 720. + x * (1 / 30240. + x * (1 / 1209600. + x / 47900160.)));
  } else {
    const T angle = root(x), half = 0.5 * angle;
    c = 1 / x - cosine(half) / (2 * angle * sine(half));
  }
  const V3<T> once = cross(theta, omega);
  return omega + 0.5 * once + c * cross(theta, once);
}

// (theta, v) after h along (theta_rate, acceleration), from theta = 0 and v, into s.theta and s.v.
inline void move_stage(int nv, double h, const double* v, StageWork& s) {
  for (int k = 0; k < nv; ++k) s.theta[k] = h * s.theta_rate[k], s.v[k] = v[k] + h * s.acceleration[k];
}

// -- slopes ------------------------------------------------------------------------------------------------------------------------

// rows += D x of three rows x of `columns`.
inline void add_turned(const double* D, const double* x, ptrdiff_t columns, double* rows) {
  for (int i = 0; i < 3; ++i)
    for (ptrdiff_t c = 0; c < columns; ++c)
      rows[i * columns + c] += D[3 * i] * x[c] + D[3 * i + 1] * x[columns + c] + D[3 * i + 2] * x[2 * columns + c];
}

// Slopes of q (+) theta in tangent coordinates there, from those of theta.
template <class Size>
void turned_slopes(Size n, const Topology& t, const std::vector<BallJoint>& balls, const double* theta, const double* slopes, double* out) {
  const ptrdiff_t columns = 3 * n.lanes();
  std::memcpy(out, slopes, sizeof(double) * t.nv * columns);
  for (int i = 0; i < t.nv; ++i) out[i * columns + i] += 1;
  for (const BallJoint& ball : balls) {
    const TurnJacobians turn = turn_jacobians(three(theta + ball.v));
    double* rows = out + ball.v * columns;
    std::memset(rows, 0, sizeof(double) * 3 * columns);
    add_turned(turn.by_d, slopes + ball.v * columns, columns, rows);
    for (int i = 0; i < 3; ++i)
      for (int c = 0; c < 3; ++c) rows[i * columns + ball.v + c] += turn.by_q[3 * i + c];
  }
}

// Slopes of dt theta_rate at a stage's theta and v.
template <class Size>
void rate_slopes(Size n, const Topology& t, const std::vector<BallJoint>& balls, double dt, const StageWork& s) {
  const ptrdiff_t columns = 3 * n.lanes();
  const StageSlopes& d = s.slopes;
  for (ptrdiff_t at = 0; at < t.nv * columns; ++at) d.theta_rate[at] = dt * d.v[at];
  for (const BallJoint& ball : balls) {
    V3<Dual> theta = lifted<Dual>(three(s.theta + ball.v)), omega = lifted<Dual>(three(s.v + ball.v));
    for (int k = 0; k < 3; ++k) part(theta, k).d[k] = 1, part(omega, k).d[3 + k] = 1;
    const V3<Dual> rate = turning_rate(theta, omega);
    double by_theta[9], by_omega[9];
    for (int i = 0; i < 3; ++i)
      for (int k = 0; k < 3; ++k) by_theta[3 * i + k] = dt * part(rate, i).d[k], by_omega[3 * i + k] = dt * part(rate, i).d[3 + k];
    double* rows = d.theta_rate + ball.v * columns;
    std::memset(rows, 0, sizeof(double) * 3 * columns);
    add_turned(by_theta, d.theta + ball.v * columns, columns, rows);
    add_turned(by_omega, d.v + ball.v * columns, columns, rows);
  }
}

// Slopes of v + dt a(q, v, tau), at the state whose dynamics the workspace holds, by that state: by_q, by_v and Q of JacobianWork.
template <class Size>
void acceleration_slopes(const Topology& t, const Parameters& p, double dt, const double* acceleration, Workspace<Size>& w) {
  const Size n = w.size;
  w.rows.clear();
  invert(n, t, w.dynamics);
  derivative_terms(n, t, p, w.kin, w.dynamics, acceleration, w.jacobian.terms);
  set_wrenches(t, w.kin, w.rows, nullptr, w.jacobian.wrench);
  momentum_balance(n, t, dt, w);
  joint_terms(n, t, p, dt, w);
  velocity_jacobian(n, t, p, dt, true, false, nullptr, w);
}

// Slopes of a stage, `share` of a step along the rates of the stage before, and of the rates there, which are added to the sums.
template <class Size>
void stage_slopes(const Topology& t, const Parameters& p, double dt, double share, double weight, Workspace<Size>& w) {
  const Size n = w.size;
  const int N = n.lanes(), nv = t.nv;
  const ptrdiff_t columns = 3 * N, size = nv * columns;
  const StageSlopes& d = w.stage.slopes;
  const JacobianWork<Size>& j = w.jacobian;
  for (ptrdiff_t at = 0; at < size; at += LANES)
    store(d.theta + at, share * load(d.theta_rate + at)), store(d.v + at, share * load(d.v_rate + at));
  for (int i = 0; i < nv; ++i) d.v[i * columns + N + i] += 1;
  turned_slopes(n, t, w.balls, w.stage.theta, d.theta, d.q);
  acceleration_slopes(t, p, dt, w.stage.acceleration, w);
  for (int i = 0; i < nv; ++i) j.by_v[i * N + i] -= 1;
  product(nv, columns, d.v_rate, columns, nullptr, 0, {j.by_q, N, 1}, d.q, columns, nv, 1);
  product(nv, columns, d.v_rate, columns, d.v_rate, columns, {j.by_v, N, 1}, d.v, columns, nv, 1);
  for (int i = 0; i < nv; ++i)
    for (int b = 0; b < N; b += LANES) {
      double* x = d.v_rate + i * columns + 2 * N + b;
      store(x, load(x) + dt * load(j.Q + i * N + b));
    }
  rate_slopes(n, t, w.balls, dt, w.stage);
  for (ptrdiff_t at = 0; at < size; at += LANES) {
    store(d.theta_sum + at, load(d.theta_sum + at) + weight * load(d.theta_rate + at));
    store(d.v_sum + at, load(d.v_sum + at) + weight * load(d.v_rate + at));
  }
}

// A and B from the sums of all stages; theta: of the whole step.
template <class Size> void assemble_explicit(const Topology& t, const double* theta, Workspace<Size>& w, const Linear& out) {
  const int N = w.size.lanes(), nv = t.nv;
  const ptrdiff_t columns = 3 * N;
  const StageSlopes& d = w.stage.slopes;
  turned_slopes(w.size, t, w.balls, theta, d.theta_sum, d.q);
  for (int i = 0; i < nv; ++i) d.v_sum[i * columns + N + i] += 1;
  for (int half = 0; half < 2; ++half) {
    const double* slopes = half == 0 ? d.q : d.v_sum;
    double *A = out.A + half * nv * 2 * nv, *B = out.B + half * nv * static_cast<ptrdiff_t>(out.columns);
    for (int i = 0; i < nv; ++i)
      for (int part = 0; part < 2; ++part) std::memcpy(A + (2 * i + part) * nv, slopes + i * columns + part * N, sizeof(double) * nv);
    along_gain(nv, 1, slopes + 2 * N, columns, out, B);
  }
}

// -- the step ----------------------------------------------------------------------------------------------------------------------

template <class Size>
void explicit_step(const Topology& t, const Parameters& p, const StepInput& in, const StepOutput& out, Workspace<Size>& w) {
  constexpr double AHEAD[] = {0, 0.5, 0.5, 1}, WEIGHT[] = {1 / 6., 1 / 3., 1 / 3., 1 / 6.}, WHOLE[] = {1};
  const bool euler = in.integrator == Integrator::EULER;
  const double* weight = euler ? WHOLE : WEIGHT;
  const int stages = euler ? 1 : 4;
  StageWork& s = w.stage;
  for (double* sum : {s.theta_rate, s.acceleration, s.theta_sum, s.acceleration_sum}) std::memset(sum, 0, sizeof(double) * t.nv);
  const StageSlopes& d = s.slopes;
  if (out.linear)
    for (double* sum : {d.theta_rate, d.v_rate, d.theta_sum, d.v_sum}) std::memset(sum, 0, sizeof(double) * t.nv * 3 * w.size.lanes());
  for (int stage = 0; stage < stages; ++stage) {
    move_stage(t.nv, AHEAD[stage] * in.dt, in.v, s);
    integrate(t, w.balls, in.q, 1, s.theta, w.middle);
    free_acceleration(t, p, w.middle, s.v, in.tau, 0, s.acceleration, w);
    if (out.linear) stage_slopes(t, p, in.dt, AHEAD[stage], weight[stage], w);
    std::memcpy(s.theta_rate, s.v, sizeof(double) * t.nv);
    for (const BallJoint& ball : w.balls) {
      const V3<double> rate = turning_rate(three(s.theta + ball.v), three(s.v + ball.v));
      s.theta_rate[ball.v] = rate.x, s.theta_rate[ball.v + 1] = rate.y, s.theta_rate[ball.v + 2] = rate.z;
    }
    for (int k = 0; k < t.nv; ++k) s.theta_sum[k] += weight[stage] * s.theta_rate[k], s.acceleration_sum[k] += weight[stage] * s.acceleration[k];
  }
  for (int k = 0; k < t.nv; ++k) out.v[k] = in.v[k] + in.dt * s.acceleration_sum[k];
  for (int k = 0; k < t.nv; ++k) s.theta[k] = in.dt * s.theta_sum[k];
  integrate(t, w.balls, in.q, 1, s.theta, out.q);
  if (out.linear) assemble_explicit(t, s.theta, w, *out.linear);
  std::memset(out.report, 0, sizeof(double) * report_size(t, in.whole));
  if (!all_finite(out.v, t.nv) || !all_finite(out.q, t.nq)) out.report[STATUS] = static_cast<double>(ContactStatus::non_finite);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
