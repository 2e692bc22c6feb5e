// Solution of the contact problem: Newton, what follows where it fails, selection, and an honest status.
//
// Order of attempts, each only where the one before did not end with a residual within the tolerance:
//
// 1. Newton on the regularised problem, from the better of the given start and zero: a step on the natural map, then in the modes
//    that it has found and their revisions (in_modes.h); where that leads nowhere, on the natural map to the end, after a stall from
//    where the first mode changes on the way of its step, six times at most; where contacts rest on others that approach, before all
//    of these in modes in which they are held;
// 2. near a solution the path of the regularised problem (path.h): contacts contradict each other, by what sweeps do not see;
// 3. rounds of block Gauss-Seidel with exact one-contact solutions (10, 20, 40 sweeps), each followed by Newton from its result;
// 4. one round with contacts that jam where they also could open, one through the contacts in the other order, one with both;
// 5. continuation, Newton with eps falling from a million times its value, each started from the last; longer rounds;
// 6. the path, where it has not been followed yet;
// 7. restarts from random impulses of a fixed sequence, every one with one round or with Newton alone.
//
// Wherever the regularised problem is solved but leaves a residual in the problem itself, it is solved again with a weaker
// regularisation around the last solution (a proximal point method). A point near a solution whose residual stays is taken to one by
// Newton on the problem itself and by `creep`, for contacts that slip by less than the natural map resolves. Whatever came out is
// freed of the regularisation by iterative refinement, and the residual is recomputed from scratch.
#pragma once
#include <algorithm>
#include <cstdint>

#include "contact_workspace.h"
#include "gauss_seidel.h"
#include "in_modes.h"
#include "no_solution.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

enum class ContactStatus : int { solved, stalled, infeasible, non_finite };

constexpr double TOLERANCE = 1e-10;      // residual of a solved problem
constexpr double TIE = 1e-11, SLOW = 1e-6;  // relative to the approaching velocities, see `cone_mode`
constexpr int MOST_ITERATIONS = 50;
constexpr int BUDGET = 2000;             // iterations, all attempts together, after which none begins; a recorded problem takes 1,274
constexpr double LARGEST_VELOCITY = 1e100;  // of approach: products of four overflow far below the largest double
constexpr int FIRST_STEPS = 1;           // on the natural map, before Newton's method is tried in the modes that they have found
constexpr int SWEEPS = 10;               // of the first round, doubled with every round
constexpr int SHORT_ROUNDS = 3, ROUNDS = 6;
constexpr double STILL = 1e-9;           // change in a sweep, relative to the approaching velocities, that ends it
constexpr int RESTARTS = 100;            // from random impulses, the last resort
constexpr int CONTINUATION = 6;          // decades of eps
constexpr int WEAKENINGS = 8, WEAKEST = 4;
constexpr double NEAR = 1e-3, AT_HAND = 1e-7;  // residual of a point that may be near a solution, and of one that seems to be
constexpr int RANK_ITERATIONS = 20;      // of Newton's iteration on the problem itself, from the former
constexpr int PATIENCE = 1500;           // and from the latter, all attempts together: along circles it is slow, and gets there
constexpr double CREEPS = 1e-5;          // residual from which on contacts that creep are looked for
constexpr double SOONER = 0.5;           // and by how much it has to be smaller to look again
constexpr int CREEPING = 600;            // iterations on them, all attempts together
constexpr double CLOSER = 1e-2;          // a weaker regularisation has to bring this much, or a solution, to be kept
constexpr double DEGENERATE = 1e-3;      // eps over the smallest pivot of K from which on K has a null space where contacts are held
constexpr double SUSPECT = 1e-5;         // the same from which on the rank of K is looked at

struct ContactOptions {
  double tolerance = TOLERANCE;
  int max_iterations = MOST_ITERATIONS;
  int budget = BUDGET;
};

