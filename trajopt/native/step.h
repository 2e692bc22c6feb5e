// One step of a system: M (v+ - v) = dt (tau - h - c) + J^T lambda with the contact law between lambda and nu = J v+ + b, and the motion
// of the configuration (docs/contact-semantics.md, trajopt/dynamics/integrators.py).
#pragma once
#include "runge_kutta.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// The work of a step ends: that of an iteration of the contact solve grows as the cube of its rows. In up to 60 rows a step may take
// `BUDGET` iterations (contact_solve.h), in 300 rows 16.
constexpr double FEWEST_ROWS = 60, MOST_WORK = BUDGET * FEWEST_ROWS * FEWEST_ROWS * FEWEST_ROWS, LEAST_ITERATIONS = 10;
inline double work_of(int rows) { return std::pow(std::max<double>(FEWEST_ROWS, rows), 3); }

constexpr double TOUCHES = 1e-10;  // share of the problem's velocities by which a row that is left out has to part

// The velocity that the step would reach without impulses, into w.v_free; M is factorised.
template <class Size>
void free_motion(const Topology& t, const Parameters& p, const double* q, const StepInput& in, Workspace<Size>& w) {
  free_acceleration(t, p, q, in.v, in.tau, in.dt, w.v_free, w);
  std::memcpy(w.v_before, in.v, sizeof(double) * t.nv);
  for (int k = 0; k < t.nv; ++k) w.v_free[k] = in.v[k] + in.dt * w.v_free[k];
}

template <class Size> void link_velocities(const Topology& t, const Parameters& p, const double* v, Field<Size> out, Workspace<Size>& w) {
  expand_velocity(t, p, v, w.tree_velocity);
  velocities(t, w.kin.S, w.tree_velocity, out, w.none);
}

// The start of the next solve into w.init: the impulses of the last one, of `contacts` and `limits`, zero for the rows found since.
template <class Size> void start_from_last(int contacts, int limits, Workspace<Size>& w) {
  const Rows<Size>& r = w.rows;
  const double* last = w.solution.lambda;
  double* x = std::copy_n(last, 3 * contacts, w.init);
  x = std::fill_n(x, 3 * (r.nc - contacts), 0.0);
  x = std::copy_n(last + 3 * contacts, limits, x);
  x = std::fill_n(x, r.nl - limits, 0.0);
  std::copy_n(last + 3 * contacts + limits, r.nd + r.ne, x);
}

// The impulses of the rows that act, and v+; returns the number of problems solved until no row left
// out was violated or touched: a contact that others hold back takes its share of the shortest impulse. The first rows are those that the
// free velocity violates or that touch at the velocity before the step. The first solve starts at zero (where the law has several
// solutions, which is found depends on the start, and nothing but (q, v, tau) may decide), each other one where the last one ended.
template <class Size>
int solve_rows(const Topology& t, const Parameters& p, const StepInput& in, Workspace<Size>& w, Field<Size>& V_after) {
  Rows<Size>& r = w.rows;
  int passes = 0, contacts = 0, limits = 0;  // contacts, limits: of the last solve
  V_after = w.V_free;
  std::memcpy(w.v_plus, w.v_free, sizeof(double) * w.size.lanes());
  link_velocities(t, p, w.v_free, w.V_free, w);
  int found = choose(t, p, w.kin, w.dynamics.V, w.V_free, w.v_free, in.dt, 0.0, r);
  const double still = TOUCHES * std::max(1e-3, r.fastest), soon = HELD * r.fastest;
  if (found > 0 && r.slowest < still)  // contacts that rest on what falls, of which rounding would choose some
    found += choose(t, p, w.kin, w.dynamics.V, w.V_free, w.v_free, in.dt, -still, r);
  if (found > 0) found += choose(t, p, w.kin, w.dynamics.V, w.dynamics.V, in.v, in.dt, -soon, r);  // held so far: mostly again
  while (found > 0 && (passes == 0 || w.work < MOST_WORK)) {
    if (passes == 0) invert(w.size, t, w.dynamics);
    ++passes;
    assemble(w.size, t, p, w.kin, w.dynamics.inverse, w.v_free, w.v_before, in.dt, r);
    w.problem.contacts = r.nc, w.problem.limits = r.nl, w.problem.dry = r.nd + r.ne;
    w.problem.G = r.G, w.problem.stride = r.stride, w.problem.g = r.g, w.problem.mu = r.mu, w.problem.bound = r.bound;
    w.problem.softness = t.smoothed ? r.softness : nullptr, w.problem.before = r.before;
    if (passes > 1) start_from_last(contacts, limits, w);
    contacts = r.nc, limits = r.nl;
    const double iteration = work_of(r.m);
    const int budget = static_cast<int>(std::max(LEAST_ITERATIONS, (MOST_WORK - w.work) / iteration));
    w.solution = solve_contacts(w.problem, passes > 1 ? w.init : nullptr, {p.tolerance, t.max_iterations, budget}, w.solver);
    w.work += iteration * std::max(1, w.solution.iterations);
    push(w);
    V_after = w.V_after;
    link_velocities(t, p, w.v_plus, w.V_after, w);
    const double fastest = std::max(1e-3, approach_scale(w.problem));
    found = choose(t, p, w.kin, w.dynamics.V, w.V_after, w.v_plus, in.dt, -TOUCHES * fastest, r);
  }
  return passes;
}

