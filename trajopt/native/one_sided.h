// Columns of the Jacobian along which contacts contradict each other. Where the rows of a redundant contact problem cannot follow a
// direction in their modes (a leg of five joints whose flat foot is rolled), any finite motion changes the modes: no derivative
// exists at fixed ones. Such a column is the mean of the slopes to both sides, from two steps solved at +-MOVED, of the impulses too.
#pragma once
#include "jacobian.h"
#include "report.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// As trajopt/dynamics/integrators.py numbers them; the last two are for motions without impulses (runge_kutta.h).
enum class Integrator { SEMI_IMPLICIT, MOREAU, EULER, RUNGE_KUTTA };

// Inputs and outputs of one step. given: candidates handed over (rows, GIVEN) and their slopes (rows, SLOPE); select: which of many
// impulses is found matters, not v+ alone; start: null, or impulses of all rows of the model, by slot, of a step from a state that
// differs by little, and what is known of them: only for steps inside of one from (q, v), which is a function of (q, v, tau) alone;
// linear: null without the Jacobian.
struct StepInput {
  const double *parameters, *q, *v, *tau, *given, *slopes;
  double dt;
  int given_rows;
  Integrator integrator;
  bool select = true;
  const double* start = nullptr;
  Start known = Start::ANY;

  bool moreau() const { return integrator == Integrator::MOREAU; }
};
struct StepOutput { double *q, *v, *report, *impulse; const Linear* linear; };
template <class Size> void step(const Topology& t, const StepInput& in, const StepOutput& out, Workspace<Size>& w);

constexpr double MOVED = 1e-6;           // rad, m; rad/s, m/s
constexpr double JUMP = 1e-2;            // rad/s, m/s: a step that a start leads so far over MOVED has another of several solutions
constexpr double SMALLEST_SLOPE = 1e-9;  // 1/s, of the constraint velocity: what is below is rounding

// The columns of A that contradict, into w.jacobian.one_sided; returns whether there are any.
template <class Size> bool find_one_sided(const Topology& t, bool moreau, Workspace<Size>& w) {
  const int N = w.size.lanes(), nv = t.nv;
  JacobianWork<Size>& j = w.jacobian;
  if (!j.redundant) return false;
  const double *rest = j.left_over + N, *sizes = j.sizes + N;  // those by q, then those by v
  double largest = 0, stiffest = 0;
  for (int k = 0; k < 2 * N; ++k) largest = std::max(largest, sizes[k]);
  for (int row = 0; row < w.rows.m; ++row) stiffest = std::max(stiffest, w.solver.rho[row]);
  const double least = std::max(SMALLEST_COLUMN * largest, SMALLEST_SLOPE * stiffest);
  bool any = false;
  for (int k = 0; k < 2 * nv; ++k) {
    const int at = k < nv ? k : N + k - nv;
    any |= j.one_sided[k] = rest[at] > std::max(least, CONTRADICTS * sizes[at]);
  }
  if (!moreau) return any;
  // At the midpoint the three directions of a ball joint are mixed, and q has moved with v.
  for (const BallJoint& ball : w.balls) {
    bool* c = j.one_sided + ball.v;
    c[0] = c[1] = c[2] = c[0] || c[1] || c[2];
  }
  for (int k = 0; k < nv; ++k) j.one_sided[nv + k] |= j.one_sided[k];
  return any;
}

// The steps at +MOVED and -MOVED along a column. They start from the impulses of the column before, at the side where it contradicts
// the same way; the first column from those of the step itself, `at`. Where such a start leads to another solution, the step is
// solved from nothing, as one by itself is.
template <class Size>
void step_to_both_sides(const Topology& t, const StepInput& in, const StepOutput& at, bool select, int column, bool first, Workspace<Size>& w) {
  const int nv = t.nv;
  OneSidedWork& s = w.one_sided;
  for (int side = 0; side < 2; ++side) {
    const double by = side == 0 ? MOVED : -MOVED;
    double* found = s.found[s.alike[column] >= 0 ? side : 1 - side];
    StepInput moved = in;
    moved.start = first ? at.impulse : found, moved.known = first ? Start::CONTRADICTING : Start::ALIKE, moved.select = select;
    if (column < nv) {
      std::memset(s.direction, 0, sizeof(double) * nv);
      s.direction[column] = 1;
      integrate(t, w.balls, in.q, by, s.direction, s.q), moved.q = s.q;
    } else {
      std::memcpy(s.v, in.v, sizeof(double) * nv);
      s.v[column - nv] += by, moved.v = s.v;
    }
    const StepOutput beside = {s.q_next[side], s.v_next[side], s.report, s.impulse[side], nullptr};
    step(t, moved, beside, w);
    double apart = 0;
    for (int i = 0; i < nv; ++i) apart = std::max(apart, std::fabs(beside.v[i] - at.v[i]));
    if (!(apart <= JUMP)) moved.start = nullptr, moved.known = Start::ANY, step(t, moved, beside, w);
    std::memcpy(found, s.impulse[side], sizeof(double) * t.impulses());
  }
}

// Replaces the columns of A, and of C, that find_one_sided named, and tells of them in the report. The one that contradicts most comes
// first: its impulses are nearest to those of the others. The workspace holds other steps afterwards.
template <class Size> void replace_one_sided(const Topology& t, const StepInput& in, const StepOutput& out, Workspace<Size>& w) {
  const int nv = t.nv, N = w.size.lanes();
  OneSidedWork& s = w.one_sided;
  const ptrdiff_t width = 2 * nv;
  int count = 0;
  for (int column = 0; column < width; ++column) {
    if (!w.jacobian.one_sided[column]) continue;
    const int at = N + (column < nv ? column : N + column - nv);
    s.size[column] = w.jacobian.left_over[at], s.alike[column] = w.jacobian.alike[at];
    s.order[count++] = column;
  }
  std::sort(s.order, s.order + count, [&](int a, int b) { return s.size[a] > s.size[b]; });
  const int rows = out.linear->C ? t.reported() : 0;
  for (int k = 0; k < rows; ++k) s.slot[k] = w.reported[k].slot;
  for (int place = 0; place < count; ++place) {
    const int column = s.order[place];
    step_to_both_sides(t, in, out, rows > 0, column, place == 0, w);
    difference(t, w.balls, s.q_next[1], s.q_next[0], s.direction);
    for (int i = 0; i < nv; ++i) {
      out.linear->A[i * width + column] = 0.5 / MOVED * s.direction[i];
      out.linear->A[(nv + i) * width + column] = 0.5 / MOVED * (s.v_next[0][i] - s.v_next[1][i]);
    }
    for (int k = 0; k < rows; ++k)
      if (s.slot[k] >= 0) out.linear->C[k * width + column] = 0.5 / MOVED * (s.impulse[0][s.slot[k]] - s.impulse[1][s.slot[k]]);
    if (column < ONE_SIDED_WORDS * ONE_SIDED_BITS)
      out.report[ONE_SIDED + column / ONE_SIDED_BITS] += std::ldexp(1.0, column % ONE_SIDED_BITS);
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
