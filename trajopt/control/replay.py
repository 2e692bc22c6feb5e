"""Whether a motion is one beyond the program that found it: replayed by one rollout, at half the step, and in MuJoCo.

    replays = replay_motion(problem, solution, stiffness=80.0, damping=1.0)
    print(table(replays))

A motion is replayed by its controls alone, held over each step, and by its controls with the joints' feedback,

    u = clip(u_t + kp (q_t - q) + kd (v_t - v)),

which is what a robot does with a plan, or, with `policy`, with the feedback gains of the solution, u_t + K_t (x (-) x_t), or
with others (`control.tracking`). In between the knots of the motion q_t, v_t are interpolated. `replay_in_mujoco` plans the
motion again at every knot, or takes gains (`control.feedback.robust_feedback`). Reported is how far the base (of a robot
without a free one, the first coordinates) is from the motion's at its knots, for how long within `near`, and what becomes of
the problem's goals.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt.control.controller import Controller
from trajopt.control.feedback import followed, goals_along, robust_feedback
from trajopt.control.mujoco_plant import MujocoPlant
from trajopt.control.tracking import joint_gains
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import OptionError
from trajopt.models.registry import bundled_file, bundled_models
from trajopt.problems.goals import PREFIX, GoalReport, goal_reports
from trajopt.problems.guesses import quasi_static
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.trajectory import Answer, Trajectory

Feedback = Callable[[Float[np.ndarray, " nx"], int, float], Float[np.ndarray, " nu"]]  # u at a state, after a knot, at a time, s
NEAR = 0.1  # m: how far a base may be from the motion's while it counts as following


@dataclasses.dataclass(frozen=True)
class Replay:
    """A motion taken again.

    Attributes:
        plant: by what.
        dt (s): its step.
        feedback: whether feedback acted.
        xs: its states at the knots of the motion (T+1, nx).
        us: the controls without feedback (T, nu).
        drift (m): distance of the base from the motion's at each knot (T+1,).
        follows (s): for which it was below `near`.
        error: largest difference of any coordinate.
        goals: what became of the problem's goals, by these states.
    """

    plant: str
    dt: float
    feedback: bool
    xs: Float[np.ndarray, "T1 nx"]
    us: Float[np.ndarray, "T nu"]
    drift: Float[np.ndarray, " T1"]
    follows: float
    error: float
    goals: Mapping[str, GoalReport] = dataclasses.field(default_factory=dict)

    def meets_goals(self, within: float = 1.0) -> bool:
        """Whether every goal is met, within so many times its tolerance."""
        return all(goal.value <= within * goal.tolerance for goal in self.goals.values())


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
    replays = []
    for feedback in (False, True) if policy or gains is not None else (False,):
        xs = followed(system, motion, K * float(feedback), 1)
        replays.append(_judged("one rollout", dt, feedback, xs, motion, problem, near))
    for feedback in (False, True):
        xs = followed(half, motion, K * float(feedback), 2)
        replays.append(_judged("half the step", dt / 2, feedback, xs, motion, problem, near))
    for step in steps if model_file is not None else ():
        assert model_file is not None
        for feedback in (False, True):
            plant = _mujoco(system, model_file, step)
            xs = _in_plant(plant, system, motion, _by_gains(plant, system, motion, K * float(feedback)))
            replays.append(_judged(plant.name, step, feedback, xs, motion, problem, near))
    return replays


def replay_in_mujoco(
    problem: OptimalControlProblem,
    solution: Answer,
    *,
    model_file: str | None = None,
    step: float = 0.001,
    gains: Float[np.ndarray, "T nu n"] | None = None,
) -> Replay:
    """A solution in MuJoCo's simulation of the problem's model, with feedback: `replay.goals` says what became of the goals.

    The feedback is that of `control.feedback.robust_feedback`: the motion is planned again at each of its knots, so as to stay on
    it, or gains act.

    model_file: MJCF; default: the bundled file of the model. What is fixed in the world stands where it does in the problem.
    step: of MuJoCo, s. gains: of a feedback that takes the place of that choice. Raises `OptionError` without a `System` or a
    file.
    """
    system = problem.system
    if system is None:
        raise OptionError(f"problem '{problem.name}' has no System; only a System's motions are replayed")
    if model_file is None:
        if system.model.name not in bundled_models():
            raise OptionError(f"model '{system.model.name}' is none of the bundled ones; give its MJCF file as model_file")
        model_file = str(bundled_file(system.model.name))
    plant, motion = _mujoco(system, model_file, step), problem.point_of(solution)
    chosen = robust_feedback(problem, solution) if gains is None else _gains(problem, solution, False, gains)
    dt = float(system.dt)
    feedback = _by_plans(chosen, dt) if isinstance(chosen, Controller) else _by_gains(plant, system, motion, chosen)
    return _judged(plant.name, step, True, _in_plant(plant, system, motion, feedback), motion, problem, NEAR)


def _mujoco(system: System, model_file: str, step: float) -> MujocoPlant:
    """MuJoCo with the shapes of the world where the system's model has them."""
    plant = MujocoPlant.from_file(str(model_file), step)
    places = {shape.name: k for k, shape in enumerate(system.model.topology.shapes) if shape.node < 0}
    for k in np.flatnonzero(plant.model.geom_bodyid == 0):
        index = places.get(plant.model.geom(k).name)
        if index is not None:
            plant.model.geom_pos[k] = np.asarray(system.model.shape_position)[index]
    return plant


