"""Scenes and independent NumPy references for the tests of contact.

Nothing here calls the contact code under test except `solved_step`, which runs it, and `touching`, which only shifts a robot
to a wanted height. Models are loaded once and shared, so that every topology is compiled once.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from ridders import compare, ridders_jacobian

from trajopt import load_model
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status

DT = 1e-3
GRAVITY = 9.81
ERP = 0.2  # the default of RigidContact

# A ball on a plane. Solid sphere: I = 2/5 m r^2, so the effective masses of its contact are m (normal), 2/7 m (tangents).
BALL = """<mujoco model="ball"><worldbody>
  <geom name="floor" type="plane" size="0 0 1" friction="0.5" contype="0" conaffinity="1"/>
  <body name="ball" pos="0 0 0.1"><freejoint name="root"/>
    <geom name="ball" type="sphere" size="0.1" mass="2" friction="0.5" contype="1" conaffinity="0"/></body>
</worldbody></mujoco>"""

# Two sliders without gravity: the first with limits, both with dry friction, actuated by unit motors.
SLIDERS = """<mujoco model="sliders"><option gravity="0 0 0"/><worldbody>
  <body name="a"><joint name="a" type="slide" axis="1 0 0" limited="true" range="-0.5 0.5" frictionloss="3"/>
    <inertial pos="0 0 0" mass="2" diaginertia="1 1 1"/>
    <body name="b"><joint name="b" type="slide" axis="0 1 0" frictionloss="0.5"/>
      <inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body></body>
</worldbody><actuator><motor name="a" joint="a"/><motor name="b" joint="b"/></actuator></mujoco>"""

# Two separate bodies (a forest): a box and a two-link arm with a spherical tip, both over the same floor.
FOREST = """<mujoco model="forest"><compiler angle="radian"/>
  <default><geom friction="0.6" contype="1" conaffinity="0"/></default><worldbody>
  <geom name="floor" type="plane" size="0 0 1" contype="0" conaffinity="1"/>
  <body name="box" pos="1 0 0.1"><freejoint name="root"/><geom name="box" type="box" size="0.15 0.1 0.1" mass="1.5"/></body>
  <body name="upper" pos="0 0 0.5"><joint name="shoulder" axis="0 1 0" damping="0.1" limited="true" range="-1.5 1.5"/>
    <joint name="roll" axis="1 0 0" armature="0.01"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="0.8" contype="0"/>
    <body name="lower" pos="0 0 -0.3"><joint name="elbow" axis="0 1 0" frictionloss="0.05" stiffness="0.3"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.25" size="0.02" mass="0.5" contype="0"/>
      <geom name="tip" type="sphere" pos="0 0 -0.25" size="0.03" mass="0.1"/></body></body>
</worldbody><actuator><motor joint="shoulder"/><motor joint="elbow" gear="2"/></actuator></mujoco>"""

SOURCES = {"ball": BALL, "sliders": SLIDERS, "forest": FOREST}


@functools.cache
def model(name: str) -> Model:
    """A scene of this file or a bundled model, by name, with JAX leaves."""
    loaded = load_model_from_string(SOURCES[name]) if name in SOURCES else load_model(name)
    return loaded.to_device()


def system(name: str, dt: float = DT, **law) -> System:
    """The scene's System under `RigidContact(**law)`. Systems of one topology and law share one compiled step."""
    return System(model(name), dt=dt, contact=RigidContact(**law))


def solved_step(sys: System, x: State, u=None, **options):
    """(q+, v+, info) of a step that must end with the status solved; no control by default."""
    y, info = sys.step(x, np.zeros(sys.nu) if u is None else u, **options)
    assert info.status == Status.solved
    return np.asarray(y.q), np.asarray(y.v), info


# -- configurations, independent of the package ------------------------------------------------------------------------


def quaternion_product(a, b):
    w, x = a[0], a[1:]
    return np.concatenate([[w * b[0] - x @ b[1:]], w * b[1:] + b[0] * x + np.cross(x, b[1:])])


