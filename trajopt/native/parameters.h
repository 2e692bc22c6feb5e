// The numbers of a model and its law: views into the flat array that trajopt/dynamics/compiled.py packs, in this order.
#pragma once
#include <limits>

#include "spatial.h"
#include "topology.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int HEAD = 16, PLANE = 12, SHAPE = 19, PAIR_SHAPE = 19, BALL_SIZE = 4, CLOSURE = 24;

struct Parameters {
  double dt;
  V3<double> gravity;
  double erp, damping, rest_velocity, tolerance, push_out_speed;
  double sharpness, rho;  // kappa of smoothed contact, 1/m; of contact on its central path, J
  // By component and tree DoF: placement in the parent (first DoF of a node), joint axis, coordinate of the zero placement,
  // 1 for DoFs that turn, mass, centre of mass and inertia (last DoF of a node).
  const double *rotation, *position, *axis, *reference, *turns, *mass, *com, *inertia;
  // By user DoF.
  const double *armature, *joint_damping, *stiffness, *spring_reference, *lower, *upper, *friction_loss;
  const double *multiplier, *offset;                // of mimic joints
  // Of a plane: rotation, position; of a shape against planes: position, rotation, size; against other shapes: the same (of a mesh half
  // the extents of a box around it) and centre and radius of a ball around a mesh; of hulls: vertices, by component; of a ball: centre,
  // radius.
  const double *plane, *shape, *pair_shape, *hull, *ball;
  const double *pair_friction, *pair_restitution, *pair_impact_friction;
  const double *closure, *coupling;                 // of a closure: rotation and position of either frame; of a coupling: `Coupling`

  // The law without the velocities that it asks of touching rows: nothing is pushed out and nothing bounces, so that v = 0 is admissible.
  Parameters without_push_out() const {
    Parameters p = *this;
    p.push_out_speed = p.damping = 0, p.rest_velocity = std::numeric_limits<double>::infinity();
    return p;
  }

  // Number of doubles of the flat array.
  static int64_t size(const Topology& t) {
    const int64_t lanes = t.lanes;
    return HEAD + 34 * lanes + 2 * static_cast<int64_t>(t.mimics.size()) + PLANE * t.planes +
           SHAPE * static_cast<int64_t>(t.shape_planes.size()) +
           PAIR_SHAPE * static_cast<int64_t>(t.pair_shapes.size()) + 3 * t.hull_vertices() + BALL_SIZE * t.balls + 3 * t.pairs +
           CLOSURE * static_cast<int64_t>(t.closures.size()) + coupling_size(t) * t.couplings;
  }
  static double time_step(const double* x) { return x[0]; }
  static int64_t coupling_size(const Topology& t) { return 2 * t.nv + 7; }
  Parameters(const double* x, const Topology& t) {
    const double* start = x;
    auto next = [&](int64_t count) { return (start += count) - count; };
    const double* head = next(HEAD);
    auto number = [&head] { return *head++; };  // in the order of `_head` in trajopt/dynamics/compiled.py
    dt = number(), gravity = V3<double>{number(), number(), number()};
    erp = number(), damping = number(), rest_velocity = number(), tolerance = number(), push_out_speed = number();
    sharpness = number(), rho = number();
    const int n = t.lanes, mimics = static_cast<int>(t.mimics.size());
    rotation = next(9 * n), position = next(3 * n), axis = next(3 * n), reference = next(n), turns = next(n);
    mass = next(n), com = next(3 * n), inertia = next(6 * n);
    armature = next(n), joint_damping = next(n), stiffness = next(n), spring_reference = next(n);
    lower = next(n), upper = next(n), friction_loss = next(n);
    multiplier = next(mimics), offset = next(mimics);
    plane = next(PLANE * t.planes), shape = next(SHAPE * static_cast<int64_t>(t.shape_planes.size()));
    pair_shape = next(PAIR_SHAPE * static_cast<int64_t>(t.pair_shapes.size())), hull = next(3 * t.hull_vertices());
    ball = next(BALL_SIZE * t.balls), pair_friction = next(t.pairs), pair_restitution = next(t.pairs), pair_impact_friction = next(t.pairs);
    closure = next(CLOSURE * static_cast<int64_t>(t.closures.size())), coupling = next(coupling_size(t) * t.couplings);
  }
};

// y - y_0 = p(x - x_0): y and x as sums over the user DoFs, (y_0, x_0), and the five coefficients of p.
struct Coupling {
  const double *y, *x, *reference, *power;
  Coupling(const Parameters& p, const Topology& t, int k)
      : y(p.coupling + k * Parameters::coupling_size(t)), x(y + t.nv), reference(x + t.nv), power(reference + 2) {}
};

TRAJOPT_INLINE V3<double> three(const double* x) { return {x[0], x[1], x[2]}; }
TRAJOPT_INLINE M3<double> nine(const double* x) { return {three(x), three(x + 3), three(x + 6)}; }

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
