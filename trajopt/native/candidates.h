// Candidate contacts of shapes against planes (trajopt/dynamics/collision/primitives/plane.py), and those that the caller hands over.
#pragma once
#include <algorithm>
#include <limits>

#include "dynamics.h"
#include "patch.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Contact between body 1 and body 2, whose normal points from 2 to 1; `centre`: origin of the shape of body 1; world axes.
// slot: place in the list of all candidates of the model.
struct Candidate {
  double distance;
  V3<double> point, normal, centre, ball;  // ball: centre of the ball that touches a plane
  int link1, link2, node1, node2, pair, slot;
  int source;                              // index of the shape against a plane, after these of the pair; -1 - index of one handed over
  double friction, restitution;
};
// d [distance; point; normal] / d (translation, turn about `centre`) of body 1 alone.
struct Slope { double by_motion[7][6]; };

constexpr int GIVEN = 14, SLOPE = 42;  // numbers of a candidate handed over and of its slope
constexpr double UPRIGHT = 1.3488e-6;  // eps^(3/8): a cylinder that leans less stands upright

// NaN breaks the order that choices rest on: it comes last.
TRAJOPT_INLINE double ordered(double x) { return x == x ? x : std::numeric_limits<double>::infinity(); }

template <class Size> TRAJOPT_INLINE V3<double> position_of(const Kinematics<Size>& kin, int link) {
  return kin.origin.three_of(link) + kin.lever.three_of(link);
}

struct PlaneAt { V3<double> normal, point; };
template <class Size> PlaneAt plane_at(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, int index) {
  const double* x = p.plane + PLANE * index;
  const int link = t.plane_link[index];
  const V3<double> local = {x[2], x[5], x[8]};
  return {kin.rotation.matrix_of(link) * local, position_of(kin, link) + kin.rotation.matrix_of(link) * three(x + 9)};
}

// Points of a cylinder's rims nearest to the plane, in its own axes: lowest, the one above it, two that make it a triangle; of an
// upright one four points of the lower rim. slope (4, 3, 3): derivative by `down`, the direction to the plane in these axes.
inline void rim_points(V3<double> down, const double* size, V3<double>* points, M3<double>* slope) {
  const double tilt = std::sqrt(down.x * down.x + down.y * down.y), near = down.z >= 0 ? size[1] : -size[1];
  const bool upright = !(tilt >= UPRIGHT);
  const double ux = upright ? 1 : down.x / tilt, uy = upright ? 0 : down.y / tilt, s = std::sqrt(0.75);
  const double turns[4][2] = {{1, 0}, {upright ? 0. : 1., upright ? 1. : 0.}, {upright ? -1. : -0.5, upright ? 0. : s},
                              {upright ? 0. : -0.5, upright ? -1. : -s}};
  const double heights[4] = {near, upright ? near : -near, near, near};
  for (int k = 0; k < 4; ++k) {
    const double a = size[0] * turns[k][0], b = size[0] * turns[k][1];  // a u + b v with v = (-u_y, u_x)
    points[k] = {a * ux - b * uy, a * uy + b * ux, heights[k]};
    if (!slope) continue;
    slope[k] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
    if (upright) continue;
    // du = v (v . d down) / tilt
    const double vx = -uy, vy = ux, dx = (a * vx - b * vy) / tilt, dy = (a * vy + b * vx) / tilt;
    slope[k].row0 = {dx * vx, dx * vy, 0}, slope[k].row1 = {dy * vx, dy * vy, 0};
  }
}

// Memory for the vertices of a shape: heights over a plane; those near it, by component, with their heights and places; a patch.
struct VertexScratch {
  double *height, *near;
  int* place;
  PatchScratch patch;
};

// A vertex farther above the lowest than this many times `DEPTH_SCALE` of the mesh's size seldom is one of the patch; of few vertices
// all are looked at.
constexpr double LOW = 30;
constexpr int FEW_VERTICES = 64;

// The patch of a mesh on a plane, by its vertices' heights (s.height): chosen among the low ones, and among all where others might be
// chosen. up: the plane's normal in the mesh's axes; size: of the mesh.
inline void choose_vertices(const Points& vertex, V3<double> up, double lowest, double size, int kept, VertexScratch s, int* place, bool* used) {
  const int many = vertex.count;
  const double scale = DEPTH_SCALE * size, limit = lowest + LOW * scale;
  int low = 0;
  if (many > FEW_VERTICES) up_to(s.height, many, limit, [&](int k) { s.place[low++] = k; });
  double *x = s.near, *y = x + low, *z = y + low, *height = z + low;
  for (int i = 0; i < low; ++i) {
    const V3<double> at = vertex[s.place[i]];
    x[i] = at.x, y[i] = at.y, z[i] = at.z, height[i] = s.height[s.place[i]];
  }
  if (low > 0 && !any_beats(choose_patch(height, {x, low}, nullptr, up, size, kept, s.patch, place, used), s.height, vertex, limit)) {
    for (int k = 0; k < kept; ++k) place[k] = s.place[place[k]];
    return;
  }
  choose_patch(s.height, vertex, nullptr, up, size, kept, s.patch, place, used);
}

