// Search through all modes of few contacts, for problems that the path does not solve: what a certificate excludes, and starts for Newton's
// method in what is left. With everything excluded the problem has no solution.
//
// A branch says of its first contacts that each is open, sticks or slides, and of those that slide or stick in which arc of directions u
// their friction lies. There the law is relaxed to cones, T being triangles of tangents around the arc:
//
//     open    lambda = 0, nu_n >= 0                        slides  lambda_t in mu lambda_n T,  nu_n = 0,  -nu_t in the cone of the arc
//     sticks  lambda_t in mu lambda_n conv(0, T), nu = 0   not decided  lambda_t in mu lambda_n T of the circle, nu_n >= 0
//
// so that nu = G lambda + g reads A x + g = 0 with x >= 0. The least residual r (Lawson and Hanson, Solving least squares problems, chapter
// 23) has A^T r >= 0 and g . r = |r|^2: where it is not zero there is no such x (Farkas). Else the widest arc is halved.
#pragma once
#include "ncp.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int FEW_CONTACTS = 3, MOST_ROWS = 16;  // of a problem that is searched
constexpr int BRANCHES = 400, STARTS = 16;       // at most; constructed problems that come this far take some 80 branches on average
constexpr double NARROW = 0.1;                   // radians: an arc that is not halved
constexpr double LEAST_EXCLUDED = 1e-6;                // residual over the approaching velocities from which on a branch is excluded: that of `SLOW`
constexpr double CERTAIN = 1e-8;                 // share of r that A^T r may be below zero, for rounding

class EveryMode {
 public:
  explicit EveryMode(const Ncp& ncp) : p_(ncp.problem), m_(ncp.m), least_(LEAST_EXCLUDED * ncp.approach) {}

  static bool fits(const Ncp& ncp) { return ncp.problem.contacts <= FEW_CONTACTS && ncp.m <= MOST_ROWS; }

  // Whether no solution exists. Otherwise `solves`, which is whether Newton's method from these impulses (m,) ends at one, has said so, or
  // it is not known.
  template <class Solves> bool search(Solves solves) { return excluded(0, solves) && starts_ == 0; }

 private:
  struct Arc {
    int mode;
    double from, width;
  };
  struct alignas(64) Rows {
    double at[MOST_ROWS] = {};
  };
  static constexpr int MOST_COLUMNS = 13 * FEW_CONTACTS + 4 * MOST_ROWS;
  const ContactProblem& p_;
  const int m_;
  const double least_;
  int branches_ = 0, starts_ = 0, columns_ = 0;
  Arc arc_[FEW_CONTACTS];
  Rows A_[MOST_COLUMNS], impulse_[MOST_COLUMNS], r_;  // of an unknown: its column, of length one, and the impulse that it is
  double x_[MOST_COLUMNS];

  static double product(const Rows& a, const Rows& b) { return dot(a.at, b.at, MOST_ROWS); }

  // An unknown: impulses or, with the other sign, velocities of rows from `row` on.
  void add_unknown(int row, std::initializer_list<double> value, bool velocity) {
    Rows a, impulse;
    for (double v : value) (velocity ? a : impulse).at[row++] = velocity ? -v : v;
    for (int r = 0; r < m_ && !velocity; ++r)
      for (int k = 0; k < m_; ++k) a.at[r] += p_.G[(ptrdiff_t)r * p_.stride + k] * impulse.at[k];
    const double size = std::sqrt(product(a, a));
    if (!(size > 0)) return;
    for (int r = 0; r < m_; ++r) a.at[r] /= size, impulse.at[r] /= size;
    A_[columns_] = a, impulse_[columns_++] = impulse;
  }

  void add_contact(int c, bool decided) {
    const Arc arc = decided ? arc_[c] : Arc{STICKING, 0.0, 2 * M_PI};
    const int row = 3 * c;
    if (!decided || arc.mode == SEPARATING) {
      for (double side : {1.0, -1.0}) add_unknown(row, {side, 0, 0}, true), add_unknown(row, {0, side, 0}, true);
      add_unknown(row, {0, 0, 1}, true);
      if (decided) return;
    }
    const int triangles = std::max(1, (int)std::lround(arc.width / M_PI_2));
    const double half = 0.5 * arc.width / triangles, reach = p_.mu[c] / std::cos(half);
    for (int k = 0; k <= 2 * triangles; ++k) {  // ends of arcs and, between them, where the tangents there meet
      const bool end = k % 2 == 0;
      const double u0 = std::cos(arc.from + k * half), u1 = std::sin(arc.from + k * half), radius = end ? p_.mu[c] : reach;
      add_unknown(row, {radius * u0, radius * u1, 1}, false);
      if (end && arc.mode == SLIDING) add_unknown(row, {-u0, -u1, 0}, true);
    }
    if (arc.mode == STICKING) add_unknown(row, {0, 0, 1}, false);
  }

