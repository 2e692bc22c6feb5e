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

struct Own { std::shared_ptr<const Topology> topology; std::unique_ptr<Engine> engine; Border border; };
Own* own(int64_t key);  // of this thread; null for a topology that nobody has registered

ffi::Error unknown_topology();
ffi::Error wrong_size(const char* what, int64_t received, int64_t expected);
ffi::Error known_integrator(const Topology& t, int64_t integrator);

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
