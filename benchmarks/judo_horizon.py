"""A planner of judo-rai in this project's receding horizon: the same loop, plant, cost, number of rollouts and knots.

Its rollouts are MuJoCo's, in steps of `contact_peers.STEP`: it plans with the plant's own model.
"""

import dataclasses
from typing import Any

import numpy as np
from contact_peers import STEP, Scene

from trajopt.problems import OptimalControlProblem
from trajopt.solvers.plan import Plan, Replanned, place

KNOTS, SAMPLES = 8, 64
SIGMA = 1.5  # N: of the noise, as in contact_peers.py


@dataclasses.dataclass(frozen=True)
class Judo:
    """What `RecedingHorizon` takes as its solver; kind: of judo's optimizers."""

    task: str
    kind: str = "PredictiveSampling"
    seed: int = 0

    def replanning(self, oracle: Any) -> "JudoPlanner":
        """The planner of a problem."""
        return JudoPlanner(self, oracle.problem)


class JudoPlanner:
    """Plans of judo's optimizer over knots of a linear interpolation (`solvers.plan.Planner`)."""

    def __init__(self, solver: Judo, problem: OptimalControlProblem) -> None:
        from judo import optimizers

        self.problem, self.scene = problem, Scene(solver.task, problem, KNOTS)
        config = getattr(optimizers, f"{solver.kind}Config")(num_rollouts=SAMPLES, num_nodes=KNOTS, sigma=SIGMA)
        self.optimizer = getattr(optimizers, solver.kind)(config, problem.nu)
        self.every = round(problem.dt / STEP)
        np.random.seed(solver.seed)  # noqa: NPY002, judo draws from NumPy's own generator

    def on(self, problem: OptimalControlProblem) -> "JudoPlanner":
        """The cost of the scene knows no other numbers."""
        return self

    def compile(self) -> float:
        """Nothing compiles."""
        return 0.0

    def first(self) -> Plan:
        """Doing nothing."""
        problem = self.problem
        xs = np.tile(np.asarray(problem.x0), (problem.horizon + 1, 1))
        return Plan(xs, np.zeros((problem.horizon, problem.nu)), None, np.zeros((KNOTS, problem.nu)))

    def replan(self, x: np.ndarray, time_s: float, shift: float | None, plan: Plan) -> Replanned:
        """One iteration of the optimizer from x about the shifted knots."""
        scene, times = self.scene, np.linspace(0.0, self.problem.horizon - 1.0, KNOTS)
        later = times + (shift or 0.0)
        knots = np.stack([np.interp(later, times, row) for row in plan.memory.T], 1)
        scene.start[1:] = x
        self.optimizer.pre_optimization(times, later)
        drawn = np.clip(self.optimizer.sample_control_knots(knots), -scene.bound, scene.bound)
        costs = scene.cost(drawn)
        best = self.optimizer.update_nominal_knots(drawn, -costs)
        us, xs = (found[0, self.every - 1 :: self.every] for found in scene.states(best[None]))
        finite = bool(np.isfinite(xs).all())
        return Replanned(Plan(np.concatenate([x[None], xs]), us, None, best), costs[0], costs.min(), finite, finite, np.zeros(0))

    def control(self, x: np.ndarray, time: float, plan: Plan) -> np.ndarray:
        """The plan's control."""
        return np.asarray(plan.us)[int(place(float(time), len(plan.us))[0])]