  // The unknowns of the branch in which the first contacts are decided. Limits are as contacts that are not, without friction; dry rows
  // without a bound hold, of others nothing is said.
  void add_unknowns(int decided) {
    columns_ = 0;
    for (int c = 0; c < p_.contacts; ++c) add_contact(c, c < decided);
    const int unilateral = 3 * p_.contacts + p_.limits;
    for (int r = 3 * p_.contacts; r < m_; ++r)
      for (double side : {1.0, -1.0}) {
        if (r < unilateral && side < 0) continue;
        add_unknown(r, {side}, false);
        if (r < unilateral || std::isfinite(p_.bound[r - unilateral])) add_unknown(r, {side}, true);
      }
  }

  // r = A x + g for x >= 0 at which it is least; its length.
  double least_residual() {
    int held[MOST_ROWS], n = 0;
    Rows Q[MOST_ROWS];
    double R[MOST_ROWS][MOST_ROWS], z[MOST_ROWS];
    std::fill(x_, x_ + columns_, 0.0);
    const auto residual = [&] {
      for (int r = 0; r < m_; ++r) r_.at[r] = p_.g[r];
      for (int i = 0; i < n; ++i) add(x_[held[i]], A_[held[i]].at, r_.at, MOST_ROWS);
      return std::sqrt(product(r_, r_));
    };
    const auto least_squares = [&] {  // z, of the held unknowns, by Gram and Schmidt, twice
      for (int i = 0; i < n; ++i) {
        Q[i] = A_[held[i]];
        for (int j = 0; j <= i; ++j) R[j][i] = 0.0;
        for (int j = 0; j < 2 * i; ++j) {
          const double share = product(Q[j % i], Q[i]);
          add(-share, Q[j % i].at, Q[i].at, MOST_ROWS), R[j % i][i] += share;
        }
        R[i][i] = std::max(std::sqrt(product(Q[i], Q[i])), 1e-12);
        z[i] = 0;
        for (int r = 0; r < m_; ++r) z[i] -= (Q[i].at[r] /= R[i][i]) * p_.g[r];
      }
      for (int i = n - 1; i >= 0; --i) {
        for (int j = i + 1; j < n; ++j) z[i] -= R[i][j] * z[j];
        z[i] /= R[i][i];
      }
    };
    double size = residual();
    for (int k = 0; k < 3 * MOST_COLUMNS && size > least_ && n < m_; ++k, size = residual()) {
      int next = -1;
      double most = -CERTAIN * size;
      for (int j = 0; j < columns_; ++j)
        if (const double slope = product(A_[j], r_); slope < most) most = slope, next = j;
      if (next < 0) break;
      held[n++] = next;
      for (double share = 0; share < 1;) {
        least_squares();
        share = 1;
        for (int i = 0; i < n; ++i)
          if (z[i] <= 0) share = std::min(share, x_[held[i]] / std::max(x_[held[i]] - z[i], 1e-300));
        int kept = 0;
        for (int i = 0; i < n; ++i) {
          double& x = x_[held[i]];
          x += share * (z[i] - x);
          if (share < 1 && !(x > 1e-14)) x = 0.0;
          else held[kept++] = held[i];
        }
        if (kept == n) break;
        n = kept;
      }
    }
    return size;
  }

  // Whether A^T r >= 0 and g . r > 0: nothing is in the branch.
  bool certificate(double size) const {
    double work = 0;
    for (int r = 0; r < m_; ++r) work += p_.g[r] * r_.at[r];
    for (int j = 0; j < columns_; ++j)
      if (product(A_[j], r_) < -CERTAIN * size) return false;
    return size > least_ && work > 0.5 * size * size;
  }

  // Whether all of a branch is looked at without a solution; what is not excluded counts in `starts_`.
  template <class Solves> bool excluded(int decided, Solves& solves) {
    if (++branches_ > BRANCHES) return false;
    add_unknowns(decided);
    if (certificate(least_residual())) return true;
    if (decided < p_.contacts) {
      for (int mode : {SLIDING, STICKING, SEPARATING}) {
        arc_[decided] = {mode, 0.0, 2 * M_PI};
        if (!excluded(decided + 1, solves)) return false;
      }
      return true;
    }
    int widest = -1;
    for (int c = 0; c < p_.contacts; ++c)
      if (arc_[c].mode != SEPARATING && arc_[c].width > (widest < 0 ? NARROW : arc_[widest].width)) widest = c;
    if (widest < 0) return !start_from(solves) && ++starts_ < STARTS;
    const Arc whole = arc_[widest];
    for (double from : {whole.from, whole.from + 0.5 * whole.width}) {
      arc_[widest] = {whole.mode, from, 0.5 * whole.width};
      if (!excluded(decided, solves)) return false;
    }
    arc_[widest] = whole;
    return true;
  }

  template <class Solves> bool start_from(Solves& solves) {
    Rows start;
    for (int j = 0; j < columns_; ++j) add(x_[j], impulse_[j].at, start.at, MOST_ROWS);
    return solves(start.at);
  }
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
