// The steps of the core behind XLA's foreign-function interface: one handler, whatever is computed. A batch is a loop inside it, spread
// over XLA's threads.
#include "engine.h"
#include "policy.h"
#include "spread.h"
#include "xla/ffi/api/ffi.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {
namespace {

// Arguments of a call. A single step has u (nu) and tau (nv), T steps in a row (T, nu) and (T, nv). The generalised force of a step is
// tau + arms u, with the lever arms (nv, motors) of the motors behind the parameters. given, slopes: candidates handed over, and how they
// move; gain (nv, k): the directions of tau along which the step is differentiated, the lever arms where there are motors. whole: whether
// the whole report of each step is the last result.
struct Call {
  Samples parameters, q, v, u, tau, given, slopes, gain;
  Integrator integrator;
  int motors;
  bool whole;

  bool sequence() const { return tau.rank() > 1; }
  int64_t steps() const { return sequence() ? tau.axis(0) : 1; }
  int64_t controls() const { return u.size() / std::max<int64_t>(1, steps()); }
};
// u = clip(u + K (x (-) x_bar), lower, upper) of T steps in a row takes the place of u.
struct Policy { Samples x_bar, K, lower, upper; };

ffi::Error wrong_size(const char* what, int64_t received, int64_t expected) {
  return ffi::Error::InvalidArgument(std::string("trajopt: ") + what + " holds " + std::to_string(received) + " numbers, expected " + std::to_string(expected));
}

ffi::Error check(const Topology& t, const Call& c, const std::optional<Policy>& policy) {
  const int64_t steps = c.steps(), nu = c.controls(), least = Parameters::size(t) + t.nv * c.motors;
  if (c.parameters.size() < least) return wrong_size("parameters", c.parameters.size(), least);
  if (c.q.size() != t.nq) return wrong_size("q", c.q.size(), t.nq);
  if (c.v.size() != t.nv) return wrong_size("v", c.v.size(), t.nv);
  if (c.tau.size() != steps * t.nv) return wrong_size("tau", c.tau.size(), steps * t.nv);
  if (c.motors > 0 && nu != c.motors) return wrong_size("u", nu, c.motors);
  if (c.given.axis(0) > t.given || (c.sequence() && c.given.axis(0) > 0)) return wrong_size("candidates", c.given.axis(0), c.sequence() ? 0 : t.given);
  if (policy && policy->x_bar.size() != steps * (t.nq + t.nv)) return wrong_size("x_bar", policy->x_bar.size(), steps * (t.nq + t.nv));
  if (policy && policy->K.size() != steps * nu * 2 * t.nv) return wrong_size("K", policy->K.size(), steps * nu * 2 * t.nv);
  if (policy && (policy->lower.size() != nu || policy->upper.size() != nu)) return wrong_size("a bound of u", policy->lower.size(), nu);
  if (c.motors == 0 && c.gain.size() != t.nv * c.gain.axis(1)) return wrong_size("gain", c.gain.size(), t.nv * c.gain.axis(1));
  if (c.integrator < Integrator::SEMI_IMPLICIT || c.integrator > Integrator::RUNGE_KUTTA)
    return ffi::Error::InvalidArgument("trajopt: there is no integrator " + std::to_string(static_cast<int>(c.integrator)));
  if (c.integrator > Integrator::MOREAU && !t.free())
    return ffi::Error::InvalidArgument("trajopt: steps by explicit integrators are those of a model on which no impulses act");
  return ffi::Error::Success();
}

// The results: head of the report, q+ and v+; more: none; A and B; A, B, C and D, the derivative of the reported impulses; these and the
// two arrays of answers.h; under a policy the controls; the whole report where it is asked for.
struct Results {
  Result head, q, v;
  std::vector<Result> more;
  std::optional<Result> whole;
};

// The steps of sample i.
void take_sample(ThreadEngine& own, const Call& c, const std::optional<Policy>& policy, int64_t i, const Batch& batch, Results& to) {
  const Topology& t = *own.topology;
  Border& border = own.border;
  border.begin();
  std::vector<Result>& more = to.more;
  const int64_t steps = c.steps(), nu = c.controls(), n = 2 * t.nv;
  const int64_t whole = report_size(t, true);
  const bool motion_of_impulses = !policy && more.size() >= 4;  // which are those of a whole report
  auto in = [&](const Samples& s) { return s.at(i, batch, border); };
  auto out = [&](Result& result, int64_t numbers) { return border.out(result, i * numbers, numbers); };
  const double *numbers = in(c.parameters), *arms = numbers + Parameters::size(t), *tau = in(c.tau), *u = in(c.u);
  StepInput now{numbers, in(c.q), in(c.v), tau, in(c.given), in(c.slopes), Parameters::time_step(numbers), static_cast<int>(c.given.axis(0)), c.integrator,
                c.whole || motion_of_impulses};
  double *head = out(to.head, steps * REPORT_HEAD), *report = to.whole ? out(*to.whole, steps * whole) : nullptr;
  StepOutput next{out(to.q, steps * t.nq), out(to.v, steps * t.nv), own.report.data(), nullptr};
  Linear linear{};
  if (!policy && more.size() >= 2) {
    linear = {c.motors > 0 ? arms : in(c.gain), c.motors > 0 ? c.motors : static_cast<int>(c.gain.axis(1)), nullptr, nullptr};
    linear.A = out(more[0], n * n), linear.B = out(more[1], n * linear.columns);
    if (motion_of_impulses) linear.C = out(more[2], t.reported() * n), linear.D = out(more[3], t.reported() * linear.columns);
    if (more.size() == 6) linear.answers = {out(more[4], (t.nv + t.reported()) * answer_columns(t)), out(more[5], t.reported() + t.nv)};
    next.linear = &linear;
  }
  PolicyStep follow{};
  if (policy) follow = {in(policy->x_bar), u, in(policy->K), in(policy->lower), in(policy->upper), static_cast<int>(nu)};
  double* controls = policy ? out(more[0], steps * nu) : nullptr;
  for (int64_t k = 0; k < steps; ++k) {
    const double* control = u + k * nu;
    if (policy) {
      follow_policy(t, own.engine->balls(), follow.at(t, k), now.q, now.v, own.motion.data(), controls + k * nu);
      control = controls + k * nu, Border::settle(more[0], controls + k * nu, nu);
    }
    now.tau = tau + k * t.nv;
    if (c.motors > 0) now.tau = drive(arms, control, now.tau, t.nv, c.motors, own.force.data());
    own.engine->run(now, next);
    if (!all_finite(control, nu)) next.report[STATUS] = static_cast<double>(ContactStatus::non_finite);  // that tau may have clipped
    std::memcpy(head + k * REPORT_HEAD, next.report, sizeof(double) * REPORT_HEAD);
    if (report) std::memcpy(report + k * whole, next.report, sizeof(double) * whole);
    // The state as it is returned is that before the next step: T steps are the same function as one step, T times.
    Border::settle(to.q, next.q, t.nq), Border::settle(to.v, next.v, t.nv);
    now.q = next.q, now.v = next.v;
    next.q += t.nq, next.v += t.nv;
  }
  border.finish();
}

ffi::Error take_steps(ffi::ThreadPool pool, Array parameters, Array q, Array v, Array u, Array tau, Array given, Array slopes, Array gain,
                      ffi::RemainingArgs policy_arguments, Result head, Result q_next, Result v_next, ffi::RemainingRets others,
                      int64_t topology, int64_t integrator, int64_t motors, int64_t whole) {
  ThreadEngine* own = thread_engine(topology);
  if (!own)
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                      "trajopt: this process has not registered the model's topology; build the system before running a compiled program of it");
  const size_t axes = q.dimensions().size() - 1;
  const Call call{{parameters, axes}, {q, axes}, {v, axes}, {u, axes}, {tau, axes}, {given, axes}, {slopes, axes}, {gain, axes},
                  static_cast<Integrator>(integrator), static_cast<int>(motors), whole != 0};
  std::optional<Policy> policy;
  if (policy_arguments.size() == 4) {
    auto argument = [&](size_t k) { return Samples(*policy_arguments.get<Array>(k), axes); };
    policy = {argument(0), argument(1), argument(2), argument(3)};
  }
  if (ffi::Error error = check(*own->topology, call, policy); error.failure()) return error;
  const size_t arrays = others.size() - call.whole;
  if (arrays == 6 && !own->topology->rigid()) return ffi::Error::InvalidArgument("trajopt: answers are those of rigid contact");
  Results results{head, q_next, v_next, {}, {}};
  if (call.whole) results.whole = *others.get<Array>(arrays);
  for (size_t k = 0; k < arrays; ++k) results.more.push_back(*others.get<Array>(k));
  const Batch batch(*head, axes);
  spread(pool, batch.count, call.steps(), [&](int64_t begin, int64_t end) {
    ThreadEngine& here = *thread_engine(topology);
    for (int64_t i = begin; i < end; ++i) take_sample(here, call, policy, i, batch, results);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace TRAJOPT_ISA
}  // namespace trajopt

#pragma GCC visibility push(default)  // everything else stays inside the shared object

XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_steps, trajopt::take_steps,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()
                                  .Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>()
                                  .Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().RemainingArgs()
                                  .Ret<trajopt::Array>().Ret<trajopt::Array>().Ret<trajopt::Array>().RemainingRets()
                                  .Attr<int64_t>("topology").Attr<int64_t>("integrator").Attr<int64_t>("motors").Attr<int64_t>("whole"));

#pragma GCC visibility pop
