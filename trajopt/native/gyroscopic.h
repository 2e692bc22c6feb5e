// The gyroscopic torque of free and ball joints over a step, by the implicit midpoint rule: a correction c of the bias forces, and its
// derivative (trajopt/dynamics/rigid_body/gyroscopic.py has the formulas).
#pragma once
#include "integrate.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int MIDPOINT_ITERATIONS = 8;       // five suffice where a body turns by a radian in a step
constexpr double MIDPOINT_CHANGE = 1e-16;    // square of the share of x by which the last iteration may still move it

// Of one joint: its rotation, the point that I is about (world axes, from the tree's origin), I and H in body axes, omega, x.
struct Turning { M3<double> rotation; V3<double> point; M3<double> inertia, mass; V3<double> omega, midpoint; };

inline M3<double> operator+(const M3<double>& A, const M3<double>& B) { return {A.row0 + B.row0, A.row1 + B.row1, A.row2 + B.row2}; }
inline M3<double> scaled(double k, const M3<double>& A) { return {k * A.row0, k * A.row1, k * A.row2}; }
inline M3<double> skew(V3<double> a) { return {{0, -a.z, a.y}, {a.z, 0, -a.x}, {-a.y, a.x, 0}}; }
inline M3<double> inverse(const M3<double>& A) {
  const V3<double> a = cross(A.row1, A.row2), b = cross(A.row2, A.row0), c = cross(A.row0, A.row1);
  return transposed(scaled(1 / dot(A.row0, a), {a, b, c}));
}
// d(y x I y)/dy.
inline M3<double> gyroscopic_slope(const M3<double>& I, V3<double> y) { return skew(y) * I + scaled(-1, skew(I * y)); }
inline M3<double> newton_matrix(const Turning& b, double dt) { return b.mass + scaled(0.5 * dt, gyroscopic_slope(b.inertia, b.midpoint)); }

// x of H (x - omega) + dt/2 x x I x = 0. omega* = 2 x - omega has the energy of omega also where the iteration does not converge.
inline void find_midpoint(double dt, Turning& b) {
  b.midpoint = b.omega;
  for (int k = 0; k < MIDPOINT_ITERATIONS; ++k) {
    const V3<double> x = b.midpoint, left = b.mass * (x - b.omega) + 0.5 * dt * cross(x, b.inertia * x), d = inverse(newton_matrix(b, dt)) * left;
    b.midpoint = x - d;
    if (dot(d, d) <= MIDPOINT_CHANGE * dot(x, x)) return;
  }
  const V3<double> after = 2.0 * b.midpoint - b.omega;
  const double energy = dot(b.omega, b.mass * b.omega), reached = dot(after, b.mass * after);
  b.midpoint = 0.5 * (b.omega + (reached > 0 ? std::sqrt(energy / reached) : 0) * after);
}

// I about the joint's pivot, of a free joint about the centre of mass, and H.
template <class Size>
void turning_inertia(const Parameters& p, const Kinematics<Size>& kin, const Dynamics<Size>& d, const BallJoint& ball, Turning& b) {
  auto of = [&](int k) { return d.composite_I[k][ball.tree_v]; };
  const double m = of(0);
  const V3<double> centre = (1 / m) * d.composite_I.three_of(ball.tree_v, 1);
  b.rotation = kin.rotation.matrix_of(ball.tree_v);
  b.point = ball.free ? centre : kin.lever.three_of(ball.tree_v);
  const M3<double> out = skew(centre), on = skew(b.point - centre), origin = {{of(4), of(5), of(7)}, {of(5), of(6), of(8)}, {of(7), of(8), of(9)}};
  const M3<double> world = origin + scaled(m, out * out + scaled(-1, on * on));
  b.inertia = b.mass = transposed(b.rotation) * (world * b.rotation);
  b.mass.row0.x += p.armature[ball.v], b.mass.row1.y += p.armature[ball.v + 1], b.mass.row2.z += p.armature[ball.v + 2];
}

