"""What the behaviours of the library share: their `System`, via points, and the quantities that every one of them is judged by.

A behaviour is stated by residuals: what the state is to be at a few times and at the end, effort and smoothness. No contact is
scheduled, no foothold and no reference motion is given. The solver samples joint targets (`problems.targets`) until something
of the kind is found, and a gradient solver polishes it.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model
from trajopt.problems.goals import Goal
from trajopt.problems.library.replay import candidate_shapes, replay
from trajopt.problems.parts import Certificate
from trajopt.problems.residuals import Velocity
from trajopt.problems.residuals.base import Residual, Terms
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Trajectory

TOUCHING = 2e-3  # m: a foot nearer to the ground than this is on it
REPLAYED = 1e-6  # largest difference of one rollout of the controls, any coordinate


def damped_system(name: str, dt: float, max_contacts: int | None) -> System:
    """A bundled robot with hard contact, its damping implicit as in MuJoCo's Euler step."""
    return System(load_model(name), dt, RigidContact(max_contacts=max_contacts), implicit_damping=True)


def at_rest(model: Model, q: Float[np.ndarray, " nq"]) -> State:
    """A configuration without velocity."""
    return State(jnp.asarray(q), jnp.zeros(model.nv))


def task(*terms: Residual) -> Terms:
    """The sum of residuals."""
    return Terms(terms)


def short_of(index: int | Int[ArrayLike, ""], asked: float | Float[ArrayLike, ""], x: State) -> Float[Array, " 1"]:
    """What a coordinate lacks to what is asked of it, for goals; their tolerance says how much it may."""
    return jnp.maximum(asked - x.q[index], 0.0)[None]


def turned(x: State) -> Float[Array, " 1"]:
    """`tilt`, for goals."""
    return 2 * jnp.arcsin(jnp.minimum(jnp.linalg.norm(x.q[4:7]), 1.0))[None]


def standing(home: Float[np.ndarray, " nq"], lower: float) -> dict[str, Goal]:
    """The goals of a robot with a free base that is to stand in the end: `lower`, m, below `home` at most, upright, at rest."""
    return {
        "height": Goal(Partial(short_of, 2, home[2]), lower, "m"),
        "upright": Goal(turned, JUMP_LIMITS["final_tilt"], "rad"),
        "at rest": Goal(Velocity(("root",)), JUMP_LIMITS["final_speed"], "m/s, rad/s"),
    }


def judged(
    function: Callable[[Trajectory], Mapping[str, float]], limits: Mapping[str, float], stated: Sequence[str] = ()
) -> Certificate:
    """The certificate of a behaviour: all of `limits` but what `Goal`s have `stated` bound it; those that are not of every motion
    (GENERAL_LIMITS) are goals."""
    bounds = {name: limit for name, limit in limits.items() if name not in stated}
    return Certificate(function, bounds, goals={name: UNITS[name] for name in bounds if name not in GENERAL_LIMITS})


def sample_then_polish(
    targets: JointTargets, population: int, generations: int, tolerance: float, iterations: int, *,
    patience: int = 8, improvement: float = 0.05, attempts: int = 1, polish_patience: int | None = None, shooting: str = "auto",
    **sampler: object,
) -> dict[str, object]:
    """Options of `Hybrid`: CMA-ES over joint targets for at most `generations`, then iLQR; `attempts` of both where that finds
    no answer.

    patience, improvement: generations without so much improvement, as a share, that end the sampling; polish_patience: iterations
    without it that leave iLQR for another search; tolerance, iterations, shooting: of iLQR; sampler: further options of CMA-ES.
    """
    return {
        "sampler": {"solver": "CMAES", "parametrisation": targets, "population": population, **sampler},
        "polisher": {"solver": "iLQR", "tolerance": tolerance, "max_iterations": iterations, "shooting": shooting},
        "patience": patience, "improvement": improvement, "generations": generations,
        "attempts": attempts, "polish_patience": polish_patience, "max_iterations": attempts * (generations + iterations),
    }  # fmt: skip


def tilt(q: Float[np.ndarray, " nq"]) -> float:
    """The angle by which a free base is turned from its attitude at the start, rad."""
    return float(2 * np.arcsin(np.clip(np.linalg.norm(q[4:7]), 0.0, 1.0)))


def via(steps: int, at: Mapping[int, float | Float[np.ndarray, " m"]]) -> Float[np.ndarray, "T1 m"]:
    """Weights over the steps, zero but at the steps given."""
    size = max(np.size(value) for value in at.values())
    weights = np.zeros((steps + 1, size))
    for step, value in at.items():
        weights[step] = value
    return weights


def on_dofs(model: Model, base: tuple[float, ...], joints: float) -> Float[np.ndarray, " nv"]:
    """A weight for each degree of freedom: those of the base one by one, one number for all joints."""
    return np.concatenate([base, np.full(model.nv - len(base), joints)])


@jax.jit
def _distances(model: Model, qs: Float[Array, "T nq"]) -> Float[Array, "T k"]:
    return jax.lax.map(lambda q: collide(model, kinematics(model, q)).distance, qs)


def gaps(model: Model, qs: Float[np.ndarray, "T nq"]) -> dict[str, Float[np.ndarray, " T"]]:
    """Least distance of each named shape to what it may touch, at each configuration."""
    distances = np.asarray(_distances(model, jnp.asarray(qs)))
    names = [model.topology.shapes[shape].name for shape in candidate_shapes(model)]
    return {name: distances[:, [k for k, other in enumerate(names) if other == name]].min(1) for name in dict.fromkeys(names)}


