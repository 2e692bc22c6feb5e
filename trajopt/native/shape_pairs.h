// Candidate contacts of shapes against each other: which pairs are near enough, their contacts, and how these move with body 1.
#pragma once
#include "box_pairs.h"
#include "candidates.h"
#include "capsule_cylinder.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// What is kept of a step: the placements of the shapes, a lower bound of the distance of every pair, those that were looked at, and the
// slopes of the pair asked for last.
struct PairWork {
  Placed<double>* shape;
  double *reach, *bound, *least;
  int* order;
  int taken, last_pair;
  Slope* slope;
};

inline double reach_of(int kind, const double* size) {
  switch (kind) {
    case SPHERE: return size[0];
    case CAPSULE: return size[0] + size[1];
    case CYLINDER: return std::sqrt(size[0] * size[0] + size[1] * size[1]);
    default: return std::sqrt(size[0] * size[0] + size[1] * size[1] + size[2] * size[2]);
  }
}

// The contacts of a pair, at most MOST_TOUCHES; of two kinds in the order of trajopt/dynamics/collision/narrowphase.py.
template <class T> void touches(int kind1, int kind2, const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  switch (8 * kind1 + kind2) {
    case 8 * SPHERE + SPHERE: return sphere_sphere(one, two, out);
    case 8 * SPHERE + CAPSULE: return sphere_capsule(one, two, out);
    case 8 * SPHERE + BOX: return sphere_box(one, two, out);
    case 8 * SPHERE + CYLINDER: return sphere_cylinder(one, two, out);
    case 8 * CAPSULE + CAPSULE: return capsule_capsule(one, two, out);
    case 8 * CAPSULE + BOX: return capsule_box(one, two, out);
    case 8 * CAPSULE + CYLINDER: return capsule_cylinder(one, two, out);
    case 8 * BOX + BOX: return box_box(one, two, out);
  }
}

// The same with the shapes in the order of the model's pair, whose normal points to its first shape. Compiled once, not into every
// size of the step.
template <class T> [[gnu::noinline]] void touches(const Topology& t, const ShapePair& pair, const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  const int kind1 = t.pair_shapes[pair.one].kind, kind2 = t.pair_shapes[pair.two].kind;
  if (!pair.swapped) return touches(kind1, kind2, one, two, out);
  touches(kind2, kind1, two, one, out);
  for (int k = 0; k < pair.kept; ++k) out[k].normal = -out[k].normal;
}

template <class Size> void place_shapes(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, PairWork& w) {
  for (size_t k = 0; k < t.pair_shapes.size(); ++k) {
    const PairShape& shape = t.pair_shapes[k];
    const double* x = p.pair_shape + SHAPE * k;
    const M3<double> R = kin.rotation.matrix_of(shape.link);
    w.shape[k] = {R * nine(x + 3), position_of(kin, shape.link) + R * three(x), x + 12};
    w.reach[k] = reach_of(shape.kind, x + 12);
  }
}

// The distance of two shapes changes no faster than this: relative velocity of the bodies at a centre, and their turns.
template <class Size>
double fastest_approach(const Topology& t, const Kinematics<Size>& kin, const Field<Size>& V, const ShapePair& pair, const PairWork& w) {
  const int link1 = t.pair_shapes[pair.one].link, link2 = t.pair_shapes[pair.two].link;
  const V6<double> one = V.six_of(link1), two = V.six_of(link2);
  auto at = [&](const V6<double>& body, int link, V3<double> x) { return body.l + cross(body.w, x - kin.origin.three_of(link)); };
  const V3<double> x = w.shape[pair.one].position, spin = one.w - two.w, apart = at(one, link1, x) - at(two, link2, x);
  return std::sqrt(dot(apart, apart)) + std::sqrt(dot(spin, spin)) * w.reach[pair.one];
}

// A pair farther away than this share of its size, and than what its velocity covers in two steps, is left out of a step unless it is
// among the nearest, which are reported.
constexpr double NEARBY = 0.1, STEPS_AHEAD = 2;

