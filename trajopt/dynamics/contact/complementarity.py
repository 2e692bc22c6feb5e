r"""Complementarity-aware gradients (Nimble IV-D): derivatives in the contact modes that the loss would like to be in.

The exact derivative at a held contact is that of a body glued to the ground: no control lifts it, and a descent that starts
there stays. Given the direction p = d loss / d v+, contacts are labelled anew, by s = J M^-1 p, the rate of the contact
velocities under a force along p:

    s_n < 0   descent opens the contact: separating, with all its rows
    s_n > 0   descent closes it: clamping; friction rows keep their mode, those of a separating contact carry nothing

Of the true labelling and this one (`labellings="paper"`), and, as a third, all touching contacts clamping ("all"), that one is
used whose gradient has the largest measure |d loss / d q|^2 + |d loss / d u|^2 / dt. The measure leaves the derivative of the
offset b out: with gap/dt in it the true labelling would always win. u are the actuated generalised forces.

Only contacts that touch (or carry an impulse) are labelled; the derivative of an impulse among redundant relabelled contacts
is the one of least norm. The direction p exists in reverse mode only: forward mode is refused.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.contact.implicit import Solved, VelocityStep, attach, row_count, solve_primal
from trajopt.dynamics.contact.law import ContactLaw
from trajopt.dynamics.contact.ncp import CLAMPED, SEPARATING, Modes, newton_matrix, projection_jacobian
from trajopt.dynamics.contact.solve import NCPSolution
from trajopt.dynamics.crba import solve_mass_matrix
from trajopt.dynamics.joints import integrate
from trajopt.dynamics.model import Model

LABELLINGS = ("all", "paper")
TOUCHING = 1e-6  # m: gap up to which a contact without impulse may be labelled
_RANK = 1e-9  # singular values of K below this fraction of the largest count as zero


def aware_step(labellings: str, law: ContactLaw, model: Model, q, v, tau, dt, init=None) -> tuple[Array, VelocityStep]:
    """(q, velocity step): the values of `implicit.velocity_step`, complementarity-aware in reverse mode.

    q is handed through, so that what the loss says of it is part of the measure: use the returned one from here on.
    """
    if init is None:
        init = jnp.zeros(row_count(law, model), q.dtype)
    q, *outputs = _aware(labellings, law, model, q, v, tau, dt, jax.lax.stop_gradient(init))
    return q, VelocityStep(*outputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _aware(labellings: str, law: ContactLaw, model: Model, q, v, tau, dt, init):
    return (q, *solve_primal(law, model, q, v, tau, dt, init).outputs)


def _forward(labellings: str, law: ContactLaw, model: Model, q, v, tau, dt, init):
    solved = solve_primal(law, model, q, v, tau, dt, init)
    return (q, *solved.outputs), (solved, model, q, v, tau, dt, init)


def _backward(labellings: str, law: ContactLaw, saved, cotangents):
    solved, model, q, v, tau, dt, init = saved
    by_q, *outputs = cotangents
    theta = (model, q, v, tau, dt)
    labelled, count = _labelled(labellings, solved, outputs[0])

    def body(carry, k):
        # One program for all labellings and, at last, for the gradient in the chosen one: it is long to compile.
        measures, _ = carry
        last = k == count
        part = jax.tree.map(lambda a: a[jnp.where(last, _best(measures), k)], labelled)
        gradient = _pull_back(law, last.astype(q.dtype), _with(solved, *part), theta, outputs)
        measure = _measure(model, q, dt, _in_tangent(model, q, by_q), gradient)
        measures = jnp.where(jnp.arange(count) == k, measure, measures)
        return (measures, gradient), None

    start = (jnp.zeros(count, q.dtype), jax.tree.map(jnp.zeros_like, theta))
    gradient = list(jax.lax.scan(body, start, jnp.arange(count + 1))[0][1])
    gradient[1] = gradient[1] + by_q
    return (*gradient, jnp.zeros_like(init))


_aware.defvjp(_forward, _backward)


def _in_tangent(model: Model, q, cotangent) -> Float[Array, " nv"]:
    """The derivative by tangent coordinates at q, from that by q."""
    return jax.vjp(lambda dq: integrate(model, q, dq), jnp.zeros(model.nv, q.dtype))[1](cotangent)[0]


def _measure(model: Model, q, dt, by_q: Float[Array, " nv"], gradient) -> Float[Array, ""]:
    """|d loss / d q|^2 + |d loss / d u|^2 / dt, q in tangent coordinates."""
    _, slope_q, _, slope_tau, _ = gradient
    slope_u = model.actuation.T @ slope_tau if model.nu else slope_tau
    slope_q = _in_tangent(model, q, slope_q) + by_q
    return slope_q @ slope_q + slope_u @ slope_u / dt


def _best(measures: Float[Array, " k"]) -> Int[Array, ""]:
    """The largest measure, the first of equals: the true labelling wins ties; what is not finite never wins."""
    return jnp.argmax(jnp.where(jnp.isfinite(measures), measures, -1.0))


def adjoint_relabelling(
    labellings: str, law: ContactLaw, model: Model, q, v, tau, dt, direction: Callable[[Array], tuple[Array, Array]]
) -> Callable[[Solved], NCPSolution]:
    """The function from the solved step to its `NCPSolution` in the labelling that the loss asks for.

    direction: v+ -> d loss / d (q, v+), in tangent coordinates.
    """

    def relabel(solved: Solved) -> NCPSolution:
        by_q, by_v = direction(solved.velocity)
        outputs = [by_v, *jax.tree.map(_zero_cotangent, solved.outputs[1:])]
        labelled, _ = _labelled(labellings, solved, by_v)

        def measure(part):
            theta = (model, q, v, tau, dt)
            unstabilised = jnp.zeros((), q.dtype)
            return _measure(model, q, dt, by_q, _pull_back(law, unstabilised, _with(solved, *part), theta, outputs))

        best = _best(jax.lax.map(measure, labelled))
        return _with(solved, *jax.tree.map(lambda a: a[best], labelled)).solution

    return relabel


def _zero_cotangent(x):
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def _pull_back(law: ContactLaw, stabilised, solved: Solved, theta, outputs):
    """Cotangents of (model, q, v, tau, dt) from those of `Solved.outputs`, at the modes of `solved`."""
    _, pull = jax.vjp(lambda *theta: attach(law, stabilised, solved, *theta), *theta)
    return pull(tuple(outputs))


def _labelled(labellings: str, solved: Solved, p: Float[Array, " nv"]):
    """(modes, inverse of K, degenerate), stacked, and how many: the true labelling, the sign rule's, with "all" all clamping."""
    rows, modes = solved.rows, solved.solution.modes
    truth = (modes, solved.solution.inverse, solved.solution.degenerate)
    if solved.impulse.shape[0] == 0:  # no rows, no labels
        return jax.tree.map(lambda a: jnp.stack([a]), truth), 1
    nc, nl = rows.mu.shape[0], rows.limit_dof.shape[0]
    s = rows.J @ solve_mass_matrix(solved.factor, p)
    s_n, s_l = s[2 : 3 * nc : 3], s[3 * nc : 3 * nc + nl]
    touching = rows.exists & (rows.distance <= TOUCHING)
    closed = touching[:nc] | (modes.cone != SEPARATING)
    held = touching[nc:] | modes.limit
    parts = [_part(solved, modes, _signed(modes, closed, held, s_n, s_l))]
    if labellings == "all":
        clamped = Modes(_clamped(modes.cone, closed), modes.limit | held, modes.dry, modes.tangent)
        parts.append(_part(solved, modes, clamped))
    return jax.tree.map(lambda *a: jnp.stack(a), truth, *parts), 1 + len(parts)


