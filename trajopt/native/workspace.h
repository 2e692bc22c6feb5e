// All arrays of one step, laid out in one block of memory for one topology; one workspace a thread.
#pragma once
#include <memory>
#include <new>

#include "contact_derivative.h"
#include "geometry.h"
#include "gyroscopic.h"
#include "report_layout.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Hands out pieces of a block, each aligned to 64 bytes and zeroed; without a block it only counts.
class Block {
 public:
  explicit Block(unsigned char* start = nullptr) : start_(start) {}
  template <class T> T* take(int64_t count) {
    T* piece = start_ ? reinterpret_cast<T*>(start_ + size_) : nullptr;
    size_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
  int64_t size() const { return size_; }

 private:
  unsigned char* start_;
  int64_t size_ = 0;
};

// Velocities of the links and of the nodes above them as an impulse sets them in motion, and the momenta of the links' subtrees.
template <class Size> struct ImpulseMotion { Field<Size> V, V_parent, momentum; };

// What the Jacobian needs besides (jacobian.h): X_q, X_v, Q, d v+ / d (q, v), right-hand sides and solutions of the law.
template <class Size> struct JacobianWork {
  DerivativeTerms<Size> terms;
  Field<Size> after, after_parent, wrench;
  ContactMotion<Size> motion;
  double *acceleration, *X_q, *X_v, *Q, *by_q, *by_v, *right, *Y, *Y_used, *MJT;
  // Of redundant contacts that slide (redundant.h).
  Field<Size> nothing;
  double *free, *dlam, *shift, *through, *turned, *z, *B;
  // Of redundant contacts that contradict each other (stepping.h), by column of `right`: what is left over; the largest entry.
  double *left_over, *sizes;
  bool redundant, *one_sided, pushes;  // pushes: a row of Y is not zero
  int answers;  // leading dimension of the following: what the law answers to changes of each row (answers.h)
  double *asked, *answer, *answer_free, *answer_shift, *answer_through, *answer_left, *answer_sizes, *by_answer;
  ImpulseMotion<Size> whole, part;     // under the impulse of one contact, and under a unit of one of its components
};

// A stage of an explicit step (runge_kutta.h), the weighted sums of rates so far, and the slopes of all of these.
struct StageSlopes { double *theta, *q, *v, *theta_rate, *v_rate, *theta_sum, *v_sum; };
struct StageWork { double *theta, *v, *theta_rate, *acceleration, *theta_sum, *acceleration_sum; StageSlopes slopes; };

// Of an impulse in the report: its row of the problem, and its slot among those of all rows of the model; -1 where there is none.
struct ReportedRow { int row, slot; };

// Of the law on its central path (relaxed.h), by row, but for error, of equality constraints, and D, nine numbers a contact: slacks w;
// J M^-1 J^T of the row by itself; slopes of scalar rows; changes of the impulses and of the slacks. D J of one contact; M complete; the
// system of a Newton step with its right-hand side and its solution.
struct RelaxedWork {
  double *lambda, *nu, *slack, *mobility, *scalar, *change, *moved, *error, *D, *DJ, *M, *H, *inverse, *right, *step, *refined;
  int *order, *mode;
  double equality_mobility, fastest;
};

template <class Size> struct Workspace {
  Size size;
  Kinematics<Size> kin;
  Dynamics<Size> dynamics;
  Rows<Size> rows;
  JacobianWork<Size> jacobian;
  StageWork stage;
  RelaxedWork relaxed;
  Field<Size> V_free, V_after, none;
  double *tree_q, *middle, *v_before, *v_free, *v_plus, *tree_velocity, *init;
  int* closest;
  ReportedRow* reported;
  ContactProblem problem;
  ContactSolution solution;
  ContactWorkspace solver;
  double work;  // of the contact solves of the step so far (step.h)
  std::vector<BallJoint> balls;
  std::vector<Turning> turning;  // of the balls, at the last free motion
  std::unique_ptr<unsigned char[], void (*)(unsigned char*)> memory;

  Workspace(Size n, const Topology& t) : size(n), memory(nullptr, [](unsigned char* p) { ::operator delete[](p, std::align_val_t(64)); }) {
    Block counting;
    lay_out(t, counting);
    memory.reset(static_cast<unsigned char*>(::operator new[](counting.size(), std::align_val_t(64))));
    std::memset(memory.get(), 0, counting.size());
    Block block(memory.get());
    lay_out(t, block);
    kin.rotation.set(n.lanes(), {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}});
    if (!t.relaxed) solver.reserve(3 * t.most_contacts() + t.limit_rows() + t.intervals());
    find_balls(t);
  }

