// The closed-form Jacobian of one step (trajopt/dynamics/gradients/closed_form.py):
//   dv+ = Q X - M^-1 J^T Y(N),   Q = M^-1 - M^-1 J^T Y(J M^-1),   Y(R) = K^+ P rho R
//   X_q = d(J^T lambda)/dq - dt dID/dq,  X_v = M - dt dID/dv,  X_tau = dt 1;  N_q = d(J v+ + b)/dq,  N_v = db/dv
// and of the motion of the configuration (trajopt/dynamics/linearization.py).
#pragma once
#include "answers.h"
#include "relaxed.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// Where one step's derivative goes: A (2 nv, 2 nv), B (2 nv, columns) = d x+ / d tau `gain`, gain (nv, columns); and, unless they are
// null, that of the reported impulses: C (reported, 2 nv), D (reported, columns); row-major. answers: none, or where those of answers.h go.
struct Linear { const double* gain; int columns; double *A, *B, *C = nullptr, *D = nullptr; Answers answers = {}; };
inline bool finite(const Topology& t, const Linear& out) {
  const int64_t nv = t.nv;
  return all_finite(out.A, 4 * nv * nv) && all_finite(out.B, 2 * nv * out.columns);
}

// Rows of Y that are not zero, and the rows of J M^-1 they belong to, to the front of Y_used and MJT; returns how many. Rows without
// impulse are zero, and so, but where solutions are shortened, are redundant ones.
template <class Size> int gather_rows(Size n, int columns, Workspace<Size>& w) {
  const int N = n.lanes(), stride = 3 * N;
  JacobianWork<Size>& j = w.jacobian;
  int used = 0;
  for (int row = 0; row < w.rows.m; ++row) {
    vec any = {};
    for (int b = 0; b < columns; b += LANES) {
      const vec y = load(j.Y + row * stride + b);
      any += y * y;
    }
    if (sum(any) == 0) continue;
    std::memcpy(j.Y_used + used * stride, j.Y + row * stride, sizeof(double) * columns);
    std::memcpy(j.MJT + used++ * N, w.rows.MJT + row * N, sizeof(double) * N);
  }
  return used;
}

// d v+ / d (q, v, tau / dt) in by_q, by_v and Q. still: N_v is zero. impulses: d lambda / d (q, v, tau) too, in dlam.
template <class Size>
void velocity_jacobian(Size n, const Topology& t, const Parameters& p, double dt, bool still, bool impulses, const double* given_slopes,
                       Workspace<Size>& w) {
  const int N = n.lanes(), nv = t.nv, stride = 3 * N, columns = still ? 2 * N : 3 * N;
  JacobianWork<Size>& j = w.jacobian;
  int used = 0;
  // The law's solution overwrites its right-hand sides; the selection needs them once more.
  const bool selecting = w.rows.m > 0 && (impulses ? w.solution.degenerate : redundant_sliding(w));
  if (selecting) std::memcpy(j.shift, j.right, sizeof(double) * w.rows.m * stride);
  j.redundant = false;
  if (w.rows.m > 0) {
    std::memset(j.left_over, 0, sizeof(double) * stride), std::memset(j.sizes, 0, sizeof(double) * stride);
    j.redundant = law_solution(w.problem, w.solution, w.solver, j.right, stride, columns, j.Y, stride, j.left_over, j.sizes);
    if (j.redundant && !sliding(w)) shorten_where_it_matters(n, columns, w);
    used = gather_rows(n, columns, w);
  }
  const Strided MJ = {j.MJT, 1, N};
  if (used > 0) product(nv, N, j.Q, N, w.dynamics.inverse, N, MJ, j.Y_used, stride, used, -1);
  else std::memcpy(j.Q, w.dynamics.inverse, sizeof(double) * nv * N);
  product(nv, N, j.by_q, N, nullptr, 0, {j.Q, N, 1}, j.X_q, N, nv, 1);
  product(nv, N, j.by_v, N, nullptr, 0, {j.Q, N, 1}, j.X_v, N, nv, 1);
  j.pushes = used > 0;
  if (!j.pushes) return;
  product(nv, N, j.by_q, N, j.by_q, N, MJ, j.Y_used + N, stride, used, -1);
  if (!still) product(nv, N, j.by_v, N, j.by_v, N, MJ, j.Y_used + 2 * N, stride, used, -1);
  if (!selecting && !impulses) return;
  if (still)
    for (int row = 0; row < w.rows.m; ++row) std::memset(j.Y + row * stride + 2 * N, 0, sizeof(double) * N);
  impulse_slopes(n, t, dt, w);
  if (selecting) add_selection(n, t, p, dt, given_slopes, w);
}

