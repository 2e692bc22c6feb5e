r"""Guesses to start a solver from: torques that hold a posture through contact, interpolated states, a shifted solution.

Quasi-static torques tau and contact forces f of a state at rest satisfy h(q) = S tau + sum_c J_c^T f_c with f_c in the friction
cone of contact c, here the hull of `EDGES` of its edges, and tau within the limits of the motors. Where many do, torques are as
small a share of their limits as they can be; where none do, the imbalance h - S tau - J^T f is what is left.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from trajopt.dynamics.collision.narrowphase import Contacts, collide
from trajopt.dynamics.contact.rows import contact_frames, signed_mask
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.rigid_body.kinematics import centre_of_mass, kinematics, point_columns, to_user_dofs
from trajopt.dynamics.rigid_body.rnea import bias_forces
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import OptionError, ShapeError
from trajopt.problems import programs
from trajopt.problems.trajectory import Answer, Trajectory

EDGES = 8  # of a friction cone
TOUCHING = 2e-3  # m: a contact candidate nearer than this carries
TORQUE_SHARE, FORCE_SHARE = 1e-4, 1e-7  # weights of small torques and forces beside the balance, all relative
HELD = 1e-3  # imbalance, relative to the largest of h, below which a state counts as held


@dataclasses.dataclass(frozen=True)
class QuasiStatic:
    """Torques (nu,) that hold a state, contact forces (k, 3) in world axes on body 1 of each touching candidate, N, and the
    largest generalised force that is left unbalanced, N or N m; held: whether it is small beside the weight; robot_held: whether
    it is for all that hangs together with a motor, and not for an object that falls."""

    torque: Float[np.ndarray, " nu"]
    force: Float[np.ndarray, "k 3"]
    imbalance: float
    held: bool
    robot_held: bool

    @property
    def described(self) -> str:
        """The guess in words."""
        left = "" if self.held else f"; {self.imbalance:.3g} N or N m are left unbalanced"
        return f"controls that hold x0 at rest{left}"


def equilibrium_terms(
    subject: None, model: Model, q: Float[Array, " nq"]
) -> tuple[Contacts, Float[Array, "k 3 nv"], Float[Array, "3"], Float[Array, " nv"], Float[Array, "k 3 3"]]:
    """What equilibrium is made of: contact candidates, their Jacobians in world axes, centre of mass, h, frames of the contacts.
    A program (`programs`) without a subject."""
    kin = kinematics(model, q)
    contacts = collide(model, kin)
    top = model.topology
    columns = point_columns(kin, top, contacts.point) * signed_mask(top, contacts, q.dtype)[:, :, None]
    k = contacts.distance.shape[0]
    J = to_user_dofs(model, jnp.swapaxes(columns, 1, 2).reshape(3 * k, top.nv_tree)).reshape(k, 3, model.nv)
    h = bias_forces(model, q, jnp.zeros_like(q, shape=model.nv))
    return contacts, J, centre_of_mass(model, q), h, contact_frames(contacts.normal)


def quasi_static(system: System, x: State, *, touching: float = TOUCHING) -> QuasiStatic:
    """Torques that hold the configuration of x at rest; touching: m, the distance below which a contact candidate carries.

    Nothing is raised where no torques can: `held` and `imbalance` say so. Under `NoContact` motors alone carry.
    """
    model = system.model
    q = jnp.asarray(x.q, model.mass.dtype)
    found, _ = programs.run(equilibrium_terms, None, model, q, effort=Effort.QUICK)
    contacts, J, _, h, frames = jax.tree.map(
        lambda a: np.asarray(a, float) if a.dtype.kind == "f" else np.asarray(a), found
    )
    near = contacts.distance < touching if system.contact.acts else np.zeros(len(contacts.distance), bool)
    friction = np.asarray(model.pair_friction, float)[contacts.pair[near]]
    edges = _edges(frames[near], friction)
    S = np.asarray(model.actuation, float)
    limit = np.minimum(np.abs(np.asarray(model.control_lower, float)), np.abs(np.asarray(model.control_upper, float)))
    size = max(float(np.abs(h).max(initial=0.0)), 1e-12)
    limit = np.where(np.isfinite(limit) & (limit > 0), limit, size)
    J = J[near]
    pull = np.einsum("civ,cie->vce", J, edges).reshape(model.nv, -1)
    torque, share = _bounded_balance(h / size, S * limit / size, pull)
    force = np.einsum("cie,ce->ci", edges, share.reshape(len(J), EDGES)) * size
    left = h - S @ (torque * limit) - np.einsum("civ,ci->v", J, force)
    imbalance = float(np.abs(left).max(initial=0.0))
    tree = model.topology.roots[model.topology.dof_node[model.topology.user_dofs]]
    driven = np.isin(tree, tree[S.any(axis=1)])
    held = (float(np.abs(part).max(initial=0.0)) <= HELD * size for part in (left, left[driven]))
    return QuasiStatic(torque * limit, force, imbalance, *held)


def _edges(frames: np.ndarray, friction: np.ndarray) -> Float[np.ndarray, "c 3 e"]:
    """Edges of the friction cones, world axes, of normal part 1."""
    angle = 2 * np.pi * np.arange(EDGES) / EDGES
    local = np.stack([np.cos(angle), np.sin(angle), np.ones(EDGES)])
    scaled = np.concatenate([np.tile(friction[:, None], (1, 2)), np.ones((len(friction), 1))], 1)[:, :, None] * local
    return frames @ scaled


def _bounded_balance(h: np.ndarray, S: np.ndarray, pull: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the torque limits in [-1, 1] and of the edges' forces, not negative, that balance h best."""
    nu, edges = S.shape[1], pull.shape[1]
    if nu + edges == 0:
        return np.zeros(0), np.zeros(0)
    small = np.diag(np.concatenate([np.full(nu, TORQUE_SHARE), np.full(edges, FORCE_SHARE)]))
    A = np.concatenate([np.concatenate([S, pull], 1), small])
    b = np.concatenate([h, np.zeros(nu + edges)])
    lower = np.concatenate([-np.ones(nu), np.zeros(edges)])
    upper = np.concatenate([np.ones(nu), np.full(edges, np.inf)])
    found = scipy.optimize.lsq_linear(A, b, (lower, upper), method="bvls" if edges else "trf", tol=1e-12).x
    return found[:nu], found[nu:]


