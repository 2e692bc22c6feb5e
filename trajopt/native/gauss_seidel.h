// Block Gauss-Seidel with exact one-contact solutions, on the regularised problem.
//
// One contact alone, nu = D lambda + b with D its 3 x 3 block: open if b_n >= 0; else sticking, lambda = -D^-1 b, if that is in the
// cone; else sliding, lambda = lambda_n (mu u, 1) with u = (cos t, sin t), nu_n = 0 and nu_t = -alpha u, alpha >= 0:
//
//     lambda_n (D_nn + mu D_nt u) = -b_n,      u' . (lambda_n (mu D_tt u + D_tn) + b_t) = 0,   u' = (-sin t, cos t)
//
// of which the second, times the first's factor, is a trigonometric polynomial of degree two in t. Its roots are bracketed on
// `ANGLES` directions and found by Newton's method within their brackets.
#pragma once
#include "newton.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int ANGLES = 24;          // two roots closer than 15 degrees may be missed: the contact then keeps its projected step
constexpr int ROOT_ITERATIONS = 60; // halvings of a bracket at worst

struct OneContact {
  double D[3][3], b[3], mu;

  // f(t), its slope, and whether the direction is an answer: the impulse presses and the slip opposes friction.
  double equation(double c, double s, double* slope = nullptr) const {
    const double pull = D[2][2] + mu * (D[0][2] * c + D[1][2] * s), turn = -s * D[0][2] + c * D[1][2];
    const double along = c * c * D[0][0] + 2 * c * s * D[0][1] + s * s * D[1][1];
    const double across = c * s * (D[1][1] - D[0][0]) + (c * c - s * s) * D[0][1];
    const double side = -s * b[0] + c * b[1];
    if (slope) {
      const double opposite = s * s * D[0][0] - 2 * c * s * D[0][1] + c * c * D[1][1];
      *slope = -b[2] * (mu * (opposite - along) - (c * D[0][2] + s * D[1][2])) + mu * turn * side - pull * (c * b[0] + s * b[1]);
    }
    return -b[2] * (mu * across + turn) + pull * side;
  }

  bool slides(double c, double s, double* impulse) const {
    const double pull = D[2][2] + mu * (D[0][2] * c + D[1][2] * s);
    if (!(pull > 0)) return false;
    const double normal = -b[2] / pull, x = mu * normal * c, y = mu * normal * s;
    const double n0 = D[0][0] * x + D[0][1] * y + D[0][2] * normal + b[0], n1 = D[0][1] * x + D[1][1] * y + D[1][2] * normal + b[1];
    if (n0 * c + n1 * s > 0) return false;
    impulse[0] = x, impulse[1] = y, impulse[2] = normal;
    return true;
  }

  bool sticks(double* impulse) const {
    const double a = D[1][1] * D[2][2] - D[1][2] * D[1][2], e = D[0][2] * D[1][2] - D[0][1] * D[2][2];
    const double f = D[0][1] * D[1][2] - D[0][2] * D[1][1], det = D[0][0] * a + D[0][1] * e + D[0][2] * f;
    if (!(det > 0)) return false;
    const double h = D[0][0] * D[2][2] - D[0][2] * D[0][2], i = D[0][1] * D[0][2] - D[0][0] * D[1][2];
    const double l = D[0][0] * D[1][1] - D[0][1] * D[0][1];
    const double x = -(a * b[0] + e * b[1] + f * b[2]) / det, y = -(e * b[0] + h * b[1] + i * b[2]) / det;
    const double n = -(f * b[0] + i * b[1] + l * b[2]) / det;
    if (!(n > 0 && x * x + y * y <= mu * mu * n * n)) return false;
    impulse[0] = x, impulse[1] = y, impulse[2] = n;
    return true;
  }

  // A root in [t0, t1], at whose ends f has different signs.
  double root(double t0, double f0, double t1) const {
    double t = 0.5 * (t0 + t1);
    for (int k = 0; k < ROOT_ITERATIONS; ++k) {
      double slope;
      const double f = equation(std::cos(t), std::sin(t), &slope);
      (f < 0) == (f0 < 0) ? t0 = t : t1 = t;
      double next = slope != 0 ? t - f / slope : t0;
      if (!(next > t0 && next < t1)) next = 0.5 * (t0 + t1);
      if (std::fabs(next - t) <= 1e-15) return next;
      t = next;
    }
    return t;
  }

