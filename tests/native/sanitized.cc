// Steps and Jacobians of one model at random states, to be built with the sanitizers of addresses and undefined behaviour, or of threads:
//   sanitized CASE COUNT [THREADS], CASE written by tests/native/sanitized_cases.py
// Penetrations and speeds run over three decades; every state is stepped by Runge-Kutta first, with its Jacobian where no impulse can
// act; every fifth step is Moreau's, every eleventh state is the pose of the case at rest, every 97th holds a NaN.
#include <cstdio>
#include <random>
#include <thread>

#include "step.h"

using namespace trajopt;

struct Case {
  std::vector<int64_t> table;
  std::vector<double> parameters, q, actuation;
  int nv, nu;
};

template <class T> void read(std::FILE* file, std::vector<T>& x, int64_t count) {
  x.resize(count);
  if (std::fread(x.data(), sizeof(T), count, file) != static_cast<size_t>(count)) throw std::runtime_error("the case is too short");
}

Case read_case(const char* path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), std::fclose);
  if (!file) throw std::runtime_error("cannot open the case");
  std::vector<int64_t> sizes;
  Case c;
  read(file.get(), sizes, 5);
  read(file.get(), c.table, sizes[0]), read(file.get(), c.parameters, sizes[1]), read(file.get(), c.q, sizes[2]);
  c.nv = static_cast<int>(sizes[3]), c.nu = static_cast<int>(sizes[4]);
  read(file.get(), c.actuation, static_cast<int64_t>(c.nv) * c.nu);
  return c;
}

// Returns the number of steps that are not finite though their state is, or the other way round.
int run(const Topology& t, const Case& c, int count) {
  Workspace<Open> w(Open{t.lanes}, t);
  std::vector<double> q, v(c.nv), tau(c.nv), q_next(c.q.size()), v_next(c.nv), report(report_size(t, true));
  std::vector<double> A(4 * static_cast<size_t>(c.nv) * c.nv), B(2 * static_cast<size_t>(c.nv) * c.nu);
  std::mt19937 generator(0);
  std::normal_distribution<double> normal;
  int failed = 0, unsolved = 0, sliding = 0, contradicting = 0;
  for (int k = 0; k < count; ++k) {
    const bool poisoned = k % 97 == 96;
    const double scale = std::pow(10.0, -0.5 * (k % 7));
    q = c.q;
    for (double& x : q) x += 0.01 * scale * normal(generator);
    for (double& x : v) x = scale * normal(generator);
    if (k % 11 == 10) {  // at rest in the pose of the case, where contacts may contradict each other (stepping.h)
      q = c.q;
      std::fill(v.begin(), v.end(), 0.0);
    }
    for (double& x : tau) x = 5 * scale * normal(generator);
    if (poisoned) q[k % q.size()] = std::nan("");
    const Linear linear{c.actuation.data(), c.nu, A.data(), B.data()};
    StepInput in{c.parameters.data(), q.data(), v.data(), tau.data(), nullptr, nullptr, 1e-3, 0, Integrator::RUNGE_KUTTA, k % 2 == 0};
    step(t, in, {q_next.data(), v_next.data(), report.data(), t.free() ? &linear : nullptr}, w);
    in.integrator = k % 5 == 4 ? Integrator::MOREAU : Integrator::SEMI_IMPLICIT;
    step(t, in, {q_next.data(), v_next.data(), report.data(), &linear}, w);
    const auto status = static_cast<ContactStatus>(static_cast<int>(report[STATUS]));
    failed += poisoned != (status == ContactStatus::non_finite);
    unsolved += !poisoned && status != ContactStatus::solved;
    contradicting += std::any_of(&report[ONE_SIDED], &report[ONE_SIDED + ONE_SIDED_WORDS], [](double bits) { return bits > 0; });
    sliding += w.rows.m > 0 && redundant_sliding(w);
  }
  std::printf("%d lanes, %d steps, %d unsolved, %d with redundant sliding, %d with contacts that contradict\n", t.lanes, count, unsolved, sliding,
              contradicting);
  return failed;
}

int main(int many, char** arguments) {
  const Case c = read_case(arguments[1]);
  const Topology t(c.table.data(), static_cast<int64_t>(c.table.size()));
  const int count = std::atoi(arguments[2]), threads = many > 3 ? std::atoi(arguments[3]) : 1;
  // As in a batch: threads share the topology and the parameters, and have a workspace each.
  std::vector<int> failed(threads);
  std::vector<std::thread> pool;
  for (int k = 0; k < threads; ++k) pool.emplace_back([&, k] { failed[k] = run(t, c, count); });
  for (std::thread& thread : pool) thread.join();
  return std::all_of(failed.begin(), failed.end(), [](int count) { return count == 0; }) ? 0 : 1;
}
