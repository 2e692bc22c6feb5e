// Gaussian elimination that finds the rank: K = L U with rows and columns permuted, redundant rows left out.
//
// The rows of K are scaled: the diagonal of the Delassus matrix times rho is one. What is left of a redundant row is rounding,
// some 1e-15; the smallest pivot that carries information is that of contacts nearly redundant by geometry. `RANK` lies between.
#pragma once
#include "newton.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double RANK = 1e-10;  // pivots below this share of the first are redundant rows

struct Elimination {
  int n, rank, ld;
  double *U, *L, *inverse;  // U (n, ld) replaces K, zero below its diagonal; L (n, ld): multipliers below the diagonal, else zero
  int *row, *col;           // row i and column i of the factors are row row[i] and column col[i] of K; those from `rank` on are redundant
  double smallest, dropped; // last pivot kept and largest entry left, over the first
  double *sizes, *scratch;

  const double* u(int i) const { return U + (ptrdiff_t)i * ld; }
  const double* l(int i) const { return L + (ptrdiff_t)i * ld; }
};

// Takes multiples of row k off the rows after it, so that column k vanishes there; the multiples are those rows' entries of L. `sizes`
// gets the largest entry of each row then, or that on its diagonal if it is positive. C: blocks of W columns from k / W W to n, or 0 for
// any number of them.
template <int C> [[gnu::noinline]] void clear_below(Elimination& e, int k, bool diagonal) {
  const int n = e.n, first = k / W * W;
  const double* from = e.u(k) + first;
  const Mask after = lane_index() > (double)(k - first);
  Lanes pivot[std::max(C, 1)];
  for (int c = 0; c < std::max(C, 1); ++c) pivot[c] = load(from + c * W);
  for (int i = k + 1; i < n; ++i) {
    double *row = e.U + (ptrdiff_t)i * e.ld, *to = row + first;
    const double x = row[k] * e.inverse[k];
    e.L[(ptrdiff_t)i * e.ld + k] = x;
    Lanes left = after ? load(to) - x * pivot[0] : Lanes{}, most = magnitude(left);
    store(to, left);
    auto clear = [&](int at, Lanes by) {
      left = load(to + at) - x * by;
      store(to + at, left);
      most = larger(magnitude(left), most);
    };
    for (int c = 1; c < C; ++c) clear(c * W, pivot[c]);
    for (int at = W; C == 0 && at < n - first; at += W) clear(at, load(from + at));
    e.sizes[i] = diagonal ? std::max(row[i], 0.0) : largest(most);
  }
}

// `diagonal`: pivots are taken from the diagonal, for a matrix that is positive semidefinite after scaling its rows; else each is the
// largest entry that is left.
inline void eliminate(Elimination& e, bool diagonal) {
  const int n = e.n, ld = e.ld;
  std::memset(e.L, 0, sizeof(double) * n * ld);
  for (int i = 0; i < n; ++i) {
    double* from = e.U + (ptrdiff_t)i * ld;
    e.row[i] = e.col[i] = i;
    for (int j = n; j < ld; ++j) from[j] = 0.0;
    Lanes most = {};
    for (int at = 0; at < n; at += W) most = larger(magnitude(load(from + at)), most);
    e.sizes[i] = diagonal ? std::max(from[i], 0.0) : largest(most);
  }
  double top = 0;
  e.smallest = 1.0, e.dropped = 0.0;
  for (e.rank = 0; e.rank < n; ++e.rank) {
    const int k = e.rank, pr = largest_of(e.sizes, k, n);
    const double size = e.sizes[pr];
    if (k == 0) top = size;
    if (!(size > RANK * top)) {
      e.dropped = top > 0 ? size / top : 0.0;
      return;
    }
    e.smallest = size / top;
    int pc = pr;
    for (int j = n - 1; !diagonal && j >= k; --j)
      if (std::fabs(e.u(pr)[j]) == size) pc = j;
    if (pr != k) {
      std::swap(e.row[k], e.row[pr]), std::swap(e.sizes[k], e.sizes[pr]);
      std::swap_ranges(e.U + (ptrdiff_t)k * ld, e.U + (ptrdiff_t)(k + 1) * ld, e.U + (ptrdiff_t)pr * ld);
      std::swap_ranges(e.L + (ptrdiff_t)k * ld, e.L + (ptrdiff_t)k * ld + k, e.L + (ptrdiff_t)pr * ld);
    }
    if (pc != k) {
      std::swap(e.col[k], e.col[pc]);
      for (int i = 0; i < n; ++i) std::swap(e.U[(ptrdiff_t)i * ld + k], e.U[(ptrdiff_t)i * ld + pc]);
    }
    e.inverse[k] = 1.0 / e.u(k)[k];
    if (k + 1 < n) with_blocks((n + W - 1) / W - k / W, [&](auto C) { clear_below<C.value>(e, k, diagonal); });
  }
}

