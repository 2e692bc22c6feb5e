// Contacts that friction can jam (docs/contact-semantics.md, "Contacts that can jam"; trajopt/dynamics/contact/jam.py).
#pragma once
#include <cmath>

#include "lanes.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double SINGULAR = 1e-12;  // eigenvalue of J J^T over its trace from which on it counts as zero: singular values below 1e-6

// Whether a force in the friction cone, |d_t| <= mu d_n, moves nothing, J^T d = 0. A: J J^T of the contact's three rows (tangent 1,
// tangent 2, normal).
inline bool jams(const double (&A)[3][3], double mu) {
  const double trace = A[0][0] + A[1][1] + A[2][2];
  double C[3][3];  // cofactors: the product of the two other eigenvalues along each eigenvector
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) {
      const int a = (i + 1) % 3, b = (i + 2) % 3, c = (j + 1) % 3, d = (j + 2) % 3;
      C[i][j] = A[a][c] * A[b][d] - A[a][d] * A[b][c];
    }
  const double pairs = C[0][0] + C[1][1] + C[2][2];
  const double determinant = A[0][0] * C[0][0] + A[0][1] * C[0][1] + A[0][2] * C[0][2];
  auto longest = [](const double (&M)[3][3]) { return M[0][0] >= M[1][1] && M[0][0] >= M[2][2] ? 0 : M[1][1] >= M[2][2] ? 1 : 2; };
  if (!(trace > 0)) return true;
  if (pairs <= SINGULAR * trace * trace) {  // one direction w in which the bodies can move: d is any orthogonal to it
    const double* w = A[longest(A)];
    return std::fabs(w[2]) <= mu * std::hypot(w[0], w[1]);
  }
  if (determinant > SINGULAR * trace * pairs) return false;
  const double* d = C[longest(C)];
  return std::hypot(d[0], d[1]) <= mu * std::fabs(d[2]);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
