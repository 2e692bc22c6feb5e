// The Riccati recursion behind XLA's foreign-function interface; a batch is a loop inside the handler.
#include <algorithm>

#include "riccati.h"
#include "samples.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {
namespace {

struct LQArguments { Samples A, B, d, Q, R, S, q, r, lower, upper; };

// Outputs: K (T, m, n), k (T, m), P (T+1, n, n), p (T+1, n), c (T+1), sums (3): slope, curvature, 1 where every step was convex. What a
// pass that is not convex leaves open is not a number.
ffi::Error riccati(Array A, Array B, Array d, Array Q, Array R, Array S, Array q, Array r, Array lower, Array upper, Result K, Result k,
                   Result P, Result p, Result c, Result sums, bool bounded) {
  const auto shape = B.dimensions();
  const int64_t T = shape[shape.size() - 3], n = shape[shape.size() - 2], m = shape.back();
  const LQArguments in{samples(A, 3), samples(B, 3), samples(d, 2), samples(Q, 3), samples(R, 3), samples(S, 3), samples(q, 2),
                       samples(r, 2), samples(lower, 2), samples(upper, 2)};
  if (in.A.size() != T * n * n || in.Q.size() != (T + 1) * n * n || in.R.size() != T * m * m || in.S.size() != T * n * m ||
      in.d.size() != T * n || in.q.size() != (T + 1) * n || in.r.size() != T * m || in.lower.size() != T * m || in.upper.size() != T * m)
    return ffi::Error::InvalidArgument("trajopt: shapes of a linear-quadratic problem do not belong together");
  const auto batch = sums->dimensions().first(sums->dimensions().size() - 1);
  const size_t count = sums->element_count() / 3;
  const double open = std::numeric_limits<double>::quiet_NaN();
  thread_local RiccatiWork work;
  work.reserve(n, m);
  for (size_t i = 0; i < count; ++i) {
    auto at = [&](const Samples& s, int64_t step, int64_t size) { return s.at(i, batch.begin(), batch.size()) + step * size; };
    const PolicyOut first{K->typed_data() + i * T * m * n, k->typed_data() + i * T * m, P->typed_data() + i * (T + 1) * n * n,
                          p->typed_data() + i * (T + 1) * n};
    double *to_go = c->typed_data() + i * (T + 1), *total = sums->typed_data() + 3 * i;
    std::memcpy(first.P + T * n * n, at(in.Q, T, n * n), sizeof(double) * n * n);
    std::memcpy(first.p + T * n, at(in.q, T, n), sizeof(double) * n);
    pad_rows(first.P + T * n * n, n, n, work.P, work.ldn);
    std::memcpy(work.p, first.p + T * n, sizeof(double) * n);
    std::fill(work.k, work.k + m, 0.0);
    to_go[T] = 0.0;
    Sums sum;
    bool convex = true;
    for (int64_t step = T; step-- > 0;) {
      const LQStep now{at(in.A, step, n * n), at(in.B, step, n * m), at(in.d, step, n), at(in.Q, step, n * n), at(in.R, step, m * m),
                       at(in.S, step, n * m), at(in.q, step, n), at(in.r, step, m), bounded ? at(in.lower, step, m) : nullptr,
                       bounded ? at(in.upper, step, m) : nullptr};
      const PolicyOut out{first.K + step * m * n, first.k + step * m, first.P + step * n * n, first.p + step * n};
      convex = convex && riccati_step(work, now, out, sum);
      if (!convex) {
        std::fill(out.K, out.K + m * n, open), std::fill(out.k, out.k + m, open), std::fill(out.P, out.P + n * n, open);
        std::fill(out.p, out.p + n, open), sum.c = sum.slope = sum.bend = open;
      }
      to_go[step] = sum.c;
    }
    total[0] = sum.slope, total[1] = sum.bend, total[2] = convex;
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace TRAJOPT_ISA
}  // namespace trajopt

#pragma GCC visibility push(default)  // everything else stays inside the shared object

#define TRAJOPT_FIVE .Arg<Array>().Arg<Array>().Arg<Array>().Arg<Array>().Arg<Array>()
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_riccati, trajopt::riccati,
                              ffi::Ffi::Bind() TRAJOPT_FIVE TRAJOPT_FIVE.Ret<Array>().Ret<Array>().Ret<Array>().Ret<Array>().Ret<Array>()
                                  .Ret<Array>().Attr<bool>("bounded"));

#pragma GCC visibility pop
