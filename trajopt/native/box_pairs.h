// Box against box, and capsule against box (trajopt/dynamics/collision/primitives/boxes.py): separating axes, closest edges, and a
// patch of the intersection of the two faces that look at each other.
#pragma once
#include "round_pairs.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

template <class T> struct BoxAt {  // a box, or the axis of a capsule: a box without width
  V3<T> axis[3];
  double half[3];
};
template <class T> BoxAt<T> box_at(const Placed<T>& x, const double* half) {
  return {{x.axis(0), x.axis(1), x.axis(2)}, {half[0], half[1], half[2]}};
}
// Half the width of the box along n.
template <class T> TRAJOPT_INLINE T reach_along(const BoxAt<T>& box, const V3<T>& n) {
  T sum(0.);
  for (int k = 0; k < 3; ++k) sum = sum + T(box.half[k]) * magnitude(dot(box.axis[k], n));
  return sum;
}
template <class T> TRAJOPT_INLINE V3<T> in_axes(const BoxAt<T>& box, const V3<T>& x) {
  return {dot(box.axis[0], x), dot(box.axis[1], x), dot(box.axis[2], x)};
}
template <class T> TRAJOPT_INLINE V3<T> from_axes(const BoxAt<T>& box, const V3<T>& x) {
  return x.x * box.axis[0] + x.y * box.axis[1] + x.z * box.axis[2];
}
template <class T> TRAJOPT_INLINE V3<T> nearest_in(const BoxAt<T>& box, const V3<T>& x) {
  return {limited(x.x, -box.half[0], box.half[0]), limited(x.y, -box.half[1], box.half[1]), limited(x.z, -box.half[2], box.half[2])};
}
template <class T> TRAJOPT_INLINE V3<T> corner_of(const BoxAt<T>& box, int k) {  // in the order of features.BOX_CORNERS
  const double x = k & 4 ? 1 : -1, y = k & 2 ? 1 : -1, z = k & 1 ? 1 : -1;
  return T(x * box.half[0]) * box.axis[0] + T(y * box.half[1]) * box.axis[1] + T(z * box.half[2]) * box.axis[2];
}

// The closest pair of a vertex of one and the other box: point on 1, vector from 2 to 1; positions relative to centre 2.
template <class T> struct ClosestVertex { V3<T> point, gap; };
template <class T>
ClosestVertex<T> closest_vertex(const V3<T>& c, const BoxAt<T>& one, const BoxAt<T>& two, bool capsule) {
  ClosestVertex<T> best{};
  double least = std::numeric_limits<double>::infinity();
  auto offer = [&](const V3<T>& point, const V3<T>& gap) {
    const double square = value(dot(gap, gap));
    if (square < least) least = square, best = {point, gap};
  };
  for (int k = 0; k < (capsule ? 2 : 8); ++k) {
    const V3<T> vertex = c + (capsule ? T(k == 0 ? one.half[2] : -one.half[2]) * one.axis[2] : corner_of(one, k));
    const V3<T> x = in_axes(two, vertex);
    offer(vertex, from_axes(two, x - nearest_in(two, x)));
  }
  for (int k = 0; k < 8; ++k) {
    const V3<T> vertex = corner_of(two, k), x = in_axes(one, vertex - c);
    const V3<T> gap = from_axes(one, nearest_in(one, x) - x);
    offer(vertex + gap, gap);
  }
  return best;
}

// The direction with the largest separation: three faces of either box, nine products of edges, the direction to or from the closest
// vertex; the signed distance, and the number of the direction.
constexpr int CLOSEST = 15;
template <class T> struct Separation { V3<T> n; T distance; int decides; };
template <class T>
Separation<T> separation_of(const V3<T>& c, const BoxAt<T>& one, const BoxAt<T>& two, const V3<T>& gap, double small) {
  const V3<T> zero = constant<T>(0, 0, 0);
  Direction<T> to[CLOSEST + 1];
  double along[CLOSEST + 1], apart[CLOSEST + 1], most = -std::numeric_limits<double>::infinity();
  for (int k = 0; k < 3; ++k) to[k] = {one.axis[k], T(1.)}, to[3 + k] = {two.axis[k], T(1.)};
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) to[6 + 3 * i + j] = unit(cross(one.axis[i], two.axis[j]), zero);
  to[CLOSEST] = unit(gap, zero);
  for (int k = 0; k <= CLOSEST; ++k) {
    const V3<double> n = value(to[k].along);
    along[k] = dot(n, value(c));
    double wide = 0;
    for (int i = 0; i < 3; ++i)
      wide += one.half[i] * std::fabs(dot(n, value(one.axis[i]))) + two.half[i] * std::fabs(dot(n, value(two.axis[i])));
    const bool defined = k < 6 || value(to[k].length) > PARALLEL;
    apart[k] = defined ? std::fabs(along[k]) - wide : -std::numeric_limits<double>::infinity();
    if (apart[k] > most) most = apart[k];
  }
  int best = 0;
  while (best < CLOSEST && !(apart[best] >= most - small)) ++best;
  const V3<T> n = along[best] >= 0 ? to[best].along : -to[best].along;
  const T support = dot(c, n) - reach_along(one, n) - reach_along(two, n);
  return {n, best == CLOSEST ? to[CLOSEST].length : support, best};
}

