"""Multiple shooting: states at the nodes, controls and parameters are found together by IPOPT.

The motion inside an interval of `interval` steps is a rollout; between intervals it may have gaps, which are constraints.
Long intervals make a small program with dense blocks; short ones a large, sparse and less non-linear one.

States on manifolds are counted in tangent coordinates about a reference motion. When one of them has turned so far (two
radians) that its coordinates are no longer close to tangent ones, IPOPT is stopped, the reference is moved to the present
motion, the multipliers of the defects are carried over, and IPOPT goes on from there with a warm start.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from trajopt.errors import OptionError
from trajopt.options import check_options
from trajopt.problems.expansions import COMPLEMENTARITY, relabels, twice_differentiable
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.result import Status, status_name, status_named
from trajopt.solvers.loop.contract import Advance, Findings, LibrarySolver, SolverState, ended_by, place_of_step
from trajopt.solvers.loop.solution import Solution
from trajopt.solvers.shooting import ipopt
from trajopt.solvers.shooting.functions import EXACT, GAUSS_NEWTON, HESSIANS, LIMITED_MEMORY
from trajopt.solvers.shooting.ipopt import Multipliers
from trajopt.solvers.shooting.nlp import Shooting

LARGEST_KKT_RESIDUAL = 1e-4  # of a success, relative to the largest slope of the cost or 1
LARGEST_DEPARTURE = 0.9  # of the coordinates from tangent ones, see `Shooting.departure`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MultipleShootingState(SolverState):
    """Adds the multipliers, which IPOPT gives at its end (zero while unknown), and the first step that is not finite.

    `gradient_norm` is IPOPT's dual infeasibility; once the multipliers are known, the stationarity recomputed with them.
    """

    rows: Any
    lower: Any
    upper: Any
    barrier: float
    bad_step: int
    raw_status: str = dataclasses.field(metadata={"static": True}, default="", kw_only=True)
    log: str = dataclasses.field(metadata={"static": True}, default="", kw_only=True)

    @property
    def multipliers(self) -> Multipliers:
        return Multipliers(np.asarray(self.rows), np.asarray(self.lower), np.asarray(self.upper), float(self.barrier))

    def better_than(self, other: Any, tolerance: float) -> bool:
        """The point that IPOPT declares optimal is the one to return; of one point, its record with multipliers."""
        same = self.cost == other.cost and self.violation == other.violation
        known = self.multipliers.known and not other.multipliers.known
        return self.halt in ("solved", "acceptable") or (same and known) or super().better_than(other, tolerance)

    def non_finite_place(self) -> str:
        """The first step whose motion, cost or constraints are not finite."""
        return place_of_step(self.bad_step, len(self.x.us), "in a derivative, or at every trial point")

    def ending(self) -> Findings:
        """IPOPT's own words."""
        notes = [f"IPOPT: {self.raw_status}"] if self.raw_status and self.halt != "solved" else []
        return Findings(notes=notes, fields={"raw_status": self.raw_status, "log": self.log})


