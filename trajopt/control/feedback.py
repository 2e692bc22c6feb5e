"""Feedback that keeps a motion where the world is not quite the model: the motion is planned again from where the plant is.

A plan with contact is carried out by another world than it was made for: contact gives way, friction and masses differ, steps
are shorter. Gains about the plan are those of its contacts, wrong as soon as a contact comes early, late or not at all. A
`follower` makes a plan anew once in a step, from the measured state,

    minimise    sum_t dt 1/2 (|q_t (-) qbar_t|^2 / e^2 + |v_t - vbar_t|^2 / e_v^2 + |(u_t - ubar_t) / u_max|^2)
                + 1/2 (|q_N (-) qbar_N|^2 / e^2 + |v_N - vbar_N|^2 / e_v^2)

over the next `WINDOW` steps, under `RelaxedContact(RHO)`, which sees a contact that is missed. It knows the motion alone, no
goals. Between two plans their gains act.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from trajopt.control.controller import Controller
from trajopt.control.tracking import tracking_gains
from trajopt.dynamics.model import Model
from trajopt.dynamics.policies import follow_policy
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import NonFiniteError, OptionError
from trajopt.problems import programs
from trajopt.problems.goals import Judged, goal_values
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.residuals import Control, Posture, Velocity
from trajopt.problems.residuals.base import Terms
from trajopt.problems.trajectory import Answer, Trajectory
from trajopt.solvers.ddp.ilqr import iLQR

WINDOW = 50  # steps ahead
RHO = 1e-3  # J
ITERATIONS = 4  # of iLQR, for a plan; fewer where one changes nothing
ERRORS = 0.1, 0.03, 0.01  # m or rad: what counts as one, of coordinates with a motor, of a base, of others without a motor
SPEED = 100.0  # times as much in m/s or rad/s
TRIED = 0.005, 0.02, 0.1  # m or rad, and ten times as much in m/s or rad/s: what counts as an error, of the regulators
PARTS = 4  # steps of the other systems in one of the problem's
FRICTION, MASS = (0.8, 1.25), (0.9, 1.1)  # factors
KEPT, LOST = 0.5, 50.0  # of a goal's tolerance: less counts as this much, and so does more
UNHURRIED = 3600.0  # s: no clock ends a plan, so that a replay is the same again


def robust_feedback(problem: OptimalControlProblem, solution: Answer) -> Float[np.ndarray, "T nu n"] | Controller:
    """A `follower`, or gains (`robust_gains`) where it misses a goal in one of several systems, with other friction, and they
    miss less in the worst of them.

    Without goals, or with a base, which has no motor and carries joints that do and whose touchdowns leave gains about a motion
    those of the wrong contacts, a `follower`.
    Raises `OptionError` without a `System`.
    """
    system = problem.system
    if system is None:
        raise OptionError(f"problem '{problem.name}' has no System; only a System's motions are followed")
    if not problem.goals or _driven_and_base(system.model)[1].any():
        return follower(problem, solution)
    motion, worlds = problem.point_of(solution), other_systems(system)[: 1 + len(FRICTION)]
    again = [_planned_again(world, motion, follower(problem, solution)) for world in worlds]
    by_plans = _judged([_missed(problem, motion, xs) for xs in again])
    if by_plans[0] <= 0:  # the goals are kept in all systems
        return follower(problem, solution)
    K = robust_gains(problem, solution)
    by_gains = _judged([_missed(problem, motion, followed(world, motion, K, PARTS)) for world in worlds])
    return follower(problem, solution) if by_plans < by_gains else K


def follower(problem: OptimalControlProblem, solution: Answer) -> Controller:
    """A controller that keeps a plant to the motion of a solution: `replan(x, t)` once in a step, `control(x, t)` at every tick.

    Raises `OptionError` without a `System`.
    """
    following = following_problem(problem, solution)
    assert following.dt is not None
    return Controller(
        following, iLQR(smoothing=[RHO]), following.dt, time_budget=UNHURRIED, max_iterations=ITERATIONS,
        first_iterations=ITERATIONS,
    )  # fmt: skip


def following_problem(problem: OptimalControlProblem, solution: Answer) -> OptimalControlProblem:
    """The problem of staying on the motion of a solution, over the first `WINDOW` steps of it, or all where there are fewer."""
    system = problem.system
    if system is None:
        raise OptionError(f"problem '{problem.name}' has no System; only a System's motions are followed")
    motion, model, steps = problem.point_of(solution), system.model, min(WINDOW, problem.horizon)
    (q, v), us = np.split(np.asarray(motion.xs), [system.nq], 1), np.asarray(motion.us)
    error, share = np.select(_driven_and_base(model), ERRORS[:2], ERRORS[2]), np.sqrt(system.dt)
    lower, upper = np.asarray(model.control_lower), np.asarray(model.control_upper)
    largest = np.maximum(np.abs(lower), np.abs(upper))
    effort = 1 / np.where(np.isfinite(largest) & (largest > 0), largest, 1.0)
    place, speed = Posture(reference=q, weight=1 / error), Velocity(reference=v, weight=1 / (SPEED * error))
    staying = [dataclasses.replace(term, weight=share * term.weight) for term in (place, speed)]
    return OptimalControlProblem(
        f"following {problem.name}", system, steps, State(q[0], v[0]), u0=us[:steps], control_lower=lower, control_upper=upper,
        stage_residual=Terms((*staying, Control(reference=us, weight=share * effort))), terminal_residual=Terms((place, speed)),
    )  # fmt: skip


def _driven_and_base(model: Model) -> tuple[Bool[np.ndarray, " nv"], Bool[np.ndarray, " nv"]]:
    """Which coordinates of velocity have a motor, and which have none and carry some that do: those of a base."""
    driven, users = np.abs(np.asarray(model.actuation)).sum(1) > 0, model.topology.user_dofs
    below = model.topology.ancestor_mask[np.ix_(users, users)]
    return driven, ~driven & below[driven].any(0)


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
    costs = [np.mean([_missed(problem, motion, followed(world, motion, K, PARTS)) for world in worlds]) for K in candidates]
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
    driven, _ = _driven_and_base(system.model)
    sizes = [(a, a) for a in TRIED] if driven.all() else list(itertools.product(TRIED, TRIED))
    own = getattr(solution, "gains", None)
    found = [] if own is None else [np.asarray(own)]
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


def _judged(missed: list[float]) -> tuple[float, float]:
    """Of several systems the worst one counts, and where that is equal their mean."""
    return max(missed), float(np.mean(missed))


def _planned_again(
    world: System, motion: Trajectory, controller: Controller
) -> Float[np.ndarray, "T1 nx"]:
    """The states at the knots of a motion, of a `System` that takes `PARTS` steps between two plans."""
    states, dt = [np.asarray(motion.xs)[0]], PARTS * float(world.dt)
    for t in range(len(motion.us)):
        if not np.isfinite(states[-1]).all():
            return np.full_like(motion.xs, np.nan)
        controller.replan(states[-1], t * dt)
        plan = controller.plan
        step = Trajectory(np.asarray(plan.xs)[:2], np.asarray(plan.us)[:1], motion.p)
        states.append(followed(world, step, np.asarray(plan.gains)[:1], PARTS)[-1])
    return np.array(states)


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
