// What the contact solve adds to `vector.h`: its short names, and the extremes of a vector.
#pragma once
#include "vector.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int W = LANES, PAD = PADDING;
using Lanes = vec;
using Mask = ivec;

TRAJOPT_INLINE Lanes lane_index() {
#if TRAJOPT_LANES == 8
  return Lanes{0, 1, 2, 3, 4, 5, 6, 7};
#else
  return Lanes{0, 1, 2, 3};
#endif
}
TRAJOPT_INLINE Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
TRAJOPT_INLINE double largest(Lanes x) {
#if TRAJOPT_LANES == 8
  x = larger(x, __builtin_shuffle(x, Mask{4, 5, 6, 7, 0, 1, 2, 3}));
  x = larger(x, __builtin_shuffle(x, Mask{2, 3, 0, 1, 6, 7, 4, 5}));
  x = larger(x, __builtin_shuffle(x, Mask{1, 0, 3, 2, 5, 4, 7, 6}));
#else
  x = larger(x, __builtin_shuffle(x, Mask{2, 3, 0, 1}));
  x = larger(x, __builtin_shuffle(x, Mask{1, 0, 3, 2}));
#endif
  return x[0];
}
TRAJOPT_INLINE Lanes magnitude(Lanes x) { return x < 0.0 ? -x : x; }

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