def general_quantities(
    system: System, motion: Trajectory, gap: dict[str, Float[np.ndarray, " T"]], base: int
) -> dict[str, float]:
    """Of any behaviour: torque_use (of the limits), penetration (deepest of any shape, m), joint_limit_excess (rad), replay_error
    (largest difference to one rollout of the controls), final_speed (largest of the base's velocities at the end, m/s, rad/s).

    base: number of the base's coordinates of velocity.
    """
    model, nq = system.model, system.nq
    xs, us = np.asarray(motion.xs), np.asarray(motion.us)
    top = model.topology
    dofs = np.array(top.limited, int)
    angles = xs[:, :nq][:, np.asarray(top.scalar_q_of_dof)[dofs]]
    lower, upper = np.asarray(model.lower)[dofs], np.asarray(model.upper)[dofs]
    again, _ = replay(system, State(jnp.asarray(xs[0, :nq]), jnp.asarray(xs[0, nq:])), jnp.asarray(us))
    return {
        "torque_use": float((np.abs(us) / np.asarray(model.control_upper)).max()),
        "penetration": float(max(-min(g.min() for g in gap.values()), 0.0)),
        "joint_limit_excess": float(np.maximum(lower - angles, angles - upper).max(initial=0.0)),
        "final_speed": float(np.abs(xs[-1, nq : nq + base]).max()),
        "replay_error": float(np.abs(np.concatenate([again.q, again.v], 1) - xs).max()),
    }


def takeoff(feet: Float[np.ndarray, "T k"], touching: float = TOUCHING) -> int:
    """The last state before the highest one in which a foot is on the ground, the first where none is."""
    down = np.flatnonzero(feet[: int(feet.min(1).argmax()) + 1].min(1) < touching)
    return int(down[-1]) if len(down) else 0


def landing(feet: Float[np.ndarray, "T k"], touching: float = TOUCHING) -> int:
    """The first state after the highest one in which a foot is on the ground again, the last where none is."""
    highest = int(feet.min(1).argmax())
    down = np.flatnonzero(feet[highest:].min(1) < touching)
    return highest + int(down[0]) if len(down) else len(feet) - 1


def jump_quantities(
    system: System, motion: Trajectory, feet: tuple[str, ...], clearance: float
) -> tuple[dict[str, float], dict[str, Float[np.ndarray, " T"]]]:
    """(what is judged of every jump that ends standing; the gaps of all shapes), m, s, rad and shares.

    foot_clearance: of the lowest of `feet`, when that is highest, and what is missing to `clearance`; flight: s about the highest
    point with no foot on the ground; drift: of the base, seen from above, from its landing to the end; feet_off_the_ground:
    farthest foot at the end; other_clearance: the least of any other shape, and other_contact: how deep one came; final_tilt; and
    `general_quantities`.
    """
    qs = np.asarray(motion.xs)[:, : system.nq]
    gap = gaps(system.model, qs)
    below = np.stack([gap[name] for name in feet], 1)
    others = float(min((value.min() for name, value in gap.items() if name not in feet), default=0.0))
    highest, landed = float(below.min(1).max()), landing(below)
    return {
        "foot_clearance": highest,
        "clearance_missing": max(clearance - highest, 0.0),
        "flight": (landed - takeoff(below)) * float(system.dt),
        "drift": float(np.linalg.norm(qs[-1, :2] - qs[landed, :2])),
        "feet_off_the_ground": float(below[-1].max()),
        "other_clearance": others,
        "other_contact": max(-others, 0.0),
        "final_tilt": tilt(qs[-1]),
        **general_quantities(system, motion, gap, 6),
    }, gap


def flight_report(system: System, motion: Trajectory, feet: tuple[str, ...], more: str = "") -> str:
    """When the feet leave the ground and come back, and which motors work hardest."""
    gap, dt = gaps(system.model, np.asarray(motion.xs)[:, : system.nq]), float(system.dt)
    below = np.stack([gap[name] for name in feet], 1)
    use = (np.abs(np.asarray(motion.us)) / np.asarray(system.model.control_upper)).max(0)
    hardest = ", ".join(f"{system.model.topology.actuators[i]} {use[i]:.0%}" for i in np.argsort(use)[::-1][:4])
    flight = f"{takeoff(below) * dt:.3f} s to {landing(below) * dt:.3f} s"
    return f"  off the ground {flight}{more}\n  hardest working: {hardest}"


JUMP_LIMITS = {
    "clearance_missing": 0.0,
    "feet_off_the_ground": TOUCHING,
    "other_contact": 0.0,
    "final_speed": 0.1,
    "final_tilt": 0.1,
}
GENERAL_LIMITS = {
    "torque_use": 1.0 + 1e-9,
    "penetration": 5e-3,
    "joint_limit_excess": 1e-2,
    "replay_error": REPLAYED,
}
UNITS = {
    "alone_missing": "of the time", "apex_error": "m", "apex_velocity": "m/s", "balance_missing": "m", "clearance_missing": "m",
    "feet_off_the_ground": "m", "final_speed": "m/s, rad/s", "final_tilt": "rad", "flight": "s", "flight_error": "m",
    "height_missing": "m", "hops_missing": "hops", "largest_tilt": "rad", "lift_missing": "m", "other_contact": "m",
    "right_foot_moved": "m", "speed_missing": "m/s", "standing_speed": "m/s, rad/s", "step_missing": "m",
    "swings_error": "swings", "trunk_contact": "m", "turn_error": "rad",
}  # fmt: skip
