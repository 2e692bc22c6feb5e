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

// The least of x (count,); what is not a number does not count.
inline double least_of(const double* x, int count) {
  double least = std::numeric_limits<double>::infinity();
  if (count >= LANES) {
    vec lanes = splat(-least);
    blocks(count, [&](int at) { lanes = larger(-loadu(x + at), lanes); });
    return -largest(lanes);
  }
  for (int k = 0; k < count; ++k) least = x[k] < least ? x[k] : least;
  return least;
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

// level + d . p of all points into `out`; the least.
inline double heights(const Points& p, V3<double> d, double level, double* out) {
  const double *x = p.x, *y = x + p.count, *z = y + p.count;
#pragma GCC ivdep
  for (int k = 0; k < p.count; ++k) out[k] = level + (d.x * x[k] + d.y * y[k] + d.z * z[k]);
  return least_of(out, p.count);
}

// The least d . p.
inline double lowest_of(const Points& p, V3<double> d) {
  double lowest = std::numeric_limits<double>::infinity();
  if (p.count < LANES) {
    for (int k = 0; k < p.count; ++k) lowest = std::fmin(lowest, dot(d, p[k]));
    return lowest;
  }
  vec down = splat(-lowest);
  blocks(p.count, [&](int at) { down = larger(-along(p, d, at), down); });
  return -largest(down);
}

// f(place) of the numbers of x (count,) up to `limit`, in their order.
template <class F> TRAJOPT_INLINE void up_to(const double* x, int count, double limit, F&& f) {
  constexpr int MANY = 2 * LANES;  // few are: the others are passed by many at a time
  int at = 0;
  for (; at + MANY <= count; at += MANY) {
    if (!(largest(larger(-loadu(x + at), -loadu(x + at + LANES))) >= -limit)) continue;
    for (int k = at; k < at + MANY; ++k)
      if (x[k] <= limit) f(k);
  }
  for (; at < count; ++at)
    if (x[at] <= limit) f(at);
}

// f(place) of the points with d . p of at least `height`, in their order.
template <class F> TRAJOPT_INLINE void reaching(const Points& p, V3<double> d, double height, F&& f) {
  constexpr int MANY = 4 * LANES;  // few reach so far: the others are passed by many at a time
  int at = 0;
  for (; at + LANES <= p.count; at += LANES) {
    for (; at + MANY <= p.count; at += MANY) {
      const vec one = larger(along(p, d, at), along(p, d, at + LANES)), two = larger(along(p, d, at + 2 * LANES), along(p, d, at + 3 * LANES));
      if (!(largest(larger(one, two)) < height)) break;
    }
    if (at + LANES > p.count) break;
    const vec heights = along(p, d, at);
    for (int k = 0; k < LANES; ++k)
      if (heights[k] >= height) f(at + k);
  }
  for (; at < p.count; ++at)
    if (dot(d, p[at]) >= height) f(at);
}

// The largest of the widths along the rows of R, the largest d . p less the smallest.
inline double widest(const Points& p, const M3<double>& R) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  const V3<double> row[3] = {R.row0, R.row1, R.row2};
  double most = 0;
  if (p.count < LANES) {
    for (V3<double> d : row) most = std::fmax(most, -lowest_of(p, d) - lowest_of(p, -d));
    return most;
  }
  vec up[3], down[3];
  for (int i = 0; i < 3; ++i) up[i] = down[i] = splat(-infinite);
  blocks(p.count, [&](int at) {
    for (int i = 0; i < 3; ++i) {
      const vec height = along(p, row[i], at);
      up[i] = larger(height, up[i]), down[i] = larger(-height, down[i]);
    }
  });
  for (int i = 0; i < 3; ++i) most = std::fmax(most, largest(up[i]) + largest(down[i]));
  return most;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