@dataclasses.dataclass(frozen=True)
class MultipleShooting(LibrarySolver):
    """Direct multiple shooting with IPOPT, for `OptimalControlProblem`.

    Without `xs0` the node states start on the rollout of the controls. Needs float64 and the extra `ipopt`. With
    gradient="complementarity-aware" contacts are labelled by the multipliers that IPOPT gave with its last Hessian, until
    then by the costates of the loss; `kkt_residual` is recomputed with implicit derivatives.

    Options:
        interval: number of steps from one node to the next; the last interval may be shorter.
        hessian: Hessian of the Lagrangian: "exact" (needs dynamics with a second derivative: functions, systems without
            contact), "differenced" (through contact by differences of first derivatives within a contact mode, otherwise exact),
            "gauss-newton" (of the cost alone: $J^T J$ of residuals), "limited-memory" (IPOPT's quasi-Newton update).
            Default: "exact" where there is one, else "gauss-newton".
        damping: added to the diagonal of a Gauss-Newton Hessian. Where the cost leaves directions free, as that of a final
            state does, IPOPT then takes the shortest step, node states included, of those that do as much. Solutions do not
            change.
        gauss_newton_iterations: how many iterations IPOPT makes with a Gauss-Newton Hessian before those with `hessian`: far from
            a solution the curvature may mislead.
        tolerance: IPOPT's `tol`, on its scaled optimality error.
        max_iterations: of IPOPT.
        ipopt_options: any other option of IPOPT.
        warm_start: a `Solution` of the same shooting problem whose multipliers and barrier parameter are taken; usually
            with `solve(..., x0=solution)` for its motion.

    `Solution.multipliers`: "rows" (the first N n are those of the defects, interval by interval), "lower", "upper",
    "barrier"; the signs are those of `ipopt.Multipliers`. Residuals: `kkt_residual`, the recomputed stationarity, and
    `complementarity`.

    Raises `OptionError`, for limited memory with complementarity-aware derivatives too; `MissingExtraError` without
    cyipopt; `DerivativeError` for an exact Hessian through contact.
    """

    takes: ClassVar[tuple[type, ...]] = (OptimalControlProblem,)

    interval: int = 1
    hessian: str | None = None
    damping: float = 0.0
    gauss_newton_iterations: int = 0
    tolerance: float = 1e-8
    max_iterations: int = 1000
    ipopt_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    warm_start: Solution | None = None
    moved: ClassVar[Mapping[str, str]] = {
        "smoothing": "it to iLQR(smoothing=...) and the solution to this solver as x0: IPOPT begins each solve anew, without "
        "multipliers and with a large barrier, and leaves the motion of the stage before"
    }

    def __post_init__(self) -> None:
        check_options(
            self,
            interval="[1, inf)",
            hessian=HESSIANS,
            damping="[0, inf)",
            tolerance="(0, inf)",
            gauss_newton_iterations="[0, inf)",
            max_iterations="[0, inf)",
        )

    def hessian_of(self, problem: OptimalControlProblem) -> str:
        """The kind of Hessian used for `problem`."""
        return self.hessian or (EXACT if twice_differentiable(problem) else GAUSS_NEWTON)

    def _program(self, oracle: OptimalControlOracle, reference: Trajectory, kind: str | None = None) -> Shooting:
        """The program with the Hessian that is asked for, or with one of a `kind`."""
        final = self.hessian_of(oracle.problem)
        kind = kind or final
        if self.damping and final != GAUSS_NEWTON and not self.gauss_newton_iterations:
            raise OptionError(f"MultipleShooting: damping is for a Gauss-Newton Hessian; this one is '{kind}'")
        if relabels(oracle.problem, oracle.gradient) and kind == LIMITED_MEMORY:
            raise OptionError(
                f"MultipleShooting: gradient='{COMPLEMENTARITY}' takes its direction from the multipliers, which IPOPT gives "
                f"with the Hessian only, not with '{kind}'; use hessian='{GAUSS_NEWTON}', or gradient='implicit'"
            )
        damping = float(self.damping) if kind == GAUSS_NEWTON else 0.0
        return Shooting(oracle, int(self.interval), kind, reference, damping)

    def init(self, oracle: OptimalControlOracle, guess: Trajectory, key: PRNGKeyArray) -> MultipleShootingState:
        """State at the initial guess."""
        ipopt.check_options(self.ipopt_options)
        if oracle.problem.dtype != np.float64:
            raise OptionError(
                f"MultipleShooting: IPOPT works in float64, and problem '{oracle.problem.name}' is float32; "
                'call jax.config.update("jax_enable_x64", True) before making it'
            )
        program = self._program(oracle, guess)
        multipliers = self._given_multipliers(program)
        start = _start(oracle, guess)
        program = program.about(start)
        return self._state(program, program.variables(start), multipliers, 0.0, None)

    def _given_multipliers(self, program: Shooting) -> Multipliers:
        unknown = Multipliers.unknown(program)
        if self.warm_start is None:
            return unknown
        given = self.warm_start.multipliers
        for key in ("rows", "lower", "upper"):
            expected = getattr(unknown, key).shape
            if key not in given or given[key].shape != expected:
                shape = given[key].shape if key in given else "none"
                raise OptionError(
                    f"MultipleShooting: warm_start.multipliers['{key}'] has shape {shape}, expected {expected}; take a "
                    "solution of MultipleShooting with the same horizon, interval and kinds of constraints"
                )
        return Multipliers(given["rows"], given["lower"], given["upper"], float(given["barrier"]))

    def _state(
        self, program: Shooting, w: np.ndarray, multipliers: Multipliers, step_size: float, dual: float | None
    ) -> MultipleShootingState:
        values, violation = program.values(w), program.violation(w)
        if not np.isfinite(violation + values.cost):
            dual = float("nan")
        elif dual is None:
            dual = program.stationarity(w, multipliers.rows, multipliers.lower, multipliers.upper)
        return MultipleShootingState(
            x=program.motion(w),
            cost=values.cost,
            violation=violation,
            gradient_norm=dual,
            step_size=step_size,
            bad_step=values.bad_step,
            **dataclasses.asdict(multipliers),
        )

    def run(self, oracle: OptimalControlOracle, state: MultipleShootingState, advance: Advance) -> Status:
        """Call IPOPT until it ends or the loop wants to; every iteration is reported to `advance`."""
        first = self.gauss_newton_iterations
        program = self._program(oracle, state.x, GAUSS_NEWTON if first else None)
        while True:
            w = program.variables(state.x)
            program.latest = state.multipliers.rows
            watch = _Watch(self, program, state, w, advance, first)
            outcome = ipopt.solve(program, w, state.multipliers, self.tolerance, self.ipopt_options, watch)
            words: dict[str, Any] = {"raw_status": f"{outcome.code}: {outcome.message}", "log": state.log + outcome.log}
            if watch.beyond_limit:
                self._offer_rollout(oracle, program, watch.state, "max_iterations", advance)
                return ended_by(dataclasses.replace(watch.state, **words), "max_iterations", advance)
            solved = ipopt.STATUSES.get(outcome.code) == "solved"
            if first and watch.status is None and (watch.made >= first or not (watch.turned or solved)):
                first = 0
                state = dataclasses.replace(watch.state, log=words["log"])
                program = self._program(oracle, state.x)
                continue
            first = max(first - watch.made, 0)
            carried = program.carried(outcome.w, outcome.multipliers.rows)
            multipliers = dataclasses.replace(outcome.multipliers, rows=carried)
            state = self._state(program, outcome.w, multipliers, watch.state.step_size, None)
            if watch.status is None and watch.turned:
                state = dataclasses.replace(state, log=words["log"])
                program = program.about(state.x)
                continue
            halt = ipopt.STATUSES.get(outcome.code, "stalled") if watch.status is None else status_name(watch.status)
            bad_step = program.last_bad_step if halt == "non_finite" else state.bad_step
            self._offer_rollout(oracle, program, state, halt, advance)
            return ended_by(dataclasses.replace(state, bad_step=bad_step, **words), halt, advance)

    def _offer_rollout(
        self,
        oracle: OptimalControlOracle,
        program: Shooting,
        state: MultipleShootingState,
        halt: str,
        advance: Advance,
    ) -> None:
        """Where IPOPT ended with gaps, report the motion under its last controls too: it has none, and may be the better one."""
        if halt in ("solved", "acceptable", "non_finite") or state.violation <= oracle.problem.tolerance:
            return
        motion = oracle.rollout(state.x.xs[0], state.x.us, state.x.p)
        if np.isfinite(np.asarray(motion.xs)).all():
            around = program.about(motion)
            rolled = self._state(around, around.variables(motion), Multipliers.unknown(around), 0.0, None)
            advance(dataclasses.replace(rolled, halt=halt))

    def terminate(self, oracle: OptimalControlOracle, state: MultipleShootingState) -> Status | None:
        """What IPOPT said, once it has ended."""
        return status_named(state.halt) if state.halt else None

    def finish(self, oracle: OptimalControlOracle, state: MultipleShootingState) -> Findings:
        """Stationarity and complementarity with IPOPT's multipliers, recomputed; absent where it gave none."""
        aware = relabels(oracle.problem, oracle.gradient)
        advice = (
            "complementarity-aware derivatives are directions to search in: go on from here with gradient='implicit'"
        )
        if not state.multipliers.known:
            return Findings(notes=[advice] if aware else [])
        program = self._program(oracle, state.x)
        exact = self._program(OptimalControlOracle(oracle.problem, "implicit"), state.x) if aware else program
        w = program.variables(state.x)
        triple = state.rows, state.lower, state.upper
        residual, scale = exact.stationarity(w, *triple), max(1.0, float(np.abs(exact.slopes(w).gradient).max()))
        limit = LARGEST_KKT_RESIDUAL * scale
        multipliers = {key: np.asarray(value) for key, value in dataclasses.asdict(state.multipliers).items()}
        return Findings(
            residuals={"kkt_residual": residual, "complementarity": program.complementarity(w, *triple)},
            shortfalls=[] if residual <= limit else [f"kkt_residual is {residual:.3g}, allowed {limit:.3g}"],
            notes=[advice] if aware and not (residual <= limit and state.halt == "solved") else [],
            fields={"multipliers": multipliers},
        )


