// Closures: a frame of one body tied to one of another (trajopt/dynamics/contact/closures.py). With x the origins and R the axes of the
// frames in the world, R_12 = R_2^T R_1, c its third column, and (v, w) the velocity of body 1 relative to body 2 at x_1 in axes of
// frame 2,
//
//     translation   e = R_2^T (x_1 - x_2)              de = v
//     rotation      e = vee(R_12 - R_12^T) / 2         de = (tr(R_12) 1 - R_12) w / 2
//     axis          e = (c_x, c_y)                     de = (w x c)_x,y
//
// Eight rows, of which a closure keeps those of its kind. Impulses x of the eight are a force and a torque on body 1 at x_1,
//
//     f = R_2 x_t,     t = R_2 ((tr(R_12) x_r - R_12^T x_r) / 2 + c x (x_a, 0)),
//
// and how they turn with the bodies gives d(J^T x)/dq and, contracted with a velocity, d(J u)/dq.
#pragma once
#include "candidates.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int CLOSURE_ROWS = 8;

struct ClosureAt {
  V3<double> point;      // x_1
  M3<double> R2, R12;
  double error[CLOSURE_ROWS];

  double trace() const { return R12.row0.x + R12.row1.y + R12.row2.z; }
  V3<double> axis() const { return {R12.row0.z, R12.row1.z, R12.row2.z}; }
};
// Force and torque on body 1 at x_1, their opposites on body 2; world axes.
template <class T> struct Push { V3<T> force, torque; };


template <class Size> ClosureAt closure_at(const Parameters& p, const Kinematics<Size>& kin, const Closure& c, int index) {
  const double* x = p.closure + CLOSURE * index;
  const M3<double> one = kin.rotation.matrix_of(c.link1), two = kin.rotation.matrix_of(c.link2);
  ClosureAt at;
  at.point = position_of(kin, c.link1) + one * three(x + 9);
  at.R2 = two * nine(x + 12);
  at.R12 = transposed(at.R2) * (one * nine(x));
  const V3<double> apart = transposed_times(at.R2, at.point - (position_of(kin, c.link2) + two * three(x + 21))), a = at.axis();
  const M3<double>& R = at.R12;
  const double error[CLOSURE_ROWS] = {apart.x, apart.y, apart.z, 0.5 * (R.row2.y - R.row1.z), 0.5 * (R.row0.z - R.row2.x),
                                      0.5 * (R.row1.x - R.row0.y), a.x, a.y};
  std::memcpy(at.error, error, sizeof error);
  return at;
}

inline Push<double> push_of(const ClosureAt& at, const double* x) {
  const V3<double> turn = three(x + 3), tilt = {x[6], x[7], 0};
  const V3<double> local = 0.5 * (at.trace() * turn - transposed_times(at.R12, turn)) + cross(at.axis(), tilt);
  return {at.R2 * three(x), at.R2 * local};
}

// A closure's rows, one after the other: out(place among the rows kept, row as impulses of the eight).
template <class Out> void each_row(const Closure& c, Out out) {
  for (size_t k = 0; k < c.rows.size(); ++k) {
    double x[CLOSURE_ROWS] = {};
    x[c.rows[k]] = 1;
    out(static_cast<int>(k), x);
  }
}

TRAJOPT_INLINE vec moves_body(const Topology& t, int link, int b) { return loadu(&t.mask[static_cast<size_t>(link) * t.lanes + b]); }

// The row of J whose impulse is `push`, tree DoFs.
template <class Size>
void closure_row(Size n, const Topology& t, const Kinematics<Size>& kin, const Closure& c, const ClosureAt& at, Push<double> push, double* J) {
  for (int b = 0; b < n.lanes(); b += LANES) {
    const V6<vec> s = kin.S.six(b);
    const V3<vec> column = s.l + cross(s.w, splat(at.point) - kin.origin.three(b));
    store(J + b, (moves_body(t, c.link1, b) - moves_body(t, c.link2, b)) * (dot(splat(push.force), column) + dot(splat(push.torque), s.w)));
  }
}

