// Any two convex shapes (trajopt/dynamics/collision/convex/general.py): GJK and the expanding polytope find the direction of separation
// without derivative; it is then computed anew, with its slope, from the faces, edges and curved surfaces that carry it.
#pragma once
#include "convex.h"
#include "epa.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int GJK_ITERATIONS = 64, FEATURE_ROUNDS = 5;                            // FEATURE_ROUNDS: of curved shapes
constexpr double APART = 1e-4, DEEP = 1e-7, TRUSTED = 0.99, CLOSE = 1e-2;  // as in general.py
constexpr double STEEPEST = 0.02;                                          // as in general.py

enum Carrier { FACE_2, FACE_1, TWO_EDGES, EDGE_2, EDGE_1, POINTS_ALONE, AS_FOUND };
constexpr int MOST_ROWS = 3 + 4 + 4 + 2;

template <class T> struct Directions {
  V3<T> n[MOST_ROWS];
  Carrier carrier[MOST_ROWS];
  bool exists[MOST_ROWS];
  int count = 0;
  void add(const V3<T>& direction, Carrier by, bool there) { n[count] = direction, carrier[count] = by, exists[count++] = there; }
};

template <class T> TRAJOPT_INLINE V3<T> apart_along(const Convex<T>& one, const Convex<T>& two, const V3<T>& n) {
  return one.support(-n) - two.support(n);
}

// Newton's step from n towards stationary separation: across an axis, or among all directions where `axis` is null.
template <class T>
V3<T> stationary(const Convex<T>& one, const Convex<T>& two, V3<double> n_value, const V3<T>* axis_of_edge, double scale) {
  const V3<T> n = lifted<T>(n_value);
  int least = 0;
  for (int k = 1; k < 3; ++k)
    if (std::fabs(part(n_value, k)) < std::fabs(part(n_value, least))) least = k;
  V3<T> helper = constant<T>(0, 0, 0);
  part(helper, least) = T(1.);
  const bool free = !axis_of_edge;
  const V3<T> axis = free ? helper : unit(*axis_of_edge, helper).along;
  const V3<T> start = unit(free ? n : n - dot(axis, n) * axis, n).along;
  const V3<T> a = unit(cross(axis, start), n).along, b = cross(start, a), apart = apart_along(one, two, start);
  const double s = value(dot(start, apart));
  double aa = s, ab = 0, bb = s;
  const V3<double> at = value(start), va = value(a), vb = value(b);
  add_curvature(one.fixed(), -at, va, vb, aa, ab, bb);
  add_curvature(two.fixed(), at, va, vb, aa, ab, bb);
  if (!free) ab = 0, bb = 1;
  const T ga = dot(a, apart), gb = free ? dot(b, apart) : T(0.);
  const double determinant = aa * bb - ab * ab, smallest = SAME_LENGTH * (std::fabs(s) + scale);
  if (!(aa > smallest && determinant > (free ? smallest : 1) * smallest)) return unit(start, start).along;
  T x = T(bb / determinant) * ga - T(ab / determinant) * gb, y = T(aa / determinant) * gb - T(ab / determinant) * ga;
  const double length = std::fmax(std::fabs(value(x)), std::fabs(value(y))), shrink = 1 / std::fmax(1, 4 * length);
  x = T(shrink) * x, y = T(shrink) * y;
  return unit(start + x * a + y * b, start).along;
}

// Directions next to n at which the separation may have its maximum.
template <class T> Directions<T> candidate_directions(const Convex<T>& one, const Convex<T>& two, V3<double> n_value, double scale) {
  const V3<T> n = lifted<T>(n_value);
  const bool edge1 = has_edges(one.kind), edge2 = has_edges(two.kind);
  Directions<T> out;
  out.add(has_faces(two.kind) ? two.face(n) : n, FACE_2, has_faces(two.kind));
  out.add(has_faces(one.kind) ? -one.face(-n) : n, FACE_1, has_faces(one.kind));
  const V3<T> along1 = edge1 ? one.edge(-n) : n, along2 = edge2 ? two.edge(n) : n;
  V3<T> both = n;
  if (edge1 && edge2) {
    both = unit(cross(along1, along2), n).along;
    if (!(dot(value(both), n_value) >= 0)) both = -both;
  }
  out.add(both, TWO_EDGES, edge1 && edge2);
  auto across = [&](bool there, const V3<T>& edge, const Convex<T>& shape, const Convex<T>& other, const V3<T>& outward, Carrier carrier) {
    if (!there) return;
    out.add(stationary(one, two, n_value, &edge, scale), carrier, true);
    if (shape.kind != MESH || !is_curved(other.kind)) return;
    V3<T> more[3];  // those of the face too, where n may have come to lie
    shape.edges_of_face(outward, more);
    for (const V3<T>& x : more) out.add(stationary(one, two, n_value, &x, scale), carrier, true);
  };
  across(edge2, along2, two, one, n, EDGE_2);
  across(edge1, along1, one, two, -n, EDGE_1);
  out.add(stationary<T>(one, two, n_value, nullptr, scale), POINTS_ALONE, true);
  out.add(n, AS_FOUND, true);
  return out;
}

