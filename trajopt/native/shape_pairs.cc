// The pairs of shapes that the core collides: see shape_pairs.h.
#include "shape_pairs.h"

#include <algorithm>

#include "box_bound.h"
#include "box_pairs.h"
#include "capsule_cylinder.h"
#include "compliance.h"
#include "convex_pairs.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {
namespace {

constexpr double STEP_BACK = 1e-4;  // share of a shift

template <class T> Convex<T> convex_of(int kind, const Placed<T>& x, const V3<T>& centre) {
  return {kind, x.rotation, centre, x.size, x.hull ? *x.hull : Hull{}};
}

// The `count` contacts of a pair, of two kinds in the order of trajopt/dynamics/collision/narrowphase.py.
template <class T> void touches(int kind1, int kind2, const Placed<T>& one, const Placed<T>& two, int count, Touch<T>* out) {
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
  convex_pair(convex_of(kind1, one, one.position - two.position), convex_of(kind2, two, constant<T>(0, 0, 0)), count, out);
  for (int k = 0; k < count; ++k) out[k].point = two.position + out[k].point;
}

// The same with the shapes in the order of the model's pair, whose normal points to its first shape.
template <class T> void touches(const Topology& t, const ShapePair& pair, const Placed<T>& one, const Placed<T>& two, Touch<T>* out) {
  const int kind1 = t.pair_shapes[pair.one].kind, kind2 = t.pair_shapes[pair.two].kind;
  if (!pair.swapped) return touches(kind1, kind2, one, two, pair.kept, out);
  touches(kind2, kind1, two, one, pair.kept, out);
  for (int k = 0; k < pair.kept; ++k) out[k].normal = -out[k].normal;
}

// A shape that moves: slopes by its translation, and by its turn about its origin.
Placed<Dual> moving(const Placed<double>& x) {
  Placed<Dual> out = {lifted<Dual>(x.rotation), lifted<Dual>(x.position), x.size, x.hull};
  for (int k = 0; k < 3; ++k) {
    part(out.position, k).d[k] = 1;
    const V3<double> a = x.axis(k);  // an axis turns by e x axis
    const double turned[3][3] = {{0, a.z, -a.y}, {-a.z, 0, a.x}, {a.y, -a.x, 0}};  // component, direction of the turn
    V3<Dual>* rows[3] = {&out.rotation.row0, &out.rotation.row1, &out.rotation.row2};
    for (int i = 0; i < 3; ++i)
      for (int e = 0; e < 3; ++e) part(*rows[i], k).d[3 + e] = turned[i][e];
  }
  return out;
}
// The contacts of a pair, and how they move with its first shape, with that shape moved by `shift`.
void moving_touches(const Topology& t, const ShapePair& pair, const PairWork& w, V3<double> shift, Touch<Dual>* out) {
  const Placed<double>& two = w.shape[pair.two];
  Placed<Dual> one = moving(w.shape[pair.one]);
  one.position = one.position + lifted<Dual>(shift);
  touches(t, pair, one, {lifted<Dual>(two.rotation), lifted<Dual>(two.position), two.size, two.hull}, out);
}
double along(const Dual& x, V3<double> shift) { return x.d[0] * shift.x + x.d[1] * shift.y + x.d[2] * shift.z; }
V3<double> along(const V3<Dual>& x, V3<double> shift) { return {along(x.x, shift), along(x.y, shift), along(x.z, shift)}; }
bool turns(const Touch<Dual>& x, V3<double> shift) {
  const V3<double> turned = along(x.normal, shift);
  return std::fmax(std::fabs(turned.x), std::fmax(std::fabs(turned.y), std::fabs(turned.z))) > 1e-9;
}
// Contacts of the features that meet once the first shape has moved by `shift`, as they are now. With a normal that the shift does not
// turn, points are affine in it and followed back; others are taken back with body 1, so that they stay on the line of the normal.
void touches_ahead(const Topology& t, const ShapePair& pair, const PairWork& w, V3<double> shift, Touch<double>* out) {
  Touch<Dual> there[MOST_TOUCHES];
  moving_touches(t, pair, w, shift, there);
  for (int k = 0; k < pair.kept; ++k) {
    const V3<double> n = value(there[k].normal);
    const double by = dot(n, shift);
    const V3<double> back = turns(there[k], shift) ? shift - by * n : along(there[k].point, shift);
    out[k] = {value(there[k].distance) - by, value(there[k].point) - back, n};
  }
}
void write_slope(const Touch<Dual>& x, Slope& out) {
  const Dual* parts[7] = {&x.distance, &x.point.x, &x.point.y, &x.point.z, &x.normal.x, &x.normal.y, &x.normal.z};
  for (int i = 0; i < 7; ++i) std::copy(parts[i]->d, parts[i]->d + DIRECTIONS, out.by_motion[i]);
}
// Their slopes: those of points are affine in the shift too, and followed back from it by what a small part of it changes.
void slopes_ahead(const Topology& t, const ShapePair& pair, const PairWork& w, V3<double> shift, Slope* out) {
  Touch<Dual> there[MOST_TOUCHES], before[MOST_TOUCHES];
  moving_touches(t, pair, w, shift, there);
  for (int k = 0; k < pair.kept; ++k) write_slope(there[k], out[k]);
  if (shift.x == 0 && shift.y == 0 && shift.z == 0) return;
  moving_touches(t, pair, w, (1 - STEP_BACK) * shift, before);
  for (int k = 0; k < pair.kept; ++k) {
    Slope earlier;
    write_slope(before[k], earlier);
    double(&slope)[7][6] = out[k].by_motion;
    const V3<double> moved = value(there[k].point) - value(before[k].point);
    const bool same = dot(moved, moved) <= 100 * STEP_BACK * STEP_BACK * dot(shift, shift);  // the same feature
    const bool turned = turns(there[k], shift);
    const V3<double> n = value(there[k].normal);
    for (int j = 0; j < DIRECTIONS; ++j) {
      const V3<double> dn = {slope[4][j], slope[5][j], slope[6][j]}, back = dot(dn, shift) * n + dot(n, shift) * dn;
      slope[0][j] -= dot(dn, shift);
      for (int i = 1; i < 4; ++i) {
        if (turned) slope[i][j] += part(back, i - 1);
        else if (same) slope[i][j] -= (slope[i][j] - earlier.by_motion[i][j]) / STEP_BACK;
      }
    }
  }
}

// Shapes that pass each other within a step (trajopt/dynamics/collision/evaluation.py, docs/contact-semantics.md).
constexpr double FLUSH = 1e-5, MOVES = SAME_LENGTH, LOOK_AHEAD = 4;

double round_radius(int kind, const Placed<double>& x) { return kind == SPHERE || kind == CAPSULE || kind == CYLINDER ? x.size[0] : 0; }
// Displacement of the first body relative to the second within the step, at a point.
V3<double> motion_at(const ShapePair& pair, double dt, V3<double> x, const PairWork& w) {
  const V6<double> one = w.velocity[pair.one], two = w.velocity[pair.two];
  return dt * (one.l + cross(one.w, x - w.centre[pair.one]) - two.l - cross(two.w, x - w.centre[pair.two]));
}
double least_distance(const Touch<double>* touch, int count, V3<double> shift) {
  double least = std::numeric_limits<double>::infinity();
  for (int k = 0; k < count; ++k) least = std::fmin(least, touch[k].distance + dot(touch[k].normal, shift));
  return least;
}
// Replaces the contacts of a pair by those along the direction that separates the shapes all the way, where the motion of the step
// leaves the half-space of `touch` and there is one; returns the shift with which they were found, zero where they stay.
V3<double> see_past(const Topology& t, const ShapePair& pair, double dt, const PairWork& w, Touch<double>* touch) {
  const V3<double> still = {0, 0, 0};
  const int kind1 = t.pair_shapes[pair.one].kind, kind2 = t.pair_shapes[pair.two].kind;
  if (!has_faces(kind1) && !has_faces(kind2)) return still;
  const Placed<double>&one = w.shape[pair.one], &two = w.shape[pair.two];
  const double size = convex_of(kind1, one, still).extent() + convex_of(kind2, two, still).extent(), flush = FLUSH * size, small = MOVES * size;
  int worst = 0;
  double approach = 0, closest = std::numeric_limits<double>::infinity();
  for (int k = 0; k < pair.kept; ++k) {
    const double towards = dot(touch[k].normal, motion_at(pair, dt, touch[k].point, w));
    if (touch[k].distance + towards < closest) closest = touch[k].distance + towards, approach = towards, worst = k;
  }
  if (!(closest < -small && approach < -small && least_distance(touch, pair.kept, still) > -flush)) return still;
  const double radius1 = round_radius(kind1, one), radius2 = round_radius(kind2, two);
  const V3<double> core = touch[worst].point + (radius1 > 0 ? radius1 : -radius2) * touch[worst].normal;
  const Direction<double> ahead = unit(motion_at(pair, dt, core, w), still);
  const V3<double> shift = std::fmax(ahead.length, LOOK_AHEAD * flush) * ahead.along;
  Touch<double> other[MOST_TOUCHES];
  touches_ahead(t, pair, w, shift, other);
  if (!(least_distance(other, pair.kept, still) >= -flush && least_distance(other, pair.kept, shift) >= -flush)) return still;
  std::copy(other, other + pair.kept, touch);
  return shift;
}

// Whether the cheap search for a separating direction is worth its while before the contacts of the pair are looked for.
bool is_general(const Topology& t, const ShapePair& pair) {
  auto general = [&](int shape) {
    const int kind = t.pair_shapes[shape].kind;
    return kind == MESH || kind == ELLIPSOID || kind == CYLINDER;
  };
  return general(pair.one) || general(pair.two);
}
// Whether the contacts of the pair cost no more than a bound.
bool is_quick(const Topology& t, const ShapePair& pair) {
  auto round = [&](int shape) { return t.pair_shapes[shape].kind == SPHERE || t.pair_shapes[shape].kind == CAPSULE; };
  return round(pair.one) && round(pair.two);
}
Box box_around(const Topology& t, int shape, const PairWork& w) {
  const Placed<double>& x = w.shape[shape];
  return box_of(t.pair_shapes[shape].kind, x.rotation, w.centre[shape], x.size);
}
// A lower bound of the distance of two shapes from a direction that separates them (broadphase.exact_bounds), by `enough` or nearly the most.
// The search begins at the direction where the last one ended: whatever that is, a bound is a bound.
double separation_bound(const Topology& t, int k, double enough, PairWork& w) {
  const ShapePair& pair = t.shape_pairs[k];
  const Placed<double>&x1 = w.shape[pair.one], &x2 = w.shape[pair.two];
  const Convex<double> one = convex_of(t.pair_shapes[pair.one].kind, x1, x1.position - x2.position);
  const Convex<double> two = convex_of(t.pair_shapes[pair.two].kind, x2, V3<double>{0, 0, 0});
  auto farthest = [&](V3<double> n) { return apart_along(one, two, n); };
  const double size = w.reach[pair.one] + w.reach[pair.two];
  const V3<double> last = w.apart[k], start = dot(last, last) > 0 ? last : unit(one.centre - two.centre, two.axis(2)).along;
  const double round = one.radius() + two.radius();
  const V3<double> n = unit(separating_direction(farthest, start, size, 0.02, 16, enough + round).v, start).along;
  const double found = dot(n, farthest(n)) - round;
  if (std::isfinite(found)) w.apart[k] = n;
  return found;
}

// The distance of two shapes changes no faster than this: relative velocity of the bodies at a centre, and their turns.
double fastest_approach(const ShapePair& pair, const PairWork& w) {
  const V6<double> one = w.velocity[pair.one], two = w.velocity[pair.two];
  const V3<double> spin = one.w - two.w, apart = one.l - (two.l + cross(two.w, w.centre[pair.one] - w.centre[pair.two]));
  return std::sqrt(dot(apart, apart)) + std::sqrt(dot(spin, spin)) * w.reach[pair.one];
}

// No two shapes approach each other faster.
double fastest_of_all(const Topology& t, const PairWork& w) {
  double most = 0;
  for (size_t k = 0; k < t.pair_shapes.size(); ++k) {
    const V6<double> x = w.velocity[k];
    most = std::max(most, std::sqrt(dot(x.l, x.l)) + std::sqrt(dot(x.w, x.w)) * w.farthest_reach);
  }
  return 2 * most;
}

// What a lower bound of a pair's distance is known from.
enum Known : unsigned char { BALLS, BOXES, DIRECTION };
// A better bound, as good as `enough` or nearly the best; whether there was one to be had.
bool sharpen(const Topology& t, int k, double enough, PairWork& w) {
  const ShapePair& pair = t.shape_pairs[k];
  if (w.known[k] == DIRECTION || (w.known[k] == BOXES && !is_general(t, pair)) || is_quick(t, pair)) return false;
  const bool boxes = w.known[k] == BALLS;
  const double found = boxes ? box_bound(box_around(t, pair.one, w), box_around(t, pair.two, w)) : separation_bound(t, k, enough, w);
  if (boxes) w.known[k] = BOXES;
  else if (!(found > enough)) w.known[k] = DIRECTION;  // else the search ended early
  w.bound[k] = std::fmax(w.bound[k], found);
  return true;
}

// Share of the mean radius of the shapes within which pairs are neighbours, if those that move fast do not ask for more.
constexpr double NEIGHBOURHOOD = 0.5;

// Makes the list of neighbours anew unless no other pair can be nearer than `needed`, or than NEARBY of its size.
void find_neighbours(const Topology& t, double needed, PairWork& w) {
  NeighbourList& list = w.neighbours;
  const int shapes = static_cast<int>(t.pair_shapes.size());
  double moved = 0, grown = 0, total = 0;
  bool known = list.margin > 0;
  for (int k = 0; k < shapes; ++k) {
    const V3<double> by = w.centre[k] - list.centre[k];
    const double square = dot(by, by), growth = std::fabs(w.reach[k] - list.reach[k]);
    known = known && square < std::numeric_limits<double>::infinity();  // a number
    moved = square > moved ? square : moved, grown = growth > grown ? growth : grown, total += w.reach[k];
  }
  list.spare = needed;
  if (known && list.margin - (2 + 2 * NEARBY) * (std::sqrt(moved) + grown) >= needed) return;
  list.margin = std::max(2 * needed, NEIGHBOURHOOD * total / shapes), list.count = 0;
  std::copy_n(w.centre, shapes, list.centre), std::copy_n(w.reach, shapes, list.reach);
  for (int k = 0; k < static_cast<int>(t.shape_pairs.size()); ++k) {
    const ShapePair& pair = t.shape_pairs[k];
    const V3<double> apart = w.centre[pair.one] - w.centre[pair.two];
    const double beyond = (1 + NEARBY) * (w.reach[pair.one] + w.reach[pair.two]) + list.margin;
    if (!(dot(apart, apart) > beyond * beyond)) list.pair[list.count++] = k;
  }
}

}  // namespace

