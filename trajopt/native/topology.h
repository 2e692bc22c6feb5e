// What is static of a model and its contact law, read once from a table of integers (trajopt/dynamics/compiled.py writes it).
//
// Every tree DoF is a link of its own: those of a joint with several DoF but the last are massless. A node of the model is
// therefore named by its last DoF, the world by `world`, the number of lanes.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "vector.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

enum NodeType { REVOLUTE, PRISMATIC, BALL, TRANSLATION };
// Shapes that the core collides, numbered as trajopt.dynamics.model.ShapeType. Balls: of any radius, zero included.
enum ShapeKind { SPHERE = 1, CAPSULE = 2, BOX = 3, CYLINDER = 4, ELLIPSOID = 5, MESH = 6, POINTS = 8 };

struct Node { int type, parent, v, dofs, q; };  // parent: last DoF of the parent node
struct Mimic { int dof, source; };
struct Coordinate { int user, slot; };  // a tree coordinate reads this coordinate of the user's; slot: of a mimic joint, or -1
// Candidates of one shape against one plane: `kept` of them at `slot`, ... in the list of all candidates of the model.
struct ShapePlane { int kind, link, node, plane, plane_node, pair, on_face, ball, balls, hull, kept, slot; };
// Two shapes against each other, in the order of the model's pair; swapped: the other way round in the functions of shape_pairs.h.
// hull: in Topology::hulls, of a mesh.
struct PairShape { int kind, link, node, hull; };
struct HullTopology {
  int vertices;
  int64_t first;  // number of vertices of the hulls before
  std::vector<int> triangles, edges;
  std::vector<int> first_around, around;  // edges at each vertex: around[first_around[k]] to around[first_around[k + 1] - 1]
  int faces() const { return static_cast<int>(triangles.size() / 3); }
  int edge_count() const { return static_cast<int>(edges.size() / 2); }
  void look_around() {
    first_around.assign(vertices + 1, 0), around.resize(edges.size());
    for (int end : edges) ++first_around[end + 1];
    for (int k = 0; k < vertices; ++k) first_around[k + 1] += first_around[k];
    std::vector<int> next = first_around;
    for (size_t i = 0; i < edges.size(); ++i) around[next[edges[i]]++] = static_cast<int>(i / 2);
  }
};
struct ShapePair { int one, two, swapped, pair, kept, slot; };

// A closure of two bodies: those of its eight rows (closures.h) that its kind has, the first of them in the place `first`.
struct Closure { int link1, link2, first; std::vector<int> rows; };

using Lists = std::vector<std::vector<int>>;

class Table {
 public:
  Table(const int64_t* data, int64_t size) : at_(data), end_(data + size) {}
  int next() {
    if (at_ == end_) throw std::invalid_argument("the table of the topology ends too early");
    return static_cast<int>(*at_++);
  }
  std::vector<int> list(int count) {
    std::vector<int> x(count);
    for (int& value : x) value = next();
    return x;
  }
  std::vector<int> list() { return list(next()); }
  bool done() const { return at_ == end_; }

 private:
  const int64_t *at_, *end_;
};

struct Topology {
  int nodes, nv, nq, tree_nv, lanes, world;
  std::vector<Node> node;
  std::vector<int> node_link;              // last DoF of every node, and of the world at the end
  std::vector<int> before, above, last;    // of a tree DoF: DoF before it on its chain, last of its parent node, last of its own
  std::vector<char> translates;            // of a tree DoF: whether it is one of a body's three translations
  std::vector<Mimic> mimics;
  std::vector<int> user_dof;               // tree DoF of every DoF of the user's
  std::vector<Coordinate> coordinate;
  std::vector<int> scalar_q;               // user coordinate of a user DoF, or -1
  std::vector<int> limited, dry;           // user DoFs
  std::vector<ShapePlane> shape_planes;
  std::vector<HullTopology> hulls;
  std::vector<PairShape> pair_shapes;
  std::vector<ShapePair> shape_pairs;
  std::vector<Closure> closures;
  int couplings;
  std::vector<int> plane_link;
  int balls, planes, pairs, given;         // given: candidates handed over, at most
  int candidates;                          // of the whole model
  int report_contacts, report_limits;      // rows that are reported
  int max_contacts, max_limits, max_iterations;  // -1: no limit
  bool detect, smoothed, relaxed;          // gap="detect"; contacts have a compliance (compliance.h); rows push from afar (relaxed.h)

