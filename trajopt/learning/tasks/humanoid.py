"""humanoid-push: the humanoid stands and is pushed at the torso, horizontally, from any side (JaxSim thesis, chapter 6).

A push lasts 0.2 s and begins within the first seconds of an episode; its direction and size are drawn. Actions are targets of
the joints about standing, so that an action of zero is a PD controller. An episode is a success where the torso is still up at
its end.

A policy that learns under hard contact alone can come to bounce. With `randomised` contact is smoothed, more in one episode than
in another, returns more or less of an impact, friction and masses differ, and changes of actions and impacts cost something.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.contact.laws import SmoothedContact
from trajopt.dynamics.model import Model
from trajopt.dynamics.state import State
from trajopt.learning.draws import around, within
from trajopt.learning.environment import Environment, Moment
from trajopt.learning.tasks.legged import felt, force_on_base, joint_targets
from trajopt.problems.library.behaviours import damped_system, on_dofs, task
from trajopt.problems.residuals import CentreOfMass, Control, Posture, Velocity

PUSH = 0.2  # s
# N m/rad and N m s/rad, by what the names of joints begin with; with these it stands, in steps of 2 and of 5 ms, also in MuJoCo.
GAINS = {"ankle": (800.0, 3.0), "shoulder": (20.0, 1.0), "elbow": (20.0, 1.0), "": (300.0, 5.0)}
LEAN = 0.02  # rad by which the ankles' targets lean back: the weight is ahead of them
SCALE = 0.5  # rad
RATE, IMPACT = 0.02, 2.5e-7  # weights of changes of actions and of accelerations of joints
RESTITUTION = 0.1
FACTORS = {
    "kappa": (1 / 3, 3.0), "pair_restitution": (0.01, 3.0), "pair_friction": (0.7, 1.3), "mass": (0.9, 1.1)
}  # fmt: skip
FALLEN = 0.9  # m of the torso's height, below which the humanoid has fallen


def standing(model: Model) -> Callable[[Moment], Float[Array, " nu"]]:
    """The joints' targets: actions are measured from those of a PD controller that holds the humanoid upright."""
    names = [joint.name for joint in model.topology.joints[1:]]
    kp, kd = np.array([next(GAINS[start] for start in GAINS if name.startswith(start)) for name in names]).T
    q = np.array(model.keyframes["home"])
    q[7:] += LEAN * np.array([name.startswith("ankle_y") for name in names])
    return joint_targets(model, q, SCALE, kp, kd)


def humanoid_push(
    least: float = 10.0, most: float = 80.0, duration: float = 4.0, dt: float = 0.005, randomised: bool = False
) -> Environment:
    """Episodes of `duration` s in steps of `dt`, s, four an action, with a push of `least` to `most` N; randomised: softness of
    contact, restitution, friction and masses differ by episode, and impacts cost something."""
    system = damped_system("humanoid", dt, 16)
    model, limit = system.model, round(duration / (4 * dt))
    if randomised:
        model = model.replace(pair_restitution=jnp.full_like(model.pair_restitution, RESTITUTION))
        system = dataclasses.replace(system, model=model, contact=SmoothedContact(kappa=300.0, max_contacts=16))
    home = np.asarray(model.keyframes["home"])
    targets = standing(model)

    def push(moment: Moment) -> Float[Array, " nv"]:
        """The generalised force of the push, at the centre of mass of the torso."""
        size, angle, begin = moment.drawn
        acts = (moment.time >= begin) & (moment.time < begin + PUSH)
        horizontal = jnp.stack([jnp.cos(angle), jnp.sin(angle), jnp.zeros_like(angle)])
        return force_on_base(model, moment, jnp.where(acts, size, 0.0) * horizontal)

    def observe(moment: Moment) -> Float[Array, " no"]:
        """What is felt, the height, the joints and the last action: nothing of the push."""
        velocity, rate, gravity = felt(moment)
        joints = moment.x.q[7:] - jnp.asarray(home[7:]), 0.1 * moment.x.v[6:]
        return jnp.concatenate([velocity, rate, gravity, moment.x.q[2:3] - home[2], *joints, moment.action])

    cost = task(
        Posture(reference=home, weight=on_dofs(model, (0.5, 0.5, 2.0, 1.0, 1.0, 0.5), 0.2)),
        Velocity(weight=on_dofs(model, (0.5, 0.5, 0.5, 0.2, 0.2, 0.2), 0.02)), Control(weight=0.05),
        CentreOfMass(reference=np.array([0.0, 0.0, 0.0]), weight=np.array([1.0, 1.0, 0.0])),
    )  # fmt: skip

    def penalties(before: Moment, u: Float[Array, " nu"], after: Moment) -> dict[str, Float[Array, ""]]:
        acceleration = (after.x.v[6:] - before.x.v[6:]) / dt
        return {
            "action rate": -RATE * ((after.action - before.action) ** 2).sum(),
            "impact": -IMPACT * (acceleration**2).sum(),
        }

    def success(xs: State, steps: Int[Array, ""], drawn: Float[Array, "3"]) -> Bool[Array, ""]:
        return steps == limit

    def fallen(moment: Moment) -> Bool[Array, ""]:
        return moment.x.q[2] < FALLEN

    return Environment(
        "humanoid-push", system, cost, limit,
        around(model, home, position=on_dofs(model, (0.0,) * 6, 0.03), velocity=0.02), substeps=4, actions=model.nu, bonus=2.0,
        control=targets, observe=observe, terminated=fallen, success=success, force=push,
        penalties=penalties if randomised else None, factors=FACTORS if randomised else {},
        drawn=within((least, 0.0, 0.2), (most, 2 * np.pi, 1.0)),
    )  # fmt: skip