def rotation(quaternion) -> np.ndarray:
    """Rotation matrix of a unit quaternion (w, x, y, z)."""
    w, x = quaternion[0], np.asarray(quaternion[1:])
    skew = np.array([[0, -x[2], x[1]], [x[2], 0, -x[0]], [-x[1], x[0], 0]])
    return np.eye(3) + 2 * w * skew + 2 * skew @ skew


def about(axis, angle) -> np.ndarray:
    """Unit quaternion of a turn by `angle` about `axis`."""
    axis = np.asarray(axis, float) / np.linalg.norm(axis)
    return np.concatenate([[np.cos(angle / 2)], np.sin(angle / 2) * axis])


def integrate(m: Model, q, dq) -> np.ndarray:
    """q moved along the tangent vector dq, in NumPy."""
    q, out = np.asarray(q), np.array(q, float)
    scalar = m.topology.scalar_q_of_dof
    out[scalar[scalar >= 0]] += dq[np.flatnonzero(scalar >= 0)]
    for k, j in m.topology.ball_starts:
        w = dq[j : j + 3]
        angle = np.linalg.norm(w)
        # sin(x/2)/x without division by zero: np.sinc(y) is sin(pi y)/(pi y).
        exp = np.concatenate([[np.cos(angle / 2)], 0.5 * np.sinc(angle / (2 * np.pi)) * w])
        out[k : k + 4] = quaternion_product(q[k : k + 4] / np.linalg.norm(q[k : k + 4]), exp)
    return out


def difference(m: Model, q0, q1) -> np.ndarray:
    """Tangent vector from q0 to q1, in NumPy; for small turns, as differences need."""
    q0, q1 = np.asarray(q0), np.asarray(q1)
    out = np.zeros(m.nv)
    scalar = m.topology.scalar_q_of_dof
    moved = scalar >= 0
    out[moved] = (q1 - q0)[scalar[moved]]
    for k, j in m.topology.ball_starts:
        turn = quaternion_product(q0[k : k + 4] * np.array([1, -1, -1, -1]), q1[k : k + 4])
        turn = turn if turn[0] > 0 else -turn
        sine = np.linalg.norm(turn[1:])
        out[j : j + 3] = turn[1:] * (2 * np.arctan2(sine, turn[0]) / sine if sine > 0 else 2.0)
    return out


def tangent_step(sys: System, x: State, u, parameter: str = ""):
    """f(z), z = [dq, dv, dm, du]: tangent coordinates of the next state relative to the unperturbed next state; m: the contact
    state, where the law has one. With the name of a parameter z is its change, flat."""
    n, k = sys.nv, sys.ndx
    reference, _ = sys.step(x, u)

    def after(sys, x, u):
        y, _ = sys.step(x, u)
        parts = [difference(sys.model, reference.q, y.q), np.asarray(y.v) - np.asarray(reference.v)]
        return np.concatenate(parts if y.contact is None else [*parts, np.ravel(y.contact - reference.contact)])

    def of_state(z):
        m = None if x.contact is None else x.contact + z[2 * n : k].reshape(x.contact.shape)
        return after(sys, State(integrate(sys.model, x.q, z[:n]), x.v + z[n : 2 * n], m), np.asarray(u) + z[k:])

    def of_parameter(z):
        leaf = np.asarray(getattr(sys.model, parameter))
        model = sys.model.replace(**{parameter: jnp.asarray(leaf + z.reshape(leaf.shape))})
        return after(dataclasses.replace(sys, model=model), x, u)

    return of_parameter if parameter else of_state


