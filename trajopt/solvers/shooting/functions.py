"""The functions of a multiple-shooting transcription, to be compiled: values and first derivatives.

The sensitivities of a motion inside an interval are the products of the steps' Jacobians, S_{t+1} = A_t S_t + [B_t at u_t,
P_t at p]; how the intervals are worked on together is said in `batching`. Hessians are sums over steps of Z_t^T H_t Z_t,
Z_t = d(x_t, u_t, p) in local variables; `hessian` has the exact one.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from trajopt.problems.contact_curvature import step_curvature
from trajopt.problems.expansions import (
    aware_dynamics,
    dynamics_hessian,
    final_expansion,
    linear_dynamics,
    prior_expansion,
    relabels,
    rows_or_none,
    stage_constraints,
    stage_expansion,
    terminal_constraints,
    twice_differentiable,
)
from trajopt.problems.ocp import CONSTRAINTS, OptimalControlProblem
from trajopt.problems.programs import subject
from trajopt.solvers.shooting.layout import Layout
from trajopt.solvers.subproblems.batching import each

LIMITED_MEMORY, GAUSS_NEWTON, EXACT, DIFFERENCED = HESSIANS = ("limited-memory", "gauss-newton", "exact", "differenced")


def euclidean(problem: OptimalControlProblem) -> bool:
    """Whether x (+) dx is x + dx."""
    return problem.integrate is None and problem.n == problem.nx


@subject("problem")
@dataclasses.dataclass(frozen=True)
class ShootingFunctions:
    """The functions to compile of one problem, cut into intervals of so many steps, in a gradient mode, for one of `HESSIANS`;
    used: as in `Layout`.

    Arrays over intervals are (N, ...), over their steps (N, K, ...), padded.
    """

    problem: OptimalControlProblem
    interval: int
    gradient: str
    hessian_kind: str
    used: tuple[bytes, ...]

    @functools.cached_property
    def layout(self) -> Layout:
        """Where variables, rows and non-zeros lie."""
        return Layout(self.problem, self.interval, self.hessian_kind in (EXACT, DIFFERENCED), self.used)

    @property
    def flat(self) -> bool:
        """Whether states form a vector space."""
        return euclidean(self.problem)

    @property
    def aware(self) -> bool:
        """Whether contacts are labelled by multipliers."""
        return relabels(self.problem, self.gradient)

    @functools.cached_property
    def curvature(self) -> Callable[..., Array]:
        """(x, u, t, p, w) -> the second derivative (z, z) of w . f, of one step; through contact by differences."""
        if self.hessian_kind == DIFFERENCED and not twice_differentiable(self.problem):
            return step_curvature(self.problem)
        return dynamics_hessian(self.problem)

    @functools.cached_property
    def linear(self) -> Callable[..., tuple[Array, Array]]:
        """The linearised step, see `expansions`."""
        return aware_dynamics(self.problem) if self.aware else linear_dynamics(self.problem, self.gradient)

    @property
    def width(self) -> int:
        """Local variables of an interval, c."""
        return int(self.layout.local.shape[1])

    def unpack(
        self, w: Float[Array, " nw"], references: Float[Array, "nodes nx"]
    ) -> tuple[Float[Array, "nodes n"], Float[Array, "nodes nx"], Float[Array, "N K nu"], Float[Array, " np"]]:
        """(xi (N+1, n), node states (N+1, nx), controls (N, K, nu), p); a given initial state has xi_0 = 0."""
        layout, problem = self.layout, self.problem
        xi = jnp.where(layout.nodes >= 0, w[np.maximum(layout.nodes, 0)], jnp.zeros((), w.dtype))
        return xi, jax.vmap(problem.retract)(references, xi), w[layout.controls], w[layout.parameters]

    def steps(self) -> tuple[Float[Array, "N K"], Int[Array, "N K"], Bool[Array, "N K"]]:
        """Times, places within the interval and whether there is such a step, each (N, K)."""
        layout, problem = self.layout, self.problem
        times = jnp.asarray(problem.times[:-1][layout.step])
        return times, jnp.tile(jnp.arange(layout.K), (layout.N, 1)), jnp.asarray(layout.valid)

    def _bounded(self, x: Array) -> Array:
        return x[self.layout.bounded]

    # -- values --------------------------------------------------------------------------------------------------------

    def coordinates(
        self, references: Float[Array, "nodes nx"], nodes: Float[Array, "nodes nx"]
    ) -> Float[Array, "nodes n"]:
        """xi of node states about the references."""
        return jax.vmap(self.problem.local)(references, nodes)

    def values(
        self, w: Float[Array, " nw"], references: Float[Array, "nodes nx"]
    ) -> tuple[Float[Array, ""], Float[Array, " m"], Float[Array, "T nx"], Int[Array, ""]]:
        """(f, g, states (T+1, nx), first step that is not finite)."""
        problem, layout = self.problem, self.layout
        xi, nodes, us, p = self.unpack(w, references)
        times, _, valid = self.steps()

        def body(x: Array, inputs: tuple) -> tuple[Any, Any]:
            u, t, ok = inputs
            x_next = problem.step(x, u, t, p)
            rows = {kind: rows_or_none(problem.stage(kind, x, u, t, p), x) for kind in CONSTRAINTS[:2]}
            rows["inner_bounds"] = self._bounded(x)
            cost = problem.running_cost(x, u, t, p)
            finite = jnp.isfinite(jnp.concatenate([x_next, cost[None], *rows.values()])).all()
            return jnp.where(ok, x_next, x), (x, jnp.where(ok, cost, jnp.zeros_like(cost)), rows, finite | ~ok)

        def interval(x: Array, u: Array, t: Array, ok: Array) -> tuple:
            return jax.lax.scan(body, x, (u, t, ok))

        ends, (xs, costs, rows, finite) = each(problem, interval, nodes[:-1], us, times, valid)
        rows["defect"] = jax.vmap(problem.local)(references[1:], ends) - xi[1:]
        rows["node_bounds"] = nodes[:, layout.as_rows]
        rows |= {kind: rows_or_none(problem.terminal(kind, nodes[-1], p), xi) for kind in CONSTRAINTS[2:]}
        prior = problem.prior_residual(nodes[0], p)
        last = problem.final_cost(nodes[-1], p) + 0.5 * jnp.vdot(prior, prior)
        finite = jnp.append(finite.ravel()[: problem.horizon], jnp.isfinite(last))
        states = jnp.concatenate([xs.reshape(-1, problem.nx)[: problem.horizon], nodes[-1:]])
        bad = jnp.where(finite.all(), problem.horizon + 1, jnp.argmin(finite))
        return jnp.sum(costs) + last, layout.pick(rows, jnp.concatenate), states, bad

    # -- first derivatives ---------------------------------------------------------------------------------------------

    def charts(
        self, xi: Float[Array, "nodes n"], nodes: Float[Array, "nodes nx"], references: Float[Array, "nodes nx"]
    ) -> tuple[Float[Array, "nodes n n"], Float[Array, ""]]:
        """R (N+1, n, n), the derivative of the state's tangent by xi, and the departure from the identity."""
        eye = jnp.eye(self.problem.n, dtype=xi.dtype)
        if self.flat:
            return jnp.tile(eye, (xi.shape[0], 1, 1)), jnp.zeros((), xi.dtype)

        def chart(reference: Array, xi: Array, x: Array) -> Array:
            return jax.jacfwd(lambda d: self.problem.local(x, self.problem.retract(reference, xi + d)))(0 * xi)

        R = jax.vmap(chart)(references, xi, nodes)
        return R, jnp.max(jnp.linalg.norm(R - eye, axis=1))

    def read(self, reference: Float[Array, " nx"], end: Float[Array, " nx"]) -> Float[Array, "n n"]:
        """E (n, n), derivative of local(reference, end (+) e) by e at zero."""
        zero = jnp.zeros(self.problem.n, end.dtype)
        return jax.jacfwd(lambda e: self.problem.local(reference, self.problem.retract(end, e)))(zero)

    def carry(
        self, w: Float[Array, " nw"], references: Float[Array, "nodes nx"], multipliers: Float[Array, "N n"]
    ) -> Float[Array, "N n"]:
        """E_k^T times the defects' multipliers, E_k read at the nodes themselves."""
        nodes = self.unpack(w, references)[1]
        return jax.vmap(lambda reference, x, y: self.read(reference, x).T @ y)(references[1:], nodes[1:], multipliers)

    def _local_slopes(self, S: Array, j: Array) -> Array:
        """Z (n + nu + np, c) of step j, from the sensitivity S (n, c) of its state."""
        problem, dtype = self.problem, S.dtype
        by_u = jnp.zeros((problem.nu, self.width), dtype)
        by_u = jax.lax.dynamic_update_slice(by_u, jnp.eye(problem.nu, dtype=dtype), (0, problem.n + j * problem.nu))
        by_p = jnp.eye(problem.n_p, self.width, self.width - problem.n_p, dtype=dtype)
        return jnp.concatenate([S, by_u, by_p])

    def _first(self, R: Array) -> Array:
        """Sensitivity (n, c) of an interval's first state."""
        return jnp.concatenate([R, jnp.zeros((R.shape[0], self.width - R.shape[0]), R.dtype)], 1)

    def labelled(
        self,
        nodes: Float[Array, "nodes nx"],
        us: Float[Array, "N K nu"],
        p: Float[Array, " np"],
        references: Float[Array, "nodes nx"],
        multipliers: Float[Array, " m"],
    ) -> tuple[Float[Array, "N K nx"], Float[Array, "N K n z"]]:
        """(x_next (N, K, nx), F (N, K, n, n + nu)) of all steps, complementarity-aware.

        The direction of an interval's last step is the multiplier of its defect, that of an earlier one the adjoint of the
        Lagrangian. All multipliers zero: they are not known, and the costate of the loss goes on from interval to interval.
        """
        problem, n = self.problem, self.problem.n
        times, _, valid = self.steps()
        known = jnp.any(multipliers != 0)
        y = self.multipliers_by_kind(multipliers)

        def backward(costate: Array, inputs: tuple) -> tuple[Any, Any]:
            x, u, t, ok, y = inputs
            x_next, F = self.linear(x, u, t, p, costate)

            def lagrangian(d: Array) -> Array:
                return self.stage_lagrangian(problem.retract(x, d), u, p, t, y, 1.0)

            before = F[:, :n].T @ costate + jax.grad(lagrangian)(jnp.zeros(n, x.dtype))
            return jnp.where(ok, before, costate), (x_next, F)

        def forward(x: Array, inputs: tuple) -> tuple[Any, Any]:
            u, t, ok = inputs
            return jnp.where(ok, problem.step(x, u, t, p), x), x

        def interval(costate: Array, inputs: tuple) -> tuple:
            x, u, t, ok, reference_next, y = inputs
            end, xs = jax.lax.scan(forward, x, (u, t, ok))
            costate = jnp.where(known, self.read(reference_next, end).T @ y.pop("defect"), costate)
            return jax.lax.scan(backward, costate, (xs, u, t, ok, y), reverse=True)

        last = final_expansion(problem, nodes[-1], p).gradient[:n]
        y = {kind: y[kind] for kind in ("defect", *CONSTRAINTS[:2], "inner_bounds")}
        return jax.lax.scan(interval, last, (nodes[:-1], us, times, valid, references[1:], y), reverse=True)[1]

    def slopes(
        self, w: Float[Array, " nw"], references: Float[Array, "nodes nx"], multipliers: Float[Array, " m"]
    ) -> tuple[Float[Array, " nw"], Float[Array, " nj"], Float[Array, " nh"], Float[Array, ""]]:
        """(grad f, Jacobian's non-zeros, Gauss-Newton Hessian's non-zeros (none unless asked for), departure).

        multipliers: of the rows, the latest, for the labels of complementarity-aware steps; zero while unknown.
        """
        problem, layout, n, n_p = self.problem, self.layout, self.problem.n, self.problem.n_p
        xi, nodes, us, p = self.unpack(w, references)
        times, places, valid = self.steps()
        R, departure = self.charts(xi, nodes, references)
        curved = self.hessian_kind == GAUSS_NEWTON
        given = self.labelled(nodes, us, p, references, multipliers) if self.aware else ()

        def body(carry: tuple, inputs: tuple) -> tuple[Any, Any]:
            x, S, gradient, H = carry
            u, t, j, ok, *step = inputs
            Z = self._local_slopes(S, j)
            x_next, F = step or self.linear(x, u, t, p)
            cost = stage_expansion(problem, x, u, t, p)
            rows = {kind: stage_constraints(problem, kind, x, u, t, p)[1] @ Z for kind in CONSTRAINTS[:2]}
            by_x = jax.jacfwd(lambda d: self._bounded(problem.retract(x, d)))(jnp.zeros(n, x.dtype))
            rows["inner_bounds"] = by_x @ S
            keep = lambda new, old: jnp.where(ok, new, old)  # noqa: E731
            gradient = gradient + keep(Z.T @ cost.gradient, jnp.zeros_like(gradient))
            H = H + keep(Z.T @ cost.hessian @ Z, jnp.zeros_like(H)) if curved else H
            return (keep(x_next, x), keep(F @ Z, S), gradient, H), rows

        def interval(x: Array, R: Array, u: Array, t: Array, j: Array, ok: Array, *steps: Array) -> tuple:
            H = jnp.zeros((self.width,) * 2 if curved else (0, 0), w.dtype)
            start = (x, self._first(R), jnp.zeros(self.width, w.dtype), H)
            return jax.lax.scan(body, start, (u, t, j, ok, *steps))

        each_given = (nodes[:-1], R[:-1], us, times, places, valid, *given)
        (ends, S, gradients, H), rows = each(problem, interval, *each_given)
        rows["defect"] = S if self.flat else jax.vmap(self.read)(references[1:], ends) @ S
        rows["next"] = jnp.full((layout.N, n), -1.0, w.dtype)
        by_node = jax.vmap(jax.jacfwd(lambda d, x: problem.retract(x, d)[layout.as_rows]))
        rows["node_bounds"] = by_node(0 * xi, nodes) @ R
        end = jnp.zeros((n + n_p,) * 2, w.dtype).at[:n, :n].set(R[-1]).at[n:, n:].set(jnp.eye(n_p, dtype=w.dtype))
        start = end.at[:n, :n].set(R[0])
        rows |= {kind: terminal_constraints(problem, kind, nodes[-1], p)[1] @ end for kind in CONSTRAINTS[2:]}
        final, prior = final_expansion(problem, nodes[-1], p), prior_expansion(problem, nodes[0], p)
        picked = layout.jacobian.values([rows[kind] for kind in _JACOBIAN_ORDER])
        at_end, at_start = end.T @ final.gradient, start.T @ prior.gradient
        gradient = jnp.zeros(layout.variables + 1, w.dtype)  # the last entry takes what is no variable
        gradient = gradient.at[layout.local].add(gradients)
        gradient = gradient.at[np.append(layout.nodes[-1], layout.parameters)].add(at_end)
        gradient = gradient.at[np.append(layout.nodes[0], layout.parameters)].add(at_start)[:-1]
        if not curved:
            return gradient, picked, jnp.zeros(0, w.dtype), departure
        H = H.at[0].add(self.widened(start.T @ prior.hessian @ start))
        return gradient, picked, self.hessian_values(H, end.T @ final.hessian @ end), departure

    def widened(self, block: Float[Array, "b b"]) -> Float[Array, "c c"]:
        """A block (n + np, n + np) of [xi, p] among the local variables of an interval."""
        n, n_p = self.problem.n, self.problem.n_p
        place = np.concatenate([np.arange(n), self.width - n_p + np.arange(n_p)])
        return jnp.zeros((self.width,) * 2, block.dtype).at[np.ix_(place, place)].set(block)

    def hessian_values(self, H: Float[Array, "N c c"], end: Float[Array, "b b"]) -> Float[Array, " nh"]:
        """The non-zeros from the intervals' blocks (N, c, c) and the end's (n + np, n + np)."""
        shared = self.width - self.problem.n_p
        own = jnp.sum(H[:, shared:, shared:], 0) + end[self.problem.n :, self.problem.n :]
        return self.layout.hessian.values([H, end, own])

    # -- pieces of the exact Hessian (`hessian`) -----------------------------------------------------------------------

    def multipliers_by_kind(self, multipliers: Float[Array, " m"]) -> dict[str, Float[Array, "..."]]:
        """The rows' multipliers in the shape of each kind of constraint, zero where there is no row."""
        zero = jnp.zeros((), multipliers.dtype)
        return {
            kind: jnp.where(place >= 0, multipliers[np.maximum(place, 0)], zero)
            for kind, place in self.layout.rows.items()
        }

    def stage_lagrangian(
        self,
        x: Float[Array, " nx"],
        u: Float[Array, " nu"],
        p: Float[Array, " np"],
        t: ScalarLike,
        y: dict[str, Float[Array, "..."]],
        factor: Float[Array, ""] | float,
    ) -> Float[Array, ""]:
        """factor l(x, u) + y . (rows of the stage); y: multipliers by kind."""
        rows = {kind: rows_or_none(self.problem.stage(kind, x, u, t, p), x) for kind in CONSTRAINTS[:2]}
        rows["inner_bounds"] = self._bounded(x)
        return factor * self.problem.running_cost(x, u, t, p) + sum(jnp.vdot(y[kind], rows[kind]) for kind in rows)

    def sensitivities(
        self,
        x: Float[Array, " nx"],
        R: Float[Array, "n n"],
        us: Float[Array, "K nu"],
        times: Float[Array, " K"],
        places: Int[Array, " K"],
        valid: Bool[Array, " K"],
        p: Float[Array, " np"],
    ) -> tuple[
        Float[Array, " nx"], Float[Array, "n c"], Float[Array, "K nx"], Float[Array, "K z c"], Float[Array, "K n f"]
    ]:
        """Of one interval: (its end, the end's sensitivity S (n, c), states (K, nx), Z (K, n + nu + np, c), F (K, n, ...))."""

        def forward(carry: tuple, inputs: tuple) -> tuple[Any, Any]:
            x, S = carry
            u, t, j, ok = inputs
            Z = self._local_slopes(S, j)
            x_next, F = self.linear(x, u, t, p)
            return (jnp.where(ok, x_next, x), jnp.where(ok, F @ Z, S)), (x, Z, F)

        (end, S), (xs, Z, F) = jax.lax.scan(forward, (x, self._first(R)), (us, times, places, valid))
        return end, S, xs, Z, F


_JACOBIAN_ORDER = (
    "defect", "next", "equality", "inequality", "inner_bounds", "node_bounds", "terminal_equality", "terminal_inequality",
)  # fmt: skip