  // The impulse; of several that slide the one nearest to the present one. False where no root is found.
  bool solve(double* impulse) const {
    if (b[2] >= 0) {
      impulse[0] = impulse[1] = impulse[2] = 0;
      return true;
    }
    double found[3];
    if (mu > 0 && sticks(impulse)) return true;
    if (!(mu > 0)) {
      impulse[0] = impulse[1] = 0, impulse[2] = -b[2] / D[2][2];
      return D[2][2] > 0;
    }
    static const struct Circle {
      double c[ANGLES + 1], s[ANGLES + 1];
      Circle() {
        for (int k = 0; k <= ANGLES; ++k) c[k] = std::cos(2 * M_PI * k / ANGLES), s[k] = std::sin(2 * M_PI * k / ANGLES);
      }
    } circle;
    double nearest = HUGE_VAL, before = equation(circle.c[0], circle.s[0]);
    double best[3] = {};
    for (int k = 1; k <= ANGLES; ++k) {
      const double now = equation(circle.c[k], circle.s[k]);
      if ((now < 0) != (before < 0)) {
        const double t = root(2 * M_PI * (k - 1) / ANGLES, before, 2 * M_PI * k / ANGLES);
        if (slides(std::cos(t), std::sin(t), found)) {
          const double d0 = found[0] - impulse[0], d1 = found[1] - impulse[1], d2 = found[2] - impulse[2];
          const double distance = d0 * d0 + d1 * d1 + d2 * d2;
          if (distance < nearest) nearest = distance, std::copy(found, found + 3, best);
        }
      }
      before = now;
    }
    if (nearest == HUGE_VAL) return false;
    std::copy(best, best + 3, impulse);
    return true;
  }
};

// Row r of nu at x.
inline double row_velocity(const Regularised& of, int r, const double* x) {
  const ContactProblem& p = of.ncp.problem;
  const double* G = p.G + (ptrdiff_t)r * p.stride;
  Lanes s = {};
  for (int at = 0; at < of.ncp.width; at += W) s += load(G + at) * load(x + at);
  return sum(s) + p.g[r] + of.weight * x[r];
}

// One sweep over all rows; returns the largest change as a velocity.
inline double sweep(const Regularised& of, double* x) {
  const ContactProblem& p = of.ncp.problem;
  const int cones = 3 * p.contacts, unilateral = cones + p.limits;
  double change = 0;
  for (int c = 0; c < p.contacts; ++c) {
    OneContact one;
    double* lambda = x + 3 * c;
    double nu[3], old[3] = {lambda[0], lambda[1], lambda[2]};
    one.mu = p.mu[c];
    for (int i = 0; i < 3; ++i) {
      nu[i] = row_velocity(of, 3 * c + i, x);
      for (int j = 0; j < 3; ++j) one.D[i][j] = p.G[(ptrdiff_t)(3 * c + i) * p.stride + 3 * c + j] + (i == j ? of.weight : 0.0);
    }
    for (int i = 0; i < 3; ++i) one.b[i] = nu[i] - one.D[i][0] * old[0] - one.D[i][1] * old[1] - one.D[i][2] * old[2];
    if (!one.solve(lambda)) {  // a projected step, with the inverse of the block's largest row sum
      double most = 1e-300;
      for (int i = 0; i < 3; ++i) most = std::max(most, std::fabs(one.D[i][0]) + std::fabs(one.D[i][1]) + std::fabs(one.D[i][2]));
      const double y0 = old[0] - nu[0] / most, y1 = old[1] - nu[1] / most, normal = std::max(0.0, old[2] - nu[2] / most);
      const double length = std::sqrt(y0 * y0 + y1 * y1), radius = one.mu * normal;
      const double shrink = length > radius ? radius / length : 1.0;
      lambda[0] = shrink * y0, lambda[1] = shrink * y1, lambda[2] = normal;
    }
    for (int i = 0; i < 3; ++i) change = std::max(change, std::fabs(lambda[i] - old[i]) / of.rho(3 * c + i));
  }
  for (int r = cones; r < of.ncp.m; ++r) {
    const double own = p.G[(ptrdiff_t)r * p.stride + r] + of.weight;
    if (!(own > 0)) continue;
    const double y = x[r] - row_velocity(of, r, x) / own;
    const double bound = r < unilateral ? 0.0 : p.bound[r - unilateral];
    const double next = r < unilateral ? std::max(0.0, y) : std::fabs(y) <= bound ? y : std::copysign(bound, y);
    change = std::max(change, std::fabs(next - x[r]) / of.rho(r));
    x[r] = next;
  }
  return change;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
