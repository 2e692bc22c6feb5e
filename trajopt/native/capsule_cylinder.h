// Capsule against cylinder (trajopt/dynamics/collision/primitives/capsule_cylinder.py): the largest separation
// s(n) = n . c - reach |n . along| - radius |n_xy| - half |n_z| over caps, ends, the common normal and the circle over a rim; all in
// the cylinder's axes.
#pragma once
#include "round_pairs.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

template <class T> struct AxisAt {  // the axis of a capsule, and the cylinder's size
  V3<T> c, along;
  double reach, radius, half;
};

// The direction n with n . along = 0 over a rim, a maximum of s inside a quadrant, if there is one; and the level direction.
template <class T> struct RimDirection {
  V3<T> n, level;
  bool exists;
};
template <class T> RimDirection<T> rim_direction(const AxisAt<T>& x) {
  constexpr int SAMPLES = 33, ITERATIONS = 8;
  constexpr double QUARTER = 1.5707963267948966, width = QUARTER / (SAMPLES - 1);
  const V3<T> z = constant<T>(0, 0, 1);
  V3<T> level = unit(cross(z, x.along), constant<T>(1, 0, 0)).along, steep = cross(x.along, level);
  if (!(value(dot(level, x.c)) >= 0)) level = -level;
  if (!(value(dot(steep, x.c)) >= 0)) steep = -steep;
  const T tilt = steep.z * steep.z, a = dot(level, x.c), b = dot(steep, x.c) - T(x.half) * magnitude(steep.z);
  double start = 0, best = -std::numeric_limits<double>::infinity();
  for (int k = 0; k < SAMPLES; ++k) {
    const double angle = k * width, sin = std::sin(angle), flat = 1 - value(tilt) * sin * sin;
    const double s = value(a) * std::cos(angle) + value(b) * sin - x.radius * std::sqrt(flat > 0 ? flat : 0);
    if (s > best) best = s, start = angle;
  }
  T angle(start);
  bool bent = false;
  for (int k = 0; k < ITERATIONS; ++k) {
    const T sin = sine(angle), cos = cosine(angle), least(SAME_LENGTH * SAME_LENGTH);
    T flat = T(1.) - tilt * sin * sin;
    if (value(flat) < value(least)) flat = least;
    const T pull = T(x.radius) * tilt / root(flat), both = sin * cos;
    const T slope = b * cos - a * sin + pull * both;
    const T bend = pull * (cos * cos - sin * sin + tilt * both * both / flat) - a * cos - b * sin;
    bent = value(bend) < 0;
    angle = limited(angle - slope / (bent ? bend : T(-1.)), start - width, start + width);
  }
  const bool exists = bent && value(angle) > 0 && value(angle) < QUARTER;
  if (!exists) angle = T(0.);
  return {cosine(angle) * level + sine(angle) * steep, level, exists};
}

// Parameters (low, high) of the part of the axis inside the cylinder's outline, seen along z or from the side.
template <class T> struct Overlap {
  T low, high;
  bool empty;
};
template <class T> Overlap<T> overlap(const AxisAt<T>& x, bool over_cap) {
  const T reach(x.reach);
  T low = -reach, high = reach;
  bool none;
  if (over_cap) {
    const T square = x.along.x * x.along.x + x.along.y * x.along.y;
    if (value(square) > SAME_LENGTH) {
      const T middle = -(x.c.x * x.along.x + x.c.y * x.along.y) / square;
      const T px = x.c.x + middle * x.along.x, py = x.c.y + middle * x.along.y;
      const T height = T(x.radius * x.radius) - (px * px + py * py);
      none = value(height) <= 0;
      const T chord = root((none ? T(1.) : height) / square);
      low = middle - chord, high = middle + chord;
    } else {
      none = value(x.c.x) * value(x.c.x) + value(x.c.y) * value(x.c.y) > x.radius * x.radius;
    }
  } else if (std::fabs(value(x.along.z)) > SAME_LENGTH) {
    const T up = (T(x.half) - x.c.z) / x.along.z, down = (T(-x.half) - x.c.z) / x.along.z;
    const bool rises = value(down) <= value(up);
    low = rises ? down : up, high = rises ? up : down, none = false;
  } else {
    none = std::fabs(value(x.c.z)) > x.half;
  }
  low = limited(low, -x.reach, x.reach), high = limited(high, -x.reach, x.reach);
  return {low, high, none || value(high) < value(low)};
}

enum Feature { CAP = 0, COMMON_NORMAL = 5, RIM = 6, FEATURES = 7 };