def judged_slopes(sys: System, x: State, u, h, parameters: dict[str, float] | None = None, columns=None, options=None, **judge):
    """`linearize`, whose A and B, and slopes by the parameters, are those of the step by Ridders' extrapolation. h: half steps
    of q, v, the contact state and u, or of each coordinate; parameters: half steps by name; judge: options of `compare`."""
    n, k = sys.nv, sys.ndx
    h = np.repeat(h, [n, n, k - 2 * n, sys.nu]) if len(h) == 4 else h
    found = sys.linearize(x, u, parameters=tuple(parameters or ()))
    estimate = ridders_jacobian(tangent_step(sys, x, u), k + sys.nu, h, columns, **(options or {}))
    matrix = np.hstack([found.A, found.B])
    compare(matrix if columns is None else matrix[:, columns], estimate, **judge)
    for name, step in (parameters or {}).items():
        slope = np.reshape(found.parameters[name], (k, -1))
        compare(slope, ridders_jacobian(tangent_step(sys, x, u, name), slope.shape[1], step), label=name)
    return found


@jax.jit
def distances(m: Model, q):
    """Distances of all candidate contacts."""
    return collide(m, kinematics(m, q)).distance


def touching(m: Model, q, depth: float) -> np.ndarray:
    """q of a floating-base robot shifted along z so that its lowest candidate contact has distance -depth."""
    q = np.array(q, float)
    distance = np.asarray(distances(m, q))
    q[2] -= distance.min() + depth
    return q


# -- states ------------------------------------------------------------------------------------------------------------


def cube_state(kind: str) -> State:
    """States of the bundled cube (side 0.2, 1 kg, friction 0.4), away from changes of modes and from phi = 0."""
    tilt = about([1.0, 0.3, 0.0], 0.02)
    if kind == "standing":  # four corners stick
        return State(np.array([0.3, -0.2, 0.0999, 1, 0, 0, 0]), np.array([1e-4, -2e-4, -1e-3, 1e-3, 2e-3, -1e-3]))
    if kind == "sliding":  # four corners slide in four directions: the velocity is not unique without the selection
        return State(np.array([0.3, -0.2, 0.0999, 1, 0, 0, 0]), np.array([3.0, 1.0, 0, 0, 0, 2.0]))
    if kind == "landing":  # tilted, some corners open, some closing within the step
        return State(np.array([0, 0, 0.1022, *tilt]), np.array([0.3, -0.1, -1.0, 0.2, -0.4, 0.3]))
    if (
        kind == "edge"
    ):  # two corners touch; not at 45 degrees, where four others tie for the remaining places of the patch
        angle = 0.7
        return State(
            np.array([0, 0, 0.1 * (np.cos(angle) + np.sin(angle)) - 1e-4, *about([1, 0, 0], angle)]),
            np.array([0.3, 0.05, -0.02, 0, 0.1, 0]),
        )
    if kind == "flight":
        return State(np.array([0, 0, 1.0, *about([1, 2, 3], 0.7)]), np.array([1.0, -2.0, 0.5, 3.0, -1.0, 2.0]))
    raise KeyError(kind)


@functools.cache
def robot_state(name: str, kind: str) -> tuple[State, np.ndarray]:
    """(state, control) of a legged robot: standing, sliding, landing or in flight, with moderate joint torques."""
    m = model(name)
    rng = np.random.default_rng(3)
    keys = m.keyframes
    q0 = np.asarray(keys["home"] if "home" in keys else m.q_default)
    u = 0.5 * rng.normal(size=m.nu)
    v = np.zeros(m.nv)
    if kind == "standing":
        # The speed of 1e-3 m/s is far within the cone of friction: dt g mu is 8e-3 m/s.
        return State(touching(m, q0, 2e-4), 1e-3 * rng.normal(size=m.nv)), 0.1 * u
    if kind == "sliding":
        v[:2] = (0.8, 0.3)
        v[5] = 0.5
        return State(touching(m, q0, 2e-4), v), u
    if kind == "landing":
        v[2] = -0.7
        return State(touching(m, q0, -4e-4), v + 0.02 * rng.normal(size=m.nv)), u
    if kind == "flight":
        q = q0.copy()
        q[2] += 0.5
        return State(q, rng.normal(size=m.nv)), u
    raise KeyError(kind)


# -- references --------------------------------------------------------------------------------------------------------