// X := X D of a block-diagonal D that is 1 but for the 3 x 3 blocks of ball joints, scaled.
template <class Size>
void times_blocks(Size n, const Topology& t, const std::vector<BallJoint>& balls, const double (*blocks)[9], const double* X, double scale,
                  double* out) {
  const int N = n.lanes();
  for (int i = 0; i < t.nv; ++i) {
    for (int b = 0; b < N; b += LANES) store(out + i * N + b, scale * load(X + i * N + b));
    for (size_t k = 0; k < balls.size(); ++k) {
      const double *x = X + i * N + balls[k].v, *D = blocks[k];
      for (int c = 0; c < 3; ++c) out[i * N + balls[k].v + c] = scale * (x[0] * D[c] + x[1] * D[3 + c] + x[2] * D[6 + c]);
    }
  }
}

// to (nv, columns) = scale X gain, of which most entries of the gain are zero.
inline void along_gain(int nv, double scale, const double* X, ptrdiff_t ldx, const Linear& out, double* to) {
  const ptrdiff_t columns = out.columns;
  if (columns == 0) return;
  std::memset(to, 0, sizeof(double) * nv * columns);
  for (int row = 0; row < nv; ++row)
    for (int c = 0; c < columns; ++c) {
      const double gain = scale * out.gain[row * columns + c];
      if (gain == 0) continue;
      for (int i = 0; i < nv; ++i) to[i * columns + c] += gain * X[i * ldx + row];
    }
}

// A and B of q+ = q_m (+) rest v+, with q_m = q for the semi-implicit step, q_m = q (+) dt/2 v for Moreau's.
template <class Size>
void assemble_jacobian(Size n, const Topology& t, double dt, double rest, bool moreau, const double* v, Workspace<Size>& w,
                       const Linear& out) {
  const int N = n.lanes(), nv = t.nv, columns = out.columns;
  JacobianWork<Size>& j = w.jacobian;
  const ptrdiff_t width = 2 * nv;
  // d q_m / d (q, v): ball joints' blocks of `there`.
  double *there = j.right, *there_by_v = there + 9 * w.balls.size();  // `right` is free now
  auto there_block = [&](size_t k) { return reinterpret_cast<double(*)[9]>(there) + k; };
  auto there_v_block = [&](size_t k) { return reinterpret_cast<double(*)[9]>(there_by_v) + k; };
  if (moreau) {
    for (size_t k = 0; k < w.balls.size(); ++k) {
      const TurnJacobians x = turn_jacobians(0.5 * dt * three(v + w.balls[k].v));
      std::memcpy(there_block(k), x.by_q, sizeof x.by_q), std::memcpy(there_v_block(k), x.by_d, sizeof x.by_d);
    }
    times_blocks(n, t, w.balls, there_v_block(0), j.by_q, 0.5 * dt, j.X_q);
    for (int i = 0; i < nv; ++i)
      for (int b = 0; b < N; b += LANES) store(j.by_v + i * N + b, load(j.by_v + i * N + b) + load(j.X_q + i * N + b));
    times_blocks(n, t, w.balls, there_block(0), j.by_q, 1, j.X_q);
  }
  const double* by_q = moreau ? j.X_q : j.by_q;
  auto put = [&](double* to, const double* from, double scale) {
    int b = 0;
    for (; b + LANES <= nv; b += LANES) storeu(to + b, scale * load(from + b));
    for (; b < nv; ++b) to[b] = scale * from[b];
  };
  along_gain(nv, dt, j.Q, N, out, out.B + nv * static_cast<ptrdiff_t>(columns));
  for (int i = 0; i < nv; ++i) {
    double *top = out.A + i * width, *bottom = out.A + (nv + i) * width;
    put(bottom, by_q + i * N, 1), put(bottom + nv, j.by_v + i * N, 1);
    put(top, by_q + i * N, rest), put(top + nv, j.by_v + i * N, rest);
    top[i] += 1;
    if (moreau) top[nv + i] += 0.5 * dt;
    for (int c = 0; c < columns; ++c) out.B[i * static_cast<ptrdiff_t>(columns) + c] = rest * out.B[(nv + i) * static_cast<ptrdiff_t>(columns) + c];
  }
  for (size_t k = 0; k < w.balls.size(); ++k) {
    const int at = w.balls[k].v;
    const TurnJacobians onward = turn_jacobians(rest * three(w.v_plus + at));
    for (int i = 0; i < 3; ++i) {
      auto turned = [&](double* rows, ptrdiff_t length) {
        double *to = rows + (at + i) * length, *from = rows + (nv + at) * length;
        const double x = rest * onward.by_d[3 * i], y = rest * onward.by_d[3 * i + 1], z = rest * onward.by_d[3 * i + 2];
        for (ptrdiff_t c = 0; c < length; ++c) to[c] = x * from[c] + y * from[length + c] + z * from[2 * length + c];
      };
      turned(out.A, width), turned(out.B, columns);
      double* top = out.A + (at + i) * width;
      for (int c = 0; c < 3; ++c) {
        double by_q_entry = onward.by_q[3 * i + c], by_v_entry = 0;
        if (moreau) {
          by_q_entry = 0;
          for (int m = 0; m < 3; ++m) {
            by_q_entry += onward.by_q[3 * i + m] * (*there_block(k))[3 * m + c];
            by_v_entry += onward.by_q[3 * i + m] * 0.5 * dt * (*there_v_block(k))[3 * m + c];
          }
        }
        top[at + c] += by_q_entry, top[nv + at + c] += by_v_entry;
      }
    }
  }
}

