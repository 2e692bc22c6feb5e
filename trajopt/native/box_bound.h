// A lower bound of the distance of two shapes from boxes around them (trajopt/dynamics/collision/broadphase.py).
#pragma once
#include "convex.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

struct Box {
  V3<double> axis[3], centre, half;
  double radius;  // of what is around the box
};

// size: as in the model; of a mesh half the extents of its box.
inline Box box_of(int kind, const M3<double>& R, V3<double> centre, const double* size) {
  const bool rounded = kind == SPHERE || kind == CAPSULE;
  const double wide = rounded ? 0 : size[0], deep = rounded ? 0 : kind == CYLINDER ? size[0] : size[1];
  const double high = kind == SPHERE ? 0 : kind == CAPSULE || kind == CYLINDER ? size[1] : size[2];
  return {{{R.row0.x, R.row1.x, R.row2.x}, {R.row0.y, R.row1.y, R.row2.y}, {R.row0.z, R.row1.z, R.row2.z}}, centre, {wide, deep, high},
          rounded ? size[0] : 0};
}

// The largest gap between the boxes along the normals of their faces.
inline double box_bound(const Box& one, const Box& two) {
  const V3<double> apart = one.centre - two.centre;
  double most = -std::numeric_limits<double>::infinity(), reach2[3] = {two.half.x, two.half.y, two.half.z};
  for (int i = 0; i < 3; ++i) {
    double reach1 = part(one.half, i);
    for (int j = 0; j < 3; ++j) {
      const double cosine = std::fabs(dot(one.axis[i], two.axis[j]));
      reach1 += cosine * part(two.half, j), reach2[j] += cosine * part(one.half, i);
    }
    most = std::fmax(most, std::fabs(dot(one.axis[i], apart)) - reach1);
  }
  for (int j = 0; j < 3; ++j) most = std::fmax(most, std::fabs(dot(two.axis[j], apart)) - reach2[j]);
  return most - one.radius - two.radius;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