// A particular solution of K X = R for k columns (a multiple of W). Row i of K belongs to row place[i] of R and of X; R is
// overwritten, and the rows of X of the unknowns that are left out are not touched. left_over and sizes (k), if asked: the
// largest entry of what the redundant rows contradict in each column, and that of the column itself.
inline void solve_eliminated(const Elimination& e, const int* place, double* R, int ldr, int k, double* X, int ldx, double* left_over = nullptr,
                             double* sizes = nullptr) {
  auto right = [&](int pivot) { return R + (ptrdiff_t)place[e.row[pivot]] * ldr; };
  auto unknown = [&](int pivot) { return X + (ptrdiff_t)place[e.col[pivot]] * ldx; };
  auto largest_entries = [&](int from, int at) {
    Lanes most = {};
    for (int i = from; i < e.n; ++i) most = larger(magnitude(load(right(i) + at)), most);
    return most;
  };
  for (int at = 0; left_over && at < k; at += W) store(sizes + at, largest_entries(0, at));
  const int until = left_over ? e.n : e.rank;
  for (int i = 1; i < until; ++i) {
    double* to = right(i);
    const int known = std::min(i, e.rank);
    for (int at = 0; at < k; at += W) {
      Lanes s = load(to + at);
      for (int j = 0; j < known; ++j) s -= e.l(i)[j] * load(right(j) + at);
      store(to + at, s);
    }
  }
  for (int at = 0; left_over && at < k; at += W) store(left_over + at, largest_entries(e.rank, at));
  for (int i = e.rank - 1; i >= 0; --i) {
    const double* from = right(i);
    double* to = unknown(i);
    for (int at = 0; at < k; at += W) {
      Lanes s = load(from + at);
      for (int j = i + 1; j < e.rank; ++j) s -= e.u(i)[j] * load(unknown(j) + at);
      store(to + at, e.inverse[i] * s);
    }
  }
}

// z = U^-1 z for the first `rank` unknowns, in the order of the factors; z (ld) is zero from there on.
inline void back_substitute(const Elimination& e, double* z) {
  for (int i = e.rank - 1; i >= 0; --i) {
    const double right = z[i];
    z[i] = 0.0;
    const int first = i / W * W;
    z[i] = (right - dot(e.u(i) + first, z + first, e.rank - first)) * e.inverse[i];
  }
}

// A particular solution of K x = f for one vector: f and x (ld) by the rows and columns of K, x zero in the unknowns left out.
inline void solve_eliminated(const Elimination& e, const double* f, double* x) {
  double* z = e.scratch;
  std::memset(z, 0, sizeof(double) * e.ld);
  for (int i = 0; i < e.rank; ++i) z[i] = f[e.row[i]] - dot(e.l(i), z, i);
  back_substitute(e, z);
  std::memset(x, 0, sizeof(double) * e.ld);
  for (int i = 0; i < e.rank; ++i) x[e.col[i]] = z[i];
}

