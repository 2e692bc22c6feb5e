// What selects one of many solutions where contacts slide and are redundant: the conditions beside F = 0, and how they change.
//
// K = I - P (I - rho G) is the derivative of F in given modes; N and Z are bases of the null spaces of K and of K^T (one vector a
// row here, so N^T of the formulas). With a = lambda - rho nu, the argument of the projection,
//
//     shortest impulse:                         c = N^T lambda,         y with K^T y = lambda,
//     limit of the regularised solution:        c = Z^T P rho lambda,   r with K r = P rho lambda,
//
// change by C^T dlambda + T^T da (and by dG: `redundant.h`), where C = N or rho P^T Z, and the columns of T are H_y (I - rho G) N_k or
// H_k ((I - rho G) r + rho lambda); H_y is the Hessian of y . proj and H_k that of Z_k . proj: a symmetric 3 x 3 block for every contact
// that slides, zero elsewhere (selection.py, where both are derived).
#pragma once
#include "elimination.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// N, Z, C and T (count, ld), count 0 where N is not made; along (n): y or r; H (9 per contact that slides, in the order of the held rows); S (count, sld), factored:
// C^T N + T^T (I - rho G) N, how the conditions change along N. C is the memory of N or `pushed`. by_friction (count, ld): how they change
// by mu, a column a contact.
struct Curvature {
  bool shortest;
  int count, ld, sld;
  double *N, *Z, *pushed, *T, *along, *H, *S, *inverse, *by_friction;
  const double* C;
  int* row;
};

// out = H d for d on the held rows; out is padded with zeros.
inline void bend(const ContactProblem& p, const int* mode, const int* held, int n, const double* H, const double* d, double* out) {
  for (int i = 0; i < padded(n); ++i) out[i] = 0.0;
  for (int i = 0, k = 0; i < n;) {
    const int r = held[i];
    const bool cone = r < 3 * p.contacts;
    if (cone && mode[r / 3] == SLIDING) {
      const double* h = H + 9 * k++;
      for (int a = 0; a < 3; ++a) out[i + a] = h[3 * a] * d[i] + h[3 * a + 1] * d[i + 1] + h[3 * a + 2] * d[i + 2];
    }
    i += cone ? 3 : 1;
  }
}

// The Hessians of y . proj at (x, nu) in given modes.
inline void projection_hessians(const Ncp& ncp, const int* mode, const int* held, int n, const double* x, const double* nu,
                                const double* y, double* H) {
  const ContactProblem& p = ncp.problem;
  for (int i = 0; i < n;) {
    const int r = held[i];
    const bool cone = r < 3 * p.contacts;
    if (cone && mode[r / 3] == SLIDING) {
      const double mu = p.mu[r / 3], y0 = x[r] - ncp.rho[r] * nu[r], y1 = x[r + 1] - ncp.rho[r + 1] * nu[r + 1];
      const double normal = x[r + 2] - ncp.rho[r + 2] * nu[r + 2], length = std::sqrt(y0 * y0 + y1 * y1);
      const double k = length > 0 ? 1.0 / length : 0.0, u0 = k * y0, u1 = k * y1, w = y[i] * u0 + y[i + 1] * u1;
      const double q0 = y[i] - w * u0, q1 = y[i + 1] - w * u1, f = -mu * normal * k * k;
      H[0] = f * (2 * u0 * q0 + w * (1 - u0 * u0));
      H[1] = H[3] = f * (u0 * q1 + u1 * q0 - w * u0 * u1);
      H[4] = f * (2 * u1 * q1 + w * (1 - u1 * u1));
      H[2] = H[6] = mu * q0 * k;
      H[5] = H[7] = mu * q1 * k;
      H[8] = 0.0;
      H += 9;
    }
    i += cone ? 3 : 1;
  }
}

