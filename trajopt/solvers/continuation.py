"""Continuation: contact is smoothed first, then less and less, and is rigid in the end.

The exact gradient of a contact that is not made is zero: a finger that does not touch the box learns nothing of it. Under
`RelaxedContact` bodies feel each other across a gap, all the more the larger its rho. A run has three parts:

1. rigid contact from the guess. Where that meets the goals, or without goals where controls have an influence, it is the answer;
2. stages with rho falling. Each is solved from the controls of the one before and ended early: what it finds is a start for the
   next one. Its controls are rolled out with rigid contact, and the best of these motions is kept;
3. rigid contact again, from the best motion. Its status and its certificate are those of the run. Where that misses a goal, the
   stages are gone through again from the guess, with a first rho of a third and of a tenth.

The first rho is chosen by what it does to the guess (`first_rho`). rho is a number of the system, so that all stages run the same
compiled programs. The law is that of Howell et al., "Dojo: a differentiable physics engine for robotics", 2022; that
smoothing sees far: Pang et al., "Global planning for contact-rich manipulation via local smoothing of quasi-dynamic contact
models", 2023.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.errors import OptionError
from trajopt.problems.goals import goal_reports
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.trajectory import Trajectory
from trajopt.result import Status, status_name
from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.loop.contract import Advance, Findings, LibrarySolver, SolverState
from trajopt.solvers.loop.options import check_options

STAGE_ITERATIONS = 50
SLOW = 1e-3  # relative fall of the cost in a step; two such steps in a row end a stage
IDLE, LITTLE = 10, 1e-5  # steps of the last stage in a row that gain less than this share end it where the goals are met
LAST_RHO = 1e-4  # J
SHARES = 1.0, 1 / 3, 0.1  # of the first rho, one after the other while a goal is missed
MOVES = 10.0  # gaps by which the first rho moves the contacts of the guess over the horizon; good values move them by 3 to 16
FIRST_RHOS = 10.0 ** np.arange(0.5, -3.6, -0.5)  # J, of which the first one is taken
TOUCHING = 1e-3  # m: gaps of contacts that are nearly made count as this much


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContinuationState(SolverState):
    """Adds the gradient solver's state with rigid contact, in a stage the best one so far; rho of the stage, 0 with rigid
    contact; and whether rigid contact is the last part."""

    rigid: Any
    rho: float
    last: bool

    def better_than(self, other: Any, tolerance: float) -> bool:
        """Motions with smoothed contact are no answers. A stationary guess may be none either: costs decide, and within the last
        part the gradient solver."""
        if self.rho or other.rho:
            return not self.rho
        if self.last and other.last:
            return bool(self.rigid.better_than(other.rigid, tolerance))
        return super().better_than(other, tolerance)

    def non_finite_place(self) -> str:
        """Where the gradient solver met a value that is not finite."""
        return self.rigid.non_finite_place()

    def ending(self) -> Findings:
        """What the gradient solver says."""
        return self.rigid.ending()


@dataclasses.dataclass(frozen=True)
class Continuation(LibrarySolver):
    """A gradient solver that goes through stages of smoothed contact where rigid contact alone leads nowhere.

    `solve` makes it of a solver's option `smoothing`, for an `OptimalControlProblem` under `RigidContact`.

    Options:
        solver: `iLQR` or `DDP` with its options.
        smoothing: rho of each stage, J, falling; "auto": decades from a first one, which the guess chooses, to 1e-4, and only
            where rigid contact alone misses a goal or has no influence.
        stage_iterations: largest number of iterations in a stage.
        max_iterations: of all parts together.
    """

    takes: ClassVar[tuple[type, ...]] = (OptimalControlProblem,)

    solver: Any = dataclasses.field(default_factory=iLQR)
    smoothing: Any = "auto"
    stage_iterations: int = STAGE_ITERATIONS
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.solver, iLQR | DDP):
            raise OptionError(f"Continuation: solver is {self.solver!r}; expected iLQR() or DDP()")
        if self.smoothing != "auto":
            object.__setattr__(self, "smoothing", checked_schedule(self.smoothing))
        for key, least in (("stage_iterations", 1), ("max_iterations", 0)):
            if getattr(self, key) < least:
                raise OptionError(f"Continuation: {key} is {getattr(self, key)}; it must be at least {least}")

    @property
    def name(self) -> str:
        return self.solver.name

    def init(self, oracle: OptimalControlOracle, guess: Trajectory, key: PRNGKeyArray) -> ContinuationState:
        """The gradient solver at the guess, with rigid contact."""
        return self._at(self.solver.init(oracle, guess, key))

    def _at(self, rigid: Any, last: bool = False) -> ContinuationState:
        """The state at a motion with rigid contact."""
        halt = rigid.halt if last else ""
        return ContinuationState(
            rigid.x, rigid.cost, rigid.violation, rigid.gradient_norm, rigid.step_size, rigid, 0.0, last, halt=halt
        )

    # -- the three parts -----------------------------------------------------------------------------------------------

    def run(self, oracle: OptimalControlOracle, state: ContinuationState, advance: Advance) -> Status:
        """The three parts of the module's docstring."""
        rigid, guess = state.rigid, state.x
        if self.smoothing == "auto" and not (state.rho or state.last):
            rigid, status = self._rigid_part(oracle, rigid, advance, last=False)
            if status is None and not self._asks_for_smoothing(oracle, rigid):
                ended = self.solver.terminate(oracle, rigid)
                if ended is None:
                    return Status.max_iterations
                status = advance(dataclasses.replace(self._at(rigid, last=True), halt=status_name(ended)))
            if status is not None:
                return status
        schedules = [] if state.last else self.schedules(oracle, guess)
        for number, schedule in enumerate(schedules, 1):
            motion = guess
            for rho in schedule:
                rigid, motion, status = self._stage(oracle, rigid, motion, rho, advance)
                if status is not None:
                    return status
            if number < len(schedules):
                rigid, status = self._rigid_part(oracle, rigid, advance, last=False)
                if status is not None:
                    return status
                if self._meets_goals(oracle, rigid):
                    break
        status = self._rigid_part(oracle, rigid, advance, last=True)[1]
        assert status is not None  # the last part ends the run
        return status

    def _rigid_part(
        self, oracle: OptimalControlOracle, rigid: Any, advance: Advance, last: bool
    ) -> tuple[Any, Status | None]:
        """(where the gradient solver ends with rigid contact, the status that ends the run)."""
        status: Status | None = None
        idle = 0
        goals = bool(oracle.problem.goals)
        for _ in range(self.solver.max_iterations):
            if status is not None or not (last or self.solver.terminate(oracle, rigid) is None):
                return rigid, status
            before = rigid.cost
            rigid = self.solver.step(oracle, rigid)
            if rigid.halt and not last:
                return rigid, None
            status = advance(self._at(rigid, last))
            idle = idle + 1 if before - rigid.cost <= LITTLE * abs(rigid.cost) else 0
            if status is None and goals and idle >= IDLE:
                if not last:
                    return rigid, None
                if self._meets_goals(oracle, rigid):
                    return rigid, advance(dataclasses.replace(self._at(rigid, last), halt="acceptable"))
        return rigid, Status.max_iterations if last and status is None else status

    def _stage(
        self, oracle: OptimalControlOracle, best: Any, motion: Trajectory, rho: float, advance: Advance
    ) -> tuple[Any, Trajectory, Status | None]:
        """(the better one of `best` and of the stage's controls with rigid contact, the stage's motion, the status that ends the
        run)."""
        key, slow = jax.random.key(0), 0
        stage = smoothed_problem(oracle.problem, rho).compile("implicit")
        stage.out_of_time = oracle.out_of_time
        counted = _Counted(oracle, stage)
        at = self.solver.init(stage, motion, key)
        for _ in range(self.stage_iterations):
            before, at = at.cost, self.solver.step(stage, at)
            counted.take()
            if at.halt:
                break
            status = advance(ContinuationState(at.x, at.cost, at.violation, at.gradient_norm, at.step_size, best, rho, False))
            if status is not None:
                return best, at.x, status
            slow = slow + 1 if before - at.cost <= SLOW * abs(at.cost) else 0
            if slow == 2 or self.solver.terminate(stage, at) is not None:
                break
        start = dataclasses.replace(at.x, xs=np.tile(at.x.xs[0], (len(at.x.xs), 1)))  # states come from the controls
        rolled = self.solver.init(oracle, start, key)
        status = advance(self._at(rolled))
        if self._at(rolled).better_than(self._at(best), oracle.problem.violation_tolerance):
            best = rolled
        return best, at.x, status

    def _asks_for_smoothing(self, oracle: OptimalControlOracle, rigid: Any) -> bool:
        """Whether the point misses a goal, or without goals is a guess that no control changes for the better."""
        if oracle.problem.goals:
            return not self._meets_goals(oracle, rigid)
        status = self.solver.terminate(oracle, rigid)
        return status is not None and status_name(status) == "no_influence"

    def _meets_goals(self, oracle: OptimalControlOracle, rigid: Any) -> bool:
        """Outside the counters."""
        evaluations = oracle.evaluations
        values = oracle.residuals(jax.tree.map(np.asarray, rigid.x))
        oracle.evaluations = evaluations
        return all(report.met for report in goal_reports(oracle.problem.goals, values).values())

    def schedules(self, oracle: OptimalControlOracle, guess: Trajectory) -> list[tuple[float, ...]]:
        """rho of each stage, J: one schedule after the other, the later ones where a goal is still missed."""
        if self.smoothing != "auto":
            return [self.smoothing]
        first, shares = first_rho(oracle, guess), SHARES if oracle.problem.goals else SHARES[:1]
        return [
            (*(rho for rho in share * first / 10.0 ** np.arange(9) if rho > 1.01 * LAST_RHO), LAST_RHO) for share in shares
        ]

    # -- what the loop asks --------------------------------------------------------------------------------------------

    def terminate(self, oracle: OptimalControlOracle, state: ContinuationState) -> Status | None:
        """As the gradient solver says in the last part."""
        if state.halt == "acceptable":
            return Status.acceptable
        return self.solver.terminate(oracle, state.rigid) if state.last else None

    def finish(self, oracle: OptimalControlOracle, state: ContinuationState) -> Findings:
        """The certificate of the gradient solver."""
        return self.solver.finish(oracle, state.rigid)