 private:
  void lay_out(const Topology& t, Block& block) {
    const int64_t N = size.lanes(), limits = t.limit_rows(), intervals = t.intervals();
    const int64_t contacts = t.most_contacts(), most = padded(static_cast<int>(3 * contacts + limits + intervals)) + PADDING;
    auto field = [&](int components) { return Field<Size>{block.take<double>(components * (N + PADDING)), size}; };
    auto matrix = [&](int64_t rows, int64_t columns) { return block.take<double>(rows * columns); };
    kin = {field(9), field(3), field(3), field(6), matrix(1, N), field(9), field(3)};
    dynamics = {field(6), field(6), field(6), field(6), field(10), field(10), field(6), field(6), matrix(1, N), matrix(1, N),
                matrix(N, N), matrix(N, N), matrix(1, N), matrix(N, N)};
    Rows<Size>& r = rows;
    r.candidate = block.take<Candidate>(t.candidates + 1), r.contact = block.take<ContactRow>(contacts + 1);
    r.limit = block.take<LimitRow>(limits + 1), r.all_limits = block.take<LimitRow>(limits + 1);
    r.choice = block.take<unsigned char>(t.candidates + 1), r.limit_choice = block.take<unsigned char>(limits + 1);
    const int64_t many = std::max<int64_t>(t.balls, t.largest_hull()) + 1;
    r.vertices = {matrix(1, many), matrix(4, many), block.take<int>(many), {matrix(1, many), matrix(1, many), matrix(1, many), matrix(3, many)}};
    r.support = block.take<int>((contacts + 1) * N), r.order = block.take<int>(t.candidates + limits + 1);
    r.J = matrix(most, N), r.MJT = matrix(most, N), r.MJ = matrix(N, most), r.G = matrix(most, most);
    r.g = matrix(1, most), r.before = matrix(1, most), r.mu = matrix(1, contacts + PADDING), r.bound = matrix(1, intervals + PADDING);
    r.softness = matrix(1, contacts + PADDING);
    const int64_t shapes = static_cast<int64_t>(t.pair_shapes.size()), pairs = static_cast<int64_t>(t.shape_pairs.size());
    HullTables* tables = block.take<HullTables>(static_cast<int64_t>(t.hulls.size()));
    for (const HullTopology& hull : t.hulls) {
      const HullTables made = {matrix(3, hull.vertices), matrix(3, hull.faces()), matrix(1, hull.edge_count()), 0, false, false};
      if (tables) tables[&hull - t.hulls.data()] = made;
    }
    r.pairs = {block.take<Placed<double>>(shapes), block.take<Hull>(shapes), tables, block.take<V3<double>>(shapes),
               block.take<V6<double>>(shapes), matrix(1, shapes), matrix(1, pairs), matrix(1, t.candidates + 1), block.take<V3<double>>(pairs), block.take<V3<double>>(pairs),
               block.take<unsigned char>(pairs), block.take<bool>(pairs), block.take<int>(pairs), -1, 0,
               block.take<Slope>(MOST_TOUCHES), {block.take<V3<double>>(shapes), matrix(1, shapes), block.take<int>(pairs), 0, 0, 0}};
    const int64_t planes = static_cast<int64_t>(t.shape_planes.size());
    r.planes = {matrix(1, planes), matrix(1, planes), block.take<V3<double>>(planes), block.take<V3<double>>(planes), block.take<bool>(planes),
                block.take<int>(planes)};
    Equalities<Size>& e = rows.equality;
    const int64_t equalities = padded(t.equalities());
    e = {0, 0, false, block.take<ClosureAt>(static_cast<int64_t>(t.closures.size())), matrix(1, t.couplings), matrix(equalities, N),
         matrix(1, equalities), matrix(equalities, equalities), matrix(equalities, equalities), matrix(equalities, equalities),
         matrix(equalities, N), matrix(1, equalities)};
    JacobianWork<Size>& w = jacobian;
    w.terms = {field(6), field(6), field(6), field(12), field(6), field(6), field(6), field(3), field(6), field(6), matrix(1, N)};
    w.after = field(6), w.after_parent = field(6), w.wrench = field(6), w.motion = {field(13), false};
    w.acceleration = matrix(1, N), w.X_q = matrix(N, N), w.X_v = matrix(N, N), w.Q = matrix(N, N);
    w.by_q = matrix(N, N), w.by_v = matrix(N, N), w.right = matrix(most, 3 * N), w.Y = matrix(most, 3 * N);
    w.Y_used = matrix(most, 3 * N), w.MJT = matrix(most, N);
    w.nothing = field(6), w.free = matrix(most, 3 * N), w.dlam = matrix(most, 3 * N), w.shift = matrix(most, 3 * N);
    w.through = matrix(most, 3 * N), w.turned = matrix(most, N), w.z = matrix(1, N), w.B = matrix(most, N);
    w.whole = {field(6), field(6), field(6)}, w.part = {field(6), field(6), field(6)};
    w.left_over = matrix(1, 3 * N), w.sizes = matrix(1, 3 * N), w.redundant = w.pushes = false;
    w.one_sided = block.take<bool>(2 * N);
    const int64_t rows = 3 * contacts + limits + intervals, wide = t.rigid() ? padded(static_cast<int>(2 * rows + contacts + intervals + t.nv)) : 0;
    w.answers = static_cast<int>(wide), w.asked = matrix(most, wide), w.answer = matrix(most, wide), w.answer_free = matrix(most, wide);
    w.answer_shift = matrix(most, wide), w.answer_through = matrix(most, wide), w.answer_left = matrix(1, wide);
    w.answer_sizes = matrix(1, wide), w.by_answer = matrix(N, wide);
    V_free = field(6), V_after = field(6), none = Field<Size>{nullptr, size};
    tree_q = matrix(1, 4 * N), middle = matrix(1, 4 * N), v_before = matrix(1, N), v_free = matrix(1, N), v_plus = matrix(1, N), tree_velocity = matrix(1, N);
    auto slopes = [&] { return t.free() ? matrix(N, 3 * N) : nullptr; };
    stage = {matrix(1, N), matrix(1, N), matrix(1, N), matrix(1, N), matrix(1, N), matrix(1, N),
             {slopes(), slopes(), slopes(), slopes(), slopes(), slopes(), slopes()}};
    if (t.relaxed) {
      const int64_t wide = N + equalities;
      auto row = [&] { return matrix(1, most); };
      auto one = [&] { return matrix(1, wide); };
      relaxed = {row(), row(), row(), row(), row(), row(), row(), matrix(1, equalities), matrix(9, contacts + PADDING), matrix(3, N),
                 matrix(N, N), matrix(wide, wide), one(), one(), one(), one(), block.take<int>(wide),
                 block.take<int>(contacts + 1), 0, 0};
    }
    init = matrix(1, most), closest = block.take<int>(t.candidates + limits + 1);
    reported = block.take<ReportedRow>(t.reported() + 1);
  }

  void find_balls(const Topology& t) {
    std::vector<int> user_of(t.tree_nv, -1);
    for (int k = 0; k < t.nv; ++k) user_of[t.user_dof[k]] = k;
    int q = 0;
    for (const Node& node : t.node) {
      const int user = user_of[node.v];
      if (user < 0) continue;  // a mimic joint has no coordinate of its own
      const bool free = node.parent != t.world && t.translates[node.parent];
      if (node.type == BALL) balls.push_back({q, user, node.v, free});
      q += node.type == BALL ? 4 : node.dofs;
    }
    turning.resize(balls.size());
  }
};

// v+ = v_free + M^-1 J^T lambda.
template <class Size> void push(Workspace<Size>& w) {
  const int N = w.size.lanes();
  for (int b = 0; b < N; b += LANES) {
    vec x = load(w.v_free + b);
    for (int row = 0; row < w.rows.m; ++row) x += w.solution.lambda[row] * load(w.rows.MJT + row * N + b);
    store(w.v_plus + b, x);
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
