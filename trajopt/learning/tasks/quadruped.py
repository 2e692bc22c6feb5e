r"""quadruped-walk: a quadruped with heavy legs walks forward at 1 m/s, under a contact law of one's choice (Smoothed, A.2).

    learning.tasks.environment("quadruped-walk", contact="soft")

Rewards, observations and parameters are those of the source's Tables 4, 5 and 6. Targets of the joints are `SCALE` times the
action away from the configuration at home, which the source does not say. Velocity along the way is that of the base in world
axes.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.contact.laws import Law, RelaxedContact, RigidContact, SmoothedContact, SpringDamperContact
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion
from trajopt.dynamics.system import System
from trajopt.errors import UnknownNameError
from trajopt.learning.draws import around
from trajopt.learning.environment import Environment, Moment
from trajopt.learning.tasks.legged import felt, joint_targets, put_down
from trajopt.learning.tasks.running import went_far
from trajopt.models import load_model
from trajopt.names import closest
from trajopt.problems.library.behaviours import on_dofs

STIFFNESS, DAMPING, SCALE = 20.0, 1.0, 1.0  # N m/rad, N m s/rad, rad
SPEED, HEIGHT, FALLEN = 1.0, 0.45, 0.25  # m/s and m that are asked for, m below which the quadruped has fallen
FACTORS = {"pair_friction": (0.6, 1.5), "mass": (0.8, 1.2)}  # friction as in Table 9; with them the walk carries over to MuJoCo
CONTACTS: dict[str, tuple[Law, float]] = {  # the law and its step, s, by name
    "smoothed": (SmoothedContact(kappa=300.0, erp=0.0), 0.01),
    "hard": (RigidContact(gap="detect", erp=0.0), 0.01),
    "relaxed": (RelaxedContact(rho=0.01), 0.01),
    "soft": (SpringDamperContact(stiffness=1.2e4, damping=30.0, friction_damping=900.0), 0.0005),
}


def observe(moment: Moment) -> Float[Array, " no"]:
    """Height, orientation, velocities in the base's axes, joints, how far the base is upright and looks ahead, last action."""
    velocity, rate, _ = felt(moment)
    q, v, turned = moment.x.q, moment.x.v, rotation_from_quaternion(moment.x.q[3:7])
    return jnp.concatenate([q[2:7], velocity, rate, q[7:], v[6:], turned[2:, 2], turned[:1, 0], moment.action])


def reward(before: Moment, u: Float[Array, " nu"], after: Moment) -> dict[str, Float[Array, ""]]:
    """Table 4 of the source."""
    q, v, turned = after.x.q, after.x.v, rotation_from_quaternion(after.x.q[3:7])
    return {
        "velocity": jnp.exp(-jnp.abs(v[0] - SPEED)),
        "height": 0.5 * jnp.exp(-jnp.abs(q[2] - HEIGHT)),
        "upright": 0.5 * turned[2, 2],
        "action": 0.01 * jnp.exp(-jnp.abs(after.action)).sum(),
        "joint velocity": -0.001 * (v[6:] ** 2).sum(),
    }


def quadruped_walk(contact: str = "smoothed", duration: float = 10.0, randomised: bool = True) -> Environment:
    """Episodes of `duration` s, 100 actions a second; contact: one of `CONTACTS`; randomised: friction and masses of an episode.

    Raises `UnknownNameError`.
    """
    if contact not in CONTACTS:
        raise UnknownNameError(f"there is no contact law '{contact}' of quadruped-walk{closest(contact, CONTACTS)}")
    law, _ = CONTACTS["smoothed"]
    system = System(load_model("quadruped"), 0.01, law, integrator="moreau")
    model, limit = system.model, round(duration / 0.01)
    home = np.asarray(model.keyframes["home"])
    spread = on_dofs(model, (0.0, 0.0, 0.0, 0.1, 0.1, 0.1), 0.2)
    made = Environment(
        "quadruped-walk", system, reward, limit, put_down(model, around(model, home, position=spread, velocity=0.25)),
        actions=12, control=joint_targets(model, home, SCALE, STIFFNESS, DAMPING), observe=observe,
        terminated=lambda moment: moment.x.q[2] < FALLEN, success=went_far(SPEED, duration, limit),
        factors=FACTORS if randomised else {},
    )  # fmt: skip
    return made if contact == "smoothed" else made.with_contact(*CONTACTS[contact])
