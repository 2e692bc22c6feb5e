// The direction between two convex shapes that are apart, after Gilbert, Johnson and Keerthi (trajopt/dynamics/collision/convex/gjk.py).
// The shapes are apart by the distance of the origin from M = {x1 - x2}.
#pragma once
#include "patch.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double EPSILON = std::numeric_limits<double>::epsilon();

struct ClosestToOrigin {
  V3<double> point;
  int kept[4];  // corners that carry it, with a spare slot
  bool inside;
};
// The point of a tetrahedron closest to the origin.
inline ClosestToOrigin closest_to_origin(const V3<double>* p) {
  constexpr int EDGES[6][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}, FACES[4][3] = {{0, 1, 2}, {0, 1, 3}, {0, 2, 3}, {1, 2, 3}};
  constexpr double tiny = std::numeric_limits<double>::min();
  ClosestToOrigin best{};
  double least = std::numeric_limits<double>::infinity();
  auto offer = [&](V3<double> x, int a, int b, int c) {
    const double square = dot(x, x);
    if (square < least) least = square, best.point = x, best.kept[0] = best.kept[3] = a, best.kept[1] = b, best.kept[2] = c;
  };
  for (const auto& e : EDGES) {
    const V3<double> a = p[e[0]], along = p[e[1]] - a;
    const double square = dot(along, along), t = -dot(a, along) / std::fmax(square, tiny);
    offer(a + (t < 0 ? 0. : t > 1 ? 1. : t) * along, e[0], e[1], e[1]);
  }
  best.inside = true;
  for (int k = 0; k < 4; ++k) {
    const V3<double> a = p[FACES[k][0]], b = p[FACES[k][1]], c = p[FACES[k][2]], normal = cross(b - a, c - a);
    const double square = dot(normal, normal);
    if (square > tiny && dot(normal, cross(b, c)) >= 0 && dot(normal, cross(c, a)) >= 0 && dot(normal, cross(a, b)) >= 0)
      offer((dot(a, normal) / square) * normal, FACES[k][0], FACES[k][1], FACES[k][2]);
    // On the same side of every face as the corner across it.
    best.inside = best.inside && -dot(normal, a) * dot(normal, p[3 - k] - a) > 0;
  }
  return best;
}

// The point of M closest to the origin, and whether the shapes overlap or touch. farthest(n): the point of M with the smallest n . w;
// accuracy: of the distance, relative to it. enough: a distance that a direction suffices for, which then is that of the result.
struct Apart {
  V3<double> v;
  bool overlapping;
};
template <class Farthest>
Apart separating_direction(Farthest farthest, V3<double> start, double scale, double accuracy, int iterations,
                           double enough = std::numeric_limits<double>::infinity()) {
  const V3<double> first = farthest(start);
  if (dot(start, first) > enough) return {dot(start, first) * start, false};
  const double rounding = 32 * EPSILON * scale, touching = EPSILON * scale * EPSILON * scale;
  V3<double> points[4] = {first, first, first, first}, v = first;
  bool overlapping = dot(v, v) <= touching;
  for (int count = 0; count < iterations && !overlapping; ++count) {
    const double length = std::sqrt(dot(v, v));
    const V3<double> away = (length > 0 ? 1 / length : 1) * v, w = farthest(away);
    const double found = dot(away, w);
    if (!(length - found > accuracy * length + rounding) || found > enough) break;
    points[3] = w;
    const ClosestToOrigin closest = closest_to_origin(points);
    // Rounding ends the search too: no progress.
    if (!closest.inside && !(dot(closest.point, closest.point) < length * length)) break;
    if (closest.inside) return {{0, 0, 0}, true};
    const V3<double> kept[4] = {points[closest.kept[0]], points[closest.kept[1]], points[closest.kept[2]], points[closest.kept[3]]};
    for (int k = 0; k < 4; ++k) points[k] = kept[k];
    v = closest.point;
    overlapping = dot(v, v) <= touching;
  }
  return {v, overlapping};
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
