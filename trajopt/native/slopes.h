// Derivatives of the two equations of a step at fixed v+ and lambda (trajopt/dynamics/gradients/closed_form.py):
//   X_q = d(J^T lambda)/dq - dt dID/dq,   X_v = M - dt dID/dv       of the balance of momentum, to which gyroscopic.h adds -dt dc/d(q, v)
//   N_q = d(J v+ + b)/dq,                 N_v = db/dv               of the constraint velocity, with compliance d(J v+ + b + C lambda)/dq
#pragma once
#include "compliance_slopes.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

template <class Size>
Slope slope_of(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const double* given_slopes, const Candidate& c,
               PairWork& pairs) {
  if (c.source < 0) return given_slope(given_slopes, c);
  if (c.source >= static_cast<int>(t.shape_planes.size())) return pair_slope(t, c, pairs);
  return plane_slope(t, p, kin, c, c.slot - t.shape_planes[c.source].slot);
}

// Wrenches of the impulses of contacts and closures on their bodies.
template <class Size>
void set_wrenches(const Topology& t, const Kinematics<Size>& kin, const Rows<Size>& r, const double* impulse, Field<Size> wrench) {
  std::memset(wrench.at, 0, sizeof(double) * 6 * wrench.stride());
  for (int k = 0; k < r.nc; ++k) {
    const double* x = impulse + 3 * k;
    if (x[0] == 0 && x[1] == 0 && x[2] == 0) continue;
    const ContactRow& row = r.contact[k];
    const V3<double> force = x[0] * row.frame.axis[0] + x[1] * row.frame.axis[1] + x[2] * row.frame.axis[2];
    add_wrench(t, kin, r.candidate[row.candidate], force, wrench);
  }
  if (r.ne == 0) return;
  each_closure(t, r.equality, acting_impulses(r.equality, impulse + r.m - r.ne), [&](const Closure& c, const ClosureAt& at, const double* x) {
    add_wrench(t, kin, c, at, push_of(at, x), wrench);
  });
}

// X_q += what turns of the forces of closures, in tree DoFs; impulse: of all rows of the problem.
template <class Size> void add_moving_closures(Size n, const Topology& t, const double* impulse, Workspace<Size>& w) {
  const Rows<Size>& r = w.rows;
  each_closure(t, r.equality, acting_impulses(r.equality, impulse + r.m - r.ne), [&](const Closure& c, const ClosureAt& at, const double* x) {
    add_moving_closure(n, t, w.kin, c, at, x, w.jacobian.motion.d, w.jacobian.X_q);
  });
}
// X_q += the same of couplings, in user DoFs.
template <class Size> void add_couplings(Size n, const Topology& t, const Parameters& p, const double* impulse, Workspace<Size>& w) {
  const Rows<Size>& r = w.rows;
  add_coupling_turning(n, t, p, r.equality, acting_impulses(r.equality, impulse + r.m - r.ne), w.jacobian.X_q);
}

// X_q and X_v, tree DoFs first, then projected.
template <class Size>
void momentum_balance(Size n, const Topology& t, double dt, Workspace<Size>& w) {
  const int N = n.lanes();
  const Kinematics<Size>& kin = w.kin;
  JacobianWork<Size>& j = w.jacobian;
  DerivativeTerms<Size>& d = j.terms;
  accumulate(t, j.wrench, 6);
  // Signs and dt go into the terms, by DoF; `wrench` becomes S x* w^C.
  for (int b = 0; b < N; b += LANES) {
    const V6<vec> s = kin.S.six(b);
    j.wrench.put(b, cross_force(s, j.wrench.six(b)));
    d.Psid.put(b, (-dt) * d.Psid.six(b)), d.Psidd.put(b, (-dt) * d.Psidd.six(b));
    d.force_q.put(b, (-dt) * d.force_q.six(b));
    d.rates.put(b, s - dt * d.rates.six(b));
    d.force_v.put(b, w.dynamics.momentum.six(b) - dt * d.force_v.six(b));
  }
  for (int i = 0; i < t.tree_nv; ++i) {
    const V6<vec> s = splat(kin.S.six_of(i)), momentum = splat(w.dynamics.momentum.six_of(i)), turning = splat(j.wrench.six_of(i));
    const V3<vec> row = splat(d.rows.three_of(i)), row_v = (-dt) * row;
    double *q = j.X_q + i * N, *v = j.X_v + i * N;
    for (int b = 0; b < N; b += LANES) store(q + b, vec{}), store(v + b, vec{});
    for (int b : t.low_blocks[i]) {
      const vec mask = loadu(&t.mask[i * N + b]);
      const V6<vec> other = kin.S.six(b);
      store(q + b, mask * (dot(row, d.Psid.three(b, 3)) + dot(momentum, d.Psidd.six(b)) + dot(turning, other)));
      store(v + b, mask * (dot(row_v, other.w) + dot(momentum, d.rates.six(b))));
    }
    for (int b : t.up_blocks[i]) {
      const vec mask = loadu(&t.upper[i * N + b]);
      store(q + b, load(q + b) + mask * dot(s, d.force_q.six(b)));
      store(v + b, load(v + b) + mask * dot(s, d.force_v.six(b)));
    }
  }
}

