"""Scenes and rollouts of the validation experiments, shared with their tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from trajopt.dynamics import State, System
from trajopt.dynamics.model import Model
from trajopt.models import load_model_from_string
from trajopt.result import Status

EARTH = 9.81
THESIS = 9.8  # the gravity of the JaxSim thesis's experiments
_FLOOR = '<geom name="floor" type="plane" size="0 0 1" friction="{friction}" contype="0" conaffinity="1"/>'
_ONE = """<mujoco model="{name}"><worldbody>{floor}
  <body name="{name}"><freejoint name="root"/>
    <geom name="{name}" type="{shape}" size="{size}" mass="{mass}" friction="{friction}" contype="1" conaffinity="0"/></body>
</worldbody></mujoco>"""
MEETING = """<mujoco model="meeting"><option gravity="0 0 0"/><default><geom friction="0.5"/></default><worldbody>
  <body name="a"><freejoint/><geom type="sphere" size="0.1" mass="1"/></body>
  <body name="b" pos="0.21 0 0"><freejoint/><geom type="sphere" size="0.1" mass="1"/></body>
  <body name="box" pos="0 0.5 0"><freejoint/><geom type="box" size="0.2 0.1 0.15" mass="3"/></body>
</worldbody></mujoco>"""


def box_xml(sides=(0.2, 0.2, 0.2), mass: float = 1.0, friction: float = 0.4) -> str:
    """A box over the plane z = 0; sides in m, mass in kg."""
    size = " ".join(str(0.5 * side) for side in sides)
    floor = _FLOOR.format(friction=friction)
    return _ONE.format(name="box", shape="box", floor=floor, size=size, mass=mass, friction=friction)


def ball_xml(radius: float = 0.1, mass: float = 2.0, friction: float = 0.5) -> str:
    """A ball over the plane z = 0."""
    floor = _FLOOR.format(friction=friction)
    return _ONE.format(name="ball", shape="sphere", floor=floor, size=radius, mass=mass, friction=friction)


def stack_xml(ratio: float, count: int = 10) -> str:
    """Boxes of 0.2 m on top of each other, offsets up to 1 cm, random yaw, `ratio` between the masses of neighbours."""
    rng, bodies = np.random.default_rng(0), []
    for k in range(count):
        x, y = 0.01 * rng.uniform(-1, 1, size=2) / np.sqrt(2)
        yaw = rng.uniform(0, 2 * np.pi)
        bodies.append(
            f'<body name="box{k}" pos="{x} {y} {0.1 + 0.2 * k}" quat="{np.cos(yaw / 2)} 0 0 {np.sin(yaw / 2)}">'
            f'<freejoint/><geom type="box" size="0.1 0.1 0.1" mass="{ratio if k % 2 else 1.0}" friction="0.6"/></body>'
        )
    floor = '<geom type="plane" size="0 0 1" friction="0.6"/>'
    return f'<mujoco model="stack"><worldbody>{floor}{"".join(bodies)}</worldbody></mujoco>'


@functools.cache
def model(xml: str) -> Model:
    return load_model_from_string(xml, "mjcf").to_device()


def slope_gravity(degrees: float, g: float = EARTH) -> np.ndarray:
    """Gravity in the frame of an incline, which falls towards +x."""
    angle = np.deg2rad(degrees)
    return g * np.array([np.sin(angle), 0.0, -np.cos(angle)])


def on_incline(flat: Model, degrees: float, friction: float | None = None, g: float = EARTH) -> Model:
    """The scene seen from an incline: gravity is turned about y, the floor stays. `friction` replaces that of all pairs."""
    changes = {"gravity": jnp.asarray(slope_gravity(degrees, g))}
    if friction is not None:
        changes["pair_friction"] = jnp.full_like(jnp.asarray(flat.pair_friction), friction)
    return flat.replace(**changes)


def with_restitution(scene: Model, e: float) -> Model:
    return scene.replace(pair_restitution=jnp.full_like(jnp.asarray(scene.pair_restitution), e))


def at(x=0.0, y=0.0, z=0.0, turn=(1.0, 0, 0, 0), v=(0.0,) * 6) -> State:
    """State of one free body without contact state."""
    return State(jnp.asarray([x, y, z, *turn], float), jnp.asarray(v, float))


@jax.jit
def pushed(system: System, x: State, pushes):
    """(states after each step, all solved, iterations, impulses by contact) under generalised forces `pushes` (T, nv)."""

    def body(carry, push):
        x, warm = carry
        y, info = system.step(x, jnp.zeros(system.nu), force=push, warm_start=warm)
        return (y, info.impulse), (y, info.status == Status.solved, info.iterations, info.contacts.impulse)

    _, info = system.step(x, jnp.zeros(system.nu))
    return jax.lax.scan(body, (x, jnp.zeros_like(info.impulse)), pushes)[1]


def rollout(system: System, x: State, steps: int):
    """`pushed` without forces: (states after each step, all solved, iterations, impulses by contact)."""
    if system.contact.carries_state and x.contact is None:
        x = State(x.q, x.v, system.initial_state().contact)
    return pushed(system, x, jnp.zeros((steps, system.nv)))
