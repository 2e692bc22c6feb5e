// The derivative of the impulses: -Y X - Y(N) of jacobian.h, and, where contacts are redundant, that of the selected ones
// (trajopt/dynamics/contact/solve/selection.py): the component N x of d lambda in the null space of K, which moves v+ too where
// contacts slide. With A and w of the law's null space,
//   A^T dG w = A^T dJ z + B^T dJ^T w - B^T dM z,      z = M^-1 J^T w,  B = M^-1 J^T A
// is what the law needs of the model: dG itself is never formed.
#pragma once
#include "slopes.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Rows of d(J z)/dq, and d(J^T w)/dq - dM z/dq in X_q, both in user DoFs; overwrites the terms of the Jacobian.
template <class Size>
void turning_along(Size n, const Topology& t, const Parameters& p, const double* given_slopes, const double* w_impulse,
                   const double* z, double* rows, Workspace<Size>& w) {
  const int N = n.lanes();
  JacobianWork<Size>& j = w.jacobian;
  // At rest and without gravity the derivative of inverse dynamics is that of M z.
  Dynamics<Size> still = w.dynamics;
  still.V = still.V_parent = still.A = still.composite_f = j.nothing;
  derivative_terms(n, t, p, w.kin, still, z, j.terms);
  set_wrenches(t, w.kin, w.rows, w_impulse, j.wrench);
  momentum_balance(n, t, 1.0, w);
  expand_velocity(t, p, z, w.tree_velocity);
  velocities(t, w.kin.S, w.tree_velocity, j.after, j.after_parent);
  std::memset(rows, 0, sizeof(double) * w.rows.m * N);
  const double all[3] = {1, 1, 1};
  for (int k = 0; k < w.rows.nc; ++k) {
    if (w.solution.cone_mode[k] == SEPARATING) continue;
    const ContactRow& row = w.rows.contact[k];
    const Candidate& c = w.rows.candidate[row.candidate];
    contact_motion(n, t, w.kin, c, row.frame, slope_of(t, p, w.kin, given_slopes, c, w.rows.pairs), j.motion);
    add_moving_contact(n, t, w.kin, c, row.frame, w_impulse + 3 * k, j.motion, j.X_q);
    add_velocity_turning(n, t, w.kin, c, row.frame, j.motion, j.after, j.after_parent, all, rows + 3 * k * N, N);
    if (t.projected())
      for (int a = 0; a < 3; ++a) project(t, p, rows + (3 * k + a) * N);
  }
  if (w.rows.ne > 0) {
    add_moving_closures(n, t, w_impulse, w);
    equality_turning(n, t, p, w.kin, w.rows.equality, z, j.after, j.after_parent, rows + (w.rows.m - w.rows.ne) * N, N);
  }
  if (t.projected()) project_matrix(n, t, p, j.X_q);
  if (w.rows.ne > 0) add_couplings(n, t, p, w_impulse, w);
}

template <class Size> bool sliding(const Workspace<Size>& w) {
  bool slides = false;
  for (int k = 0; k < w.rows.nc; ++k) slides |= w.solution.cone_mode[k] == SLIDING;
  return slides;
}

template <class Size> bool redundant_sliding(const Workspace<Size>& w) { return w.solution.degenerate && sliding(w); }

// Rows whose J is a sum of other rows' but for 1e-8 are so but for 1e-16 in G = J M^-1 J^T: redundant, since more is not known of G, and
// yet their impulses move v+, by M^-1 J^T N along the null space N of the law. Where they do, the solution Y that is meant is the
// shortest one, as the impulse of the step is. Where contacts slide, `add_selection` sees to it.
constexpr double FELT = 1e-11;  // of v+, beside what the rows do one by one: more than rounding

template <class Size> void shorten_where_it_matters(Size n, int columns, Workspace<Size>& w) {
  const double* x = random_null_vector(w.solver);
  const int N = n.lanes();
  const SelectionScratch& s = w.solver.selection;
  double moved = 0, one_by_one = 0;
  for (int b = 0; b < N; b += LANES) {
    vec sum = {}, sizes = {};
    for (int i = 0; i < s.elimination.n; ++i) {
      const vec one = x[i] * load(w.rows.MJT + s.held[i] * N + b);
      sum += one, sizes += magnitude(one);
    }
    moved = std::max(moved, largest(magnitude(sum))), one_by_one = std::max(one_by_one, largest(sizes));
  }
  if (moved > FELT * one_by_one) without_null_space(w.solver, w.jacobian.Y, 3 * N, columns);
}

// A particular solution of the linearised law, d lambda / d (q, v, tau) in dlam, from Y, X_q and X_v.
template <class Size> void impulse_slopes(Size n, const Topology& t, double dt, Workspace<Size>& w) {
  const int N = n.lanes(), nv = t.nv, stride = 3 * N, m = w.rows.m;
  JacobianWork<Size>& j = w.jacobian;
  const Strided Y{j.Y, stride, 1};
  product(m, N, j.dlam, stride, nullptr, 0, Y, j.X_q, N, nv, -1);
  product(m, N, j.dlam + N, stride, nullptr, 0, Y, j.X_v, N, nv, -1);
  for (int row = 0; row < m; ++row)
    for (int b = 0; b < N; b += LANES) {
      double* d = j.dlam + row * stride + b;
      const double* y = j.Y + row * stride + b;
      store(d, load(d) - load(y + N)), store(d + N, load(d + N) - load(y + 2 * N)), store(d + 2 * N, -dt * load(y));
    }
}

