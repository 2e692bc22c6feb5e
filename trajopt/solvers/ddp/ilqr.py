"""iLQR and DDP for `OptimalControlProblem`.

An iteration makes a quadratic model of cost and dynamics along the motion, solves it by a Riccati pass and follows the
policy with a line search (`iteration` has the rules). iLQR linearises the dynamics and takes Gauss-Newton Hessians of
residuals (exact ones of general costs); DDP adds the second derivatives of the dynamics, contracted with the costates,
and exact Hessians throughout, so that it converges quadratically. States on manifolds are handled in their
tangent coordinates, a free initial state and free parameters are part of the minimisation.

Controls are kept in their bounds by projected Newton in the pass. All other constraints, bounds on states included, enter
through an augmented Lagrangian (`augmented_lagrangian`): when the stationarity is small beside what new multipliers would change
(`PenaltyRule.inner_tolerance`), or a full step gained little beside it, multipliers and penalties are updated.

With gradient="complementarity-aware" the dynamics are linearised in the contact labels that the costates ask for
(`local_model`). What is certified then is exact: stationarity and costates are recomputed with implicit derivatives.

Li, Todorov 2004; Jacobson, Mayne 1970; Tassa, Mansard, Todorov, ICRA 2014 (bounds); Mastalli et al., Crocoddyl, ICRA 2020
(feasibility-driven multiple shooting).
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import numpy as np

from trajopt.dynamics.effort import Effort
from trajopt.names import NamedOptions
from trajopt.options import check_options
from trajopt.problems.expansions import aware_dynamics, reason_not_smooth, relabels, twice_differentiable
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.oracle import OptimalControlOracle, lacks_influence
from trajopt.problems.programs import KEPT_PROGRAMS
from trajopt.result import Status, status_name
from trajopt.solvers.ddp.braking import can_brake
from trajopt.solvers.ddp.curvature import Curvature
from trajopt.solvers.ddp.iteration import DAMPING, Iteration
from trajopt.solvers.ddp.local_model import LocalModel, Modeller, runs_native
from trajopt.solvers.ddp.passes import Passes, Summary
from trajopt.solvers.ddp.replanning import GradientPlanner, Replanning
from trajopt.solvers.ddp.state import DDPState, Start, gives_states
from trajopt.solvers.loop.contract import GOING_ON, Findings, default_tolerance, status_of
from trajopt.solvers.subproblems.augmented_lagrangian import Constraints, PenaltyRule, estimate
from trajopt.solvers.subproblems.carried import carried_rule

DEFAULT_EXPONENT = 0.7  # stationarity to 1e-7 in float64, 3e-4 in float32
RELAXED_EXPONENT = 0.6  # `acceptable` asks for the default tolerance to this power
SUFFICIENT_FALL = 0.1  # a violation above this fraction of the last one raises the penalty


@dataclasses.dataclass(frozen=True)
class _DifferentialDynamicProgramming(NamedOptions):
    takes: ClassVar[tuple[type, ...]] = (OptimalControlProblem,)

    tolerance: float | None = None
    max_iterations: int = 500
    shooting: str = "auto"
    regularisation: str = "control"
    damping: float = 0.0
    gain_damping: float = 0.0
    curvature: str = "secant"
    penalty: float = 10.0
    penalty_factor: float = 10.0
    max_penalty: float = 1e8
    max_inner_iterations: int = 100
    smoothing: Any = "auto"

    def __post_init__(self) -> None:
        check_options(
            self,
            shooting=("auto", "single", "multiple"),
            regularisation=("control", "state"),
            curvature=("secant", "none"),
            tolerance="(0, inf)",
            penalty="(0, inf)",
            max_penalty="(0, inf)",
            penalty_factor="(1, inf)",
            max_iterations="[0, inf)",
            max_inner_iterations="[1, inf)",
            damping=f"[0, {DAMPING[1]}]",
            gain_damping=f"[0, {DAMPING[1]}]",
        )

    @property
    def name(self) -> str:
        return type(self).__name__.lstrip("_")

    @property
    def _second_order(self) -> bool:
        return False

    def _iteration(self, oracle: OptimalControlOracle) -> Iteration:
        return self.iteration_of(oracle.problem, oracle.gradient)

    def iteration_of(self, problem: OptimalControlProblem, gradient: str) -> Iteration:
        """The program of one iteration for a problem in a gradient mode."""
        second = self._second_order and twice_differentiable(problem)
        exact = not relabels(problem, gradient)  # other labels are directions to search in, and no gradients
        multiple = self.shooting == "multiple"
        # The gradient by the feed-forward of the policy: a motion with gaps is one that no rollout of controls repeats.
        followed = (multiple or self.regularisation == "state") and not twice_differentiable(problem)
        return Iteration(
            Modeller(problem, gradient, multiple, second, followed, runs_native(problem)),
            damp_state=self.regularisation == "state",
            curvature=self._curvature(problem) if exact else Curvature(),
        )

    def _curvature(self, problem: OptimalControlProblem) -> Curvature:
        """Of smooth dynamics DDP computes all, iLQR learns; of steps through contact, by differences of the compiled core's
        derivatives, likewise."""
        smooth = twice_differentiable(problem)
        if self._second_order and smooth:
            return Curvature("computed")
        if self.curvature == "none" or (not smooth and (not runs_native(problem) or problem.n_p)):
            return Curvature()
        if smooth:
            return Curvature("learnt")
        return Curvature("computed" if self._second_order else "within modes")

    def replanning(self, oracle: OptimalControlOracle, offers: bool = False) -> GradientPlanner:
        """One iteration from a measured state, as a receding horizon repeats it; offers: whether another motion may be offered.

        Raises `OptionError` for problems and options that it cannot take.
        """
        iteration = self.iteration_of(oracle.problem, oracle.gradient)
        modeller = dataclasses.replace(iteration.modeller, followed=False)
        curvature = iteration.curvature if iteration.curvature.kind == "computed" else Curvature()
        plain = dataclasses.replace(iteration, modeller=modeller, curvature=curvature)
        replanning = Replanning(
            plain, self.damping, carried_rule(self.penalty, self.penalty_factor), can_brake(oracle.problem), self.gain_damping
        )
        return GradientPlanner(replanning, oracle.effort, offers)

    # -- the four methods of a solver ----------------------------------------------------------------------------------

    def init(self, oracle: OptimalControlOracle, guess: Trajectory, key: jax.Array) -> DDPState:
        """The model along the initial motion: the rollout, or in multiple shooting the states given."""
        problem = oracle.problem
        if relabels(problem, oracle.gradient):
            aware_dynamics(problem)  # refuses what it cannot linearise
        dtype = problem.dtype
        xs = np.array(guess.xs, dtype)
        if not problem.free_initial_state:
            xs[0] = problem.x0
        us = np.clip(guess.us, problem.control_lower, problem.control_upper).astype(dtype)
        motion = Trajectory(xs, us, np.asarray(guess.p, dtype))
        start, given, at_rest = Start(problem, self.shooting), gives_states(problem, xs), False
        if start.chooses and not given:
            found = oracle.call(Start.motion, start, motion, np.asarray(given), effort=Effort.QUICK)
            (motion, at_rest), oracle.evaluations = jax.tree.map(np.asarray, found), oracle.evaluations + 1
        elif self.shooting != "multiple" or not given:
            motion = oracle.rollout(motion.xs[0], motion.us, motion.p)
        chosen = self.started(bool(at_rest))
        progress = chosen.passes(oracle.problem, oracle.gradient).blank(motion, self.penalty, self.damping)
        gains = np.zeros((problem.horizon, problem.nu, problem.n), dtype)
        return chosen._passed(oracle, DDPState(motion, 0.0, 0.0, 0.0, 0.0, progress, gains, bool(at_rest)), act=False)

    def started(self, at_rest: bool) -> Any:
        """The solver that goes on from a start: in multiple shooting from states that stay."""
        return dataclasses.replace(self, shooting="multiple") if at_rest else self

    def tolerance_of(self, problem: OptimalControlProblem) -> float:
        """Of the stationarity, relative to its scale."""
        return self.tolerance or default_tolerance(problem.dtype) ** DEFAULT_EXPONENT

    def passes(self, problem: OptimalControlProblem, gradient: str) -> Passes:
        """The rules of the iteration for a problem in a gradient mode."""
        return Passes(
            self.iteration_of(problem, gradient),
            self.rule(problem),
            self.tolerance_of(problem),
            self.relaxed(problem),
            self.max_inner_iterations,
        )

    def _passed(self, oracle: OptimalControlOracle, state: DDPState, act: bool) -> DDPState:
        """The state after passes up to an accepted step or the end, or, without `act`, with its model made anew."""
        passes = _kept_passes(self.started(bool(state.starts_at_rest)), oracle.problem, oracle.gradient)
        progress, gains, summary = oracle.call(Passes.step, passes, np.asarray(act), state.progress, effort=oracle.effort)
        now = Summary(*np.asarray(summary).tolist())
        oracle.evaluations += int(now.trials) + int(now.passes) * oracle.cost_of_linearization
        ended = act and not (now.accepted or now.converged or now.code == GOING_ON)
        return dataclasses.replace(
            state,
            x=jax.tree.map(np.asarray, progress.iterate.motion),
            cost=now.cost,
            violation=now.violation,
            gradient_norm=now.stationarity,
            step_size=now.step_size,
            progress=progress,
            gains=np.asarray(gains) if now.accepted else state.gains,
            halt=status_name(status_of(int(now.code))) if ended else "",
        )

    def step(self, oracle: OptimalControlOracle, state: DDPState) -> DDPState:
        """One accepted step, after an update of the multipliers where one is due; or the same point with `halt` set."""
        return self._passed(oracle, state, act=True)

    def rule(self, problem: OptimalControlProblem) -> PenaltyRule:
        """How multipliers and penalties are updated."""
        tolerance = 0.1 * problem.tolerance
        return PenaltyRule(Constraints(problem), self.penalty_factor, self.max_penalty, tolerance, SUFFICIENT_FALL)

    def relaxed(self, problem: OptimalControlProblem) -> float:
        """The stationarity, relative to its scale, that is `acceptable`."""
        return default_tolerance(problem.dtype) ** RELAXED_EXPONENT

    def terminate(self, oracle: OptimalControlOracle, state: DDPState) -> Status | None:
        """Solved when stationary and feasible, a failure when `step` gave up, else None; a guess that is stationary only since no
        control changes the cost of the states has no influence."""
        code = int(state.progress.code)
        if state.converged and state.step_size == 0:
            slope, B, costates = (np.asarray(a) for a in (state.model.lq.q, state.model.lq.B, state.model.costates))
            if lacks_influence(slope, B, costates, float(state.model.scale)):
                return Status.no_influence
        return None if code == GOING_ON else status_of(code)

    def finish(self, oracle: OptimalControlOracle, state: DDPState) -> Findings:
        """Stationarity and complementarity, recomputed with the multipliers of the answer."""
        if bool(state.starts_at_rest) and self.shooting != "multiple":
            return self.started(True).finish(oracle, state)
        anew = self._passed(oracle, state, act=False)
        model = anew.model
        aware = relabels(oracle.problem, oracle.gradient)
        if aware:
            model = self._exact_model(oracle, state)
        stationarity = float(model.stationarity)
        measures = {"stationarity": stationarity} | ({"aware_stationarity": anew.gradient_norm} if aware else {})
        constraints = self._iteration(oracle).modeller.constraints
        parts = dict(zip(("stage", "terminal"), constraints.parts(state.multipliers, model.rows), strict=True))
        multipliers = {key: np.asarray(estimate(*part)) for key, part in parts.items()}
        if any(part[3].any() for part in parts.values()):
            slack = [np.minimum(multipliers[key], -np.asarray(part[2]))[..., part[3]] for key, part in parts.items()]
            measures["complementarity"] = max(float(np.max(part, initial=0.0)) for part in slack)
        notes = []
        if self._second_order and not twice_differentiable(oracle.problem):
            notes.append(self._without_second_derivatives(oracle.problem))
        allowed = self.tolerance_of(oracle.problem) * float(model.scale)
        relaxed = self.relaxed(oracle.problem) * float(model.scale)
        claimed = state.converged or (aware and anew.gradient_norm <= relaxed)
        lacking = claimed and not stationarity <= (2.0 * allowed if state.converged else relaxed)
        if aware and (lacking or not state.converged):
            notes.append(
                "complementarity-aware derivatives are directions to search in: go on from here with gradient='implicit' "
                f"(exact stationarity {stationarity:.3g}, allowed {allowed:.3g})"
            )
        multipliers |= {"dynamics": np.asarray(model.costates)}
        return Findings(
            residuals=measures,
            shortfalls=[f"stationarity is {stationarity:.3g}, allowed {allowed:.3g}"] if lacking else [],
            notes=notes,
            fields={"multipliers": multipliers, "gains": np.asarray(state.gains)},
        )

    def _without_second_derivatives(self, problem: OptimalControlProblem) -> str:
        subject = "contact" if problem.has_contact else reason_not_smooth(problem)
        if not self._curvature(problem).present:
            return f"{subject} defines no second derivatives: Gauss-Newton Hessians (iLQR) were used"
        return (
            f"{subject} defines no second derivatives: differences of the first within contact modes, and Gauss-Newton Hessians "
            "of costs, were used"
        )

    def _exact_model(self, oracle: OptimalControlOracle, state: DDPState) -> LocalModel:
        """The model at the state's motion with exact derivatives, whatever those of the iteration are."""
        problem, modeller = oracle.problem.with_gradient("implicit"), self._iteration(oracle).modeller
        exact = dataclasses.replace(modeller, problem=problem, gradient="implicit")
        return oracle.call(Modeller.expand, exact, state.progress.iterate.motion, state.multipliers)


