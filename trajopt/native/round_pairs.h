// Spheres and capsules against each other, a sphere against a box or a cylinder (trajopt/dynamics/collision/primitives/round.py).
#pragma once
#include "patch.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

struct Hull;  // convex.h

// A shape in the world; size as in the model: radius, half length; half extents. hull: of a mesh.
template <class T> struct Placed {
  M3<T> rotation;
  V3<T> position;
  const double* size;
  const Hull* hull;
  V3<T> axis(int k) const { return {part(rotation.row0, k), part(rotation.row1, k), part(rotation.row2, k)}; }
};

// Balls about two centres; `fallback` is the normal where these coincide, `size` that of the shapes.
template <class T>
Touch<T> balls(const V3<T>& centre1, double radius1, const V3<T>& centre2, double radius2, const V3<T>& fallback, double size) {
  const V3<T> apart = centre1 - centre2;
  const Direction<T> n = unit_beyond(apart, fallback, SAME_LENGTH * size);
  const double total = radius1 + radius2, share = total > 0 ? radius2 / total : 0.5;
  return {n.length - T(total), centre2 + T(share) * apart, n.along};
}

template <class T> void sphere_sphere(const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  out[0] = balls(one.position, one.size[0], two.position, two.size[0], two.axis(2), one.size[0] + two.size[0]);
}

template <class T> void sphere_capsule(const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  const V3<T> axis = two.axis(2);
  const V3<T> nearest = two.position + limited(dot(one.position - two.position, axis), -two.size[1], two.size[1]) * axis;
  out[0] = balls(one.position, one.size[0], nearest, two.size[0], two.axis(0), one.size[0] + two.size[0] + two.size[1]);
}

// Four ends of the axes, each with its closest point on the other, and the crossing of the axes.
template <class T> void capsule_capsule(const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  const V3<T> axis1 = one.axis(2), axis2 = two.axis(2), c = one.position - two.position;
  const double half1 = one.size[1], half2 = two.size[1], size = one.size[0] + half1 + two.size[0] + half2;
  const T along = dot(axis1, axis2), c1 = dot(c, axis1), c2 = dot(c, axis2);
  T s[5], t[5];
  for (int k = 0; k < 2; ++k) {
    const double end = k == 0 ? 1 : -1;
    s[k] = T(end * half1), t[k] = limited(T(end * half1) * along + c2, -half2, half2);
    s[2 + k] = limited(T(end * half2) * along - c1, -half1, half1), t[2 + k] = T(end * half2);
  }
  segment_parameters(c, axis1, half1, axis2, half2, s[4], t[4]);
  const V3<T> across = unit(cross(axis1, axis2), two.axis(0)).along;
  Touch<T> candidate[5];
  int first = 0;
  for (int k = 0; k < 5; ++k) {
    candidate[k] = balls(c + s[k] * axis1, one.size[0], t[k] * axis2, two.size[0], across, size);
    if (value(candidate[k].distance) < value(candidate[first].distance)) first = k;
  }
  const bool valid[5] = {true, true, true, true, true};
  patch<5>(candidate, valid, 5, value(candidate[first].normal), size, 2, out);
  for (int k = 0; k < 2; ++k) out[k].point = two.position + out[k].point;
}

// What |x| has more than `limit`, with the sign of x; nothing below `small`, so that rounding does not choose between a face and its
// edge.
template <class T> T beyond(const T& x, double limit, double small) {
  return std::fabs(value(x)) > limit + small ? x - limited(x, -limit, limit) : T(0.);
}

// A centre inside the box leaves through the closest face.
template <class T> void sphere_box(const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  const V3<T> x = transposed_times(two.rotation, one.position - two.position);
  const double small = SAME_LENGTH * (two.size[0] + two.size[1] + two.size[2] + one.size[0]);
  V3<T> outside;
  int sides = 0, axis = 0;
  double depth[3];
  for (int k = 0; k < 3; ++k) {
    part(outside, k) = beyond(part(x, k), two.size[k], small);
    sides += value(part(outside, k)) != 0;
    depth[k] = two.size[k] - std::fabs(value(part(x, k)));
    if (depth[k] < depth[axis]) axis = k;
  }
  const Direction<T> away = unit(outside, constant<T>(0, 0, 0));
  const bool inside = value(away.length) == 0;
  V3<double> face = {0, 0, 0};
  part(face, axis) = value(part(x, axis)) >= 0 ? 1 : -1;
  const V3<T> normal = two.rotation * (inside ? lifted<T>(face) : away.along);
  const T distance = inside ? magnitude(part(x, axis)) - T(two.size[axis]) : away.length;
  const V3<T> on_box = two.position + two.rotation * (x - outside);
  out[0] = {distance - T(one.size[0]), sides <= 1 ? one.position - T(one.size[0]) * normal : on_box, normal};
}

// A point in a cylinder's axes: signed distance, outward normal and closest rim, and whether the rim is closest.
template <class T> struct PointToCylinder {
  T distance;
  V3<T> normal, rim;
  bool on_rim;
};
template <class T> PointToCylinder<T> point_cylinder(const V3<T>& x, double radius, double half) {
  const T zero(0.);
  const Direction<T> radial = unit<T>({x.x, x.y, zero}, constant<T>(1, 0, 0));
  const double small = SAME_LENGTH * (radius + half);
  const T height = x.z, past = beyond(radial.length, radius, small), over = beyond(height, half, small);
  const Direction<T> away = unit<T>({past, over, zero}, {zero, zero, zero});
  const bool inside = value(away.length) == 0;
  const double up = value(height) >= 0 ? 1 : -1;
  const T below = T(half) - magnitude(height), within = T(radius) - radial.length;
  const bool through_side = value(within) < value(below);
  const T outwards = inside ? T(through_side ? 1. : 0.) : away.along.x, upwards = inside ? T(through_side ? 0. : up) : away.along.y;
  return {inside ? (through_side ? -within : -below) : away.length,
          {outwards * radial.along.x, outwards * radial.along.y, upwards},
          {T(radius) * radial.along.x, T(radius) * radial.along.y, T(up * half)},
          value(past) != 0 && value(over) != 0};
}

template <class T> void sphere_cylinder(const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  const V3<T> x = transposed_times(two.rotation, one.position - two.position);
  const PointToCylinder<T> at = point_cylinder(x, two.size[0], two.size[1]);
  const V3<T> point = at.on_rim ? at.rim : x - T(one.size[0]) * at.normal;
  out[0] = {at.distance - T(one.size[0]), two.position + two.rotation * point, two.rotation * at.normal};
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