// Adds c to the bias forces; `turning` keeps what the derivative needs. After `mass_matrix`, which sums up composite_I.
template <class Size>
void correct_bias(const Parameters& p, const std::vector<BallJoint>& balls, double dt, const double* v, const Kinematics<Size>& kin,
                  Dynamics<Size>& d, std::vector<Turning>& turning) {
  for (size_t k = 0; k < balls.size(); ++k) {
    Turning& b = turning[k];
    b.omega = b.midpoint = three(v + balls[k].v);
    turning_inertia(p, kin, d, balls[k], b);
    if (b.omega.x == 0 && b.omega.y == 0 && b.omega.z == 0) continue;
    find_midpoint(dt, b);
    const V3<double> c = (-2 / dt) * (b.mass * (b.midpoint - b.omega)) - cross(b.omega, b.inertia * b.omega);
    d.bias[balls[k].v] += c.x, d.bias[balls[k].v + 1] += c.y, d.bias[balls[k].v + 2] += c.z;
  }
}

// (dI/dq_j) y in body axes, of the DoFs from lane b on.
template <class Size>
V3<vec> inertia_slope(const Kinematics<Size>& kin, const Dynamics<Size>& d, const Turning& t, V3<double> y, int b) {
  const V3<double> w = t.rotation * y;
  const V6<vec> s = kin.S.six(b), motion = splat(V6<double>{cross(t.point, w), w});
  const Inertia<vec> composite = d.composite_I.inertia(b);
  const V6<vec> f = cross_force(s, composite * motion) - composite * cross_motion(s, motion);
  return transposed_times(splat(t.rotation), f.w - cross(splat(t.point), f.l));
}

// X_q -= dt dc/dq, X_v -= dt dc/dv, in user DoFs with rows of `lanes`; rows: three such rows of scratch.
template <class Size>
void add_gyroscopic_slopes(Size n, const Topology& t, const Parameters& p, const std::vector<BallJoint>& balls, double dt,
                           const Kinematics<Size>& kin, const Dynamics<Size>& d, const std::vector<Turning>& turning, double* X_q,
                           double* X_v, double* rows) {
  const int N = n.lanes();
  for (size_t k = 0; k < balls.size(); ++k) {
    const Turning& b = turning[k];
    const int at = balls[k].v, link = balls[k].tree_v;
    const M3<double> along = gyroscopic_slope(b.inertia, b.midpoint) * inverse(newton_matrix(b, dt));
    const M3<double> by_omega = along * b.mass + scaled(-1, gyroscopic_slope(b.inertia, b.omega));
    const V3<double> out[3] = {by_omega.row0, by_omega.row1, by_omega.row2};
    for (int i = 0; i < 3; ++i) {
      double* to = X_v + (at + i) * N + at;
      to[0] -= dt * out[i].x, to[1] -= dt * out[i].y, to[2] -= dt * out[i].z;
    }
    std::memset(rows, 0, sizeof(double) * 3 * N);
    const V3<vec> x = splat(b.midpoint), omega = splat(b.omega);
    for (int l : t.up_blocks[link]) {
      const vec mask = loadu(&t.upper[link * N + l]);
      const V3<vec> by_x = inertia_slope(kin, d, b, b.midpoint, l), by_w = inertia_slope(kin, d, b, b.omega, l), turned = cross(x, by_x);
      const V3<vec> moved = by_w - by_x - (0.5 * dt) * turned, still = turned - cross(omega, by_w);
      auto put = [&](int i, V3<double> row, vec s) { store(rows + i * N + l, mask * (s + dot(splat(row), moved))); };
      put(0, along.row0, still.x), put(1, along.row1, still.y), put(2, along.row2, still.z);
    }
    for (int i = 0; i < 3; ++i) {
      if (t.projected()) project(t, p, rows + i * N);
      for (int l = 0; l < N; l += LANES) store(X_q + (at + i) * N + l, load(X_q + (at + i) * N + l) - dt * load(rows + i * N + l));
    }
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