// The row with the largest separation, the first where several tie.
template <class T> int best_row(const Convex<double>& one, const Convex<double>& two, const Directions<T>& rows, double small) {
  double score[MOST_ROWS], most = -std::numeric_limits<double>::infinity();
  for (int k = 0; k < rows.count; ++k) {
    const V3<double> n = value(rows.n[k]);
    score[k] = rows.exists[k] ? dot(n, apart_along(one, two, n)) : -std::numeric_limits<double>::infinity();
    if (score[k] > most) most = score[k];
  }
  for (int k = 0; k < rows.count; ++k)
    if (score[k] >= most - small) return k;
  return rows.count - 1;
}

// A direction close to that of the largest separation.
inline V3<double> rough_direction(const Convex<double>& one, const Convex<double>& two, double scale) {
  auto farthest = [&](V3<double> n) { return apart_along(one, two, n); };
  const bool curved = is_curved(one.kind) || is_curved(two.kind);
  const V3<double> start = unit(one.centre - two.centre, two.axis(2)).along;
  const Apart apart = separating_direction(farthest, start, scale, curved ? APART : 0, GJK_ITERATIONS);
  const Direction<double> away = unit(apart.v, start);
  auto separation = [&](V3<double> n) { return dot(n, farthest(n)); };
  const double found = separation(away.along);
  // Rounding in a flat simplex can end GJK early; its direction then separates less than its distance says.
  const bool near = apart.overlapping || away.length <= (curved ? CLOSE : 1.4901161193847656e-08) * scale || found < TRUSTED * away.length;
  if (!near) return away.along;
  const V3<double> deep = deepest_direction(farthest, start, scale, curved ? DEEP : 0);
  return separation(deep) > found ? deep : away.along;
}

// Where between shape 2 (0) and shape 1 (1) the contacts lie.
inline double share_of(int kind1, Carrier carrier) {
  if (!is_curved(kind1) && !has_faces(kind1)) return 0;  // a radius around a point or segment: on shape 2
  return carrier == FACE_2 ? 0 : carrier == FACE_1 ? 1 : 0.5;
}

// The point of contact from the support points that are unique.
template <class T>
V3<T> closest_point(const Convex<T>& one, const Convex<T>& two, const V3<T>& n, const T& s, Carrier carrier) {
  const V3<T> x1 = one.support(-n), x2 = two.support(n);
  // The other shape's feature is a face or an edge: the point belongs to the shape that has a unique support point.
  V3<T> on2 = carrier == FACE_1 || carrier == EDGE_1 ? x2 : x1 - s * n;
  if (carrier == TWO_EDGES) {
    const V3<T> edge1 = one.edge(-n), edge2 = two.edge(n), product = cross(edge1, edge2);
    const T square = dot(product, product);
    const double lengths = value(dot(edge1, edge1)) * value(dot(edge2, edge2));
    // x2 + t edge2 is where the edges pass each other along n.
    if (value(square) > 3.308722450212111e-24 * lengths) on2 = x2 + (dot(cross(edge1, x1 - x2), product) / square) * edge2;
  }
  return on2 + (T(share_of(one.kind, carrier)) * s) * n;
}

