"""A horizon that recedes: the problem is solved again and again from the measured state, feedback acts in between.

Every `period` the state x of the plant is measured. The last plan, shifted by the time that has passed, is rolled out
from x under its own feedback and improved by as many iterations as fit into the time budget, at least one. The new plan
acts from `delay` after the measurement on. At each tick of the plant

    u = clip(u_k + K_k (x (-) x_bar(t))),

k being the knot of the plan in which t lies, x_bar the planned state at t, (-) the difference on the manifold of states.

Between the first plan and the end of the run nothing is compiled: an iteration is one program of the measured state,
the time, the last plan and the damping. Diehl et al., Real-time iteration scheme, SIAM J. Control Optim. 2005; Tassa,
Erez, Todorov, IROS 2012.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float

from trajopt.control.plants import Plant, Push, SystemPlant
from trajopt.control.recording import Recording
from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.names import NamedOptions, closest
from trajopt.native.process import check_process
from trajopt.problems import programs
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.trajectory import flat_state
from trajopt.solvers.ddp.replanning import Plan, Replanned, Replanning

MEASURED = "measured"
SAME_COST = 1e-6  # relative: iterations of the first plan end where they change its cost by less
ROUNDING = 1e-6  # of a tick: periods and delays nearer than that to whole ticks are whole ticks


@runtime_checkable
class FeedbackSolver(Protocol):
    """A solver whose iterations yield feedback gains: iLQR."""

    def replanning(self, oracle: OptimalControlOracle) -> Replanning:
        """One iteration from a measured state."""


class _Acting(NamedTuple):
    """A plan, and the tick at which its first state was measured."""

    plan: Plan
    begun: int


class RecedingHorizon(WithoutCaches, NamedOptions):
    """Solves `problem` again and again from the state of `plant` and drives it with what is found.

    Options:
        problem: an `OptimalControlProblem` without constraints beside bounds on controls; its `x0` is where the plant
            starts, its guess where the first plan does. Costs and references see the time of the whole motion: t =
            start_time + the plant's.
        solver: one with feedback gains, `solvers.iLQR()`.
        plant: a `System`, a `MujocoPlant`, or anything that is a `Plant`; it may have another time step than the problem.
        period (s): time between measurements, whole ticks of the plant.
        time_budget (s): time that a solve may take; it ends when another iteration like the last one would not fit.
            Default: `period`.
        max_iterations: of a solve; at least one, which is always done.
        delay (s): time of the plant between a measurement and the moment at which the plan made of it acts, whole ticks; or
            "measured": the time that the solve took, rounded up to ticks, during which nothing else is solved.
        first_iterations: largest number of iterations for the first plan, before the clock starts.
        gradient: mode of the derivatives along the horizon. Default: the problem's own.

    Raises before anything is compiled: `OptionError`, `ShapeError`.
    """

    def __init__(
        self,
        problem: OptimalControlProblem,
        solver: FeedbackSolver,
        plant: Plant | System,
        period: float,
        *,
        time_budget: float | None = None,
        max_iterations: int = 1,
        delay: float | str = 0.0,
        first_iterations: int = 50,
        gradient: str | None = None,
    ) -> None:
        if not isinstance(problem, OptimalControlProblem):
            raise OptionError(f"problem is {type(problem).__name__}; a receding horizon solves an OptimalControlProblem")
        if isinstance(solver, type) or not isinstance(solver, FeedbackSolver):
            name = solver.__name__ if isinstance(solver, type) else getattr(solver, "name", repr(solver))
            raise OptionError(f"solver {name} has no feedback gains, which act between solves; use solvers.iLQR()")
        self.problem, self.solver = problem, solver
        self.plant: Plant = _as_plant(plant)
        _check_sizes(problem, self.plant)
        self.period = float(period)
        self.ticks = self._whole_ticks("period", period)
        self.delay_ticks = None if delay == MEASURED else self._delay(delay)
        self.time_budget = self.period if time_budget is None else float(time_budget)
        if not self.time_budget > 0:
            raise OptionError(f"time_budget is {time_budget}; expected a positive number of seconds")
        for key, value in (("max_iterations", max_iterations), ("first_iterations", first_iterations)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{key} is {value!r}; expected a whole number of at least 1")
        self.max_iterations, self.first_iterations = max_iterations, first_iterations
        self.replanning = solver.replanning(problem.compile(gradient))

    def _whole_ticks(self, key: str, value: Any) -> int:
        tick = self.plant.dt
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not (number and np.isfinite(value) and value >= 0):
            raise OptionError(f"{key} is {value!r}; expected a number of seconds")
        count = float(value) / tick
        whole = round(count)
        if abs(count - whole) > ROUNDING * max(1.0, count) or (key == "period" and whole < 1):
            near = max(1, whole) * tick
            raise OptionError(
                f"{key} is {value} s, which is not a multiple of {tick:g} s, the step of {self.plant.name}; use {near:g} s, or a "
                "plant with another step"
            )
        return whole

    def _delay(self, delay: Any) -> int:
        if isinstance(delay, str):
            raise OptionError(f"delay is '{delay}'; expected seconds or '{MEASURED}'")
        return self._whole_ticks("delay", delay)

    def _measured(self) -> Float[np.ndarray, " nx"]:
        x = np.asarray(self.plant.state, self.problem.dtype)
        if x.shape != (self.problem.nx,):
            raise ShapeError(f"{self.plant.name}: the measured state has shape {x.shape}; expected ({self.problem.nx},)")
        return x

    def _start(self, x0: Any) -> Float[np.ndarray, " nx"]:
        """Where the plant starts. Raises `ShapeError`, `NonFiniteError`."""
        flat = self.problem.x0 if x0 is None else flat_state(x0) if isinstance(x0, State) else x0
        x = np.asarray(flat, self.problem.dtype)
        if x.shape != (self.problem.nx,):
            raise ShapeError(f"x0 has shape {x.shape}; expected ({self.problem.nx},) for problem '{self.problem.name}'")
        if not np.isfinite(x).all():
            raise NonFiniteError("x0 has non-finite entries")
        return x

    def _check_pushes(self, pushes: Sequence[Push]) -> None:
        for push in pushes:
            if not isinstance(push, Push):
                raise OptionError(f"pushes holds {push!r}; expected control.Push(body, force, start, duration)")
            if push.body not in self.plant.bodies:
                raise UnknownNameError(f"{self.plant.name} has no body '{push.body}'{closest(push.body, self.plant.bodies)}")

    def compile(self) -> float:
        """Compile what a run needs, unless it is there; returns the seconds that took."""
        return 0.0 if "_programs" in vars(self) else self._programs[2]

    @functools.cached_property
    def _programs(self) -> tuple[Any, Any, float]:
        """The programs of an iteration and of the control, and the seconds that compiling them took."""
        replanning, problem = self.replanning, self.problem
        x = jax.ShapeDtypeStruct(problem.x0.shape, problem.dtype)
        number = jax.ShapeDtypeStruct((), problem.dtype)
        plan = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), replanning.blank())
        iterate, first = programs.compiled(Replanning.replan, replanning, x, number, number, plan, number)
        control, second = programs.compiled(Replanning.control, replanning, x, number, plan)
        return iterate, control, first + second

    def solve(
        self, x: Float[np.ndarray, " nx"], time_s: float, shift: float, plan: Plan, damping: Any, iterations: int
    ) -> tuple[Replanned, int, float]:
        """(what became of `plan`, iterations done, seconds that they took), from x at the plant's time `time_s`, the plan having
        been made `shift` knots ago."""
        self.compile()
        check_process()
        begin = last = time.perf_counter()
        start_time = np.asarray(self.problem.start_time + time_s, self.problem.dtype)
        shifted = np.asarray(shift, self.problem.dtype)
        cost_before, accepted, count = None, False, 0
        while True:
            result = self._programs[0](x, start_time, shifted, plan, damping)
            ok = bool(result.finite)  # waits for the program
            count, now = count + 1, time.perf_counter()
            cost_before = result.cost_before if cost_before is None else cost_before
            accepted = accepted or bool(result.accepted)
            over = now - begin + (now - last) > self.time_budget
            if not ok or not bool(result.accepted) or count >= iterations or over:
                return dataclasses.replace(result, cost_before=cost_before, accepted=accepted), count, now - begin
            plan, damping, shifted, last = result.plan, result.damping, np.zeros_like(shifted), now

    def _first_plan(self, x: Float[np.ndarray, " nx"]) -> tuple[Replanned, int, float]:
        """Iterations at the start until they change nothing."""
        plan, damping = self.replanning.first(), np.asarray(self.replanning.damping, self.problem.dtype)
        total, count, cost = 0.0, 0, math.inf
        while True:
            result, _, seconds = self.solve(x, 0.0, 0.0, plan, damping, 1)
            total, count = total + seconds, count + 1
            if not bool(result.finite):
                raise NonFiniteError(
                    f"problem '{self.problem.name}': the first plan is not finite; give a guess (u0, guesses.quasi_static) whose "
                    "motion is"
                )
            new = float(result.cost)
            done = not bool(result.accepted) or abs(cost - new) <= SAME_COST * max(abs(new), SAME_COST)
            if done or count >= self.first_iterations:
                return result, count, total
            plan, damping, cost = result.plan, result.damping, new

    def run(self, duration: float, *, x0: Any = None, pushes: Sequence[Push] = ()) -> Recording:
        """Drive the plant for `duration` s from x0 (a `State` or flat; default the problem's).

        A plant whose state is not finite raises `NonFiniteError` with the time at which it was measured.
        """
        start = self._start(x0)
        self._check_pushes(pushes)
        count = self._whole_ticks("duration", duration)
        compiled = self.compile()
        self.plant.reset(start)
        first, iterations, seconds = self._first_plan(start)
        log = _Log(self, first, pushes)
        for tick in range(count):
            log.tick(tick)
        return log.recording(iterations, seconds, compiled)


class _Log:
    """The mutable bookkeeping of one run."""

    def __init__(self, horizon: RecedingHorizon, first: Replanned, pushes: Sequence[Push]) -> None:
        self.horizon, self.pushes, self.damping = horizon, pushes, first.damping
        dt = horizon.problem.dt
        assert dt is not None  # validation of a problem sets it
        self.knot = dt / horizon.plant.dt  # ticks
        self.acting = self.newest = _Acting(first.plan, 0)
        self.coming: collections.deque[tuple[int, _Acting]] = collections.deque()
        self.free_at = 0  # the tick from which on another solve may begin
        self.xs: list[np.ndarray] = [horizon.plant.state]
        self.us: list[np.ndarray] = []
        self.solves: list[tuple[float, float, float, int, bool, float, float]] = []

    def tick(self, tick: int) -> None:
        """Measure and solve where it is time to, and take one step of the plant."""
        horizon, plant, dtype = self.horizon, self.horizon.plant, self.horizon.problem.dtype
        x = horizon._measured()
        if not np.isfinite(x).all():
            raise NonFiniteError(
                f"{plant.name}: the measured state is not finite at {tick * plant.dt:.6g} s; a smaller step of the plant, or "
                "controls with narrower bounds, may help"
            )
        if tick % horizon.ticks == 0 and tick >= self.free_at:
            self._solve(tick, x)
        while self.coming and self.coming[0][0] <= tick:
            self.acting = self.coming.popleft()[1]
        at = np.asarray((tick - self.acting.begun) / self.knot, dtype)
        u = np.asarray(horizon._programs[1](x, at, self.acting.plan))
        now = tick * plant.dt
        forces: dict[str, np.ndarray] = {}
        for push in self.pushes:
            if push.acts(now, plant.dt):
                forces[push.body] = forces.get(push.body, np.zeros(3)) + np.asarray(push.force)
        plant.step(u, forces)
        self.us.append(u)
        self.xs.append(plant.state)

    def _solve(self, tick: int, x: Float[np.ndarray, " nx"]) -> None:
        horizon, tick_s = self.horizon, self.horizon.plant.dt
        shift = (tick - self.newest.begun) / self.knot
        before = time.process_time()
        result, iterations, latency = horizon.solve(
            x, tick * tick_s, shift, self.newest.plan, self.damping, horizon.max_iterations
        )
        delay = horizon.delay_ticks
        if delay is None:
            delay = math.ceil(latency / tick_s - ROUNDING)
            self.free_at = tick + delay
        accepted = bool(result.accepted) and bool(result.finite)
        if bool(result.finite):  # else the plan that is there goes on
            self.newest, self.damping = _Acting(result.plan, tick), result.damping
            self.coming.append((tick + delay, self.newest))
        row = (
            tick * tick_s,
            latency,
            time.process_time() - before,
            iterations,
            accepted,
            float(result.cost_before),
            float(result.cost),
        )
        self.solves.append(row)

    def recording(self, iterations: int, seconds: float, compiled: float) -> Recording:
        """What was done so far."""
        horizon = self.horizon
        columns = [np.array(column) for column in zip(*self.solves, strict=True)] or [np.zeros(0)] * 7
        t, latency, processor, count, accepted, before, cost = columns
        return Recording(
            t=horizon.plant.dt * np.arange(len(self.xs)),
            xs=np.array(self.xs),
            us=np.array(self.us).reshape(len(self.us), horizon.problem.nu),
            solve_time=t, latency=latency, processor=processor, iterations=count.astype(int),
            accepted=accepted.astype(bool), cost_before=before, cost=cost, period=horizon.period, first_iterations=iterations,
            first_time_s=seconds, compile_time_s=compiled,
        )  # fmt: skip


def _as_plant(plant: Any) -> Plant:
    if isinstance(plant, System):
        return SystemPlant(plant)
    if not isinstance(plant, Plant) or isinstance(plant, type):
        raise OptionError(
            f"plant is {plant!r}; expected a System, control.MujocoPlant.from_file(path), or an object that is a control.Plant"
        )
    return plant


def _check_sizes(problem: OptimalControlProblem, plant: Plant) -> None:
    for what, own, theirs in (("states", problem.nx, plant.nx), ("controls", problem.nu, plant.nu)):
        if own != theirs:
            raise ShapeError(
                f"problem '{problem.name}' has {what} of {own} numbers, {plant.name} of {theirs}; load the same model for both"
            )
