// The contact problem on its central path, and its derivative: the compiled form of trajopt/dynamics/contact/central_path.py, which has
// the equations. All rows act. Unknowns are the impulses lambda of all rows, the slacks w of normal rows and limits, and v+; every
// system that is solved has the size of the velocities and of the equality constraints,
//   [ M + J^T D J   -E^T  ] [ dv        ]   [ force + J^T change ]
//   [ E             soft  ] [ d lambda_e ] = [ -error             ]
#pragma once
#include "relaxed_row.h"
#include "slopes.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double LEAST_FRICTION = 1e-12;            // a smaller coefficient, or bound (N s), counts as this
constexpr double INSIDE = 0.99, NEARLY_FULL = 0.9;  // share of the way to the boundary that a step takes; of a step that counts as full
constexpr double SHRINK = 0.1, SHRINK_LESS = 0.5;   // of the mean product, after a nearly full step and after a shorter one
constexpr double ON_PATH = 1e-4, PROXIMAL = 1e-9;   // relative error of a product that the last iteration squares; of equality constraints
constexpr double ROUNDINGS = 8;                     // units of rounding that residuals are allowed

template <class Size> class CentralPath {
 public:
  CentralPath(const Topology& topology, const Parameters& parameters, Workspace<Size>& workspace)
      : t(topology), p(parameters), w(workspace), r(w.rows), x(w.relaxed), N(w.size.lanes()), nv(t.nv), limits(3 * r.nc), dry(limits + r.nl),
        equalities(dry + r.nd), n(nv + r.ne), ld(padded(n)) {}

  // The impulses at rho and v+, into the workspace's solution.
  void solve() {
    measure();
    start();
    double share = 1;
    int iterations = 0;
    for (bool solved = false; !solved && iterations < t.max_iterations; ++iterations) solved = iterate(share);
    push(w);
    velocities(w.v_plus);
    report(iterations);
  }

  // D of all rows and the system, factorised, at the solution.
  void linearise() {
    velocities(w.v_plus);
    for (int k = 0; k < limits + r.nl; ++k) x.slack[k] = is_normal(k) ? p.rho / x.lambda[k] : 0.0;
    slopes(p.rho, p.rho);
    factorise();
  }

  // a = D b over the rows that are not equality constraints, for `columns` columns (a multiple of LANES).
  void times_slopes(const double* b, int ldb, double* a, int lda, int columns) const {
    for (int k = 0; k < r.nc; ++k) {
      const double *D = x.D + 9 * k, *from = b + (ptrdiff_t)3 * k * ldb;
      double* to = a + (ptrdiff_t)3 * k * lda;
      for (int at = 0; at < columns; at += LANES) {
        const vec one = load(from + at), two = load(from + ldb + at), three = load(from + 2 * ldb + at);
        for (int i = 0; i < 3; ++i) store(to + i * lda + at, D[3 * i] * one + D[3 * i + 1] * two + D[3 * i + 2] * three);
      }
    }
    for (int k = limits; k < equalities; ++k)
      for (int at = 0; at < columns; at += LANES) store(a + (ptrdiff_t)k * lda + at, x.scalar[k] * load(b + (ptrdiff_t)k * ldb + at));
  }

  // The right-hand side of the system, zero, and its solution for what has been put there: velocities, then equality constraints.
  double* right_side_to_fill() {
    std::memset(x.right, 0, sizeof(double) * ld);
    return x.right;
  }
  const double* solution() {
    solve_system(x.step);
    return x.step;
  }

 private:
  bool is_normal(int row) const { return row >= limits ? row < dry : row % 3 == 2; }
  double product_of(const double* a, const double* b) const {
    vec s = {};
    for (int at = 0; at < N; at += LANES) s += load(a + at) * load(b + at);
    return sum(s);
  }
  Pair friction_at(const double* values, int k) const { return k < r.nc ? Pair{values[3 * k], values[3 * k + 1]} : Pair{values[dry + k - r.nc], 0}; }
  int frictions() const { return r.nc + r.nd; }
  double bound_of(int k) const { return k < r.nc ? r.mu[k] * x.lambda[3 * k + 2] : r.bound[k - r.nc]; }
  double mobility_of(int k) const { return k < r.nc ? std::max(x.mobility[3 * k], x.mobility[3 * k + 1]) : x.mobility[dry + k - r.nc]; }
  template <class F> void each_normal(F f) const {
    for (int k = 0; k < r.nc; ++k) f(3 * k + 2);
    for (int k = limits; k < dry; ++k) f(k);
  }
  double offset_of_row(int row) const {
    if (row < limits) return row % 3 == 2 ? r.contact[row / 3].offset.value : 0;
    if (row < dry) return r.limit[row - limits].offset.value;
    return row < equalities ? 0 : x.error[row - equalities];
  }

  // nu = J v + b of all rows; v is padded with zeros.
  void velocities(const double* v) {
    for (int row = 0; row < r.m; ++row) x.nu[row] = product_of(r.J + row * N, v) + offset_of_row(row);
  }

  void measure() {
    const double least = std::sqrt(std::numeric_limits<double>::min());
    x.equality_mobility = least;
    for (int row = 0; row < r.m; ++row) {
      x.mobility[row] = std::max(product_of(r.J + row * N, r.MJT + row * N), least);
      if (row >= equalities) x.equality_mobility = std::max(x.equality_mobility, x.mobility[row]);
    }
    for (int k = 0; k < r.nc; ++k) r.mu[k] = std::max(r.mu[k], LEAST_FRICTION);
    for (int k = 0; k < r.nd; ++k) r.bound[k] = std::max(r.bound[k], LEAST_FRICTION);
    for (int i = 0; i < nv; ++i)
      for (int j = 0; j < nv; ++j) x.M[i * N + j] = w.dynamics.M[j < i ? i * N + j : j * N + i];
  }

  // All products of normal rows equal: that of the largest impact.
  void start() {
    velocities(w.v_free);
    double product = p.rho, fastest = SLOWEST;
    each_normal([&](int row) {
      if (x.nu[row] < 0) product = std::max(product, x.nu[row] * x.nu[row] / x.mobility[row]);
      fastest = std::max(fastest, -x.nu[row]);
    });
    for (int k = 0; k < frictions(); ++k) {
      const double slip = length(friction_at(x.nu, k));
      if (k >= r.nc) product = std::max(product, bound_of(k) * slip);
      if (k >= r.nc || x.nu[3 * k + 2] < 0) fastest = std::max(fastest, slip);
    }
    for (int row = equalities; row < r.m; ++row) fastest = std::max(fastest, std::fabs(x.nu[row]));
    x.fastest = fastest;
    std::memset(x.lambda, 0, sizeof(double) * r.m);
    each_normal([&](int row) {
      x.slack[row] = std::max(x.nu[row], std::sqrt(product * x.mobility[row]));
      x.lambda[row] = product / x.slack[row];
    });
    push(w);
  }

  // The law's D and change of all rows at the iterate, psi being that of the path at the product `mean`.
  void slopes(double mean, double target) {
    each_normal([&](int row) {
      const double D = x.lambda[row] / x.slack[row];
      x.scalar[row] = D, x.change[row] = (target - x.lambda[row] * x.nu[row]) / x.slack[row];
    });
    for (int k = 0; k < frictions(); ++k) {
      const Pair tau = friction_at(x.lambda, k), nu = friction_at(x.nu, k);
      const double s = bound_of(k);
      const FrictionSlopes f = friction_slopes(tau, nu, s, cone_slack(mean, s, nu), target);
      if (k >= r.nc) {
        x.scalar[dry + k - r.nc] = f.by_x.x, x.change[dry + k - r.nc] = f.change.x;
        continue;
      }
      const int normal = 3 * k + 2;
      const Pair pressed = r.mu[k] * f.turned, change = f.change - x.change[normal] * pressed, coupled = -x.scalar[normal] * pressed;
      const double D[9] = {f.by_x.x, f.by_y.x, coupled.x, f.by_x.y, f.by_y.y, coupled.y, 0, 0, x.scalar[normal]};
      std::memcpy(x.D + 9 * k, D, sizeof D);
      x.change[3 * k] = change.x, x.change[3 * k + 1] = change.y;
    }
  }

  void factorise() {
    for (int i = 0; i < n; ++i) std::memset(x.H + (ptrdiff_t)i * ld, 0, sizeof(double) * ld);
    for (int i = 0; i < nv; ++i) std::memcpy(x.H + (ptrdiff_t)i * ld, x.M + i * N, sizeof(double) * nv);
    for (int k = 0; k < r.nc; ++k) {
      times_contact(k);
      const double* J = r.J + 3 * k * N;
      const int* support = r.support + r.contact[k].support;
      for (int s = 0; s < r.contact[k].supports; ++s) {
        const int i = support[s];
        double* row = x.H + (ptrdiff_t)i * ld;
        const vec a = splat(J[i]), b = splat(J[N + i]), c = splat(J[2 * N + i]);
        for (int at = 0; at < N && at < ld; at += LANES)
          store(row + at, load(row + at) + a * load(x.DJ + at) + b * load(x.DJ + N + at) + c * load(x.DJ + 2 * N + at));
      }
    }
    for (int k = limits; k < equalities; ++k) x.H[(ptrdiff_t)dof_of(k) * (ld + 1)] += x.scalar[k];
    soft_ = PROXIMAL * x.equality_mobility;
    for (int k = 0; k < r.ne; ++k) {
      double* row = x.H + (ptrdiff_t)(nv + k) * ld;
      for (int i = 0; i < nv; ++i) row[i] = r.J[(equalities + k) * N + i], x.H[(ptrdiff_t)i * ld + nv + k] = -row[i];
      row[nv + k] = soft_;
    }
    factor_general(x.H, ld, n, MACHINE, x.order, x.inverse);
  }
  int dof_of(int row) const { return row < dry ? r.limit[row - limits].dof : t.dry[row - dry]; }
  void times_contact(int k) { times_block(x.D + 9 * k, r.J + 3 * k * N, x.DJ); }
  void times_block(const double* D, const double* J, double* out) const {
    for (int at = 0; at < N; at += LANES) {
      const vec a = load(J + at), b = load(J + N + at), c = load(J + 2 * N + at);
      for (int i = 0; i < 3; ++i) store(out + i * N + at, D[3 * i] * a + D[3 * i + 1] * b + D[3 * i + 2] * c);
    }
  }

  // out = system^-1 x.right, without what the softness of equality constraints leaves.
  void solve_system(double* out) {
    solve_general(x.H, ld, n, x.order, x.inverse, x.right, out);
    if (r.ne == 0) return;
    std::memset(x.right, 0, sizeof(double) * nv);
    for (int k = nv; k < n; ++k) x.right[k] = soft_ * out[k];
    solve_general(x.H, ld, n, x.order, x.inverse, x.right, x.refined);
    for (int k = 0; k < n; ++k) out[k] += x.refined[k];
  }

  // A Newton step towards a share of the mean product; whether it began at a solution.
  bool iterate(double& share) {
    velocities(w.v_plus);
    double mean = 0, off = 0;
    int count = 0;
    each_normal([&](int row) { mean += x.lambda[row] * x.slack[row], ++count; });
    mean = count ? mean / count : p.rho;
    each_normal([&](int row) { off = std::max(off, std::fabs(x.lambda[row] * x.slack[row] - p.rho)); });
    const bool solved = off <= ON_PATH * p.rho && violation() <= p.tolerance;
    const double target = std::max(p.rho, (share > NEARLY_FULL ? SHRINK : SHRINK_LESS) * mean);
    slopes(mean, target);
    factorise();
    right_side();
    solve_system(x.step);
    share = advance();
    return solved;
  }

  // force + J^T change, and what equality constraints lack.
  void right_side() {
    std::memset(x.right, 0, sizeof(double) * ld);
    double* f = x.right;
    for (int i = 0; i < nv; ++i)
      for (int j = 0; j < nv; ++j) f[i] -= x.M[i * N + j] * (w.v_plus[j] - w.v_free[j]);
    for (int row = 0; row < r.m; ++row) {
      const double impulse = x.lambda[row] + (row < equalities ? x.change[row] : 0);
      const double* J = r.J + row * N;
      for (int i = 0; i < nv; ++i) f[i] += impulse * J[i];
    }
    for (int k = 0; k < r.ne; ++k) f[nv + k] = -x.nu[equalities + k];
  }

  // Along x.step as far as the cones allow; returns the share.
  double advance() {
    double* dlambda = x.change;
    std::memset(x.refined, 0, sizeof(double) * std::max(ld, N));
    std::memcpy(x.refined, x.step, sizeof(double) * nv);
    for (int row = 0; row < equalities; ++row) x.moved[row] = product_of(r.J + row * N, x.refined);
    for (int k = 0; k < r.nc; ++k) {
      const double *D = x.D + 9 * k, *dnu = x.moved + 3 * k;
      for (int i = 0; i < 3; ++i) dlambda[3 * k + i] -= D[3 * i] * dnu[0] + D[3 * i + 1] * dnu[1] + D[3 * i + 2] * dnu[2];
    }
    for (int row = limits; row < equalities; ++row) dlambda[row] -= x.scalar[row] * x.moved[row];
    for (int k = 0; k < r.ne; ++k) dlambda[equalities + k] = x.step[nv + k];
    double fastest = 1e-12, room = std::numeric_limits<double>::infinity();
    each_normal([&](int row) {
      x.moved[row] += x.nu[row] - x.slack[row];
      fastest = std::max({fastest, -dlambda[row] / x.lambda[row], -x.moved[row] / x.slack[row]});
    });
    for (int k = 0; k < frictions(); ++k) {
      const double ds = k < r.nc ? r.mu[k] * dlambda[3 * k + 2] : 0;
      room = std::min(room, room_in_cone(bound_of(k), friction_at(x.lambda, k), ds, friction_at(dlambda, k)));
    }
    const double share = std::min(1.0, INSIDE * std::min(1 / fastest, room));
    for (int row = 0; row < r.m; ++row) x.lambda[row] += share * dlambda[row];
    each_normal([&](int row) { x.slack[row] += share * x.moved[row]; });
    for (int i = 0; i < nv; ++i) w.v_plus[i] += share * x.step[i];
    return share;
  }

  // As `violation` of central_path.py, at the velocities in x.nu.
  double violation() const {
    double largest = 0, cancels = 0;
    auto row_scale = [&](int row) {
      double s = 0;
      for (int i = 0; i < nv; ++i) s += std::fabs(r.J[row * N + i] * w.v_plus[i]);
      return s + x.mobility[row] * x.lambda[row];
    };
    auto worse = [&](double value) { largest = value <= largest ? largest : value; };  // NaN stays
    each_normal([&](int row) {
      worse(std::fabs(x.lambda[row] * x.nu[row] - p.rho) / (x.lambda[row] + std::fabs(x.nu[row]) / x.mobility[row]));
      cancels = std::max(cancels, row_scale(row));
    });
    for (int k = 0; k < frictions(); ++k) {
      const double s = bound_of(k);
      const Pair nu = friction_at(x.nu, k);
      const double psi = cone_slack(p.rho, s, nu);
      worse(length(s * nu + psi * friction_at(x.lambda, k)) / (s + psi / mobility_of(k)));
    }
    for (int row = equalities; row < r.m; ++row) worse(std::fabs(x.nu[row]));
    return largest / std::max(x.fastest, ROUNDINGS * MACHINE / TOLERANCE * cancels);
  }

  void report(int iterations) {
    ContactSolution& s = w.solution;
    s.residual = violation(), s.iterations = iterations, s.stage = Stage::NEWTON, s.degenerate = false, s.selected = true;
    s.status = !std::isfinite(s.residual) ? ContactStatus::non_finite
               : s.residual <= p.tolerance ? ContactStatus::solved
                                           : ContactStatus::stalled;
    for (int k = 0; k < r.nc; ++k) {
      const int normal = 3 * k + 2;
      const double pressed = x.lambda[normal] - x.nu[normal] / x.mobility[normal];
      const Pair y = friction_at(x.lambda, k) - (2 / (x.mobility[3 * k] + x.mobility[3 * k + 1])) * friction_at(x.nu, k);
      s.cone_mode[k] = !(pressed > 0) ? SEPARATING : length(y) <= r.mu[k] * pressed ? STICKING : SLIDING;
    }
  }

  const Topology& t;
  const Parameters& p;
  Workspace<Size>& w;
  Rows<Size>& r;
  RelaxedWork& x;
  const int N, nv, limits, dry, equalities, n, ld;  // first rows of limits, dry friction and equality constraints; size of the system
  double soft_ = 0;
};

