"""Random states in contact of any model: drops, and short rollouts under random controls."""

import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from trajopt import native
from trajopt.dynamics import RigidContact, State, System
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.model import Model, NodeType, ShapeType
from trajopt.dynamics.rigid_body.kinematics import kinematics

STEPS = 40  # of a rollout
KEPT = (1, 4, 12, 40)  # the steps of it whose states are used
DEEPEST = 5e-3  # m: bodies that begin deeper in each other than any motion brings them often cannot be parted by any impulse


NEAREST = 64  # candidates of a model with meshes that are looked at


@jax.jit
def gaps(model: Model, q):
    """Distance and nodes of all candidate contacts."""
    contacts = collide(model, kinematics(model, q))
    return contacts.distance, contacts.node1, contacts.node2


@jax.jit
def _step(system: System, q):
    return system.step(State(q, jnp.zeros(system.nv)), jnp.zeros(system.nu))[1].contacts


def nearest_gaps(model: Model, q):
    """The same of the `NEAREST` closest ones of a model with meshes, by the compiled core: JAX takes seconds for all of them."""
    if not native.available() or all(shape.kind != ShapeType.MESH for shape in model.topology.shapes):
        return gaps(model, q)
    contacts = _step(System(model, 1e-3, RigidContact(max_contacts=NEAREST), backend="native"), jnp.asarray(q))
    return contacts.distance, contacts.node1, contacts.node2


def lifts(model: Model) -> list[tuple[int, np.ndarray]]:
    """(coordinate that lifts a tree, nodes of the tree) of every tree that can rise: a free joint or a slide along z."""
    top, found = model.topology, []
    for i, (kind, parent) in enumerate(zip(top.node_types, top.parents, strict=True)):
        along = kind == NodeType.PRISMATIC and abs(np.asarray(model.axis)[i][2]) > 0.9
        if (kind == NodeType.TRANSLATION and parent < 0) or (
            along and not any(top.roots[i] == top.roots[k] for k, _ in found)
        ):
            found.append((i, int(top.q_starts[i]) + (2 if kind == NodeType.TRANSLATION else 0)))
    return [(q, np.flatnonzero(top.roots == top.roots[i])) for i, q in found]


def lowered(model: Model, q, gap: float) -> np.ndarray:
    """q with every tree that can rise above the ground put down until its lowest candidate contact has distance `gap`."""
    q = np.array(q, float)
    for place, nodes in lifts(model):
        for _ in range(8):
            distance, one, two = (np.asarray(a) for a in nearest_gaps(model, q))
            own = np.isin(one, nodes) ^ np.isin(two, nodes)
            if not own.any():
                break
            q[place] -= distance[own].min() - gap
    return q


def starts(model: Model, rng) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(q, v, u) of beginnings in turn: standing, sliding, and dropped in any orientation with joints anywhere."""
    top = model.topology
    home = np.asarray(model.keyframes.get("home", model.q_default))
    joints = np.array([j for j in range(model.nv) if top.scalar_q_of_dof[j] >= 0], int)
    low, high = np.asarray(model.lower), np.asarray(model.upper)
    base = {
        int(top.v_starts[i]) + k for i, t in enumerate(top.node_types) if t == NodeType.TRANSLATION for k in range(3)
    }
    for k in itertools.count():
        q, v = home.copy(), np.zeros(model.nv)
        kind = ("standing", "sliding", "dropped")[k % 3] if model.topology.pairs else "dropped"
        spread = 0.03 if kind != "dropped" else 1.0
        for j in joints:
            if j in base:
                continue
            place = top.scalar_q_of_dof[j]
            if np.isfinite(low[j]) and np.isfinite(high[j]):
                anywhere = rng.uniform(low[j] - 0.01, high[j] + 0.01)
                # Every third joint near a limit, so that limits are active too.
                near = rng.choice([low[j], high[j]]) + 2e-3 * rng.normal()
                target = near if rng.uniform() < 0.3 else anywhere
                q[place] = target if kind == "dropped" else np.clip(q[place] + spread * rng.normal(), low[j], high[j])
            else:
                q[place] += 0.3 * spread * rng.normal()
        if kind == "dropped":
            for place, _ in top.ball_starts:
                turn = rng.normal(size=4)
                q[place : place + 4] = turn / np.linalg.norm(turn)
            v = rng.normal(size=model.nv)
        else:
            v = 1e-3 * rng.normal(size=model.nv)
            if kind == "sliding":
                v += 0.3 * rng.normal(size=model.nv) * np.isin(np.arange(model.nv), range(6))
                v[:2] += rng.normal(size=2)[: model.nv]
        gap = {"standing": -1e-4, "sliding": -1e-4, "dropped": 5e-3 * rng.uniform()}[kind]
        q = lowered(model, q, gap) if model.topology.pairs else q
        limit = np.minimum(np.abs(np.asarray(model.control_upper)), 100.0)
        yield (
            q,
            v,
            (0.02 if kind == "standing" else 0.3)
            * np.where(np.isfinite(limit), limit, 1.0)
            * rng.normal(size=model.nu),
        )


@jax.jit
def roll(system: System, q, v, u):
    """States of one rollout, and whether each is in contact (or at a limit) in a usable way."""

    def body(x, _):
        y, info = system.step(x, u)
        good = jnp.any(info.impulse != 0) & jnp.all(jnp.isfinite(x.v)) & (jnp.max(jnp.abs(x.v)) < 50.0)
        return y, (x.q, x.v, good)

    return jax.lax.scan(body, State(q, v), None, STEPS)[1]


def draw(system: System, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """States (q, v, u) on the way, most of them in contact, without end."""
    model, rng = system.model, np.random.default_rng(seed)
    top = model.topology
    scalar = top.scalar_q_of_dof[top.scalar_q_of_dof >= 0]
    for q, v, u in starts(model, rng):
        qs, vs, good = (np.asarray(a) for a in roll(system, *(jnp.asarray(a) for a in (q, v, u))))
        for k in KEPT:
            if not good[k - 1]:
                continue
            q = qs[k - 1].copy()
            q[scalar] += 1e-4 * rng.normal(size=len(scalar))
            for place, _ in lifts(model):
                q[place] = qs[k - 1][place] - rng.uniform(5e-5, 3e-4)
            if np.min(np.asarray(nearest_gaps(model, q)[0]), initial=0.0) > -DEEPEST:
                yield q, vs[k - 1], u
