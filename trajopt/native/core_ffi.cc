// The compiled core behind XLA's foreign-function interface: step, linearize and rollout; batches are loops inside the handlers,
// spread over XLA's threads.
#include <array>
#include <mutex>
#include <unordered_map>

#include "engine.h"
#include "policy.h"
#include "spread.h"
#include "step.h"
#include "xla/ffi/api/ffi.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {
namespace {

// -- topologies by content, workspaces by thread -----------------------------------------------------------------------------

template <class Size> class SizedEngine final : public Engine {
 public:
  SizedEngine(std::shared_ptr<const Topology> t, Size n) : topology_(std::move(t)), workspace_(n, *topology_) {}
  void run(const StepInput& in, const StepOutput& out) override { step(*topology_, in, out, workspace_); }
  const std::vector<BallJoint>& balls() const override { return workspace_.balls; }

 private:
  std::shared_ptr<const Topology> topology_;
  Workspace<Size> workspace_;
};

std::unique_ptr<Engine> make_engine(std::shared_ptr<const Topology> t) {
  switch (t->lanes) {
    case 8: return std::make_unique<SizedEngine<Fixed<8>>>(t, Fixed<8>{});
    case 16: return std::make_unique<SizedEngine<Fixed<16>>>(t, Fixed<16>{});
    case 24: return std::make_unique<SizedEngine<Fixed<24>>>(t, Fixed<24>{});
    case 32: return std::make_unique<SizedEngine<Fixed<32>>>(t, Fixed<32>{});
    case 40: return std::make_unique<SizedEngine<Fixed<40>>>(t, Fixed<40>{});
    case 48: return std::make_unique<SizedEngine<Fixed<48>>>(t, Fixed<48>{});
    default: return std::make_unique<SizedEngine<Open>>(t, Open{t->lanes});
  }
}

std::mutex topologies_lock;
std::unordered_map<int64_t, std::shared_ptr<const Topology>> topologies;

std::shared_ptr<const Topology> find_topology(int64_t key) {
  const std::lock_guard<std::mutex> lock(topologies_lock);
  const auto found = topologies.find(key);
  return found == topologies.end() ? nullptr : found->second;
}

}  // namespace

Own* own(int64_t key) {
  thread_local std::unordered_map<int64_t, Own> all;
  thread_local int64_t last_key = 0;
  thread_local Own* last = nullptr;
  if (last && last_key == key) return last;
  Own& mine = all[key];
  if (!mine.engine) {
    mine.topology = find_topology(key);
    if (!mine.topology) { all.erase(key); return nullptr; }
    mine.engine = make_engine(mine.topology);
  }
  last_key = key;
  return last = &mine;
}

ffi::Error unknown_topology() {
  return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                    "trajopt: this process has not registered the model's topology; build the system before running a compiled program of it");
}
ffi::Error wrong_size(const char* what, int64_t received, int64_t expected) {
  return ffi::Error::InvalidArgument(std::string("trajopt: ") + what + " holds " + std::to_string(received) + " numbers, expected " + std::to_string(expected));
}
ffi::Error known_integrator(const Topology& t, int64_t integrator) {
  if (integrator < 0 || integrator > static_cast<int64_t>(Integrator::RUNGE_KUTTA))
    return ffi::Error::InvalidArgument("trajopt: there is no integrator " + std::to_string(integrator));
  if (integrator > static_cast<int64_t>(Integrator::MOREAU) && !t.free())
    return ffi::Error::InvalidArgument("trajopt: steps by explicit integrators are those of a model on which no impulses act");
  return ffi::Error::Success();
}

