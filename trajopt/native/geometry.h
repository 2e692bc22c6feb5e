// How contact forces and constraint velocities turn with the configuration (trajopt/dynamics/gradients/contact_geometry.py), with S, V at
// the velocity u, w^C the contact wrenches summed over the subtree, world force F = C lambda at P, signed columns J_j:
//   d(J^T lambda)_j / dq_i = S_i . (S_j x* w_j^C) [i above j or in its joint] + S_j.w . (dP_i x F) + J_j . (dC_i lambda)
//   d(c . J u) / dq_i = c . ((V_parent(i) - V_body) x S_i at P, per body, signed) + c . (spin x dP_i) + dc_i . (J u)
#pragma once
#include "derivatives.h"
#include "rows.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// One contact and how it moves with the tree DoFs; lanes of d_distance, d_point (3) and of its frame's axes (9).
template <class Size> struct ContactMotion {
  Field<Size> d;  // distance, point, tangent 1, tangent 2, normal: 13 components
  bool normal_moves;
};

TRAJOPT_INLINE vec sign_of(const Topology& t, const Candidate& c, int N, int b) {
  return loadu(&t.mask[c.link1 * N + b]) - loadu(&t.mask[c.link2 * N + b]);
}

// d (tangent 1, tangent 2) of `frame_of` along d normal.
TRAJOPT_INLINE void turn_frame(const Frame& frame, V3<vec> dn, V3<vec>& dt1, V3<vec>& dt2) {
  const V3<double> n = frame.axis[2], t = frame.axis[0];
  const bool along_x = std::fabs(n.x) < 0.5;
  const double a = along_x ? n.x : n.y, length = std::sqrt(1 - a * a);  // of the seed's part across the normal
  const V3<vec> raw = (-1.0 / length) * ((along_x ? dn.x : dn.y) * splat(n) + a * dn);
  dt1 = raw - dot(splat(t), raw) * splat(t);
  dt2 = cross(dn, splat(t)) + cross(splat(n), dt1);
}

template <class Size>
void contact_motion(Size n, const Topology& t, const Kinematics<Size>& kin, const Candidate& c, const Frame& frame,
                    const Slope& slope, ContactMotion<Size>& out) {
  const int N = n.lanes();
  const bool second = c.link2 != t.world;
  bool turns = second;
  for (int k = 4; k < 7; ++k)
    for (int j = 0; j < 6; ++j) turns |= slope.by_motion[k][j] != 0;
  out.normal_moves = turns;
  for (int b = 0; b < N; b += LANES) {
    const V6<vec> s = kin.S.six(b);
    const V3<vec> at_centre = s.l + cross(s.w, splat(c.centre) - kin.origin.three(b));
    const vec sign = sign_of(t, c, N, b);
    const vec motion[6] = {sign * at_centre.x, sign * at_centre.y, sign * at_centre.z, sign * s.w.x, sign * s.w.y, sign * s.w.z};
    auto moved = [&](int k) {
      vec x = slope.by_motion[k][0] * motion[0];
      for (int j = 1; j < 6; ++j) x += slope.by_motion[k][j] * motion[j];
      return x;
    };
    V3<vec> d_point = {moved(1), moved(2), moved(3)}, d_normal = {};
    if (turns) d_normal = {moved(4), moved(5), moved(6)};
    if (second) {  // a common rigid motion carries point and normal along
      const vec mask = loadu(&t.mask[c.link2 * N + b]);
      const V3<vec> turn = mask * s.w;
      d_point = d_point + mask * at_centre + cross(turn, splat(c.point - c.centre));
      d_normal = d_normal + cross(turn, splat(c.normal));
    }
    store(out.d[0] + b, moved(0));
    out.d.put(b, d_point, 1);
    if (!turns) continue;
    V3<vec> dt1, dt2;
    turn_frame(frame, d_normal, dt1, dt2);
    out.d.put(b, dt1, 4), out.d.put(b, dt2, 7), out.d.put(b, d_normal, 10);
  }
}

// Adds the contact's force to the wrenches of its bodies.
template <class Size>
void add_wrench(const Topology& t, const Kinematics<Size>& kin, const Candidate& c, V3<double> force, Field<Size> wrench) {
  auto add = [&](int link, double sign) {
    if (link == t.world) return;
    const V3<double> moment = cross(c.point - kin.origin.three_of(link), force);
    wrench.set(link, wrench.six_of(link) + sign * V6<double>{force, moment});
  };
  add(c.link1, 1), add(c.link2, -1);
}

// X += the terms of d(J^T lambda)/dq in which the contact's point and frame move (rows of `lanes`, tree DoFs).
template <class Size>
void add_moving_contact(Size n, const Topology& t, const Kinematics<Size>& kin, const Candidate& c, const Frame& frame,
                        const double* impulse, const ContactMotion<Size>& motion, double* X) {
  const int N = n.lanes();
  V3<double> force = {0, 0, 0};
  for (int a = 0; a < 3; ++a) force = force + impulse[a] * frame.axis[a];
  t.each_between(c.link1, c.link2, [&](int j, double sign) {
    const V6<double> s = kin.S.six_of(j);
    // S_w . (dP x F) = dP . (F x S_w)
    const V3<double> across = sign * cross(force, s.w);
    const V3<double> column = sign * (s.l + cross(s.w, c.point - kin.origin.three_of(j)));
    for (int b = 0; b < N; b += LANES) {
      vec x = load(X + j * N + b) + dot(splat(across), motion.d.three(b, 1));
      if (motion.normal_moves)
        for (int a = 0; a < 3; ++a) x += impulse[a] * dot(splat(column), motion.d.three(b, 4 + 3 * a));
      store(X + j * N + b, x);
    }
  });
}

// Adds to the three rows `out` (of `stride`, tree DoFs) weight times the derivative of the contact's velocity at fixed tree velocity,
// V and V_parent of the links; weight: by row.
template <class Size>
void add_velocity_turning(Size n, const Topology& t, const Kinematics<Size>& kin, const Candidate& c, const Frame& frame,
                          const ContactMotion<Size>& motion, Field<Size> V, Field<Size> V_parent, const double* weight,
                          double* out, int stride) {
  const int N = n.lanes();
  const V6<double> one = V.six_of(c.link1), two = V.six_of(c.link2);
  const V3<double> spin = one.w - two.w, relative = relative_velocity(kin, V, c);
  const bool second = c.link2 != t.world;
  for (int b = 0; b < N; b += LANES) {
    const V6<vec> s = kin.S.six(b), above = V_parent.six(b);
    const V3<vec> arm = splat(c.point) - kin.origin.three(b);
    auto carried = [&](V6<double> body, int link) {
      const V6<vec> d = cross_motion(above - splat(body), s);
      return loadu(&t.mask[link * N + b]) * (d.l + cross(d.w, arm));
    };
    V3<vec> turned = carried(one, c.link1) + cross(splat(spin), motion.d.three(b, 1));
    if (second) turned = turned - carried(two, c.link2);
    for (int a = 0; a < 3; ++a) {
      if (weight[a] == 0) continue;
      vec x = dot(splat(frame.axis[a]), turned);
      if (motion.normal_moves) x += dot(splat(relative), motion.d.three(b, 4 + 3 * a));
      store(out + a * stride + b, load(out + a * stride + b) + weight[a] * x);
    }
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
