// Solution of the contact problem: a ladder of three stages, the selection among many solutions, and an honest status.
//
// NEWTON        the regularised problem from the better of the given start and zero: a step on the natural map, then in the modes that
//               it has found and their revisions (in_modes.h), and once more; where contacts rest on others that approach, first in modes
//               in which they are held
// GAUSS_SEIDEL  block Gauss-Seidel in rounds of 20, 40 and 80 sweeps, each followed by Newton
// PATH          the path of the regularised problem as eps falls to zero (path.h): from the first solution of the regularised problem
//               that leaves a residual; where neither Newton nor Gauss-Seidel led to a solution, from where eps dwarfs G. Where it ends
//               without one: that of the problem without friction, and of few contacts all modes (every_mode.h)
//
// Whatever came out is freed of the regularisation by iterative refinement; the residual is recomputed from scratch. `infeasible` needs
// a proof (no_solution.h, every_mode.h): what is neither solved nor proven is stalled.
#pragma once
#include <algorithm>
#include <cstdint>

#include "contact_workspace.h"
#include "every_mode.h"
#include "gauss_seidel.h"
#include "in_modes.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

enum class ContactStatus : int { solved, stalled, infeasible, non_finite };
enum class Stage : int { NEWTON, GAUSS_SEIDEL, PATH };  // `fallbacks` of a step

constexpr double TOLERANCE = 1e-10;      // residual of a solved problem
constexpr double TIE = 1e-11;            // relative to the approaching velocities, see `cone_mode`: a tenth of the tolerance
constexpr int MOST_ITERATIONS = 50;
constexpr int BUDGET = 2000;             // iterations, after which no stage begins, and factorisations of the path: 1,743 in recorded problems
constexpr double LARGEST_VELOCITY = 1e100;  // of approach: products of four overflow far below the largest double
constexpr int STEPS_ON_THE_MAP = 2;      // each followed by Newton in the modes found: with one more, steps take longer
constexpr int SWEEPS = 20, ROUNDS = 3;   // of the first round, doubled with every round
constexpr double STILL = 1e-9;           // change in a sweep, relative to the approaching velocities, that ends it
constexpr double DEGENERATE = 1e-3;      // eps over the smallest pivot of K from which on K has a null space where contacts are held
constexpr double SUSPECT = 1e-5;         // the same from which on the rank of K is looked at

struct ContactOptions {
  double tolerance = TOLERANCE;
  int max_iterations = MOST_ITERATIONS;
  int budget = BUDGET;
};

// lambda, nu (padded), modes as in `classify`; pointers into the workspace, valid until its next use. stage: the last that ran.
struct ContactSolution {
  double *lambda, *nu;
  int *cone_mode, *limit_mode, *dry_mode;
  double residual;
  int iterations;
  Stage stage;
  ContactStatus status;
  bool degenerate, selected;
};

// The search for a solution of one problem: the best impulse so far and how it was found.
struct Search {
  const Ncp& ncp;
  ContactWorkspace& w;
  ContactOptions options;
  double inner, rounding;  // velocities to which the regularised problem and the refinement are taken
  double lowest = HUGE_VAL;
  int iterations = 0;
  Stage stage = Stage::NEWTON;
  bool followed = false;  // the path from a solution of the regularised problem
  Proof proof = NO_PROOF;

  // Iterations that may still be taken: with none left nothing begins.
  int left() const { return std::max(0, options.budget - iterations); }

  double residual(const Point& at) const {
    return violation(Regularised{ncp}, at.F) / velocity_scale(ncp, at.x, options.tolerance);
  }

  // Newton's method on the regularised problem from the current point, evaluated; K is factored where it ends.
  bool newton(bool standing) {
    const Regularised regular{ncp, ncp.eps};
    const auto in_modes = [&](Beginning beginning) {
      const int most = std::min(options.max_iterations, left());
      return NewtonInModes(ncp, w.in_modes).solve(regular, w.current, w.factor, inner, most, iterations, beginning);
    };
    bool found = (standing && in_modes(Beginning::STANDING)) || (rests(ncp) && in_modes(Beginning::HELD));
    for (int k = 0; !found && k < STEPS_ON_THE_MAP && left() > 0; ++k) step_on_the_map(regular), found = in_modes(Beginning::AS_FOUND);
    factorise(regular, w.current.x, w.current.nu, w.newton.mode, w.factor);
    return found;
  }

