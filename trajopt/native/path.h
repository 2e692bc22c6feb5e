// The solution at the end of the path of the regularised problem as eps falls to zero, from a solution with some eps.
//
// With G + eps I in place of G, eps > 0, the law has a solution, and only one where eps dwarfs G. The solutions form a curve,
// but for coincidences; modes end on the way, and where the curve turns back eps rises for a while. As impulses do no work on the
// velocities of the law, |lambda| <= |g| / eps: the curve cannot end before eps is zero. It leads to a solution of the problem itself, or
// impulses grow like 1 / eps, where contacts jam (the argument of Lemke's method: Cottle, Pang and Stone, The linear complementarity
// problem, section 4.4). Contacts that contradict each other need nothing of their own: the stress between them grows as eps falls, until
// modes end that let them slip, whatever the order.
//
// The curve is followed by its length in the unknowns of path_equations.h: a step along the tangent, Newton's method across it (Allgower
// and Georg, Numerical continuation methods, chapter 6), and back to the very point where the first mode ends. There the mode is
// exchanged for its neighbour, as in a pivot, and the curve goes on to the side where that holds.
#pragma once
#include "gauss_seidel.h"
#include "no_solution.h"
#include "path_equations.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double EPS_FIRST = 1e3, EPS_MIN = 1e-17;  // eps, over the largest diagonal entry of G: contacts are alone; less than rounding
constexpr int PATH_STARTS = 20;          // sweeps, and revisions of the modes, at the beginning: some three are taken
constexpr int PATH_CORRECTIONS = 10;     // of Newton's method, which is quadratic here: some three are taken
constexpr double LONGEST = 0.5;          // step, in the units of the unknowns, and turn of the tangent, radians, in a step: with 1 one of
                                         // 400 recorded problems loses the path
constexpr double AFTER_EVENT = 0.02;     // longest first step, and after the end of a mode
constexpr double LEAST_LENGTH = 1e-10;   // of a step; no path is found on which it is less
constexpr double MOST_GROWTH = 1.6;      // factor by which a step may be longer or shorter than the one before
constexpr double EXACT = 1e-5, ROUGH = 1e-3;  // size of a step of Newton's method after which one more ends at rounding, and one that will do
constexpr double FARTHEST = 2.0;         // size of a step of Newton's method that is not taken: more than all of the impulse
constexpr double TOLERATED = 1e-6;       // by which another mode may be over where one ends: of the impulse, or of eps times it
constexpr double LANDING_SLACK = 1e-4;  // length by which the end of a mode may lie outside of a step, for rounding
constexpr double JAMMED = 1e4;           // |lambda| over what stops the approach, from which on a step may show a ray that it grows along

// An eps that dwarfs G, and into x nearly the solution with it, in which every contact is almost alone.
inline double almost_alone(const Ncp& ncp, double* x) {
  const double eps = EPS_FIRST * largest_mobility(ncp.problem);
  std::memset(x, 0, sizeof(double) * ncp.width);
  for (int k = 0; k < PATH_STARTS && sweep(Regularised{ncp, eps}, x) > MACHINE * ncp.approach; ++k) {}
  return eps;
}

// Follows the path; the equations are at where it has come to.
class Path : PathEquations {
 public:
  using PathEquations::PathEquations;

  // From a point near the solution with eps until `lawful(s.at)`, which is whether it does, with at most so many factorisations.
  template <class Lawful> bool follow(double eps, const Point& from, int most, Lawful lawful) {
    begin(Regularised{ncp_, eps}, from);
    if (!(top_ > 0)) return proof_ = ray(ncp_, s_.at.x, w_.rate), false;  // nothing moves
    t_ = std::log(eps);
    if (!settle_modes()) return false;
    stride_ = AFTER_EVENT, fresh_ = NO_SLOT;
    set_scale();
    std::memset(w_.border, 0, sizeof(double) * ld_);
    w_.border[n_] = -1.0;  // eps falls
    if (!tangent()) return false;
    for (; factorisations_ < most; ++iterations_) {
      if (!advance()) return false;
      if (std::exp(t_) < EPS_MIN * top_ || jams()) return false;
      evaluate(Regularised{ncp_}, s_.at);
      if (lawful(s_.at)) return true;
    }
    return false;
  }

  // What the end of the path proves, where it is no solution.
  Proof proof() const { return proof_; }

 private:
  static constexpr int NO_SLOT = -1;
  double stride_ = 0;
  Proof proof_ = NO_PROOF;
  int fresh_ = NO_SLOT;  // the slot whose mode has begun where this step does

  // Whether impulses grow along a ray: then without end.
  bool jams() {
    if (!(largest_impulse() > JAMMED * heaviest_ * ncp_.approach)) return false;
    for (int r = 0; r < ncp_.width; ++r) w_.move[r] = s_.at.x[r] - w_.x[r];
    proof_ = ray(ncp_, w_.move, w_.rate);
    return proof_ != NO_PROOF;
  }

