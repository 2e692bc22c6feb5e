// The derivative of the natural map of the regularised problem (G + eps I in place of G), factored, and the removal of eps.
//
// K is formed on the rows that are held only; rows without an impulse follow at once. The rows of contacts that stick, of limits and of
// dry friction depend on the point through the modes alone and are symmetric and positive definite: they are eliminated once for as long
// as the modes stay. What is left are three rows of each contact that slides.
#pragma once
#include "ncp.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int REFINEMENTS = 12;  // of a solution: each gains digits; a limit for what does not converge

// A point and what is known there.
struct Point {
  double *x, *nu, *F;
};

inline void evaluate(const Regularised& of, Point& at) {
  velocity(of, at.x, at.nu);
  natural_map(of, at.x, at.nu, at.F);
}

// K of the held rows, factored: n rows, `held` their places in the problem, in the modes `mode`. The first `linear` rows belong to no contact
// that slides; K is G + weight I on all, in which they are eliminated. S: the rest, in LU, with the slope of the projection of each contact.
struct Factor {
  int n, linear, ld;
  bool slides, valid;
  double weight, weakest;  // weakest: the smallest pivot of P rho (G + weight I) + I - P
  double *K, *inverse, *S, *S_inverse, *small, *other, *right, *reduced, *answer;
  int *held, *row, *mode;
  ConeSlope* slope;
};

inline int modes_count(const ContactProblem& p) { return p.contacts + p.limits + p.dry; }

// Rows that `mode` holds, in order; whether a contact slides.
inline int held_rows(const ContactProblem& p, const int* mode, int* held, bool& slides) {
  int n = 0;
  slides = false;
  for (int c = 0; c < p.contacts; ++c) {
    if (mode[c] == SEPARATING) continue;
    slides |= mode[c] == SLIDING;
    for (int k = 0; k < 3; ++k) held[n++] = 3 * c + k;
  }
  for (int k = 0; k < p.limits + p.dry; ++k)
    if (mode[p.contacts + k]) held[n++] = 3 * p.contacts + k;
  return n;
}

// The held rows and columns of G.
inline void gather(const ContactProblem& p, const int* held, int n, double* K, int ld) {
  for (int i = 0; i < n; ++i) {
    const double* from = p.G + (ptrdiff_t)held[i] * p.stride;
    double* to = K + (ptrdiff_t)i * ld;
    if (n == p.rows() && std::is_sorted(held, held + n))
      std::memcpy(to, from, sizeof(double) * n);
    else
      for (int j = 0; j < n; ++j) to[j] = from[held[j]];
    for (int j = n; j < padded(n); ++j) to[j] = 0.0;
  }
}

// K = I - P + P rho (G + weight I) on the held rows from their part of G, in place.
inline void law_matrix(const Regularised& of, const int* mode, const double* x, const double* nu, const int* held, int n,
                       double* K, int ld) {
  const ContactProblem& p = of.ncp.problem;
  for (int i = 0; i < n; ++i) K[(ptrdiff_t)i * ld + i] += of.weight;
  int i = 0;
  while (i < n) {
    const int r = held[i], c = r / 3;
    double* k0 = K + (ptrdiff_t)i * ld;
    const bool cone = r < 3 * p.contacts;
    if (!cone || mode[c] == STICKING) {
      for (int k = 0; k < (cone ? 3 : 1); ++k)
        for (int at = 0; at < n; at += W) store(k0 + k * ld + at, of.rho(r + k) * load(k0 + k * ld + at));
      i += cone ? 3 : 1;
      continue;
    }
    const ConeSlope s = cone_slope(of, c, mode[c], x, nu);
    double *k1 = k0 + ld, *k2 = k1 + ld;
    const double w = of.rho(r), wn = of.rho(r + 2);
    for (int at = 0; at < n; at += W) {
      const Lanes a = w * load(k0 + at), b = w * load(k1 + at), normal = wn * load(k2 + at);
      store(k0 + at, s.a * a + s.b * b + s.h * normal);
      store(k1 + at, s.b * a + s.d * b + s.i * normal);
      store(k2 + at, normal);
    }
    k0[i] += 1 - s.a, k0[i + 1] -= s.b, k0[i + 2] -= s.h;
    k1[i] -= s.b, k1[i + 1] += 1 - s.d, k1[i + 2] -= s.i;
    i += 3;
  }
}

