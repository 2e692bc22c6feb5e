// What pairs of shapes share (trajopt/dynamics/collision/features.py): safe unit vectors, closest points of segments, and the
// choice of two or four contacts among many candidates.
#pragma once
#include <limits>

#include "dual.h"
#include "points.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double SAME_LENGTH = 3.666852862501036e-11;  // eps^(2/3): relative size below which two lengths are the same
constexpr double PARALLEL = 1.3486991523486091e-06;     // eps^(3/8): sine below which two directions are
constexpr double DEPTH_SCALE = 1e-3, DISTINCT = 1e-3;  // shares of the shapes' size
constexpr int MOST_TOUCHES = 4;                        // contacts of a pair

// A contact, or a candidate of one. normal: from shape 2 to shape 1.
template <class T> struct Touch {
  T distance;
  V3<T> point, normal;
};

template <class T> struct Direction {
  V3<T> along;
  T length;
};
// (d / |d|, |d|); (fallback, 0) where d vanishes, with finite derivatives.
template <class T> TRAJOPT_INLINE Direction<T> unit(const V3<T>& d, const V3<T>& fallback) {
  constexpr double eps = std::numeric_limits<double>::epsilon();
  const T square = dot(d, d);
  if (!(value(square) > eps * eps * eps)) return {fallback, T(0.)};
  const T length = root(square);
  return {(T(1.) / length) * d, length};
}
// The same, except that a d not longer than `small` has the direction `fallback` and a length along it that is signed.
template <class T> TRAJOPT_INLINE Direction<T> unit_beyond(const V3<T>& d, const V3<T>& fallback, double small) {
  if (value(dot(d, d)) <= small * small) return {fallback, dot(fallback, d)};
  return unit(d, fallback);
}

// (s, t) that minimise |r + s along1 - t along2|, r = centre 1 - centre 2, |s| <= half1, |t| <= half2.
template <class T>
TRAJOPT_INLINE void segment_parameters(const V3<T>& r, const V3<T>& along1, double half1, const V3<T>& along2, double half2, T& s, T& t) {
  const T b = dot(along1, along2), c = dot(along1, r), f = dot(along2, r), across = T(1.) - b * b;
  const double parallel = PARALLEL * PARALLEL;
  s = value(across) > parallel ? limited((b * f - c) / across, -half1, half1) : T(0.);
  t = limited(b * s + f, -half2, half2);
  s = limited(b * t - c, -half1, half1);
}

// The first entry that is largest up to a relative rounding: its place, and the largest; 0 where all are negative.
struct Largest { int place; double value; };
inline Largest largest_of(const double* x, int count) {
  double most = 0;
  if (count >= LANES) {
    vec lanes{};
    blocks(count, [&](int at) { lanes = larger(loadu(x + at), lanes); });
    most = largest(lanes);
  }
  for (int k = 0; count < LANES && k < count; ++k) most = x[k] > most ? x[k] : most;
  for (int k = 0; k < count; ++k)
    if (x[k] >= most * (1 - SAME_LENGTH)) return {k, most};
  return {0, most};
}

// Memory for the choice among `many` candidates: arrays of as many numbers, `across` of three times as many.
struct PatchScratch { double *weight, *spread, *signed_area, *across; };

// The scores by which the points of a patch after the deepest were chosen, and what they are measured by; infinite where no more points are.
struct PatchScores {
  V3<double> from, axis, turned, across[3];
  double level[3], lowest, scale, second, third, fourth;
};

// Whether a candidate that is farther than `beyond` has a score that reaches one of these.
inline bool any_beats(const PatchScores& s, const double* distance, const Points& point, double beyond) {
  constexpr double same = 1 - 2 * SAME_LENGTH;
  const double second = same * s.second / s.scale, third = same * s.third / s.scale, fourth = same * s.fourth / s.scale;
  const double *px = point.x, *py = px + point.count, *pz = py + point.count;
  vec beaten = {};
  blocks(point.count, [&](int at) {
    const vec d = loadu(distance + at), heavy = s.scale + (d - s.lowest);  // the weight is scale / heavy
    const V3<vec> to = {loadu(px + at) - s.from.x, loadu(py + at) - s.from.y, loadu(pz + at) - s.from.z};
    const vec up = dot(to, splat(s.axis));
    const V3<vec> x = to - up * splat(s.axis);
    const vec area = magnitude(dot(x, splat(s.turned))), least = second * heavy;
    vec outside = dot(x, splat(s.across[0])) - s.level[0];
    for (int e = 1; e < 3; ++e) outside = larger(outside, dot(x, splat(s.across[e])) - s.level[e]);
    const ivec reaches = (dot(x, x) >= least * least) | (area >= third * heavy) | (outside >= fourth * heavy);
    beaten = (d > beyond) & reaches ? splat(1) : beaten;
  });
  return largest(beaten) > 0;
}

