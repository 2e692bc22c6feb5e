// How the compliance of smoothed contact gives way to given impulses (compliance.h). Of contact j, at fixed P_j,
//
//     d(exp(kappa phi_j) G_jj P_j) = exp(kappa phi_j) (kappa G_jj P_j dphi_j + dG_jj P_j),      G_jj = J_j M^-1 J_j^T,
//
// and with b_k the k-th column of M^-1 J_j^T, the velocities by a unit of the k-th component of the impulse, and a = M^-1 J_j^T P_j
// those by the impulse alone,
//
//     e_k . dG_jj P_j = e_k . d(J_j) a + P_j . d(J_j) b_k - b_k . dM a.
//
// The first two are the turning of constraint velocities (geometry.h). With V_b(i) the velocity of the node above i under b, h_b(i)
// the momentum of the subtree of i, and S_i moving that subtree as a whole,
//
//     d(b . M a) / dq_i = (V_b(i) x S_i) . h_a(i) + (V_a(i) x S_i) . h_b(i).
//
// Armature is constant. Nothing here depends on velocities.
#pragma once
#include "workspace.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// u: joint velocities, user DoFs.
template <class Size>
void impulse_motion(Size n, const Topology& t, const Parameters& p, const double* u, ImpulseMotion<Size>& out, Workspace<Size>& w) {
  expand_velocity(t, p, u, w.tree_velocity);
  velocities(t, w.kin.S, w.tree_velocity, out.V, out.V_parent);
  for (int b = 0; b < n.lanes(); b += LANES) out.momentum.put(b, w.dynamics.I.inertia(b) * out.V.six(b));
  accumulate(t, out.momentum, 6);
}

// Adds the slope of the compliance of contact k of the problem to its three rows `out` (of `stride`, tree DoFs); its motion is in
// w.jacobian.motion.
template <class Size>
void add_compliance_slope(Size n, const Topology& t, const Parameters& p, int k, const double* impulse, double* out, int stride,
                          Workspace<Size>& w) {
  const int N = n.lanes();
  const Rows<Size>& r = w.rows;
  JacobianWork<Size>& j = w.jacobian;
  const ContactRow& row = r.contact[k];
  const Candidate& c = r.candidate[row.candidate];
  const double factor = r.softness[k] - 1;
  const double* unit = r.MJT + 3 * k * N;  // b_0, b_1, b_2
  for (int b = 0; b < N; b += LANES) {
    vec x = {};
    for (int a = 0; a < 3; ++a) x += impulse[a] * load(unit + a * N + b);
    store(j.z + b, x);
  }
  impulse_motion(n, t, p, j.z, j.whole, w);
  const double all[3] = {factor, factor, factor};
  const double pressed[3] = {factor * impulse[0], factor * impulse[1], factor * impulse[2]};
  add_velocity_turning(n, t, w.kin, c, row.frame, j.motion, j.whole.V, j.whole.V_parent, all, out, stride);
  for (int a = 0; a < 3; ++a) {
    impulse_motion(n, t, p, unit + a * N, j.part, w);
    double* to = out + a * stride;
    add_velocity_turning(n, t, w.kin, c, row.frame, j.motion, j.part.V, j.part.V_parent, pressed, to, 0);
    const double* G = r.G + (3 * static_cast<ptrdiff_t>(k) + a) * r.stride + 3 * k;
    const double yielding = p.sharpness * factor / r.softness[k] * (G[0] * impulse[0] + G[1] * impulse[1] + G[2] * impulse[2]);
    for (int b = 0; b < N; b += LANES) {
      const V6<vec> s = w.kin.S.six(b);
      const vec inertial = dot(cross_motion(j.part.V_parent.six(b), s), j.whole.momentum.six(b)) +
                           dot(cross_motion(j.whole.V_parent.six(b), s), j.part.momentum.six(b));
      store(to + b, load(to + b) + yielding * load(j.motion.d[0] + b) - factor * inertial);
    }
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