namespace {

// -- batches -------------------------------------------------------------------------------------------------------------------

struct Call {  // arguments that step, linearize and rollout share
  Samples parameters, dt, q, v, tau, given, slopes;
  int64_t given_rows, integrator;
};

ffi::Error check(const Topology& t, const Call& c, int64_t steps) {
  if (c.parameters.size() != Parameters::size(t)) return wrong_size("parameters", c.parameters.size(), Parameters::size(t));
  if (c.q.size() != t.nq) return wrong_size("q", c.q.size(), t.nq);
  if (c.v.size() != t.nv) return wrong_size("v", c.v.size(), t.nv);
  if (c.tau.size() != steps * t.nv) return wrong_size("tau", c.tau.size(), steps * t.nv);
  if (c.given_rows > t.given) return wrong_size("candidates", c.given_rows, t.given);
  return known_integrator(t, c.integrator);
}
StepInput input(const Call& c, size_t i, const int64_t* batch, size_t axes, Border& border) {
  auto at = [&](const Samples& s) { return s.at(i, batch, axes, border); };
  return {at(c.parameters), at(c.q), at(c.v), at(c.tau), at(c.given), at(c.slopes), *at(c.dt),
          static_cast<int>(c.given_rows), static_cast<Integrator>(c.integrator)};
}

// The results of the steps of sample i.
class Steps {
 public:
  struct To { Result &q, &v, &report, &impulse; };
  Steps(Border& border, const To& to, const Topology& t, int64_t i, int64_t steps = 1)
      : to_(to), t_(t), q_(out(border, to.q, i, steps * t.nq)), v_(out(border, to.v, i, steps * t.nv)),
        report_(out(border, to.report, i, steps * report_size(t))), impulse_(out(border, to.impulse, i, t.impulses())) {}
  StepOutput output(int64_t k, const Linear* linear) const {
    return {q_ + k * t_.nq, v_ + k * t_.nv, report_ + k * report_size(t_), impulse_, linear};
  }
  // The state after step k, as it is returned, is that before the next one: several steps are the same function as one step repeated.
  void go_on(int64_t k, StepInput& in) const {
    const StepOutput done = output(k, nullptr);
    Border::settle(to_.q, done.q, t_.nq), Border::settle(to_.v, done.v, t_.nv);
    in.q = done.q, in.v = done.v;
  }

