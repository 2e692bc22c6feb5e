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
TRAJOPT_INLINE double largest(Lanes x) {
  double s = x[0];
  for (int i = 1; i < W; ++i) s = s < x[i] ? x[i] : s;
  return s;
}
TRAJOPT_INLINE Lanes magnitude(Lanes x) { return x < 0.0 ? -x : x; }

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
