// Candidate contacts of shapes against each other: which pairs are near enough, their contacts, and how these move with body 1.
//
// Nothing of it depends on the size of the tree but where the shapes are: the rest is compiled once, in shape_pairs.cc.
#pragma once
#include "candidates.h"
#include "convex.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// The pairs that were nearer than `margin`, beyond NEARBY of their size, when the list was made (Verlet), and the balls around the shapes
// then: as long as these have moved by little, no other pair is near. spare: by this and by NEARBY of its size any other pair is apart;
// below zero of a step that looks at all pairs.
struct NeighbourList {
  V3<double>* centre;
  double* reach;
  int *pair, count;
  double margin, spare;
};

// What is kept of a step: where the shapes are and how they move, a lower bound of the distance of every pair that was not looked at
// (infinite of one that was), and the slopes of the pair asked for last. From step to step: directions along which pairs were apart, and which pairs are neighbours.
struct PairWork {
  Placed<double>* shape;
  Hull* hull;
  HullTables* tables;    // of the hulls of the topology
  V3<double>* centre;    // and radius of a ball around each shape
  V6<double>* velocity;  // of that centre, and spin
  double *reach, *bound, *least;
  V3<double>*shift, *apart;  // of the first shape, to where the contacts of a pair were chosen; a direction that separates the pair
  unsigned char* known;      // how the bound of a pair was found
  bool* missed;              // pairs that the step has to look at, whatever their bounds
  int* order;
  int last_pair;
  double farthest_reach;
  Slope* slope;
  NeighbourList neighbours;
};

// Velocities of the shapes, from those of the links.
template <class Size> void move_shapes(const Topology& t, const Kinematics<Size>& kin, const Field<Size>& V, PairWork& w) {
  for (size_t k = 0; k < t.pair_shapes.size(); ++k) {
    const int link = t.pair_shapes[k].link;
    const V6<double> body = V.six_of(link);
    w.velocity[k] = {body.l + cross(body.w, w.centre[k] - kin.origin.three_of(link)), body.w};
  }
}

template <class Size>
void place_shapes(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const Field<Size>& V, PairWork& w) {
  for (size_t k = 0; k < t.hulls.size(); ++k) w.tables[k].current = false;
  w.farthest_reach = 0;
  for (size_t k = 0; k < t.pair_shapes.size(); ++k) {
    const PairShape& shape = t.pair_shapes[k];
    const double* x = p.pair_shape + PAIR_SHAPE * k;
    const M3<double> R = kin.rotation.matrix_of(shape.link);
    if (shape.kind == MESH) w.hull[k] = {p.hull + 3 * t.hulls[shape.hull].first, &t.hulls[shape.hull], w.tables + shape.hull};
    Placed<double>& at = w.shape[k] = {R * nine(x + 3), position_of(kin, shape.link) + R * three(x), x + 12,
                                       shape.kind == MESH ? w.hull + k : nullptr};
    w.centre[k] = at.position + at.rotation * three(x + 15);
    w.reach[k] = shape.kind == MESH ? x[18] : reach_of(shape.kind, x + 12);
    w.farthest_reach = std::max(w.farthest_reach, w.reach[k]);
  }
  move_shapes(t, kin, V, w);
}

// Candidates of the pairs of the placed shapes that are near or were missed, and of as many more as the `wanted` closest ones need, appended to `out`,
// which holds `count`; returns the new count.
int pair_candidates(const Topology& t, const Parameters& p, double dt, int wanted, int count, Candidate* out, PairWork& w);

// Marks the pairs left out that could have touched within the step, as the shapes move, and returns how many there are.
int mark_missed(const Topology& t, double dt, PairWork& w);

// Slope of a candidate of two shapes; those of its whole pair are kept for the next question.
Slope pair_slope(const Topology& t, const Candidate& c, PairWork& w);

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
