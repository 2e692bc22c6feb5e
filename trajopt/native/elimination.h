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
  double *U, *L, *inverse;  // U (n, ld) replaces K; L (n, ld) multipliers; both by permuted rows
  int *row, *col;           // pivot k is entry (row[k], col[k]); rows and columns from `rank` on are the redundant ones
  double smallest, dropped; // last pivot kept and largest entry left, over the first
  double *alive, *scratch;
};

// `diagonal`: pivots are taken from the diagonal, for a matrix that is positive semidefinite after scaling its rows.
inline void eliminate(Elimination& e, bool diagonal) {
  const int n = e.n, ld = e.ld;
  for (int i = 0; i < n; ++i) e.row[i] = e.col[i] = i;
  for (int i = 0; i < ld; ++i) e.alive[i] = i < n ? 1.0 : 0.0;
  double first = 0;
  e.smallest = 1.0, e.dropped = 0.0;
  for (e.rank = 0; e.rank < n; ++e.rank) {
    const int k = e.rank;
    int pr = k, pc = k;
    double size = -1;
    for (int a = k; a < n; ++a) {
      const double* from = e.U + (ptrdiff_t)e.row[a] * ld;
      if (diagonal) {
        if (from[e.row[a]] > size) size = from[e.row[a]], pr = pc = a;
        continue;
      }
      Lanes most = {};
      for (int at = 0; at < n; at += W) {
        const Lanes v = magnitude(load(from + at)) * load(e.alive + at);
        most = v > most ? v : most;
      }
      if (largest(most) > size) size = largest(most), pr = a;
    }
    if (k == 0) first = size;
    if (!(size > RANK * first)) {
      e.dropped = first > 0 ? std::max(size, 0.0) / first : 0.0;
      return;
    }
    if (!diagonal) {
      const double* from = e.U + (ptrdiff_t)e.row[pr] * ld;
      double most = -1;
      for (int c = k; c < n; ++c)
        if (std::fabs(from[e.col[c]]) > most) most = std::fabs(from[e.col[c]]), pc = c;
    }
    e.smallest = size / first;
    std::swap(e.row[k], e.row[pr]);
    std::swap(e.col[k], e.col[pc]);
    const int c = e.col[k];
    const double* pivot = e.U + (ptrdiff_t)e.row[k] * ld;
    e.inverse[k] = 1.0 / pivot[c];
    e.alive[c] = 0.0;
    for (int a = k + 1; a < n; ++a) {
      double* target = e.U + (ptrdiff_t)e.row[a] * ld;
      const double x = target[c] * e.inverse[k];
      e.L[(ptrdiff_t)e.row[a] * ld + k] = x;
      if (x == 0.0) continue;
      for (int at = 0; at < n; at += W) store(target + at, load(target + at) - x * load(pivot + at));
    }
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
    for (int i = from; i < e.n; ++i) {
      const Lanes v = magnitude(load(right(i) + at));
      most = v > most ? v : most;
    }
    return most;
  };
  for (int at = 0; left_over && at < k; at += W) store(sizes + at, largest_entries(0, at));
  const int until = left_over ? e.n : e.rank;
  for (int i = 1; i < until; ++i) {
    double* to = right(i);
    const double* L = e.L + (ptrdiff_t)e.row[i] * e.ld;
    const int known = std::min(i, e.rank);
    for (int at = 0; at < k; at += W) {
      Lanes s = load(to + at);
      for (int j = 0; j < known; ++j) s -= L[j] * load(right(j) + at);
      store(to + at, s);
    }
  }
  for (int at = 0; left_over && at < k; at += W) store(left_over + at, largest_entries(e.rank, at));
  for (int i = e.rank - 1; i >= 0; --i) {
    const double* U = e.U + (ptrdiff_t)e.row[i] * e.ld;
    const double* from = right(i);
    double* to = unknown(i);
    for (int at = 0; at < k; at += W) {
      Lanes s = load(from + at);
      for (int j = i + 1; j < e.rank; ++j) s -= U[e.col[j]] * load(unknown(j) + at);
      store(to + at, e.inverse[i] * s);
    }
  }
}