def box_corners(half) -> np.ndarray:
    return np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)], float) * np.asarray(half)


def box_problem(q, v, dt, points, offset, half=(0.1, 0.1, 0.1), mass=1.0):
    """(G, g, J, Minv, v_free) of a free uniform box touching the plane z = 0 at the given body-fixed points, in closed form.

    Rows per point (x, y, z). `offset` is b of the normal rows. Velocity: world linear, body angular.
    """
    half = np.asarray(half)
    inertia = mass / 3.0 * (np.sum(half**2) - half**2)
    R, w = rotation(q[3:7]), np.asarray(v)[3:]
    Minv = np.diag(np.concatenate([np.full(3, 1 / mass), 1 / inertia]))
    free = np.asarray(v) + dt * np.concatenate([[0, 0, -GRAVITY], -np.cross(w, inertia * w) / inertia])
    blocks = []
    for r in points:
        skew = np.array([[0, -r[2], r[1]], [r[2], 0, -r[0]], [-r[1], r[0], 0]])
        blocks.append(np.hstack([np.eye(3), -R @ skew]))  # velocity of the point: v + R (w x r)
    J = np.vstack(blocks)
    b = np.zeros(3 * len(points))
    b[2::3] = offset
    return J @ Minv @ J.T, J @ free + b, J, Minv, free


def box_on_corners(v=(0.3, -0.1, -0.2), w=(0.1, 0.2, 0.5), mass=1.0):
    """(G, g) of a box of side 0.2 whose four lower corners touch: G (12, 12) has rank 6."""
    points = np.array([[a, b, -0.1] for a in (-0.1, 0.1) for b in (-0.1, 0.1)])
    return box_problem(np.array([0, 0, 0.1, 1, 0, 0, 0]), np.r_[v, w], 1e-3, points, 0.0, mass=mass)[:2]


def stack_of_bodies(seed: int, bodies: int = 3, ratio: float = 1e2):
    """(G, g, mu): spheres of random mass on top of each other and against a wall, three contacts between neighbours.

    G = J M^-1 J^T and g = J v with v arbitrary: v = 0 satisfies every row, so that a solution exists for any friction.
    """
    rng = np.random.default_rng(seed)
    mass = ratio ** rng.uniform(-0.5, 0.5, size=bodies)
    Minv = np.concatenate([np.r_[np.full(3, 1 / m), np.full(3, 1 / (0.4 * m * 0.01))] for m in mass])
    rows = []
    for body in np.repeat(np.arange(bodies), 3):
        normal = rng.normal(size=3) * 0.3 + np.array([0, 0, 1.0])
        normal /= np.linalg.norm(normal)
        t1 = np.cross(normal, rng.normal(size=3))
        t1 /= np.linalg.norm(t1)
        frame = np.stack([t1, np.cross(normal, t1), normal])
        block = np.zeros((3, 6 * bodies))
        for which, sign in ((body, 1), (body - 1, -1)):
            if which >= 0:
                arm = 0.1 * rng.normal(size=3)
                block[:, 6 * which : 6 * which + 6] = sign * np.hstack([frame, np.cross(arm, frame)])
        rows.append(block)
    J = np.vstack(rows)
    v = 0.5 * rng.normal(size=6 * bodies)
    v[2::6] -= 1.0
    return (J * Minv) @ J.T, J @ v, rng.choice([0.0, 0.3, 0.8, 1.5], size=len(rows))


def cube_problem(kind: str):
    """(x, G, g, J, Minv, v_free) of a cube state in closed form, with the four corners the engine reports.

    Each acts at its foot on the plane, here in body axes.
    """
    x = cube_state(kind)
    corners = box_corners((0.1, 0.1, 0.1))
    world = x.q[:3] + corners @ rotation(x.q[3:]).T
    order = np.sort(np.argsort(world[:, 2], kind="stable")[:4])
    phi = world[order, 2]
    offset = np.where(phi > 0, phi, ERP * phi) / DT
    feet = (world * [1, 1, 0] - x.q[:3]) @ rotation(x.q[3:])
    return x, *box_problem(x.q, x.v, DT, feet[order], offset)