int pair_candidates(const Topology& t, const Parameters& p, double dt, int wanted, int count, Candidate* out, PairWork& w) {
  const int many = static_cast<int>(t.shape_pairs.size());
  w.last_pair = -1;
  const double reach = t.smoothed ? reach_of_contact(p) : 0;  // contacts with compliance act so far away
  const double fastest = STEPS_AHEAD * dt * fastest_of_all(t, w);
  for (int k = 0; k < count; ++k) w.least[k] = ordered(out[k].distance);
  int ranked = count;
  if (count > wanted) std::nth_element(w.least, w.least + wanted, w.least + count), ranked = wanted;
  std::make_heap(w.least, w.least + ranked);  // the distances of the nearest, of which the farthest is in front
  auto take = [&](int k) {
    const ShapePair& pair = t.shape_pairs[k];
    const PairShape &one = t.pair_shapes[pair.one], &two = t.pair_shapes[pair.two];
    Touch<double> touch[MOST_TOUCHES];
    touches(t, pair, w.shape[pair.one], w.shape[pair.two], touch);
    w.shift[k] = t.detect || t.smoothed ? V3<double>{0, 0, 0} : see_past(t, pair, dt, w, touch);
    w.bound[k] = std::numeric_limits<double>::infinity();
    for (int j = 0; j < pair.kept; ++j) {
      out[count++] = {touch[j].distance, touch[j].point, touch[j].normal, w.shape[pair.one].position, touch[j].point, one.link, two.link,
                      one.node, two.node, pair.pair, pair.slot + j, static_cast<int>(t.shape_planes.size()) + k,
                      p.pair_friction[pair.pair], p.pair_restitution[pair.pair]};
      w.least[ranked++] = ordered(touch[j].distance);
      std::push_heap(w.least, w.least + ranked);
      if (ranked > wanted) std::pop_heap(w.least, w.least + ranked--);
    }
  };
  // The least distance of a pair that is not among the nearest: while there are too few of these, all are.
  auto enough = [&] { return ranked < wanted ? std::numeric_limits<double>::infinity() : wanted > 0 ? w.least[0] : -std::numeric_limits<double>::infinity(); };
  NeighbourList& list = w.neighbours;
  const bool listed = wanted <= 0 && !std::memchr(w.missed, true, many);
  list.spare = -1;
  if (listed) find_neighbours(t, std::max(reach, fastest), w);
  int left = 0;
  for (int i = 0; i < (listed ? list.count : many); ++i) {
    const int k = listed ? list.pair[i] : i;
    const ShapePair& pair = t.shape_pairs[k];
    const V3<double> apart = w.centre[pair.one] - w.centre[pair.two];
    const double size = w.reach[pair.one] + w.reach[pair.two], near = std::max(NEARBY * size, reach), far = std::max(near, fastest);
    const double square = dot(apart, apart), beyond = size + far;
    w.known[k] = BALLS;
    if (square > beyond * beyond && !w.missed[k]) {
      w.bound[k] = far;
      if (wanted > 0) w.bound[k] = std::sqrt(square) - size, w.order[left++] = k;
      continue;
    }
    w.bound[k] = std::sqrt(square) - size;
    const double margin = std::max(near, STEPS_AHEAD * dt * fastest_approach(pair, w));
    while (!w.missed[k] && !(w.bound[k] > margin) && sharpen(t, k, margin, w)) {}
    if (!w.missed[k] && w.bound[k] > margin) w.order[left++] = k;
    else take(k);  // what is not a number is near
  }
  if (wanted <= 0) return count;
  // Of the others those that are among the nearest, by bounds that are made sharper while they are the least.
  const double limit = enough();
  left = static_cast<int>(std::remove_if(w.order, w.order + left, [&](int k) { return w.bound[k] >= limit; }) - w.order);
  auto later = [&](int a, int b) { return w.bound[a] > w.bound[b] || (w.bound[a] == w.bound[b] && a > b); };
  std::make_heap(w.order, w.order + left, later);
  while (left > 0 && w.bound[w.order[0]] < enough()) {
    std::pop_heap(w.order, w.order + left, later);
    const int k = w.order[left - 1];
    if (sharpen(t, k, enough(), w)) std::push_heap(w.order, w.order + left, later);
    else take(k), --left;
  }
  return count;
}

