// Bias forces, mass matrix, its tree-sparse factor and inverse (RBDA sections 5.3, 6.2, 6.5; trajopt/dynamics/rigid_body/rnea.py, crba.py).
#pragma once
#include <cstring>

#include "kinematics.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

template <class Size> struct Dynamics {
  Field<Size> V, V_parent;              // velocities of the links and of the nodes above them
  Field<Size> rate, A;                  // V x S v; accelerations at zero joint acceleration, gravity included
  Field<Size> I, composite_I;           // packed inertias of links and of their subtrees
  Field<Size> composite_f;              // forces of the subtrees at zero joint acceleration
  Field<Size> momentum;                 // composite_I S
  double *bias, *tree_v;                // h of M a + h = tau in user DoFs; tree velocities
  double *M, *L, *inverse_D, *inverse;  // matrices in user DoFs with rows of `lanes`; M below the diagonal and in joints only
};

// Packed inertias of all links in world axes about the tree's origin.
template <class Size>
void link_inertias(Size n, const Parameters& p, const Kinematics<Size>& kin, Dynamics<Size>& d) {
  const int N = n.lanes();
  for (int b = 0; b < N; b += LANES) {
    auto of = [&](const double* a, int k) { return loadu(a + k * N + b); };
    const M3<vec> R = kin.rotation.matrix(b);
    const vec xx = of(p.inertia, 0), xy = of(p.inertia, 1), yy = of(p.inertia, 2), xz = of(p.inertia, 3);
    const vec yz = of(p.inertia, 4), zz = of(p.inertia, 5), mass = of(p.mass, 0);
    const M3<vec> J = {{xx, xy, xz}, {xy, yy, yz}, {xz, yz, zz}}, T = R * J;
    const V3<vec> c = kin.lever.three(b) + R * V3<vec>{of(p.com, 0), of(p.com, 1), of(p.com, 2)}, h = mass * c;
    const Inertia<vec> body = {mass, h,
        dot(T.row0, R.row0) + h.y * c.y + h.z * c.z, dot(T.row1, R.row0) - h.x * c.y,
        dot(T.row1, R.row1) + h.x * c.x + h.z * c.z, dot(T.row2, R.row0) - h.x * c.z,
        dot(T.row2, R.row1) - h.y * c.z, dot(T.row2, R.row2) + h.x * c.x + h.y * c.y};
    d.I.put(b, body), d.composite_I.put(b, body);
  }
}

// h(q, v): C v + g + damping + springs, in user DoFs.
template <class Size>
void bias_forces(Size n, const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const double* q,
                 const double* v, Dynamics<Size>& d) {
  const int N = n.lanes();
  expand_velocity(t, p, v, d.tree_v);
  velocities(t, kin.S, d.tree_v, d.V, d.V_parent);
  for (int b = 0; b < N; b += LANES) d.rate.put(b, cross_motion(d.V.six(b), load(d.tree_v + b) * kin.S.six(b)));
  d.A.set(N, V6<double>{-1.0 * p.gravity, {0, 0, 0}});
  for (int j = 0; j < t.tree_nv; ++j) d.A.set(j, d.A.six_of(t.before[j]) + d.rate.six_of(j));
  for (const Node& node : t.node)
    for (int k = 0; k + 1 < node.dofs; ++k) d.A.set(node.v + k, d.A.six_of(node.v + node.dofs - 1));
  for (int b = 0; b < N; b += LANES) {
    const Inertia<vec> body = d.I.inertia(b);
    const V6<vec> velocity = d.V.six(b);
    d.composite_f.put(b, body * d.A.six(b) + cross_force(velocity, body * velocity));
  }
  accumulate(t, d.composite_f, 6);
  for (int b = 0; b < N; b += LANES) store(d.bias + b, dot(kin.S.six(b), d.composite_f.six(b)));
  if (t.projected()) project(t, p, d.bias);
  for (int j = 0; j < t.nv; ++j) {
    d.bias[j] += p.joint_damping[j] * v[j];
    if (t.scalar_q[j] >= 0) d.bias[j] += p.stiffness[j] * (q[t.scalar_q[j]] - p.spring_reference[j]);
  }
}

// X := T^T X T of a square matrix with rows of `lanes`, complete on entry.
template <class Size> void project_matrix(Size n, const Topology& t, const Parameters& p, double* X) {
  const int N = n.lanes();
  for (size_t k = 0; k < t.mimics.size(); ++k) {
    double* to = X + static_cast<ptrdiff_t>(t.user_dof[t.mimics[k].source]) * N;
    const double* from = X + static_cast<ptrdiff_t>(t.mimics[k].dof) * N;
    for (int c = 0; c < N; ++c) to[c] += p.multiplier[k] * from[c];
  }
  for (int k = 0; k < t.nv; ++k)
    if (t.user_dof[k] != k) std::memcpy(X + static_cast<ptrdiff_t>(k) * N, X + static_cast<ptrdiff_t>(t.user_dof[k]) * N, N * sizeof(double));
  for (int k = t.nv; k < t.tree_nv; ++k) std::memset(X + static_cast<ptrdiff_t>(k) * N, 0, N * sizeof(double));
  for (int k = 0; k < t.nv; ++k) project(t, p, X + static_cast<ptrdiff_t>(k) * N);
}

