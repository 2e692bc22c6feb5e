r"""Contact problems recorded from rollouts, kept in .cache/ncp, so that a changed solver meets the same ones.

Robots, dt = 1 ms, `RigidContact()`: *standing*, held in the default posture with random velocities of 0.05; *sliding*, the same
with a base that moves at about 1 m/s and turns; *tumbling*, limp, turned at random, joints anywhere in their limits, and dropped
from 1 cm (arms on a fixed base: limp in the default posture). Stacks of boxes, at rest and shaken; a pile of boxes that fall onto
each other; one body with eight coplanar points of contact, resting or moving at random; and the problems of some robots again
without friction and with mu = 5.
"""

import dataclasses
import functools
import pathlib
import time
import zlib
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from trajopt import load_model
from trajopt.dynamics import RigidContact
from trajopt.dynamics.collision.narrowphase import collide, contact_count
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.ncp import NCP, make_ncp, residual
from trajopt.dynamics.contact.rows import row_count
from trajopt.dynamics.contact.solve.solve import solve
from trajopt.dynamics.contact.step import solve_step
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.derivatives import dynamics_terms
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.result import Status
from validation_experiments import scenes

CACHE = pathlib.Path(__file__).resolve().parent.parent.parent / ".cache" / "ncp"
DT = 1e-3
FIELDS = ("G", "g", "mu", "exists", "bound", "rho")  # of a problem in an archive
STIFFNESS, DAMPING = 3000.0, 100.0  # 1/s^2 and 1/s, of the held joints
ROBOTS = ("go1", "h1", "humanoid", "atlas", "anymal-c", "half-cheetah", "hopper", "panda", "ur5", "cube", "drone", "catapult",
          "jump-worm", "cart-pole", "double-cart-pole")  # fmt: skip
KINDS = ("standing", "sliding", "tumbling")
STACKS = {  # name: (MJCF, contacts, shaken)
    "10 boxes": (scenes.stack_xml(1.0), 40, False),
    "10 boxes, masses 1 : 100": (scenes.stack_xml(100.0), 40, False),
    "10 boxes, masses 1 : 1e4": (scenes.stack_xml(1e4), 40, False),
    "1e4 kg on 1 kg, shaken": (scenes.stack_xml(1e4, 2), 8, True),
    "1 kg on 1e4 kg, shaken": (scenes.stack_xml(1e-4, 2).replace('mass="1.0"', 'mass="10000.0"').replace(
        'mass="0.0001"', 'mass="1.0"'), 8, True),
    "16 boxes, 64 contacts": (scenes.stack_xml(1.0, 16), 64, False),
    "5 boxes, shaken": (scenes.stack_xml(1.0, 5), 20, True),
}  # fmt: skip
OTHER_FRICTION = ("go1", "h1", "humanoid", "atlas", "cube")


def rollout_recorder(model, law: RigidContact, steps: int):
    """A compiled function (q, v, held) -> the `NCP`s of the steps of a rollout, stacked; held: 1.0, or 0.0 for limp joints."""
    n = model.nv
    q_home = jnp.asarray(model.keyframes["home"] if "home" in model.keyframes else model.q_default)
    of_dof = np.asarray(model.topology.scalar_q_of_dof)
    actuated = np.flatnonzero(np.abs(np.asarray(model.actuation)).sum(1) > 0)
    joints = np.intersect1d(np.flatnonzero(of_dof >= 0), actuated)

    def rollout(q, v, held):
        inertia = 1.0 / jnp.diag(jnp.linalg.inv(dynamics_terms(model, q_home, jnp.zeros(n)).M))[joints]

        def body(carry, _):
            q, v, warm = carry
            error = q_home[of_dof[joints]] - q[of_dof[joints]]
            tau = jnp.zeros(n).at[joints].set(held * inertia * (STIFFNESS * error - DAMPING * v[joints]))
            solved = solve_step(StepInputs(law, model, q, v, tau, jnp.asarray(DT), warm_start=warm))
            v = solved.velocity
            return (integrate(model, q, DT * v), v, solved.impulse), solved.ncp

        start = (q, v, jnp.zeros(row_count(law, model)))
        return jax.lax.scan(body, start, None, length=steps)[1]

    return jax.jit(rollout)


@jax.jit
def violations(ncps: NCP):
    """Residual of no impulse at all, of each problem."""
    return jax.vmap(lambda p: residual(p, jnp.zeros_like(p.g)))(ncps)


@jax.jit
def dropped(model, q):
    """q lifted until its lowest point is 1 cm above the floor."""
    return q.at[2].add(0.01 - jnp.min(collide(model, kinematics(model, q)).distance))