def _signed(modes: Modes, closed: Bool[Array, " nc"], held: Bool[Array, " nl"], s_n, s_l) -> Modes:
    """Labels by the sign rule; where s vanishes the mode stays."""
    cone = jnp.where(closed & (s_n < 0), SEPARATING, jnp.where(s_n > 0, _clamped(modes.cone, closed), modes.cone))
    limit = jnp.where(held & (s_l < 0), False, jnp.where(s_l > 0, modes.limit | held, modes.limit))
    return Modes(cone, limit, modes.dry, modes.tangent)


def _clamped(cone: Int[Array, " nc"], closed: Bool[Array, " nc"]) -> Int[Array, " nc"]:
    return jnp.where(closed & (cone == SEPARATING), CLAMPED, cone)


def _part(solved: Solved, truth: Modes, modes: Modes):
    """(modes, inverse of K there, degenerate); the labelling that equals the true one keeps its inverse."""
    ncp, solution = solved.ncp, solved.solution
    K = newton_matrix(ncp, projection_jacobian(ncp, solution.impulse, solution.velocity, modes), ncp.G)
    same = jnp.all(modes.cone == truth.cone) & jnp.all(modes.limit == truth.limit)
    inverse = jnp.where(same, solution.inverse, jnp.linalg.pinv(K, rtol=_RANK))
    return modes, inverse, same & solution.degenerate


def _with(solved: Solved, modes: Modes, inverse, degenerate) -> Solved:
    solution = dataclasses.replace(solved.solution, modes=modes, inverse=inverse, degenerate=degenerate)
    return dataclasses.replace(solved, solution=solution)
