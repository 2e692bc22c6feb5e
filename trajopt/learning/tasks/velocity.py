r"""go1-velocity, anymal-velocity: a four-legged robot walks at a velocity that is commanded, over flat ground, its motors
following targets of the joints.

The reward is that of Smoothed, Table 7 (velocities, base, effort, feet that follow a sinusoid), smooth throughout. ANYmal has the
weights of the source; Go1 has other ones for its feet, which are lifted less. Friction and masses differ by episode (Table 9);
under ANYmal the command changes once in an episode, and its base is pushed once. Deviations from Tables 7 to 9: the height that
the base keeps is that at home, the cosine of the phase is observed beside its sine, and the joints have no armature.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.contact.laws import SmoothedContact
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.learning.draws import around, within
from trajopt.learning.environment import Environment, Moment
from trajopt.learning.tasks.legged import felt, force_on_base, joint_targets
from trajopt.models.registry import load_model
from trajopt.problems.library.behaviours import damped_system, on_dofs
from trajopt.problems.residuals.base import StepOutcome
from trajopt.problems.residuals.frames import frame_motion

DIAGONAL = np.array([0.0, np.pi, np.pi, 0.0])  # of the feet's phases
FREQUENCY = 2.0  # Hz of the feet
HELD = 4  # steps of an action
TRACKED = 0.5  # share of the commanded distance that makes an episode of Go1 a success
ERROR = 0.15, 0.15  # m/s and rad/s by which ANYmal may miss its commands in a success
PUSH = 0.1  # s that a change of the base's velocity takes
Command = tuple[float, float, float]  # forwards and to the left, m/s; turning to the left, rad/s


@dataclasses.dataclass(frozen=True)
class Walker:
    """What a robot's task is made of.

    feet: names of the feet's shapes, front before hind, the diagonal ones first and last; radius: of a foot, m; stiffness,
    damping (N m/rad, N m s/rad) and scale (rad) of the joints' targets; lift: m that feet are to rise; width: m^2, of the reward
    for that; feet_weight: of that reward where a foot is to be at its highest; fallen: m of height, cosine of the tilt below
    which the robot has fallen.
    """

    feet: tuple[str, ...]
    radius: float
    stiffness: float
    damping: float
    scale: float
    lift: float
    width: float
    feet_weight: float
    fallen: tuple[float, float]


GO1 = Walker(("FR_foot", "FL_foot", "RR_foot", "RL_foot"), 0.023, 40.0, 1.0, 0.4, 0.08, 0.002, 0.75, (0.15, 0.5))
ANYMAL = Walker(("LF_foot", "RF_foot", "LH_foot", "RH_foot"), 0.03, 85.0, 0.6, 0.5, 0.1, 0.05, 3.0, (0.3, 0.5))


def phases(time: Float[Array, ""]) -> Float[Array, "4"]:
    """Sine of the phase of each foot; lifted where it is positive."""
    return jnp.sin(2 * jnp.pi * FREQUENCY * time + jnp.asarray(DIAGONAL, time.dtype))


def commanded(drawn: Float[Array, " nd"], time: Float[Array, "*b"]) -> Float[Array, "*b 3"]:
    """The command at a time: the first three numbers drawn, or, where there are more, the next three from the seventh, s, on."""
    if drawn.shape[0] == 3:
        return jnp.broadcast_to(drawn, (*time.shape, 3))
    return jnp.where((time < drawn[6])[..., None], drawn[:3], drawn[3:6])


def misses(xs: State, drawn: Float[Array, " nd"], dt: float) -> Float[Array, "2"]:
    """By how much velocities, m/s, and rates of turning, rad/s, miss their commands over an episode of actions of dt, s.

    Means of the differences' sizes, each over a cycle of the feet; within a cycle the base sways.
    """
    cycle = round(1 / (FREQUENCY * dt))
    count = (xs.q.shape[0] - 1) // cycle * cycle
    q, v = xs.q[1 : count + 1], xs.v[1 : count + 1]
    along = jnp.einsum("tji,tj->ti", rotation_from_quaternion(q[:, 3:7]), v[:, :3])
    wanted = commanded(drawn, dt * jnp.arange(1, count + 1, dtype=v.dtype))
    missed = jnp.concatenate([along[:, :2], v[:, 5:6]], 1) - wanted
    mean = missed.reshape(-1, cycle, 3).mean(1)
    return jnp.stack([jnp.linalg.norm(mean[:, :2], axis=1).mean(), jnp.abs(mean[:, 2]).mean()])


def walking(walker: Walker, name: str, system: System, limit: int, **options: Any) -> Environment:
    """The environment of a robot; options: of `Environment`."""
    model, dt = system.model, float(system.dt)
    home = np.asarray(model.keyframes["home"])

    def observe(moment: Moment) -> Float[Array, " no"]:
        velocity, rate, gravity = felt(moment)
        time = phases(moment.time)[:1], jnp.cos(2 * jnp.pi * FREQUENCY * moment.time)[None]
        joints = moment.x.q[7:] - jnp.asarray(home[7:]), 0.1 * moment.x.v[6:]
        command = commanded(moment.drawn, moment.time)
        return jnp.concatenate([velocity, rate, gravity, command, *joints, moment.action, *time])

    def reward(before: Moment, u: Float[Array, " nu"], after: Moment) -> dict[str, Float[Array, ""]]:
        velocity, rate, gravity = felt(after)
        command = commanded(after.drawn, after.time)
        kin = StepOutcome(system, after.x, None).kinematics
        heights = jnp.stack([frame_motion(model, kin, after.x.v, foot).position[2] for foot in walker.feet]) - walker.radius
        lifted = jnp.maximum(phases(after.time), 0.0)
        followed = jnp.exp(-((heights - walker.lift * lifted) ** 2) / walker.width)
        acceleration = (after.x.v[6:] - before.x.v[6:]) / dt
        return {
            "velocity": jnp.exp(-((velocity[:2] - command[:2]) ** 2).sum() / 0.25),
            "turning": 0.5 * jnp.exp(-((rate[2] - command[2]) ** 2) / 0.25),
            "feet": walker.feet_weight * (lifted * followed).sum(),
            "bouncing": -2.0 * velocity[2] ** 2,
            "rolling": -0.05 * (rate[:2] ** 2).sum(),
            "height": jnp.exp(-((after.x.q[2] - home[2]) ** 2) / 0.1),
            "tilt": -0.5 * (gravity[:2] ** 2).sum(),
            "action": -0.05 * jax.nn.relu(jnp.abs(after.action)).sum(),
            "action rate": -0.01 * ((after.action - before.action) ** 2).sum(),
            "acceleration": -2.5e-7 * (acceleration**2).sum(),
            "torque": -2.5e-5 * (u**2).sum(),
        }

    def fallen(moment: Moment) -> Bool[Array, ""]:
        return (moment.x.q[2] < walker.fallen[0]) | (felt(moment)[2][2] > -walker.fallen[1])

    spread = on_dofs(model, (0.0, 0.0, 0.0, 0.05, 0.05, 0.05), 0.1)
    return Environment(
        name, system, reward, limit, around(model, home, position=spread, velocity=0.1), substeps=HELD, actions=12,
        control=joint_targets(model, home, walker.scale, walker.stiffness, walker.damping), observe=observe, terminated=fallen,
        **options,
    )  # fmt: skip


def go1_velocity(
    lower: Command = (0.5, 0.0, 0.0),
    upper: Command = (0.5, 0.0, 0.0),
    duration: float = 10.0,
    dt: float = 0.005,
    randomised: bool = True,
) -> Environment:
    """Episodes of `duration` s in steps of `dt`, s, four an action; the command (v_x, v_y, rate of turning), m/s and rad/s, is
    uniform between `lower` and `upper`, which are the same by default: 0.5 m/s forwards. randomised: friction and mass."""
    limit = round(duration / (HELD * dt))

    def success(xs: State, steps: Int[Array, ""], drawn: Float[Array, "3"]) -> Bool[Array, ""]:
        """It stood to the end, and covered half of what was commanded forwards or backwards."""
        return (steps == limit) & (drawn[0] * (xs.q[-1, 0] - xs.q[0, 0]) >= TRACKED * duration * drawn[0] ** 2)

    factors = {"pair_friction": (0.7, 1.5), "mass": (0.9, 1.1)} if randomised else {}
    return walking(
        GO1, "go1-velocity", damped_system("go1", dt, 8), limit, drawn=within(lower, upper), success=success, factors=factors
    )


def anymal_velocity(
    lower: Command = (-1.0, -1.0, -1.0),
    upper: Command = (1.0, 1.0, 1.0),
    duration: float = 20.0,
    dt: float = 0.005,
    randomised: bool = True,
) -> Environment:
    """Episodes of `duration` s in steps of `dt`, s, four an action, under smoothed contact; commands (v_x, v_y, rate of turning),
    m/s and rad/s, are uniform between `lower` and `upper`, and change between half and three quarters of an episode. randomised:
    friction and mass differ, and in the same time the base's velocity is changed by up to 0.5 m/s along each axis."""
    system = System(
        load_model("anymal-c"), dt, SmoothedContact(kappa=300.0, erp=0.0, max_contacts=8), implicit_damping=True
    )
    limit, begin, end = round(duration / (HELD * dt)), 0.5 * duration, 0.75 * duration
    kick = 0.5 if randomised else 0.0

    def success(xs: State, steps: Int[Array, ""], drawn: Float[Array, "10"]) -> Bool[Array, ""]:
        """It stood to the end, and followed its commands."""
        return (steps == limit) & (misses(xs, drawn, HELD * dt) < jnp.asarray(ERROR)).all()

    return walking(
        ANYMAL, "anymal-velocity", system, limit, success=success, force=_kicked(system.model),
        drawn=within((*lower, *lower, begin, -kick, -kick, begin), (*upper, *upper, end, kick, kick, end)),
        factors={"pair_friction": (0.625, 1.5625), "mass": (0.9, 1.1)} if randomised else {},
    )  # fmt: skip


def _kicked(model: Model) -> Callable[[Moment], Float[Array, " nv"]]:
    """The force that changes the velocity of the robot by the eighth and ninth number drawn, m/s, from the tenth on, s."""

    def force(moment: Moment) -> Float[Array, " nv"]:
        acts = (moment.time >= moment.drawn[9]) & (moment.time < moment.drawn[9] + PUSH)
        change = jnp.where(acts, jnp.asarray(moment.model.mass).sum() / PUSH, 0.0) * moment.drawn[7:9]
        return force_on_base(model, moment, jnp.concatenate([change, jnp.zeros_like(change[:1])]))

    return force