def within_limits(model, q):
    """q with its joints moved into their limits: pushed back from far outside, in a step or two, they would fly apart."""
    of_dof = np.asarray(model.topology.scalar_q_of_dof)
    joints = np.flatnonzero(of_dof >= 0)
    return q.at[of_dof[joints]].set(jnp.clip(q[of_dof[joints]], model.lower[joints], model.upper[joints]))


def start_of(model, kind: str, rng):
    """(q, v) from which a robot of the given kind of motion starts."""
    q = jnp.asarray(model.keyframes["home"] if "home" in model.keyframes else model.q_default)
    floating = model.nq > model.nv
    v = (0.05 if kind != "tumbling" else 0.5) * rng.normal(size=model.nv)
    if kind == "sliding":
        v[:2] += rng.normal(size=2)[: model.nv]
        if floating:
            v[5] += rng.normal()
    if kind == "tumbling" and floating:
        push = jnp.asarray(np.concatenate([np.zeros(3), 1.5 * rng.normal(size=model.nv - 3)]))
        q = dropped(model, within_limits(model, integrate(model, q, push)))
    return q, jnp.asarray(v)


def of_robot(name: str, steps: int, seeds: int) -> dict[str, NCP]:
    """Scene name -> problems of a bundled robot."""
    model = load_model(name).to_device()
    law = RigidContact()
    if contact_count(model) == 0 and row_count(law, model) == 0:
        return {}
    found, recorder = {}, rollout_recorder(model, law, steps)
    for kind in KINDS:
        parts = []
        for seed in range(seeds):
            rng = np.random.default_rng([seed, KINDS.index(kind)])
            parts.append(recorder(*start_of(model, kind, rng), float(kind != "tumbling")))
        found[f"{name}, {kind}"] = jax.tree.map(lambda *a: jnp.concatenate(a), *parts)
    return found


def of_stack(name: str, steps: int) -> dict[str, NCP]:
    """Boxes at rest, or shaken: every box with a random velocity."""
    xml, contacts, shaken = STACKS[name]
    model = scenes.model(xml)
    record = rollout_recorder(model, RigidContact(max_contacts=contacts), steps)
    v = 0.5 * np.random.default_rng(0).normal(size=model.nv) if shaken else np.zeros(model.nv)
    return {name: record(jnp.asarray(model.q_default), jnp.asarray(v), 0.0)}


def pile_xml(count: int = 8) -> str:
    """Boxes turned at random, above each other in a narrow column, so that they fall onto each other."""
    rng, bodies = np.random.default_rng(1), []
    for k in range(count):
        turn = rng.normal(size=4)
        turn = " ".join(str(a) for a in turn / np.linalg.norm(turn))
        x, y = 0.1 * rng.normal(size=2)
        bodies.append(f'<body name="box{k}" pos="{x} {y} {0.2 + 0.25 * k}" quat="{turn}"><freejoint/>'
                      f'<geom type="box" size="0.1 0.1 0.1" mass="1" friction="0.6"/></body>')  # fmt: skip
    floor = '<geom type="plane" size="0 0 1" friction="0.6"/>'
    return f'<mujoco model="pile"><worldbody>{floor}{"".join(bodies)}</worldbody></mujoco>'


