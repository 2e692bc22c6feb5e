// Closed-form derivatives of inverse dynamics (IDSVA; trajopt/dynamics/rigid_body/derivatives.py has the formulas).
#pragma once
#include "dynamics.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Terms of d tau / d q and d tau / d v at one acceleration, by DoF. With i below j or in its joint,
//   d tau_i / d q_j = S_i . (2 B_i Psid_j + I_i Psidd_j) = rows_i . Psid_j.w + momentum_i . Psidd_j,
//   d tau_i / d v_j = rows_i . S_j.w + momentum_i . rates_j,   strictly above   d tau_j / d q_i = S_j . force_q_i,  likewise v.
template <class Size> struct DerivativeTerms {
  Field<Size> a, a_parent, f, B;  // relative accelerations of links and of nodes above; forces; twelve numbers of B
  Field<Size> Psid, Psidd, rates, rows, force_q, force_v;
  double* tree_a;
};

template <class Size>
void derivative_terms(Size n, const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const Dynamics<Size>& d,
                      const double* acceleration, DerivativeTerms<Size>& w) {
  const int N = n.lanes();
  expand_velocity(t, p, acceleration, w.tree_a);
  velocities(t, kin.S, w.tree_a, w.a, w.a_parent);
  for (int j = 0; j < t.tree_nv; ++j) w.a_parent.set(j, w.a_parent.six_of(j) + d.A.six_of(t.above[j]));
  for (int b = 0; b < N; b += LANES) {
    const Inertia<vec> body = d.I.inertia(b);
    const Coriolis<vec> c = coriolis(body, d.V.six(b));
    w.B.put(b, c.p), w.B.put(b, c.k.row0, 3), w.B.put(b, c.k.row1, 6), w.B.put(b, c.k.row2, 9);
    w.f.put(b, body * w.a.six(b));
  }
  accumulate(t, w.B, 12);
  accumulate(t, w.f, 6);
  for (int b = 0; b < N; b += LANES) {
    const V6<vec> s = kin.S.six(b), above = d.V_parent.six(b), psid = cross_motion(above, s);
    const V6<vec> psidd = cross_motion(w.a_parent.six(b), s) + cross_motion(above, psid);
    const V6<vec> both = psid + cross_motion(d.V.six(b), s);
    const Inertia<vec> composite = d.composite_I.inertia(b);
    const Coriolis<vec> c = {2.0 * w.B.three(b), {2.0 * w.B.three(b, 3), 2.0 * w.B.three(b, 6), 2.0 * w.B.three(b, 9)}};
    w.Psid.put(b, psid), w.Psidd.put(b, psidd), w.rates.put(b, both), w.rows.put(b, c.transposed_angular(s));
    w.force_q.put(b, c * psid + composite * psidd + cross_force(s, d.composite_f.six(b) + w.f.six(b)));
    w.force_v.put(b, c * s + composite * both);
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
