// The motion of a configuration along a tangent vector, and its Jacobians (trajopt/dynamics/rigid_body/configuration.py, lie.py).
#pragma once
#include <utility>

#include "dynamics.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Below this squared angle series are used; the first dropped term is then under one unit in the last place.
constexpr double SMALL_SQUARE = 1e-2;

// First user coordinate and first user DoF of every ball joint follow from the node's own, less the mimic joints before them. tree_v: its
// first tree DoF; free: whether it belongs to a free joint.
struct BallJoint { int q, v, tree_v; bool free; };

// q+ = q (+) h v in user coordinates.
inline void integrate(const Topology& t, const std::vector<BallJoint>& balls, const double* q, double h, const double* v, double* out) {
  for (int k = 0; k < t.nv; ++k)
    if (t.scalar_q[k] >= 0) out[t.scalar_q[k]] = q[t.scalar_q[k]] + h * v[k];
  for (const BallJoint& ball : balls) {
    const double *a = q + ball.q, *w = v + ball.v;
    double* o = out + ball.q;
    const double square = a[0] * a[0] + a[1] * a[1] + a[2] * a[2] + a[3] * a[3], scale = square == 0 ? 0 : 1 / std::sqrt(square);
    const double a0 = square == 0 ? 1 : a[0] * scale, a1 = a[1] * scale, a2 = a[2] * scale, a3 = a[3] * scale;
    const double d[3] = {h * w[0], h * w[1], h * w[2]}, x = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
    double c, s;  // cos(|d| / 2), sin(|d| / 2) / |d|
    if (x < SMALL_SQUARE) {
      c = 1 + x * (-1 / 8. + x * (1 / 384. + x * (-1 / 46080. + x / 10321920.)));
      s = 1 / 2. + x * (-1 / 48. + x * (1 / 3840. + x * (-1 / 645120. + x / 185794560.)));
    } else {
      const double angle = std::sqrt(x);
      c = std::cos(angle / 2), s = std::sin(angle / 2) / angle;
    }
    const double b1 = s * d[0], b2 = s * d[1], b3 = s * d[2];
    o[0] = a0 * c - a1 * b1 - a2 * b2 - a3 * b3, o[1] = a0 * b1 + a1 * c + a2 * b3 - a3 * b2;
    o[2] = a0 * b2 - a1 * b3 + a2 * c + a3 * b1, o[3] = a0 * b3 + a1 * b2 - a2 * b1 + a3 * c;
  }
}

// d with q0 (+) d = q1, the shorter way round, in user coordinates.
inline void difference(const Topology& t, const std::vector<BallJoint>& balls, const double* q0, const double* q1, double* out) {
  for (int k = 0; k < t.nv; ++k)
    if (t.scalar_q[k] >= 0) out[k] = q1[t.scalar_q[k]] - q0[t.scalar_q[k]];
  for (const BallJoint& ball : balls) {
    double a[4], b[4];
    for (auto [from, to] : {std::pair{q0 + ball.q, a}, std::pair{q1 + ball.q, b}}) {
      const double square = from[0] * from[0] + from[1] * from[1] + from[2] * from[2] + from[3] * from[3];
      const double scale = square == 0 ? 0 : 1 / std::sqrt(square);
      to[0] = square == 0 ? 1 : from[0] * scale;
      for (int c = 1; c < 4; ++c) to[c] = from[c] * scale;
    }
    double w = a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
    double u[3] = {a[0] * b[1] - a[1] * b[0] - a[2] * b[3] + a[3] * b[2], a[0] * b[2] + a[1] * b[3] - a[2] * b[0] - a[3] * b[1],
                   a[0] * b[3] - a[1] * b[2] + a[2] * b[1] - a[3] * b[0]};
    if (w < 0) w = -w, u[0] = -u[0], u[1] = -u[1], u[2] = -u[2];
    const double square = u[0] * u[0] + u[1] * u[1] + u[2] * u[2];
    double factor;  // angle / sin(angle / 2)
    if (square < 1e-3) {
      const double y = square / (w * w);
      factor = (2 + y * (-2 / 3. + y * (2 / 5. + y * (-2 / 7. + y * (2 / 9. - y * (2 / 11.)))))) / w;
    } else {
      const double s = std::sqrt(square);
      factor = 2 * std::atan2(s, w) / s;
    }
    for (int c = 0; c < 3; ++c) out[ball.v + c] = factor * u[c];
  }
}

// exp(-d) and the right Jacobian J_r(d) of SO(3): what a ball joint's block of `integrate` has in place of two identities.
struct TurnJacobians { double by_q[9], by_d[9]; };
inline TurnJacobians turn_jacobians(V3<double> d) {
  const double x = dot(d, d);
  double half, sixth, sine;  // (1 - cos t) / t^2, (t - sin t) / t^3, sin t / t
  if (x < SMALL_SQUARE) {
    half = 1 / 2. + x * (-1 / 24. + x * (1 / 720. + x * (-1 / 40320. + x / 3628800.)));
    sixth = 1 / 6. + x * (-1 / 120. + x * (1 / 5040. + x * (-1 / 362880. + x / 39916800.)));
    sine = 1 - x * sixth;
  } else {
    const double a = std::sqrt(x);
    half = (1 - std::cos(a)) / x, sine = std::sin(a) / a, sixth = (1 - sine) / x;
  }
  const double k[9] = {0, -d.z, d.y, d.z, 0, -d.x, -d.y, d.x, 0};
  TurnJacobians out;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) {
      const double kk = k[3 * i] * k[j] + k[3 * i + 1] * k[3 + j] + k[3 * i + 2] * k[6 + j], one = i == j;
      out.by_q[3 * i + j] = one - sine * k[3 * i + j] + half * kk;
      out.by_d[3 * i + j] = one - half * k[3 * i + j] + sixth * kk;
    }
  return out;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