  // One step of Newton's method on the natural map from the current point: most modes at its end are those of the solution.
  void step_on_the_map(const Regularised& of) {
    factorise(of, w.current.x, w.current.nu, w.newton.mode, w.factor);
    solve_law(of, w.factor, w.current.x, w.current.nu, w.current.F, w.newton.step);
    for (int r = 0; r < ncp.width; ++r) w.current.x[r] -= w.newton.step[r];
    evaluate(of, w.current);
    ++iterations;
  }

  // Refines the current point, in whose modes K is factored, and keeps it if it is the best; whether it solves the problem.
  bool keep() {
    std::memcpy(w.spare.x, w.current.x, sizeof(double) * ncp.width);
    refine(ncp, w.spare, w.factor, w.newton, rounding);
    double size = residual(w.spare);
    if (size <= options.tolerance && hidden_by_rounding(ncp, w.spare.x)) size = 1.0;  // as far off as no impulse at all
    if (size <= options.tolerance || size < lowest || lowest == HUGE_VAL) {
      std::swap(w.best, w.spare);
      lowest = size;
    }
    return size <= options.tolerance;
  }

  // Newton on the regularised problem from `from`, and once the path from its solution where that leaves a residual.
  bool attempt(const double* from, bool first = false) {
    std::memcpy(w.current.x, from, sizeof(double) * ncp.width);
    evaluate(Regularised{ncp, ncp.eps}, w.current);
    const bool found = newton(first);
    return keep() || (found && !followed && (followed = true, along_path(ncp.eps)));
  }

  // The modes of the best point, and whether a contact slides in them.
  bool slides() {
    const Regularised law{ncp};
    evaluate(law, w.best);
    classify(law, w.best.x, w.best.nu, w.mode, TIE, SLOW * ncp.approach);
    return std::any_of(w.mode, w.mode + ncp.problem.contacts, [](int mode) { return mode == SLIDING; });
  }

  bool gauss_seidel() {
    const Regularised regular{ncp, ncp.eps};
    std::memset(w.swept, 0, sizeof(double) * ncp.width);
    for (int round = 0; round < ROUNDS && left() > 0; ++round) {
      stage = Stage::GAUSS_SEIDEL;
      double change = HUGE_VAL;
      for (int k = 0; k < SWEEPS << round && change > STILL * ncp.approach; ++k) change = sweep(regular, w.swept);
      if (attempt(w.swept)) return true;
    }
    return false;
  }

  // The path from the current point, near the solution of the problem with eps; where it does not end at a solution, it may be near one.
  bool along_path(double eps) {
    if (left() == 0) return false;
    stage = Stage::PATH;
    Path path(ncp, w.in_modes, w.path, iterations);
    evaluate(Regularised{ncp, eps}, w.current);
    path.follow(eps, w.current, left(), [&](const Point& at) { return residual(at) <= options.tolerance; });
    proof = std::max(proof, path.proof());
    std::swap(w.current, w.in_modes.at);
    factorise(Regularised{ncp, ncp.eps}, w.current.x, w.current.nu, w.newton.mode, w.factor);
    return keep();
  }