def interpolated(system: System, first: State, last: State, steps: int) -> Float[np.ndarray, "knots nx"]:
    """States (steps + 1, nq + nv) from rest to rest along the shortest way, $q_0 (+) s (q_T (-) q_0)$, $s = 3 r^2 - 2 r^3$.

    Velocities are those with which semi-implicit Euler steps lead from one to the next, so that positions have no defects. For
    `xs0` of solvers in multiple shooting. Raises `OptionError` for fewer than one step.
    """
    if steps < 1:
        raise OptionError(f"steps is {steps}; expected the number of steps, at least 1")
    model, dt = system.model, float(system.dt)
    dtype = model.mass.dtype
    start, end = (jnp.asarray(x.q, dtype) for x in (first, last))
    way = difference(model, start, end)
    r = jnp.arange(steps + 1, dtype=dtype) / steps
    q = jax.vmap(lambda s: integrate(model, start, s * way))(3 * r**2 - 2 * r**3)
    v = jax.vmap(lambda a, b: difference(model, a, b))(q[:-1], q[1:]) / jnp.asarray(dt, dtype)
    v = jnp.concatenate([jnp.asarray(first.v, dtype)[None], v])
    return np.concatenate([np.asarray(q), np.asarray(v)], 1)


def shifted(solution: Answer, steps: int = 1) -> Trajectory:
    """The motion of a solution `steps` later, its last state and control held: where a receding horizon starts from.

    Raises `OptionError` for a solution without a motion, `ShapeError` for more steps than it has.
    """
    if solution.xs is None or solution.us is None:
        raise OptionError("solution has no motion (xs, us) to shift; give one of an optimal control problem")
    T = len(solution.us)
    if not 0 <= steps <= T:
        raise ShapeError(f"steps is {steps}; the solution has {T}")
    index: Any = np.arange(T + 1) + steps
    xs, us = np.asarray(solution.xs)[np.minimum(index, T)], np.asarray(solution.us)[np.minimum(index[:-1], T - 1)]
    p = np.zeros(0, xs.dtype) if solution.parameters is None else np.asarray(solution.parameters)
    return Trajectory(xs, us, p)


def ways_to_start(system: bool, held: bool, states: bool) -> str:
    """Guesses that a problem has not used: whether its dynamics are a `System`, whether it started from controls that hold x0,
    whether from given states."""
    ways = ["u0='quasi-static'"] if system and not held else []
    if not states:
        what = "xs0=guesses.interpolated(...)" if system else "xs0, a guess of the states,"
        ways.append(f"{what} with shooting='multiple'")
    ways.append("solve(..., x0=) with the solution of an easier problem, or guesses.shifted of one")
    return "other guesses to try: " + "; ".join(ways)
