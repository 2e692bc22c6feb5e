"""Whether a motion is one beyond the program that found it: replayed by one rollout, at half the step, and in MuJoCo.

    replays = replay_motion(problem, solution, stiffness=80.0, damping=1.0)
    print(table(replays))

A motion is replayed by its controls alone, held over each step, and by its controls with the joints' feedback,

    u = clip(u_t + kp (q_t - q) + kd (v_t - v)),

which is what a robot does with a plan, or, with `policy`, with the feedback gains of the solution, u_t + K_t (x (-) x_t), or with
others (`control.tracking`). In between the knots of the motion q_t, v_t are interpolated. Reported is how far the base (of a
robot without a free one, the first coordinates) is from the motion's at its knots, and for how long within `near`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt.control.mujoco_plant import MujocoPlant
from trajopt.control.tracking import joint_gains
from trajopt.dynamics.policies import follow_policy
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import OptionError
from trajopt.problems import programs
from trajopt.problems.guesses import quasi_static
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.trajectory import Answer, Trajectory

NEAR = 0.1  # m: how far a base may be from the motion's while it counts as following


@dataclasses.dataclass(frozen=True)
class Replay:
    """A motion taken again. plant: by what, dt: s, its step; feedback: whether the joints' feedback acted; xs: its states at the
    knots of the motion, us: the controls without feedback; drift: distance of the base from the motion's at each knot, m;
    follows: s, for which it was below `near`; error: largest difference of any coordinate."""

    plant: str
    dt: float
    feedback: bool
    xs: Float[np.ndarray, "T1 nx"]
    us: Float[np.ndarray, "T nu"]
    drift: Float[np.ndarray, " T1"]
    follows: float
    error: float


def replay_motion(
    problem: OptimalControlProblem,
    solution: Answer,
    *,
    model_file: str | None = None,
    steps: Sequence[float] = (0.0005, 0.001, 0.002, 0.004),
    stiffness: float | Float[np.ndarray, " nu"] = 80.0,
    damping: float | Float[np.ndarray, " nu"] = 1.0,
    policy: bool = False,
    gains: Float[np.ndarray, "T nu n"] | None = None,
    hold: float = 0.0,
    near: float = NEAR,
) -> list[Replay]:
    """The replays of a solution: one rollout of its controls; at half the step, and in MuJoCo at each of `steps` (s), both ways.

    model_file: MJCF for MuJoCo, None: none. stiffness, damping: of the feedback, N m/rad and N m s/rad; policy: the gains of
    the solution take their place, in one rollout too; gains: others. hold: s, for which the robot is to stay in the last pose
    afterwards, by the torques that hold it where some do (`quasi_static`), by the last controls elsewhere. The limits are those
    of the motors. Raises `OptionError` without a `System` whose motors drive one joint each.
    """
    system, dt = problem.system, problem.dt
    if system is None or dt is None:
        raise OptionError(f"problem '{problem.name}' has no System; only a System's motions are replayed")
    motion = problem.point_of(solution)
    K = _gains(problem, solution, policy, gains, stiffness, damping)
    motion, K = _held(system, motion, K, round(hold / dt))
    half = dataclasses.replace(system, dt=dt / 2)
    bounds = np.asarray(system.model.control_lower), np.asarray(system.model.control_upper)  # a plan may keep below them
    replays = []
    for feedback in (False, True) if policy or gains is not None else (False,):
        xs = _rolled(system, motion, K, 1, feedback, bounds)
        replays.append(_judged("one rollout", dt, feedback, xs, motion, system, dt, near))
    for feedback in (False, True):
        xs = _rolled(half, motion, K, 2, feedback, bounds)
        replays.append(_judged("half the step", dt / 2, feedback, xs, motion, system, dt, near))
    for step in steps if model_file is not None else ():
        for feedback in (False, True):
            plant = MujocoPlant.from_file(str(model_file), step)
            xs = _in_plant(plant, system, motion, K, dt, feedback, bounds)
            replays.append(_judged(plant.name, step, feedback, xs, motion, system, dt, near))
    return replays


def _gains(
    problem: OptimalControlProblem, solution: Answer, policy: bool, gains: Any, stiffness: Any, damping: Any
) -> Float[np.ndarray, "T nu n"]:
    """Of the feedback, at each step."""
    system, T = problem.system, problem.horizon
    assert system is not None
    if gains is not None:
        if policy or np.shape(gains) != (T, problem.nu, problem.n):
            raise OptionError(f"gains has shape {np.shape(gains)}; expected {(T, problem.nu, problem.n)}, without policy")
        return np.asarray(gains)
    if policy:
        K = getattr(solution, "gains", None)
        if K is None:
            raise OptionError("policy asks for the feedback gains of a solution by iLQR or DDP; this one has none")
        return np.asarray(K)
    K = joint_gains(system.model, stiffness, damping)
    return np.broadcast_to(K, (T, *K.shape))


def _held(
    system: System, motion: Trajectory, K: Float[np.ndarray, "T nu n"], more: int
) -> tuple[Trajectory, Float[np.ndarray, "T2 nu n"]]:
    """The motion and its gains with the last of all `more` times again; velocities there are zero, the controls those that hold
    the last pose, where some do: what brings a motion to rest in its last steps need not."""
    if not more:
        return motion, K
    xs, us, nq = np.asarray(motion.xs), np.asarray(motion.us), system.nq
    rest = np.concatenate([xs[-1, :nq], np.zeros(xs.shape[1] - nq)])
    holding = quasi_static(system, State(jnp.asarray(rest[:nq]), jnp.asarray(rest[nq:])))
    last = holding.torque if holding.held else us[-1]
    xs, us = np.concatenate([xs, np.tile(rest, (more, 1))]), np.concatenate([us, np.tile(last, (more, 1))])
    return Trajectory(xs, us, motion.p), np.concatenate([K, np.repeat(K[-1:], more, 0)])


def table(replays: Sequence[Replay], quantities: Callable[[Replay], Mapping[str, Any]] | None = None) -> str:
    """A line of text for each replay, with what `quantities` says of it."""
    lines = []
    for replay in replays:
        how = "controls and feedback" if replay.feedback else "controls alone"
        more = {} if quantities is None else quantities(replay)
        named = ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in more.items())
        lines.append(
            f"{replay.plant:<14} {replay.dt * 1e3:5.2f} ms  {how:<22} follows {replay.follows:.2f} s, "
            f"at the end {replay.drift[-1]:.3g} m off, error {replay.error:.2g}" + (f"; {named}" if named else "")
        )
    return "\n".join(lines)


def _judged(
    plant: str, step: float, feedback: bool, xs: np.ndarray, motion: Trajectory, system: System, dt: float, near: float
) -> Replay:
    planned = np.asarray(motion.xs)
    place = slice(0, 3) if system.model.topology.joints[0].kind == "free" else slice(0, 2)
    drift = np.linalg.norm(xs[:, place] - planned[:, place], axis=1)
    away = np.flatnonzero(~(drift < near))
    follows = dt * (len(xs) - 1 if not len(away) else max(int(away[0]) - 1, 0))
    return Replay(plant, step, feedback, xs, np.asarray(motion.us), drift, follows, float(np.abs(xs - planned).max()))


def _rolled(
    system: System, motion: Trajectory, K: np.ndarray, parts: int, feedback: bool, bounds: tuple
) -> Float[np.ndarray, "T1 nx"]:
    """The states at the knots, of a `System` that takes `parts` steps between two of them."""
    nq, xs, us = system.nq, np.asarray(motion.xs), np.asarray(motion.us)
    shares = np.tile(np.arange(parts) / parts, len(us))[:, None]
    planned = (1 - shares) * xs[:-1].repeat(parts, 0) + shares * xs[1:].repeat(parts, 0)  # the base's has no feedback
    qs, vs = planned[:, :nq], planned[:, nq:]
    arguments = (qs, vs, us.repeat(parts, 0), K.repeat(parts, 0) * float(feedback), *bounds)
    states, _ = programs.run(_follow, None, system, xs[0], *(np.asarray(a, xs.dtype) for a in arguments))
    return np.concatenate([xs[:1], np.asarray(states)[parts - 1 :: parts]])


def _follow(subject: None, system: System, x0: Any, qs: Any, vs: Any, us: Any, K: Any, lower: Any, upper: Any) -> Any:
    nq = system.nq
    start = State(x0[:nq], x0[nq:])
    states, *_ = follow_policy(system, start, qs, vs, us, K, lower, upper)
    return jnp.concatenate([states.q, states.v], 1)


def _in_plant(
    plant: MujocoPlant, system: System, motion: Trajectory, K: np.ndarray, dt: float, feedback: bool, bounds: tuple
) -> Float[np.ndarray, "T1 nx"]:
    """The states at the knots, of a plant whose step need not divide that of the motion."""
    xs, us, nq, nv = np.asarray(motion.xs), np.asarray(motion.us), system.nq, system.nv
    plant.reset(xs[0])
    states, time = [xs[0]], 0.0
    for t in range(len(us)):
        while time < (t + 1) * dt - 1e-9:
            share = np.clip(time / dt - t, 0.0, 1.0)
            x, planned = plant.state, (1 - share) * xs[t] + share * xs[t + 1]
            u = us[t]
            if feedback:
                dx = np.concatenate([plant.difference(planned[:nq], x[:nq]), x[nq:] - planned[nq : nq + nv]])
                u = u + K[t] @ dx
            plant.step(np.clip(u, *bounds), {})
            time += plant.dt
        states.append(plant.state)
    return np.array(states)