// A mesh on a plane, in the mesh's axes, which have the rotation R: the deepest vertex, and those that spread the patch most
// (hulls.mesh_plane). add(vertex, by how much its distance is more).
template <class Add> void mesh_candidates(const PlaneAt& plane, const M3<double>& R, V3<double> at, const Points& vertex, int kept, VertexScratch s,
                                          Add add) {
  const V3<double> up = transposed_times(R, plane.normal);
  const double above = dot(plane.normal, at - plane.point);
  const double lowest = heights(vertex, up, above, s.height);
  const double size = widest(vertex, R);
  int place[MOST_TOUCHES];
  bool used[MOST_TOUCHES];
  choose_vertices(vertex, up, lowest, size, kept, s, place, used);
  for (int k = 0; k < kept; ++k) add(vertex[used[k] ? place[k] : place[0]], used[k] ? 0 : size);
}

// The candidates of a mesh on its plane, appended to `out`, which holds `count`; returns the new count. A vertex that repeats the deepest
// is farther away.
template <class Size>
int mesh_on_plane(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, int index, int count, Candidate* out, VertexScratch scratch) {
  const ShapePlane& shape = t.shape_planes[index];
  const double* numbers = p.shape + SHAPE * index;
  const PlaneAt plane = plane_at(t, p, kin, shape.plane);
  const M3<double> R = kin.rotation.matrix_of(shape.link), own = R * nine(numbers + 3);
  const V3<double> n = plane.normal, centre = position_of(kin, shape.link) + R * three(numbers);
  const HullTopology& hull = t.hulls[shape.hull];
  int slot = shape.slot;
  mesh_candidates(plane, own, centre, {p.hull + 3 * hull.first, hull.vertices}, shape.kept, scratch, [&](V3<double> vertex, double more) {
    const V3<double> x = centre + own * vertex;
    const double height = dot(n, x - plane.point);
    out[count++] = {height + more, x - height * n, n, centre, x, shape.link, t.plane_link[shape.plane], shape.node, shape.plane_node,
                    shape.pair, slot++, index, p.pair_friction[shape.pair], p.pair_restitution[shape.pair]};
  });
  return count;
}

// How many candidates are closer than `distance`.
inline int closer(const Candidate* candidate, int count, double distance) {
  return static_cast<int>(std::count_if(candidate, candidate + count, [&](const Candidate& c) { return c.distance < distance; }));
}

// A shape farther away than this share of its size, and than what its velocity covers in two steps, is left out of a step unless it is
// among the nearest, which are reported.
constexpr double NEARBY = 0.005, STEPS_AHEAD = 2;

template <class Size>
TRAJOPT_INLINE V3<double> velocity_of(const Kinematics<Size>& kin, const Field<Size>& V, int link, V3<double> at) {
  const V6<double> body = V.six_of(link);
  return body.l + cross(body.w, at - kin.origin.three_of(link));
}

// Radius of a ball around the origin of a primitive shape that holds it.
inline double reach_of(int kind, const double* size) {
  switch (kind) {
    case SPHERE: return size[0];
    case CAPSULE: return size[0] + size[1];
    case CYLINDER: return std::sqrt(size[0] * size[0] + size[1] * size[1]);
    case ELLIPSOID: return std::fmax(size[0], std::fmax(size[1], size[2]));
    default: return std::sqrt(size[0] * size[0] + size[1] * size[1] + size[2] * size[2]);
  }
}

// Shapes that were left out, by shape against a plane: a height over it below which none of it is (infinite of one that was looked at), a
// ball around the shape; and those that the step has to look at, whatever their height.
struct PlaneWork {
  double *lowest, *reach;
  V3<double>*centre, *normal;
  bool* missed;
  int* order;
};
// How fast a shape comes closer to its plane at most.
template <class Size>
double approach_to_plane(const Topology& t, const Kinematics<Size>& kin, const Field<Size>& V, int index, const PlaneWork& w) {
  const ShapePlane& shape = t.shape_planes[index];
  const int one = shape.link, two = t.plane_link[shape.plane];
  const V3<double> spin = V.six_of(one).w - V.six_of(two).w, at = w.centre[index];
  return std::sqrt(dot(spin, spin)) * w.reach[index] - dot(w.normal[index], velocity_of(kin, V, one, at) - velocity_of(kin, V, two, at));
}
// Marks the shapes left out that could have touched their plane within the step, and returns how many there are.
template <class Size> int mark_missed(const Topology& t, const Kinematics<Size>& kin, const Field<Size>& V, double dt, PlaneWork& w) {
  int missed = 0;
  for (int k = 0; k < static_cast<int>(t.shape_planes.size()); ++k) {
    if (std::isinf(w.lowest[k]) || !(w.lowest[k] < dt * approach_to_plane(t, kin, V, k, w))) continue;
    w.missed[k] = true, ++missed;
  }
  return missed;
}

