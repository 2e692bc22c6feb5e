"""The contract between problems, solvers and the loop that drives them.

A problem (`Problem`) compiles itself to an `Oracle`: its compiled functions, with counters. A solver is an immutable object of
options (`Solver`); what it knows about a run is a `SolverState`, a dataclass registered as a pytree, so that a checkpoint can
hold it. The loop (`base.solve`) asks the solver for a first state, then for one iteration after the other until `terminate`
names a status or a budget is used up, and has the answer recomputed:

    init(oracle, guess, key) -> state    at the initial point
    step(oracle, state) -> state         one iteration
    terminate(oracle, state) -> Status, or None to go on
    finish(oracle, state) -> Findings    recomputed at the best point: the measure of optimality, what is too large, and fields of
                                         the Solution

Where a library owns the iteration (IPOPT, SciPy), the solver is a `LibrarySolver` and has `run` in place of `step`. Both name in
`takes` the classes of problems that they solve; `OfKinds` solvers name what acts on each.

`CODES` are statuses inside compiled programs; `verdict` is the one rule by which a point is a success, for single solves, batches
and searches that try again.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from trajopt.names import NamedOptions
from trajopt.problems.goals import PREFIX
from trajopt.problems.parts import Defaults
from trajopt.result import Status, status_name, status_named, status_names

CODES: dict[str, int] = {name: number for number, name in enumerate(status_names())}
GOING_ON = -1


def status_of(code: int) -> Status:
    """The status of a code."""
    return status_named(status_names()[code])


Point = TypeVar("Point")
PointOut = TypeVar("PointOut", covariant=True)
PointIn = TypeVar("PointIn", contravariant=True)
OracleIn = TypeVar("OracleIn", contravariant=True)
OracleOut = TypeVar("OracleOut", covariant=True)


@runtime_checkable
class Oracle(Protocol[PointIn]):
    """The compiled functions of a problem in one gradient mode, and what they have cost.

    evaluations: how often the residual, or a whole motion, was evaluated; compile_time_s: spent on compiling; out_of_time: set by
    the loop, whether the run should end, which a solver may ask within a long iteration.
    """

    evaluations: int
    compile_time_s: float
    out_of_time: Callable[[], bool]

    def residuals(self, point: PointIn, /) -> dict[str, float]:
        """Quantities recomputed at a point, by name, among them every violation."""

    def shortfalls(self, values: Any, /) -> list[str]:
        """Which of the recomputed quantities are too large, as sentences."""

    def lacks_influence(self, point: PointIn, /) -> bool:
        """Whether nothing that may be changed has any influence, at a point, on what is asked."""

    def fields(self, point: PointIn, /) -> dict[str, Any]:
        """Fields of the `Solution` at a point: x, xs, us, trajectory, parameters."""


@runtime_checkable
class Problem(Protocol[PointOut, OracleOut]):
    """A problem as the loop sees it; its points are flat arrays, or in optimal control `Trajectory`s."""

    @property
    def name(self) -> str:
        """What messages and files call it."""

    @property
    def meta(self) -> Mapping[str, str]:
        """Strings for the summary, of which "contact" names the contact law."""

    @property
    def defaults(self) -> Defaults:
        """Solver, options and gradient mode that are taken where none are asked for."""

    @property
    def initial_point(self) -> PointOut:
        """Where solvers begin when no guess is given."""

    @property
    def violation_tolerance(self) -> float:
        """Violations below it count alike when two points are compared."""

    @property
    def limits(self) -> Mapping[str, float]:
        """What recomputed quantities of an answer must not exceed, by name."""

    @property
    def feasibility_is_success(self) -> bool:
        """Whether a point without shortfalls is an answer, whatever made the solver stop."""

    @property
    def other_guesses(self) -> str:
        """What else to start from where a run did not converge; empty where there is nothing to say."""

    def check_point(self, value: Any, key: str = "x0") -> PointOut:
        """A guess in its normal form, or an error that names what is wrong with it."""

    def point_of(self, solution: Any) -> PointOut:
        """The point of a `Solution`, checked likewise."""

    def compile(self, gradient: str | None = None) -> OracleOut:
        """The problem's oracle in a gradient mode."""


@dataclasses.dataclass(frozen=True)
class Findings:
    """What is to be said of a run or of its best point.

    residuals: recomputed measures of optimality, by name; shortfalls: which of them are too large, as sentences, each of which
    keeps the run from being a success; notes: other sentences of the message; fields: of the `Solution` (covariance, multipliers,
    gains, raw_status, ...).
    """

    residuals: dict[str, float] = dataclasses.field(default_factory=dict)
    shortfalls: Sequence[str] = ()
    notes: Sequence[str] = ()
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SolverState:
    """What the loop reads from a solver's state; solvers add their own fields.

    x: the point, a flat array or, in optimal control, a `Trajectory`; cost and violation (largest, of bounds and
    constraints) there; `gradient_norm`: the solver's measure of optimality, which every solver documents; `step_size`: the
    norm of the last accepted step; `halt` names the status with which the solver gives up, empty while it does not.
    """

    x: Any
    cost: float
    violation: float
    gradient_norm: float
    step_size: float
    halt: str = dataclasses.field(metadata={"static": True}, default="", kw_only=True)

    def better_than(self, other: Any, tolerance: float) -> bool:
        """Whether this point is the one to return: less violation beyond `tolerance`, or with equal violation `preferred_to`."""
        excess, best = max(self.violation, tolerance), max(other.violation, tolerance)
        return bool(excess < best) if excess != best else self.preferred_to(other)

    def preferred_to(self, other: Any) -> bool:
        """Whether this is the one to return of two points of equal violation."""
        return bool(self.cost < other.cost)

    @property
    def is_answer(self) -> bool:
        """Whether the point may be returned."""
        return True

    def non_finite_place(self) -> str:
        """Where a value that is not finite appeared, for the message; begins with ": "."""
        return ""

    def ending(self) -> Findings:
        """What the last state of a run says of it, whichever state is the best."""
        return Findings()