// by (contacts): y . (dP / dmu) d for y and d on the held rows, by mu of each contact.
inline void bend_by_friction(const Ncp& ncp, const int* mode, const int* held, int n, const double* x, const double* nu, const double* y,
                             const double* d, double* by) {
  for (int k = 0; k < ncp.problem.contacts; ++k) by[k] = 0.0;
  for (int i = 0; i < n;) {
    const int r = held[i];
    const bool cone = r < 3 * ncp.problem.contacts;
    if (cone && mode[r / 3] == SLIDING) {
      const double y0 = x[r] - ncp.rho[r] * nu[r], y1 = x[r + 1] - ncp.rho[r + 1] * nu[r + 1];
      const double normal = std::max(0.0, x[r + 2] - ncp.rho[r + 2] * nu[r + 2]), length = std::sqrt(y0 * y0 + y1 * y1);
      const double inverse = length > 0 ? 1.0 / length : 0.0, u0 = inverse * y0, u1 = inverse * y1, along = u0 * d[i] + u1 * d[i + 1];
      by[r / 3] = y[i] * (normal * inverse * (d[i] - along * u0) + u0 * d[i + 2]) + y[i + 1] * (normal * inverse * (d[i + 1] - along * u1) + u1 * d[i + 2]);
    }
    i += cone ? 3 : 1;
  }
}

// out = (I - rho G) d on the held rows; G_hh (n, ld) gathered, d padded with zeros.
inline void argument_change(const Ncp& ncp, const int* held, int n, const double* Ghh, int ld, const double* d, double* out) {
  std::memset(out, 0, sizeof(double) * ld);
  combine(Ghh, ld, n, ld, d, out, out);  // G_hh is symmetric
  for (int i = 0; i < n; ++i) out[i] = d[i] - ncp.rho[held[i]] * out[i];
}

// All of `Curvature` from the eliminated K at (x, nu). Ghh: the held part of G; impulse, one, two: padded vectors of scratch.
inline void curvature(const Ncp& ncp, const int* mode, const int* held, const Elimination& e, const double* x, const double* nu,
                      const double* Ghh, bool shortest, Curvature& c, double* impulse, double* one, double* two) {
  const int n = e.n, ld = e.ld;
  c.shortest = shortest, c.count = n - e.rank, c.ld = ld, c.sld = padded(c.count);
  null_space(e, c.N, ld);
  c.C = shortest ? c.N : c.pushed;
  auto row = [&](auto* matrix, int k) { return matrix + (ptrdiff_t)k * ld; };
  for (int i = 0; i < ld; ++i) impulse[i] = i < n ? x[held[i]] : 0.0;
  if (shortest) {
    for (int k = 0; k < c.count; ++k) add(-dot(row(c.N, k), impulse, n), row(c.N, k), impulse, n);
    solve_transposed(e, impulse, c.along, c.Z, ld);
    projection_hessians(ncp, mode, held, n, x, nu, c.along, c.H);
  } else {
    left_null_space(e, c.Z, ld);
    push_held(ncp, mode, held, n, x, nu, false, impulse, one);
    solve_eliminated(e, one, c.along);
    for (int k = 0; k < c.count; ++k) add(-dot(row(c.N, k), c.along, n), row(c.N, k), c.along, n);
    argument_change(ncp, held, n, Ghh, ld, c.along, one);
    for (int i = 0; i < n; ++i) one[i] += ncp.rho[held[i]] * impulse[i];
  }
  for (int k = 0; k < c.count; ++k) {
    if (shortest) {
      argument_change(ncp, held, n, Ghh, ld, row(c.N, k), one);
    } else {
      push_held(ncp, mode, held, n, x, nu, true, row(c.Z, k), row(c.pushed, k));
      projection_hessians(ncp, mode, held, n, x, nu, row(c.Z, k), c.H);
    }
    bend(ncp.problem, mode, held, n, c.H, one, row(c.T, k));
    bend_by_friction(ncp, mode, held, n, x, nu, shortest ? c.along : row(c.Z, k), one, row(c.by_friction, k));
  }
  for (int k = 0; k < c.count; ++k) {
    argument_change(ncp, held, n, Ghh, ld, row(c.N, k), two);
    for (int j = 0; j < c.count; ++j) c.S[(ptrdiff_t)j * c.sld + k] = dot(row(c.T, j), two, n) + dot(row(c.C, j), row(c.N, k), n);
    for (int j = c.count; j < c.sld; ++j) c.S[(ptrdiff_t)k * c.sld + j] = 0.0;
  }
  factor_general(c.S, c.sld, c.count, MACHINE, c.row, c.inverse);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
