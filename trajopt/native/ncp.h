// The contact law as an equation: projection map, modes, generalised derivative and residual.
//
// One velocity-level problem nu = G lambda + g has three kinds of rows, in this order (docs/contact-semantics.md):
//
//     3 contacts  (tangent 1, tangent 2, normal): lambda in the cone |lambda_t| <= mu lambda_n, Signorini, maximum dissipation
//     limits      0 <= lambda  _|_  nu >= 0
//     dry         |lambda| <= bound, lambda = -bound sign(nu) when nu != 0; an infinite bound makes the row bilateral, nu = 0
//
// and with y = lambda - rho nu the law is F(lambda) = lambda - proj(y) = 0 (Alart and Curnier 1991),
//
//     proj: y_n -> max(0, y_n);  y_t -> disc of radius mu max(0, y_n);  y_f -> [-bound, bound].
//
// P, the derivative of proj, selects the modes; K = I - P + P rho G is the derivative of F.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>

#include "dense.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// nu = G lambda + g. G (m, m) symmetric, rows 64-byte aligned, `stride` a multiple of `PAD`; g padded to `PAD`; the padding of
// both is finite. mu per contact; bound per dry row, N s. softness: null, or by how much compliance has multiplied each contact's own
// block of G. before: null, or nu at the velocity before the step, and where it is zero rows mostly stay held.
struct ContactProblem {
  int contacts = 0, limits = 0, dry = 0;
  const double* G = nullptr;
  int stride = 0;
  const double* g = nullptr;
  const double* mu = nullptr;
  const double* bound = nullptr;
  const double* softness = nullptr;
  const double* before = nullptr;

  int rows() const { return 3 * contacts + limits + dry; }
};

enum Mode : int { SEPARATING, STICKING, SLIDING };

constexpr double MACHINE = std::numeric_limits<double>::epsilon();
constexpr double SLOWEST = 1e-3;  // m/s: velocities are not told apart in smaller units than this times the tolerance
constexpr double REGULARISATION = 1e-6;  // eps of the regularised problem over the smallest scale of a row
constexpr double SLOW = 1e-6;      // share of the approaching velocities up to which one counts as none: of a slower slip the direction
                                   // is known to fewer than four digits
constexpr double HELD = 0.1;       // share of the approaching velocities up to which a row that moves before the step was held in the last one:
                                   // the motion of one step changes what it held by less
constexpr double MOVES = 1.5e-8;  // sqrt of rounding: a diagonal entry below this share of the largest is a row nothing moves

// The problem with what is computed once: rho (m), kg, the scaling of the projection; eps, 1/kg; approach, m/s: the largest
// velocity of the problem without impulse, what opens left out.
struct Ncp {
  ContactProblem problem;
  int m, width;  // rows, and rows padded
  double* rho;
  double eps, approach;
};

// Whether every number of the problem is finite (an infinite bound is one of the law's).
inline bool finite(const ContactProblem& p) {
  const int m = p.rows(), width = padded(m);
  Lanes zero = {};
  for (int r = 0; r < m; ++r)
    for (int at = 0; at < width; at += W) zero += 0.0 * load(p.G + (ptrdiff_t)r * p.stride + at);
  double rest = sum(zero);
  for (int r = 0; r < m; ++r) rest += 0.0 * p.g[r];
  for (int c = 0; c < p.contacts; ++c) rest += 0.0 * p.mu[c];
  for (int k = 0; k < p.dry; ++k) rest += p.bound[k] >= 0 ? 0.0 : std::nan("");
  return rest == 0.0;
}

// max(|g|, 1e-3 m/s) over normals and limits that approach, tangents, and dry rows; with x, of contacts that approach or carry an impulse
// alone.
inline double approach_scale(const ContactProblem& p, const double* x = nullptr) {
  double scale = SLOWEST;
  const int m = p.rows(), cones = 3 * p.contacts, unilateral = cones + p.limits;
  for (int r = 0; r < cones; r += 3) {
    scale = std::max(scale, -p.g[r + 2]);
    if (!x || p.g[r + 2] < 0 || x[r + 2] > 0) scale = std::max({scale, std::fabs(p.g[r]), std::fabs(p.g[r + 1])});
  }
  for (int r = cones; r < unilateral; ++r) scale = std::max(scale, -p.g[r]);
  for (int r = unilateral; r < m; ++r) scale = std::max(scale, std::fabs(p.g[r]));
  return scale;
}