// All candidates and limits as rows.
template <class Size> void choose_all(const Topology& t, const Parameters& p, double dt, Workspace<Size>& w) {
  Rows<Size>& r = w.rows;
  for (int k = 0; k < r.candidates; ++k) {
    if (r.choice[k] == EXCLUDED) continue;
    if (r.nc == t.most_contacts()) { ++r.dropped; continue; }
    const Candidate& c = r.candidate[k];
    r.choice[k] = CHOSEN, r.contact[r.nc++] = {k, offset_of(t, p, w.kin, w.dynamics.V, c, dt), frame_of(c.normal), 0, 0, false};
  }
  for (int k = 0; k < t.limit_rows(); ++k) r.limit[r.nl++] = r.all_limits[k];
  r.nd = static_cast<int>(t.dry.size()), r.ne = t.equalities();
}

// d v+ / d (q, v, tau / dt) in by_q, by_v and Q; impulses: d lambda / d (q, v, tau) too, in dlam. Column by column: the inverse of the
// system times its right-hand sides, which are as stiff as the rows, would lose what solves keep.
template <class Size>
void relaxed_velocity_jacobian(Size n, const Topology& t, const Parameters& p, double dt, bool impulses, Workspace<Size>& w) {
  const int N = n.lanes(), nv = t.nv, stride = 3 * N, ne = w.rows.ne, others = w.rows.m - ne;
  JacobianWork<Size>& j = w.jacobian;
  const double *J = w.rows.J, *tied = j.right + (ptrdiff_t)others * stride;
  CentralPath<Size> path(t, p, w);
  path.linearise();
  path.times_slopes(j.right + N, stride, j.Y + N, stride, 2 * N);
  product(nv, N, j.X_q, N, j.X_q, N, {J, 1, N}, j.Y + N, stride, others, -1);
  product(nv, N, j.X_v, N, j.X_v, N, {J, 1, N}, j.Y + 2 * N, stride, others, -1);
  struct Part { const double* X; double* by; int place; } parts[] = {{j.X_q, j.by_q, 0}, {j.X_v, j.by_v, 1}, {nullptr, j.Q, 2}};
  for (const Part& part : parts)
    for (int c = 0; c < nv; ++c) {
      double* right = path.right_side_to_fill();
      if (part.X) {
        for (int i = 0; i < nv; ++i) right[i] = part.X[i * N + c];
        for (int k = 0; k < ne; ++k) right[nv + k] = -tied[(ptrdiff_t)k * stride + (part.place + 1) * N + c];
      } else right[c] = 1;
      const double* found = path.solution();
      for (int i = 0; i < nv; ++i) part.by[i * N + c] = found[i];
      for (int k = 0; k < ne && impulses; ++k)
        j.dlam[(ptrdiff_t)(others + k) * stride + part.place * N + c] = part.X ? found[nv + k] : dt * found[nv + k];
    }
  j.redundant = false, j.pushes = true;
  if (!impulses) return;
  for (const Part& part : parts)
    product(others, N, j.free + part.place * N, stride, nullptr, 0, {J, N, 1}, part.by, N, nv, part.X ? 1 : dt);
  path.times_slopes(j.free, stride, j.dlam, stride, stride);
  for (int row = 0; row < others; ++row)
    for (int b = 0; b < stride; b += LANES) {
      double* d = j.dlam + (ptrdiff_t)row * stride + b;
      store(d, b < 2 * N ? -load(d) - load(j.Y + (ptrdiff_t)row * stride + N + b) : -load(d));
    }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
