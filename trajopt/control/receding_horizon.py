"""A horizon that recedes: a controller that plans drives a plant, and what both did is recorded.

Every `period` the state of the plant is measured and a plan is made of it (`controller`), which acts from `delay` after the
measurement on. The plant does not wait: while a plan is made the last one acts.
"""

import concurrent.futures
import copy
import dataclasses
import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt.control.controller import Acting, Controller, Plans, Solve
from trajopt.control.plants import Plant, Push, SystemPlant
from trajopt.control.recording import Recording
from trajopt.control.warned import warn_of
from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.system import System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.names import NamedOptions, closest
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.solvers.planners import seeded

MEASURED = "measured"
ROUNDING = 1e-6  # of a tick: periods and delays nearer than that to whole ticks are whole ticks


class RecedingHorizon(WithoutCaches, NamedOptions):
    """Plans again and again from the measured state of `plant`, and drives the plant by the plan.

    Options:
        problem: an `OptimalControlProblem`; the plant starts at its `x0`, the first plan at its guess. Costs and
            references see the time of the whole motion: t = start_time + the plant's.
        solver: `iLQR`, `DDP`, `PredictiveSampling`, `MPPI`, `CEM`, `CMAES`, `StochasticSearch` or `Hybrid`.
        plant: a `System`, a `MujocoPlant`, or anything that is a `Plant`; it may have another time step than the problem.
        period (s): time between measurements, whole ticks of the plant.
        delay (s): time from a measurement until its plan acts, whole ticks; or "measured": the time that the solve took,
            rounded up to ticks, during which nothing else is solved. A plan starts from the predicted state at the moment when
            it acts; a measured delay is predicted to be the last one.
        time_budget, max_iterations, first_iterations, gradient: of a solve, as `Controller` has them.

    Raises before anything is compiled: `OptionError`, `ShapeError`.
    """

    def __init__(
        self,
        problem: OptimalControlProblem,
        solver: Any,
        plant: Plant | System,
        period: float,
        *,
        time_budget: float | None = None,
        max_iterations: int | None = None,
        delay: float | str = 0.0,
        first_iterations: int = 200,
        gradient: str | None = None,
    ) -> None:
        self.controller = Controller(
            problem, solver, period, time_budget=time_budget, max_iterations=max_iterations,
            first_iterations=first_iterations, gradient=gradient,
        )  # fmt: skip
        self.plant: Plant = _as_plant(plant)
        _check_sizes(problem, self.plant)
        self.ticks = self._whole_ticks("period", period)
        self.delay_ticks = None if delay == MEASURED else self._delay(delay)
        self.controller.delay = 0.0 if self.delay_ticks is None else self.delay_ticks * self.plant.dt

    @property
    def problem(self) -> OptimalControlProblem:
        """What is solved."""
        return self.controller.problem

    @property
    def solver(self) -> Any:
        """What solves it."""
        return self.controller.solver

    @property
    def period(self) -> float:
        """Time between measurements, s."""
        return self.controller.period

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

    def _start(self, x0: Any) -> Float[np.ndarray, " nx"]:
        """Where the plant starts. Raises `ShapeError`, `NonFiniteError`."""
        x = self.controller.measured(self.problem.x0 if x0 is None else x0, "x0")
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
        return self.controller.compile()

    def set(
        self, *, references: Mapping[str, Any] | None = None, weights: Mapping[str, Any] | None = None
    ) -> None:
        """Other references and weights, as `Controller.set`."""
        self.controller.set(references=references, weights=weights)

    def run(self, duration: float, *, x0: Any = None, pushes: Sequence[Push] = ()) -> Recording:
        """Drive the plant for `duration` s from x0 (a `State` or flat; default the problem's).

        While a measured state is not finite the last plan goes on without feedback, and the first such time is a warning;
        `NonFiniteError` where that outlasts the plan. More than one late or rejected solve in five, and a constraint that the
        plans did not keep, are warnings with the likely cause.
        """
        recording = self._run(duration, x0, pushes)
        warn_of(recording, self.controller)
        return recording

    def run_batch(
        self,
        duration: float,
        *,
        starts: Sequence[Any] | None = None,
        pushes: Sequence[Sequence[Push]] | None = None,
        seeds: Sequence[int] | None = None,
        workers: int | None = None,
    ) -> list[Recording]:
        """Runs for statistics: one for each of `starts` (states, None: the problem's), `pushes` (those of a run) and `seeds` (of
        what solvers draw), which have the same length where they are given.

        Runs are shared among `workers` threads, by default one for each processor, each with a copy of the plant; latencies are
        those of a machine that does as many solves at a time. A run that ends early ends the batch. Raises `OptionError`.
        """
        given = {"starts": starts, "pushes": pushes, "seeds": seeds}
        sizes = {key: len(value) for key, value in given.items() if value is not None}
        if len(set(sizes.values())) != 1 or not all(sizes.values()):
            received = sizes or "none of them"
            raise OptionError(f"a batch needs starts, pushes or seeds of one length, at least 1; received {received}")
        count = next(iter(sizes.values()))
        for one in starts or []:
            self._start(one)
        for several in pushes or []:
            self._check_pushes(several)
        compiled = self.compile()

        def run(k: int) -> Recording:
            own = copy.copy(self)
            own.plant, own.controller = copy.deepcopy(self.plant), copy.copy(self.controller)
            own.controller.planner = self.controller.planner if seeds is None else seeded(self.controller.planner, int(seeds[k]))
            return own._run(duration, None if starts is None else starts[k], () if pushes is None else pushes[k])

        with concurrent.futures.ThreadPoolExecutor(workers or os.cpu_count()) as pool:
            found = list(pool.map(run, range(count)))
        return [dataclasses.replace(found[0], compile_time_s=compiled), *found[1:]]

    def _run(self, duration: float, x0: Any, pushes: Sequence[Push]) -> Recording:
        """`run` without its warnings."""
        start = self._start(x0)
        self._check_pushes(pushes)
        count = self._whole_ticks("duration", duration)
        compiled = self.compile()
        self.plant.reset(start)
        drive = Drive(self, self.controller.first_plan(start), pushes)
        for _ in range(count):
            drive.tick()
        return drive.recording(compiled)