// Gathers the rows that `mode` holds, those of contacts that slide last, and eliminates the others, unless it is done already.
inline void eliminate_linear(const Regularised& of, const int* mode, Factor& f) {
  const ContactProblem& p = of.ncp.problem;
  if (f.valid && f.weight == of.weight && std::memcmp(mode, f.mode, sizeof(int) * modes_count(p)) == 0) return;
  std::memcpy(f.mode, mode, sizeof(int) * modes_count(p));
  f.weight = of.weight, f.valid = true;
  int n = 0;
  const auto take = [&](int which) {
    for (int c = 0; c < p.contacts; ++c)
      for (int k = 0; k < 3 && mode[c] == which; ++k) f.held[n++] = 3 * c + k;
  };
  take(STICKING);
  for (int k = 0; k < p.limits + p.dry; ++k)
    if (mode[p.contacts + k]) f.held[n++] = 3 * p.contacts + k;
  f.linear = n;
  take(SLIDING);
  f.n = n, f.ld = padded(n), f.slides = n > f.linear;
  gather(p, f.held, n, f.K, f.ld);
  for (int i = 0; i < n; ++i) f.K[(ptrdiff_t)i * f.ld + i] += of.weight;
  factor_symmetric(f.K, f.ld, n, f.linear, of.weight > 0 ? 0.5 * of.weight : 1e-300, f.inverse);
}

// What elimination leaves in row i and column j of the contacts that slide.
inline double left_of(const Factor& f, int i, int j) { return f.K[(ptrdiff_t)(f.linear + std::min(i, j)) * f.ld + f.linear + std::max(i, j)]; }

// Forms and factors K at a point.
inline void factorise(const Regularised& of, const double* x, const double* nu, int* mode, Factor& f) {
  classify(of, x, nu, mode);
  eliminate_linear(of, mode, f);
  f.weakest = HUGE_VAL;
  for (int i = 0; i < f.linear; ++i) f.weakest = std::min(f.weakest, of.rho(f.held[i]) / f.inverse[i]);
  if (!f.slides) return;
  const int k = f.n - f.linear, ld = padded(k), *held = f.held + f.linear;
  for (int i = 0; i < k; ++i)
    for (int j = 0; j < ld; ++j) f.S[(ptrdiff_t)i * ld + j] = j < k ? left_of(f, i, j) : 0.0;
  law_matrix(Regularised{of.ncp}, mode, x, nu, held, k, f.S, ld);
  for (int i = 0; i < k; i += 3) f.slope[i / 3] = cone_slope(of, held[i] / 3, SLIDING, x, nu);
  // Entries of K are of the order of one: a pivot below rounding is a matrix that is singular for all that is known.
  f.weakest = std::min(f.weakest, factor_general(f.S, ld, k, MACHINE, f.row, f.S_inverse));
}

// out = P rho x of a contact that slides; out may be x.
inline void push(const ConeSlope& p, const double* rho, const double* x, double* out) {
  const double x0 = rho[0] * x[0], x1 = rho[1] * x[1], x2 = rho[2] * x[2];
  out[0] = p.a * x0 + p.b * x1 + p.h * x2, out[1] = p.b * x0 + p.d * x1 + p.i * x2, out[2] = x2;
}

// out = P rho x (transposed: rho P^T x) on the held rows, P the slope of the projection at (lambda, nu); out may be x.
inline void push_held(const Ncp& ncp, const int* mode, const int* held, int n, const double* lambda, const double* nu, bool transposed,
                      const double* x, double* out) {
  const Regularised law{ncp};
  for (int i = n; i < padded(n); ++i) out[i] = 0.0;
  for (int i = 0; i < n;) {
    const int r = held[i];
    if (r < 3 * ncp.problem.contacts && mode[r / 3] == SLIDING) {
      const ConeSlope p = cone_slope(law, r / 3, SLIDING, lambda, nu);
      const double *rho = ncp.rho + r, x0 = x[i], x1 = x[i + 1], x2 = x[i + 2];
      if (transposed) {
        out[i] = rho[0] * (p.a * x0 + p.b * x1);
        out[i + 1] = rho[1] * (p.b * x0 + p.d * x1);
        out[i + 2] = rho[2] * (p.h * x0 + p.i * x1 + x2);
      } else {
        push(p, rho, x + i, out + i);
      }
      i += 3;
    } else {
      out[i] = ncp.rho[r] * x[i];
      ++i;
    }
  }
}

