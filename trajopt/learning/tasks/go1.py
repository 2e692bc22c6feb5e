r"""go1-velocity: Go1 walks at a velocity that is commanded, over flat ground, its motors following targets of the joints.

The reward is that of Smoothed, Table 7 (velocities, base, effort, feet that follow a sinusoid), smooth throughout, with the
weights there but for those of the feet (their scale) and of velocities of joints. Friction and masses differ by
episode (Table 9).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.state import State
from trajopt.learning.draws import around, within
from trajopt.learning.environment import Environment, Moment
from trajopt.learning.tasks.legged import felt, joint_targets
from trajopt.problems.library.behaviours import damped_system, on_dofs
from trajopt.problems.residuals.base import StepOutcome
from trajopt.problems.residuals.frames import frame_motion

STIFFNESS, DAMPING, SCALE = 40.0, 1.0, 0.4  # N m/rad, N m s/rad, rad
FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
DIAGONAL = np.array([0.0, np.pi, np.pi, 0.0])  # of the feet's phases
FREQUENCY, LIFT, RADIUS = 2.0, 0.08, 0.023  # Hz, m above the ground, m of a foot
FALLEN = 0.15, 0.5  # m of height below which, cosine of the tilt below which Go1 has fallen
TRACKED = 0.5  # share of the commanded distance that makes an episode a success


def phases(time: Float[Array, ""]) -> Float[Array, "4"]:
    """Sine of the phase of each foot; lifted where it is positive."""
    return jnp.sin(2 * jnp.pi * FREQUENCY * time + jnp.asarray(DIAGONAL, time.dtype))


def go1_velocity(
    lower: tuple[float, float, float] = (0.5, 0.0, 0.0),
    upper: tuple[float, float, float] = (0.5, 0.0, 0.0),
    duration: float = 10.0,
    dt: float = 0.005,
    randomised: bool = True,
) -> Environment:
    """Episodes of `duration` s in steps of `dt`, s, four an action; the command (v_x, v_y, rate of turning), m/s and rad/s, is
    uniform between `lower` and `upper`, which are the same by default: 0.5 m/s forwards. randomised: friction and mass."""
    system = damped_system("go1", dt, 8)
    model, limit = system.model, round(duration / (4 * dt))
    home = np.asarray(model.keyframes["home"])

    def observe(moment: Moment) -> Float[Array, " no"]:
        velocity, rate, gravity = felt(moment)
        time = phases(moment.time)[:1], jnp.cos(2 * jnp.pi * FREQUENCY * moment.time)[None]
        joints = moment.x.q[7:] - jnp.asarray(home[7:]), 0.1 * moment.x.v[6:]
        return jnp.concatenate([velocity, rate, gravity, moment.drawn, *joints, moment.action, *time])

    def reward(before: Moment, u: Float[Array, " nu"], after: Moment) -> dict[str, Float[Array, ""]]:
        velocity, rate, gravity = felt(after)
        kin = StepOutcome(system, after.x, None).kinematics
        heights = jnp.stack([frame_motion(model, kin, after.x.v, foot).position[2] for foot in FEET]) - RADIUS
        lifted = jnp.maximum(phases(after.time), 0.0)
        followed = jnp.exp(-((heights - LIFT * lifted) ** 2) / 0.002)
        acceleration = (after.x.v[6:] - before.x.v[6:]) / dt
        return {
            "velocity": jnp.exp(-((velocity[:2] - after.drawn[:2]) ** 2).sum() / 0.25),
            "turning": 0.5 * jnp.exp(-((rate[2] - after.drawn[2]) ** 2) / 0.25),
            "feet": 0.75 * (lifted * followed).sum(),
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
        return (moment.x.q[2] < FALLEN[0]) | (felt(moment)[2][2] > -FALLEN[1])

    def success(xs: State, steps: Int[Array, ""]) -> Bool[Array, ""]:
        """It stood to the end, and covered half of what was commanded."""
        return (steps == limit) & (xs.q[-1, 0] - xs.q[0, 0] >= TRACKED * duration * 0.5 * (lower[0] + upper[0]))

    spread = on_dofs(model, (0.0, 0.0, 0.0, 0.05, 0.05, 0.05), 0.1)
    return Environment(
        "go1-velocity", system, reward, limit, around(model, home, position=spread, velocity=0.1), substeps=4, actions=12,
        control=joint_targets(model, home, SCALE, STIFFNESS, DAMPING), observe=observe, terminated=fallen,
        drawn=within(lower, upper), success=success,
        factors={"pair_friction": (0.7, 1.5), "mass": (0.9, 1.1)} if randomised else {},
    )  # fmt: skip
