// The equations of the path (path.h) at a point of it: those of in_modes.h, with log eps as one more unknown. One equation is missing: the
// border, the plane in which Newton's method looks for a point, or the end of a mode.
#pragma once
#include "in_modes.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double DECADES = 3.0;          // change of log eps that counts as much as all of the impulse, or a radian
constexpr double EPS_OF_ROUNDING = 1e-10;  // eps over the largest diagonal entry of G from which on rounding of nu is more than that

// The largest entry on the diagonal of G.
inline double largest_mobility(const ContactProblem& p) {
  double top = 0;
  for (int r = 0; r < p.rows(); ++r) top = std::max(top, p.G[(ptrdiff_t)r * p.stride + r]);
  return top;
}

// What the path needs besides an `InModes` for modes, directions and impulses.
struct PathScratch {
  double *x, *direction, *speed;  // a point to go back to
  double *K, *inverse, *shares, *border, *scale, *right, *tangent, *step, *before, *after, *move, *rate;
  int* row;
};

class PathEquations : protected EquationsInModes {
 public:
  PathEquations(const Ncp& ncp, InModes& s, PathScratch& w, int& iterations)
      : EquationsInModes(ncp, s), w_(w), iterations_(iterations), top_(largest_mobility(ncp.problem)) {
    for (int r = 0; r < ncp.m; ++r) heaviest_ = std::max(heaviest_, ncp.rho[r]);
  }

 protected:
  PathScratch& w_;
  int& iterations_;
  const double top_;
  double heaviest_ = 0;
  int n_ = 0, ld_ = 0;          // unknowns beside log eps; with it, padded
  double t_ = 0, saved_t_ = 0;  // log eps
  int factorisations_ = 0;

  void save() {
    const size_t bytes = sizeof(double) * ncp_.width;
    std::memcpy(w_.x, s_.at.x, bytes), std::memcpy(w_.direction, s_.direction, bytes), std::memcpy(w_.speed, s_.speed, bytes);
    saved_t_ = t_;
  }
  void restore() {
    const size_t bytes = sizeof(double) * ncp_.width;
    std::memcpy(s_.at.x, w_.x, bytes), std::memcpy(s_.direction, w_.direction, bytes), std::memcpy(s_.speed, w_.speed, bytes);
    t_ = saved_t_;
    exact_velocity();
  }

  // Takes the unknowns of the modes, and sets their units.
  void hold_modes() {
    hold();
    n_ = s_.n, ld_ = padded(n_ + 1);
    set_scale();
    exact_velocity();
  }

  void set_scale() {
    const double size = std::max(largest_impulse(), 1e-300);
    for (int i = 0; i < ld_; ++i) w_.scale[i] = i < n_ && is_angle(s_.held[i]) ? 1.0 : size;
    w_.scale[n_] = DECADES;
  }

  // nu of the regularised problem, summed up with 64 bits: its part along the null space of G is eps lambda alone, and rounding there
  // would move the impulses by itself over eps.
  void exact_velocity() {
    const long double eps = std::exp(t_);
    for (int r = 0; r < ncp_.m; ++r) {
      const double *G = p_.G + (ptrdiff_t)r * p_.stride, *x = s_.at.x;
      long double even = p_.g[r] + eps * x[r], odd = 0;
      int at = 0;
      for (; at + 2 <= ncp_.m; at += 2) even += (long double)G[at] * x[at], odd += (long double)G[at + 1] * x[at + 1];
      if (at < ncp_.m) even += (long double)G[at] * x[at];
      s_.at.nu[r] = (double)(even + odd);
    }
  }

  // The derivative of the equations by the unknowns, and the border, with rows and columns scaled; factored.
  bool factor() {
    ++factorisations_;
    const double eps = std::exp(t_);
    derivative(eps, w_.K, ld_);
    for (int i = 0; i < n_; ++i)
      if (const int r = s_.held[i]; !is_angle(r)) w_.K[(ptrdiff_t)i * ld_ + n_] = ncp_.rho[r] * eps * s_.at.x[r];  // lambda_t is along u
    std::memcpy(w_.K + (ptrdiff_t)n_ * ld_, w_.border, sizeof(double) * ld_);
    for (int i = 0; i <= n_; ++i) {
      double* k = w_.K + (ptrdiff_t)i * ld_;
      Lanes sizes = {};
      for (int at = 0; at <= n_; at += W) {
        const Lanes scaled = load(k + at) * load(w_.scale + at);
        store(k + at, scaled), sizes = larger(magnitude(scaled), sizes);
      }
      const double most = largest(sizes);
      if (!(most > 0) || !std::isfinite(most)) return false;
      w_.shares[i] = 1.0 / most;
      for (int at = 0; at <= n_; at += W) store(k + at, w_.shares[i] * load(k + at));
    }
    return factor_general(w_.K, ld_, n_ + 1, 1e-300, w_.row, w_.inverse) > 1e-300;
  }

  // Solves for the change whose image is `right`, (n + 1), which is overwritten.
  void solve(double* right, double* found) const {
    for (int i = 0; i <= n_; ++i) right[i] *= w_.shares[i];
    solve_general(w_.K, ld_, n_ + 1, w_.row, w_.inverse, right, found);
    for (int i = 0; i <= n_; ++i) found[i] *= w_.scale[i];
  }

  void advance_by(const double* change, double share) {
    const double eps = std::exp(t_);
    move(eps, change, share, eps * change[n_]);
    t_ += share * change[n_];
    exact_velocity();
  }

  void values(double* to) const {
    for (int slot = 0; slot < slots(); ++slot) to[slot] = value(slot);
  }

  // A value, but of a speed what its equation makes of it.
  double solved_value(int slot) const {
    const bool is_speed = of_contact(slot) && slot % 2 == 0 && s_.mode[slot / 2] == SLIDING;
    return is_speed ? -along(slot / 2, s_.at.nu) : value(slot);
  }

  // The derivative of a value by the unknowns.
  void gradient(int slot, double* to) {
    const int at = place_of(slot), r = row_of(slot), mode = s_.mode[at];
    const double *x = s_.at.x + r, *u = s_.direction + r;
    auto by = [&](int row) -> double& { return to[std::lower_bound(s_.held, s_.held + n_, row) - s_.held]; };
    auto velocity = [&](int row, double a, double b) {
      make_basis();
      velocity_gradient(std::exp(t_), row, a, b, to);
      to[n_] = std::exp(t_) * (a * s_.at.x[row] + (b != 0 ? b * s_.at.x[row + 1] : 0.0));
    };
    std::memset(to, 0, sizeof(double) * ld_);
    if (!of_contact(slot)) {
      const double sign = at >= p_.contacts + p_.limits && x[0] > 0 ? -1.0 : 1.0;
      if (mode) by(r) = sign;
      else velocity(r, sign, 0.0);
    } else if (slot % 2) {
      by(r + 2) = 1.0;
    } else if (mode == SEPARATING) {
      velocity(r + 2, 1.0, 0.0);
    } else if (mode == SLIDING) {
      velocity(r, -u[0], -u[1]);
    } else {
      const double length = std::hypot(x[0], x[1]);
      if (length > 0) by(r) = -x[0] / length, by(r + 1) = -x[1] / length;
      by(r + 2) = p_.mu[at];
    }
  }

  // By how much a mode is over, in its own units: of impulses, or of eps times these.
  double excess(int slot, double value) const {
    return -value / (largest_impulse() * (is_impulse(slot) ? 1.0 : std::max(std::exp(t_), EPS_OF_ROUNDING * top_)));
  }
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
