"""Feedback that keeps a motion's goals where the world is not quite the model: gains chosen by trying them on other systems.

A plan with contact is carried out by another world than it was made for: contact gives way, friction and masses differ, steps
are shorter. Which feedback helps depends on the motion: gains that trust the derivative through a contact help while the contact
is as planned, and harm where it is not. Here each candidate follows the motion in systems that differ from the problem's, and the
one that keeps the goals best is taken:

- the gains of the solution, where it has some;
- regulators about the motion (`tracking_gains`) that allow coordinates with a motor and those without one errors of three sizes;
- with a free base feedback of the joints alone (`joint_gains`) in their place: after a touchdown that comes early or late a
  regulator is that of the wrong contacts.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt.control.tracking import joint_gains, tracking_gains
from trajopt.dynamics.policies import follow_policy
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import NonFiniteError, OptionError
from trajopt.problems import programs
from trajopt.problems.goals import Judged, goal_values
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.trajectory import Answer, Trajectory

ERRORS = 0.005, 0.02, 0.1  # m or rad, and ten times as much in m/s or rad/s: what counts as one
STIFFNESS, DAMPING = (30.0, 80.0), 1.0  # N m/rad, N m s/rad
PARTS = 4  # steps of the other systems in one of the problem's
FRICTION, MASS = (0.8, 1.25), (0.9, 1.1)  # factors
KEPT, LOST = 0.5, 50.0  # of a goal's tolerance: less counts as this much, and so does more


def robust_gains(problem: OptimalControlProblem, solution: Answer) -> Float[np.ndarray, "T nu n"]:
    """K_t of u = u_t + K_t (x (-) x_t) with which the goals of a problem are kept best in systems that differ from its own.

    These take steps of a quarter, as they are and with friction of 0.8 and 1.25 and masses of 0.9 and 1.1 times the model's.
    Raises `OptionError` without a `System`, goals or limits of the motors.
    """
    system = problem.system
    if system is None or not problem.goals:
        raise OptionError(f"problem '{problem.name}' has no {'System' if system is None else 'goals'}, by which gains are judged")
    motion, worlds = problem.point_of(solution), other_systems(system)
    candidates = [K for K in _candidates(problem, solution) if np.isfinite(K).all()]
    costs = [
        np.mean([_missed(problem, motion, followed(world, motion, K, PARTS)) for world in worlds]) for K in candidates
    ]
    return candidates[int(np.argmin(costs))]


def other_systems(system: System) -> list[System]:
    """The systems on which gains are tried."""
    fine = dataclasses.replace(system, dt=system.dt / PARTS)
    model = fine.model
    changed = [
        *({"pair_friction": model.pair_friction * k, "frictionloss": model.frictionloss * k} for k in FRICTION),
        *({"mass": model.mass * k, "inertia": model.inertia * k} for k in MASS),
    ]
    return [fine, *(dataclasses.replace(fine, model=model.replace(**leaves)) for leaves in changed)]


def _candidates(problem: OptimalControlProblem, solution: Answer) -> list[Float[np.ndarray, "T nu n"]]:
    system = problem.system
    assert system is not None
    driven = np.abs(np.asarray(system.model.actuation)).sum(1) > 0
    sizes = [(a, a) for a in ERRORS] if driven.all() else list(itertools.product(ERRORS, ERRORS))
    own = getattr(solution, "gains", None)
    found = [] if own is None else [np.asarray(own)]
    if system.model.topology.joints[0].kind == "free":
        joints = [joint_gains(system.model, stiffness, DAMPING) for stiffness in STIFFNESS]
        return found + [np.broadcast_to(K, (problem.horizon, *K.shape)) for K in joints]
    for with_motor, without in sizes:
        error = np.where(driven, with_motor, without)
        try:
            found.append(tracking_gains(problem, solution, np.concatenate([error, 10 * error])))
        except NonFiniteError:  # such a regulator does not exist; another may
            continue
    return found


def _missed(problem: OptimalControlProblem, motion: Trajectory, xs: Float[np.ndarray, "T1 nx"]) -> float:
    """Logarithm of the worst goal beside its tolerance."""
    values = goals_along(problem, motion, xs)
    worst = max(values[name] / max(goal.tolerance, 1e-12) for name, goal in problem.goals.items())
    return float(np.log(np.clip(worst, KEPT, LOST))) if np.isfinite(worst) else float(np.log(LOST))


def goals_along(
    problem: OptimalControlProblem, motion: Trajectory, xs: Float[np.ndarray, "T1 nx"]
) -> dict[str, float]:
    """The value of each goal along states."""
    arrays = (np.asarray(a, problem.dtype) for a in (xs, motion.us, motion.p))
    values = programs.run(goal_values, Judged(problem, problem.goals), Trajectory(*arrays))[0]
    return {name: float(value) for name, value in values.items()}


def followed(
    system: System, motion: Trajectory, K: Float[np.ndarray, "T nu n"], parts: int
) -> Float[np.ndarray, "T1 nx"]:
    """The states at the knots of a motion, of a `System` that follows it with feedback, `parts` steps between two knots.

    The limits are those of the motors: a plan may keep below them.
    """
    nq, xs, us = system.nq, np.asarray(motion.xs), np.asarray(motion.us)
    shares = np.tile(np.arange(parts) / parts, len(us))[:, None]
    planned = (1 - shares) * xs[:-1].repeat(parts, 0) + shares * xs[1:].repeat(parts, 0)  # the base's has no feedback
    arguments = (
        planned[:, :nq], planned[:, nq:], us.repeat(parts, 0), K.repeat(parts, 0), system.model.control_lower,
        system.model.control_upper,
    )  # fmt: skip
    states, _ = programs.run(_follow, None, system, xs[0], *(np.asarray(a, xs.dtype) for a in arguments))
    return np.concatenate([xs[:1], np.asarray(states)[parts - 1 :: parts]])


def _follow(subject: None, system: System, x0: Any, qs: Any, vs: Any, us: Any, K: Any, lower: Any, upper: Any) -> Any:
    nq = system.nq
    start = State(x0[:nq], x0[nq:])
    states, *_ = follow_policy(system, start, qs, vs, us, K, lower, upper)
    return jnp.concatenate([states.q, states.v], 1)