// Corners of the overlap of two polygons that face each other (general.py): distance along n, point on polygon 2.
template <class T> struct Overlapping {
  static constexpr int MOST = 2 * MOST_CORNERS + MOST_CORNERS * MOST_CORNERS + 1;
  Touch<T> touch[MOST];
  bool valid[MOST];
  int count = 0;
  void add(const T& gap, const V3<T>& point, const V3<T>& n, bool counts) { touch[count] = {gap, point, n}, valid[count++] = counts; }
};
template <class T> bool lies_in(const Polygon<T>& polygon, const V3<T>& x, double small) {
  for (int e = 0; e < polygon.corners; ++e)
    if (!(value(dot(x - polygon.point[e], polygon.outward[e])) <= small)) return false;
  return true;
}
template <class T> void overlap_of(const Polygon<T>& one, const Polygon<T>& two, const V3<T>& n, double small, Overlapping<T>& out) {
  T slope1 = dot(n, one.normal), slope2 = dot(n, two.normal);
  if (value(slope1) > -STEEPEST) slope1 = T(-STEEPEST);
  if (value(slope2) < STEEPEST) slope2 = T(STEEPEST);
  for (int k = 0; k < one.corners; ++k) {
    const T gap = dot(one.point[k] - two.point[0], two.normal) / slope2;
    const V3<T> foot = one.point[k] - gap * n;
    out.add(gap, foot, n, lies_in(two, foot, small));
  }
  for (int k = 0; k < two.corners; ++k) {
    const T gap = dot(one.point[0] - two.point[k], one.normal) / slope1;
    out.add(gap, two.point[k], n, lies_in(one, two.point[k] + gap * n, small));
  }
  for (int i = 0; i < one.corners; ++i)
    for (int j = 0; j < two.corners; ++j) {
      const V3<T> edge1 = one.point[(i + 1) % one.corners] - one.point[i], edge2 = two.point[(j + 1) % two.corners] - two.point[j];
      const V3<T> r = two.point[j] - one.point[i], product = cross(edge1, edge2);
      const T sine = dot(product, n);
      const double square1 = value(dot(edge1, edge1)), square2 = value(dot(edge2, edge2));
      if (!(value(sine) * value(sine) > PARALLEL * PARALLEL * square1 * square2)) continue;
      const double s = value(dot(r, cross(edge2, n))) / value(sine);
      const T t = dot(r, cross(edge1, n)) / sine;
      const double slack1 = small / std::sqrt(square1), slack2 = small / std::sqrt(square2);
      if (std::fabs(s - 0.5) <= 0.5 + slack1 && std::fabs(value(t) - 0.5) <= 0.5 + slack2)
        out.add(-(dot(r, product) / sine), two.point[j] + t * edge2, n, true);
    }
}

// `count` (1, 2 or 4) contacts of two shapes; positions relative to a common origin.
template <class T> void convex_pair(const Convex<T>& one, const Convex<T>& two, int count, Touch<T>* out) {
  const double scale = one.extent() + two.extent(), small = SAME_LENGTH * scale, radius = one.radius() + two.radius();
  const Convex<double> fixed1 = one.fixed(), fixed2 = two.fixed();
  V3<double> rough = rough_direction(fixed1, fixed2, scale);
  const int rounds = is_curved(one.kind) || is_curved(two.kind) ? FEATURE_ROUNDS : 0;  // of others the rough direction is exact but for rounding
  for (int k = 0; k < rounds; ++k) {
    const Directions<double> rows = candidate_directions(fixed1, fixed2, rough, scale);
    rough = rows.n[best_row(fixed1, fixed2, rows, small)];
  }
  const Directions<T> rows = candidate_directions(one, two, rough, scale);
  const int best = best_row(fixed1, fixed2, rows, small);
  const V3<T> n = rows.n[best];
  const Carrier carrier = rows.carrier[best];
  const T s = dot(n, apart_along(one, two, n));
  V3<T> point = closest_point(one, two, n, s, carrier);
  if (one.kind == SPHERE && (carrier == FACE_2 || !has_faces(two.kind))) point = one.centre - T(one.radius()) * n;
  if (count == 1) {
    out[0] = {s - T(radius), point, n};
    return;
  }
  Overlapping<T> found;
  overlap_of(one.polygon(-n), two.polygon(n), n, small, found);
  const double share = share_of(one.kind, carrier), least = value(s);
  bool hidden = true;
  for (int k = 0; k < found.count; ++k) {
    const double gap = value(found.touch[k].distance);
    found.valid[k] = found.valid[k] && gap >= least - 2 * small;
    hidden = hidden && !(found.valid[k] && gap <= least + 2 * small);
    if (share != 0) found.touch[k].point = found.touch[k].point + (T(share) * found.touch[k].distance) * n;
  }
  found.add(s, point, n, hidden);
  for (int k = 0; k < found.count; ++k) found.touch[k].distance = found.touch[k].distance - T(radius);
  patch<Overlapping<T>::MOST>(found.touch, found.valid, found.count, value(n), scale, count, out);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
