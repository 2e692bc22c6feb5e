// A batch spread over the threads of XLA's pool.
//
// The calling thread works too, and waits only for pieces that another thread has begun: a pool whose threads are all busy, with
// handlers that wait like this one among them, delays nothing and cannot stop the program. Samples do not depend on each other, so
// that the numbers are the same whoever computes them.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "xla/ffi/api/ffi.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Steps that are worth another thread: some dozens of microseconds, what waking it takes.
constexpr int64_t STEPS_PER_PIECE = 8;
constexpr int64_t PIECES_PER_THREAD = 4;  // so that a thread that is late, or has the harder samples, is waited for less

struct Pieces {
  std::atomic<int64_t> next{0}, done{0};
  int64_t count;
};

// Works on pieces until none is left. `work` outlives every piece that is begun, not the call.
template <class Work> void take_pieces(Pieces& pieces, const Work& work) {
  for (int64_t k; (k = pieces.next.fetch_add(1)) < pieces.count;) {
    work(k);
    if (pieces.done.fetch_add(1) + 1 == pieces.count) pieces.done.notify_all();
  }
}

// samples(begin, end) for all of [0, count), in pieces; `steps` of the core are taken for each sample.
template <class Samples> void spread(xla::ffi::ThreadPool& pool, int64_t count, int64_t steps, const Samples& samples) {
  const int64_t least = std::max<int64_t>(1, STEPS_PER_PIECE / std::max<int64_t>(1, steps));
  const int64_t threads = count < 2 * least ? 1 : std::max<int64_t>(1, pool.num_threads());
  const int64_t size = std::max(least, (count + threads * PIECES_PER_THREAD - 1) / (threads * PIECES_PER_THREAD));
  if (threads == 1 || size >= count) return samples(int64_t{0}, count);
  const auto pieces = std::make_shared<Pieces>();
  pieces->count = (count + size - 1) / size;
  auto work = [&samples, size, count](int64_t k) { samples(k * size, std::min(count, (k + 1) * size)); };
  const int64_t helpers = std::min(threads, pieces->count) - 1;
  for (int64_t k = 0; k < helpers; ++k)
    pool.Schedule([pieces, work] { take_pieces(*pieces, work); });
  take_pieces(*pieces, work);
  for (int64_t done; (done = pieces->done.load()) < pieces->count;) pieces->done.wait(done);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
