"""Elastic barrier of the inequality constraints of an optimal control problem.

An inequality c <= 0 adds to the cost, with a weight nu and a barrier parameter mu, the value of

    minimise over s, e > 0    nu e - mu log s - mu log e    subject to    c + s = e,

the barrier of a slack s of a constraint that may be exceeded by e at the price nu. It is smooth and defined for every c: a motion
may exceed its bounds on the way. Its slope z, the multiplier, lies between 0 and nu, and

    s z = mu,    e (nu - z) = mu:

as mu falls to zero the bound is kept and z becomes its multiplier, where that is below nu. An update lowers mu to
min(mu / 2, mu^1.1); where rows exceed their bounds by more than the tolerance at the last mu, their nu grows, and mu begins
again; so do the penalties of equalities. The second derivative at a motion takes z of the one before, or of the mu before, which
lets a step after mu has fallen go further than z of its own.

In `Multipliers` y is a pair: of an inequality mu and the z that is kept (zero: none), of an equality its multiplier and zero. The
penalty of an inequality is nu, zero where the row does not count; equalities have their augmented Lagrangian.

Gould, Orban, Toint, An interior-point l1-penalty method for nonlinear optimization, 2015 (elastic variables). Pavlov, Shames,
Manzie, Interior point differential dynamic programming, IEEE TCST 2021.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.solvers.subproblems import augmented_lagrangian as al

SHARE, POWER = 0.5, 1.1  # mu falls to the lesser of SHARE mu and mu^POWER
CENTRAL = 10.0  # times mu: the stationarity at which mu falls
AGAIN = 1e3  # times the last mu: the first one under a greater nu


def central(
    mu: Float[Array, "*rows"], nu: Float[Array, "*rows"], c: Float[Array, "*rows"]
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"], Float[Array, "*rows"]]:
    """(z, s, e) at c: multiplier, slack and excess that minimise, without cancellation on either side of c = 0; mu, nu > 0."""
    beyond_half = 0.5 * c * nu**2 / (2.0 * mu + jnp.sqrt(4.0 * mu**2 + (c * nu) ** 2))  # z - nu / 2
    excess, slack = mu / (0.5 * nu - beyond_half), mu / (0.5 * nu + beyond_half)
    s = jnp.where(c < 0, excess - c, slack)
    return mu / s, s, jnp.where(c < 0, excess, c + slack)


def _rows(
    y: Float[Array, "*rows 2"], w: Float[Array, "*rows"], c: Float[Array, "*rows"], inequality: Bool[np.ndarray, "..."]
) -> tuple[Bool[Array, "*rows"], tuple[Array, Array, Array], Float[Array, "*rows"], Float[Array, "*rows"]]:
    """(which rows have a barrier, their `central`, their mu and nu); ones in place of mu and nu of the others."""
    counts = jnp.asarray(inequality & (w > 0))
    mu, nu = jnp.where(counts, y[..., 0], 1.0), jnp.where(counts, w, 1.0)
    return counts, central(mu, nu, c), mu, nu


def term(
    y: Float[Array, "*rows 2"], w: Float[Array, "*rows"], c: Float[Array, "*rows"], inequality: Bool[np.ndarray, "..."]
) -> Float[Array, ""]:
    """What the rows add to the cost; at c = 0 about mu for each inequality, whatever nu is."""
    counts, (_, s, e), mu, nu = _rows(y, w, c, inequality)
    barrier = nu * e - mu * jnp.log(s * nu / mu) - mu * jnp.log(e * nu / mu)
    y, w = jnp.where(inequality, 0.0, y[..., 0]), jnp.where(inequality, 0.0, w)
    return jnp.sum(jnp.where(counts, barrier, 0.0)) + al.term(y, w, c, np.zeros_like(inequality))


def estimate(
    y: Float[Array, "*rows 2"], w: Float[Array, "*rows"], c: Float[Array, "*rows"], inequality: Bool[np.ndarray, "..."]
) -> Float[Array, "*rows"]:
    """Multipliers: the derivative of the term with respect to c."""
    counts, (z, _, _), _, _ = _rows(y, w, c, inequality)
    return jnp.where(counts, z, jnp.where(inequality, 0.0, y[..., 0] + w * c))


def weight(
    y: Float[Array, "*rows 2"], w: Float[Array, "*rows"], c: Float[Array, "*rows"], inequality: Bool[np.ndarray, "..."]
) -> Float[Array, "*rows"]:
    """Second derivative of the term with respect to c, with the multiplier z that is kept, where one is, in place of its own."""
    counts, (z, s, e), mu, nu = _rows(y, w, c, inequality)
    kept = counts & (y[..., 1] > 0)
    rest = jnp.where(kept, nu - y[..., 1], mu / e)
    bend = 1.0 / (s / jnp.where(kept, y[..., 1], z) + e / rest)
    return jnp.where(counts, bend, jnp.where(inequality, 0.0, w))


def excess(
    y: Float[Array, "*rows 2"], w: Float[Array, "*rows"], c: Float[Array, "*rows"], inequality: Bool[np.ndarray, "..."]
) -> Float[Array, "*rows"]:
    """Size of each row's violation: |c| of an equality, max(c, 0) of an inequality."""
    return jnp.where(w > 0, jnp.where(inequality, jnp.maximum(c, 0.0), jnp.abs(c)), 0.0)


