// The Riccati recursion behind XLA's foreign-function interface; a batch is a loop inside the handler.
#include <algorithm>

#include "border.h"
#include "riccati.h"

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
  const size_t axes = shape.size() - 3;
  const LQArguments in{{A, axes}, {B, axes}, {d, axes}, {Q, axes}, {R, axes}, {S, axes}, {q, axes}, {r, axes}, {lower, axes}, {upper, axes}};
  if (in.A.size() != T * n * n || in.Q.size() != (T + 1) * n * n || in.R.size() != T * m * m || in.S.size() != T * n * m ||
      in.d.size() != T * n || in.q.size() != (T + 1) * n || in.r.size() != T * m || in.lower.size() != T * m || in.upper.size() != T * m)
    return ffi::Error::InvalidArgument("trajopt: shapes of a linear-quadratic problem do not belong together");
  const Batch batch(*sums, axes);
  const double open = std::numeric_limits<double>::quiet_NaN();
  thread_local RiccatiWork work;
  thread_local Border border;
  work.reserve(n, m);
  for (int64_t i = 0; i < batch.count; ++i) {
    border.begin();
    auto given = [&](const Samples& s) { return s.at(i, batch, border); };
    auto result = [&](Result& to, int64_t size) { return border.out(to, i * size, size); };
    const LQStep all{given(in.A), given(in.B), given(in.d), given(in.Q), given(in.R), given(in.S), given(in.q), given(in.r),
                     bounded ? given(in.lower) : nullptr, bounded ? given(in.upper) : nullptr};
    const PolicyOut first{result(K, T * m * n), result(k, T * m), result(P, (T + 1) * n * n), result(p, (T + 1) * n)};
    double *to_go = result(c, T + 1), *total = result(sums, 3);
    std::memcpy(first.P + T * n * n, all.Q + T * n * n, sizeof(double) * n * n);
    std::memcpy(first.p + T * n, all.q + T * n, sizeof(double) * n);
    pad_rows(first.P + T * n * n, n, n, work.P, work.ldn);
    std::memcpy(work.p, first.p + T * n, sizeof(double) * n);
    std::fill(work.k, work.k + m, 0.0);
    to_go[T] = 0.0;
    Sums sum;
    bool convex = true;
    for (int64_t step = T; step-- > 0;) {
      const LQStep now{all.A + step * n * n, all.B + step * n * m, all.d + step * n, all.Q + step * n * n, all.R + step * m * m,
                       all.S + step * n * m, all.q + step * n, all.r + step * m, bounded ? all.lower + step * m : nullptr,
                       bounded ? all.upper + step * m : nullptr};
      const PolicyOut out{first.K + step * m * n, first.k + step * m, first.P + step * n * n, first.p + step * n};
      convex = convex && riccati_step(work, now, out, sum);
      if (!convex) {
        std::fill(out.K, out.K + m * n, open), std::fill(out.k, out.k + m, open), std::fill(out.P, out.P + n * n, open);
        std::fill(out.p, out.p + n, open), sum.c = sum.slope = sum.bend = open;
      }
      to_go[step] = sum.c;
    }
    total[0] = sum.slope, total[1] = sum.bend, total[2] = convex;
    border.finish();
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace TRAJOPT_ISA
}  // namespace trajopt

#pragma GCC visibility push(default)  // everything else stays inside the shared object

#define TRAJOPT_FIVE .Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>().Arg<trajopt::Array>()
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_riccati, trajopt::riccati,
                              ffi::Ffi::Bind() TRAJOPT_FIVE TRAJOPT_FIVE.Ret<trajopt::Array>().Ret<trajopt::Array>().Ret<trajopt::Array>().Ret<trajopt::Array>().Ret<trajopt::Array>()
                                  .Ret<trajopt::Array>().Attr<bool>("bounded"));

#pragma GCC visibility pop
