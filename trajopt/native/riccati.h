// The backward pass of a time-varying linear-quadratic problem (trajopt/solvers/subproblems/riccati.py, whose letters these are), and
// the box-constrained minimisation over the controls of a step (box_qp.py), with the same rules.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "vector.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Rules of box_qp.py.
constexpr int BOX_ITERATIONS = 50, BOX_TRIALS = 30;
constexpr double BOX_ARMIJO = 0.1, BOX_SHRINK = 0.6, BOX_ACCURACY = 100.0;

struct LQStep { const double *A, *B, *d, *Q, *R, *S, *q, *r, *lower, *upper; };  // lower, upper: null without bounds
struct PolicyOut { double *K, *k, *P, *p; };

// Matrices with padded rows, and vectors, of one recursion.
class RiccatiWork {
 public:
  RiccatiWork() = default;
  RiccatiWork(const RiccatiWork&) = delete;
  RiccatiWork& operator=(const RiccatiWork&) = delete;

  // Room for n states and m controls, zeroed; allocates only where there was less.
  void reserve(int states, int controls) {
    n = states, m = controls, ldn = padded(n), ldm = padded(m);
    const size_t square = size_t(n) * ldn, wide = size_t(n) * ldm, flat = size_t(m) * ldn, small = size_t(m) * ldm;
    double** matrices[] = {&A, &P, &PA, &F, &B, &PB, &G, &K, &T, &H, &L};
    const size_t sizes[] = {square, square, square, square, wide, wide, flat, flat, flat, small, small};
    size_t total = 0;
    for (size_t s : sizes) total += padded(s);
    store_.assign(total + 8 * (ldn + ldm) + PADDING, 0.0);
    double* at = store_.data();
    while (reinterpret_cast<uintptr_t>(at) % 64) ++at;
    for (int i = 0; i < 11; ++i) *matrices[i] = at, at += padded(sizes[i]);
    double** vectors[] = {&p, &f, &w, &g, &k, &x, &trial, &direction, &gradient, &Hk};
    const int lengths[] = {ldn, ldn, ldn, ldm, ldm, ldm, ldm, ldm, ldm, ldm};
    for (int i = 0; i < 10; ++i) *vectors[i] = at, at += lengths[i];
    free.assign(m, 1);
  }
  int n = 0, m = 0, ldn = 0, ldm = 0;
  double *A, *P, *PA, *F, *B, *PB, *G, *K, *T, *H, *L, *p, *f, *w, *g, *k, *x, *trial, *direction, *gradient, *Hk;
  std::vector<char> free;

 private:
  std::vector<double> store_;
};

// L L^T = H over the free controls, the identity elsewhere; false where H is not positive definite there.
inline bool factorise_free(RiccatiWork& w) {
  for (int i = 0; i < w.m; ++i) {
    double* row = w.L + i * w.ldm;
    for (int j = 0; j <= i; ++j) {
      const double* other = w.L + j * w.ldm;
      double sum = w.free[i] && w.free[j] ? w.H[i * w.ldm + j] : (i == j ? 1.0 : 0.0);
      for (int c = 0; c < j; ++c) sum -= row[c] * other[c];
      if (i != j) row[j] = sum / other[j];
      else if (!(sum > 0)) return false;
      else row[i] = std::sqrt(sum);
    }
  }
  return true;
}

// X = -(L L^T)^-1 Y over the free rows, zero elsewhere; Y and X (m, columns), columns padded.
inline void solve_free(const RiccatiWork& w, const double* Y, double* X, int columns) {
  for (int i = 0; i < w.m; ++i) {
    double* row = X + i * columns;
    for (int c = 0; c < columns; c += LANES) store(row + c, w.free[i] ? -load(Y + i * columns + c) : vec{});
    for (int j = 0; j < i; ++j)
      if (const double share = w.L[i * w.ldm + j]; share != 0)
        for (int c = 0; c < columns; c += LANES) store(row + c, load(row + c) - share * load(X + j * columns + c));
    const double inverse = 1 / w.L[i * w.ldm + i];
    for (int c = 0; c < columns; c += LANES) store(row + c, inverse * load(row + c));
  }
  for (int i = w.m - 1; i >= 0; --i) {
    double* row = X + i * columns;
    for (int j = i + 1; j < w.m; ++j)
      if (const double share = w.L[j * w.ldm + i]; share != 0)
        for (int c = 0; c < columns; c += LANES) store(row + c, load(row + c) - share * load(X + j * columns + c));
    const double inverse = 1 / w.L[i * w.ldm + i];
    for (int c = 0; c < columns; c += LANES) store(row + c, inverse * load(row + c));
  }
  for (int i = 0; i < w.m; ++i)
    if (!w.free[i]) std::memset(X + i * columns, 0, sizeof(double) * columns);
}