# (G, g) of approaches that no impulse stops; the last: two walls that close on a body from both sides: nu_1 = u - 1 and
# nu_2 = -u - 1 cannot both be non-negative.
UNSTOPPABLE = [
    (np.zeros((3, 3)), [0.0, 0.0, -1.0]),
    (np.diag([1.0, 1.0, 0.0]), [0.2, 0.0, -1.0]),
    (np.kron([[1.0, -1.0], [-1.0, 1.0]], np.diag([0.0, 0.0, 1.0])) + np.diag([1.0, 1, 0, 1, 1, 0]), [0, 0, -1.0, 0, 0, -1.0]),
]


def law_violation(lam, nu, mu) -> float:
    """Largest violation of the four statements of the contact law, straight from their definition, (nc, 3) arrays.

    Impulses and velocities are compared without scaling: meant for effective masses of order 1 kg.
    """
    worst = 0.0
    for l, w, m in zip(lam, nu, np.broadcast_to(mu, (len(lam),)), strict=True):
        size_l, size_w = np.linalg.norm(l[:2]), np.linalg.norm(w[:2])
        worst = max(worst, -l[2], -w[2], abs(l[2] * w[2]), size_l - m * l[2])
        # Maximum dissipation: lambda_t |nu_t| = -mu lambda_n nu_t (also true of sticking, where nu_t = 0).
        worst = max(worst, np.abs(l[:2] * size_w + m * l[2] * w[:2]).max())
    return worst


def natural_residual(G, g, lam, mu, bound=(), limits: int = 0, tol: float = 1e-10) -> float:
    """The residual of docs/contact-semantics.md, in NumPy: max |F / rho| over the velocity scale s. Every row exists."""
    G, g, lam, mu = (np.asarray(x, float) for x in (G, g, lam, mu))
    nc = len(mu)
    diagonal = np.array(np.diag(G))
    for k in range(nc):
        diagonal[3 * k : 3 * k + 2] = diagonal[3 * k : 3 * k + 2].mean()
    largest = diagonal.max(initial=0.0)
    moves = diagonal > np.sqrt(np.finfo(float).eps) * largest
    rho = 1.0 / np.where(moves, diagonal, largest if largest > 0 else 1.0)
    nu = G @ lam + g
    y = lam - rho * nu
    F = np.zeros_like(lam)
    for k in range(nc):
        y_t, y_n = y[3 * k : 3 * k + 2], max(y[3 * k + 2], 0.0)
        length = np.linalg.norm(y_t)
        F[3 * k : 3 * k + 2] = lam[3 * k : 3 * k + 2] - y_t * min(1.0, mu[k] * y_n / length if length > 0 else 1.0)
        F[3 * k + 2] = lam[3 * k + 2] - y_n
    first = 3 * nc + limits
    F[3 * nc : first] = lam[3 * nc : first] - np.maximum(y[3 * nc : first], 0.0)
    F[first:] = lam[first:] - np.clip(y[first:], -np.asarray(bound), np.asarray(bound))
    scale = velocity_scale(G, g, lam, nc, limits, tol)
    return np.abs(F / rho).max(initial=0.0) / scale


def velocity_scale(G, g, lam, nc: int, limits: int, tol: float) -> float:
    """s of docs/contact-semantics.md: what approaches, slides under load or rubs, and the rounding of what cancels."""
    velocities = [1e-3, *(8 * np.finfo(float).eps * (np.abs(G) @ np.abs(lam) + np.abs(g)) / tol)]
    for k in range(nc):
        normal = 3 * k + 2
        velocities.append(-g[normal])
        if g[normal] < 0 or lam[normal] > 0:
            velocities += [*np.abs(g[3 * k : normal])]
    velocities += [*-g[3 * nc : 3 * nc + limits], *np.abs(g[3 * nc + limits :])]
    return max(velocities)