// d nu / d (q, v, tau) at fixed impulse into `free`; `right`: the right-hand sides of the law.
template <class Size> void free_slopes(Size n, const Topology& t, double dt, const double* right, Workspace<Size>& w) {
  const int N = n.lanes(), nv = t.nv, stride = 3 * N, m = w.rows.m;
  JacobianWork<Size>& j = w.jacobian;
  const Strided J{right, stride, 1};
  product(m, N, j.free, stride, right + N, stride, J, j.X_q, N, nv, 1);
  product(m, N, j.free + N, stride, right + 2 * N, stride, J, j.X_v, N, nv, 1);
  for (int row = 0; row < m; ++row)
    for (int b = 0; b < N; b += LANES) store(j.free + row * stride + 2 * N + b, dt * load(right + row * stride + b));
}

// Where contacts that stick follow their cones in the selected impulse, dlam becomes the solution of the law that does so too. Nothing
// slides there, and v+ is the same for every solution.
template <class Size> void along_cones(Size n, Workspace<Size>& w) {
  const int stride = 3 * n.lanes(), m = w.rows.m;
  JacobianWork<Size>& j = w.jacobian;
  std::memcpy(j.right, j.free, sizeof(double) * m * stride);
  law_solution_along_cones(w.problem, w.solution, w.solver, j.right, stride, stride, j.Y, stride);
  for (int at = 0; at < m * stride; at += LANES) store(j.dlam + at, -load(j.Y + at));
}

// z and B of the selection.
template <class Size> void motion_of_selection(Size n, const LawNullSpace& space, Workspace<Size>& w) {
  const int N = n.lanes(), m = w.rows.m;
  JacobianWork<Size>& j = w.jacobian;
  std::memset(j.z, 0, sizeof(double) * N);
  for (int row = 0; row < m; ++row)
    for (int b = 0; b < N; b += LANES) store(j.z + b, load(j.z + b) + space.w[row] * load(w.rows.MJT + row * N + b));
  product(space.count, N, j.B, N, nullptr, 0, {space.A, space.stride, 1}, w.rows.MJT, N, m, 1);
}

// A^T dG w into `through`: z, B and the turning of J and M along them, which depend on q alone.
template <class Size>
void slopes_through_mass(Size n, const Topology& t, const Parameters& p, const double* given_slopes, const LawNullSpace& space,
                         Workspace<Size>& w) {
  const int N = n.lanes(), nv = t.nv, stride = 3 * N, m = w.rows.m;
  JacobianWork<Size>& j = w.jacobian;
  motion_of_selection(n, space, w);
  turning_along(n, t, p, given_slopes, space.w, j.z, j.turned, w);
  std::memset(j.through, 0, sizeof(double) * space.count * stride);
  product(space.count, N, j.through, stride, nullptr, 0, {space.A, space.stride, 1}, j.turned, N, m, 1);
  product(space.count, N, j.through, stride, j.through, stride, {j.B, N, 1}, j.X_q, N, nv, 1);
}

// Adds to d lambda / d (q, v, tau) in `dlam` what it gains by the null space, and to by_q, by_v and Q what d v+ / d (q, v, tau / dt) does.
// On entry dlam, X_q, X_v are complete, and `shift` holds the right-hand sides of the law.
template <class Size>
void add_selection(Size n, const Topology& t, const Parameters& p, double dt, const double* given_slopes, Workspace<Size>& w) {
  const int N = n.lanes(), nv = t.nv, stride = 3 * N, m = w.rows.m;
  JacobianWork<Size>& j = w.jacobian;
  free_slopes(n, t, dt, j.shift, w);
  if (follows_cones(w.problem, w.solver)) along_cones(n, w);
  const LawNullSpace space = law_null_space(w.problem, w.solution, w.solver);
  if (space.count == 0) return;
  slopes_through_mass(n, t, p, given_slopes, space, w);
  law_null_space_solution(w.problem, w.solution, w.solver, j.free, j.dlam, j.through, stride, stride, j.shift);
  for (int at = 0; at < m * stride; at += LANES) store(j.dlam + at, load(j.dlam + at) + load(j.shift + at));
  if (!redundant_sliding(w)) return;  // v+ is the same for every solution
  const Strided MJ{w.rows.MJT, 1, N};
  product(nv, N, j.by_q, N, j.by_q, N, MJ, j.shift, stride, m, 1);
  product(nv, N, j.by_v, N, j.by_v, N, MJ, j.shift + N, stride, m, 1);
  product(nv, N, j.Q, N, j.Q, N, MJ, j.shift + 2 * N, stride, m, 1 / dt);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