// Places of a patch of 2 or 4 (features.choose) and whether each of them is a distinct point; valid: null where all are. Loops over all
// candidates are free of branches, so that the compiler takes several at once.
inline PatchScores choose_patch(const double* distance, const Points& point, const bool* valid, V3<double> axis, double size, int count,
                                PatchScratch scratch, int* place, bool* used) {
  const double infinite = std::numeric_limits<double>::infinity(), small = SAME_LENGTH * size;
  const int many = point.count;
  double lowest = infinite, *weight = scratch.weight, *spread = scratch.spread, *area = scratch.signed_area;
  double *x = scratch.across, *y = x + many, *z = y + many;
  auto counts = [&](int k) { return !valid || valid[k]; };
  for (int k = 0; k < many; ++k)
    if (counts(k) && distance[k] < lowest) lowest = distance[k];
  int first = 0;
  while (first < many - 1 && !(counts(first) && distance[first] <= lowest + small)) ++first;
  const double scale = DEPTH_SCALE * size + std::numeric_limits<double>::min();
  const V3<double> from = point[first];
  const double *px = point.x, *py = px + many, *pz = py + many;
#pragma GCC ivdep
  for (int k = 0; k < many; ++k) {
    const double dx = px[k] - from.x, dy = py[k] - from.y, dz = pz[k] - from.z;
    const double up = dx * axis.x + dy * axis.y + dz * axis.z, share = scale / (scale + (distance[k] - lowest));
    const double ax = dx - up * axis.x, ay = dy - up * axis.y, az = dz - up * axis.z;
    x[k] = ax, y[k] = ay, z[k] = az, weight[k] = share > 0 ? share : 0.0;
    spread[k] = std::sqrt(ax * ax + ay * ay + az * az);
  }
  for (int k = 0; valid && k < many; ++k)
    if (!valid[k]) weight[k] = 0;
  auto weigh = [&] {  // what has no weight may not be a number
#pragma GCC ivdep
    for (int k = 0; k < many; ++k) spread[k] = weight[k] > 0 ? weight[k] * spread[k] : 0.0;
  };
  auto at = [&](int k) { return V3<double>{x[k], y[k], z[k]}; };
  weigh();
  const Largest second = largest_of(spread, many);
  const bool several = second.value > DISTINCT * size;
  place[0] = first, place[1] = second.place, used[0] = true, used[1] = several;
  PatchScores scores = {from, axis, {0, 0, 0}, {}, {0, 0, 0}, lowest, scale, std::fmax(second.value, DISTINCT * size), infinite, infinite};
  if (count == 2 || !several) {
    used[2] = used[3] = false, place[2] = place[3] = first;
    return scores;
  }
  // Twice the area of the triangle; the fourth point adds most beyond one of its three sides.
  const V3<double> turned = scores.turned = cross(axis, at(second.place));
#pragma GCC ivdep
  for (int k = 0; k < many; ++k) {
    const double twice = x[k] * turned.x + y[k] * turned.y + z[k] * turned.z;
    area[k] = weight[k] > 0 ? weight[k] * twice : 0.0, spread[k] = std::fabs(area[k]);
  }
  const Largest third = largest_of(spread, many);
  const V3<double> corner[3] = {at(first), at(second.place), at(third.place)};
  const V3<double> outwards = (area[third.place] > 0 ? 1. : -1.) * axis;
  V3<double>* across = scores.across;
  double* level = scores.level;
  for (int e = 0; e < 3; ++e) across[e] = cross(corner[(e + 1) % 3] - corner[e], outwards), level[e] = dot(corner[e], across[e]);
#pragma GCC ivdep
  for (int k = 0; k < many; ++k) {
    auto beyond = [&](int e) { return x[k] * across[e].x + y[k] * across[e].y + z[k] * across[e].z - level[e]; };
    const double one = beyond(0), two = beyond(1), three = beyond(2), most = one > two ? one : two;
    spread[k] = most > three ? most : three;
  }
  weigh();
  const Largest fourth = largest_of(spread, many);
  const double span = DISTINCT * size * second.value;
  place[2] = third.place, place[3] = fourth.place;
  used[2] = third.value > span, used[3] = used[2] && fourth.value > span;
  scores.third = std::fmax(third.value, span), scores.fourth = std::fmax(fourth.value, span);
  return scores;
}

// `count` of the candidates, into `out`: the deepest, and those that spread the patch most across `axis`. The remaining ones repeat the
// deepest with a distance that is larger by `size`, the sum of the shapes' sizes.
template <int MANY, class T>
void patch(const Touch<T>* candidate, const bool* valid, int many, V3<double> axis, double size, int count, Touch<T>* out) {
  double distance[MANY], weight[MANY], spread[MANY], area[MANY], point[3 * MANY], across[3 * MANY];
  for (int k = 0; k < many; ++k) {
    const V3<double> x = value(candidate[k].point);
    distance[k] = value(candidate[k].distance), point[k] = x.x, point[many + k] = x.y, point[2 * many + k] = x.z;
  }
  int place[MOST_TOUCHES];
  bool used[MOST_TOUCHES];
  choose_patch(distance, {point, many}, valid, axis, size, count, {weight, spread, area, across}, place, used);
  for (int k = 0; k < count; ++k) {
    out[k] = candidate[used[k] ? place[k] : place[0]];
    if (!used[k]) out[k].distance = out[k].distance + T(size);
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
