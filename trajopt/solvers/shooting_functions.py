"""The functions of a multiple-shooting transcription, to be compiled: values, first derivatives, exact Hessian.

The sensitivities of a motion inside an interval are the products of the steps' Jacobians, S_{t+1} = A_t S_t + [B_t at u_t,
P_t at p]; how the intervals are worked on together is said in `batching`. Hessians are sums over steps of Z_t^T H_t Z_t,
Z_t = d(x_t, u_t, p) in local variables. Exact Hessians need the adjoints of the motion, l_t = A_t^T l_{t+1} + (gradient of the
stage's Lagrangian), which carry a defect's multiplier back through its interval: H_t then holds the curvature of l_{t+1} . f_t.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.problems.ocp import CONSTRAINTS, OptimalControlProblem
from trajopt.problems.transcription import (
    aware_dynamics,
    dynamics_hessian,
    final_expansion,
    linear_dynamics,
    moved,
    prior_expansion,
    relabels,
    stage_constraints,
    stage_expansion,
    terminal_constraints,
)
from trajopt.solvers.batching import each
from trajopt.solvers.shooting_layout import Layout

LIMITED_MEMORY, GAUSS_NEWTON, EXACT = HESSIANS = ("limited-memory", "gauss-newton", "exact")


def euclidean(problem: OptimalControlProblem) -> bool:
    """Whether x (+) dx is x + dx."""
    return problem.integrate is None and problem.n == problem.nx


class ShootingFunctions:
    """The functions to compile. Arrays over intervals are (N, ...), over their steps (N, K, ...), padded."""

    def __init__(self, problem: OptimalControlProblem, layout: Layout, gradient: str, hessian: str) -> None:
        self.problem, self.layout, self.hessian_kind = problem, layout, hessian
        self.flat = euclidean(problem)
        self.aware = relabels(problem, gradient)
        self.linear = aware_dynamics(problem) if self.aware else linear_dynamics(problem, gradient)
        self.width = layout.local.shape[1]

    def _unpack(self, w: Array, references: Array) -> tuple[Array, Array, Array, Array]:
        """(xi (N+1, n), node states (N+1, nx), controls (N, K, nu), p); a given initial state has xi_0 = 0."""
        layout, problem = self.layout, self.problem
        xi = jnp.where(layout.nodes >= 0, w[np.maximum(layout.nodes, 0)], jnp.zeros((), w.dtype))
        return xi, jax.vmap(problem.retract)(references, xi), w[layout.controls], w[layout.parameters]

    def _steps(self) -> tuple[Array, Array, Array]:
        """Times, places within the interval and whether there is such a step, each (N, K)."""
        layout, problem = self.layout, self.problem
        times = jnp.asarray(problem.times[:-1][layout.step])
        return times, jnp.tile(jnp.arange(layout.K), (layout.N, 1)), jnp.asarray(layout.valid)

    def _bounded(self, x: Array) -> Array:
        return x[self.layout.bounded]

    # -- values --------------------------------------------------------------------------------------------------------

    def values(self, w: Float[Array, " nw"], references: Float[Array, "nodes nx"]) -> tuple[Array, ...]:
        """(f, g, states (T+1, nx), first step that is not finite)."""
        problem, layout = self.problem, self.layout
        xi, nodes, us, p = self._unpack(w, references)
        times, _, valid = self._steps()

        def body(x, inputs):
            u, t, ok = inputs
            x_next = problem.step(x, u, t, p)
            rows = {kind: _rows(problem.stage(kind, x, u, t, p), x) for kind in CONSTRAINTS[:2]}
            rows["inner_bounds"] = self._bounded(x)
            cost = problem.running_cost(x, u, t, p)
            finite = jnp.isfinite(jnp.concatenate([x_next, cost[None], *rows.values()])).all()
            return jnp.where(ok, x_next, x), (x, jnp.where(ok, cost, jnp.zeros_like(cost)), rows, finite | ~ok)

        def interval(x, u, t, ok):
            return jax.lax.scan(body, x, (u, t, ok))

        ends, (xs, costs, rows, finite) = each(problem, interval, nodes[:-1], us, times, valid)
        rows["defect"] = jax.vmap(problem.local)(references[1:], ends) - xi[1:]
        rows["node_bounds"] = nodes[:, layout.as_rows]
        rows |= {kind: _rows(problem.terminal(kind, nodes[-1], p), xi) for kind in CONSTRAINTS[2:]}
        prior = problem.prior_residual(nodes[0], p)
        last = problem.final_cost(nodes[-1], p) + 0.5 * jnp.vdot(prior, prior)
        finite = jnp.append(finite.ravel()[: problem.horizon], jnp.isfinite(last))
        states = jnp.concatenate([xs.reshape(-1, problem.nx)[: problem.horizon], nodes[-1:]])
        bad = jnp.where(finite.all(), problem.horizon + 1, jnp.argmin(finite))
        return jnp.sum(costs) + last, layout.pick(rows, jnp.concatenate), states, bad

    # -- first derivatives ---------------------------------------------------------------------------------------------

    def _charts(self, xi: Array, nodes: Array, references: Array) -> tuple[Array, Array]:
        """R (N+1, n, n), the derivative of the state's tangent by xi, and the departure from the identity."""
        eye = jnp.eye(self.problem.n, dtype=xi.dtype)
        if self.flat:
            return jnp.tile(eye, (xi.shape[0], 1, 1)), jnp.zeros((), xi.dtype)

        def chart(reference, xi, x):
            return jax.jacfwd(lambda d: self.problem.local(x, self.problem.retract(reference, xi + d)))(0 * xi)

        R = jax.vmap(chart)(references, xi, nodes)
        return R, jnp.max(jnp.linalg.norm(R - eye, axis=1))

    def _read(self, reference: Array, end: Array) -> Array:
        """E (n, n), derivative of local(reference, end (+) e) by e at zero."""
        zero = jnp.zeros(self.problem.n, end.dtype)
        return jax.jacfwd(lambda e: self.problem.local(reference, self.problem.retract(end, e)))(zero)

    def carry(self, w: Float[Array, " nw"], references: Float[Array, "nodes nx"], multipliers: Float[Array, "N n"]):
        """E_k^T times the defects' multipliers, E_k read at the nodes themselves."""
        nodes = self._unpack(w, references)[1]
        return jax.vmap(lambda reference, x, y: self._read(reference, x).T @ y)(references[1:], nodes[1:], multipliers)

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

    def labelled(self, nodes, us, p, references, multipliers: Float[Array, " m"]) -> tuple[Array, Array]:
        """(x_next (N, K, nx), F (N, K, n, n + nu)) of all steps, complementarity-aware.

        The direction of an interval's last step is the multiplier of its defect, that of an earlier one the adjoint of the
        Lagrangian. All multipliers zero: they are not known, and the costate of the loss goes on from interval to interval.
        """
        problem, layout, n = self.problem, self.layout, self.problem.n
        times, _, valid = self._steps()
        known = jnp.any(multipliers != 0)
        y = {
            kind: jnp.where(place >= 0, multipliers[np.maximum(place, 0)], jnp.zeros((), nodes.dtype))
            for kind, place in layout.rows.items()
        }

        def backward(costate, inputs):
            x, u, t, ok, y = inputs
            x_next, F = self.linear(x, u, t, p, costate)

            def lagrangian(d):
                x_ = problem.retract(x, d)
                rows = {kind: _rows(problem.stage(kind, x_, u, t, p), x) for kind in CONSTRAINTS[:2]}
                rows["inner_bounds"] = self._bounded(x_)
                return problem.running_cost(x_, u, t, p) + sum(jnp.vdot(y[kind], rows[kind]) for kind in rows)

            before = F[:, :n].T @ costate + jax.grad(lagrangian)(jnp.zeros(n, x.dtype))
            return jnp.where(ok, before, costate), (x_next, F)

        def forward(x, inputs):
            u, t, ok = inputs
            return jnp.where(ok, problem.step(x, u, t, p), x), x

        def interval(costate, inputs):
            x, u, t, ok, reference_next, y = inputs
            end, xs = jax.lax.scan(forward, x, (u, t, ok))
            costate = jnp.where(known, self._read(reference_next, end).T @ y.pop("defect"), costate)
            return jax.lax.scan(backward, costate, (xs, u, t, ok, y), reverse=True)

        last = final_expansion(problem, nodes[-1], p).gradient[:n]
        y = {kind: y[kind] for kind in ("defect", *CONSTRAINTS[:2], "inner_bounds")}
        return jax.lax.scan(interval, last, (nodes[:-1], us, times, valid, references[1:], y), reverse=True)[1]

    def slopes(
        self, w: Float[Array, " nw"], references: Float[Array, "nodes nx"], multipliers: Float[Array, " m"]
    ) -> tuple[Array, ...]:
        """(grad f, Jacobian's non-zeros, Gauss-Newton Hessian's non-zeros (none unless asked for), departure).

        multipliers: of the rows, the latest, for the labels of complementarity-aware steps; zero while unknown.
        """
        problem, layout, n, n_p = self.problem, self.layout, self.problem.n, self.problem.n_p
        xi, nodes, us, p = self._unpack(w, references)
        times, places, valid = self._steps()
        R, departure = self._charts(xi, nodes, references)
        curved = self.hessian_kind == GAUSS_NEWTON
        given = self.labelled(nodes, us, p, references, multipliers) if self.aware else ()

        def body(carry, inputs):
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

        def interval(x, R, u, t, j, ok, *steps):
            H = jnp.zeros((self.width,) * 2 if curved else (0, 0), w.dtype)
            start = (x, self._first(R), jnp.zeros(self.width, w.dtype), H)
            return jax.lax.scan(body, start, (u, t, j, ok, *steps))

        each_given = (nodes[:-1], R[:-1], us, times, places, valid, *given)
        (ends, S, gradients, H), rows = each(problem, interval, *each_given)
        rows["defect"] = S if self.flat else jax.vmap(self._read)(references[1:], ends) @ S
        rows["next"] = jnp.full((layout.N, n), -1.0, w.dtype)
        by_node = jax.vmap(jax.jacfwd(lambda d, x: problem.retract(x, d)[layout.as_rows]))
        rows["node_bounds"] = by_node(0 * xi, nodes) @ R
        end = jnp.zeros((n + n_p,) * 2, w.dtype).at[:n, :n].set(R[-1]).at[n:, n:].set(jnp.eye(n_p, dtype=w.dtype))
        start = end.at[:n, :n].set(R[0])
        rows |= {kind: terminal_constraints(problem, kind, nodes[-1], p)[1] @ end for kind in CONSTRAINTS[2:]}
        final, prior = final_expansion(problem, nodes[-1], p), prior_expansion(problem, nodes[0], p)
        blocks = [rows[kind].ravel() for kind in _JACOBIAN_ORDER]
        picked = jnp.concatenate(blocks)[layout.jacobian[2]]
        at_end, at_start = end.T @ final.gradient, start.T @ prior.gradient
        gradient = jnp.zeros(layout.variables + 1, w.dtype)  # the last entry takes what is no variable
        gradient = gradient.at[layout.local].add(gradients)
        gradient = gradient.at[np.append(layout.nodes[-1], layout.parameters)].add(at_end)
        gradient = gradient.at[np.append(layout.nodes[0], layout.parameters)].add(at_start)[:-1]
        if not curved:
            return gradient, picked, jnp.zeros(0, w.dtype), departure
        H = H.at[0].add(self._widened(start.T @ prior.hessian @ start))
        return gradient, picked, self._hessian_values(H, end.T @ final.hessian @ end), departure

    def _widened(self, block: Array) -> Array:
        """A block (n + np, n + np) of [xi, p] among the local variables of an interval."""
        n, n_p = self.problem.n, self.problem.n_p
        place = np.concatenate([np.arange(n), self.width - n_p + np.arange(n_p)])
        return jnp.zeros((self.width,) * 2, block.dtype).at[np.ix_(place, place)].set(block)

    def _hessian_values(self, H: Array, end: Array) -> Array:
        """The non-zeros from the intervals' blocks (N, c, c) and the end's (n + np, n + np)."""
        shared = self.width - self.problem.n_p
        own = jnp.sum(H[:, shared:, shared:], 0) + end[self.problem.n :, self.problem.n :]
        return jnp.concatenate([H.ravel(), end.ravel(), own.ravel()])[self.layout.hessian[2]]

    # -- exact Hessian -------------------------------------------------------------------------------------------------

    def hessian(self, w: Float[Array, " nw"], references: Float[Array, "nodes nx"], multipliers, factor) -> Array:
        """Non-zeros of the Hessian of factor f + multipliers . g."""
        problem, layout, n, n_p = self.problem, self.layout, self.problem.n, self.problem.n_p
        xi, nodes, us, p = self._unpack(w, references)
        times, places, valid = self._steps()
        R, _ = self._charts(xi, nodes, references)
        y = {
            kind: jnp.where(place >= 0, multipliers[np.maximum(place, 0)], jnp.zeros((), w.dtype))
            for kind, place in layout.rows.items()
        }
        curvature, zero_z = dynamics_hessian(problem), jnp.zeros(n + problem.nu + n_p, w.dtype)

        def forward(carry, inputs):
            x, S = carry
            u, t, j, ok = inputs
            Z = self._local_slopes(S, j)
            x_next, F = self.linear(x, u, t, p)
            return (jnp.where(ok, x_next, x), jnp.where(ok, F @ Z, S)), (x, Z, F)

        def stage(x, u, t, y):
            """Gradient and Hessian of the stage's part of the Lagrangian in z."""

            def lagrangian(z):
                x_, u_, p_ = moved(problem, x, u, p)(z)
                rows = {kind: _rows(problem.stage(kind, x_, u_, t, p_), x) for kind in CONSTRAINTS[:2]}
                rows["inner_bounds"] = self._bounded(x_)
                return factor * problem.running_cost(x_, u_, t, p_) + sum(
                    jnp.vdot(y[kind], rows[kind]) for kind in rows
                )

            return jax.grad(lagrangian)(zero_z), jax.jacfwd(jax.grad(lagrangian))(zero_z)

        def backward(adjoint, inputs):
            F, gradient, ok = inputs
            return jnp.where(ok, F[:, :n].T @ adjoint + gradient[:n], adjoint), adjoint

        def interval(x, R, xi, u, t, j, ok, reference, reference_next, y):
            (end, S), (xs, Z, F) = jax.lax.scan(forward, (x, self._first(R)), (u, t, j, ok))
            steps = {kind: y[kind] for kind in (*CONSTRAINTS[:2], "inner_bounds")}
            gradient, H = jax.vmap(stage)(xs, u, t, steps)
            last = y["defect"] if self.flat else self._read(reference_next, end).T @ y["defect"]
            first, adjoints = jax.lax.scan(backward, last, (F, gradient, ok), reverse=True)
            H = H + jax.vmap(lambda x, u, t, w: curvature(x, u, t, p, w))(xs, u, t, adjoints)
            total = jnp.einsum("kia,kij,kjb->ab", Z, jnp.where(ok[:, None, None], H, jnp.zeros_like(H)), Z)
            if self.flat:
                return total
            read = lambda e: jnp.vdot(y["defect"], problem.local(reference_next, problem.retract(end, e)))  # noqa: E731

            def chart(d):
                moved_x = problem.retract(reference, xi + d)
                return jnp.vdot(first, problem.local(x, moved_x)) + jnp.vdot(y["node_bounds"], moved_x[layout.as_rows])

            zero = jnp.zeros(n, w.dtype)
            return (total + S.T @ jax.hessian(read)(zero) @ S).at[:n, :n].add(jax.hessian(chart)(zero))

        by_interval = {key: y[key] for key in ("defect", *CONSTRAINTS[:2], "inner_bounds")}
        by_interval["node_bounds"] = y["node_bounds"][:-1]
        arguments = (
            nodes[:-1],
            R[:-1],
            xi[:-1],
            us,
            times,
            places,
            valid,
            references[:-1],
            references[1:],
            by_interval,
        )
        H = jax.vmap(interval)(*arguments)

        def prior(z):
            r = problem.prior_residual(problem.retract(references[0], z[:n]), z[n:])
            return 0.5 * factor * jnp.vdot(r, r)

        def end(z):
            x, p = problem.retract(references[-1], z[:n]), z[n:]
            rows = [jnp.vdot(y[kind], _rows(problem.terminal(kind, x, p), z)) for kind in CONSTRAINTS[2:]]
            held = jnp.vdot(y["node_bounds"][-1], x[layout.as_rows])
            return factor * problem.final_cost(x, p) + sum(rows) + held

        H = H.at[0].add(self._widened(jax.hessian(prior)(jnp.append(xi[0], p))))
        return self._hessian_values(H, jax.hessian(end)(jnp.append(xi[-1], p)))


_JACOBIAN_ORDER = (
    "defect", "next", "equality", "inequality", "inner_bounds", "node_bounds", "terminal_equality", "terminal_inequality",
)  # fmt: skip


def _rows(value: Array | None, like: Array) -> Array:
    return jnp.zeros(0, like.dtype) if value is None else value