// Candidates of the pairs that are near, and of as many more as the `wanted` closest ones need, appended to `out`, which holds `count`;
// returns the new count.
template <class Size>
int pair_candidates(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const Field<Size>& V, double dt, int wanted,
                    int count, Candidate* out, PairWork& w) {
  place_shapes(t, p, kin, w);
  const int many = static_cast<int>(t.shape_pairs.size());
  w.taken = 0, w.last_pair = -1;
  auto take = [&](int k) {
    const ShapePair& pair = t.shape_pairs[k];
    const PairShape &one = t.pair_shapes[pair.one], &two = t.pair_shapes[pair.two];
    Touch<double> touch[MOST_TOUCHES];
    touches(t, pair, w.shape[pair.one], w.shape[pair.two], touch);
    for (int j = 0; j < pair.kept; ++j)
      out[count++] = {touch[j].distance, touch[j].point, touch[j].normal, w.shape[pair.one].position, touch[j].point, one.link, two.link,
                      one.node, two.node, pair.pair, pair.slot + j, static_cast<int>(t.shape_planes.size()) + k,
                      p.pair_friction[pair.pair], p.pair_restitution[pair.pair]};
  };
  int later = many;  // order: pairs that are left, from this place on
  for (int k = 0; k < many; ++k) {
    const ShapePair& pair = t.shape_pairs[k];
    const V3<double> apart = w.shape[pair.one].position - w.shape[pair.two].position;
    const double size = w.reach[pair.one] + w.reach[pair.two];
    w.bound[k] = std::sqrt(dot(apart, apart)) - size;
    // Not a number: near.
    const bool far = w.bound[k] > NEARBY * size && w.bound[k] > STEPS_AHEAD * dt * fastest_approach(t, kin, V, pair, w);
    if (far) w.order[--later] = k;
    else take(k), ++w.taken;
  }
  std::sort(w.order + later, w.order + many, [&](int a, int b) { return w.bound[a] < w.bound[b] || (w.bound[a] == w.bound[b] && a < b); });
  for (; later < many; ++later, ++w.taken) {
    if (count >= wanted && wanted > 0) {
      for (int k = 0; k < count; ++k) w.least[k] = ordered(out[k].distance);
      std::nth_element(w.least, w.least + wanted - 1, w.least + count);
    }
    if (wanted == 0 || (count >= wanted && w.least[wanted - 1] < w.bound[w.order[later]])) break;
    take(w.order[later]);
  }
  std::copy(w.order + later, w.order + many, w.order);  // those left out, at the front
  return count;
}

// How many of the pairs left out could have touched within the step at the velocities V.
template <class Size>
int pairs_missed(const Topology& t, const Kinematics<Size>& kin, const Field<Size>& V, double dt, const PairWork& w) {
  int missed = 0;
  for (int k = 0; k < static_cast<int>(t.shape_pairs.size()) - w.taken; ++k) {
    const int pair = w.order[k];
    missed += w.bound[pair] < dt * fastest_approach(t, kin, V, t.shape_pairs[pair], w);
  }
  return missed;
}

// Slope of a candidate of two shapes; those of its whole pair are kept for the next question.
inline Slope pair_slope(const Topology& t, const Candidate& c, PairWork& w) {
  const int index = c.source - static_cast<int>(t.shape_planes.size());
  const ShapePair& pair = t.shape_pairs[index];
  if (w.last_pair != index) {
    const Placed<double>&one = w.shape[pair.one], &two = w.shape[pair.two];
    Placed<Dual> moving = {lifted<Dual>(one.rotation), lifted<Dual>(one.position), one.size};
    const Placed<Dual> still = {lifted<Dual>(two.rotation), lifted<Dual>(two.position), two.size};
    for (int k = 0; k < 3; ++k) {
      part(moving.position, k).d[k] = 1;
      const V3<double> x = one.axis(k);  // an axis turns by e x axis
      const double turned[3][3] = {{0, x.z, -x.y}, {-x.z, 0, x.x}, {x.y, -x.x, 0}};  // component, direction of the turn
      V3<Dual>* rows[3] = {&moving.rotation.row0, &moving.rotation.row1, &moving.rotation.row2};
      for (int i = 0; i < 3; ++i)
        for (int e = 0; e < 3; ++e) part(*rows[i], k).d[3 + e] = turned[i][e];
    }
    Touch<Dual> touch[MOST_TOUCHES];
    touches(t, pair, moving, still, touch);
    for (int j = 0; j < pair.kept; ++j) {
      const Dual* parts[7] = {&touch[j].distance, &touch[j].point.x,  &touch[j].point.y, &touch[j].point.z,
                              &touch[j].normal.x, &touch[j].normal.y, &touch[j].normal.z};
      for (int i = 0; i < 7; ++i) std::copy(parts[i]->d, parts[i]->d + DIRECTIONS, w.slope[j].by_motion[i]);
    }
    w.last_pair = index;
  }
  return w.slope[c.slot - pair.slot];
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