def place_of_step(bad_step: int, steps: int, otherwise: str) -> str:
    """The first of so many steps of a motion at which something is not finite, for `non_finite_place`; `otherwise` where it is at
    none."""
    if bad_step > steps:
        return f": {otherwise}"
    return ": in the terminal cost" if bad_step == steps else f": at step {bad_step} of the motion"


StateT = TypeVar("StateT", bound=SolverState)
Advance = Callable[[Any], Status | None]


@runtime_checkable
class Solver(Protocol[OracleIn, PointIn, StateT]):
    """Options and algorithm of a solver whose iterations the loop drives; see the module's docstring.

    Raises `OptionError` on construction for unusable options.
    """

    takes: ClassVar[tuple[type, ...]]

    @property
    def max_iterations(self) -> int:
        """Iterations after which the loop stops."""

    @property
    def name(self) -> str:
        """What the registry, messages and files call it."""

    def init(self, oracle: OracleIn, guess: PointIn, key: PRNGKeyArray, /) -> StateT:
        """The state at a guess; key: seeds whatever is random."""

    def step(self, oracle: OracleIn, state: StateT, /) -> StateT:
        """The state after one iteration, or the same point with `halt` set when there is none."""

    def terminate(self, oracle: OracleIn, state: StateT, /) -> Status | None:
        """The status with which the run ends at this state, None to go on."""

    def finish(self, oracle: OracleIn, state: StateT, /) -> Findings:
        """What is recomputed at the best point."""


@runtime_checkable
class OfKinds(Protocol):
    """A solver of several kinds of problems."""

    def acting_on(self, problem: Any, /) -> Any:
        """The object whose methods are called in place of its own."""


class LibrarySolver(NamedOptions, abc.ABC):
    """A solver whose iteration belongs to a library: as `Solver`, with `run` in place of `step`.

    remedy: what to do with a problem of another kind than those it `takes`; ends the error that refuses one.
    """

    takes: ClassVar[tuple[type, ...]]
    remedy: ClassVar[str] = ""
    max_iterations: int

    @property
    def name(self) -> str:
        """What the registry, messages and files call it: the class's name."""
        return type(self).__name__

    @abc.abstractmethod
    def init(self, oracle: Any, guess: Any, key: PRNGKeyArray) -> Any:
        """The state at a guess; key: seeds whatever is random."""

    @abc.abstractmethod
    def run(self, oracle: Any, state: Any, advance: Callable[[Any], Status | None]) -> Status:
        """Iterate from a state; returns the status that ends the run.

        Calls advance(state) after each iteration, stops the library when that returns a status, and where the library ends by
        itself returns advance(state) of a state that halts.
        """

    @abc.abstractmethod
    def terminate(self, oracle: Any, state: Any) -> Status | None:
        """The status with which the run ends at this state, None to go on."""

    @abc.abstractmethod
    def finish(self, oracle: Any, state: Any) -> Findings:
        """What is recomputed at the best point."""


def iterate(solver: Any, oracle: Any, state: Any, report: Callable[[Any], Status | None]) -> None:
    """Report one state after the other, by whoever owns the iteration, until that returns a status."""
    if isinstance(solver, LibrarySolver):
        solver.run(oracle, state, report)
        return
    status: Status | None = None
    while status is None:
        state = solver.step(oracle, state)
        status = report(state)


def ended_by(state: StateT, halt: str, advance: Callable[[StateT], Status | None]) -> Status:
    """The status with which a library's run ends at `state`, where the library gave up; halt: the status's name."""
    status = advance(dataclasses.replace(state, halt=halt))
    assert status is not None  # the loop goes on from no state that halts
    return status


def default_tolerance(dtype: np.dtype) -> float:
    """1e-10 in float64, 1e-5 in float32."""
    return 1e-10 if np.dtype(dtype) == np.float64 else 1e-5


NO_PROGRESS = ("stalled", "line_search_failed", "no_influence", "infeasible", "contact_failed")


def verdict(
    problem: Problem, status: Status, shortfalls: Sequence[str], cost: float, lacks_influence: Callable[[], bool] | None = None
) -> tuple[Status, bool]:
    """(the status that is reported, whether the point is a success).

    A success has a finite cost and no shortfalls, the sentences about what was recomputed there and is too large. It is also
    optimal, which the solver says by `solved`, unless for this problem feasibility is success: goals decide, or the tolerance of
    a residual. There no further progress at an answer is `acceptable`, whatever the solver holds of it. A solver that claims an
    optimum where there are shortfalls has stalled, or its contact solves have failed; goals that are not met leave the status,
    which says how the solver stopped, but for an optimum where no control changes what is asked (lacks_influence).
    """
    claimed = status_name(status)
    infeasible = [sentence for sentence in shortfalls if not sentence.startswith(PREFIX)]
    if infeasible and claimed in ("solved", "acceptable"):
        status = Status.contact_failed if infeasible[0].startswith("contact_residual") else Status.stalled
    if not shortfalls and claimed in NO_PROGRESS and problem.feasibility_is_success:
        status = Status.acceptable
    if shortfalls and not infeasible and claimed == "solved" and lacks_influence is not None and lacks_influence():
        status = Status.no_influence
    optimal = claimed == "solved" or problem.feasibility_is_success
    return status, bool(optimal and not shortfalls and np.isfinite(cost))
