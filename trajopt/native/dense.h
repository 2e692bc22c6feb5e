// Dense linear algebra of the contact solve on row-major arrays with padded, 64-byte aligned rows.
//
// Sizes are those of one contact problem, 3 to 200 rows. Padding columns take part in the vector operations and have to be
// finite; nothing reads what is written into them.
#pragma once
#include <algorithm>
#include <cstring>

#include "lanes.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

template <int C>
inline void combine_columns(const double* A, int stride, int rows, const double* x, const double* base, double* y) {
  Lanes even[C], odd[C];
  for (int c = 0; c < C; ++c) even[c] = load(base + c * W), odd[c] = Lanes{};
  int s = 0;
  for (; s + 2 <= rows; s += 2) {
    const double *one = A + (ptrdiff_t)s * stride, *two = one + stride;
    for (int c = 0; c < C; ++c) even[c] += x[s] * load(one + c * W), odd[c] += x[s + 1] * load(two + c * W);
  }
  if (s < rows)
    for (int c = 0; c < C; ++c) even[c] += x[s] * load(A + (ptrdiff_t)s * stride + c * W);
  for (int c = 0; c < C; ++c) store(y + c * W, even[c] + odd[c]);
}

// y = base + A^T x, with A (rows, width); for a symmetric A base + A x. y may be base, not x.
inline void combine(const double* A, int stride, int rows, int width, const double* x, const double* base, double* y) {
  int at = 0;
  for (; at + 4 * W <= width; at += 4 * W) combine_columns<4>(A + at, stride, rows, x, base + at, y + at);
  if (at + 2 * W <= width) combine_columns<2>(A + at, stride, rows, x, base + at, y + at), at += 2 * W;
  if (at < width) combine_columns<1>(A + at, stride, rows, x, base + at, y + at);
}

// Both are padded and aligned, with zeros (in one of the two) from n on.
inline double dot(const double* a, const double* b, int n) {
  Lanes s = {};
  for (int at = 0; at < n; at += W) s += load(a + at) * load(b + at);
  return sum(s);
}

// a += share b, padded and aligned.
inline void add(double share, const double* b, double* a, int n) {
  for (int at = 0; at < n; at += W) store(a + at, load(a + at) + share * load(b + at));
}

// A = U^T D^-1 U of a symmetric positive definite A (n, n) whose upper triangle is given; U replaces it, `inverse` gets 1 / D.
// Pivots below `least` (they are not, but for rounding) become it.
inline void factor_symmetric(double* A, int ld, int n, double least, double* inverse) {
  for (int k = 0; k < n; ++k) {
    double* row = A + (ptrdiff_t)k * ld;
    const double pivot = row[k] > least ? row[k] : least;
    row[k] = pivot;
    inverse[k] = 1.0 / pivot;
    for (int r = k + 1; r < n; ++r) {
      const double x = row[r] * inverse[k];
      if (x == 0.0) continue;
      double* target = A + (ptrdiff_t)r * ld;
      for (int at = r / W * W; at < n; at += W) store(target + at, load(target + at) - x * load(row + at));
    }
  }
}

// x = A^-1 f from `factor_symmetric`; x may be f, and is padded.
inline void solve_symmetric(const double* U, int ld, int n, const double* inverse, const double* f, double* x) {
  if (x != f) std::memcpy(x, f, sizeof(double) * n);
  for (int i = n; i % W; ++i) x[i] = 0.0;
  for (int k = 0; k < n; ++k) {  // U^T D^-1 y = f
    const double* row = U + (ptrdiff_t)k * ld;
    const double y = x[k] * inverse[k];
    const int first = k / W * W;
    const Lanes after = lane_index() > (double)(k - first) ? load(row + first) : Lanes{};
    store(x + first, load(x + first) - y * after);
    for (int at = first + W; at < n; at += W) store(x + at, load(x + at) - y * load(row + at));
  }
  for (int i = n; i % W; ++i) x[i] = 0.0;
  for (int k = n - 1; k >= 0; --k) {  // U x = y
    const double* row = U + (ptrdiff_t)k * ld;
    const int first = k / W * W;
    Lanes s = lane_index() > (double)(k - first) ? load(row + first) * load(x + first) : Lanes{};
    for (int at = first + W; at < n; at += W) s += load(row + at) * load(x + at);
    x[k] = (x[k] - sum(s)) * inverse[k];
  }
}

// P A = L U with partial pivoting: row i of the factors is row `row[i]` of A; `inverse` gets the reciprocal pivots. Pivots that
// are zero become `least`. Returns the smallest pivot.
inline double factor_general(double* A, int ld, int n, double least, int* row, double* inverse) {
  double smallest = HUGE_VAL;
  for (int r = 0; r < n; ++r) row[r] = r;
  for (int k = 0; k < n; ++k) {
    int best = k;
    double size = std::fabs(A[(ptrdiff_t)row[k] * ld + k]);
    for (int r = k + 1; r < n; ++r) {
      const double other = std::fabs(A[(ptrdiff_t)row[r] * ld + k]);
      if (other > size) size = other, best = r;
    }
    std::swap(row[k], row[best]);
    double* pivot = A + (ptrdiff_t)row[k] * ld;
    if (!(size > least)) pivot[k] = pivot[k] < 0 ? -least : least;
    smallest = std::min(smallest, size);
    inverse[k] = 1.0 / pivot[k];
    const int first = k / W * W;
    const Lanes head = lane_index() > (double)(k - first) ? load(pivot + first) : Lanes{};
    for (int r = k + 1; r < n; ++r) {
      double* target = A + (ptrdiff_t)row[r] * ld;
      if (target[k] == 0.0) continue;
      const double x = target[k] * inverse[k];
      store(target + first, load(target + first) - x * head);
      target[k] = x;
      for (int at = first + W; at < n; at += W) store(target + at, load(target + at) - x * load(pivot + at));
    }
  }
  return smallest;
}

constexpr int BY_COLUMNS = 40;  // rows, up to which single columns cost less than the sums over lanes that rows need one after the other

// x = A^-1 f from `factor_general`; x is not f.
inline void solve_general(const double* LU, int ld, int n, const int* row, const double* inverse, const double* f, double* x) {
  if (n <= BY_COLUMNS) {
    for (int k = 0; k < n; ++k) x[k] = f[row[k]];
    for (int k = n; k < padded(n); ++k) x[k] = 0.0;
    for (int k = 0; k < n; ++k)
      for (int r = k + 1; r < n; ++r) x[r] -= LU[(ptrdiff_t)row[r] * ld + k] * x[k];
    for (int k = n - 1; k >= 0; --k) {
      x[k] *= inverse[k];
      for (int r = 0; r < k; ++r) x[r] -= LU[(ptrdiff_t)row[r] * ld + k] * x[k];
    }
    return;
  }
  std::memset(x, 0, sizeof(double) * padded(n));
  for (int k = 0; k < n; ++k) {
    const double* from = LU + (ptrdiff_t)row[k] * ld;
    Lanes s = {};
    for (int at = 0; at < k; at += W) s += load(from + at) * load(x + at);  // x is zero from k on
    x[k] = f[row[k]] - sum(s);
  }
  for (int k = n - 1; k >= 0; --k) {
    const double* from = LU + (ptrdiff_t)row[k] * ld;
    const int first = k / W * W;
    Lanes s = lane_index() > (double)(k - first) ? load(from + first) * load(x + first) : Lanes{};
    for (int at = first + W; at < n; at += W) s += load(from + at) * load(x + at);
    x[k] = (x[k] - sum(s)) * inverse[k];
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