// found = K^-1 right on the held rows; linear rows of `right` are without the factor rho.
inline void solve_held(const Ncp& ncp, const Factor& f, const double* right, double* found) {
  const int k = f.n - f.linear;
  double* rest = found + f.linear;
  std::memcpy(f.reduced, right + f.linear, sizeof(double) * k);
  if (found != right) std::memcpy(found, right, sizeof(double) * f.linear);
  std::fill_n(rest, k, 0.0);
  substitute_forward(f.K, f.ld, f.n, f.linear, f.inverse, found);
  for (int i = 0; i < k; i += 3) {
    double pushed[3];
    push(f.slope[i / 3], ncp.rho + f.held[f.linear + i], rest + i, pushed);
    for (int a = 0; a < 3; ++a) f.reduced[i + a] += pushed[a];
  }
  if (k > 0) solve_general(f.S, padded(k), k, f.row, f.S_inverse, f.reduced, f.answer);
  std::memcpy(rest, f.answer, sizeof(double) * k);
  substitute_back(f.K, f.ld, f.n, f.linear, f.inverse, found);
}

// step = K^-1 F with all rows; F and step are padded arrays.
inline void solve_law(const Regularised& of, const Factor& factor, const double* x, const double* nu, const double* F, double* step) {
  const ContactProblem& p = of.ncp.problem;
  const int n = factor.n;
  bool moved = false;
  for (int r = 0; r < of.ncp.width; ++r) step[r] = r < of.ncp.m ? F[r] : 0.0;
  for (int i = 0; i < n; ++i) step[factor.held[i]] = 0.0;
  for (int r = 0; n < of.ncp.m && r < of.ncp.m; ++r) moved |= step[r] != 0.0;
  double *right = factor.right, *pushed = factor.other;
  for (int i = 0; i < n; ++i) right[i] = F[factor.held[i]];
  if (moved) {  // P rho G of the rows without impulse, on the other side
    double* all = factor.small;
    std::memset(all, 0, sizeof(double) * of.ncp.width);
    combine(p.G, p.stride, of.ncp.m, of.ncp.width, step, all, all);
    for (int i = 0; i < n; ++i) pushed[i] = all[factor.held[i]];
    push_held(of.ncp, factor.mode, factor.held, n, x, nu, false, pushed, pushed);
    for (int i = 0; i < n; ++i) right[i] -= pushed[i];
  }
  for (int i = 0; i < factor.linear; ++i) right[i] /= of.rho(factor.held[i]);
  solve_held(of.ncp, factor, right, factor.small);
  for (int i = 0; i < n; ++i) step[factor.held[i]] = factor.small[i];
}

// Whether the regularised problem is solved at a point, to the velocity tol and the rounding of G lambda.
inline bool converged(const Regularised& of, const Point& at, double tol) {
  double rounding = 0;
  const ContactProblem& p = of.ncp.problem;
  for (int r = 0; r < of.ncp.m; ++r)
    rounding = std::max(rounding, 4 * MACHINE * p.G[(ptrdiff_t)r * p.stride + r] * std::fabs(at.x[r]));
  return violation(of, at.F) <= tol + rounding;
}

struct NewtonScratch {
  Point trial;
  double* step;
  int* mode;
};

// The problem itself from the solution of the regularised one in whose modes K is factored: x falls until rounding (a velocity).
inline void refine(const Ncp& ncp, Point& at, Factor& factor, NewtonScratch& s, double rounding) {
  const Regularised law{ncp};
  evaluate(law, at);
  double size = violation(law, at.F);
  const Regularised factored{ncp, factor.weight};
  for (int k = 0; k < REFINEMENTS && size > rounding; ++k) {
    solve_law(factored, factor, at.x, at.nu, at.F, s.step);
    for (int r = 0; r < ncp.width; ++r) s.trial.x[r] = at.x[r] - s.step[r];
    evaluate(law, s.trial);
    const double now = violation(law, s.trial.F);
    if (!(now < size)) return;
    const bool slow = now >= 0.5 * size;
    std::swap(at, s.trial);
    size = now;
    if (slow) return;
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