  // The path of the problem without friction, which ends at a solution or at the proof that there is none (a linear complementarity
  // problem with a semidefinite matrix: Cottle, Pang and Stone, section 4.4). No friction helps against that; a solution is a start.
  bool without_friction() {
    if (left() == 0) return false;
    ContactProblem p = ncp.problem;
    double *mu = w.frictionless, *bound = mu + p.contacts;
    std::memset(mu, 0, sizeof(double) * ncp.width);
    for (int k = 0; k < p.dry; ++k) bound[k] = std::isfinite(p.bound[k]) ? 0.0 : p.bound[k];
    p.mu = mu, p.bound = bound;
    const Ncp smooth{p, ncp.m, ncp.width, ncp.rho, ncp.eps, ncp.approach};
    const Regularised law{smooth};
    Path path(smooth, w.in_modes, w.path, iterations);
    const double eps = almost_alone(smooth, w.current.x);
    evaluate(Regularised{smooth, eps}, w.current);
    path.follow(eps, w.current, left(), [&](const Point& at) { return violation(law, at.F) <= options.tolerance * ncp.approach; });
    proof = std::max(proof, path.proof());
    std::memcpy(w.swept, w.in_modes.at.x, sizeof(double) * ncp.width);
    return proof != NO_SOLUTION && attempt(w.swept);
  }

  void every_mode() {
    EveryMode every(ncp);
    const auto solves = [&](const double* impulses) {
      with_padding(ncp, impulses, w.swept);
      return left() > 0 && attempt(w.swept);
    };
    if (every.search(solves)) proof = NO_SOLUTION;
  }

  void run(const double* start, bool start_is_zero) {
    const auto ends = [&](bool solved) { return solved || proof == NO_SOLUTION; };
    if (ends(attempt(start, start_is_zero))) return;
    if (ends(gauss_seidel()) || ends(along_path(almost_alone(ncp, w.current.x))) || ends(without_friction())) return;
    if (EveryMode::fits(ncp)) every_mode();
  }
};

// `init` if it violates the law less than zero impulse (NaN counts as worse), else zero; into w.start.
inline void better_start(const Ncp& ncp, ContactWorkspace& w, const double* init) {
  std::memset(w.start, 0, sizeof(double) * ncp.width);
  if (!init) return;
  const Regularised regular{ncp, ncp.eps};
  bool zero = true;
  for (int r = 0; r < ncp.m; ++r) zero &= init[r] == 0.0;
  if (zero) return;
  std::memset(w.current.x, 0, sizeof(double) * ncp.width);
  evaluate(regular, w.current);
  const double without = violation(regular, w.current.F);
  with_padding(ncp, init, w.current.x);
  evaluate(regular, w.current);
  if (violation(regular, w.current.F) < without) with_padding(ncp, init, w.start);
}

// Keeps `candidate` in place of w.best where w.best solves the problem and it does so too, to the same order; whether it did.
inline bool if_lawful(const Ncp& ncp, ContactWorkspace& w, Point& candidate, double tol) {
  const Regularised law{ncp};
  evaluate(law, w.best);
  evaluate(law, candidate);
  const double before = violation(law, w.best.F) / velocity_scale(ncp, w.best.x, tol);
  const double after = violation(law, candidate.F) / velocity_scale(ncp, candidate.x, tol);
  const double worst = std::max(10 * before, 1e3 * MACHINE);
  const bool lawful = before <= std::sqrt(MACHINE) && after <= (before <= tol ? std::min(worst, tol) : worst);
  if (lawful) std::swap(w.best, candidate);
  return lawful;
}

// eps over the smallest pivot of K for G + eps I in `mode`, in which no contact slides: of pivots that are the largest left, which hide no
// null space.
inline double share_of_eps(const Ncp& ncp, const int* mode, ContactWorkspace& w) {
  SelectionScratch& s = w.selection;
  Elimination& e = s.elimination;
  bool slides;
  e.n = held_rows(ncp.problem, mode, s.held, slides), e.ld = padded(e.n);
  gather(ncp.problem, s.held, e.n, e.U, e.ld);
  law_matrix(Regularised{ncp, ncp.eps}, mode, w.best.x, w.best.nu, s.held, e.n, e.U, e.ld);
  eliminate(e, true);
  return e.n == 0 ? 0.0 : e.rank < e.n ? HUGE_VAL : REGULARISATION * e.inverse[0] / e.smallest;
}