def _gains(
    problem: OptimalControlProblem, solution: Answer, policy: bool, gains: Any, stiffness: Any = 80.0, damping: Any = 1.0
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
    plant: str, step: float, feedback: bool, xs: np.ndarray, motion: Trajectory, problem: OptimalControlProblem, near: float
) -> Replay:
    system, dt, planned = problem.system, problem.dt, np.asarray(motion.xs)
    assert system is not None and dt is not None
    place = slice(0, 3) if system.model.topology.joints[0].kind == "free" else slice(0, 2)
    drift = np.linalg.norm(xs[:, place] - planned[:, place], axis=1)
    away = np.flatnonzero(~(drift < near))
    follows = dt * (len(xs) - 1 if not len(away) else max(int(away[0]) - 1, 0))
    error = float(np.abs(xs - planned).max())
    values = {PREFIX + name: value for name, value in goals_along(problem, motion, xs[: problem.horizon + 1]).items()}
    return Replay(
        plant, step, feedback, xs, np.asarray(motion.us), drift, follows, error, goal_reports(problem.goals, values)
    )


def _in_plant(
    plant: MujocoPlant, system: System, motion: Trajectory, feedback: Feedback
) -> Float[np.ndarray, "T1 nx"]:
    """The states at the knots, of a plant whose step need not divide that of the motion, under the limits of the motors."""
    dt, T = float(system.dt), len(motion.us)
    bounds = np.asarray(system.model.control_lower), np.asarray(system.model.control_upper)  # a plan may keep below them
    x0 = np.asarray(motion.xs)[0]
    plant.reset(x0)
    states, time = [x0], 0.0
    for t in range(T):
        while time < (t + 1) * dt - 1e-9:
            plant.step(np.clip(feedback(plant.state, t, time), *bounds), {})
            time += plant.dt
        states.append(plant.state)
    return np.array(states)


def _by_gains(plant: MujocoPlant, system: System, motion: Trajectory, K: Float[np.ndarray, "T nu n"]) -> Feedback:
    """u_t + K_t (x (-) x_t), x_t in between the knots interpolated."""
    xs, us, nq, dt = np.asarray(motion.xs), np.asarray(motion.us), system.nq, float(system.dt)

    def feedback(x: Float[np.ndarray, " nx"], t: int, time: float) -> Float[np.ndarray, " nu"]:
        share = np.clip(time / dt - t, 0.0, 1.0)
        planned = (1 - share) * xs[t] + share * xs[t + 1]
        dx = np.concatenate([plant.difference(planned[:nq], x[:nq]), x[nq:] - planned[nq:]])
        return us[t] + K[t] @ dx

    return feedback


def _by_plans(controller: Controller, dt: float) -> Feedback:
    """A plan made anew at each knot."""
    planned = -1

    def feedback(x: Float[np.ndarray, " nx"], t: int, time: float) -> Float[np.ndarray, " nu"]:
        nonlocal planned
        if t > planned and np.isfinite(x).all():
            planned = t
            controller.replan(x, t * dt)
        return controller.control(x, time)

    return feedback
