"""A controller that plans: a problem solved again and again from measured states, whoever measures them.

    controller = control.Controller(problem, solvers.iLQR(), period=0.02)
    controller.replan(x, t)         # once in a period, or in a thread: replan(x, t, wait=False)
    u = controller.control(x, t)    # at every tick
    controller.set(references={"posture": q})

A solve shifts the last plan by the time that has passed and improves it by as many iterations, or generations, as fit into the
time budget, at least one; it ends earlier where iterations change nothing. Between solves acts

    u = clip(u_k + K_k (x (-) x_bar(t))),

k being the knot of the plan in which t lies, x_bar the planned state at t, (-) the difference on the manifold of states; K = 0
for solvers that sample. Between the first plan and the end nothing is compiled. Diehl et al., Real-time iteration scheme, SIAM J.
Control Optim. 2005; Tassa, Erez, Todorov, IROS 2012.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import math
import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from trajopt.control.prediction import Prediction
from trajopt.control.warned import warn_of_late
from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.state import State
from trajopt.errors import NonFiniteError, OptionError, ShapeError
from trajopt.names import NamedOptions
from trajopt.native.process import check_process
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.trajectory import flat_state
from trajopt.solvers.ddp.replanning import GAIN
from trajopt.solvers.hybrid import Hybrid
from trajopt.solvers.plan import Plan, Replanned
from trajopt.solvers.planners import can_replan, in_fine_time, planner_of

CLOCK_ROUNDING = 1e-9  # s
KEPT = 1e-4  # violation, in the row's unit, with which a plan is settled
WATCHED = 50  # solves, after which those that were late are counted
BUDGET_SHARE = 0.8  # of the period: the rest is for the control and for what else the machine does


class Solve(NamedTuple):
    """What a solve did: the result of its last iteration with the first one's `cost_before`, the number of iterations, the
    seconds they took."""

    result: Replanned
    iterations: int
    seconds: float


class Settled(NamedTuple):
    """When a solve ends: after so many iterations in a row, and as many of the first plan, whose relative change of the cost is
    smaller than `change`."""

    change: float
    idle: int
    first: int


FOLLOWED, SAMPLED = Settled(GAIN, 1, 1), Settled(1e-3, 3, 10)  # of solvers that follow gradients, and that sample


class Acting(NamedTuple):
    """A plan, the time, s, of its first state, and the time from which on it acts."""

    plan: Plan
    begun: float
    acts: float


@dataclasses.dataclass(frozen=True)
class Plans:
    """The plan that acts and those that are to act, the newest last."""

    known: tuple[Acting, ...]

    def at(self, t: float) -> Acting:
        """The one that acts at a time: the newest whose time has come."""
        return next((one for one in reversed(self.known) if one.acts <= t + CLOCK_ROUNDING), self.known[0])

    def stretch(self, t: float) -> tuple[Plan, float, float]:
        """(the plan that acts at a time, when it began, when the next one acts)."""
        acting = self.at(t)
        later = [one.acts for one in self.known if one.acts > t + CLOCK_ROUNDING]
        return acting.plan, acting.begun, min(later, default=math.inf)

    @property
    def newest(self) -> Acting:
        """The one made last."""
        return self.known[-1]

    def then(self, one: Acting, t: float) -> Plans:
        """With another one, without those that are past at a time."""
        acting = self.at(t)
        kept = itertools.dropwhile(lambda other: other is not acting, self.known)
        return Plans((*kept, one))


class Controller(WithoutCaches, NamedOptions):
    """Plans from measured states: `replan` makes a plan, `control` says what to do by it at a state and a time.

    Options:
        problem: an `OptimalControlProblem`; its guess is where the first plan starts. Costs and references see the time of the
            whole motion, t = start_time + that of the measurement.
        solver: `iLQR`, `DDP`, `PredictiveSampling`, `MPPI`, `CEM`, `CMAES`, `StochasticSearch` or `Hybrid`.
        period (s): time between measurements.
        delay (s): time between a measurement and the moment from which on its plan acts. The plan begins where the plant is
            predicted to be by then, under the plan that acts meanwhile.
        time_budget (s): time that a solve may take; it ends when another iteration like the longest one would not fit. Default:
            0.8 of the period.
        max_iterations: of a solve; at least one, which is always done. Default: as many as fit.
        first_iterations: largest number of iterations for the first plan, before the clock starts.
        gradient: mode of the derivatives along the horizon. Default: the problem's own.

    Raises before anything is compiled: `OptionError`, `ShapeError`.
    """

    def __init__(
        self,
        problem: OptimalControlProblem,
        solver: Any,
        period: float,
        *,
        delay: float = 0.0,
        time_budget: float | None = None,
        max_iterations: int | None = None,
        first_iterations: int = 200,
        gradient: str | None = None,
    ) -> None:
        if not isinstance(problem, OptimalControlProblem):
            raise OptionError(f"problem is {type(problem).__name__}; a receding horizon solves an OptimalControlProblem")
        if not can_replan(solver):
            name = solver.__name__ if isinstance(solver, type) else getattr(solver, "name", repr(solver))
            raise OptionError(
                f"solver {name} cannot go on from a plan; use solvers.iLQR(), DDP(), PredictiveSampling(), MPPI(), "
                "CEM(), CMAES() or Hybrid()"
            )
        self.problem, self.solver, self.period = problem, solver, _seconds("period", period)
        self.delay = _seconds("delay", delay, zero=True)
        self.time_budget = BUDGET_SHARE * self.period if time_budget is None else _seconds("time_budget", time_budget)
        for key, value in (("max_iterations", max_iterations), ("first_iterations", first_iterations)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{key} is {value!r}; expected a whole number of at least 1")
        self.max_iterations = math.inf if max_iterations is None else max_iterations
        self.first_iterations = first_iterations
        self.planner = planner_of(solver, problem, gradient)
        self.settled = SAMPLED if self.planner.first().gains is None or isinstance(solver, Hybrid) else FOLLOWED
        self.prediction = Prediction(in_fine_time(problem))
        self._plans: Plans | None = None
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._seconds: list[float] = []  # that solves took, since they were last looked at
        self._warned = False
        self._tasks: list[concurrent.futures.Future[Any]] = []  # of the thread: one at work, one that waits

    def compile(self) -> float:
        """Compile what plans take, unless it is there; returns the seconds that took."""
        return self.planner.compile() + self.prediction.compile(self.delay, self.planner.first())

    @property
    def planned(self) -> bool:
        """Whether there is a plan."""
        return self._plans is not None

    @property
    def plan(self) -> Plan:
        """The newest plan. Raises `OptionError` before there is one."""
        return self._planned().newest.plan

    @property
    def plan_begun(self) -> float:
        """The time, s, of the first state of the newest plan."""
        return self._planned().newest.begun

    @property
    def plan_seconds(self) -> float:
        """How long a plan lasts, s."""
        return self.problem.horizon * self._dt

    def _planned(self) -> Plans:
        if self._plans is None:
            raise OptionError("there is no plan yet; call replan(x, t) first")
        return self._plans

    def replan(self, x: Any, t: float, *, wait: bool = True) -> Solve | None:
        """Make a plan from the state x (a `State` or flat), measured at the time t, s; it acts from `delay` later on. The first
        call compiles, takes as long as a good first plan needs, and its plan acts at once.

        wait: False hands x to a thread and returns None at once; the plan acts when it is ready. While the thread is at work the
        newest measurement waits for it; an error in it is raised by the next call, or by `close`. A state or a plan that is not
        finite is a warning, and the last plan goes on. More than one late solve in five of fifty is a warning, once,
        unless the time budget is above the period.
        """
        if not wait:
            if self._thread is None:
                self._planned_first(x, t)
                self._thread = concurrent.futures.ThreadPoolExecutor(1, "trajopt replanning")
            self._raise_ended()
            self._tasks = [task for task in self._tasks if not task.cancel()]
            self._tasks.append(self._thread.submit(self.replan, x, t))
            return None
        if self._plans is None:
            return self._planned_first(x, t)
        state = self.measured(x)
        if not np.isfinite(state).all():
            warnings.warn(f"the state measured at {t:.6g} s is not finite; the last plan goes on", stacklevel=2)
            return None
        found, begun = self.solve_after(self.delay, state, t, self._plans)
        if bool(found.result.finite):
            self._plans = self._plans.then(Acting(found.result.plan, begun, begun), t)
        else:
            warnings.warn(f"the plan made at {t:.6g} s is not finite; the last one goes on", stacklevel=2)
        self._seconds.append(found.seconds)
        if len(self._seconds) == WATCHED:
            if self.time_budget <= self.period and not self._warned:
                self._warned = warn_of_late(np.array(self._seconds), self, stacklevel=3)
            self._seconds.clear()
        return found

    def control(self, x: Any, t: float) -> Float[np.ndarray, " nu"]:
        """u at the state x and the time t, s, by the plan that acts; without its feedback where x is not finite."""
        return self.control_of(self._planned().at(t), self.measured(x), t)

    def control_of(self, acting: Acting, x: Float[np.ndarray, " nx"], t: float) -> Float[np.ndarray, " nu"]:
        """u at the state x and the time t, s, by a plan."""
        return self.planner.control(x, (t - acting.begun) / self._dt, acting.plan)

    def set(
        self, *, references: Mapping[str, Any] | None = None, weights: Mapping[str, Any] | None = None
    ) -> None:
        """Other references and weights of the problem's residuals by name, from the next solve on; of the same shapes nothing is
        compiled. Raises what `OptimalControlProblem.replace` raises; then nothing changes."""
        self.problem = self.problem.replace(references=references, weights=weights)
        subject = in_fine_time(self.problem)
        self.planner, self.prediction = self.planner.on(subject), self.prediction.on(subject)

    def close(self) -> None:
        """End the thread of `replan(wait=False)`, once its solve is done."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
            self._raise_ended()

    def _raise_ended(self) -> None:
        """Forget tasks of the thread that have ended, and raise an error that one ended with."""
        ended = [task for task in self._tasks if task.done()]
        self._tasks = [task for task in self._tasks if task not in ended]
        for task in ended:
            if not task.cancelled():
                task.result()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_thread": None, "_tasks": []}  # a thread belongs to its process

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _dt(self) -> float:
        assert self.problem.dt is not None  # validation of a problem sets it
        return self.problem.dt

    def measured(self, x: Any, name: str = "x") -> Float[np.ndarray, " nx"]:
        """A state, flat, in the problem's precision. Raises `ShapeError`."""
        flat = np.asarray(flat_state(x) if isinstance(x, State) else x, self.problem.dtype)
        if flat.shape != (self.problem.nx,):
            raise ShapeError(
                f"{name} has shape {flat.shape}; expected ({self.problem.nx},) for problem '{self.problem.name}'"
            )
        return flat

    def solve_after(self, delay: float, x: Float[np.ndarray, " nx"], t: float, plans: Plans) -> tuple[Solve, float]:
        """(a solve from where the plant, measured at x and t, is predicted to be `delay` s later, the time of that)."""
        begun, newest = t + delay, plans.newest
        ahead = self.prediction.after(delay, x, t, plans.stretch)
        return self.solve(ahead, begun, (begun - newest.begun) / self._dt, newest.plan, self.max_iterations), begun

    def solve(
        self, x: Float[np.ndarray, " nx"], time_s: float, shift: float, plan: Plan, iterations: float
    ) -> Solve:
        """What becomes of a plan made `shift` knots ago, from x at the time `time_s`."""
        self.compile()
        check_process()
        begin = last = time.perf_counter()
        longest, cost_before, accepted, count, idle = 0.0, None, False, 0, 0
        while True:
            result = self.planner.replan(x, time_s, None if count else shift, plan)
            count, now = count + 1, time.perf_counter()
            longest, last = max(longest, now - last), now
            cost_before = result.cost_before if cost_before is None else cost_before
            accepted = accepted or bool(result.accepted)
            idle = idle + 1 if self._same(result) else 0
            over = now - begin + longest > self.time_budget
            if not bool(result.finite) or idle >= self.settled.idle or count >= iterations or over:
                result = dataclasses.replace(result, cost_before=cost_before, accepted=accepted)
                return Solve(result, count, now - begin)
            plan = result.plan

    def first_plan(self, x: Float[np.ndarray, " nx"], time_s: float = 0.0) -> Solve:
        """A plan from nothing: iterations until they change nothing, at most `first_iterations`.

        Raises `NonFiniteError` where it is not finite.
        """
        self.compile()
        plan, begin, count, idle = self._first_guess(x, time_s), time.perf_counter(), 0, 0
        while True:
            result = self.planner.replan(x, time_s, None if count else 0.0, plan)
            count += 1
            if not bool(result.finite):
                raise NonFiniteError(
                    f"problem '{self.problem.name}': the first plan is not finite; give a guess (u0, guesses.quasi_static) whose "
                    "motion is"
                )
            idle = idle + 1 if self._same(result) else 0
            if idle >= self.settled.first or count >= self.first_iterations:
                return Solve(result, count, time.perf_counter() - begin)
            plan = result.plan

    def _first_guess(self, x: Float[np.ndarray, " nx"], time_s: float) -> Plan:
        """The problem's guess; from another state than the problem's, with feedback that keeps to it where that is cheaper:
        without it a pole that is to be held falls, and what is found swings it up again."""
        guess, x0 = self.planner.first(), self.measured(self.problem.x0)
        if guess.gains is None or np.array_equal(x, x0):
            return guess
        kept = self.planner.replan(x0, time_s, 0.0, guess).plan
        costs = [float(self.planner.replan(x, time_s, 0.0, plan).cost_before) for plan in (guess, kept)]
        return kept if np.nan_to_num(costs[1], nan=np.inf) < np.nan_to_num(costs[0], nan=np.inf) else guess

    def _same(self, result: Replanned) -> bool:
        """Whether an iteration changed nothing, and the constraints are kept."""
        if np.max(np.asarray(result.violation), initial=0.0) > KEPT:
            return False
        change, new = abs(float(result.cost_before) - float(result.cost)), abs(float(result.cost))
        return not bool(result.accepted) or change <= self.settled.change * max(new, self.settled.change)

    def _planned_first(self, x: Any, t: float) -> Solve:
        state = self.measured(x)
        if not np.isfinite(state).all():
            raise NonFiniteError(f"the state measured at {t:.6g} s is not finite, and there is no plan yet to go on with")
        found = self.first_plan(state, t)
        self._plans = Plans((Acting(found.result.plan, t, t),))
        return found


def _seconds(key: str, value: Any, zero: bool = False) -> float:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (number and np.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise OptionError(f"{key} is {value!r} s; expected a {'' if zero else 'positive '}number of seconds")
    return float(value)
