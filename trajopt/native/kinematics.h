// Placements, motion subspaces and velocities of all links (trajopt/dynamics/rigid_body/kinematics.py): world axes, at the tree's origin.
#pragma once
#include "field.h"
#include "parameters.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

template <class Size> struct Kinematics {
  Field<Size> rotation, lever, origin, S;  // lever: position relative to `origin`, that of the tree's root node
  double* local;                           // lanes of scratch: coordinates of scalar joints
  Field<Size> local_rotation, local_position;
};

// Tree coordinates of the user's: mimic joints follow their source.
inline void expand_coordinates(const Topology& t, const Parameters& p, const double* q, double* tree_q) {
  int k = 0;
  for (const Coordinate& c : t.coordinate)
    tree_q[k++] = c.slot < 0 ? q[c.user] : q[c.user] * p.multiplier[c.slot] + p.offset[c.slot];
}
// v_tree = T v.
inline void expand_velocity(const Topology& t, const Parameters& p, const double* v, double* tree_v) {
  for (int k = 0; k < t.nv; ++k) tree_v[t.user_dof[k]] = v[k];
  for (size_t k = 0; k < t.mimics.size(); ++k) tree_v[t.mimics[k].dof] = p.multiplier[k] * v[t.mimics[k].source];
}
// T^T x, in place: generalised forces, or one row of a Jacobian, in user DoFs.
inline void project(const Topology& t, const Parameters& p, double* x) {
  for (size_t k = 0; k < t.mimics.size(); ++k) x[t.user_dof[t.mimics[k].source]] += p.multiplier[k] * x[t.mimics[k].dof];
  for (int k = 0; k < t.nv; ++k) x[k] = x[t.user_dof[k]];  // user_dof[k] >= k
  for (int k = t.nv; k < t.tree_nv; ++k) x[k] = 0;
}

TRAJOPT_INLINE M3<double> rotation_of(const double* q) {  // of q / |q|; the zero quaternion gives the identity
  const double w = q[0], x = q[1], y = q[2], z = q[3], square = w * w + x * x + y * y + z * z;
  const double s = square == 0 ? 0 : 2 / square;
  return {{1 - s * (y * y + z * z), s * (x * y - z * w), s * (x * z + y * w)},
          {s * (x * y + z * w), 1 - s * (x * x + z * z), s * (y * z - x * w)},
          {s * (x * z - y * w), s * (y * z + x * w), 1 - s * (x * x + y * y)}};
}

// Placement of links with a scalar joint in their parents, all lanes at once.
template <class Size> void scalar_placements(Size n, const Parameters& p, Kinematics<Size>& kin) {
  const int N = n.lanes();
  for (int b = 0; b < N; b += LANES) {
    auto of = [&](const double* a, int k) { return loadu(a + k * N + b); };
    const vec turns = of(p.turns, 0), scalar = load(kin.local + b) - of(p.reference, 0);
    const V3<vec> a = {of(p.axis, 0), of(p.axis, 1), of(p.axis, 2)};
    vec s, c;
    sine_cosine(scalar * turns, s, c);
    const vec d = 1.0 - c;
    const M3<vec> turn = {{c + d * a.x * a.x, d * a.x * a.y - s * a.z, d * a.x * a.z + s * a.y},
                          {d * a.x * a.y + s * a.z, c + d * a.y * a.y, d * a.y * a.z - s * a.x},
                          {d * a.x * a.z - s * a.y, d * a.y * a.z + s * a.x, c + d * a.z * a.z}};
    const V3<vec> slide = (scalar * (1.0 - turns)) * a;
    const M3<vec> P = {{of(p.rotation, 0), of(p.rotation, 1), of(p.rotation, 2)},
                       {of(p.rotation, 3), of(p.rotation, 4), of(p.rotation, 5)},
                       {of(p.rotation, 6), of(p.rotation, 7), of(p.rotation, 8)}};
    const M3<vec> R = P * turn;
    kin.local_rotation.put(b, R.row0), kin.local_rotation.put(b, R.row1, 3), kin.local_rotation.put(b, R.row2, 6);
    kin.local_position.put(b, V3<vec>{of(p.position, 0), of(p.position, 1), of(p.position, 2)} + P * slide);
  }
}

// Placements of all nodes at tree coordinates `q`, and S: [r x a; a] for turning joints, [a; 0] for sliding ones.
template <class Size>
void kinematics(Size n, const Topology& t, const Parameters& p, const double* q, Kinematics<Size>& kin) {
  const int N = n.lanes(), world = N;
  for (const Node& node : t.node)
    for (int k = 0; k < node.dofs; ++k)
      kin.local[node.v + k] = node.type == BALL || node.type == TRANSLATION ? 0 : q[node.q];
  scalar_placements(n, p, kin);
  for (const Node& node : t.node) {
    const int j = node.v, up = node.parent;
    M3<double> R = kin.local_rotation.matrix_of(j);
    V3<double> at = kin.local_position.three_of(j);
    if (node.type == BALL || node.type == TRANSLATION) {
      auto of = [&](int k) { return p.rotation[k * N + j]; };
      const M3<double> P = {{of(0), of(1), of(2)}, {of(3), of(4), of(5)}, {of(6), of(7), of(8)}};
      at = {p.position[j], p.position[N + j], p.position[2 * N + j]};
      if (node.type == BALL) R = P * rotation_of(q + node.q);
      if (node.type == TRANSLATION) R = P, at = at + P * three(q + node.q);
    }
    const M3<double> parent = kin.rotation.matrix_of(up);
    R = parent * R;
    V3<double> lever = kin.lever.three_of(up) + parent * at, origin = kin.origin.three_of(up);
    if (up == world) origin = lever, lever = {0, 0, 0};
    for (int k = j; k < j + node.dofs; ++k) kin.rotation.set(k, R), kin.lever.set(k, lever), kin.origin.set(k, origin);
  }
  for (int b = 0; b < N; b += LANES) {
    auto of = [&](const double* a, int k) { return loadu(a + k * N + b); };
    const V3<vec> a = kin.rotation.matrix(b) * V3<vec>{of(p.axis, 0), of(p.axis, 1), of(p.axis, 2)};
    const vec turns = of(p.turns, 0);
    kin.S.put(b, V6<vec>{turns * cross(kin.lever.three(b), a) + (1.0 - turns) * a, turns * a});
  }
}

// Velocities of all links under the tree velocities v; inner DoFs of a joint have that of the whole joint. parent: of the nodes
// above, may be empty.
template <class Size>
void velocities(const Topology& t, const Field<Size>& S, const double* v, Field<Size> out, Field<Size> parent) {
  for (int j = 0; j < t.tree_nv; ++j) {
    out.set(j, out.six_of(t.before[j]) + v[j] * S.six_of(j));
    if (parent.at) parent.set(j, out.six_of(t.above[j]));
  }
  for (const Node& node : t.node)
    for (int k = 0; k + 1 < node.dofs; ++k) out.set(node.v + k, out.six_of(node.v + node.dofs - 1));
}

// Sums over subtrees of the first components, in place.
template <class Size> void accumulate(const Topology& t, Field<Size> x, int components) {
  for (int j = t.tree_nv - 1; j >= 0; --j) {
    const int up = t.before[j];
    for (int k = 0; k < components; ++k) x[k][up] += x[k][j];
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