  Lists chain;                             // of a tree DoF: strict ancestors, nearest first
  std::vector<double> mask, upper;         // (lanes + 1, lanes): j moves link i; i strictly above j
  Lists low_blocks, up_blocks;             // blocks of a row of `mask` and `upper` that are not empty, as lane numbers
  Lists factor_chain, factor_blocks;       // sparsity of the mass matrix in user DoFs: `chain`, or dense with mimic joints

  bool projected() const { return !mimics.empty(); }
  bool moves(int link, int dof) const { return mask[link * lanes + dof] != 0; }
  // f(DoF, sign) for the tree DoFs that move one of two links and not the other: those of link 1, sign 1, then of link 2, sign -1.
  template <class F> void each_between(int link1, int link2, F f) const {
    auto along = [&](int link, int other, double sign) {
      if (link == world) return;
      if (!moves(other, link)) f(link, sign);
      for (int j : chain[link])
        if (!moves(other, j)) f(j, sign);
    };
    along(link1, link2, 1), along(link2, link1, -1);
  }
  int64_t hull_vertices() const { return hulls.empty() ? 0 : hulls.back().first + hulls.back().vertices; }
  int64_t largest_hull() const {
    int64_t most = 0;
    for (const HullTopology& hull : hulls) most = std::max<int64_t>(most, hull.vertices);
    return most;
  }
  int most_contacts() const { return candidates < 128 ? candidates : 128; }
  // Rows of equality constraints: of closures, then of couplings.
  int first_coupling() const { return closures.empty() ? 0 : closures.back().first + static_cast<int>(closures.back().rows.size()); }
  int equalities() const { return first_coupling() + couplings; }
  // Rows whose impulses are in an interval, bounded or not: dry friction, then equality constraints.
  int intervals() const { return static_cast<int>(dry.size()) + equalities(); }
  // One row for each limited DoF, or, where both limits of all act, the lower limits and then the upper ones.
  int limit_rows() const { return static_cast<int>(limited.size()) * (relaxed ? 2 : 1); }
  int impulses() const { return 3 * candidates + limit_rows() + intervals(); }
  int reported() const { return 3 * report_contacts + report_limits + intervals(); }
  // Whether no impulse can act or be reported; explicit integrators take such motions alone.
  bool rigid() const { return !smoothed && !relaxed; }
  bool free() const { return impulses() == 0 && reported() == 0; }

