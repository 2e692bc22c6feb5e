// Topologies by their content, workspaces by thread.
#include "engine.h"

#include <mutex>
#include <unordered_map>

#include "step.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {
namespace {

template <class Size> class SizedEngine final : public Engine {
 public:
  SizedEngine(std::shared_ptr<const Topology> t, Size n) : topology_(std::move(t)), workspace_(n, *topology_) {}
  void run(const StepInput& in, const StepOutput& out) override { step(*topology_, in, out, workspace_); }
  const std::vector<BallJoint>& balls() const override { return workspace_.balls; }

 private:
  std::shared_ptr<const Topology> topology_;
  Workspace<Size> workspace_;
};

std::unique_ptr<Engine> make_engine(const std::shared_ptr<const Topology>& t) {
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

ThreadEngine* thread_engine(int64_t key) {
  thread_local std::unordered_map<int64_t, ThreadEngine> engines;
  thread_local int64_t last_key = 0;
  thread_local ThreadEngine* last = nullptr;
  if (last && last_key == key) return last;
  ThreadEngine& here = engines[key];
  if (!here.engine) {
    here.topology = find_topology(key);
    if (!here.topology) { engines.erase(key); return nullptr; }
    here.engine = make_engine(here.topology);
    here.force.resize(here.topology->nv), here.motion.resize(2 * here.topology->nv);
    here.report.resize(report_size(*here.topology, true));
  }
  last_key = key;
  return last = &here;
}

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
// Numbers in the whole report of a step of a registered topology; -1 for one that nobody has registered.
extern "C" int64_t trajopt_report_size(int64_t key) {
  const auto t = trajopt::find_topology(key);
  return t ? trajopt::report_size(*t, true) : -1;
}

#pragma GCC visibility pop
