// Which solution, when the contact problem has many: the impulse of smallest norm within the identified modes,
//
//     minimise 1/2 |lambda|^2   subject to   F(lambda) = 0  in these modes
//
// (Nimble, App. B, extended to the cone; docs/contact-semantics.md, Selection), and where that one breaks the law the limit of the
// regularised problem's solution. Both are the solution of F(lambda) = 0 and the conditions of `curvature.h`.
#pragma once
#include "curvature.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int NULL_POWERS = 4;
constexpr double SQUARED = 1e-9, FALLING = 1e-3;  // of a change: its share of the impulse, and of the change before, from which on it is the last

// x without its part in the null space of K where no contact slides: (K + eps D)^-1 eps D, D = P rho in the modes of the factor,
// is one on the null space and of the order of eps elsewhere, so that its powers project onto it. For held contacts D is
// symmetric and what remains is the impulse of least norm; where the regularised problem lets contacts slide slowly on their cones it is
// the limit of its solution. x and result are padded arrays.
inline void without_null_space(const Ncp& ncp, Factor& factor, const Point& at, double* result) {
  const int n = factor.n;
  double *null = factor.small, *right = factor.right, size = 0, before = HUGE_VAL;
  for (int i = 0; i < n; ++i) null[i] = at.x[factor.held[i]], size = std::max(size, std::fabs(null[i]));
  for (int k = 0; k < NULL_POWERS; ++k) {
    for (int i = 0; i < n; ++i) right[i] = factor.weight * null[i];
    for (int i = factor.linear; i < n; i += 3) push(factor.slope[(i - factor.linear) / 3], ncp.rho + factor.held[i], right + i, right + i);
    solve_held(ncp, factor, right, null);
    double now = 0;
    for (int i = 0; i < n; ++i) now = std::max(now, std::fabs(null[i]));
    if (now <= 4 * MACHINE * size || now >= (1 - 1e-9) * before) break;  // nothing there, or nothing but the null space left
    before = now;
  }
  std::memcpy(result, at.x, sizeof(double) * ncp.width);
  for (int i = 0; i < n; ++i) result[factor.held[i]] -= null[i];
}

struct SelectionScratch {
  Elimination elimination;
  Curvature curvature;
  double *Ghh, *right, *found, *candidate, *one, *two, *three;
  int* held;
};

// s.found = a solution of K dx = right on the held rows, K being eliminated; `right` (m,) of all rows.
inline void solve_held_rows(const double* right, SelectionScratch& s) {
  const Elimination& e = s.elimination;
  for (int i = 0; i < e.n; ++i) s.right[i] = right[s.held[i]];
  solve_eliminated(e, s.right, s.found);
}

// One Newton step on F = 0, c = 0 in the eliminated modes, with dx_p a particular solution of K dx = -F:
//
//     dx = dx_p + N x,     S x = -C^T (lambda + dx_p) - T^T (I - rho G) dx_p,
//
// as c = C^T lambda at the point itself. Where contacts are held T is zero and the step ends at the solution. `candidate` gets the held
// part of lambda + dx.
inline void selection_step(const Ncp& ncp, const int* mode, bool shortest, const Point& at, SelectionScratch& s) {
  const Elimination& e = s.elimination;
  const int n = e.n;
  curvature(ncp, mode, s.held, e, at.x, at.nu, s.Ghh, shortest, s.curvature, s.three, s.one, s.two);
  Curvature& c = s.curvature;
  argument_change(ncp, s.held, n, s.Ghh, e.ld, s.found, s.one);
  for (int i = 0; i < e.ld; ++i) s.candidate[i] = i < n ? at.x[s.held[i]] - s.found[i] : 0.0;
  for (int k = 0; k < c.count; ++k)
    s.two[k] = dot(c.T + (ptrdiff_t)k * e.ld, s.one, n) - dot(c.C + (ptrdiff_t)k * e.ld, s.candidate, n);
  solve_general(c.S, c.sld, c.count, c.row, c.inverse, s.two, s.three);
  for (int k = 0; k < c.count; ++k) add(s.three[k], c.N + (ptrdiff_t)k * e.ld, s.candidate, n);
}

// The selected impulse in `mode`, the shortest or the limit, from a solution near it. `at` holds the result.
inline void selected_impulse(const Ncp& ncp, const int* mode, bool shortest, Point& at, SelectionScratch& s) {
  const Regularised law{ncp};
  Elimination& e = s.elimination;
  bool slides;
  const int n = held_rows(ncp.problem, mode, s.held, slides);
  e.n = n, e.ld = padded(n);
  velocity(law, at.x, at.nu);
  natural_map<true>(law, at.x, at.nu, at.F, mode);
  for (int i = 0; i < n; ++i) at.F[s.held[i]] = 0.0;
  for (int r = 0; r < ncp.m; ++r) at.x[r] -= at.F[r];  // rows without a choice
  gather(ncp.problem, s.held, n, s.Ghh, e.ld);
  double before = HUGE_VAL;
  for (int k = 0; k < REFINEMENTS; ++k) {
    velocity(law, at.x, at.nu);
    natural_map<true>(law, at.x, at.nu, at.F, mode);
    std::memcpy(e.U, s.Ghh, sizeof(double) * n * e.ld);
    law_matrix(law, mode, at.x, at.nu, s.held, n, e.U, e.ld);
    eliminate(e, !slides);
    solve_held_rows(at.F, s);
    selection_step(ncp, mode, shortest, at, s);
    double change = 0, size = 0;
    for (int i = 0; i < n; ++i) {
      const double moved = s.candidate[i] - at.x[s.held[i]];
      change += moved * moved;
      size += s.candidate[i] * s.candidate[i];
      at.x[s.held[i]] = s.candidate[i];
    }
    change = std::sqrt(change);
    const bool quadratic = change < SQUARED * std::sqrt(size) && change < FALLING * before;  // the next change is its square
    if (quadratic || !(change > 4 * MACHINE * std::sqrt(size)) || (k >= 4 && !(change < 0.9 * before))) return;
    before = change;
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
