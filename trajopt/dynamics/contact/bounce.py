r"""Gradients through elastic impacts as in continuous time (Nimble VI, App. E).

A time step that contains an impact moves by dt v+ wherever in the step the impact was, so that its derivative by the position
is the identity: the closer the body was to the wall, the closer it ends. In continuous time it is reflected with the velocity:
the closer it was, the sooner it turned, and the further it ends. With the bouncing normal rows J, their coefficients e and
G = J M^-1 J^T,

    X = I - M^-1 J^T G^-1 diag(1 + e) J,      dq+ = X (dq + dt dv),      dv+ = X dv  + what q, tau and the rest do to v+,

so that impulses reflect positions as they reflect velocities: momentum holds and J X = -e J in every row at once, for any
masses. The source asks for J_i X J_i^+ = -e_i on the diagonal alone, by least squares around the identity, which its own engine
meets for a single body only.

dv+ is that of the time-stepped map, in which X dv is contained. What is not in it: that a body which arrives later has been
accelerated for longer, (1 + e) g / v_n of velocity per height for a ball under gravity. Redundant bouncing rows share their
reflection (pseudo-inverse). Contacts that do not bounce are differentiated as in `implicit`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.contact.first_order import first_order_only
from trajopt.dynamics.contact.implicit import Solved, VelocityStep, implicit_tangents, row_count, solve_primal
from trajopt.dynamics.contact.law import ContactLaw
from trajopt.dynamics.contact.ncp import SEPARATING
from trajopt.dynamics.crba import solve_mass_matrix
from trajopt.dynamics.joints import difference, integrate
from trajopt.dynamics.model import Model

_RANK = 1e-10  # singular values of G below this fraction of the largest count as zero; its square root in float32


def bounce_step(law: ContactLaw, model: Model, q, v, tau, dt, init=None) -> tuple[Array, VelocityStep]:
    """(q, velocity step): the values of `implicit.velocity_step`; q is handed through with the derivative X dq.

    Use the returned q from here on.
    """
    if init is None:
        init = jnp.zeros(row_count(law, model), q.dtype)
    q, *outputs = _bounce(law, model, q, v, tau, dt, jax.lax.stop_gradient(init))
    return q, VelocityStep(*outputs)


def reflection(solved: Solved) -> Float[Array, "nv nv"]:
    """X of the module's docstring; the identity where nothing bounces."""
    rows = solved.rows
    nc, nv = rows.mu.shape[0], solved.velocity.shape[0]
    dtype = solved.velocity.dtype
    if nc == 0:
        return jnp.eye(nv, dtype=dtype)
    bounces = rows.impact[:nc] & (solved.solution.modes.cone != SEPARATING)
    J = jnp.where(bounces[:, None], rows.J[2 : 3 * nc : 3], 0.0)
    push = jax.vmap(lambda row: solve_mass_matrix(solved.factor, row), 0, 1)(J)  # M^-1 J^T
    inverse = jnp.linalg.pinv(J @ push, rtol=_RANK if dtype == jnp.float64 else _RANK**0.5, hermitian=True)
    return jnp.eye(nv, dtype=dtype) - push @ (inverse @ ((1.0 + rows.restitution)[:, None] * J))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _bounce(law: ContactLaw, model: Model, q, v, tau, dt, init):
    return (q, *solve_primal(law, model, q, v, tau, dt, init).outputs)


@_bounce.defjvp
def _bounce_jvp(law: ContactLaw, primals, tangents):
    primals = first_order_only("bounce", primals)
    model, q = primals[:2]
    solved = solve_primal(law, *primals)
    outputs = implicit_tangents(law, None, solved, (*primals[:-1], None), (*tangents[:-1], None))
    # On the manifold: the ambient tangent of q, in tangent coordinates, reflected, and back.
    _, dq = jax.jvp(lambda y: difference(model, q, y), (q,), (tangents[1],))
    _, dq = jax.jvp(lambda d: integrate(model, q, d), (jnp.zeros_like(dq),), (reflection(solved) @ dq,))
    return (q, *solved.outputs), (dq, *outputs)