inline void solve_free_vector(const RiccatiWork& w, const double* y, double* x) {
  for (int i = 0; i < w.m; ++i) {
    double sum = w.free[i] ? -y[i] : 0.0;
    for (int j = 0; j < i; ++j) sum -= w.L[i * w.ldm + j] * x[j];
    x[i] = sum / w.L[i * w.ldm + i];
  }
  for (int i = w.m - 1; i >= 0; --i) {
    double sum = x[i];
    for (int j = i + 1; j < w.m; ++j) sum -= w.L[j * w.ldm + i] * x[j];
    x[i] = sum / w.L[i * w.ldm + i];
  }
  for (int i = 0; i < w.m; ++i)
    if (!w.free[i]) x[i] = 0;
}

inline double inner(const double* a, const double* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// y = M x, M (m, m) with rows of ldm.
inline void times(const RiccatiWork& w, const double* M, const double* x, double* y) {
  for (int i = 0; i < w.m; ++i) y[i] = inner(M + i * w.ldm, x, w.m);
}

inline double box_value(RiccatiWork& w, const double* x) {
  times(w, w.H, x, w.Hk);
  return 0.5 * inner(x, w.Hk, w.m) + inner(x, w.g, w.m);
}

// The gradient at x, which controls are free there, and whether the free gradient is rounding.
inline bool box_face(RiccatiWork& w, const double* lower, const double* upper) {
  bool done = true;
  for (int i = 0; i < w.m; ++i) {
    const double* row = w.H + i * w.ldm;
    double noise = std::fabs(w.g[i]), slope = 0;
    for (int j = 0; j < w.m; ++j) slope += row[j] * w.x[j], noise += std::fabs(row[j]) * std::fabs(w.x[j]);
    w.gradient[i] = slope + w.g[i];
    const bool held = (w.x[i] <= lower[i] && w.gradient[i] > 0) || (w.x[i] >= upper[i] && w.gradient[i] < 0);
    w.free[i] = !held;
    done &= held || std::fabs(w.gradient[i]) <= BOX_ACCURACY * std::numeric_limits<double>::epsilon() * noise;
  }
  return done;
}

inline double clipped(double x, double lower, double upper) { return x < lower ? lower : x > upper ? upper : x; }

// min 1/2 x^T H x + g^T x within the bounds, from w.k, into w.x, with the factor over the free controls; false where H is not
// positive definite over them.
inline bool minimise_in_box(RiccatiWork& w, const double* lower, const double* upper) {
  const double least = std::pow(BOX_SHRINK, BOX_TRIALS);
  for (int i = 0; i < w.m; ++i) w.x[i] = clipped(w.k[i], lower[i], upper[i]);
  bool done = box_face(w, lower, upper);
  for (int iteration = 0; !done && iteration < BOX_ITERATIONS; ++iteration) {
    if (!factorise_free(w)) return false;
    solve_free_vector(w, w.gradient, w.direction);
    const double before = box_value(w, w.x);
    double step = 1, value;
    while (true) {
      double fall = 0;
      for (int i = 0; i < w.m; ++i) {
        w.trial[i] = clipped(w.x[i] + step * w.direction[i], lower[i], upper[i]);
        fall += w.gradient[i] * (w.x[i] - w.trial[i]);
      }
      value = box_value(w, w.trial);
      if (!(value > before - BOX_ARMIJO * fall && step > least)) break;
      step *= BOX_SHRINK;
    }
    const bool better = value < before;
    if (better) std::memcpy(w.x, w.trial, sizeof(double) * w.m);
    done = box_face(w, lower, upper) || !better;
  }
  return factorise_free(w);
}

inline void pad_rows(const double* from, int rows, int columns, double* to, int ld) {
  for (int i = 0; i < rows; ++i) std::memcpy(to + i * ld, from + i * columns, sizeof(double) * columns);
}
inline void unpad_rows(const double* from, int ld, int rows, int columns, double* to) {
  for (int i = 0; i < rows; ++i) std::memcpy(to + i * columns, from + i * ld, sizeof(double) * columns);
}

// What a pass adds up: c, slope and curvature of `Policy`.
struct Sums { double c = 0, slope = 0, bend = 0; };

// One step of the recursion: w.P, w.p and w.k are those of t + 1 and become those of t. False where it is not convex.
inline bool riccati_step(RiccatiWork& w, const LQStep& in, const PolicyOut& out, Sums& sums) {
  const int n = w.n, m = w.m, N = w.ldn, M = w.ldm;
  pad_rows(in.A, n, n, w.A, N), pad_rows(in.B, n, m, w.B, M), pad_rows(in.Q, n, n, w.F, N), pad_rows(in.R, m, m, w.H, M);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) w.G[i * N + j] = in.S[j * m + i];
  product(n, N, w.PA, N, nullptr, 0, {w.P, N, 1}, w.A, N, n, 1.0);
  product(n, M, w.PB, M, nullptr, 0, {w.P, N, 1}, w.B, M, n, 1.0);
  product(n, N, w.F, N, w.F, N, {w.A, 1, N}, w.PA, N, n, 1.0);
  product(m, N, w.G, N, w.G, N, {w.B, 1, M}, w.PA, N, n, 1.0);
  product(m, M, w.H, M, w.H, M, {w.B, 1, M}, w.PB, M, n, 1.0);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < i; ++j) w.H[i * M + j] = w.H[j * M + i] = 0.5 * (w.H[i * M + j] + w.H[j * M + i]);
  double gap = 0;
  for (int i = 0; i < n; ++i) {
    const double Pd = inner(w.P + i * N, in.d, n);
    w.w[i] = w.p[i] + Pd, gap += in.d[i] * (w.p[i] + 0.5 * Pd);
  }
  std::memcpy(w.f, in.q, sizeof(double) * n), std::memcpy(w.g, in.r, sizeof(double) * m);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) w.f[j] += w.A[i * N + j] * w.w[i];
    for (int j = 0; j < m; ++j) w.g[j] += w.B[i * M + j] * w.w[i];
  }
  if (in.lower) {
    if (!minimise_in_box(w, in.lower, in.upper)) return false;
    std::memcpy(w.k, w.x, sizeof(double) * m);
  } else {
    std::fill(w.free.begin(), w.free.end(), 1);
    if (!factorise_free(w)) return false;
    solve_free_vector(w, w.g, w.k);
  }
  solve_free(w, w.G, w.K, N);
  product(m, N, w.T, N, w.G, N, {w.H, M, 1}, w.K, N, m, 1.0);  // H K + G
  product(n, N, w.F, N, w.F, N, {w.K, 1, N}, w.T, N, m, 1.0);
  product(n, N, w.F, N, w.F, N, {w.G, 1, N}, w.K, N, m, 1.0);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j <= i; ++j) w.P[i * N + j] = w.P[j * N + i] = 0.5 * (w.F[i * N + j] + w.F[j * N + i]);
  times(w, w.H, w.k, w.Hk);
  const double down = inner(w.k, w.g, m), turn = inner(w.k, w.Hk, m);
  sums.c += gap + down + 0.5 * turn, sums.slope += down, sums.bend += turn;
  std::memcpy(w.p, w.f, sizeof(double) * n);
  for (int i = 0; i < m; ++i) {
    const double share = w.Hk[i] + w.g[i];
    for (int j = 0; j < n; ++j) w.p[j] += w.K[i * N + j] * share + w.G[i * N + j] * w.k[i];
  }
  unpad_rows(w.K, N, m, n, out.K), unpad_rows(w.P, N, n, n, out.P);
  std::memcpy(out.k, w.k, sizeof(double) * m), std::memcpy(out.p, w.p, sizeof(double) * n);
  return true;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