// Candidates of all shapes against planes that are near or were missed, and of as many more as the `wanted` closest candidates need, into
// `out`; returns how many. within: distance up to which all are near. Where any are wanted only meshes are left out.
template <class Size>
int plane_candidates(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const Field<Size>& V, double dt, double within,
                     int wanted, Candidate* out, VertexScratch scratch, PlaneWork& w) {
  double* heights = scratch.height;
  int count = 0, last_plane = -1, left = 0;
  PlaneAt plane{};
  // Height over the plane below which no part of a ball is, and the largest at which it is near.
  auto above = [&](int index, V3<double> middle, double reach) {
    w.reach[index] = reach, w.centre[index] = middle, w.normal[index] = plane.normal;
    return dot(plane.normal, middle - plane.point) - reach;
  };
  auto near = [&](int index) {
    return std::max({NEARBY * w.reach[index], within, STEPS_AHEAD * dt * approach_to_plane(t, kin, V, index, w)});
  };
  for (size_t index = 0; index < t.shape_planes.size(); ++index) {
    const ShapePlane& shape = t.shape_planes[index];
    const double* numbers = p.shape + SHAPE * index;
    w.lowest[index] = std::numeric_limits<double>::infinity();
    if (shape.plane != last_plane) plane = plane_at(t, p, kin, last_plane = shape.plane);
    const V3<double> n = plane.normal;
    const M3<double> R = kin.rotation.matrix_of(shape.link);
    const V3<double> at = position_of(kin, shape.link), centre = at + R * three(numbers);
    const int number = static_cast<int>(index);
    if (wanted <= 0 && shape.kind < MESH && !w.missed[index]) {
      const double lowest = above(number, centre, reach_of(shape.kind, numbers + 12));
      if (lowest > near(number)) {
        w.lowest[index] = lowest;
        continue;
      }
    }
    Candidate c{0, {}, n, centre, {}, shape.link, t.plane_link[shape.plane], shape.node, shape.plane_node, shape.pair,
                shape.slot, number, p.pair_friction[shape.pair], p.pair_restitution[shape.pair]};
    auto add = [&](V3<double> x, double radius, bool on_face) {
      const double height = dot(n, x - plane.point);
      c.ball = x, c.distance = height - radius, c.point = x - (on_face ? height : radius) * n;
      out[count++] = c, ++c.slot;
    };
    if (shape.kind == CYLINDER || shape.kind == ELLIPSOID) {
      const M3<double> own = R * nine(numbers + 3);
      const double* size = numbers + 12;
      if (shape.kind == CYLINDER) {
        V3<double> points[4];
        rim_points(-1.0 * transposed_times(own, n), size, points, nullptr);
        for (V3<double> x : points) add(centre + own * x, 0, true);
      } else {
        const V3<double> d = transposed_times(own, n), scaled = {size[0] * d.x, size[1] * d.y, size[2] * d.z};
        const double reach = std::sqrt(dot(scaled, scaled)), inverse = reach > 0 ? 1 / reach : 0;
        const V3<double> lowest = centre - own * (inverse * V3<double>{size[0] * scaled.x, size[1] * scaled.y, size[2] * scaled.z});
        add(lowest, 0, shape.on_face != 0);
      }
      continue;
    }
    if (shape.kind == MESH) {
      const HullTopology& hull = t.hulls[shape.hull];
      const M3<double> own = R * nine(numbers + 3);
      double lowest = above(number, centre + own * three(numbers + 15), numbers[18]);
      const double far = near(number);
      if (wanted > 0 || !(lowest > far))
        lowest = dot(n, centre - plane.point) + lowest_of({p.hull + 3 * hull.first, hull.vertices}, transposed_times(own, n));
      if (!w.missed[index] && lowest > far) {
        w.lowest[index] = lowest, w.order[left++] = number;
        continue;
      }
      count = mesh_on_plane(t, p, kin, number, count, out, scratch);
      continue;
    }
    const double* ball = p.ball + BALL_SIZE * shape.ball;
    if (shape.kept == shape.balls) {
      for (int k = 0; k < shape.balls; ++k, ball += BALL_SIZE) add(at + R * three(ball), ball[3], shape.on_face != 0);
      continue;
    }
    // The `kept` lowest, the first of equals, in their own order.
    const V3<double> row = transposed_times(R, n);
    for (int k = 0; k < shape.balls; ++k) heights[k] = ordered(dot(row, three(ball + BALL_SIZE * k)));
    for (int k = 0; k < shape.balls; ++k) {
      int lower = 0;
      for (int j = 0; j < shape.balls; ++j) lower += heights[j] < heights[k] || (heights[j] == heights[k] && j < k);
      if (lower < shape.kept) add(at + R * three(ball + BALL_SIZE * k), 0, true);
    }
  }
  if (wanted > 0) std::sort(w.order, w.order + left, [&](int a, int b) { return w.lowest[a] < w.lowest[b] || (w.lowest[a] == w.lowest[b] && a < b); });
  for (int k = 0; k < left && wanted > 0; ++k) {
    const int index = w.order[k];
    if (closer(out, count, w.lowest[index]) >= wanted) break;
    count = mesh_on_plane(t, p, kin, index, count, out, scratch), w.lowest[index] = std::numeric_limits<double>::infinity();
  }
  return count;
}