// The face most along n: its middle from the box's centre, two axes and half extents, the outward normal.
template <class T> struct Face {
  V3<T> middle, axis[2], normal;
  double half[2];
  V3<T> corner(int k) const {  // in the order of features.FACE_CORNERS
    const double x = k == 0 || k == 3 ? half[0] : -half[0], y = k < 2 ? half[1] : -half[1];
    return middle + T(x) * axis[0] + T(y) * axis[1];
  }
  // Middle of edge number `which` of the two that run along axis a.
  V3<T> edge(int a, int which) const { return middle + T(which == 0 ? half[1 - a] : -half[1 - a]) * axis[1 - a]; }
  bool holds(const V3<T>& x, double small) const {
    for (int a = 0; a < 2; ++a)
      if (!(std::fabs(value(dot(x - middle, axis[a]))) <= half[a] + small)) return false;
    return true;
  }
};
template <class T> Face<T> face_along(const BoxAt<T>& box, const V3<T>& n) {
  double along[3];
  int first = 0;
  for (int k = 0; k < 3; ++k) {
    along[k] = dot(value(box.axis[k]), value(n));
    if (std::fabs(along[k]) > std::fabs(along[first])) first = k;
  }
  const int second = (first + 1) % 3, third = (first + 2) % 3;
  const V3<T> outward = along[first] >= 0 ? box.axis[first] : -box.axis[first];
  return {T(box.half[first]) * outward, {box.axis[second], box.axis[third]}, outward, {box.half[second], box.half[third]}};
}

// Candidates where edges of face 1 cross over edges of face 2, seen along n: points on edges of 2, distances along n.
template <class T>
void edge_crossings(const V3<T>& n, const Face<T>& one, const Face<T>& two, double small, Touch<T>* out, bool* valid) {
  for (int a = 0; a < 2; ++a)
    for (int i = 0; i < 2; ++i)
      for (int b = 0; b < 2; ++b)
        for (int j = 0; j < 2; ++j, ++out, ++valid) {
          const V3<T> product = cross(one.axis[a], two.axis[b]), from2 = two.edge(b, j), r = from2 - one.edge(a, i);
          const T across = dot(product, n);
          const bool skew = std::fabs(value(across)) > PARALLEL;
          const T inverse = T(1.) / (skew ? across : T(1.));
          const T s = inverse * dot(r, cross(two.axis[b], n)), t = inverse * dot(r, cross(one.axis[a], n));
          *out = {-(inverse * dot(r, product)), from2 + t * two.axis[b], n};
          *valid = skew && std::fabs(value(s)) <= one.half[a] + small && std::fabs(value(t)) <= two.half[b] + small;
        }
}

// radius: of the capsule whose axis is shape 1, else zero.
template <class T>
void between_boxes(const BoxAt<T>& one, const BoxAt<T>& two, const V3<T>& c, bool capsule, double radius, Touch<T>* out) {
  constexpr int MANY = 25;
  double size = radius;
  for (int k = 0; k < 3; ++k) size += one.half[k] + two.half[k];
  const double small = SAME_LENGTH * size;
  const ClosestVertex<T> closest = closest_vertex(c, one, two, capsule);
  const Separation<T> by = separation_of(c, one, two, closest.gap, small);
  const V3<T>& n = by.n;
  Face<T> face1 = face_along(one, -n);
  const Face<T> face2 = face_along(two, n);
  face1.middle = c + face1.middle;
  Touch<T> candidate[MANY];
  bool valid[MANY];
  for (int k = 0; k < 4; ++k) {  // points on box 2 or below it along n; vertices of one face inside the other
    const V3<T> vertex1 = face1.corner(k), vertex2 = face2.corner(k);
    const T gap1 = dot(vertex1 - face2.middle, face2.normal) / dot(n, face2.normal);
    const T gap2 = dot(face1.middle - vertex2, face1.normal) / dot(n, face1.normal);
    candidate[k] = {gap1, vertex1 - gap1 * n, n}, candidate[4 + k] = {gap2, vertex2, n};
    valid[k] = face2.holds(candidate[k].point, small), valid[4 + k] = face1.holds(vertex2 + gap2 * n, small);
  }
  edge_crossings(n, face1, face2, small, candidate + 8, valid + 8);
  bool hidden = true;  // the deepest corner, by rounding
  for (int k = 0; k < MANY - 1; ++k) hidden = hidden && !(valid[k] && value(candidate[k].distance) <= value(by.distance) + 2 * small);
  candidate[MANY - 1] = {by.distance, closest.point - closest.gap, n}, valid[MANY - 1] = by.decides == CLOSEST || hidden;
  // From box 2 towards box 1: all the way to a face of box 1, halfway for edges and vertices; of a capsule on the box.
  const double share = capsule ? 0 : by.decides < 3 ? 1 : by.decides < 6 ? 0 : 0.5;
  for (int k = 0; k < MANY; ++k) {
    Touch<T>& x = candidate[k];
    if (share != 0) x.point = x.point + T(share) * (k == MANY - 1 ? closest.gap : x.distance * n);
    x.distance = x.distance - T(radius);
  }
  patch<MANY>(candidate, valid, MANY, value(n), size, capsule ? 2 : 4, out);
}

template <class T> void box_box(const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  between_boxes(box_at(one, one.size), box_at(two, two.size), one.position - two.position, false, 0, out);
  for (int k = 0; k < 4; ++k) out[k].point = two.position + out[k].point;
}

template <class T> void capsule_box(const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  const double half[3] = {0, 0, one.size[1]};
  between_boxes(box_at(one, half), box_at(two, two.size), one.position - two.position, true, one.size[0], out);
  for (int k = 0; k < 2; ++k) out[k].point = two.position + out[k].point;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