// lambda, nu (padded), modes as in `classify`; pointers into the workspace, valid until its next use.
struct ContactSolution {
  double *lambda, *nu;
  int *cone_mode, *limit_mode, *dry_mode;
  double residual;
  int iterations, fallbacks;
  ContactStatus status;
  bool degenerate, selected;
};

// The attempts on one problem: the best impulse so far and how it was found.
struct Search {
  const Ncp& ncp;
  ContactWorkspace& w;
  ContactOptions options;
  double inner, rounding;  // velocities to which the regularised problem and the refinement are taken
  double lowest = HUGE_VAL;
  int iterations = 0, patience = PATIENCE, creeping = CREEPING;
  double crept = HUGE_VAL;  // the smallest residual from which that was tried
  bool followed = false;        // the path
  Proof proof = NO_PROOF;

  // Iterations that may still be taken: with none left no attempt begins.
  int left() const { return std::max(0, options.budget - iterations); }

  double residual(const Point& at) const {
    return violation(Regularised{ncp}, at.F) / velocity_scale(ncp, at.x, options.tolerance);
  }

  // Newton's iteration on the problem itself from the spare point, at most so often; its residual.
  double without_regularisation(int most) {
    newton_of_rank(ncp, w.spare, w.newton, w.selection, rounding, most, iterations);
    return residual(w.spare);
  }

  // The same with contacts that creep, from a spare point of residual `size`; the residual of what the spare point is then.
  double creeping_contacts(double size) {
    const int before = iterations;
    crept = size;
    const auto lawful = [&](const Point& at) { return residual(at) <= options.tolerance; };
    if (creep(ncp, w.spare, w.creep, w.newton, w.selection, rounding, iterations, lawful)) {
      std::swap(w.spare, w.creep.at);
      size = residual(w.spare);
    }
    creeping -= iterations - before;
    return size;
  }

  // Refines the current point, keeps it if it is the best; whether it solves the problem. A point near a solution whose refinement
  // ends early, because eps hides a change of mode or K is ill-conditioned, gets Newton's iterations on the problem itself.
  bool keep(double share = 1.0) {
    std::memcpy(w.spare.x, w.current.x, sizeof(double) * ncp.width);
    refine(ncp, w.spare, w.factor, w.newton, rounding);
    return settle(share);
  }

  // The same with the spare point, which is refined already.
  bool settle(double share = 1.0) {
    double size = residual(w.spare);
    if (size > options.tolerance && size < NEAR) size = without_regularisation(RANK_ITERATIONS);
    if (size > options.tolerance && size < std::min(CREEPS, SOONER * crept) && creeping > 0) size = creeping_contacts(size);
    if (size > options.tolerance && size < AT_HAND && patience > 0) {
      const int before = iterations;
      size = without_regularisation(std::min(patience, left()));
      patience -= iterations - before;
    }
    if (size <= options.tolerance) {
      const Proof against = proof_against(ncp, w.spare, w.newton.trial.x, w.newton.trial.nu);
      if (against != NO_PROOF) proof = std::max(proof, against), size = 1.0;  // as far off as no impulse at all
    }
    if (size <= options.tolerance || size < share * lowest || lowest == HUGE_VAL) {
      std::swap(w.best, w.spare);
      lowest = size;
    }
    return size <= options.tolerance;
  }

  // Weaker regularisations around the last solution, from the current one on. Without a solution the steps from one to the next
  // follow a ray of impulses that nothing resists.
  bool weaken() {
    std::memcpy(w.anchor, w.current.x, sizeof(double) * ncp.width);
    for (int k = 1; k <= WEAKENINGS && left() > 0; ++k) {
      const double weight = ncp.eps * std::pow(10.0, -std::min(k, WEAKEST));
      const Regularised centred{ncp, weight, ncp.eps / weight, w.anchor};
      evaluate(centred, w.current);
      factorise(centred, w.current.x, w.current.nu, w.newton.mode, w.factor);
      solve_law(centred, w.factor, w.current.x, w.current.nu, w.current.F, w.newton.step);
      const double length = (1 + BEYOND) * first_event(centred, w.current, w.newton.step, w.newton.trial.x, w.newton.trial.nu);
      for (int r = 0; r < ncp.width; ++r) w.current.x[r] -= length * w.newton.step[r];
      const bool found = newton(centred, w.current, w.factor, w.newton, inner, options.max_iterations, EVENTS, false, iterations);
      if (keep(CLOSER)) return true;
      for (int r = 0; r < ncp.width; ++r) w.spare.x[r] = w.current.x[r] - w.anchor[r];
      proof = std::max({proof, ray(ncp, w.spare.x, w.spare.nu), ray(ncp, w.current.x, w.spare.nu)});
      if (proof == NOTHING_HELPS) return false;
      std::memcpy(found ? w.anchor : w.current.x, found ? w.current.x : w.anchor, sizeof(double) * ncp.width);
    }
    return false;
  }