def of_pile(steps: int) -> dict[str, NCP]:
    model = scenes.model(pile_xml())
    record = rollout_recorder(model, RigidContact(max_contacts=64), 3 * steps)
    ncps = record(jnp.asarray(model.q_default), jnp.zeros(model.nv), 0.0)
    return {"pile of 8 boxes, 64 contacts": jax.tree.map(lambda a: a[steps // 2 :: 2], ncps)}


def of_coplanar_points(count: int = 600, points: int = 8) -> dict[str, NCP]:
    """A box of 0.2 m and 1 kg on eight points of its lower face, resting or moving at random; G has rank 6 of 24."""
    rng = np.random.default_rng(0)
    found = {"eight coplanar points, resting": 1e-3, "eight coplanar points, moving": 0.3}
    inverse_inertia = 6.0 / 0.2**2

    def problem(speed: float):
        angle = 2 * np.pi * np.arange(points) / points + rng.uniform(0, 1)
        r = np.column_stack([0.1 * np.cos(angle), 0.1 * np.sin(angle), np.full(points, -0.1)])
        blocks = [np.hstack([np.eye(3), np.cross(np.eye(3), p).T]) for p in r]
        J = np.vstack(blocks)
        v = speed * rng.normal(size=6) * np.array([1, 1, 0.1, 0.3, 0.3, 3])
        v[2] -= DT * scenes.EARTH
        return J @ np.diag([1.0] * 3 + [inverse_inertia] * 3) @ J.T, J @ v, np.full(points, rng.uniform(0.1, 1.2))

    def batch(speed: float) -> NCP:
        return jax.jit(jax.vmap(make_ncp))(*(np.stack(a) for a in zip(*(problem(speed) for _ in range(count)))))

    return {name: batch(speed) for name, speed in found.items()}


GROUPS = (*ROBOTS, *STACKS, "pile", "coplanar points", *(f"{name}, other friction" for name in OTHER_FRICTION))


def record(group: str, steps: int, seeds: int) -> dict[str, NCP]:
    if group in ROBOTS:
        return of_robot(group, steps, seeds)
    if group in STACKS:
        return of_stack(group, steps)
    if group == "pile":
        return of_pile(steps)
    if group == "coplanar points":
        return of_coplanar_points()
    found = {}
    for name, ncps in problems(group.split(",")[0], steps, seeds).items():
        for mu in (0.0, 5.0):
            thinned = jax.tree.map(lambda a: a[::2], ncps)
            found[f"{name}, mu = {mu:g}"] = dataclasses.replace(thinned, mu=jnp.full_like(thinned.mu, mu))
    return found


@functools.cache
def _kept(path: pathlib.Path) -> dict[str, NCP]:
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path) as file:
        for key in file:
            scene, field = key.rsplit("/", 1)
            found.setdefault(scene, {})[field] = file[key]
    return {scene: NCP(**fields) for scene, fields in found.items()}


def of_states(model, dt: float):
    """A compiled function (q, v), each with a leading axis -> the `NCP`s of the states, stacked: `RigidContact()`, no force."""
    law = RigidContact()

    def problem(q, v):
        return solve_step(StepInputs(law, model, q, v, jnp.zeros(model.nv), jnp.asarray(dt))).ncp

    return jax.jit(lambda qs, vs: jax.lax.map(lambda state: problem(*state), (qs, vs)))


def problems(group: str, steps: int, seeds: int) -> dict[str, NCP]:
    """Problems of a group by scene, those with a row that has something to do; recorded once, then read from the cache."""
    name = f"{''.join(c if c.isalnum() else '-' for c in group)}-{steps}-{seeds}-{zlib.crc32(group.encode()):08x}.npz"
    path = CACHE / name
    if not path.exists():
        found = {}
        for scene, ncps in record(group, steps, seeds).items():
            busy = np.asarray(violations(ncps)) > 1e-9
            if busy.any():
                found[scene] = jax.tree.map(lambda a, busy=busy: np.asarray(a)[busy], ncps)
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, **{f"{scene}/{field}": getattr(p, field) for scene, p in found.items() for field in FIELDS})
        partial.replace(path)
    return _kept(path)


@jax.jit
def _solve_each(ncps: NCP):
    def one(ncp: NCP):
        out = solve(ncp)
        return {
            "residual": residual(ncp, out.impulse), "iterations": out.iterations, "fallbacks": out.fallbacks,
            "impulse": out.impulse, "solved": out.status == Status.solved, "infeasible": out.status == Status.infeasible,
        }  # fmt: skip

    return jax.lax.map(one, ncps)


def solved(ncps: NCP, chunk: int) -> dict[str, np.ndarray]:
    """The solutions, made in chunks of one size, and the time of each problem, "us", as the mean of its chunk."""
    count = ncps.g.shape[0]
    order = np.concatenate([np.arange(count), np.full(-count % chunk, count - 1)]).reshape(-1, chunk)
    jax.block_until_ready(_solve_each(jax.tree.map(lambda a: a[order[0]], ncps)))
    parts = []
    for places in order:
        part = jax.tree.map(lambda a, places=places: a[places], ncps)
        start = time.perf_counter()
        found = jax.tree.map(np.asarray, jax.block_until_ready(_solve_each(part)))
        found["us"] = np.full(chunk, (time.perf_counter() - start) / chunk * 1e6)
        parts.append(found)
    return {key: np.concatenate([part[key] for part in parts])[:count] for key in parts[0]}


def keep(folder: pathlib.Path, name: str, ncps: NCP, found: dict[str, np.ndarray], places: Iterable[int]) -> None:
    """The problems at these places with what was found, each an archive NAME-PLACE.npz."""
    folder.mkdir(parents=True, exist_ok=True)
    for k in places:
        fields = {field: getattr(ncps, field)[k] for field in FIELDS}
        np.savez(folder / f"{name}-{k}.npz", impulse=found["impulse"][k], residual=found["residual"][k], **fields)
