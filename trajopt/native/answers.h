// What v+ and the impulses answer to small changes of the equations of a step at fixed v+ and lambda, by which parameters enter them:
// of the constraint velocity nu of every row, of the coefficients of friction, of the bounds of rows of dry friction; and, where contacts
// are redundant, of dJ z and of dJ^T w - dM z, of which the selection of the impulse knows dG (redundant.h).
//
// With dE the change of the balance of momentum, which is answered by Q (jacobian.h), these make up the derivative by any parameter
// (trajopt/dynamics/compiled_parameters.py).
#pragma once
#include "redundant.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// rows (nv + reported, columns): answers of v+ and of the reported impulses, the columns those of nu of the reported rows, of mu of the
// reported contacts, the bounds, dJ z of the reported rows, dJ^T w - dM z. along (reported + nv): w and z; zero where nothing is
// selected.
struct Answers { double *rows = nullptr, *along = nullptr; };
inline int64_t answer_columns(const Topology& t) { return 2 * t.reported() + t.report_contacts + t.intervals() + t.nv; }

// Of row k of dry friction, whose impulse is at a bound.
template <class Size> double bound_sign(const Workspace<Size>& w, int k) {
  return std::copysign(1.0, w.solution.lambda[w.rows.m - w.rows.nd - w.rows.ne + k]);
}

// Right-hand sides of the law in columns of the problem's rows: nu, mu, bounds.
template <class Size> void ask_rows(Workspace<Size>& w, double* R, int ld) {
  const Rows<Size>& r = w.rows;
  const int m = r.m, first = m + r.nc, intervals = r.nd + r.ne;
  for (int row = 0; row < m; ++row) {
    double* to = R + static_cast<ptrdiff_t>(row) * ld;
    std::memset(to, 0, sizeof(double) * ld);
    to[row] = 1;
    for (int k = 0; k < intervals; ++k)
      if (w.solution.dry_mode[k] == 0) to[first + k] = bound_sign(w, k) * r.G[row * r.stride + m - intervals + k];
  }
}

template <class Size>
void answer_rows(Size n, const Topology& t, Workspace<Size>& w, const Answers& out) {
  const Rows<Size>& r = w.rows;
  JacobianWork<Size>& j = w.jacobian;
  const int N = n.lanes(), nv = t.nv, m = r.m, ld = j.answers, intervals = r.nd + r.ne, reported = t.reported();
  const int by_friction = m, by_bound = m + r.nc, by_turning = by_bound + intervals, by_momentum = by_turning + m, columns = padded(by_momentum + nv);
  const int64_t wide = answer_columns(t);
  std::memset(out.rows, 0, sizeof(double) * (nv + reported) * wide);
  std::memset(out.along, 0, sizeof(double) * (reported + nv));
  if (m == 0) return;
  ask_rows(w, j.asked, ld);
  std::memset(j.answer, 0, sizeof(double) * m * ld);
  std::memcpy(j.answer_free, j.asked, sizeof(double) * m * ld);
  const bool redundant = law_solution(w.problem, w.solution, w.solver, j.asked, ld, padded(by_turning), j.answer, ld, j.answer_left, j.answer_sizes, by_friction);
  if (redundant && !sliding(w)) without_null_space(w.solver, j.answer, ld, padded(by_turning));
  for (int at = 0; at < m * ld; at += LANES) store(j.answer + at, -load(j.answer + at));
  LawNullSpace space{0, nullptr, 0, nullptr};
  if (w.solution.degenerate) {
    if (follows_cones(w.problem, w.solver)) {
      std::memcpy(j.asked, j.answer_free, sizeof(double) * m * ld);
      law_solution_along_cones(w.problem, w.solution, w.solver, j.asked, ld, padded(by_turning), j.answer, ld, by_friction);
      for (int at = 0; at < m * ld; at += LANES) store(j.answer + at, -load(j.answer + at));
    }
    space = law_null_space(w.problem, w.solution, w.solver);
  }
  for (int k = 0; k < intervals; ++k)
    if (w.solution.dry_mode[k] == 0) j.answer[static_cast<ptrdiff_t>(m - intervals + k) * ld + by_bound + k] = bound_sign(w, k);
  if (space.count > 0) {
    motion_of_selection(n, space, w);
    std::memset(j.answer_through, 0, sizeof(double) * space.count * ld);
    for (int a = 0; a < space.count; ++a) {
      std::memcpy(j.answer_through + a * ld + by_turning, space.A + static_cast<ptrdiff_t>(a) * space.stride, sizeof(double) * m);
      std::memcpy(j.answer_through + a * ld + by_momentum, j.B + a * N, sizeof(double) * nv);
    }
    law_null_space_solution(w.problem, w.solution, w.solver, j.answer_free, j.answer, j.answer_through, ld, columns, j.answer_shift, by_friction);
    for (int at = 0; at < m * ld; at += LANES) store(j.answer + at, load(j.answer + at) + load(j.answer_shift + at));
    for (int k = 0; k < reported; ++k) out.along[k] = w.reported[k].row < 0 ? 0 : space.w[w.reported[k].row];
    std::memcpy(out.along + reported, j.z, sizeof(double) * nv);
  }
  product(nv, columns, j.by_answer, ld, nullptr, 0, {r.MJT, 1, N}, j.answer, ld, m, 1);
  // From the rows of the problem to those of the report.
  auto put = [&](const double* from, double* to) {
    for (int k = 0; k < reported; ++k)
      if (const int row = w.reported[k].row; row >= 0) to[k] = from[row], to[wide - nv - reported + k] = from[by_turning + row];
    for (int k = 0; k < t.report_contacts; ++k)
      if (const int row = w.reported[3 * k].row; row >= 0) to[reported + k] = from[by_friction + row / 3];
    for (int k = 0; k < intervals; ++k) to[reported + t.report_contacts + k] = from[by_bound + k];
    std::memcpy(to + wide - nv, from + by_momentum, sizeof(double) * nv);
  };
  for (int i = 0; i < nv; ++i) put(j.by_answer + i * ld, out.rows + i * wide);
  for (int k = 0; k < reported; ++k)
    if (const int row = w.reported[k].row; row >= 0) put(j.answer + static_cast<ptrdiff_t>(row) * ld, out.rows + (nv + k) * wide);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
