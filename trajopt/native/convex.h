// Convex shapes as the general pair function sees them (trajopt/dynamics/collision/convex/shapes.py): support points, curvature, faces,
// edges, and a polygon for a patch. Directions point out of the shape; positions are relative to any common origin.
#pragma once
#include <array>

#include "hull.h"
#include "round_pairs.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

TRAJOPT_INLINE bool is_curved(int kind) { return kind == CYLINDER || kind == ELLIPSOID; }
TRAJOPT_INLINE bool has_faces(int kind) { return kind == BOX || kind == CYLINDER || kind == MESH; }
TRAJOPT_INLINE bool has_edges(int kind) { return kind == CAPSULE || has_faces(kind); }

constexpr double FLATTEST = 3.308722450212111e-24;  // eps^(3/2): square of the part across the axis of an upright cylinder's direction
constexpr int MOST_CORNERS = 8;

template <class T> struct Polygon {  // points in order, outward vectors of the edges that start there (zero: none), unit normal
  int corners;
  V3<T> point[MOST_CORNERS], outward[MOST_CORNERS], normal;
};

// Unit vector along (y0, y1, 0) and its length; x, without derivative, where that is rounding.
template <class T> TRAJOPT_INLINE Direction<T> flat_direction(const V3<T>& y) {
  const T square = y.x * y.x + y.y * y.y, zero(0.);
  if (!(value(square) > FLATTEST)) return {constant<T>(1, 0, 0), zero};
  const T length = root(square);
  return {{y.x / length, y.y / length, zero}, length};
}