int mark_missed(const Topology& t, double dt, PairWork& w) {
  const double fastest = dt * fastest_of_all(t, w);
  const NeighbourList& list = w.neighbours;
  const double smallest = t.pair_shapes.empty() ? 0 : *std::min_element(w.reach, w.reach + t.pair_shapes.size());
  const bool all = list.spare < 0, listed = !all && std::max(list.spare, 2 * NEARBY * smallest) >= fastest;
  int missed = 0;
  for (int i = 0, next = 0; i < (listed ? list.count : static_cast<int>(t.shape_pairs.size())); ++i) {
    const int k = listed ? list.pair[i] : i;
    if (!listed && !all) {
      if (next < list.count && list.pair[next] == k) ++next;
      else w.bound[k] = std::max(list.spare, NEARBY * (w.reach[t.shape_pairs[k].one] + w.reach[t.shape_pairs[k].two]));
    }
    if (!(w.bound[k] < fastest) || !(w.bound[k] < dt * fastest_approach(t.shape_pairs[k], w))) continue;
    w.missed[k] = true, ++missed;
  }
  return missed;
}

Slope pair_slope(const Topology& t, const Candidate& c, PairWork& w) {
  const int index = c.source - static_cast<int>(t.shape_planes.size());
  const ShapePair& pair = t.shape_pairs[index];
  if (w.last_pair != index) slopes_ahead(t, pair, w, w.shift[index], w.slope), w.last_pair = index;
  return w.slope[c.slot - pair.slot];
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