// C and D from d lambda / d (q_m, v, tau), in the rows of the report.
template <class Size>
void assemble_impulses(Size n, const Topology& t, double dt, bool moreau, const double* v, const Workspace<Size>& w, const Linear& out) {
  const int N = n.lanes(), nv = t.nv, columns = out.columns;
  const ptrdiff_t width = 2 * nv;
  std::memset(out.C, 0, sizeof(double) * t.reported() * width);
  std::memset(out.D, 0, sizeof(double) * t.reported() * columns);
  if (!w.jacobian.pushes) return;
  for (int k = 0; k < t.reported(); ++k) {
    const int row = w.reported[k].row;
    if (row < 0) continue;
    const double *by_q = w.jacobian.dlam + row * 3 * N, *by_v = by_q + N, *by_tau = by_v + N;
    double *to_q = out.C + k * width, *to_v = to_q + nv, *to_u = out.D + k * static_cast<ptrdiff_t>(columns);
    for (int i = 0; i < nv; ++i) {
      to_q[i] = by_q[i], to_v[i] = by_v[i] + (moreau ? 0.5 * dt * by_q[i] : 0.0);
      for (int c = 0; c < columns; ++c) to_u[c] += by_tau[i] * out.gain[i * columns + c];
    }
    if (!moreau) continue;
    for (const BallJoint& ball : w.balls) {
      const TurnJacobians there = turn_jacobians(0.5 * dt * three(v + ball.v));
      const double* x = by_q + ball.v;
      for (int c = 0; c < 3; ++c) {
        to_q[ball.v + c] = x[0] * there.by_q[c] + x[1] * there.by_q[3 + c] + x[2] * there.by_q[6 + c];
        to_v[ball.v + c] = by_v[ball.v + c] + 0.5 * dt * (x[0] * there.by_d[c] + x[1] * there.by_d[3 + c] + x[2] * there.by_d[6 + c]);
      }
    }
  }
}

// A and B, C and D where they are asked for, of the step that the workspace holds the solution of.
template <class Size>
void linearize(const Topology& t, const Parameters& p, double dt, double rest, bool moreau, const double* v,
               const double* given_slopes, Workspace<Size>& w, const Linear& out) {
  const Size n = w.size;
  JacobianWork<Size>& j = w.jacobian;
  for (int i = 0; i < t.nv; ++i) j.acceleration[i] = (w.v_plus[i] - v[i]) / dt;
  derivative_terms(n, t, p, w.kin, w.dynamics, j.acceleration, j.terms);
  expand_velocity(t, p, w.v_plus, w.tree_velocity);
  velocities(t, w.kin.S, w.tree_velocity, j.after, j.after_parent);
  set_wrenches(t, w.kin, w.rows, w.rows.m > 0 ? w.solution.lambda : nullptr, j.wrench);
  momentum_balance(n, t, dt, w);
  if (t.relaxed) std::fill_n(w.solution.cone_mode, w.rows.nc, STICKING);  // every contact moves the rest
  const bool still = law_slopes(n, t, p, dt, given_slopes, w);
  joint_terms(n, t, p, dt, w);
  add_gyroscopic_slopes(n, t, p, w.balls, dt, w.kin, w.dynamics, w.turning, j.X_q, j.X_v, j.turned);
  if (t.relaxed && w.rows.m > 0) relaxed_velocity_jacobian(n, t, p, dt, out.C != nullptr, w);
  else velocity_jacobian(n, t, p, dt, still, out.C != nullptr, given_slopes, w);
  if (out.C) assemble_impulses(n, t, dt, moreau, v, w, out);
  if (out.answers.rows) answer_rows(n, t, w, out.answers);
  assemble_jacobian(n, t, dt, rest, moreau, v, w, out);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