@functools.lru_cache(maxsize=KEPT_PROGRAMS)
def _kept_passes(solver: _DifferentialDynamicProgramming, problem: OptimalControlProblem, gradient: str) -> Passes:
    """The same object for every iteration, so that what its programs depend on is looked up once."""
    return solver.passes(problem, gradient)


_OPTIONS = """
    Options:
        tolerance: largest $|dH/du|$ over the controls not held at a bound, relative to max(1, the largest sum of magnitudes
            that cancel in it). Default: 1e-7 in float64, 3e-4 in float32. Violations have the problem's own tolerance.
        max_iterations: largest number of iterations.
        shooting: "single" rolls out the controls; "multiple" starts from `xs0`, which need not obey the dynamics, and closes
            the defects. "auto" is single, with one exception: if no states are given, the dynamics are smooth and the guess
            costs more than ten times staying at x_0, it starts from staying there, in multiple shooting.
        regularisation: the damping is added to the Hessian by "control" or by "state". Through contact "state" takes no
            step below 1/8, and more damping instead.
        damping: its first value. It is multiplied by 10 when a pass is not convex, when no step length is accepted, or when
            the accepted one is below 0.1, also with a half, a quarter and none of the dynamics' curvature (from zero: set to
            1e-6 or, by iLQR on smooth dynamics, to 1 % of the curvature along the step). It is divided by 10 after a step of
            at least 0.5, and becomes 0 below 1e-6.
        gain_damping: added to R_t where a receding horizon makes the gains of a plan, whatever damping its step has. Grasps ask
            for it: the gains of a plan hold as long as its contacts do.
        curvature: of smooth dynamics: "secant", estimated from the steps, or "none", pure Gauss-Newton. DDP computes it.
            Through contact "none" leaves it out in both.
        penalty: first penalty of the augmented Lagrangian.
        penalty_factor: factor by which a penalty grows.
        max_penalty: largest penalty.
        max_inner_iterations: largest number of iterations between two updates of the multipliers.
        smoothing: stages of relaxed contact, which acts at a distance: falling values of rho (J); "auto": used if rigid contact
            alone misses a goal or has no influence, from a first rho that follows from the guess; None: rigid contact alone.

    Raises `OptionError` for unusable options, and for a problem that is no `OptimalControlProblem`.
"""


@dataclasses.dataclass(frozen=True)
class iLQR(_DifferentialDynamicProgramming):
    __doc__ = "Iterative LQR: DDP with linearised dynamics and Gauss-Newton Hessians of residuals.\n" + _OPTIONS


@dataclasses.dataclass(frozen=True)
class DDP(_DifferentialDynamicProgramming):
    __doc__ = (
        "Differential dynamic programming: second derivatives of dynamics, costs and constraints.\n\n"
        "    Where the dynamics have none (contact), it does what iLQR does and says so.\n" + _OPTIONS
    )

    @property
    def _second_order(self) -> bool:
        return True