class _Counted:
    """What a stage's own oracle has cost goes into the account of the run."""

    def __init__(self, oracle: OptimalControlOracle, stage: OptimalControlOracle) -> None:
        self.oracle, self.stage = oracle, stage
        self.evaluations, self.compile_time_s = stage.evaluations, stage.compile_time_s

    def take(self) -> None:
        """Add what has come since the last time."""
        self.oracle.evaluations += self.stage.evaluations - self.evaluations
        self.oracle.compile_time_s += self.stage.compile_time_s - self.compile_time_s
        self.evaluations, self.compile_time_s = self.stage.evaluations, self.stage.compile_time_s


def applies(problem: Any, solver: Any) -> bool:
    """Whether a solver's option `smoothing` means anything for a problem: there is rigid contact."""
    system = problem.system if isinstance(problem, OptimalControlProblem) else None
    if getattr(solver, "smoothing", None) is None or system is None:
        return False
    return system.contact.relaxation() is not None and bool(system.contact.contact_rows(system.model))


def checked_schedule(smoothing: Any) -> tuple[float, ...]:
    """Raises `OptionError` unless rho is positive and falls."""
    what = f"smoothing is {smoothing!r}; expected 'auto', None, or values of rho in J that fall, such as [0.1, 0.01, 1e-3]"
    if not isinstance(smoothing, Sequence | np.ndarray) or isinstance(smoothing, str) or not len(smoothing):
        raise OptionError(what)
    try:
        values = np.asarray(smoothing, float)
    except (TypeError, ValueError):
        raise OptionError(what) from None
    if values.ndim != 1 or not (np.isfinite(values).all() and (values > 0).all() and (np.diff(values) < 0).all()):
        raise OptionError(what)
    return tuple(values.tolist())


