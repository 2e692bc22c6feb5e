r"""Directions that lower the cost on both sides of a kink, and how far from stationary a motion on one is.

Where a contact is about to close or to slip, the gradient g of the cost by the controls jumps. A motion at such a kink is a
minimum when 0 is in the convex hull of the gradients next to it (Clarke), though none of them is small. A refused or much
shortened step ends on the other side: its gradient is a cut. The element of least norm of the hull of all gradients found,

    v = sum_i theta_i g_i,    theta the minimiser of |v|^2 over theta >= 0, sum_i theta_i = 1,

is a direction along which none of the pieces rises; its norm is zero at a minimum, and it does not bounce with the side
on which the motion happens to be.

The weights come from a box QP: |sum theta_i g_i|^2 + s (sum theta_i - 1)^2 over theta >= 0 has for every s > 0 a minimiser that
is a multiple of theta.

Lemarechal, An extension of Davidon methods to nondifferentiable problems, 1975; Kiwiel 1985 (cuts within a step); Burke, Lewis,
Overton, A robust gradient sampling algorithm for nonsmooth, nonconvex optimization, SIAM J. Optim. 15, 2005 (the measure).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.solvers.subproblems.bounds import held_at_bound
from trajopt.solvers.subproblems.box_qp import box_qp

MOST_CUTS = 4  # of an iteration: each takes a line search and a linearisation, and more lead hardly further
USEFUL = 0.5  # a cut tells when the slope there is above this share of the one predicted
SHORT = 0.1  # step lengths below it are looked at for kinks
FIRST_SHORT = 2.0**-4  # the first of the lengths 1, 1/2, ... that is
NEAR = 1e-4  # distance of a cut, relative to max(1, |u|), within which it belongs to the motion's own kink
RIDGE = 1e-12  # of the weights' QP, which gradients that are alike make singular


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cuts:
    """Gradients g_i (MOST_CUTS + 1, T, nu), the first one at the motion itself, controls us (MOST_CUTS + 1, T, nu) where they
    were taken, and how many there are."""

    gradients: Any
    us: Any
    count: Any

    @staticmethod
    def at(us: Float[Array, "T nu"], gradient: Float[Array, "T nu"]) -> Cuts:
        """The gradient at a motion alone."""
        fill = jnp.zeros((MOST_CUTS + 1, *us.shape), us.dtype)
        return Cuts(fill.at[0].set(gradient), fill.at[0].set(us), jnp.ones((), jnp.int32))

    @staticmethod
    def blank(steps: int, nu: int, dtype: Any) -> Cuts:
        """None yet."""
        fill = np.zeros((MOST_CUTS + 1, steps, nu), dtype)
        return Cuts(fill, fill, np.zeros((), np.int32))

    @property
    def known(self) -> Bool[Array, " k"]:
        """Which rows hold a gradient."""
        return jnp.arange(MOST_CUTS + 1, dtype=jnp.int32) < self.count

    @property
    def full(self) -> Bool[Array, ""]:
        return self.count > MOST_CUTS

    def with_cut(self, us: Float[Array, "T nu"], gradient: Float[Array, "T nu"]) -> Cuts:
        """With one more."""
        return Cuts(self.gradients.at[self.count].set(gradient), self.us.at[self.count].set(us), self.count + 1)

    def least_element(self, lower: Float[Array, " nu"], upper: Float[Array, " nu"]) -> Float[Array, "T nu"]:
        """v of the module's docstring; where a gradient pushes a control against its bound it does not count for the weights."""
        known = self.known
        held = jax.vmap(lambda g: held_at_bound(self.us[0], g, lower, upper))(self.gradients)
        rows = jnp.where(held, 0.0, self.gradients).reshape(MOST_CUTS + 1, -1)
        gram = rows @ rows.T
        scale = jnp.maximum(jnp.max(jnp.diagonal(gram)), jnp.finfo(gram.dtype).tiny)
        both = known[:, None] & known[None, :]
        one = known.astype(gram.dtype)
        H = jnp.where(both, gram / scale + 1.0, 0.0) + jnp.diag(jnp.where(known, RIDGE * one, 1.0))
        weights = one * box_qp(H, -one, jnp.zeros_like(one), jnp.full_like(one, jnp.inf)).x
        return jnp.einsum("i,itj->tj", weights / jnp.sum(weights), self.gradients)

    def stationarity(self, lower: Float[Array, " nu"], upper: Float[Array, " nu"]) -> Float[Array, ""]:
        """The largest component of v over the controls not held at a bound."""
        v = self.least_element(lower, upper)
        return jnp.max(jnp.where(held_at_bound(self.us[0], v, lower, upper), 0.0, jnp.abs(v)))

    @property
    def near(self) -> Bool[Array, ""]:
        """Whether all cuts belong to the kink that the motion is at."""
        return self.radius <= NEAR * jnp.maximum(1.0, jnp.max(jnp.abs(self.us[0])))

    @property
    def radius(self) -> Float[Array, ""]:
        """The largest distance of a cut from the motion, over all controls."""
        known = self.known[:, None, None]
        return jnp.max(jnp.where(known, jnp.abs(self.us - self.us[:1]), 0.0))
