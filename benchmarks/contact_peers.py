"""Sampling planners on MuJoCo beside `solvers.solve`: the same models, starts, costs and horizons, a budget of processor time.

    python benchmarks/contact_peers.py spinner push-box --seeds 5 --budget 4
    python benchmarks/contact_peers.py --judo PATH     # site-packages with judo-rai: its planners too, unchanged

A peer plans open loop for the whole horizon from doing nothing: knots of a linear interpolation of the controls, `mujoco.rollout`
in steps of 5 ms. It is judged in MuJoCo, this project with its own rigid contact: each by the model that it plans with.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

jax.config.update("jax_enable_x64", True)

import mujoco  # noqa: E402
import mujoco.rollout  # noqa: E402
import numpy as np  # noqa: E402
from measure import banner, mujoco_model  # noqa: E402

from trajopt import problems, solvers  # noqa: E402

STEP, KNOTS, SAMPLES = 0.005, 10, 32  # s
SPREAD = {"spinner": 4.0, "push-box": 1.5}  # of predictive sampling's noise, N m or N


class Scene:
    """A task in MuJoCo: `cost` of knots (N, knots, nu), and the goals that a plan reaches, beside their tolerances."""

    def __init__(self, task: str, problem: Any, knots: int = KNOTS) -> None:
        self.task, self.problem = task, problem
        self.model = mujoco_model(task, STEP)
        self.data = mujoco.MjData(self.model)
        self.steps = round(problem.horizon * problem.dt / STEP)
        self.start = np.concatenate([[0.0], np.asarray(problem.x0)])
        self.bound = np.asarray(problem.system.model.control_upper)
        at = np.linspace(0.0, knots - 1.0, self.steps)
        low = np.minimum(at.astype(int), knots - 2)
        self.low, self.share = low, (at - low)[:, None]
        self.goal = np.array([0.15, 0.1, 0.5]) if task == "push-box" else self.start[1:4] + [0.0, 0.0, 2.0]

    def states(self, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(controls, states without time) of each sample."""
        u = (1 - self.share) * knots[:, self.low] + self.share * knots[:, self.low + 1]
        u = np.clip(u, -self.bound, self.bound)
        starts = np.tile(self.start, (len(u), 1))
        return u, mujoco.rollout.rollout(self.model, self.data, starts, u)[0][..., 1:]

    def cost(self, knots: np.ndarray) -> np.ndarray:
        """That of the problem's page."""
        u, x = self.states(knots)
        q, v = x[..., : self.model.nq], x[..., self.model.nq :]
        if self.task == "spinner":
            share = np.linspace(0.0, 1.0, self.steps + 1)[1:, None]
            stage = [q - self.start[1:4] - share * (self.goal - self.start[1:4]), 0.1**0.5 * v, 0.1**0.5 * u]
            last = [[3.0, 3.0, 10.0] * (q[:, -1] - self.goal), 0.1**0.5 * v[:, -1]]
        else:
            stage = [[3, 3, 1] * (q[..., :3] - self.goal), 0.05 * v, 0.05 * u, 0.3 * (q[..., 3:] - q[..., :2])]
            last = [[30, 30, 10] * (q[:, -1, :3] - self.goal), 0.3 * v[:, -1]]
        return STEP / 2 * sum((r**2).sum((1, 2)) for r in stage) + 0.5 * sum((r**2).sum(1) for r in last)

    def missed(self, knots: np.ndarray) -> list[float]:
        """How far off each goal, m or rad, beside its tolerance."""
        q = self.states(knots[None])[1][0, -1]
        if self.task == "spinner":
            return [abs(q[2] - self.goal[2]) / 0.1]
        return [np.abs(q[:2] - self.goal[:2]).max() / 0.01, abs(q[2] - self.goal[2]) / 0.05]


def predictive(scene: Scene, seed: int) -> Iterator[np.ndarray]:
    """Predictive sampling (Howell et al., 2022): noise about the best plan, the best of them and it is the next one."""
    generator, best = np.random.default_rng(seed), np.zeros((KNOTS, scene.model.nu))
    while True:
        noise = generator.normal(size=(SAMPLES - 1, *best.shape)) * SPREAD[scene.task]
        drawn = np.concatenate([best[None], best + noise])
        best = drawn[np.argmin(scene.cost(drawn))]
        yield best


def judo(kind: str) -> Callable[[Scene, int], Iterator[np.ndarray]]:
    """A planner of judo-rai, its options but for the size of the noise as it comes."""

    def plans(scene: Scene, seed: int) -> Iterator[np.ndarray]:
        from judo import optimizers

        np.random.seed(seed)  # noqa: NPY002, judo draws from NumPy's own generator
        size = {"sigma": SPREAD[scene.task]} if kind != "CrossEntropyMethod" else {"sigma_max": SPREAD[scene.task]}
        config = getattr(optimizers, f"{kind}Config")(num_rollouts=SAMPLES, num_nodes=KNOTS, **size)
        planner = getattr(optimizers, kind)(config, scene.model.nu)
        best = np.zeros((KNOTS, scene.model.nu))
        times = np.linspace(0.0, 1.0, KNOTS)
        while True:
            planner.pre_optimization(times, times)
            drawn = np.clip(planner.sample_control_knots(best), -scene.bound, scene.bound)
            best = planner.update_nominal_knots(drawn, -scene.cost(drawn))
            yield best

    return plans


def row(name: str, runs: list[tuple[float | None, list[float]]]) -> None:
    """Goals met, processor seconds to there (median of those that met them), the worst goal beside its tolerance (median)."""
    met = [seconds for seconds, _ in runs if seconds is not None]
    worst = np.median([max(missed) for _, missed in runs])
    print(f"| {name} | {len(met)} of {len(runs)} | {f'{np.median(met):.1f}' if met else '-'} | {worst:.2g} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(SPREAD))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=4.0, help="processor seconds of a peer")
    parser.add_argument("--judo", help="site-packages that hold judo-rai")
    options = parser.parse_args()
    peers: dict[str, Callable[[Scene, int], Iterator[np.ndarray]]] = {"predictive sampling": predictive}
    if options.judo:
        sys.path.append(options.judo)
        peers |= {f"judo {kind}": judo(kind) for kind in ("PredictiveSampling", "CrossEntropyMethod", "MPPI")}
    print(banner().replace(", one pinned", ""))
    for task in options.tasks:
        print(f"\n{task}\n\n| planner | goals met | processor time to the goals, s | worst goal / tolerance |\n|---|---|---|---|")
        made = [problems.get(task, seed=seed) for seed in range(options.seeds)]
        solvers.solve(made[0])  # compiles
        runs: list[tuple[float | None, list[float]]] = []
        for problem in made:
            start = time.process_time()
            solution = solvers.solve(problem)
            spent = time.process_time() - start
            runs.append((spent if solution.success else None, [g.value / g.tolerance for g in solution.goals.values()]))
        row("`solvers.solve(problem)`", runs)
        for name, plans in peers.items():
            row(name, [timed(Scene(task, problem), plans, seed, options.budget) for seed, problem in enumerate(made)])


def timed(scene: Scene, plans: Any, seed: int, budget: float) -> tuple[float | None, list[float]]:
    """(processor seconds until the goals were met, the goals of the plan when the budget is spent)."""
    start, reached = time.process_time(), None
    for plan in plans(scene, seed):
        missed, spent = scene.missed(plan), time.process_time() - start
        if reached is None and max(missed) <= 1.0:
            reached = spent
        if spent > budget:
            return reached, missed
    raise AssertionError("plans do not end")


if __name__ == "__main__":
    main()
