// The direction of least penetration of two convex shapes: the expanding polytope (trajopt/dynamics/collision/convex/epa.py).
#pragma once
#include <algorithm>

#include "gjk.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int EPA_ITERATIONS = 60, HORIZON = 40;  // edges of the hole that a new point closes; a larger hole ends the search

class Polytope {  // inside M, grown from a tetrahedron; faces without area are infinitely far
 public:
  static constexpr int POINTS = 4 + EPA_ITERATIONS, FACES = 2 * POINTS;
  struct Face {
    int corner[3];
    V3<double> outward;
    double offset;
    bool alive;
  };
  V3<double> point[POINTS];
  Face face[FACES];
  int points = 4;

  template <class Farthest> Polytope(Farthest farthest, V3<double> start) {
    constexpr int TETRAHEDRON[4][3] = {{0, 1, 2}, {0, 3, 1}, {0, 2, 3}, {1, 3, 2}};
    tetrahedron(farthest, start);
    for (Face& f : face) f = {{0, 0, 0}, {0, 0, 0}, std::numeric_limits<double>::infinity(), false};
    for (int k = 0; k < 4; ++k) set(face[k], TETRAHEDRON[k][0], TETRAHEDRON[k][1], TETRAHEDRON[k][2]);
  }
  const Face& lowest() const {
    int best = 0;
    for (int k = 1; k < FACES; ++k)
      if (face[k].offset < face[best].offset) best = k;
    return face[best];
  }
  // Pushes the faces that w sees out to it; returns whether the search can go on.
  bool add(V3<double> w, double small) {
    bool visible[FACES], any = false;
    bool table[POINTS][POINTS] = {};
    for (int k = 0; k < FACES; ++k) {
      visible[k] = face[k].alive && dot(face[k].outward, w) - face[k].offset > small;
      any = any || visible[k];
      for (int i = 0; visible[k] && i < 3; ++i) table[face[k].corner[i]][face[k].corner[(i + 1) % 3]] = true;
    }
    int tail[HORIZON], head[HORIZON], edges = 0;
    for (int k = 0; k < FACES; ++k)
      for (int i = 0; visible[k] && i < 3; ++i) {
        const int a = face[k].corner[i], b = face[k].corner[(i + 1) % 3];
        if (table[b][a]) continue;
        if (edges < HORIZON) tail[edges] = a, head[edges] = b;
        ++edges;
      }
    point[points] = w;
    int slot = 0;
    for (int e = 0; e < std::min(edges, HORIZON); ++e, ++slot) {
      while (slot < FACES && face[slot].alive && !visible[slot]) ++slot;
      if (slot == FACES) return false;
      set(face[slot], tail[e], head[e], points), visible[slot] = false;
    }
    for (int k = 0; k < FACES; ++k)
      if (visible[k]) face[k].alive = false, face[k].offset = std::numeric_limits<double>::infinity();
    ++points;
    return edges <= HORIZON && points < POINTS && any;
  }

 private:
  void set(Face& f, int a, int b, int c) {
    const Direction<double> normal = unit(cross(point[b] - point[a], point[c] - point[a]), {0, 0, 0});
    const bool flat = !(normal.length > 0);
    f = {{a, b, c}, normal.along, flat ? std::numeric_limits<double>::infinity() : dot(normal.along, point[a]), true};
  }
  // Four points of M that span a volume if M does, wound so that the faces look outwards.
  template <class Farthest> void tetrahedron(Farthest farthest, V3<double> start) {
    auto farther = [&](V3<double> n, auto measure) {
      const V3<double> one = farthest(-n), other = farthest(n);
      return measure(one) >= measure(other) ? one : other;
    };
    const V3<double> a = farthest(start), b = farthest(-start), along = unit(b - a, start).along;
    int least = 0;
    for (int k = 1; k < 3; ++k)
      if (std::fabs(part(along, k)) < std::fabs(part(along, least))) least = k;
    V3<double> helper = {0, 0, 0};
    part(helper, least) = 1;
    const V3<double> across = unit(cross(along, helper), helper).along;
    auto from_line = [&](V3<double> x) {
      const V3<double> off = cross(x - a, along);
      return dot(off, off);
    };
    const V3<double> one = farther(across, from_line), other = farther(cross(along, across), from_line);
    const V3<double> c = from_line(one) >= from_line(other) ? one : other, up = unit(cross(b - a, c - a), helper).along;
    const V3<double> d = farther(up, [&](V3<double> x) { return std::fabs(dot(x - a, up)); });
    const bool above = dot(d - a, up) > 0;  // the triangle (a, b, c) looks outwards when d is below it
    point[0] = a, point[1] = above ? c : b, point[2] = above ? b : c, point[3] = d;
  }
};

// The unit vector from shape 2 to shape 1 along which they are least deep; `accuracy` of the depth, relative to `scale`.
template <class Farthest> V3<double> deepest_direction(Farthest farthest, V3<double> start, double scale, double accuracy) {
  const double enough = std::fmax(accuracy, 16 * EPSILON) * scale;
  Polytope polytope(farthest, start);
  V3<double> best = -start;
  double depth = std::numeric_limits<double>::infinity();
  for (bool going = true; going;) {
    const Polytope::Face lowest = polytope.lowest();
    const V3<double> w = farthest(-lowest.outward);
    const double reach = dot(lowest.outward, w);
    if (reach < depth) best = lowest.outward, depth = reach;
    if (!(depth - lowest.offset > enough)) break;
    going = polytope.add(w, 16 * EPSILON * scale);
  }
  return -best;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