def smoothed_problem(problem: OptimalControlProblem, rho: float) -> OptimalControlProblem:
    """The problem with its contact relaxed by rho, J."""
    system = problem.system
    assert system is not None
    relaxed = system.contact.relaxation()
    assert relaxed is not None
    smooth = dataclasses.replace(system, contact=relaxed, rho=rho, gradient="implicit")
    return dataclasses.replace(problem, dynamics=smooth, validate=False)


def first_rho(oracle: OptimalControlOracle, guess: Trajectory) -> float:
    """The rho, J, whose forces move the contacts of the guess by about `MOVES` gaps over the horizon.

    By dimension it is a force times a gap; the force that matters is the one that moves bodies within the time there is.
    """
    problem, system = oracle.problem, oracle.problem.system
    assert system is not None
    shares = []
    for rho in FIRST_RHOS:
        relaxed = smoothed_problem(problem, float(rho)).compile("implicit")
        counted = _Counted(oracle, relaxed)
        xs = relaxed.rollout(guess.xs[0], guess.us, guess.p).xs
        counted.take()
        distances = oracle.call(_distances, system.model, xs[:, : system.nq], effort=Effort.QUICK)
        gaps = np.maximum(np.asarray(distances[0]), TOUCHING)
        path = np.abs(np.diff(np.asarray(distances), axis=0)).sum(0)
        shares.append(float(np.nan_to_num(np.max(path / gaps), nan=np.inf)))
    return float(FIRST_RHOS[np.argmin(np.abs(np.log(np.clip(shares, 1e-12, 1e12) / MOVES)))])


def _distances(model: Model, qs: Float[Array, "T nq"]) -> Float[Array, "T k"]:
    """Of all contacts that may be, m, at each configuration."""
    return jax.lax.map(lambda q: collide(model, kinematics(model, q)).distance, qs)


__all__ = ["Continuation", "applies", "checked_schedule", "first_rho", "smoothed_problem"]