// Adds armature, damping, springs and couplings, which act on the user's DoFs.
template <class Size>
void joint_terms(Size n, const Topology& t, const Parameters& p, double dt, Workspace<Size>& w) {
  const int N = n.lanes();
  if (t.projected()) project_matrix(n, t, p, w.jacobian.X_q), project_matrix(n, t, p, w.jacobian.X_v);
  if (w.rows.ne > 0) add_couplings(n, t, p, w.solution.lambda, w);
  for (int i = 0; i < t.nv; ++i) {
    if (t.scalar_q[i] >= 0) w.jacobian.X_q[i * N + i] -= dt * p.stiffness[i];
    w.jacobian.X_v[i * N + i] += p.armature[i] - dt * p.joint_damping[i];
  }
}

// Right-hand sides of the law, rows of 3 `lanes`: [J M^-1, N_q, N_v], of the rows that act; returns whether N_v is zero.
template <class Size>
bool law_slopes(Size n, const Topology& t, const Parameters& p, double dt, const double* given_slopes, Workspace<Size>& w) {
  const int N = n.lanes(), stride = 3 * N;
  Rows<Size>& r = w.rows;
  JacobianWork<Size>& j = w.jacobian;
  bool still = true;
  std::memset(j.right, 0, sizeof(double) * r.m * stride);
  for (int k = 0; k < r.nc; ++k) {
    if (w.solution.cone_mode[k] == SEPARATING) continue;
    const ContactRow& row = r.contact[k];
    const Candidate& c = r.candidate[row.candidate];
    double* out = j.right + 3 * k * stride;
    contact_motion(n, t, w.kin, c, row.frame, slope_of(t, p, w.kin, given_slopes, c, r.pairs), j.motion);
    const double* impulse = w.solution.lambda + 3 * k;
    add_moving_contact(n, t, w.kin, c, row.frame, impulse, j.motion, j.X_q);
    const double all[3] = {1, 1, 1}, normal[3] = {0, 0, row.offset.by_velocity};
    add_velocity_turning(n, t, w.kin, c, row.frame, j.motion, j.after, j.after_parent, all, out + N, stride);
    if (row.offset.by_velocity != 0) {
      add_velocity_turning(n, t, w.kin, c, row.frame, j.motion, w.dynamics.V, w.dynamics.V_parent, normal, out + N, stride);
      for (int b = 0; b < N; b += LANES)
        store(out + 2 * stride + 2 * N + b, row.offset.by_velocity * load(r.J + (3 * k + 2) * N + b));
      still = false;
    }
    for (int b = 0; b < N; b += LANES) {
      double* x = out + 2 * stride + N + b;
      store(x, load(x) + row.offset.by_distance * load(j.motion.d[0] + b));
    }
    if (t.smoothed) add_compliance_slope(n, t, p, k, impulse, out + N, stride, w);
    if (t.projected())
      for (int a = 0; a < 3; ++a) project(t, p, out + a * stride + N);
  }
  for (int row = 0; row < r.m; ++row)
    for (int b = 0; b < N; b += LANES) store(j.right + row * stride + b, load(r.MJT + row * N + b));
  for (int k = 0; k < r.nl; ++k) {
    const LimitRow& limit = r.limit[k];
    double* out = j.right + (3 * r.nc + k) * stride;
    out[N + limit.dof] = limit.offset.by_distance * limit.sign;
    out[2 * N + limit.dof] = limit.offset.by_velocity * limit.sign;
    still = still && limit.offset.by_velocity == 0;
  }
  if (r.ne == 0) return still;
  double* out = j.right + (r.m - r.ne) * stride + N;
  add_moving_closures(n, t, w.solution.lambda, w);
  equality_turning(n, t, p, w.kin, r.equality, w.v_plus, j.after, j.after_parent, out, stride);
  for (int k = 0; k < r.ne; ++k)
    for (int b = 0; b < N; b += LANES)
      store(out + k * stride + b, load(out + k * stride + b) + p.erp / dt * load(r.equality.J + k * N + b));
  return still;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