// A particular solution of K x = f for one vector: f and x (ld) by the rows and columns of K, x zero in the unknowns left out.
inline void solve_eliminated(const Elimination& e, const double* f, double* x) {
  double* z = e.scratch;
  for (int i = 0; i < e.rank; ++i) {
    const double* L = e.L + (ptrdiff_t)e.row[i] * e.ld;
    z[i] = f[e.row[i]];
    for (int j = 0; j < i; ++j) z[i] -= L[j] * z[j];
  }
  std::memset(x, 0, sizeof(double) * e.ld);
  for (int i = e.rank - 1; i >= 0; --i) {
    const double* U = e.U + (ptrdiff_t)e.row[i] * e.ld;
    double s = z[i];
    for (int j = i + 1; j < e.rank; ++j) s -= U[e.col[j]] * x[e.col[j]];
    x[e.col[i]] = e.inverse[i] * s;
  }
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

// An orthonormal basis of the null space of K: N (n - rank, ld), one vector a row.
inline void null_space(const Elimination& e, double* N, int ld) {
  for (int f = e.rank; f < e.n; ++f) {
    double* x = N + (ptrdiff_t)(f - e.rank) * ld;
    std::memset(x, 0, sizeof(double) * ld);
    x[e.col[f]] = 1.0;
    for (int i = e.rank - 1; i >= 0; --i) {
      const double* U = e.U + (ptrdiff_t)e.row[i] * e.ld;
      double s = -U[e.col[f]];
      for (int j = i + 1; j < e.rank; ++j) s -= U[e.col[j]] * x[e.col[j]];
      x[e.col[i]] = s * e.inverse[i];
    }
  }
  orthonormalise(N, ld, e.n - e.rank, e.n);
}

// A basis of the left null space of K, y^T K = 0: Y (n - rank, ld), one vector a row, not orthogonal.
inline void left_null_space(const Elimination& e, double* Y, int ld) {
  for (int f = e.rank; f < e.n; ++f) {
    double* y = Y + (ptrdiff_t)(f - e.rank) * ld;
    const double* L = e.L + (ptrdiff_t)e.row[f] * e.ld;
    std::memset(y, 0, sizeof(double) * ld);
    y[e.row[f]] = 1.0;
    for (int i = e.rank - 1; i >= 0; --i) {  // row f of K is a sum of the rows before: that of L_f in those of L
      double s = L[i];
      for (int j = i + 1; j < e.rank; ++j) s += y[e.row[j]] * e.L[(ptrdiff_t)e.row[j] * e.ld + i];
      y[e.row[i]] = -s;
    }
  }
}

// y of smallest norm with K^T y = f, f in the range of K^T. left: scratch (n - rank, ld).
inline void solve_transposed(const Elimination& e, const double* f, double* y, double* left, int ld) {
  double* z = e.scratch;
  for (int i = 0; i < e.rank; ++i) {  // U^T z = f
    double s = f[e.col[i]];
    for (int j = 0; j < i; ++j) s -= e.U[(ptrdiff_t)e.row[j] * e.ld + e.col[i]] * z[j];
    z[i] = s * e.inverse[i];
  }
  std::memset(y, 0, sizeof(double) * e.ld);
  for (int i = e.rank - 1; i >= 0; --i) {  // L^T y = z
    double s = z[i];
    for (int j = i + 1; j < e.rank; ++j) s -= e.L[(ptrdiff_t)e.row[j] * e.ld + i] * y[e.row[j]];
    y[e.row[i]] = s;
  }
  for (int k = e.rank; k < e.n; ++k) {  // the null space of K^T
    double* v = left + (ptrdiff_t)(k - e.rank) * ld;
    std::memset(v, 0, sizeof(double) * ld);
    v[e.row[k]] = 1.0;
    for (int i = e.rank - 1; i >= 0; --i) {
      double s = -e.L[(ptrdiff_t)e.row[k] * e.ld + i];
      for (int j = i + 1; j < e.rank; ++j) s -= e.L[(ptrdiff_t)e.row[j] * e.ld + i] * v[e.row[j]];
      v[e.row[i]] = s;
    }
  }
  orthonormalise(left, ld, e.n - e.rank, e.n);
  for (int k = 0; k < e.n - e.rank; ++k) {
    const double* v = left + (ptrdiff_t)k * ld;
    add(-dot(v, y, e.n), v, y, e.n);
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