  // One step, or none and a shorter one next; false where no step leads on.
  bool advance() {
    save();
    set_scale();
    values(w_.before);
    advance_by(w_.tangent, stride_);
    set_plane();
    double way = stride_;
    if (!correct(NO_SLOT, way)) return shorter();
    values(w_.after);
    const int slot = first_over();
    if (slot == NO_SLOT) return go_on();
    if (slot == fresh_ || !land(slot)) return shorter();
    fresh_ = exchange(slot);
    stride_ = AFTER_EVENT;
    hold_modes();
    gradient(fresh_, w_.border);
    return tangent();
  }

  bool shorter() {
    restore();
    return (stride_ *= 0.5) >= LEAST_LENGTH;
  }

  // The tangent at the end of a step in which no mode ends, and the length of the next.
  bool go_on() {
    double* before = w_.step;
    for (int i = 0; i <= n_; ++i) before[i] = w_.tangent[i];
    if (!tangent()) return false;
    double turn = 0;
    for (int i = 0; i <= n_; ++i) turn = std::hypot(turn, (w_.tangent[i] - before[i]) / w_.scale[i]);
    fresh_ = NO_SLOT;
    stride_ = std::min(LONGEST, stride_ * std::clamp(LONGEST / turn, 1 / MOST_GROWTH, MOST_GROWTH));
    return true;
  }

  // border . change = 0 is the plane through a point across the tangent.
  void set_plane() {
    for (int i = 0; i < ld_; ++i) w_.border[i] = i <= n_ ? w_.tangent[i] / (w_.scale[i] * w_.scale[i]) : 0.0;
  }

  // The tangent at the point, of length one, to the side where border . tangent > 0.
  bool tangent() {
    if (!factor()) return false;
    std::memset(w_.right, 0, sizeof(double) * ld_);
    w_.right[n_] = 1.0;
    solve(w_.right, w_.tangent);
    double size = 0;
    for (int i = 0; i <= n_; ++i) size += w_.tangent[i] * w_.tangent[i] / (w_.scale[i] * w_.scale[i]);
    size = std::sqrt(size);
    for (int i = 0; i <= n_; ++i) w_.tangent[i] /= size;
    return size > 0 && std::isfinite(size);
  }

  // Newton's method with the border, on whose side a slot's value becomes zero if one is given; `way` sums up what it goes along
  // the tangent.
  bool correct(int slot, double& way) {
    double before = HUGE_VAL;
    for (int k = 0; k < PATH_CORRECTIONS; ++k) {
      if (slot >= 0) gradient(slot, w_.border);
      if (!factor()) return false;
      const double size = newton_step(slot, way);
      if (!(size < FARTHEST)) return false;
      if (size <= EXACT) return newton_step(slot, way) <= ROUGH;  // with the same factors
      if (k >= 3 && size > 0.5 * before) return size <= ROUGH;
      before = size;
    }
    return before <= ROUGH;
  }

  // A step with the factored derivative; its size.
  double newton_step(int slot, double& way) {
    for (int i = 0; i < n_; ++i) w_.right[i] = -ncp_.rho[s_.held[i]] * left(s_.held[i]);
    w_.right[n_] = slot >= 0 ? -solved_value(slot) : 0.0;
    solve(w_.right, w_.step);
    double size = 0;
    for (int i = 0; i <= n_; ++i) {
      const double d = std::fabs(w_.step[i] / w_.scale[i]);
      if (!(d <= size)) size = d;
      way += w_.step[i] * w_.tangent[i] / (w_.scale[i] * w_.scale[i]);
    }
    if (size < FARTHEST) advance_by(w_.step, 1.0);
    return size;
  }

  // Of the modes that were over by less before the step, the one that has ended first, if any has.
  int first_over() const {
    int found = NO_SLOT;
    double earliest = HUGE_VAL;
    for (int slot = 0; slot < slots(); ++slot) {
      if (!(w_.after[slot] < 0 && w_.after[slot] < w_.before[slot])) continue;
      const double before = std::max(w_.before[slot], 0.0), share = before / (before - w_.after[slot]);
      if (share < earliest) earliest = share, found = slot;
    }
    return found;
  }

  // To the point where the mode of a slot ends; whether it lies within the step, and no other mode is over there.
  bool land(int slot) {
    double way = stride_;
    if (!correct(slot, way) || way > 1.5 * stride_ + LANDING_SLACK || way < -0.1 * stride_ - LANDING_SLACK) return false;
    values(w_.after);
    for (int o = 0; o < slots(); ++o)
      if (o != slot && w_.after[o] < w_.before[o] && excess(o, w_.after[o]) > TOLERATED) return false;
    return true;
  }

  // From near a solution to it, at the same eps: modes that are over become their neighbours, all at once.
  bool settle_modes() {
    for (int k = 0; k < PATH_STARTS; ++k) {
      hold_modes();
      std::memset(w_.border, 0, sizeof(double) * ld_);
      std::memset(w_.tangent, 0, sizeof(double) * ld_);
      w_.border[n_] = 1.0;
      double way = 0;
      if (!correct(NO_SLOT, way)) return false;
      values(w_.before);
      bool wrong = false;
      for (int slot = 0; slot < slots(); ++slot)
        if (w_.before[slot] < 0) exchange(slot), wrong = true;
      if (!wrong) return true;
    }
    return false;
  }
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