// Candidates that were handed over, appended to `out`: rows of distance, point, normal, centre, node1, node2, pair, slot.
inline int given_candidates(const Topology& t, const Parameters& p, const double* given, int rows, Candidate* out) {
  for (int k = 0; k < rows; ++k) {
    const double* x = given + GIVEN * k;
    Candidate c{x[0], three(x + 1), three(x + 4), three(x + 7), three(x + 1), 0, 0, 0, 0, 0, 0, -1 - k, 0, 0};
    auto whole = [&](int at, int end) { return x[at] >= 0 && x[at] < end ? static_cast<int>(x[at]) : 0; };
    c.node1 = whole(10, t.nodes + 1), c.node2 = whole(11, t.nodes + 1), c.pair = whole(12, t.pairs), c.slot = whole(13, t.candidates);
    c.link1 = t.node_link[c.node1], c.link2 = t.node_link[c.node2];
    c.friction = p.pair_friction[c.pair], c.restitution = p.pair_restitution[c.pair];
    out[k] = c;
  }
  return rows;
}
// All candidates in the order of their slots.
inline void sort_candidates(Candidate* candidate, int count) {
  const auto before = [](const Candidate& a, const Candidate& b) { return a.slot < b.slot; };
  if (!std::is_sorted(candidate, candidate + count, before)) std::sort(candidate, candidate + count, before);
}

// Slope of a candidate of a shape against a plane: the plane's normal does not move with body 1.
template <class Size>
Slope plane_slope(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const Candidate& c, int place) {
  const ShapePlane& shape = t.shape_planes[c.source];
  const double* numbers = p.shape + SHAPE * c.source;
  const V3<double> n = c.normal, arm = c.ball - c.centre;
  const bool curved = shape.kind == CYLINDER || shape.kind == ELLIPSOID;
  const bool on_face = shape.kind == CYLINDER || shape.on_face != 0 || (!curved && shape.kept != shape.balls);
  const M3<double> own = kin.rotation.matrix_of(shape.link) * nine(numbers + 3);
  Slope slope{};
  for (int k = 0; k < 6; ++k) {
    const V3<double> e = {k % 3 == 0 ? 1. : 0., k % 3 == 1 ? 1. : 0., k % 3 == 2 ? 1. : 0.};
    V3<double> dx = k < 3 ? e : cross(e, arm);  // of a point fixed in the body
    if (curved && k >= 3) {
      // The point also wanders over the surface: d (own^T n) = -own^T (e x n).
      const V3<double> turned = -1.0 * transposed_times(own, cross(e, n));
      if (shape.kind == CYLINDER) {
        V3<double> points[4];
        M3<double> by_down[4];
        rim_points(-1.0 * transposed_times(own, n), numbers + 12, points, by_down);
        dx = dx + own * (by_down[place] * (-1.0 * turned));
      } else {
        const double* size = numbers + 12;
        const V3<double> d = transposed_times(own, n), s = {size[0] * d.x, size[1] * d.y, size[2] * d.z};
        const V3<double> ds = {size[0] * turned.x, size[1] * turned.y, size[2] * turned.z};
        const double reach = std::sqrt(dot(s, s)), inverse = reach > 0 ? 1 / reach : 0;
        const V3<double> u = inverse * s, du = inverse * (ds - dot(u, ds) * u);
        dx = dx - own * V3<double>{size[0] * du.x, size[1] * du.y, size[2] * du.z};
      }
    }
    const double rise = dot(n, dx);
    if (on_face) dx = dx - rise * n;
    slope.by_motion[0][k] = rise;
    slope.by_motion[1][k] = dx.x, slope.by_motion[2][k] = dx.y, slope.by_motion[3][k] = dx.z;
  }
  return slope;
}
inline Slope given_slope(const double* slopes, const Candidate& c) {
  Slope slope;
  std::memcpy(slope.by_motion, slopes + SLOPE * (-1 - c.source), sizeof slope.by_motion);
  return slope;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
