// Inputs and outputs of one step, and the columns of its Jacobian along which contacts contradict each other.
#pragma once
#include "jacobian.h"
#include "report.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Outputs of one step; linear: null without the Jacobian.
struct StepOutput { double *q, *v, *report; const Linear* linear; };

constexpr double SMALLEST_SLOPE = 1e-9;  // 1/s, of the constraint velocity: what is below is rounding

// Names in the report the columns of A along which the rows of redundant contacts contradict each other in their modes (a leg of five
// joints whose flat foot is rolled): the part of their right-hand side that no impulse answers is left out (contact_derivative.h).
template <class Size> void name_one_sided(const Topology& t, bool moreau, Workspace<Size>& w, double* report) {
  const int N = w.size.lanes(), nv = t.nv;
  JacobianWork<Size>& j = w.jacobian;
  if (!j.redundant) return;
  const double *rest = j.left_over + N, *sizes = j.sizes + N;  // those by q, then those by v
  double largest = 0, stiffest = 0;
  for (int k = 0; k < 2 * N; ++k) largest = std::max(largest, sizes[k]);
  for (int row = 0; row < w.rows.m; ++row) stiffest = std::max(stiffest, w.solver.rho[row]);
  const double least = std::max(SMALLEST_COLUMN * largest, SMALLEST_SLOPE * stiffest);
  for (int k = 0; k < 2 * nv; ++k) {
    const int at = k < nv ? k : N + k - nv;
    j.one_sided[k] = rest[at] > std::max(least, CONTRADICTS * sizes[at]);
  }
  if (moreau) {  // at the midpoint the three directions of a ball joint are mixed, and q has moved with v
    for (const BallJoint& ball : w.balls) {
      bool* c = j.one_sided + ball.v;
      c[0] = c[1] = c[2] = c[0] || c[1] || c[2];
    }
    for (int k = 0; k < nv; ++k) j.one_sided[nv + k] |= j.one_sided[k];
  }
  for (int column = 0; column < std::min(2 * nv, ONE_SIDED_WORDS * ONE_SIDED_BITS); ++column)
    if (j.one_sided[column]) report[ONE_SIDED + column / ONE_SIDED_BITS] += std::ldexp(1.0, column % ONE_SIDED_BITS);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