  // Newton on the regularised problem from `from`, and weaker ones where it leaves a residual.
  bool attempt(const double* from) {
    std::memcpy(w.current.x, from, sizeof(double) * ncp.width);
    const Regularised regular{ncp, ncp.eps};
    const auto on_the_map = [&](int most, int events) {
      return newton(regular, w.current, w.factor, w.newton, inner, most, events, true, iterations);
    };
    const auto in_modes = [&](Resting resting) {
      if (!newton_in_modes(regular, w.current, w.creep, w.factor, inner, iterations, resting)) return false;
      factorise(regular, w.current.x, w.current.nu, w.newton.mode, w.factor);
      return true;
    };
    bool found = false;
    if (rests(ncp)) evaluate(regular, w.current), found = in_modes(Resting::HELD);
    found = found || on_the_map(std::min(FIRST_STEPS, options.max_iterations), 0) || in_modes(Resting::AS_FOUND);
    if (!found) found = on_the_map(options.max_iterations, EVENTS);
    if (!keep()) return found && weaken();
    if (!found) regularised_from_best();
    return true;
  }

  // The modes of the best point, and whether a contact slides in them.
  bool slides() {
    const Regularised law{ncp};
    evaluate(law, w.best);
    classify(law, w.best.x, w.best.nu, w.mode, TIE, SLOW * ncp.approach);
    return std::any_of(w.mode, w.mode + ncp.problem.contacts, [](int mode) { return mode == SLIDING; });
  }

  // Of a solution found without eps: the regularised problem, which decides between many, from there; where Newton does not end
  // there, from the solution with a larger eps.
  void regularised_from_best() {
    for (int larger = 0; larger <= CONTINUATION / 2; ++larger) {
      std::memcpy(w.current.x, w.best.x, sizeof(double) * ncp.width);
      for (int k = larger; k >= 0; --k) {
        const Regularised regular{ncp, ncp.eps * std::pow(10.0, k)};
        const bool found = newton(regular, w.current, w.factor, w.newton, inner, options.max_iterations, EVENTS, true, iterations);
        if (k == 0 && found) return (void)keep();
      }
    }
  }

  // Sweeps of w.swept, then Newton from where they end.
  bool round(int sweeps, bool jam, bool backwards) {
    if (left() == 0) return false;
    const Regularised regular{ncp, ncp.eps};
    double change = HUGE_VAL;
    for (int k = 0; k < sweeps && change > STILL * ncp.approach; ++k) change = sweep(regular, w.swept, jam, backwards);
    return attempt(w.swept);
  }

  // Random impulses in the cones from a fixed sequence, about as large as what stops the contact alone; half of the contacts open.
  void scatter(uint64_t& state) {
    auto uniform = [&] {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return (double)(state >> 11) * 0x1p-53;
    };
    const ContactProblem& p = ncp.problem;
    std::memset(w.swept, 0, sizeof(double) * ncp.width);
    const double size = std::pow(10.0, 2 * uniform() - 1);
    for (int c = 0; c < p.contacts; ++c) {
      const double open = uniform(), press = uniform(), angle = 2 * M_PI * uniform(), share = uniform();
      if (open < 0.5) continue;
      const double normal = size * press * ncp.approach * ncp.rho[3 * c + 2], tangent = share * p.mu[c] * normal;
      w.swept[3 * c] = tangent * std::cos(angle), w.swept[3 * c + 1] = tangent * std::sin(angle), w.swept[3 * c + 2] = normal;
    }
  }