// rho from the diagonal of G (one for the normal and one for both tangents of a contact), and the scales. A row that nothing can
// move gets the scale of the others; with no scale at all, 1. Contacts that are soft must not make the others look immovable: what
// moves is judged without compliance.
inline Ncp scaled(const ContactProblem& p, double* rho) {
  const int m = p.rows(), cones = 3 * p.contacts;
  Ncp ncp{p, m, padded(m), rho, 0.0, approach_scale(p)};
  auto diagonal = [&](int r) { return p.G[(ptrdiff_t)r * p.stride + r]; };
  double top = 0.0;
  for (int r = 0; r < cones; r += 3) {
    rho[r] = rho[r + 1] = 0.5 * (diagonal(r) + diagonal(r + 1));
    rho[r + 2] = diagonal(r + 2);
  }
  for (int r = cones; r < m; ++r) rho[r] = diagonal(r);
  for (int r = 0; p.softness && r < cones; ++r) rho[r] /= p.softness[r / 3];
  for (int r = 0; r < m; ++r) top = std::max(top, rho[r]);
  double heaviest = 0.0;
  for (int r = 0; r < m; ++r) {
    const double mobility = rho[r] > MOVES * top ? rho[r] : top > 0.0 ? top : 1.0;
    rho[r] = 1.0 / mobility;
    if (p.softness && r < cones) rho[r] /= p.softness[r / 3];
    heaviest = std::max(heaviest, rho[r]);
  }
  for (int r = m; r < ncp.width; ++r) rho[r] = 0.0;
  ncp.eps = heaviest > 0.0 ? REGULARISATION / heaviest : 0.0;
  return ncp;
}

// `from` (m,) with zeros in the padding, into x (width,).
inline void with_padding(const Ncp& ncp, const double* from, double* x) {
  std::memcpy(x, from, sizeof(double) * ncp.m);
  std::memset(x + ncp.m, 0, sizeof(double) * (ncp.width - ncp.m));
}

// The problem with G + weight I; weight = 0 is the problem itself.
struct Regularised {
  const Ncp& ncp;
  double weight = 0.0;

  double rho(int r) const { return ncp.rho[r]; }
};

// nu at x; x and nu are padded arrays.
inline void velocity(const Regularised& of, const double* x, double* nu) {
  const ContactProblem& p = of.ncp.problem;
  const int width = of.ncp.width;
  if (of.weight == 0.0) return combine(p.G, p.stride, of.ncp.m, width, x, p.g, nu);
  for (int at = 0; at < width; at += W) store(nu + at, load(p.g + at) + of.weight * load(x + at));
  combine(p.G, p.stride, of.ncp.m, width, x, nu, nu);
}

// F = lambda - proj(lambda - rho nu), kg m/s; where modes are given (`classify`) the branch of proj that they select, whatever y says.
template <bool GIVEN = false> void natural_map(const Regularised& of, const double* x, const double* nu, double* F, const int* mode = nullptr) {
  const ContactProblem& p = of.ncp.problem;
  const int cones = 3 * p.contacts, unilateral = cones + p.limits;
  for (int c = 0; c < p.contacts; ++c) {
    const int r = 3 * c;
    const double y0 = x[r] - of.rho(r) * nu[r], y1 = x[r + 1] - of.rho(r + 1) * nu[r + 1], y2 = x[r + 2] - of.rho(r + 2) * nu[r + 2];
    const double normal = !GIVEN ? std::max(0.0, y2) : mode[c] == SEPARATING ? 0.0 : y2, radius = p.mu[c] * normal;
    const double square = y0 * y0 + y1 * y1;
    const bool bounded = GIVEN ? mode[c] != STICKING && square > 0 : square > radius * radius;
    const double shrink = bounded ? radius / std::sqrt(square) : 1.0;
    F[r] = x[r] - shrink * y0;
    F[r + 1] = x[r + 1] - shrink * y1;
    F[r + 2] = x[r + 2] - normal;
  }
  for (int r = cones; r < of.ncp.m; ++r) {
    const double y = x[r] - of.rho(r) * nu[r], bound = r < unilateral ? 0.0 : p.bound[r - unilateral];
    const bool held = GIVEN ? mode[p.contacts + r - cones] : r < unilateral ? y > 0 : std::fabs(y) <= bound;
    F[r] = !held ? x[r] - std::copysign(bound, y) : r < unilateral ? x[r] - y : of.rho(r) * nu[r];
  }
}

// Largest |F / rho|, m/s; NaN where there is one.
inline double violation(const Regularised& of, const double* F) {
  double size = 0;
  for (int r = 0; r < of.ncp.m; ++r) {
    const double v = std::fabs(F[r] / of.rho(r));
    if (!(v <= size) && size == size) size = v;
  }
  return size;
}