// w.selecting_mode: the modes of the solution, but that contacts slide which stick in it and follow their cones in that of the
// regularised problem; whether there are any.
inline bool slow_contacts_slide(const ContactProblem& p, ContactWorkspace& w) {
  bool slow = false;
  for (int c = 0; c < p.contacts; ++c)
    if (w.mode[c] == STICKING && w.factor.mode[c] == SLIDING) w.selecting_mode[c] = SLIDING, slow = true;
    else w.selecting_mode[c] = w.mode[c];
  return slow;
}

// Puts the selected solution in place of w.best, and whether it is the shortest in its modes. Where the shortest breaks the law,
// because a contact that does not move would leave its cone or one that slides would turn back, it is the limit of the regularised
// problem's solution, in which the former follow their cones.
inline void select(const Ncp& ncp, ContactWorkspace& w, Search& search, double tol, bool slides, ContactSolution& out) {
  const ContactProblem& p = ncp.problem;
  const double share = REGULARISATION / w.factor.weakest;
  const bool differs = std::memcmp(w.mode, w.factor.mode, sizeof(int) * modes_count(p)) != 0;
  if (w.factor.n == 0 || (share < SUSPECT && !differs)) return;
  const auto lawful = [&](const int* mode, bool shortest) {
    std::memcpy(w.spare.x, w.best.x, sizeof(double) * ncp.width);
    selected_impulse(ncp, mode, shortest, w.spare, w.selection);
    return if_lawful(ncp, w, w.spare, tol);
  };
  if (slides) {
    if (share < SUSPECT) return;
    out.selected = lawful(w.mode, true);
    out.degenerate = w.selection.elimination.rank < w.selection.elimination.n;
    if (!out.selected && out.degenerate) lawful(w.mode, false);
    return;
  }
  // Contacts that slide slowly stick in the modes of the solution; and a small pivot may hide a null space that others show.
  const bool slow = slow_contacts_slide(p, w), plain = !slow && (share > DEGENERATE || share < SUSPECT);
  out.degenerate = (plain ? share : share_of_eps(ncp, w.mode, w)) > DEGENERATE;
  if (slow) out.selected = !out.degenerate;  // the limit is there but for eps
  if (slow || share < SUSPECT) return;
  without_null_space(ncp, w.factor, w.best, w.spare.x);
  if (w.factor.slides) refine(ncp, w.spare, w.factor, w.newton, search.rounding);  // back onto the circles
  out.selected = if_lawful(ncp, w, w.spare, tol);
}

// Solves nu = G lambda + g under the law; init (m,) is a start or null and has no influence on which solution is returned.
inline ContactSolution solve_contacts(const ContactProblem& problem, const double* init, const ContactOptions& options,
                                      ContactWorkspace& w) {
  const int m = problem.rows();
  w.reserve(m);
  w.factor.valid = false;
  const Ncp ncp = scaled(problem, w.rho);
  const double rounding = 100 * MACHINE * ncp.approach;
  Search search{ncp, w, options, std::min(0.01 * options.tolerance * ncp.approach, 100 * rounding), rounding};
  ContactSolution out{};
  const bool usable = finite(problem) && ncp.approach < LARGEST_VELOCITY;
  if (usable) {
    better_start(ncp, w, init);
    search.run(w.start, !init);
  } else {
    std::memset(w.best.x, 0, sizeof(double) * ncp.width);
  }
  out.selected = true;
  const bool slides = search.slides();
  std::memcpy(w.selecting_mode, w.mode, sizeof(int) * modes_count(problem));
  if (usable) select(ncp, w, search, options.tolerance, slides, out);
  out.residual = usable ? search.residual(w.best) : std::nan("");
  out.lambda = w.best.x, out.nu = w.best.nu;
  out.cone_mode = w.mode, out.limit_mode = w.mode + problem.contacts, out.dry_mode = out.limit_mode + problem.limits;
  out.iterations = search.iterations, out.stage = search.stage;
  out.status = std::max(out.residual, search.lowest) <= options.tolerance ? ContactStatus::solved
               : !std::isfinite(out.residual)    ? ContactStatus::non_finite
               : search.proof == NO_SOLUTION     ? ContactStatus::infeasible
                                                 : ContactStatus::stalled;
  return out;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
