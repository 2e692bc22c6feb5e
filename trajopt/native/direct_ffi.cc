// Direct calls of one step and of its Jacobian: few arrays, since each of them costs a microsecond to hand over or to take back.
//
// In: constants (the parameters, dt, and what else belongs to the system alone), q, v, u, the generalised force tau and, for the
// Jacobian, d tau / d u. Out: the report of the step, q+ and v+; beside the Jacobian the three are one array. Where q, v or u holds a
// number that is not finite, the report's status says so and nothing else is written.
//
// motors: where it is not zero, the constants go on with the lever arms (nv, motors), arms u is added to tau, and they are d tau / d u.
// A product of that size within the program would have XLA hand the call over to another thread.
#include "engine.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {
namespace {

struct Next { double *report, *q, *v; };

int64_t count(const Array& a) { return a.element_count(); }

// Where the lever arms begin in the constants.
int64_t arms_at(const Topology& t) { return Parameters::size(t) + 1; }

ffi::Error check(const Topology& t, const Array& constants, const Array& q, const Array& v, const Array& u, const Array& tau,
                 int64_t motors, int64_t integrator) {
  const int64_t least = arms_at(t) + t.nv * motors;
  if (count(constants) < least) return wrong_size("constants", count(constants), least);
  if (motors > 0 && count(u) != motors) return wrong_size("u", count(u), motors);
  if (count(q) != t.nq) return wrong_size("q", count(q), t.nq);
  if (count(v) != t.nv) return wrong_size("v", count(v), t.nv);
  if (count(tau) != t.nv) return wrong_size("tau", count(tau), t.nv);
  return known_integrator(t, integrator);
}

struct At { const double *constants, *q, *v, *u, *tau; };

At at(Border& border, const Array& constants, const Array& q, const Array& v, const Array& u, const Array& tau) {
  return {border.in(constants), border.in(q), border.in(v), border.in(u), border.in(tau)};
}

// A step; with its Jacobian where `linear` is not null.
void take(Own& mine, const At& at, int64_t controls, const Next& next, const Linear* linear, int64_t motors, int64_t integrator) {
  const Topology& t = *mine.topology;
  if (!(all_finite(at.q, t.nq) && all_finite(at.v, t.nv) && all_finite(at.u, controls))) {
    next.report[STATUS] = static_cast<double>(ContactStatus::non_finite);
    return;
  }
  thread_local std::vector<double> impulse, force;  // impulses of all rows are not asked for
  impulse.resize(t.impulses());
  force.assign(at.tau, at.tau + t.nv);
  const double* arms = at.constants + arms_at(t);
  for (int64_t i = 0; i < t.nv; ++i)
    for (int64_t k = 0; k < motors; ++k) force[i] += arms[i * motors + k] * at.u[k];
  const StepOutput out{next.q, next.v, next.report, impulse.data(), linear};
  mine.engine->run({at.constants, at.q, at.v, force.data(), nullptr, nullptr, at.constants[Parameters::size(t)],
                    0, static_cast<Integrator>(integrator)}, out);
}

ffi::Error direct_step(Array constants, Array q, Array v, Array u, Array tau, Result report, Result q_next, Result v_next,
                       int64_t topology, int64_t integrator, int64_t motors) {
  Own* mine = own(topology);
  if (!mine) return unknown_topology();
  const Topology& t = *mine->topology;
  if (ffi::Error error = check(t, constants, q, v, u, tau, motors, integrator); error.failure()) return error;
  Border& border = mine->border;
  border.begin();
  const Next next{border.out(report, 0, report_size(t)), border.out(q_next, 0, t.nq), border.out(v_next, 0, t.nv)};
  take(*mine, at(border, constants, q, v, u, tau), count(u), next, nullptr, motors, integrator);
  border.finish();
  return ffi::Error::Success();
}

// packed: report, q+, v+.
ffi::Error linearize_packed(const Array& constants, const Array& q, const Array& v, const Array& u, const Array& tau, const Array& gain,
                            Result& packed, Result& A, Result& B, Result* C, Result* D, int64_t topology, int64_t integrator, int64_t motors) {
  Own* mine = own(topology);
  if (!mine) return unknown_topology();
  const Topology& t = *mine->topology;
  const int64_t columns = motors > 0 ? motors : gain.dimensions().back(), n = 2 * t.nv, rows = C ? t.reported() : 0;
  if (ffi::Error error = check(t, constants, q, v, u, tau, motors, integrator); error.failure()) return error;
  if (motors == 0 && count(gain) != t.nv * columns) return wrong_size("gain", count(gain), t.nv * columns);
  Border& border = mine->border;
  border.begin();
  const At from = at(border, constants, q, v, u, tau);
  double *report = border.out(packed, 0, report_size(t) + t.nq + t.nv), *q_next = report + report_size(t);
  const Linear linear{motors > 0 ? from.constants + arms_at(t) : border.in(gain), static_cast<int>(columns), border.out(A, 0, n * n),
                      border.out(B, 0, n * columns), C ? border.out(*C, 0, rows * n) : nullptr, D ? border.out(*D, 0, rows * columns) : nullptr};
  take(*mine, from, count(u), {report, q_next, q_next + t.nq}, &linear, motors, integrator);
  border.finish();
  return ffi::Error::Success();
}

ffi::Error direct_linearize(Array constants, Array q, Array v, Array u, Array tau, Array gain, Result packed, Result A, Result B,
                            int64_t topology, int64_t integrator, int64_t motors) {
  return linearize_packed(constants, q, v, u, tau, gain, packed, A, B, nullptr, nullptr, topology, integrator, motors);
}

// The same with the derivative of the reported impulses by the state, C, and by u, D.
ffi::Error direct_linearize_impulse(Array constants, Array q, Array v, Array u, Array tau, Array gain, Result packed, Result A, Result B,
                                    Result C, Result D, int64_t topology, int64_t integrator, int64_t motors) {
  return linearize_packed(constants, q, v, u, tau, gain, packed, A, B, &C, &D, topology, integrator, motors);
}

}  // namespace
}  // namespace TRAJOPT_ISA
}  // namespace trajopt

#pragma GCC visibility push(default)

#define TRAJOPT_DIRECT ffi::Ffi::Bind().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>()
#define TRAJOPT_RESULTS .Ret<trajopt::Array>().Ret<trajopt::Array>().Ret<trajopt::Array>()
#define TRAJOPT_WHICH .Attr<int64_t>("topology").Attr<int64_t>("integrator").Attr<int64_t>("motors")
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_direct_step, trajopt::direct_step, TRAJOPT_DIRECT TRAJOPT_RESULTS TRAJOPT_WHICH);
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_direct_linearize, trajopt::direct_linearize, TRAJOPT_DIRECT.Arg<trajopt::Array>() TRAJOPT_RESULTS TRAJOPT_WHICH);
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_direct_linearize_impulse, trajopt::direct_linearize_impulse,
                              TRAJOPT_DIRECT.Arg<trajopt::Array>() TRAJOPT_RESULTS.Ret<trajopt::Array>().Ret<trajopt::Array>() TRAJOPT_WHICH);

#pragma GCC visibility pop