  // The stages after the first attempt, short ones first; `used` is the stage that ended it.
  bool fallbacks(int& used) {
    auto from_zero = [&] { std::memset(w.swept, 0, sizeof(double) * ncp.width); };
    auto longer = [&](int from, int to) {  // rounds from..to of the plain sweeps, each twice as long as the one before
      for (int k = from; k < to; ++k)
        if (round(SWEEPS << k, false, false)) return true;
      return false;
    };
    used = 1;
    if (proof == NOTHING_HELPS) return false;
    if (lowest < NEAR && along_path()) return true;
    from_zero();
    if (longer(0, SHORT_ROUNDS)) return true;
    used = 2;
    for (int way = 1; way < 4; ++way) {  // with contacts that jam, backwards, both
      from_zero();
      if (round(2 * SWEEPS, way & 1, way & 2)) return true;
    }
    used = 3;
    if (continuation()) return true;
    from_zero();
    if (longer(SHORT_ROUNDS, ROUNDS)) return true;
    used = 4;
    if (along_path()) return true;
    used = 5;
    uint64_t state = 1;
    for (int k = 0; k < RESTARTS && left() > 0 && proof != NOTHING_HELPS; ++k) {
      scatter(state);
      if (k % 4 == 0 ? attempt(w.swept) : round(SWEEPS, k % 2, k % 4 == 2)) return true;
    }
    return false;
  }

  // The end of the path of the regularised problem, which is followed once.
  bool along_path() {
    if (followed || left() == 0) return false;
    followed = true;
    return std::any_of(std::begin(STRIDES), std::end(STRIDES), [&](double longest) { return end_of_path(longest, 0.0); });
  }

  // The same in steps no longer than `longest`, from w.creep at an eps of `from` or, where that is zero, from the beginning.
  bool end_of_path(double longest, double from) {
    const auto lawful = [&](const Point& at) { return residual(at) <= options.tolerance; };
    const auto finish = [&] { creep_newton(ncp, w.creep, w.selection, w.newton.rest, rounding, iterations); };
    // If it does not end at a solution, it may be at one that is near.
    Path(ncp, w.creep, w.path, iterations).follow(longest, from, std::min(PATH_STEPS, left()), lawful, finish);
    std::swap(w.spare, w.creep.at);
    evaluate(Regularised{ncp}, w.spare);
    if (!settle()) return false;
    regularised_from_best();
    return true;
  }

  bool continuation() {
    if (left() == 0) return false;
    std::memset(w.start, 0, sizeof(double) * ncp.width);
    std::memset(w.current.x, 0, sizeof(double) * ncp.width);
    for (int k = CONTINUATION; k > 0; --k) {
      const Regularised regular{ncp, ncp.eps * std::pow(10.0, k)};
      newton(regular, w.current, w.factor, w.newton, inner, options.max_iterations, EVENTS, true, iterations);
    }
    std::memcpy(w.start, w.current.x, sizeof(double) * ncp.width);
    return attempt(w.start);
  }
};