// Adds impulses to the wrenches of the two bodies.
template <class Size>
void add_wrench(const Topology& t, const Kinematics<Size>& kin, const Closure& c, const ClosureAt& at, Push<double> push, Field<Size> wrench) {
  auto add = [&](int link, double sign) {
    if (link == t.world) return;
    const V3<double> moment = cross(at.point - kin.origin.three_of(link), push.force) + push.torque;
    wrench.set(link, wrench.six_of(link) + sign * V6<double>{push.force, moment});
  };
  add(c.link1, 1), add(c.link2, -1);
}

// How the force, and its moment about where x_1 is, change along each of a block of tree DoFs at fixed impulses x.
template <class Size>
TRAJOPT_INLINE Push<vec> turned_push(const Topology& t, const Kinematics<Size>& kin, const Closure& c, const ClosureAt& at, const double* x,
                                     Push<double> push, int b) {
  const V6<vec> s = kin.S.six(b);
  const vec one = moves_body(t, c.link1, b), two = moves_body(t, c.link2, b);
  const V3<vec> spin2 = two * s.w, moved = one * (s.l + cross(s.w, splat(at.point) - kin.origin.three(b)));
  const M3<vec> R2 = splat(at.R2), R12 = splat(at.R12);
  const V3<vec> w = transposed_times(R2, (one - two) * s.w), turn = splat(three(x + 3));  // dR_12 = [w]x R_12
  const V3<vec> tilt = splat(V3<double>{x[6], x[7], 0});
  const vec half_trace = -dot(w, splat(three(at.error + 3)));
  const V3<vec> local = half_trace * turn + 0.5 * transposed_times(R12, cross(w, turn)) + cross(cross(w, splat(at.axis())), tilt);
  return {cross(spin2, splat(push.force)), cross(moved, splat(push.force)) + cross(spin2, splat(push.torque)) + R2 * local};
}

// X += the terms of d(J^T x)/dq in which the force turns and x_1 moves (rows of `lanes`, tree DoFs); scratch: six components.
template <class Size>
void add_moving_closure(Size n, const Topology& t, const Kinematics<Size>& kin, const Closure& c, const ClosureAt& at, const double* x,
                        Field<Size> scratch, double* X) {
  const int N = n.lanes();
  const Push<double> push = push_of(at, x);
  for (int b = 0; b < N; b += LANES) {
    const Push<vec> d = turned_push(t, kin, c, at, x, push, b);
    scratch.put(b, V6<vec>{d.force, d.torque});
  }
  t.each_between(c.link1, c.link2, [&](int j, double sign) {
    const V6<double> s = kin.S.six_of(j);
    const V6<double> column = sign * V6<double>{s.l + cross(s.w, at.point - kin.origin.three_of(j)), s.w};
    for (int b = 0; b < N; b += LANES) store(X + j * N + b, load(X + j * N + b) + dot(splat(column), scratch.six(b)));
  });
}

// d(J u)/dq of the row with impulses x, tree DoFs, at a fixed tree velocity: V and V_parent of the links.
template <class Size>
void closure_turning(Size n, const Topology& t, const Kinematics<Size>& kin, const Closure& c, const ClosureAt& at, const double* x,
                     Field<Size> V, Field<Size> V_parent, double* out) {
  const V6<double> one = V.six_of(c.link1), two = V.six_of(c.link2);
  auto at_point = [&](V6<double> body, int link) { return body.l + cross(body.w, at.point - kin.origin.three_of(link)); };
  const V3<double> spin = one.w - two.w, relative = at_point(one, c.link1) - at_point(two, c.link2);
  const Push<double> push = push_of(at, x);
  for (int b = 0; b < n.lanes(); b += LANES) {
    const V6<vec> s = kin.S.six(b), above = V_parent.six(b);
    const V3<vec> arm = splat(at.point) - kin.origin.three(b);
    auto carried = [&](V6<double> body, int link) {
      const V6<vec> d = cross_motion(above - splat(body), s);
      return moves_body(t, link, b) * (dot(splat(push.force), d.l + cross(d.w, arm)) + dot(splat(push.torque), d.w));
    };
    const Push<vec> d = turned_push(t, kin, c, at, x, push, b);
    store(out + b, carried(one, c.link1) - carried(two, c.link2) + dot(splat(relative), d.force) + dot(splat(spin), d.torque));
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