class _Watch:
    """Reports IPOPT's iterates to the loop, and decides whether IPOPT goes on."""

    def __init__(
        self,
        solver: MultipleShooting,
        program: Shooting,
        state: MultipleShootingState,
        w: np.ndarray,
        advance: Advance,
        most: int,
    ) -> None:
        """most: iterations after which IPOPT is to stop, 0: none; `made`: how many it has made."""
        self.solver, self.program, self.state, self.w, self.advance = solver, program, state, w, advance
        self.most, self.made = most, 0
        self.unknown = Multipliers.unknown(program)
        self.status: Status | None = None
        self.turned = self.at_limit = self.beyond_limit = False

    def __call__(self, w: np.ndarray, dual: float, barrier: float) -> bool:
        if self.at_limit:  # IPOPT has not declared the last permitted iterate optimal
            self.beyond_limit = True
            return False
        multipliers = dataclasses.replace(self.unknown, barrier=barrier)
        state = self.solver._state(self.program, w, multipliers, float(np.linalg.norm(w - self.w)), dual)
        self.state, self.w = state, w
        self.made += 1
        status = self.advance(state)
        if status is not None and bool(status == Status.max_iterations):
            self.at_limit = True
            return True
        self.status, self.turned = status, self.program.departure(w) > LARGEST_DEPARTURE
        return status is None and not self.turned and (not self.most or self.made < self.most)


def _start(oracle: OptimalControlOracle, guess: Trajectory) -> Trajectory:
    """The guess; its states replaced by the rollout where none were given and the rollout is finite."""
    problem = oracle.problem
    if problem.xs0 is not None or np.any(guess.xs != problem.x0):
        return guess
    motion = jax.tree.map(np.asarray, oracle.rollout(problem.x0, guess.us, guess.p))
    return motion if np.isfinite(motion.xs).all() else guess