// Solves the rows, and where their problem stays unsolved while push-outs or bounces ask for velocities, again without these: of that
// problem v = 0 is an admissible velocity. p becomes the law that was solved.
template <class Size>
int solve_or_give_way(const Topology& t, const StepInput& in, const double* q, Parameters& p, Workspace<Size>& w, Field<Size>& V_after) {
  const int dropped = w.rows.dropped, passes = solve_rows(t, p, in, w, V_after);
  const bool unsolved = passes > 0 && (w.solution.status == ContactStatus::stalled || w.solution.status == ContactStatus::infeasible);
  if (!unsolved || !w.rows.pushes_out()) return passes;
  p = p.without_push_out();
  drop_push_out(t, p, q, in.v, in.dt, dropped, w.rows);
  return solve_rows(t, p, in, w, V_after);
}

// The same of the law on its central path, under which every row acts (relaxed.h).
template <class Size>
int solve_relaxed(const Topology& t, const StepInput& in, const Parameters& p, Workspace<Size>& w, Field<Size>& V_after) {
  V_after = w.V_free;
  std::memcpy(w.v_plus, w.v_free, sizeof(double) * w.size.lanes());
  choose_all(t, p, in.dt, w);
  if (w.rows.nc + w.rows.nl + w.rows.nd + w.rows.ne == 0) return 0;
  invert(w.size, t, w.dynamics);
  rows_of_problem(w.size, t, p, w.kin, w.dynamics.inverse, in.dt, w.rows);
  for (int k = 0; k < w.rows.ne; ++k) w.relaxed.error[k] = p.erp / in.dt * w.rows.equality.error[k];
  ContactSolution& s = w.solution;
  s.lambda = w.relaxed.lambda, s.nu = w.relaxed.nu, s.cone_mode = w.relaxed.mode;
  CentralPath<Size>(t, p, w).solve();
  V_after = w.V_after;
  link_velocities(t, p, w.v_plus, w.V_after, w);
  return 1;
}

constexpr int LOOKS = 4;  // in which shapes that were left out are looked at, since the impulses have set them in motion

// Chooses and solves the rows, again where shapes were missed, unless only the closest contacts act; returns the number of problems
// solved. p becomes the law that was solved.
template <class Size>
int act(const Topology& t, const StepInput& in, const double* q, Parameters& p, Workspace<Size>& w, Field<Size>& V_after) {
  const Parameters law = p;
  std::fill_n(w.rows.pairs.missed, t.shape_pairs.size(), false), std::fill_n(w.rows.planes.missed, t.shape_planes.size(), false);
  w.work = 0;
  for (int look = 1;; ++look) {
    p = law;
    begin_rows(t, p, w.kin, w.dynamics.V, q, in.v, in.dt, in.given, in.given_rows, in.whole, w.rows);
    const int passes = t.relaxed ? solve_relaxed(t, in, p, w, V_after) : solve_or_give_way(t, in, q, p, w, V_after);
    move_shapes(t, w.kin, V_after, w.rows.pairs);
    const int missed = mark_missed(t, in.dt, w.rows.pairs) + mark_missed(t, w.kin, V_after, in.dt, w.rows.planes);
    if (missed == 0) return passes;
    if (look == LOOKS || t.max_contacts >= 0 || !all_finite(w.v_plus, t.nv)) {
      w.rows.dropped += missed;
      return passes;
    }
  }
}

template <class Size> void step(const Topology& t, const StepInput& in, const StepOutput& out, Workspace<Size>& w) {
  Parameters p(in.parameters, t);
  if (in.integrator > Integrator::MOREAU) return explicit_step(t, p, in, out, w);
  const double rest = in.moreau() ? 0.5 * in.dt : in.dt;
  const double* q = in.q;
  if (in.moreau()) integrate(t, w.balls, in.q, rest, in.v, w.middle), q = w.middle;
  free_motion(t, p, q, in, w);
  equality_rows(w.size, t, p, w.kin, q, w.rows.equality);
  Field<Size> V_after;
  const int passes = act(t, in, q, p, w, V_after);
  std::memcpy(out.v, w.v_plus, sizeof(double) * t.nv);
  integrate(t, w.balls, q, rest, w.v_plus, out.q);
  write_report(t, p, out.q, in, V_after, passes, w, out.report);
  // The report's table of rows is free now: positions of limits and contacts are read no more.
  if (!out.linear) return;
  if (passes == 0) invert(w.size, t, w.dynamics);
  linearize(t, p, in.dt, rest, in.moreau(), in.v, in.slopes, w, *out.linear);
  if (!finite(t, *out.linear)) out.report[STATUS] = static_cast<double>(ContactStatus::non_finite);
  if (out.report[STATUS] == static_cast<double>(ContactStatus::solved)) name_one_sided(t, in.moreau(), w, out.report);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
