// The linear algebra of the derivative of the contact law at a solution, in its modes.
//
// With R the derivative of nu at fixed impulse (one column a direction), dlambda = -Y(R), Y(R) = K^+ P rho R: a particular solution,
// in which the rows that elimination finds redundant are zero. Where contacts are redundant the derivative of the selected solution,
// on which v+ depends where they slide, adds N x with
//
//     S x = A^T dG w - T^T (dlambda - rho (G dlambda + R)) - C^T dlambda,      A = C,  w = rho P^T y or r
//
// (`curvature.h`; the equations of selection.py). The caller supplies A^T dG w, since G = J M^-1 J^T gives it without dG.
//
// All arrays are row-major and aligned, leading dimensions and numbers of columns multiples of `PAD`. The functions are called in
// the order law_solution, law_solution_along_cones where `follows_cones`, law_null_space, law_null_space_solution, on the workspace that
// holds the solution.
#pragma once
#include "contact_solve.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// R <- P rho R on the held rows.
inline void project_columns(const Ncp& ncp, const ContactSolution& solution, const int* mode, const int* held, int n, double* R, int ldr,
                            int columns) {
  const Regularised law{ncp};
  for (int i = 0; i < n;) {
    const int r = held[i];
    double* x = R + (ptrdiff_t)r * ldr;
    if (r < 3 * ncp.problem.contacts && mode[r / 3] == SLIDING) {
      const ConeSlope p = cone_slope(law, r / 3, SLIDING, solution.lambda, solution.nu);
      for (int at = 0; at < columns; at += W) {
        const Lanes a = ncp.rho[r] * load(x + at), b = ncp.rho[r + 1] * load(x + ldr + at), n3 = ncp.rho[r + 2] * load(x + 2 * ldr + at);
        store(x + at, p.a * a + p.b * b + p.h * n3);
        store(x + ldr + at, p.b * a + p.d * b + p.i * n3);
        store(x + 2 * ldr + at, n3);
      }
      i += 3;
    } else {
      for (int at = 0; at < columns; at += W) store(x + at, ncp.rho[r] * load(x + at));
      ++i;
    }
  }
}

// What of a column is out of the range of K: more than rounding, beside the largest column; and from which share of the column on it is
// called one-sided (stepping.h).
constexpr double BARELY = 1e-12, CONTRADICTS = 1e-6;
constexpr double SMALLEST_COLUMN = 1e-9;  // of the largest column's: what is below is rounding, and no contradiction

// Takes from Y what rows contradict, so that the derivative does not depend on which rows elimination finds redundant: the part
// P rho N x of the right-hand side, out of the range, that (K + eps P rho)^-1 leaves as eps vanishes, with
// Z^T P rho N x = Z^T (P rho R). On entry R (m, ldr) is eliminated: its redundant rows hold Z^T (P rho R).
inline void without_contradiction(const Ncp& ncp, const ContactSolution& solution, const int* mode, SelectionScratch& s, const double* R, int ldr,
                                  int columns, double* Y, int ldy, const double* left_over, const double* sizes) {
  const double least = BARELY * *std::max_element(sizes, sizes + columns);
  if (!(*std::max_element(left_over, left_over + columns) > least)) return;
  const Elimination& e = s.elimination;
  Curvature& c = s.curvature;
  const int n = e.n, ld = e.ld, count = n - e.rank, sld = padded(count);
  auto pushed = [&](const double* x, double* out) { push_held(ncp, mode, s.held, n, solution.lambda, solution.nu, false, x, out); };
  null_basis(e, c.N, ld);
  left_null_space(e, c.Z, ld);
  for (int k = 0; k < count; ++k) {
    pushed(c.N + (ptrdiff_t)k * ld, s.one);
    for (int j = 0; j < count; ++j) c.S[(ptrdiff_t)j * sld + k] = dot(c.Z + (ptrdiff_t)j * ld, s.one, n);
    for (int j = count; j < sld; ++j) c.S[(ptrdiff_t)k * sld + j] = 0.0;
  }
  factor_general(c.S, sld, count, MACHINE, c.row, c.inverse);
  for (int column = 0; column < columns; ++column) {
    if (!(left_over[column] > least)) continue;
    for (int k = 0; k < count; ++k) s.two[k] = R[(ptrdiff_t)s.held[e.row[e.rank + k]] * ldr + column];
    solve_general(c.S, sld, count, c.row, c.inverse, s.two, s.three);
    std::memset(s.candidate, 0, sizeof(double) * ld);
    for (int k = 0; k < count; ++k) add(s.three[k], c.N + (ptrdiff_t)k * ld, s.candidate, n);
    pushed(s.candidate, s.one);
    solve_eliminated(e, s.one, s.found);
    for (int i = 0; i < n; ++i) Y[(ptrdiff_t)s.held[i] * ldy + column] -= s.found[i];
  }
}