class Drive:
    """A run, tick by tick: measure and solve where it is time to, act, and keep what was done."""

    def __init__(self, horizon: RecedingHorizon, first: Solve, pushes: Sequence[Push] = ()) -> None:
        self.horizon, self.first, self.pushes = horizon, first, list(pushes)
        self.plans = Plans((Acting(first.result.plan, 0.0, 0.0),))
        self.count = 0  # of ticks
        self.free_at = 0  # the tick from which on another solve may begin
        self.expected = horizon.delay_ticks or 0  # ticks that the next plan is made ahead
        self.blind: float | None = None  # s, since when no measured state was finite
        self.xs: list[np.ndarray] = [horizon.plant.state]
        self.us: list[np.ndarray] = []
        self.solves: list[tuple[float, float, float, int, bool, float, float, np.ndarray]] = []

    @property
    def time(self) -> float:
        """Of the plant, s."""
        return self.count * self.horizon.plant.dt

    @property
    def acting(self) -> Acting:
        """The plan that acts."""
        return self.plans.at(self.time)

    def tick(self) -> None:
        """One step of the plant."""
        horizon, plant, controller = self.horizon, self.horizon.plant, self.horizon.controller
        x = controller.measured(plant.state, f"{plant.name}: the measured state")
        if not np.isfinite(x).all():
            self._go_on_blind()
        else:
            self.blind = None
            if self.count % horizon.ticks == 0 and self.count >= self.free_at:
                self._solve(x)
        u = controller.control_of(self.acting, x, self.time)
        forces: dict[str, np.ndarray] = {}
        for push in self.pushes:
            if push.acts(self.time, plant.dt):
                forces[push.body] = forces.get(push.body, np.zeros(3)) + np.asarray(push.force)
        plant.step(u, forces)
        self.us.append(u)
        self.xs.append(plant.state)
        self.count += 1

    def _go_on_blind(self) -> None:
        """Warn of a measured state that is not finite; raise `NonFiniteError` once the plan is at its end."""
        horizon, name = self.horizon, self.horizon.plant.name
        if self.blind is None:
            self.blind = self.time
            what = f"{name}: the measured state is not finite at {self.time:.6g} s; the last plan goes on without feedback"
            warnings.warn(what, stacklevel=4)
        if self.time > self.acting.begun + horizon.controller.plan_seconds:
            raise NonFiniteError(
                f"{name}: no measured state is finite from {self.blind:.6g} s on, and the plan is at its end; a smaller step of "
                "the plant, or controls with narrower bounds, may help"
            )

    def _solve(self, x: Float[np.ndarray, " nx"]) -> None:
        horizon, controller, tick_s = self.horizon, self.horizon.controller, self.horizon.plant.dt
        before = time.process_time()
        (result, iterations, latency), begun = controller.solve_after(self.expected * tick_s, x, self.time, self.plans)
        delay = self.expected
        if horizon.delay_ticks is None:
            ready = math.ceil(latency / tick_s - ROUNDING)
            self.free_at, self.expected, delay = self.count + ready, ready, max(delay, ready)
        accepted = bool(result.accepted) and bool(result.finite)
        if bool(result.finite):  # else the plan that is there goes on
            self.plans = self.plans.then(Acting(result.plan, begun, (self.count + delay) * tick_s), self.time)
        processor, costs = time.process_time() - before, (float(result.cost_before), float(result.cost))
        row = (self.time, latency, processor, iterations, accepted, *costs, np.asarray(result.violation))
        self.solves.append(row)

    def recording(self, compiled: float) -> Recording:
        """What was done so far."""
        horizon = self.horizon
        columns = [np.array(column) for column in zip(*self.solves, strict=True)] or [np.zeros(0)] * 7 + [np.zeros((0, 0))]
        t, latency, processor, count, accepted, before, cost, violation = columns
        return Recording(
            t=horizon.plant.dt * np.arange(len(self.xs)),
            xs=np.array(self.xs),
            us=np.array(self.us).reshape(len(self.us), horizon.problem.nu),
            solve_time=t, latency=latency, processor=processor, iterations=count.astype(int),
            accepted=accepted.astype(bool), cost_before=before, cost=cost, violation=violation, period=horizon.period,
            first_iterations=self.first.iterations, first_time_s=self.first.seconds, compile_time_s=compiled,
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