// Of a sphere and a capsule the core: a point and a segment, with the radius around it.
template <class T> struct Convex {
  int kind;
  M3<T> rotation;
  V3<T> centre;
  const double* size;
  Hull hull;

  double radius() const { return kind == SPHERE || kind == CAPSULE ? size[0] : 0; }
  double extent() const {
    return kind == SPHERE ? size[0] : kind == CAPSULE || kind == CYLINDER ? size[0] + size[1] : size[0] + size[1] + size[2];
  }
  V3<T> axis(int k) const { return {part(rotation.row0, k), part(rotation.row1, k), part(rotation.row2, k)}; }
  V3<T> in_axes(const V3<T>& n) const { return transposed_times(rotation, n); }
  Convex<double> fixed() const {
    return {kind, {value(rotation.row0), value(rotation.row1), value(rotation.row2)}, value(centre), size, hull};
  }

  // The point of the core that is farthest along n; on an edge or a face, one of its ends or corners.
  V3<T> support(const V3<T>& n) const { return centre + rotation * local_support(in_axes(n)); }
  V3<T> local_support(const V3<T>& y) const {
    const auto side = [](const T& along, double reach) { return T(value(along) >= 0 ? reach : -reach); };
    const T zero(0.);
    switch (kind) {
      case SPHERE: return {zero, zero, zero};
      case CAPSULE: return {zero, zero, side(y.z, size[1])};
      case BOX: return {side(y.x, size[0]), side(y.y, size[1]), side(y.z, size[2])};
      case CYLINDER: {
        const V3<T> flat = flat_direction(y).along;
        return {T(size[0]) * flat.x, T(size[0]) * flat.y, side(y.z, size[1])};
      }
      case ELLIPSOID: {
        const V3<T> along = unit<T>(scaled(y), {zero, zero, zero}).along;
        return scaled(along);
      }
      default: {
        const V3<double> x = hull.vertex(hull.farthest(value(y)));
        return {T(x.x), T(x.y), T(x.z)};
      }
    }
  }
  V3<T> scaled(const V3<T>& y) const { return {T(size[0]) * y.x, T(size[1]) * y.y, T(size[2]) * y.z}; }

  // Direction of the edge, or of the straight line on the surface, that lies farthest along n; not normalised.
  V3<T> edge(const V3<T>& n) const {
    if (kind == MESH) return rotation * lifted<T>(hull.edge(value(in_axes(n))));
    if (kind != BOX) return axis(2);
    const V3<double> y = value(in_axes(n));
    int least = 0;
    for (int k = 1; k < 3; ++k)
      if (std::fabs(part(y, k)) < std::fabs(part(y, least))) least = k;
    return axis(least);
  }
  // Outward normal of the face most along n.
  V3<T> face(const V3<T>& n) const {
    const V3<double> y = value(in_axes(n));
    if (kind == MESH) return rotation * lifted<T>(facet(y)[0]);
    if (kind == CYLINDER) return y.z >= 0 ? axis(2) : -axis(2);
    const int most = largest_axis(y);
    return part(y, most) >= 0 ? axis(most) : -axis(most);
  }
  static int largest_axis(V3<double> y) {
    int most = 0;
    for (int k = 1; k < 3; ++k)
      if (std::fabs(part(y, k)) > std::fabs(part(y, most))) most = k;
    return most;
  }
  // Of a mesh's triangle most along y: unit normal and first edge, in the shape's axes.
  std::array<V3<double>, 2> facet(V3<double> y) const {
    const int* corner = hull.facet(y);
    const V3<double> a = hull.vertex(corner[0]), b = hull.vertex(corner[1]), c = hull.vertex(corner[2]), zero = {0, 0, 0};
    return {unit(cross(b - a, c - a), zero).along, unit(b - a, zero).along};
  }
  // Directions of the edges of that triangle, in the world's axes; not normalised.
  void edges_of_face(const V3<T>& n, V3<T>* out) const {
    const int* corner = hull.facet(value(in_axes(n)));
    for (int k = 0; k < 3; ++k) out[k] = rotation * lifted<T>(hull.vertex(corner[(k + 1) % 3]) - hull.vertex(corner[k]));
  }

  // The face most along n, or the straight line towards n as a rectangle without width. Of a round or large face an octagon inside it.
  Polygon<T> polygon(const V3<T>& n) const {
    const V3<T> y = in_axes(n);
    Polygon<T> local;
    if (kind == BOX) {
      const int most = largest_axis(value(y)), second = (most + 1) % 3, third = (most + 2) % 3;
      const T zero(0.);
      V3<T> normal = {zero, zero, zero}, one = normal, two = normal;
      part(normal, most) = T(value(part(y, most)) >= 0 ? 1. : -1.), part(one, second) = T(1.), part(two, third) = T(1.);
      local = rectangle(T(size[most]) * normal, one, two, size[second], size[third], normal);
    } else if (kind == CAPSULE) {
      local = along_z(constant<T>(0, 0, 0), unit<T>({y.x, y.y, T(0.)}, constant<T>(1, 0, 0)).along, size[1]);
    } else {
      local = kind == CYLINDER ? cylinder_polygon(y) : hull_polygon(value(y));
    }
    for (int k = 0; k < local.corners; ++k)
      local.point[k] = centre + rotation * local.point[k], local.outward[k] = rotation * local.outward[k];
    local.normal = rotation * local.normal;
    return local;
  }

 private:
  static Polygon<T> rectangle(const V3<T>& middle, const V3<T>& one, const V3<T>& two, double half1, double half2, const V3<T>& normal) {
    const V3<T> x = T(half1) * one, y = T(half2) * two;
    return {4, {middle + x + y, middle - x + y, middle - x - y, middle + x - y}, {two, -one, -two, one}, normal};
  }
  static Polygon<T> along_z(const V3<T>& middle, const V3<T>& outward, double half) {
    const V3<T> z = constant<T>(0, 0, 1);
    return rectangle(middle, z, cross(outward, z), half, 0, outward);
  }
  // Cap or side.
  Polygon<T> cylinder_polygon(const V3<T>& y) const {
    const Direction<T> flat = flat_direction(y);
    if (!(std::fabs(value(y.z)) > value(flat.length))) return along_z(T(size[0]) * flat.along, flat.along, size[1]);
    const V3<T> across = cross(constant<T>(0, 0, 1), flat.along), up = constant<T>(0, 0, value(y.z) >= 0 ? 1 : -1);
    Polygon<T> out;
    V3<T> rim[MOST_CORNERS];
    out.corners = MOST_CORNERS, out.normal = up;
    for (int k = 0; k < MOST_CORNERS; ++k) {
      rim[k] = T(octagon(k, 0)) * flat.along + T(octagon(k, 1)) * across;
      out.point[k] = T(size[0]) * rim[k] + T(size[1]) * up;
    }
    const T inverse(1 / (2 * std::cos(0.39269908169872414)));
    for (int k = 0; k < MOST_CORNERS; ++k) out.outward[k] = inverse * (rim[k] + rim[(k + 1) % MOST_CORNERS]);
    return out;
  }
  Polygon<T> hull_polygon(V3<double> y) const {
    const auto [normal, first] = facet(y);
    const V3<double> across = cross(normal, first);
    const double level = dot(normal, hull.vertex(hull.farthest(normal))) - 1.4901161193847656e-08 * extent();
    int place[MOST_CORNERS];
    double most[MOST_CORNERS];
    for (int k = 0; k < MOST_CORNERS; ++k) place[k] = 0, most[k] = -std::numeric_limits<double>::infinity();
    reaching(hull.vertices(), normal, level, [&](int i) {
      const V3<double> x = hull.vertex(i);
      const double along = dot(first, x), beside = dot(across, x);
      for (int k = 0; k < MOST_CORNERS; ++k) {
        const double reach = askew(k, 0) * along + askew(k, 1) * beside;
        if (reach > most[k]) most[k] = reach, place[k] = i;
      }
    });
    Polygon<T> out;
    out.corners = MOST_CORNERS, out.normal = lifted<T>(normal);
    for (int k = 0; k < MOST_CORNERS; ++k) {
      const V3<double> x = hull.vertex(place[k]), next = hull.vertex(place[(k + 1) % MOST_CORNERS]);
      out.point[k] = lifted<T>(x), out.outward[k] = lifted<T>(unit(cross(next - x, normal), {0, 0, 0}).along);
    }
    return out;
  }
  static double octagon(int k, int component) {
    constexpr double s = 0.7071067811865476;
    constexpr double cosine[MOST_CORNERS] = {1, s, 0, -s, -1, -s, 0, s};
    return component == 0 ? cosine[k] : cosine[(k + 6) % MOST_CORNERS];
  }
  // No direction is across the first edge of a mesh's face, both ends of which would be the farthest, by rounding one of them.
  static double askew(int k, int component) {
    constexpr double c = 0.9238795325112867, s = 0.3826834323650898;
    constexpr double cosine[MOST_CORNERS] = {c, s, -s, -c, -c, -s, s, c};
    return component == 0 ? cosine[k] : cosine[(k + 6) % MOST_CORNERS];
  }
};

// Components aa, ab, bb of d support / d n along two tangents a, b at n; zero where the surface is not curved.
inline void add_curvature(const Convex<double>& shape, V3<double> n, V3<double> a, V3<double> b, double& aa, double& ab, double& bb) {
  if (!is_curved(shape.kind)) return;
  const V3<double> y = shape.in_axes(n);
  a = shape.in_axes(a), b = shape.in_axes(b);
  if (shape.kind == CYLINDER) {
    const Direction<double> flat = flat_direction(y);
    const double radius = shape.size[0] / std::fmax(flat.length, SAME_LENGTH);
    const double p = a.y * flat.along.x - a.x * flat.along.y, q = b.y * flat.along.x - b.x * flat.along.y;
    aa += radius * p * p, ab += radius * p * q, bb += radius * q * q;
    return;
  }
  const Direction<double> along = unit<double>(shape.scaled(y), {0, 0, 0});
  const double inverse = along.length > 0 ? 1 / along.length : 0;
  a = shape.scaled(a), b = shape.scaled(b);
  const double p = dot(along.along, a), q = dot(along.along, b);
  aa += inverse * (dot(a, a) - p * p), ab += inverse * (dot(a, b) - p * q), bb += inverse * (dot(b, b) - q * q);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
