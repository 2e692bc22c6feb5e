// The step of one registered topology, with the workspace of the thread that asks for it.
#pragma once
#include <memory>
#include <vector>

#include "border.h"
#include "stepping.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

class Engine {
 public:
  virtual ~Engine() = default;
  virtual void run(const StepInput& in, const StepOutput& out) = 0;
  virtual const std::vector<BallJoint>& balls() const = 0;
};

// What a thread steps a topology with. force, motion: of one step under motors and a policy.
struct ThreadEngine {
  std::shared_ptr<const Topology> topology;
  std::unique_ptr<Engine> engine;
  Border border;
  std::vector<double> force, motion, report;
};
ThreadEngine* thread_engine(int64_t key);  // null for a topology that nobody has registered

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