// (gap, point on the cylinder) of the axis along n, of the feature `best`; `flat`: n's part across the cylinder's axis, a unit.
template <class T>
Touch<T> closest_on(const AxisAt<T>& x, const V3<T>& n, int best, V3<T>& flat) {
  const T zero(0.);
  flat = unit<T>({n.x, n.y, zero}, {zero, zero, zero}).along;
  const bool side = std::fabs(value(n.z)) < std::sqrt(SAME_LENGTH);
  const V3<T> corner = {T(x.radius) * flat.x, T(x.radius) * flat.y, T(value(n.z) >= 0 ? x.half : -x.half)};
  const T square = x.along.x * x.along.x + x.along.y * x.along.y;
  T t = T(value(dot(n, x.along)) > 0 ? -x.reach : x.reach);
  if (best == COMMON_NORMAL)
    t = limited(-(x.c.x * x.along.x + x.c.y * x.along.y) / (value(square) > 0 ? square : T(1.)), -x.reach, x.reach);
  if (best == RIM) t = limited(dot(corner - x.c, x.along), -x.reach, x.reach);
  const V3<T> apex = x.c + t * x.along;
  if (best == RIM || (value(n.z) != 0 && !side && best != CAP)) return {dot(n, apex - corner), corner, n};
  const T gap = best == CAP ? dot(n, apex) - T(x.half) : dot(apex, flat) - T(x.radius);
  return {gap, apex - gap * n, n};
}

// The closest points, and the farther end of the part of the capsule that lies over the cap or side; on the cylinder.
template <class T> void capsule_cylinder(const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  const T zero(0.);
  const double ball = one.size[0];
  const AxisAt<T> x = {transposed_times(two.rotation, one.position - two.position), transposed_times(two.rotation, one.axis(2)),
                       one.size[1], two.size[0], two.size[1]};
  const RimDirection<T> rim = rim_direction(x);
  V3<T> direction[FEATURES];
  direction[CAP] = constant<T>(0, 0, value(x.c.z) >= 0 ? 1. : -1.);
  for (int k = 0; k < 2; ++k) {
    const V3<T> end = x.c + T(k == 0 ? x.reach : -x.reach) * x.along;
    direction[1 + k] = point_cylinder(end, x.radius, x.half).normal;
    direction[3 + k] = unit<T>({end.x, end.y, zero}, constant<T>(1, 0, 0)).along;
  }
  direction[COMMON_NORMAL] = rim.level, direction[RIM] = rim.n;
  const double size = ball + x.reach + x.radius + x.half, small = SAME_LENGTH * size, infinite = std::numeric_limits<double>::infinity();
  double score[FEATURES], most = -infinite;
  for (int k = 0; k < FEATURES; ++k) {
    const V3<double> n = value(direction[k]);
    score[k] = dot(n, value(x.c)) - x.reach * std::fabs(dot(n, value(x.along))) - x.radius * std::sqrt(n.x * n.x + n.y * n.y) - x.half * std::fabs(n.z);
    if (k == RIM && !rim.exists) score[k] = -infinite;
    if (score[k] > most) most = score[k];
  }
  int best = 0;
  while (best < FEATURES - 1 && !(score[best] >= most - small)) ++best;
  const V3<T> n = direction[best];
  V3<T> flat;
  Touch<T> candidate[3];
  candidate[2] = closest_on(x, n, best, flat);
  const bool over_cap = std::fabs(value(n.z)) > 0.5;
  const Overlap<T> part = overlap(x, over_cap);
  for (int k = 0; k < 2; ++k) {
    const V3<T> on = x.c + (k == 0 ? part.low : part.high) * x.along;
    const Direction<T> radial = unit_beyond<T>({on.x, on.y, zero}, flat, small);
    const T over = ((value(n.z) >= 0 ? on.z : -on.z) - T(x.half)) / magnitude(over_cap ? n.z : T(1.));
    const V3<T> normal = over_cap ? n : radial.along;
    const T distance = over_cap ? over : radial.length - T(x.radius);
    candidate[k] = {distance, on - distance * normal, normal};
  }
  for (Touch<T>& c : candidate) c.distance = c.distance - T(ball);
  bool valid[3];
  double least = infinite;
  for (int k = 0; k < 2; ++k) {
    const double distance = value(candidate[k].distance);
    valid[k] = !part.empty && distance >= value(candidate[2].distance) - small;
    if (valid[k]) least = std::fmin(least, distance);
  }
  valid[2] = least > value(candidate[2].distance) + small;
  patch<3>(candidate, valid, 3, value(n), size, 2, out);
  for (int k = 0; k < 2; ++k)
    out[k].point = two.position + two.rotation * out[k].point, out[k].normal = two.rotation * out[k].normal;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