// s: the velocity that residuals are measured against,
//
//     max(1e-3 m/s, max over P of |g|, 8 eps max_i (|G| |lambda| + |g|)_i / tol),
//
// P: normals and limits with g < 0, tangents of contacts with g_n < 0 or lambda_n > 0, all dry rows. The last term is what
// rounding leaves of nu where large terms cancel.
inline double velocity_scale(const Ncp& ncp, const double* x, double tol) {
  const ContactProblem& p = ncp.problem;
  const int m = ncp.m;
  double scale = approach_scale(p, x), widest = 0, total = 0, fastest = 0;
  for (int r = 0; r < m; ++r) {
    widest = std::max(widest, p.G[(ptrdiff_t)r * p.stride + r]);
    total += std::fabs(x[r]);
    fastest = std::max(fastest, std::fabs(p.g[r]));
  }
  const double rounding = 8 * MACHINE / tol;
  if (!(rounding * (widest * total + fastest) > scale)) return scale;  // |G_ij| <= the largest diagonal entry
  for (int r = 0; r < m; ++r) {
    double s = std::fabs(p.g[r]);
    for (int j = 0; j < m; ++j) s += std::fabs(p.G[(ptrdiff_t)r * p.stride + j] * x[j]);
    scale = std::max(scale, rounding * s);
  }
  return scale;
}

// Whether rounding leaves of nu what counts beside the approach: by impulses that grow where nothing resists them, until it hides that
// the approach goes on.
inline bool hidden_by_rounding(const Ncp& ncp, const double* x) { return velocity_scale(ncp, x, SLOW) > ncp.approach; }

// Mode of a contact and its block of P: [[a, b, h], [b, d, i], [0, 0, mode != SEPARATING]].
struct ConeSlope {
  int mode;
  double a, b, d, h, i;
};

// The mode of contact c at (x, nu). tie: size of y_n, as a velocity, below which the contact counts as separating. slow: speed
// below which a contact on its cone counts as sticking. Without friction a closed contact slides, also at zero velocity.
inline int cone_mode(const Regularised& of, int c, const double* x, const double* nu, double tie = 0, double slow = 0) {
  const int r = 3 * c;
  const double normal = x[r + 2] - of.rho(r + 2) * nu[r + 2];
  if (!(normal > tie * of.rho(r + 2))) return SEPARATING;
  const double y0 = x[r] - of.rho(r) * nu[r], y1 = x[r + 1] - of.rho(r + 1) * nu[r + 1];
  const double radius = of.ncp.problem.mu[c] * normal;
  const bool slow_slip = slow > 0 && nu[r] * nu[r] + nu[r + 1] * nu[r + 1] < slow * slow;
  return radius > 0 && (slow_slip || y0 * y0 + y1 * y1 <= radius * radius) ? STICKING : SLIDING;
}

inline ConeSlope cone_slope(const Regularised& of, int c, int mode, const double* x, const double* nu) {
  if (mode == SEPARATING) return {SEPARATING, 0, 0, 0, 0, 0};
  if (mode == STICKING) return {STICKING, 1, 0, 1, 0, 0};
  const int r = 3 * c;
  const double y0 = x[r] - of.rho(r) * nu[r], y1 = x[r + 1] - of.rho(r + 1) * nu[r + 1];
  const double normal = std::max(0.0, x[r + 2] - of.rho(r + 2) * nu[r + 2]), mu = of.ncp.problem.mu[c];
  const double length = std::sqrt(y0 * y0 + y1 * y1);
  if (!(length > 0)) return {SLIDING, 0, 0, 0, 0, 0};
  const double u0 = y0 / length, u1 = y1 / length, ratio = mu * normal / length;
  return {SLIDING, ratio * (1 - u0 * u0), -ratio * u0 * u1, ratio * (1 - u1 * u1), mu * u0, mu * u1};
}

// Modes of all rows, one entry for a contact, a limit, a dry row each (limits and dry rows: whether the row is held).
inline void classify(const Regularised& of, const double* x, const double* nu, int* mode, double tie = 0, double slow = 0) {
  const ContactProblem& p = of.ncp.problem;
  const int cones = 3 * p.contacts, unilateral = cones + p.limits;
  for (int c = 0; c < p.contacts; ++c) mode[c] = cone_mode(of, c, x, nu, tie, slow);
  int* row = mode + p.contacts;
  for (int r = cones; r < unilateral; ++r) *row++ = x[r] - of.rho(r) * nu[r] > tie * of.rho(r);
  for (int r = unilateral; r < of.ncp.m; ++r) *row++ = std::fabs(x[r] - of.rho(r) * nu[r]) < p.bound[r - unilateral];
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
