// How the derivative of the law turns with its arguments where contacts slide and are redundant.
//
// K = I - P (I - rho G) is the derivative of F in given modes, N an orthonormal basis of its null space (one vector a row here, so
// N^T of the formulas), y with K^T y = lambda. A change d of the arguments lambda - rho nu of the projection changes K^T y by
// -(I - G rho) H d, H the Hessian of y . proj: a symmetric 3 x 3 block for every contact that slides, zero elsewhere.
#pragma once
#include "elimination.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// N (count, ld), B = N^T (I - G rho) (count, ld): how the arguments change along N, y (n), H (9 per contact that slides, in the order of the held rows), and
// S = I + B H B^T (count, sld), factored: what selection and its derivative share.
struct Curvature {
  int count, ld, sld;
  double *N, *B, *y, *H, *S, *inverse, *left;
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

// out = (I - rho G) d on the held rows; G_hh (n, ld) gathered, d padded with zeros.
inline void argument_change(const Ncp& ncp, const int* held, int n, const double* Ghh, int ld, const double* d, double* out) {
  for (int i = 0; i < n; ++i) out[i] = d[i] - ncp.rho[held[i]] * dot(Ghh + (ptrdiff_t)i * ld, d, n);
  for (int i = n; i < padded(n); ++i) out[i] = 0.0;
}

// All of `Curvature` from the eliminated K at (x, nu). Ghh: the held part of G; scratch: two padded vectors.
inline void curvature(const Ncp& ncp, const int* mode, const int* held, const Elimination& e, const double* x, const double* nu,
                      const double* Ghh, Curvature& c, double* impulse, double* two) {
  const int n = e.n, ld = e.ld;
  c.count = n - e.rank, c.ld = ld, c.sld = padded(c.count);
  null_space(e, c.N, ld);
  for (int i = 0; i < ld; ++i) impulse[i] = i < n ? x[held[i]] : 0.0;
  for (int k = 0; k < c.count; ++k) add(-dot(c.N + (ptrdiff_t)k * ld, impulse, n), c.N + (ptrdiff_t)k * ld, impulse, n);
  solve_transposed(e, impulse, c.y, c.left, ld);
  projection_hessians(ncp, mode, held, n, x, nu, c.y, c.H);
  for (int k = 0; k < c.count; ++k)
    argument_change(ncp, held, n, Ghh, ld, c.N + (ptrdiff_t)k * ld, c.B + (ptrdiff_t)k * ld);
  for (int k = 0; k < c.count; ++k) {
    bend(ncp.problem, mode, held, n, c.H, c.B + (ptrdiff_t)k * ld, two);
    for (int j = 0; j < c.count; ++j) c.S[(ptrdiff_t)j * c.sld + k] = dot(c.B + (ptrdiff_t)j * ld, two, n) + (j == k ? 1.0 : 0.0);
    for (int j = c.count; j < c.sld; ++j) c.S[(ptrdiff_t)k * c.sld + j] = 0.0;
  }
  factor_general(c.S, c.sld, c.count, MACHINE, c.row, c.inverse);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