// Orthonormal rows from the rows of B (count, ld), in place (Gram and Schmidt, twice).
inline void orthonormalise(double* B, int ld, int count, int n) {
  for (int i = 0; i < count; ++i) {
    double* b = B + (ptrdiff_t)i * ld;
    for (int pass = 0; pass < 2; ++pass) {
      for (int j = 0; j < i; ++j) {
        const double* other = B + (ptrdiff_t)j * ld;
        add(-dot(b, other, n), other, b, n);
      }
      const double size = std::sqrt(dot(b, b, n));
      const double scale = size > 0 ? 1.0 / size : 1.0;
      for (int at = 0; at < n; at += W) store(b + at, scale * load(b + at));
    }
  }
}

// A basis of the null space of K: N (n - rank, ld), one vector a row, not orthogonal.
inline void null_basis(const Elimination& e, double* N, int ld) {
  double* z = e.scratch;
  for (int f = e.rank; f < e.n; ++f) {
    std::memset(z, 0, sizeof(double) * e.ld);
    for (int i = 0; i < e.rank; ++i) z[i] = -e.u(i)[f];
    back_substitute(e, z);
    double* x = N + (ptrdiff_t)(f - e.rank) * ld;
    std::memset(x, 0, sizeof(double) * ld);
    x[e.col[f]] = 1.0;
    for (int i = 0; i < e.rank; ++i) x[e.col[i]] = z[i];
  }
}

// The same, orthonormal.
inline void null_space(const Elimination& e, double* N, int ld) {
  null_basis(e, N, ld);
  orthonormalise(N, ld, e.n - e.rank, e.n);
}

// z = L^-T z for the first `rank` rows, in the order of the factors.
inline void back_substitute_transposed(const Elimination& e, double* z) {
  for (int i = e.rank - 1; i > 0; --i) add(-z[i], e.l(i), z, i);
}

// A basis of the left null space of K, y^T K = 0: Y (n - rank, ld), one vector a row, not orthogonal.
inline void left_null_space(const Elimination& e, double* Y, int ld) {
  double* z = e.scratch;
  for (int f = e.rank; f < e.n; ++f) {
    for (int i = 0; i < e.ld; ++i) z[i] = i < e.rank ? -e.l(f)[i] : 0.0;  // row f of K is a sum of the rows before: that of L_f in those of L
    back_substitute_transposed(e, z);
    double* y = Y + (ptrdiff_t)(f - e.rank) * ld;
    std::memset(y, 0, sizeof(double) * ld);
    y[e.row[f]] = 1.0;
    for (int i = 0; i < e.rank; ++i) y[e.row[i]] = z[i];
  }
}

// y of smallest norm with K^T y = f, f in the range of K^T. left: scratch (n - rank, ld).
inline void solve_transposed(const Elimination& e, const double* f, double* y, double* left, int ld) {
  const int count = e.n - e.rank;
  left_null_space(e, left, ld);
  orthonormalise(left, ld, count, e.n);
  double* z = e.scratch;
  for (int i = 0; i < e.ld; ++i) z[i] = i < e.n ? f[e.col[i]] : 0.0;
  for (int i = 0; i < e.rank; ++i) {  // U^T z = f
    const int first = i / W * W;
    const double known = z[i] * e.inverse[i];
    add(-known, e.u(i) + first, z + first, e.n - first);
    z[i] = known;
  }
  for (int i = e.rank; i < e.ld; ++i) z[i] = 0.0;
  back_substitute_transposed(e, z);
  std::memset(y, 0, sizeof(double) * e.ld);
  for (int i = 0; i < e.rank; ++i) y[e.row[i]] = z[i];
  for (int k = 0; k < count; ++k) {
    const double* v = left + (ptrdiff_t)k * ld;
    add(-dot(v, y, e.n), v, y, e.n);
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
