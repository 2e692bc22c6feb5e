"""Goals of the library's problems once more in NumPy, apart from problems and solvers, and whether `success` agrees with them.

    python benchmarks/library_table.py --solutions runs/library        # saves the solutions
    python benchmarks/goals_in_numpy.py runs/library                   # the ones that disagree; ends with 1 if there are any

A motion is the rollout of a solution's controls by the problem's `System`. It is to be a success if and only if it meets every
goal of `GOALS`, which are those of the problem at its default settings, and those that the certificate states, and keeps all
constraints and bounds. Frames and the centre of mass come from MuJoCo.
"""

import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import mujoco
import numpy as np

from trajopt import problems
from trajopt.models import bundled_file

Values = dict[str, tuple[float, float]]  # value and tolerance of each goal


def rotation(q: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """The rotation vectors from one unit quaternion to others, rad, (..., 3)."""
    w, x, y, z = reference
    conjugate = np.array([[w, x, y, z], [-x, w, z, -y], [-y, -z, w, x], [-z, y, -x, w]])
    d = np.asarray(q) @ conjugate.T
    d = np.where(d[..., :1] < 0, -d, d)
    length = np.linalg.norm(d[..., 1:], axis=-1, keepdims=True)
    return 2 * np.arctan2(length, d[..., :1]) * d[..., 1:] / np.maximum(length, 1e-300)


def largest(values: Any) -> float:
    return float(np.abs(values).max())


def short(value: float, asked: float) -> float:
    return max(float(asked - value), 0.0)


def tilted(q: np.ndarray) -> float:
    return float(2 * np.arcsin(min(np.linalg.norm(q[4:7]), 1.0)))


def standing(home: np.ndarray, q: np.ndarray, v: np.ndarray) -> Values:
    return {"height": (short(q[2], home[2]), 0.05), "upright": (tilted(q), 0.1), "at rest": (largest(v[:6]), 0.1)}


def placed(name: str, q: np.ndarray, ball: np.ndarray | None = None) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """A bundled model in MuJoCo at a configuration."""
    model = mujoco.MjModel.from_xml_path(str(bundled_file(name)))
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    return model, data


def running(speed: float, share: float, upright: float) -> Callable[..., Values]:
    def goals(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
        asked = speed * problem.horizon * problem.dt
        return {"distance": (short(q[-1, 0], asked), (1 - share) * asked), "upright": (largest(q[:, 2]), upright)}

    return goals


def swing_up(distance: float) -> Callable[..., Values]:
    def goals(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
        upright = np.asarray(problem.system.model.keyframes["upright"])[1:]
        return {
            "cart": (largest(q[-1, 0] - distance), 0.01), "upright": (largest(q[-1, 1:] - upright), 0.02),
            "at rest": (largest(v[-1]), 0.1),
        }  # fmt: skip

    return goals


def pushed(thing: str) -> Callable[..., Values]:
    def goals(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
        x = 0.15 if thing == "box" else 0.1
        return {f"{thing} position": (largest(q[-1, :2] - [x, 0.1]), 0.01), f"{thing} yaw": (abs(q[-1, 2] - 0.5), 0.05)}

    return goals


def hand(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
    wanted = np.array([np.cos(np.pi / 6), 0.0, 0.0, np.sin(np.pi / 6)])
    return {
        "turn": (largest(rotation(q[-1, 19:23], wanted)), np.pi / 18), "drift": (largest(q[-1, 16:19] - q[0, 16:19]), 0.02)
    }  # fmt: skip


def arms(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
    return {"place": (largest(q[-1, 12:15] - q[0, 12:15] - [0, 0, 0.3]), 0.03), "speed": (largest(v[-1, 12:15]), 0.2)}


def step_up(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
    home = np.asarray(problem.system.model.keyframes["home"])
    x, z, pitch = np.abs(q[-1, :3] - home[:3] - [0.5 + 0.25, 0.1, 0.0])
    _, data = placed("hopper-step", q[-1])
    return {
        "distance": (x, 0.05), "height": (z, 0.05), "pitch": (pitch, 0.1), "speed": (largest(v[-1, :2]), 0.5),
        "foot": (abs(data.body("foot").xpos[2] - 0.1 - 0.06), 0.02),
    }  # fmt: skip


def reach(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
    from trajopt.problems.library.arm_obstacle import draw

    _, data = placed("arm-obstacle", q[-1])
    place = draw(problem.system.model, 0).place
    return {"tool position": (largest(data.site("tool").xpos - place), 5e-3), "speed": (largest(v[-1]), 0.1)}


def climb(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
    home = np.asarray(problem.system.model.keyframes["home"])
    _, data = placed("go1-climb", q[-1])
    feet = [data.geom(f"{leg}_foot").xpos[2] - 0.15 - 0.023 for leg in ("FR", "FL", "RR", "RL")]
    return {
        "trunk position": (largest(q[-1, :3] - home[:3] - [0.35 + 0.3, 0.0, 0.15]), 0.05),
        "trunk rotation": (largest(rotation(q[-1, 3:7], home[3:7])), 0.1), "feet": (largest(feet), 0.02),
        "speed": (largest(v[-1, :3]), 0.2),
    }  # fmt: skip


def jump(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
    home = np.asarray(problem.system.model.keyframes["home"])
    return {"apex": (short(q[:, 2].max(), home[2] + 0.25), 0.01)} | standing(home, q[-1], v[-1])


def flip(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
    home = np.asarray(problem.system.model.keyframes["home"])
    turned = np.abs(rotation(q[:, 3:7], np.array([0.0, 0.0, -1.0, 0.0]))).max(-1).min()
    return {"upside down": (float(turned), 0.5)} | standing(home, q[-1], v[-1])


def trot(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
    home = np.asarray(problem.system.model.keyframes["home"])
    asked = home[0] + 0.95 * 0.5 * (problem.horizon * problem.dt - 0.5)
    return {
        "distance": (short(q[-1, 0], asked), 0.05), "upright": (largest(rotation(q[:, 3:7], home[3:7])[:, :2]), 0.2)
    }  # fmt: skip


def step(problem: Any, q: np.ndarray, v: np.ndarray) -> Values:
    home = np.asarray(problem.system.model.keyframes["home"])
    ahead = [placed("h1", at)[1].subtree_com[1, 0] for at in (home, q[-1])]
    return {"step": (abs(ahead[1] - ahead[0] - 0.15), 0.02)} | standing(home, q[-1], v[-1])


# (problem, q (T+1, nq), v (T+1, nv)) -> value and tolerance of each of its goals, without those of the certificate.
GOALS: Mapping[str, Callable[[Any, np.ndarray, np.ndarray], Values]] = {
    "cartpole-swingup": swing_up(1.0),
    "double-cartpole-swingup": swing_up(0.0),
    "drone-takeoff": lambda problem, q, v: {"height": (abs(q[-1, 0] - 5.0), 0.01)},
    "catapult": lambda problem, q, v: {"cube": (largest(q[-1, :2] - [2.2, 2.2]), 1e-3)},
    "jump-worm": lambda problem, q, v: {"height": (short(q[-1, 1], 0.45), 0.05)},
    "atlas-jump": lambda problem, q, v: {"apex": (abs(q[-1, 2] - 1.2), 5e-3)},
    "atlas-jump-landing": lambda problem, q, v: {"apex": (short(q[:, 2].max(), 1.2), 0.02)},
    "go1-jump": jump,
    "go1-backflip": flip,
    "go1-trot": trot,
    "h1-step": step,
    "spinner": lambda problem, q, v: {"turn": (abs(q[-1, 2] - q[0, 2] - 2.0), 0.1)},
    "push-box": pushed("box"),
    "push-t": pushed("T"),
    "in-hand-rotation": hand,
    "two-arm-lift": arms,
    "hopper-step": step_up,
    "arm-obstacle": reach,
    "go1-climb": climb,
    "hopper-hops": running(0.7, 0.8, 0.3),
    "half-cheetah-sprint": running(3.0, 0.475, 0.6),
    "half-cheetah": running(1.9, 0.75, 0.5),
    "hopper": running(1.0, 0.75, 0.2),
}


def values_of(problem: Any, us: np.ndarray) -> Values:
    """The goals of `GOALS` along the rollout of controls."""
    states, _ = problem.system.rollout(problem.as_state(jnp.asarray(problem.x0)), jnp.asarray(us))
    return GOALS[problem.name](problem, *(np.asarray(a) for a in (states.q, states.v)))


def met(problem: Any, values: Values, residuals: Mapping[str, float]) -> bool:
    """Whether all goals are met, those of the certificate among them; residuals: recomputed."""
    values = values | {name: (residuals[name], problem.certificate.tolerances[name]) for name in problem.certificate.goals}
    return all(value <= tolerance for value, tolerance in values.values())


def broken(problem: Any, residuals: Mapping[str, float]) -> list[str]:
    """The constraints and bounds, beside goals, that are not kept."""
    limits = {name: limit for name, limit in problem.limits.items() if not name.startswith("goal ")}
    return [
        f"{name} is {residuals[name]:.3g}, allowed {limit:.3g}"
        for name, limit in limits.items()
        if name not in problem.certificate.goals and not residuals[name] <= limit
    ]


def main(folder: pathlib.Path) -> int:
    from trajopt.solvers.loop.solution import Solution

    wrong = total = refused = 0
    by_problem: dict[str, dict[bool, list[str]]] = {}
    for path in sorted(folder.iterdir()):
        solution = Solution.load(path)
        problem = problems.get(solution.problem)
        values = values_of(problem, solution.us) if solution.problem in GOALS else {}
        good, reasons = met(problem, values, solution.residuals), broken(problem, solution.residuals)
        total += 1
        by_problem.setdefault(solution.problem, {True: [], False: []})[good].append(solution.solver)
        if good and reasons:
            refused += 1
            print(f"{path.name}: goals are met, and {', '.join(reasons)}", flush=True)
        if (good and not reasons) != solution.success:
            wrong += 1
            shown = ", ".join(f"{name} {value:.3g} of {tolerance:.3g}" for name, (value, tolerance) in values.items())
            print(f"{path.name}: success is {solution.success}, goals say {good}: {shown}; {solution.message}", flush=True)
    print("\n| problem | goals met by | not by |\n|---|---|---|")
    for name in filter(by_problem.get, problems.names()):
        print(f"| {name} | {' | '.join(', '.join(by_problem[name][good]) for good in (True, False))} |")
    print(f"\n{total} solutions, {refused} that meet the goals and break a bound, {wrong} that disagree")
    return int(wrong > 0)


if __name__ == "__main__":
    import jax

    jax.config.update("jax_enable_x64", True)
    sys.exit(main(pathlib.Path(sys.argv[1])))
