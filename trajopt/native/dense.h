// Dense linear algebra of the contact solve on row-major arrays with padded, 64-byte aligned rows.
//
// Sizes are those of one contact problem, 3 to 200 rows. Padding columns take part in the vector operations and have to be
// finite; nothing reads what is written into them.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
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
// Pivots below `least` (they are not, but for rounding) become it. With fewer `pivots` than n the upper triangle of the other rows becomes
// the Schur complement.
inline void factor_symmetric(double* A, int ld, int n, int pivots, double least, double* inverse) {
  for (int k = 0; k < pivots; ++k) {
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

// From `factor_symmetric`: x = U^-T D x of the pivots; what is left of the other entries is the right-hand side of the Schur complement.
// x is padded.
inline void substitute_forward(const double* U, int ld, int n, int pivots, const double* inverse, double* x) {
  for (int i = n; i % W; ++i) x[i] = 0.0;
  for (int k = 0; k < pivots; ++k) {
    const double* row = U + (ptrdiff_t)k * ld;
    const double y = x[k] * inverse[k];
    const int first = k / W * W;
    const Lanes after = lane_index() > (double)(k - first) ? load(row + first) : Lanes{};
    store(x + first, load(x + first) - y * after);
    for (int at = first + W; at < n; at += W) store(x + at, load(x + at) - y * load(row + at));
  }
  for (int i = n; i % W; ++i) x[i] = 0.0;
}

// x = U^-1 x of the pivots, the other entries being known.
inline void substitute_back(const double* U, int ld, int n, int pivots, const double* inverse, double* x) {
  for (int k = pivots - 1; k >= 0; --k) {
    const double* row = U + (ptrdiff_t)k * ld;
    const int first = k / W * W;
    Lanes s = lane_index() > (double)(k - first) ? load(row + first) * load(x + first) : Lanes{};
    for (int at = first + W; at < n; at += W) s += load(row + at) * load(x + at);
    x[k] = (x[k] - sum(s)) * inverse[k];
  }
}

constexpr int BLOCKS = 8;  // of W numbers that stay in registers

// f(Count<C>) with C = blocks, or 0 where those are more than `BLOCKS`.
template <int C = 1, class F>
inline void with_blocks(int blocks, F&& f) {
  if (blocks == C) return f(Count<C>{});
  if constexpr (C < BLOCKS) with_blocks<C + 1>(blocks, f);
  else f(Count<0>{});
}

// A (n, n), transposed in place.
inline void transpose(double* A, int ld, int n) {
  const int whole = n / W * W;
  alignas(64) double block[W * W];
  for (int i = 0; i < whole; i += W)
    for (int j = 0; j <= i; j += W) {
      double *below = A + (ptrdiff_t)i * ld + j, *above = A + (ptrdiff_t)j * ld + i;
      transpose(below, ld, block, W);
      transpose(above, ld, below, ld);
      for (int r = 0; r < W; ++r) store(above + (ptrdiff_t)r * ld, load(block + r * W));
    }
  for (int i = whole; i < n; ++i)
    for (int j = 0; j < i; ++j) std::swap(A[(ptrdiff_t)i * ld + j], A[(ptrdiff_t)j * ld + i]);
}

// Subtracts multiples of row k from the rows after it, so that column k vanishes there, and puts the multiples in its place.
// `sizes` (n) gets what is in column k + 1 then, without sign. C: blocks of W columns from k / W W to n, or 0 for any number of them.
// Not inlined: the registers of all C at once are more than there are.
template <int C>
[[gnu::noinline]] void clear_column(double* A, int ld, int n, int k, double inverse, double* sizes) {
  const int first = k / W * W;
  const double* from = A + (ptrdiff_t)k * ld + first;
  Lanes pivot[std::max(C, 1)];
  pivot[0] = lane_index() > (double)(k - first) ? load(from) : Lanes{};
  for (int c = 1; c < C; ++c) pivot[c] = load(from + c * W);
  for (int r = k + 1; r < n; ++r) {
    double *row = A + (ptrdiff_t)r * ld, *to = row + first;
    const double x = row[k] * inverse;
    store(to, load(to) - x * pivot[0]);
    for (int c = 1; c < C; ++c) store(to + c * W, load(to + c * W) - x * pivot[c]);
    for (int at = W; C == 0 && at < n - first; at += W) store(to + at, load(to + at) - x * load(from + at));
    row[k] = x;
    sizes[r] = std::fabs(row[k + 1]);
  }
}

// The first of the largest of sizes[from..to), which have no sign: then they are ordered as the integers of the same bits are.
inline int largest_of(const double* sizes, int from, int to) {
  int64_t most = -1;
  int best = from;
  for (int r = from; r < to; ++r) most = std::max(most, std::bit_cast<int64_t>(sizes[r]));
  for (int r = to - 1; r >= from; --r) best = std::bit_cast<int64_t>(sizes[r]) == most ? r : best;
  return best;
}

// P A = L U with partial pivoting, in place of A (n, n): row i of the factors is row `row[i]` of A, and they are kept by columns, entry
// (i, j) at j ld + i. `inverse` gets the reciprocal pivots. Pivots that are zero become `least`. Returns the smallest pivot.
inline double factor_general(double* A, int ld, int n, double least, int* row, double* inverse) {
  double smallest = HUGE_VAL;
  double* sizes = inverse;  // from k on, where no reciprocal is yet
  for (int r = 0; r < n; ++r) row[r] = r, sizes[r] = std::fabs(A[(ptrdiff_t)r * ld]);
  for (int k = 0; k < n; ++k) {
    const int best = largest_of(sizes, k, n);
    const double size = sizes[best];
    double *pivot = A + (ptrdiff_t)k * ld, *other = A + (ptrdiff_t)best * ld;
    if (best != k) {
      std::swap(row[k], row[best]);
      for (int at = 0; at < n; at += W) {
        const Lanes a = load(pivot + at), b = load(other + at);
        store(pivot + at, b), store(other + at, a);
      }
    }
    if (!(size > least)) pivot[k] = pivot[k] < 0 ? -least : least;
    smallest = std::min(smallest, size);
    inverse[k] = 1.0 / pivot[k];
    if (k + 1 < n) with_blocks((n + W - 1) / W - k / W, [&](auto C) { clear_column<C.value>(A, ld, n, k, inverse[k], sizes); });
  }
  transpose(A, ld, n);
  return smallest;
}

// x = U^-1 L^-1 x for factors of C blocks of W rows, x in registers.
template <int C>
void solve_factored(const double* LU, int ld, int n, const double* inverse, double* x) {
  Lanes y[C];
  for (int c = 0; c < C; ++c) y[c] = load(x + c * W);
#pragma GCC unroll 8
  for (int b = 0; b < C; ++b)
#pragma GCC unroll 8
    for (int l = 0; l < W; ++l) {
      const int k = b * W + l;
      if (k >= n) break;
      const double* column = LU + (ptrdiff_t)k * ld;
      const Lanes known = splat(y[b][l]);
      y[b] -= known * (lane_index() > (double)l ? load(column + b * W) : Lanes{});
      for (int c = b + 1; c < C; ++c) y[c] -= known * load(column + c * W);
    }
#pragma GCC unroll 8
  for (int b = C - 1; b >= 0; --b)
#pragma GCC unroll 8
    for (int l = W - 1; l >= 0; --l) {
      const int k = b * W + l;
      if (k >= n) continue;
      const double* column = LU + (ptrdiff_t)k * ld;
      x[k] = y[b][l] * inverse[k];
      const Lanes known = splat(x[k]);
      y[b] -= known * (lane_index() < (double)l ? load(column + b * W) : Lanes{});
      for (int c = 0; c < b; ++c) y[c] -= known * load(column + c * W);
    }
}

// The same for any number of rows.
template <>
inline void solve_factored<0>(const double* LU, int ld, int n, const double* inverse, double* x) {
  for (int k = 0; k < n; ++k)
    for (int r = k + 1; r < n; ++r) x[r] -= LU[(ptrdiff_t)k * ld + r] * x[k];
  for (int k = n - 1; k >= 0; --k) {
    x[k] *= inverse[k];
    for (int r = 0; r < k; ++r) x[r] -= LU[(ptrdiff_t)k * ld + r] * x[k];
  }
}

// x = A^-1 f from `factor_general`; x is not f, and is padded.
inline void solve_general(const double* LU, int ld, int n, const int* row, const double* inverse, const double* f, double* x) {
  for (int k = 0; k < n; ++k) x[k] = f[row[k]];
  for (int k = n; k < padded(n); ++k) x[k] = 0.0;
  with_blocks((n + W - 1) / W, [&](auto C) { solve_factored<C.value>(LU, ld, n, inverse, x); });
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
