// A convex mesh in its shape's axes (trajopt/dynamics/collision/convex/shapes.py): its farthest vertex, face and edge along a direction.
#pragma once
#include <algorithm>
#include <cstring>

#include "patch.h"
#include "topology.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// What the choice of a face or an edge takes, kept from step to step: made anew where the vertices are not those it was made from.
struct HullTables {
  double *vertices, *normals, *inverse_lengths;  // normals of the triangles, by component as the vertices; of the edges 1 / length
  double longest;                                // edge
  bool made, current;                            // current: compared with the vertices since the shapes were placed
};

struct Hull {
  const double* numbers;  // of the vertices, by component
  const HullTopology* topology;
  HullTables* tables;

  Points vertices() const { return {numbers, topology->vertices}; }
  V3<double> vertex(int k) const { return vertices()[k]; }
  int farthest(V3<double> y) const { return trajopt::farthest(vertices(), y); }
  // The triangle most along the unit vector y, the first of those that are so up to rounding: a flat face has several. The cosine of an
  // angle tells no triangles apart that differ by less than its root: of those that it leaves the nearest normal decides.
  const int* facet(V3<double> y) const {
    prepare();
    const Points normal = {tables->normals, topology->faces()};
    const int best = trajopt::farthest(normal, y);
    const double enough = dot(y, normal[best]) - SAME_LENGTH;
    auto apart = [&](int k) {
      const V3<double> turned = normal[k] - y;
      return std::sqrt(dot(turned, turned));
    };
    double least = apart(best);
    reaching(normal, y, enough, [&](int k) { least = std::min(least, apart(k)); });
    int first = -1;
    reaching(normal, y, enough, [&](int k) { first = first < 0 && apart(k) <= least + SAME_LENGTH ? k : first; });
    return topology->triangles.data() + 3 * (first < 0 ? best : first);
  }
  // The edge that the smallest turn makes the farthest along y; of short ones, both ends are high anyway.
  V3<double> edge(V3<double> y) const {
    prepare();
    const int *ends = topology->edges.data(), top = farthest(y);
    const double highest = dot(y, vertex(top));
    double least = std::numeric_limits<double>::infinity();
    int best = 0;
    auto look_around = [&](int k) {
      for (int i = topology->first_around[k]; i < topology->first_around[k + 1]; ++i) {
        const int e = topology->around[i];
        const double one = dot(y, vertex(ends[2 * e])), two = dot(y, vertex(ends[2 * e + 1]));
        const double turn = (highest - (one < two ? one : two)) * tables->inverse_lengths[e];
        if (turn < least || (turn == least && e < best)) least = turn, best = e;
      }
    };
    look_around(top);
    // From a vertex farther down no edge is long enough.
    reaching(vertices(), y, highest - (least + SAME_LENGTH) * tables->longest, look_around);
    return vertex(ends[2 * best + 1]) - vertex(ends[2 * best]);
  }

 private:
  void prepare() const {
    if (tables->current) return;
    const size_t size = sizeof(double) * 3 * topology->vertices;
    tables->current = true;
    if (tables->made && std::memcmp(tables->vertices, numbers, size) == 0) return;
    tables->made = true;
    std::memcpy(tables->vertices, numbers, size);
    const int faces = topology->faces();
    for (int k = 0; k < faces; ++k) {
      const int* corner = topology->triangles.data() + 3 * k;
      const V3<double> a = vertex(corner[0]), normal = unit(cross(vertex(corner[1]) - a, vertex(corner[2]) - a), V3<double>{0, 0, 0}).along;
      tables->normals[k] = normal.x, tables->normals[k + faces] = normal.y, tables->normals[k + 2 * faces] = normal.z;
    }
    tables->longest = 0;
    for (int k = 0; k < topology->edge_count(); ++k) {
      const V3<double> along = vertex(topology->edges[2 * k + 1]) - vertex(topology->edges[2 * k]);
      const double square = dot(along, along);
      tables->inverse_lengths[k] = square > 0 ? 1 / std::sqrt(square) : 1;
      tables->longest = std::max(tables->longest, std::sqrt(square));
    }
  }
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
