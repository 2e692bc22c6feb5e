// Direct calls of one step and of its Jacobian: few arrays, since each of them costs a microsecond to hand over or to take back.
//
// In: constants (the parameters, dt, and what else belongs to the system alone), q, v, u, the generalised force tau and, for the
// Jacobian, d tau / d u. Out: the report of the step, q+ and v+; beside the Jacobian the three are one array. Where q, v or u holds a
// number that is not finite, the report's status says so and nothing else is written.
//
// motors: where it is not zero, the constants go on with the lever arms (nv, motors), arms u is added to tau, and they are d tau / d u.
// A product of that size within the program would have XLA hand the call over to another thread.
#include "engine.h"
#include "samples.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {
namespace {

struct Next { double *report, *q, *v; };

int64_t count(const Array& a) { return static_cast<int64_t>(a.element_count()); }

bool finite(const Array& a) { return all_finite(a.typed_data(), count(a)); }

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

// A step; with its Jacobian where `linear` is not null.
ffi::Error take(Own& mine, const Array& constants, const Array& q, const Array& v, const Array& u, const Array& tau, const Next& next,
                const Linear* linear, int64_t motors, int64_t integrator) {
  const Topology& t = *mine.topology;
  if (ffi::Error error = check(t, constants, q, v, u, tau, motors, integrator); error.failure()) return error;
  if (!(finite(q) && finite(v) && finite(u))) {
    next.report[STATUS] = static_cast<double>(ContactStatus::non_finite);
    return ffi::Error::Success();
  }
  thread_local std::vector<double> impulse, force;  // impulses of all rows are not asked for
  impulse.resize(t.impulses());
  force.assign(tau.typed_data(), tau.typed_data() + t.nv);
  const double *numbers = constants.typed_data(), *arms = numbers + arms_at(t);
  for (int64_t i = 0; i < t.nv; ++i)
    for (int64_t k = 0; k < motors; ++k) force[i] += arms[i * motors + k] * u.typed_data()[k];
  const StepOutput out{next.q, next.v, next.report, impulse.data(), linear};
  mine.engine->run({numbers, q.typed_data(), v.typed_data(), force.data(), nullptr, nullptr, numbers[Parameters::size(t)],
                    0, static_cast<Integrator>(integrator)}, out);
  return ffi::Error::Success();
}

ffi::Error direct_step(Array constants, Array q, Array v, Array u, Array tau, Result report, Result q_next, Result v_next,
                       int64_t topology, int64_t integrator, int64_t motors) {
  Own* mine = own(topology);
  if (!mine) return unknown_topology();
  return take(*mine, constants, q, v, u, tau, {report->typed_data(), q_next->typed_data(), v_next->typed_data()}, nullptr, motors, integrator);
}

// packed: report, q+, v+.
ffi::Error linearize_packed(const Array& constants, const Array& q, const Array& v, const Array& u, const Array& tau, const Array& gain,
                            Result& packed, Result& A, Result& B, double* C, double* D, int64_t topology, int64_t integrator, int64_t motors) {
  Own* mine = own(topology);
  if (!mine) return unknown_topology();
  const Topology& t = *mine->topology;
  double *report = packed->typed_data(), *q_next = report + report_size(t), *v_next = q_next + t.nq;
  const int64_t columns = motors > 0 ? motors : gain.dimensions().back();
  if (motors == 0 && count(gain) != t.nv * columns) return wrong_size("gain", count(gain), t.nv * columns);
  const double* by_u = motors > 0 ? constants.typed_data() + arms_at(t) : gain.typed_data();
  const Linear linear{by_u, static_cast<int>(columns), A->typed_data(), B->typed_data(), C, D};
  return take(*mine, constants, q, v, u, tau, {report, q_next, v_next}, &linear, motors, integrator);
}

ffi::Error direct_linearize(Array constants, Array q, Array v, Array u, Array tau, Array gain, Result packed, Result A, Result B,
                            int64_t topology, int64_t integrator, int64_t motors) {
  return linearize_packed(constants, q, v, u, tau, gain, packed, A, B, nullptr, nullptr, topology, integrator, motors);
}

// The same with the derivative of the reported impulses by the state, C, and by u, D.
ffi::Error direct_linearize_impulse(Array constants, Array q, Array v, Array u, Array tau, Array gain, Result packed, Result A, Result B,
                                    Result C, Result D, int64_t topology, int64_t integrator, int64_t motors) {
  return linearize_packed(constants, q, v, u, tau, gain, packed, A, B, C->typed_data(), D->typed_data(), topology, integrator, motors);
}

}  // namespace
}  // namespace TRAJOPT_ISA
}  // namespace trajopt

#pragma GCC visibility push(default)

#define TRAJOPT_DIRECT ffi::Ffi::Bind().Arg<Array>().Arg<Array>().Arg<Array>().Arg<Array>().Arg<Array>()
#define TRAJOPT_RESULTS .Ret<Array>().Ret<Array>().Ret<Array>()
#define TRAJOPT_WHICH .Attr<int64_t>("topology").Attr<int64_t>("integrator").Attr<int64_t>("motors")
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_direct_step, trajopt::direct_step, TRAJOPT_DIRECT TRAJOPT_RESULTS TRAJOPT_WHICH);
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_direct_linearize, trajopt::direct_linearize, TRAJOPT_DIRECT.Arg<Array>() TRAJOPT_RESULTS TRAJOPT_WHICH);
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_direct_linearize_impulse, trajopt::direct_linearize_impulse,
                              TRAJOPT_DIRECT.Arg<Array>() TRAJOPT_RESULTS.Ret<Array>().Ret<Array>() TRAJOPT_WHICH);

#pragma GCC visibility pop