// `init` if its merit is lower than that of zero impulse (NaN counts as worse), else zero; into w.start.
inline void better_start(const Ncp& ncp, ContactWorkspace& w, const double* init) {
  std::memset(w.start, 0, sizeof(double) * ncp.width);
  if (!init) return;
  const Regularised regular{ncp, ncp.eps};
  bool zero = true;
  for (int r = 0; r < ncp.m; ++r) zero &= init[r] == 0.0;
  if (zero) return;
  std::memset(w.current.x, 0, sizeof(double) * ncp.width);
  evaluate(regular, w.current);
  const double without = w.current.merit;
  with_padding(ncp, init, w.current.x);
  evaluate(regular, w.current);
  if (w.current.merit < without) with_padding(ncp, init, w.start);
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

// eps over the smallest pivot of K for G + eps I in `mode`.
inline double share_of_eps(const Ncp& ncp, const int* mode, ContactWorkspace& w) {
  SelectionScratch& s = w.selection;
  Elimination& e = s.elimination;
  bool slides;
  e.n = held_rows(ncp.problem, mode, s.held, slides), e.ld = padded(e.n);
  gather(ncp.problem, s.held, e.n, e.U, e.ld);
  law_matrix(Regularised{ncp, ncp.eps}, mode, w.best.x, w.best.nu, s.held, e.n, e.U, e.ld);
  eliminate(e, !slides);
  return e.n ? REGULARISATION * e.inverse[0] / e.smallest : 0.0;
}

// w.selecting_mode: the modes of the solution, but that contacts slide which stick in it and creep along their cones in that of the
// regularised problem; whether there are any.
inline bool creeping_contacts(const ContactProblem& p, ContactWorkspace& w) {
  bool creeps = false;
  for (int c = 0; c < p.contacts; ++c)
    if (w.mode[c] == STICKING && w.factor.mode[c] == SLIDING) w.selecting_mode[c] = SLIDING, creeps = true;
    else w.selecting_mode[c] = w.mode[c];
  return creeps;
}

// Puts the selected solution in place of w.best, and whether it is the shortest in its modes. Where the shortest breaks the law,
// because a contact that does not move would leave its cone or one that slides would turn back, it is the limit of the regularised
// problem's solution, in which the former creep along their cones.
inline void select(const Ncp& ncp, ContactWorkspace& w, Search& search, double tol, bool slides, ContactSolution& out) {
  const ContactProblem& p = ncp.problem;
  const double share = REGULARISATION * (w.factor.weight / ncp.eps) / w.factor.weakest;
  const bool differs = std::memcmp(w.mode, w.factor.mode, sizeof(int) * modes_count(p)) != 0;
  if (w.factor.n == 0 || (share < SUSPECT && !differs)) return;
  const auto lawful = [&](const int* mode, bool shortest) {
    std::memcpy(w.spare.x, w.best.x, sizeof(double) * ncp.width);
    selected_impulse(ncp, mode, shortest, w.spare, w.selection);
    return if_lawful(ncp, w, w.spare, tol);
  };
  if (slides && share >= SUSPECT) {
    out.selected = lawful(w.mode, true);
    out.degenerate = w.selection.elimination.rank < w.selection.elimination.n;
    if (out.selected || !out.degenerate) return;
  } else if (!slides) {
    // Contacts that creep stick in the modes of the solution; and a small pivot may hide a null space that others show.
    const bool plain = !creeping_contacts(p, w) && (share > DEGENERATE || share < SUSPECT);
    out.degenerate = (plain ? share : share_of_eps(ncp, w.mode, w)) > DEGENERATE;
  }
  const bool regular = w.factor.slides && w.factor.weight == ncp.eps;
  if (regular) {
    polish(Regularised{ncp, ncp.eps}, w.current, w.factor, w.newton);
    std::swap(w.current, w.spare);
    refine(ncp, w.spare, w.factor, w.newton, search.rounding);
    if_lawful(ncp, w, w.spare, tol);
  }
  if (!slides && creeping_contacts(p, w)) {
    if (!out.degenerate) return;
    out.selected = false;
    if (!regular) lawful(w.selecting_mode, false);  // else it is there but for eps
    return;
  }
  if (share < SUSPECT) return;
  if (slides) return (void)lawful(w.mode, false);
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
    if (!search.attempt(w.start)) search.fallbacks(out.fallbacks);
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
  out.iterations = search.iterations;
  out.status = std::max(out.residual, search.lowest) <= options.tolerance ? ContactStatus::solved
               : !std::isfinite(out.residual)    ? ContactStatus::non_finite
               : search.proof != NO_PROOF        ? ContactStatus::infeasible
                                                 : ContactStatus::stalled;
  return out;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