 private:
  static double* out(Border& border, Result& to, int64_t i, int64_t size) { return border.out(to, i * size, size); }
  const To to_;
  const Topology& t_;
  double *q_, *v_, *report_, *impulse_;
};

// -- handlers --------------------------------------------------------------------------------------------------------------------

ffi::Error step_handler(ffi::ThreadPool pool, Array parameters, Array dt, Array q, Array v, Array tau, Array given,
                        Result q_next, Result v_next, Result report, Result impulse, int64_t topology, int64_t integrator) {
  Own* mine = own(topology);
  if (!mine) return unknown_topology();
  const Topology& t = *mine->topology;
  const Call call{samples(parameters, 1), samples(dt, 0), samples(q, 1), samples(v, 1), samples(tau, 1),
                  samples(given, 2), samples(given, 2), given.dimensions()[given.dimensions().size() - 2], integrator};
  if (ffi::Error error = check(t, call, 1); error.failure()) return error;
  const auto batch = v_next->dimensions().first(v_next->dimensions().size() - 1);
  const size_t count = v_next->element_count() / std::max(1, t.nv);
  spread(pool, count, 1, [&](int64_t begin, int64_t end) {
    auto& [_, engine, border] = *own(topology);
    for (int64_t i = begin; i < end; ++i) {
      border.begin();
      const Steps out{border, {q_next, v_next, report, impulse}, t, i};
      engine->run(input(call, i, batch.begin(), batch.size(), border), out.output(0, nullptr));
      border.finish();
    }
  });
  return ffi::Error::Success();
}

struct ImpulseSlopes { Result *C, *D; };  // null where the derivative of the impulses is not asked for

ffi::Error linearize_all(ffi::ThreadPool& pool, const Array& parameters, const Array& dt, const Array& q, const Array& v, const Array& tau,
                         const Array& given, const Array& slopes, const Array& gain, Result& q_next, Result& v_next,
                         Result& report, Result& impulse, Result& A, Result& B, ImpulseSlopes impulses, int64_t topology, int64_t integrator) {
  Own* mine = own(topology);
  if (!mine) return unknown_topology();
  const Topology& t = *mine->topology;
  const Call call{samples(parameters, 1), samples(dt, 0), samples(q, 1), samples(v, 1), samples(tau, 1),
                  samples(given, 2), samples(slopes, 2), given.dimensions()[given.dimensions().size() - 2], integrator};
  const Samples gains = samples(gain, 2);
  if (ffi::Error error = check(t, call, 1); error.failure()) return error;
  const int columns = static_cast<int>(gain.dimensions().back());
  if (gains.size() != static_cast<int64_t>(t.nv) * columns) return wrong_size("gain", gains.size(), static_cast<int64_t>(t.nv) * columns);
  const auto batch = v_next->dimensions().first(v_next->dimensions().size() - 1);
  const size_t count = v_next->element_count() / std::max(1, t.nv);
  spread(pool, count, 1, [&](int64_t begin, int64_t end) {
    auto& [_, engine, border] = *own(topology);
    for (int64_t i = begin; i < end; ++i) {
      border.begin();
      auto matrix = [&](Result& to, int64_t size) { return border.out(to, i * size, size); };
      const int64_t n = 2 * t.nv;
      Linear linear{gains.at(i, batch.begin(), batch.size(), border), columns, matrix(A, n * n), matrix(B, n * columns)};
      if (impulses.C) linear.C = matrix(*impulses.C, t.reported() * n), linear.D = matrix(*impulses.D, t.reported() * columns);
      const Steps out{border, {q_next, v_next, report, impulse}, t, i};
      engine->run(input(call, i, batch.begin(), batch.size(), border), out.output(0, &linear));
      border.finish();
    }
  });
  return ffi::Error::Success();
}

ffi::Error linearize_handler(ffi::ThreadPool pool, Array parameters, Array dt, Array q, Array v, Array tau, Array given,
                             Array slopes, Array gain, Result q_next, Result v_next, Result report, Result impulse, Result A, Result B, int64_t topology,
                             int64_t integrator) {
  return linearize_all(pool, parameters, dt, q, v, tau, given, slopes, gain, q_next, v_next, report, impulse, A, B, {nullptr, nullptr},
                       topology, integrator);
}
// The same with the derivative of the reported impulses by the state, C, and by u, D.
ffi::Error linearize_impulse_handler(ffi::ThreadPool pool, Array parameters, Array dt, Array q, Array v, Array tau, Array given,
                                     Array slopes, Array gain, Result q_next, Result v_next, Result report, Result impulse, Result A, Result B,
                                     Result C, Result D, int64_t topology, int64_t integrator) {
  return linearize_all(pool, parameters, dt, q, v, tau, given, slopes, gain, q_next, v_next, report, impulse, A, B,
                       {&C, &D}, topology, integrator);
}

// States after each of the steps under the generalised forces tau (steps, nv), each that of `step_handler`; without handed-over
// candidates. impulse: of the last step.
ffi::Error rollout_handler(ffi::ThreadPool pool, Array parameters, Array dt, Array q, Array v, Array tau,
                           Result qs, Result vs, Result reports, Result impulse, int64_t topology, int64_t integrator) {
  Own* mine = own(topology);
  if (!mine) return unknown_topology();
  const Topology& t = *mine->topology;
  const int64_t steps = tau.dimensions()[tau.dimensions().size() - 2];
  const Call call{samples(parameters, 1), samples(dt, 0), samples(q, 1), samples(v, 1), samples(tau, 2),
                  samples(q, 1), samples(q, 1), 0, integrator};
  if (ffi::Error error = check(t, call, steps); error.failure()) return error;
  const auto batch = vs->dimensions().first(vs->dimensions().size() - 2);
  size_t count = 1;
  for (int64_t axis : batch) count *= axis;
  spread(pool, count, steps, [&](int64_t begin, int64_t end) {
    auto& [_, engine, border] = *own(topology);
    for (int64_t i = begin; i < end; ++i) {
      border.begin();
      StepInput in = input(call, i, batch.begin(), batch.size(), border);
      const Steps out{border, {qs, vs, reports, impulse}, t, i, steps};
      for (int64_t k = 0; k < steps; ++k) {
        engine->run(in, out.output(k, nullptr));
        out.go_on(k, in);
        in.tau += t.nv;
      }
      border.finish();
    }
  });
  return ffi::Error::Success();
}

// States after each of the steps under u = clip(u_bar + K (x (-) x_bar)), tau = arms u, and these controls; as above.
ffi::Error follow_handler(ffi::ThreadPool pool, Array parameters, Array dt, Array q, Array v, Array arms, Array xs, Array us,
                          Array K, Array lower, Array upper, Result qs, Result vs, Result u, Result reports, Result impulse,
                          int64_t topology, int64_t integrator) {
  Own* mine = own(topology);
  if (!mine) return unknown_topology();
  const Topology& t = *mine->topology;
  const int64_t steps = us.dimensions()[us.dimensions().size() - 2], nu = us.dimensions().back(), nx = t.nq + t.nv;
  const Samples a = samples(arms, 2), x_bar = samples(xs, 2), u_bar = samples(us, 2), gains = samples(K, 3), low = samples(lower, 1), high = samples(upper, 1);
  const Call call{samples(parameters, 1), samples(dt, 0), samples(q, 1), samples(v, 1), samples(v, 1),
                  samples(q, 1), samples(q, 1), 0, integrator};
  if (ffi::Error error = check(t, call, 1); error.failure()) return error;
  if (a.size() != t.nv * nu) return wrong_size("arms", a.size(), t.nv * nu);
  if (x_bar.size() != steps * nx) return wrong_size("xs", x_bar.size(), steps * nx);
  if (u_bar.size() != steps * nu) return wrong_size("us", u_bar.size(), steps * nu);
  if (low.size() != nu || high.size() != nu) return wrong_size("the bounds", std::max(low.size(), high.size()), nu);
  if (gains.size() != steps * nu * 2 * t.nv) return wrong_size("gains", gains.size(), steps * nu * 2 * t.nv);
  const auto batch = vs->dimensions().first(vs->dimensions().size() - 2);
  size_t count = 1;
  for (int64_t axis : batch) count *= axis;
  spread(pool, count, steps, [&](int64_t begin, int64_t end) {
    auto& [_, engine, border] = *own(topology);
    thread_local std::vector<double> tau, dx;
    tau.resize(t.nv), dx.resize(2 * t.nv);
    for (int64_t i = begin; i < end; ++i) {
      border.begin();
      auto at = [&](const Samples& s) { return s.at(i, batch.begin(), batch.size(), border); };
      StepInput in = input(call, i, batch.begin(), batch.size(), border);
      const Steps out{border, {qs, vs, reports, impulse}, t, i, steps};
      const double* arm = at(a);
      double* control = border.out(u, i * steps * nu, steps * nu);
      PolicyStep policy{at(x_bar), at(u_bar), at(gains), at(low), at(high), static_cast<int>(nu)};
      in.tau = tau.data();
      for (int64_t k = 0; k < steps; ++k) {
        follow_policy(t, engine->balls(), policy, in.q, in.v, dx.data(), control);
        Border::settle(u, control, nu);
        drive(arm, control, t.nv, static_cast<int>(nu), tau.data());
        engine->run(in, out.output(k, nullptr));
        out.go_on(k, in);
        policy.x_bar += nx, policy.u_bar += nu, policy.K += nu * 2 * t.nv, control += nu;
      }
      border.finish();
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace TRAJOPT_ISA
}  // namespace trajopt

#pragma GCC visibility push(default)  // everything else stays inside the shared object

// Registers a topology under the key that its content has; an empty message on success, else what is wrong with the table.
extern "C" const char* trajopt_register_topology(int64_t key, const int64_t* table, int64_t size) {
  static thread_local std::string message;
  try {
    auto topology = std::make_shared<const trajopt::Topology>(table, size);
    const std::lock_guard<std::mutex> lock(trajopt::topologies_lock);
    trajopt::topologies.emplace(key, std::move(topology));
    return "";
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}
// Sizes of the arrays of a registered topology: parameters, report, impulses.
extern "C" int trajopt_sizes(int64_t key, int64_t* out) {
  const auto t = trajopt::find_topology(key);
  if (!t) return 1;
  out[0] = trajopt::Parameters::size(*t), out[1] = trajopt::report_size(*t), out[2] = t->impulses();
  return 0;
}

#define TRAJOPT_BIND ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()
#define TRAJOPT_STEP_ARGUMENTS .Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>()
#define TRAJOPT_STEP_RESULTS .Ret<trajopt::Array>().Ret<trajopt::Array>().Ret<trajopt::Array>().Ret<trajopt::Array>()
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_step, trajopt::step_handler,
                              TRAJOPT_BIND TRAJOPT_STEP_ARGUMENTS.Arg<trajopt::Array>() TRAJOPT_STEP_RESULTS.Attr<int64_t>("topology").Attr<int64_t>("integrator"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_linearize, trajopt::linearize_handler,
                              TRAJOPT_BIND TRAJOPT_STEP_ARGUMENTS.Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>() TRAJOPT_STEP_RESULTS.Ret<trajopt::Array>()
                                  .Ret<trajopt::Array>().Attr<int64_t>("topology").Attr<int64_t>("integrator"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_linearize_impulse, trajopt::linearize_impulse_handler,
                              TRAJOPT_BIND TRAJOPT_STEP_ARGUMENTS.Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>() TRAJOPT_STEP_RESULTS.Ret<trajopt::Array>()
                                  .Ret<trajopt::Array>().Ret<trajopt::Array>().Ret<trajopt::Array>().Attr<int64_t>("topology").Attr<int64_t>("integrator"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_rollout, trajopt::rollout_handler,
                              TRAJOPT_BIND TRAJOPT_STEP_ARGUMENTS TRAJOPT_STEP_RESULTS.Attr<int64_t>("topology").Attr<int64_t>("integrator"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_follow, trajopt::follow_handler,
                              TRAJOPT_BIND TRAJOPT_STEP_ARGUMENTS.Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>() TRAJOPT_STEP_RESULTS.Ret<trajopt::Array>()
                                  .Attr<int64_t>("topology").Attr<int64_t>("integrator"));

#pragma GCC visibility pop