// What changes the law itself: R (m, ldr) gets -d proj / d mu of contact k in column `first` + k, where it slides in `mode`. After `project_columns`.
inline void add_friction_changes(const Ncp& ncp, const ContactSolution& solution, const int* mode, double* R, int ldr, int first) {
  for (int k = 0; k < ncp.problem.contacts; ++k) {
    const int r = 3 * k;
    if (mode[k] != SLIDING) continue;
    double y[3];
    for (int a = 0; a < 3; ++a) y[a] = solution.lambda[r + a] - ncp.rho[r + a] * solution.nu[r + a];
    const double length = std::sqrt(y[0] * y[0] + y[1] * y[1]), share = length > 0 ? std::max(0.0, y[2]) / length : 0;
    for (int a = 0; a < 2; ++a) R[(ptrdiff_t)(r + a) * ldr + first + k] = -share * y[a];
  }
}

// Eliminates K of the held rows in `mode`, and makes R (m, ldr) its right-hand sides; Y (m, ldy) is zero.
inline void prepare(const Ncp& ncp, const ContactSolution& solution, const int* mode, bool diagonal, SelectionScratch& s, double* R, int ldr,
                    int columns, double* Y, int ldy, int by_friction) {
  Elimination& e = s.elimination;
  std::memcpy(e.U, s.Ghh, sizeof(double) * e.n * e.ld);
  law_matrix(Regularised{ncp}, mode, solution.lambda, solution.nu, s.held, e.n, e.U, e.ld);
  eliminate(e, diagonal);
  project_columns(ncp, solution, mode, s.held, e.n, R, ldr, columns);
  if (by_friction >= 0) add_friction_changes(ncp, solution, mode, R, ldr, by_friction);
  for (int r = 0; r < ncp.m; ++r) std::memset(Y + (ptrdiff_t)r * ldy, 0, sizeof(double) * columns);
}

// Y (m, ldy) = K^+ P rho R for R (m, ldr), which is overwritten; in columns from `by_friction` on, one a contact, K^+ d proj / d mu with the
// other sign, unless it is negative. Rows of Y without an impulse, and redundant ones, are zero.
// Returns whether rows are redundant; then left_over and sizes (columns) hold the largest entry of what these rows contradict in each
// column, and that of P rho R in it. What they contradict is left out of Y: it is the limit of (K + eps P rho)^-1 P rho R as eps vanishes,
// without the part that grows as 1 / eps.
inline bool law_solution(const ContactProblem& problem, const ContactSolution& solution, ContactWorkspace& w, double* R, int ldr,
                         int columns, double* Y, int ldy, double* left_over, double* sizes, int by_friction = -1) {
  const Ncp ncp = scaled(problem, w.rho);
  SelectionScratch& s = w.selection;
  Elimination& e = s.elimination;
  bool slides;
  e.n = held_rows(problem, w.mode, s.held, slides);
  e.ld = padded(e.n);
  gather(problem, s.held, e.n, s.Ghh, e.ld);
  prepare(ncp, solution, w.mode, !slides, s, R, ldr, columns, Y, ldy, by_friction);
  const bool redundant = e.rank < e.n;
  solve_eliminated(e, s.held, R, ldr, columns, Y, ldy, redundant ? left_over : nullptr, sizes);
  if (!redundant) return false;
  s.curvature.count = 0;
  without_contradiction(ncp, solution, w.mode, s, R, ldr, columns, Y, ldy, left_over, sizes);
  return true;
}

// x (ld), by held rows: a vector of the null space of K with weights that follow no pattern, so that the vectors of two feet alike do not
// cancel and one vector stands for all.
inline const double* random_null_vector(ContactWorkspace& w) {
  const Elimination& e = w.selection.elimination;
  double *weights = w.selection.one, *z = e.scratch, *x = w.selection.two;
  for (int i = 0; i < e.ld; ++i) weights[i] = e.rank <= i && i < e.n ? std::cos(i) : 0.0, z[i] = x[i] = 0.0;
  for (int i = 0; i < e.rank; ++i) z[i] = -dot(e.u(i), weights, e.n);
  back_substitute(e, z);
  for (int i = 0; i < e.n; ++i) x[e.col[i]] = i < e.rank ? z[i] : weights[i];
  return x;
}

// Takes from Y (m, ldy) what lies in the null space of K: of all solutions the shortest is left.
inline void without_null_space(ContactWorkspace& w, double* Y, int ldy, int columns) {
  const SelectionScratch& s = w.selection;
  const Elimination& e = s.elimination;
  double* N = s.curvature.N;
  if (s.curvature.count == 0) null_space(e, N, e.ld);
  for (int k = 0; k < e.n - e.rank; ++k, N += e.ld)
    for (int at = 0; at < columns; at += W) {
      Lanes share = {};
      for (int i = 0; i < e.n; ++i) share += N[i] * load(Y + (ptrdiff_t)s.held[i] * ldy + at);
      for (int i = 0; i < e.n; ++i) {
        double* y = Y + (ptrdiff_t)s.held[i] * ldy + at;
        store(y, load(y) - N[i] * share);
      }
    }
}

