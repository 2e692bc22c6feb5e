// Many points by component, as the vertices of a mesh and the normals of its faces are kept: the farthest along a direction, and how far
// they reach.
#pragma once
#include <limits>

#include "lanes.h"
#include "spatial.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

struct Points {
  const double* x;  // and y `count` numbers after it, and z after that
  int count;
  V3<double> operator[](int k) const { return {x[k], x[k + count], x[k + 2 * (ptrdiff_t)count]}; }
};

// d . p of the points at `at` and the LANES - 1 after it.
TRAJOPT_INLINE vec along(const Points& p, V3<double> d, int at) {
  const double *x = p.x + at, *y = x + p.count, *z = y + p.count;
  return d.x * loadu(x) + d.y * loadu(y) + d.z * loadu(z);
}

// f(first point of a block of LANES) over all points; the last block may overlap the one before. There are LANES points or more.
template <class F> TRAJOPT_INLINE void blocks(int count, F&& f) {
  int at = 0;
  for (; at + LANES <= count; at += LANES) f(at);
  if (at < count) f(count - LANES);
}

// Place of the point farthest along d, the first where several are.
inline int farthest(const Points& p, V3<double> d) {
  constexpr double lowest = -std::numeric_limits<double>::infinity();
  double most = lowest;
  int place = 0;
  if (p.count < LANES) {
    for (int k = 0; k < p.count; ++k) {
      const double height = dot(d, p[k]);
      if (height > most) most = height, place = k;
    }
    return place;
  }
  vec best = splat(lowest), where = splat(0), index = lane_index();
  int at = 0;
  auto look = [&](vec position) {
    const vec height = along(p, d, at);
    const ivec higher = height > best;
    best = higher ? height : best, where = higher ? position : where;
  };
  for (; at + LANES <= p.count; at += LANES, index += LANES) look(index);
  if (at < p.count) at = p.count - LANES, look(lane_index() + at);
  most = largest(best);
  place = p.count;
  for (int k = 0; k < LANES; ++k)
    if (best[k] == most && where[k] < place) place = static_cast<int>(where[k]);
  return place < p.count ? place : 0;
}

// f(place) of the points with d . p of at least `height`, in their order.
template <class F> TRAJOPT_INLINE void reaching(const Points& p, V3<double> d, double height, F&& f) {
  int at = 0;
  for (; at + LANES <= p.count; at += LANES) {
    const vec heights = along(p, d, at);
    if (largest(heights) < height) continue;
    for (int k = 0; k < LANES; ++k)
      if (heights[k] >= height) f(at + k);
  }
  for (; at < p.count; ++at)
    if (dot(d, p[at]) >= height) f(at);
}

// The largest d . p less the smallest.
inline double width_along(const Points& p, V3<double> d) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  if (p.count < LANES) {
    double low = infinite, high = -infinite;
    for (int k = 0; k < p.count; ++k) low = std::fmin(low, dot(d, p[k])), high = std::fmax(high, dot(d, p[k]));
    return high - low;
  }
  vec up = splat(-infinite), down = up;
  blocks(p.count, [&](int at) {
    const vec height = along(p, d, at);
    up = larger(height, up), down = larger(-height, down);
  });
  return largest(up) + largest(down);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