  Topology(const int64_t* data, int64_t size) {
    Table t(data, size);
    nodes = t.next(), nv = t.next(), nq = t.next();
    read_nodes(t);
    for (int k = t.next(); k > 0; --k) mimics.push_back({t.next(), t.next()});
    user_dof = t.list(nv);
    for (int k = t.next(); k > 0; --k) coordinate.push_back({t.next(), t.next()});
    scalar_q = t.list(nv);
    limited = t.list(), dry = t.list();
    for (int k = t.next(); k > 0; --k) {
      const int first = first_coupling(), one = node_link[t.next()], two = node_link[t.next()];
      closures.push_back({one, two, first, t.list()});
    }
    couplings = t.next();
    for (int owner : t.list()) plane_link.push_back(node_link[owner]);
    planes = static_cast<int>(plane_link.size());
    for (int k = t.next(); k > 0; --k) {
      ShapePlane s{};
      s.kind = t.next(), s.node = t.next(), s.link = node_link[s.node], s.plane = t.next(), s.plane_node = t.next();
      s.pair = t.next(), s.on_face = t.next(), s.ball = t.next(), s.balls = t.next(), s.hull = t.next();
      s.kept = t.next(), s.slot = t.next();
      shape_planes.push_back(s);
    }
    for (int k = t.next(); k > 0; --k) {
      const int64_t first = hull_vertices();
      const int vertices = t.next();
      std::vector<int> triangles = t.list();
      hulls.push_back({vertices, first, std::move(triangles), t.list(), {}, {}});
      hulls.back().look_around();
    }
    for (int k = t.next(); k > 0; --k) {
      const int kind = t.next(), node = t.next(), hull = t.next();
      pair_shapes.push_back({kind, node_link[node], node, hull});
    }
    for (int k = t.next(); k > 0; --k) {
      ShapePair s{};
      s.one = t.next(), s.two = t.next(), s.swapped = t.next(), s.pair = t.next(), s.kept = t.next(), s.slot = t.next();
      shape_pairs.push_back(s);
    }
    balls = t.next(), pairs = t.next(), given = t.next(), candidates = t.next();
    report_contacts = t.next(), report_limits = t.next();
    max_contacts = t.next(), max_limits = t.next(), max_iterations = t.next(), detect = t.next() != 0;
    smoothed = t.next() != 0, relaxed = t.next() != 0;
    if (!t.done()) throw std::invalid_argument("the table of the topology is longer than it should be");
    derive();
  }

 private:
  void read_nodes(Table& t) {
    tree_nv = 0;
    int q = 0;
    for (int i = 0; i < nodes; ++i) {
      const int type = t.next(), parent = t.next(), dofs = type == BALL || type == TRANSLATION ? 3 : 1;
      node.push_back({type, parent, tree_nv, dofs, q});
      tree_nv += dofs, q += type == BALL ? 4 : dofs;
    }
    lanes = world = padded(tree_nv > 0 ? tree_nv : 1);
    node_link.assign(nodes + 1, world);
    for (int i = 0; i < nodes; ++i) {
      Node& n = node[i];
      n.parent = n.parent < 0 ? world : node_link[n.parent];
      node_link[i] = n.v + n.dofs - 1;
      for (int k = 0; k < n.dofs; ++k) {
        const int up = k > 0 ? n.v + k - 1 : n.parent;
        before.push_back(up), above.push_back(n.parent), last.push_back(node_link[i]), translates.push_back(n.type == TRANSLATION);
        chain.emplace_back();
        for (int j = up; j != world; j = before[j]) chain.back().push_back(j);
      }
    }
  }

  void derive() {
    mask.assign(static_cast<size_t>(lanes + 1) * lanes, 0.0);
    upper.assign(mask.size(), 0.0);
    for (int i = 0; i < tree_nv; ++i) {
      mask[i * lanes + last[i]] = 1;
      for (int j : chain[last[i]]) mask[i * lanes + j] = 1;
    }
    for (int i = 0; i < tree_nv; ++i)
      for (int j = 0; j < tree_nv; ++j) upper[i * lanes + j] = moves(j, i) && !moves(i, j);
    low_blocks = blocks_of(mask), up_blocks = blocks_of(upper);
    if (!projected()) {
      factor_chain = chain, factor_blocks = low_blocks;
      return;
    }
    for (int i = 0; i < nv; ++i) {
      factor_chain.emplace_back(), factor_blocks.emplace_back();
      for (int j = i - 1; j >= 0; --j) factor_chain.back().push_back(j);
      for (int b = 0; b <= i; b += LANES) factor_blocks.back().push_back(b);
    }
  }

  Lists blocks_of(const std::vector<double>& pattern) const {
    Lists blocks(tree_nv);
    for (int i = 0; i < tree_nv; ++i)
      for (int b = 0; b < lanes; b += LANES) {
        bool any = false;
        for (int c = 0; c < LANES; ++c) any |= pattern[i * lanes + b + c] != 0;
        if (any) blocks[i].push_back(b);
      }
    return blocks;
  }
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