// Whether contacts that stick follow their cones in the selected impulse.
inline bool follows_cones(const ContactProblem& problem, const ContactWorkspace& w) {
  return std::memcmp(w.mode, w.selecting_mode, sizeof(int) * problem.contacts) != 0;
}

// Y (m, ldy) = K^+ P rho R as in `law_solution`, in the modes that select the impulse, whose K is eliminated from here on.
inline void law_solution_along_cones(const ContactProblem& problem, const ContactSolution& solution, ContactWorkspace& w, double* R, int ldr,
                                     int columns, double* Y, int ldy, int by_friction = -1) {
  const Ncp ncp = scaled(problem, w.rho);
  SelectionScratch& s = w.selection;
  prepare(ncp, solution, w.selecting_mode, false, s, R, ldr, columns, Y, ldy, by_friction);
  solve_eliminated(s.elimination, s.held, R, ldr, columns, Y, ldy);
}

// A^T: `count` vectors over all rows of the problem, and w (m); count is 0 where no row is redundant.
struct LawNullSpace {
  int count;
  const double* A;
  int stride;
  const double* w;
};

inline LawNullSpace law_null_space(const ContactProblem& problem, const ContactSolution& solution, ContactWorkspace& w) {
  const Ncp ncp = scaled(problem, w.rho);
  SelectionScratch& s = w.selection;
  Curvature& c = s.curvature;
  const Elimination& e = s.elimination;
  c.count = 0;
  if (!(solution.degenerate && e.rank < e.n)) return {0, nullptr, 0, nullptr};
  curvature(ncp, w.selecting_mode, s.held, e, solution.lambda, solution.nu, s.Ghh, solution.selected, c, s.three, s.one, s.two);
  auto scatter = [&](const double* from, double* to) {
    std::memset(to, 0, sizeof(double) * ncp.width);
    for (int i = 0; i < e.n; ++i) to[s.held[i]] = from[i];
  };
  for (int k = 0; k < c.count; ++k) scatter(c.C + (ptrdiff_t)k * c.ld, w.spread + (ptrdiff_t)k * ncp.width);
  if (c.shortest) push_held(ncp, w.selecting_mode, s.held, e.n, solution.lambda, solution.nu, true, c.along, s.one);
  scatter(c.shortest ? s.one : c.along, w.pull);
  return {c.count, w.spread, ncp.width, w.pull};
}

// out (m, ld) = N x, to be added to the particular solution dlam (m, ld); free (m, ld): derivative of nu at fixed impulse; through_G
// (count, ld): A^T dG w. by_friction: as in `law_solution`.
inline void law_null_space_solution(const ContactProblem& problem, const ContactSolution& solution, ContactWorkspace& w, const double* free,
                                    const double* dlam, const double* through_G, int ld, int columns, double* out, int by_friction = -1) {
  (void)solution;
  const Ncp ncp = scaled(problem, w.rho);
  const SelectionScratch& s = w.selection;
  const Curvature& c = s.curvature;
  const int n = s.elimination.n;
  double *change = s.one, *right = s.three, *moved = s.candidate;
  for (int r = 0; r < ncp.m; ++r) std::memset(out + (ptrdiff_t)r * ld, 0, sizeof(double) * columns);
  for (int column = 0; column < columns; ++column) {
    for (int i = 0; i < c.ld; ++i) moved[i] = i < n ? dlam[(ptrdiff_t)s.held[i] * ld + column] : 0.0;
    argument_change(ncp, s.held, n, s.Ghh, c.ld, moved, change);
    for (int i = 0; i < n; ++i) change[i] -= ncp.rho[s.held[i]] * free[(ptrdiff_t)s.held[i] * ld + column];
    for (int j = 0; j < c.count; ++j)
      right[j] = through_G[(ptrdiff_t)j * ld + column] - dot(c.T + (ptrdiff_t)j * c.ld, change, n) - dot(c.C + (ptrdiff_t)j * c.ld, moved, n);
    if (const int k = column - by_friction; by_friction >= 0 && 0 <= k && k < problem.contacts)
      for (int j = 0; j < c.count; ++j) right[j] -= c.by_friction[(ptrdiff_t)j * c.ld + k];
    solve_general(c.S, c.sld, c.count, c.row, c.inverse, right, change);
    std::memset(moved, 0, sizeof(double) * c.ld);
    for (int j = 0; j < c.count; ++j) add(change[j], c.N + (ptrdiff_t)j * c.ld, moved, n);
    for (int i = 0; i < n; ++i) out[(ptrdiff_t)s.held[i] * ld + column] = moved[i];
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