TERMS = al.Terms(term, estimate, weight, excess)


@dataclasses.dataclass(frozen=True)
class BarrierRule(al.PenaltyRule):
    """How mu and nu follow an inner minimisation; first, last: values of mu. Equalities as `PenaltyRule` says."""

    first: float = 0.1
    last: float = 1e-8

    central: ClassVar[bool] = True

    def initial(self, penalty: float) -> al.Multipliers:
        """mu the first one and nu `penalty` of all inequalities; multipliers of zero of equalities."""
        m, kinds = self.constraints.initial(penalty), self.constraints.inequality()
        stage, terminal = (
            np.stack([np.where(kind, self.first, y), np.zeros_like(y)], -1).astype(y.dtype)
            for y, kind in zip((m.stage, m.terminal), kinds, strict=True)
        )
        return dataclasses.replace(m, stage=stage, terminal=terminal)

    def followed(
        self, multipliers: al.Multipliers, rows: tuple[Float[Array, "T m"], Float[Array, " k"]]
    ) -> al.Multipliers:
        """With z of the rows, (T, m) and (k,), after a step."""
        parts = self._parts(multipliers, rows)
        stage, terminal = (jnp.stack([part[0][..., 0], jnp.where(part[3], estimate(*part), 0.0)], -1) for part in parts)
        return dataclasses.replace(multipliers, stage=stage, terminal=terminal)

    def updated(
        self,
        multipliers: al.Multipliers,
        rows: tuple[Float[Array, "T m"], Float[Array, " k"]],
        last: tuple[Float[Array, "T m"], Float[Array, " k"]],
        grow: Bool[Array, ""] | bool = True,
        moved: Bool[Array, ""] | bool = True,
    ) -> tuple[al.Multipliers, tuple[Float[Array, "T m"], Float[Array, " k"]]]:
        """mu and nu after an inner minimisation, and the rows' excess there.

        grow: whether it is good enough to go on from; moved: whether it was made since the last update, else equalities keep what
        they have.
        """
        m, kinds = multipliers, self.constraints.inequality()
        at_last = self.final(multipliers)
        plain = al.Multipliers(m.stage[..., 0], m.terminal[..., 0], m.stage_penalty, m.terminal_penalty)
        new, _ = super().updated(plain, rows, last, grow & at_last)
        new = jax.tree.map(lambda a, b: jnp.where(moved, a, b), new, plain)
        stage, terminal = self._parts(multipliers, rows)
        found = excess(*stage), excess(*terminal)
        wrong = jnp.stack([
            jnp.max(jnp.where(kind, size, 0.0), initial=0.0) for size, kind in zip(found, kinds, strict=True)
        ]).max() > self.tolerance  # fmt: skip

        def lowered(mu: Array) -> Array:
            lower = jnp.maximum(jnp.minimum(SHARE * mu, mu**POWER), self.last)
            again = jnp.where(wrong, jnp.minimum(AGAIN * self.last, self.first), mu)
            return jnp.where(grow, jnp.where(at_last, again, lower), mu)

        def raised(nu: Array, size: Array) -> Array:
            grows = at_last & (size > self.tolerance) & grow
            return jnp.where(grows, jnp.minimum(self.factor * nu, self.largest), nu)

        def paired(old: Array, kind: np.ndarray, y: Array) -> Array:
            return jnp.stack([jnp.where(kind, lowered(old[..., 0]), y), old[..., 1]], -1)

        return al.Multipliers(
            paired(m.stage, kinds[0], new.stage),
            paired(m.terminal, kinds[1], new.terminal),
            jnp.where(kinds[0], raised(m.stage_penalty, found[0]), new.stage_penalty),
            jnp.where(kinds[1], raised(m.terminal_penalty, found[1]), new.terminal_penalty),
        ), found

    def final(self, multipliers: al.Multipliers) -> Bool[Array, ""]:
        """Whether mu is the last one."""
        return self._mu(multipliers) <= self.last

    def _mu(self, multipliers: al.Multipliers) -> Float[Array, ""]:
        m, kinds = multipliers, self.constraints.inequality()
        parts = (m.stage[..., 0], kinds[0]), (m.terminal[..., 0], kinds[1])
        return jnp.stack([jnp.max(jnp.where(kind, mu, 0.0), initial=0.0) for mu, kind in parts]).max()

    def worth(
        self, multipliers: al.Multipliers, rows: tuple[Float[Array, "T m"], Float[Array, " k"]]
    ) -> Float[Array, ""]:
        """Zero: a step that gains little has not ended a minimisation."""
        return jnp.zeros((), rows[0].dtype)

    def inner_tolerance(
        self,
        multipliers: al.Multipliers,
        rows: tuple[Float[Array, "T m"], Float[Array, " k"]],
        excess: Float[Array, ""],
    ) -> Float[Array, ""]:
        """The stationarity at which mu falls; zero at the last mu."""
        return jnp.where(self.final(multipliers), 0.0, CENTRAL * self._mu(multipliers))