// Mass matrix with armature in user DoFs: M_ij = S_j . composite_I_i S_i for j above i or in its joint.
template <class Size>
void mass_matrix(Size n, const Topology& t, const Parameters& p, const Kinematics<Size>& kin, Dynamics<Size>& d) {
  const int N = n.lanes();
  accumulate(t, d.composite_I, 10);
  for (int b = 0; b < N; b += LANES) d.momentum.put(b, d.composite_I.inertia(b) * kin.S.six(b));
  if (t.projected()) std::memset(d.M, 0, sizeof(double) * N * N);
  for (int i = 0; i < t.tree_nv; ++i) {
    const V6<vec> f = splat(d.momentum.six_of(i));
    for (int b : t.low_blocks[i]) store(d.M + i * N + b, loadu(&t.mask[i * N + b]) * dot(f, kin.S.six(b)));
  }
  if (t.projected()) {
    for (int i = 0; i < t.tree_nv; ++i)
      for (int j = 0; j < t.tree_nv; ++j)
        if (t.upper[i * N + j] != 0) d.M[i * N + j] = d.M[j * N + i];
    project_matrix(n, t, p, d.M);
  }
  for (int j = 0; j < t.nv; ++j) d.M[j * N + j] += p.armature[j];
}

// M = L^T D L with L unit lower triangular, sparse as the chains (RBDA section 6.5).
template <class Size> void factorise(Size n, const Topology& t, Dynamics<Size>& d) {
  const int N = n.lanes();
  std::memcpy(d.L, d.M, sizeof(double) * N * t.nv);
  for (int i = t.nv - 1; i >= 0; --i) {
    double* row = d.L + i * N;
    const double inverse = d.inverse_D[i] = 1.0 / row[i];
    for (int k : t.factor_chain[i]) {
      double* other = d.L + k * N;
      const double a = row[k] * inverse;
      for (int b : t.factor_blocks[k]) store(other + b, load(other + b) - a * load(row + b));
    }
    for (int b : t.factor_blocks[i]) store(row + b, inverse * load(row + b));
  }
}

// x := M^-1 x.
template <class Size> void solve_mass_matrix(Size n, const Topology& t, const Dynamics<Size>& d, double* x) {
  const int N = n.lanes();
  for (int i = t.nv - 1; i >= 0; --i)
    for (int k : t.factor_chain[i]) x[k] -= d.L[i * N + k] * x[i];
  for (int i = 0; i < t.nv; ++i) {
    double s = d.inverse_D[i] * x[i];
    for (int k : t.factor_chain[i]) s -= d.L[i * N + k] * x[k];
    x[i] = s;
  }
}

// M^-1 complete: rows of L^-T D^-1 from the bottom, then L^-1 from the left of these, mirrored block row by block row.
template <class Size> void invert(Size n, const Topology& t, Dynamics<Size>& d) {
  const int N = n.lanes(), nv = t.nv;
  double* X = d.inverse;
  for (int i = 0; i < nv; ++i) {
    for (int b = i / LANES * LANES; b < N; b += LANES) store(X + i * N + b, vec{});
    X[i * N + i] = 1;
  }
  for (int i = nv - 1; i >= 0; --i) {
    double* row = X + i * N;
    tiles<4>(i / LANES, N / LANES, [&](int block, auto count) {
      constexpr int T = decltype(count)::value;
      vec x[T];
      for (int b = 0; b < T; ++b) x[b] = load(row + (block + b) * LANES);
      for (int k : t.factor_chain[i]) {
        double* other = X + k * N + block * LANES;
        const double a = d.L[i * N + k];
        for (int b = 0; b < T; ++b) store(other + b * LANES, load(other + b * LANES) - a * x[b]);
      }
      for (int b = 0; b < T; ++b) store(row + (block + b) * LANES, d.inverse_D[i] * x[b]);
    });
  }
  for (int first = 0; first < N; first += LANES) {
    const int end = first + LANES < nv ? first + LANES : nv;
    for (int i = first; i < end; ++i)
      tiles<4>(first / LANES, N / LANES, [&](int block, auto count) {
        constexpr int T = decltype(count)::value;
        double* row = X + i * N + block * LANES;
        vec x[T];
        for (int b = 0; b < T; ++b) x[b] = load(row + b * LANES);
        for (int k : t.factor_chain[i]) {
          const double a = d.L[i * N + k];
          for (int b = 0; b < T; ++b) x[b] -= a * load(X + k * N + (block + b) * LANES);
        }
        for (int b = 0; b < T; ++b) store(row + b * LANES, x[b]);
      });
    for (int b = first + LANES; b < N; b += LANES) transpose(X + first * N + b, N, X + b * N + first, N);
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
