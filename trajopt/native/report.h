// What a step tells of itself: the numbers behind StepInfo, in the rows that the JAX implementation reports (the closest).
#pragma once
#include "workspace.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// As trajopt/dynamics/integrators.py numbers them; the last two are for motions without impulses (runge_kutta.h).
enum class Integrator { SEMI_IMPLICIT, MOREAU, EULER, RUNGE_KUTTA };

// Inputs of one step. given: candidates handed over (rows, GIVEN) and their slopes (rows, SLOPE); whole: whether its report is, and the
// closest contacts are looked for however far they are, or the head alone.
struct StepInput {
  const double *parameters, *q, *v, *tau, *given, *slopes;
  double dt;
  int given_rows;
  Integrator integrator;
  bool whole;

  bool moreau() const { return integrator == Integrator::MOREAU; }
};

// The reported contacts: the closest, in the order of their slots. w.rows.order says which row of the problem each has, or -1.
template <class Size>
void report_contacts(const Topology& t, const Parameters& p, double dt, const Field<Size>& V_after, Workspace<Size>& w, double* out) {
  Rows<Size>& r = w.rows;
  const int many = std::min(t.report_contacts, r.candidates);
  least(w.closest, r.candidates, many, [&](int k) { return r.candidate[k].distance; });
  for (int k = 0; k < r.candidates; ++k) r.order[k] = -1;
  for (int k = 0; k < r.nc; ++k) r.order[r.contact[k].candidate] = k;
  double fastest = 0;
  Frame frame{};
  for (int k = 0; k < many; ++k) {
    const Candidate& c = r.candidate[w.closest[k]];
    const int row = r.order[w.closest[k]];
    double* to = out + REPORT_CONTACT * k;
    V3<double> nu = relative_velocity(w.kin, V_after, c);
    const Offset offset = offset_of(t, p, w.kin, w.dynamics.V, c, dt);
    nu = nu + offset.value * c.normal;
    const int mode = row >= 0 ? w.solution.cone_mode[row] : SEPARATING;
    // In the contact's frame the largest component counts.
    const V3<double> last = frame.axis[2];
    if (last.x != c.normal.x || last.y != c.normal.y || last.z != c.normal.z) frame = frame_of(c.normal);
    if (t.smoothed && row >= 0) {  // nu has what the compliance gives way
      const double* x = w.solution.nu + 3 * row;
      const Frame& own = r.contact[row].frame;
      nu = x[0] * own.axis[0] + x[1] * own.axis[1] + x[2] * own.axis[2];
    }
    double speed = 0;
    for (int a = 0; a < 3; ++a) speed = std::max(speed, std::fabs(dot(frame.axis[a], nu)));
    fastest = std::max(fastest, speed);
    const double numbers[REPORT_CONTACT] = {c.distance, c.point.x, c.point.y, c.point.z, c.normal.x, c.normal.y, c.normal.z,
        static_cast<double>(mode), mode == SEPARATING && offset.exists ? speed : -1.0, friction_of(p, c, offset), static_cast<double>(c.node1),
        static_cast<double>(c.node2), static_cast<double>(c.pair)};
    std::memcpy(to, numbers, sizeof numbers);
  }
  const double at_rest = 1e-9 * std::max(1e-3, fastest);  // as integrators.impulse_info
  for (int k = 0; k < many; ++k) {
    double& tied = out[REPORT_CONTACT * k + 8];
    tied = tied >= 0 && tied <= at_rest ? 1 : 0;
  }
}

// Contacts and impulses of a whole report, and which rows these are; returns how many rows with an impulse have no room in it.
template <class Size>
int report_rows(const Topology& t, const Parameters& p, const StepInput& in, const Field<Size>& V_after, Workspace<Size>& w, double* out) {
  const Rows<Size>& r = w.rows;
  double *impulse = out + REPORT_HEAD, *contacts = impulse + t.reported();
  report_contacts(t, p, in.dt, V_after, w, contacts);
  const double* x = r.m > 0 ? w.solution.lambda : nullptr;
  int shown = 0, acting = 0;
  auto acts = [&](const double* values, int count) {
    for (int k = 0; k < count; ++k)
      if (values[k] != 0) return 1;
    return 0;
  };
  for (int k = 0; k < r.nc; ++k) acting += acts(x + 3 * k, 3);
  std::fill_n(w.reported, t.reported(), ReportedRow{-1, -1});
  for (int k = 0; k < std::min(t.report_contacts, r.candidates); ++k) {
    const int row = r.order[w.closest[k]], slot = r.candidate[w.closest[k]].slot;
    for (int a = 0; a < 3; ++a) w.reported[3 * k + a] = {row < 0 ? -1 : 3 * row + a, 3 * slot + a};
    if (row < 0) continue;
    std::memcpy(impulse + 3 * k, x + 3 * row, 3 * sizeof(double));
    shown += acts(x + 3 * row, 3);
  }
  const int limits = t.limit_rows();
  auto predicted = [&](int k) { return r.all_limits[k].distance + in.dt * r.all_limits[k].sign * in.v[r.all_limits[k].dof]; };
  least(w.closest, limits, t.report_limits, predicted);
  double* to = impulse + 3 * t.report_contacts;
  ReportedRow* reported = w.reported + 3 * t.report_contacts;
  for (int i = 0; i < t.report_limits; ++i) reported[i].slot = 3 * t.candidates + w.closest[i];
  for (int k = 0; k < r.nl; ++k) {
    const double value = x[3 * r.nc + k];
    acting += value != 0;
    for (int i = 0; i < t.report_limits; ++i)
      if (w.closest[i] == r.limit[k].index) to[i] = value, reported[i].row = 3 * r.nc + k, shown += value != 0;
  }
  for (int k = 0; k < r.nd + r.ne; ++k) {
    const int row = 3 * r.nc + r.nl + k;
    to[t.report_limits + k] = x[row];
    reported[t.report_limits + k] = {row, 3 * t.candidates + limits + k};
  }
  return acting - shown;
}

// q: after the step.
template <class Size>
void write_report(const Topology& t, const Parameters& p, const double* q, const StepInput& in, const Field<Size>& V_after, int passes,
                  Workspace<Size>& w, double* out) {
  const Rows<Size>& r = w.rows;
  std::memset(out, 0, sizeof(double) * report_size(t, in.whole));
  if (in.whole) out[OVERFLOW_ROWS] = report_rows(t, p, in, V_after, w, out);
  const bool solved = r.m > 0;
  out[RESIDUAL] = solved ? w.solution.residual : 0;
  out[ITERATIONS] = solved ? w.solution.iterations : 0;
  out[FALLBACKS] = solved ? (int)w.solution.stage : 0;
  out[STATUS] = solved ? static_cast<double>(w.solution.status) : static_cast<double>(ContactStatus::solved);
  if (!all_finite(w.v_plus, t.nv) || !all_finite(q, t.nq)) out[STATUS] = static_cast<double>(ContactStatus::non_finite);
  out[IS_DEGENERATE] = solved && w.solution.degenerate, out[IS_SELECTED] = solved ? w.solution.selected : 1;
  out[DROPPED] = r.dropped, out[PUSH_OUT_DROPPED] = r.push_out_dropped;
  out[ACTIVE_CONTACTS] = r.nc, out[ACTIVE_ROWS] = r.m, out[PASSES] = passes;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
