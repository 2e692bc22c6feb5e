r"""The conditions of optimality of a motion, and their derivative: what the implicit function theorem is applied to.

In the tangent coordinates z = [dx, du, dp] about a motion, with costates p_t and multipliers y of the constraints that bind,

    L(z, p, y; theta) = cost + sum_t p_{t+1}^T (f(x_t, u_t) (-) x_{t+1} - dx_{t+1}) + p_0^T (x_0 (-) x(0) - dx_0) + y^T c

is stationary in s = (z, p, y), controls that a bound holds left out. So K ds + F dtheta = 0 with second derivatives K, F of L.
K is the matrix of a linear-quadratic problem with equality constraints: one Riccati recursion solves it (`Conditions.solve`), and
conjugate gradients on the constraints' multipliers where there are any. K is symmetric, so that

    forward  ds = -K^-1 (F dtheta),         F dtheta = d/ds (dL/dtheta . dtheta)
    reverse  F^T w, w = -K^-1 ds-bar,       F^T w    = d/dtheta (dL/ds . w).

Both mixed derivatives are gradients of directional ones. Steps through contact have first derivatives alone: there the part of
the dynamics is a central difference within the contact modes, and K has what `contact_curvature` finds there.

Nocedal, Wright, Numerical Optimization, 2006, section 12.3 (KKT system); Amos, Jimenez Rodriguez, Sacks, Boots, Kolter,
Differentiable MPC for end-to-end planning and control, NeurIPS 2018.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, ScalarLike

from trajopt.dynamics.linear_algebra import cho_solve_vector, symmetric_cholesky
from trajopt.problems.contact_curvature import motion_curvature
from trajopt.problems.expansions import needs_steps, twice_differentiable
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.programs import subject
from trajopt.solvers.ddp.curvature import with_curvature
from trajopt.solvers.ddp.local_model import Modeller, runs_native
from trajopt.solvers.derivatives.parameters import shifted
from trajopt.solvers.subproblems.augmented_lagrangian import Multipliers, Rows
from trajopt.solvers.subproblems.batching import each
from trajopt.solvers.subproblems.riccati import LQProblem, lq_rollout, riccati, riccati_native

EXACT = "implicit"
STEP = 1e-7  # of differences through contact, in units of the largest entry of the direction (as `contact_curvature.STEP`)
BINDING = 1e-6  # share of the largest gradient, or multiplier, above which a bound, or a constraint, binds
AT_BOUND = 1e-6  # distance from a bound, relative to 1 + its size, within which a control is at it
WEIGHTS = (1e2, 1e5, 1e8)  # of the constraints' rows, in units of the Hessian, tried until the problem is convex
ACCURACY, MOST = 1e-12, 500  # relative residual, and most iterations, of the conjugate gradients


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Point:
    """s: a displacement of a motion in tangent coordinates, with costates and multipliers; or a covector of the same shapes."""

    dxs: Float[Array, "T1 n"]
    dus: Float[Array, "T nu"]
    dp: Float[Array, " np"]
    costates: Float[Array, "T1 n"]
    stage: Float[Array, "T m"]
    terminal: Float[Array, " k"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Factors:
    """K at a solution: the linear-quadratic problem, controls at their bounds left out and rows that bind added with their
    weights; the Hessian by [dx_0, dp] where they are free; the rows' derivatives C and their weights, zero of rows that do not
    bind; whether the solution is a strict minimum, the stationarity there and its scale, and which controls a bound holds."""

    lq: LQProblem
    initial_hessian: Float[Array, "k k"]
    rows: tuple[Array, Array]
    weights: tuple[Array, Array]
    convex: Bool[Array, ""]
    stationarity: Float[Array, ""]
    scale: Float[Array, ""]
    held: Bool[Array, "T nu"]
    free: Bool[Array, " np"]


@subject("problem")
@dataclasses.dataclass(frozen=True)
class Conditions:
    """Those of one problem, whose steps are differentiated exactly (gradient mode "implicit")."""

    problem: OptimalControlProblem

    @property
    def smooth(self) -> bool:
        """Whether the dynamics have second derivatives."""
        return twice_differentiable(self.problem)

    @property
    def curved(self) -> bool:
        """Whether K has the curvature of the dynamics."""
        return self.smooth or (runs_native(self.problem) and not self.problem.n_p)

    @property
    def modeller(self) -> Modeller:
        """Of exact Hessians of costs and constraints, unless they ask for what a step through contact finds."""
        exact = self.smooth or not needs_steps(self.problem)
        return Modeller(self.problem, EXACT, False, exact, False, runs_native(self.problem))

    # -- K -------------------------------------------------------------------------------------------------------------

    def factors(self, at: Trajectory, y: Rows, weight: Float[Array, ""]) -> tuple[Factors, Point]:
        """(K at a motion with the multipliers y of its rows, s there); weight: of rows, in units of the Hessian."""
        problem, modeller, order = self.problem, self.modeller, self.modeller.order()
        zero = Multipliers(*y, *jax.tree.map(jnp.zeros_like, y))
        model = modeller.expand(at, zero)
        lq = model.lq
        if self.curved:
            S = motion_curvature(problem, at, model.costates[:, : problem.n])
            lq = with_curvature(lq, S[:, order][:, :, order])
        times, n_e = jnp.asarray(problem.times)[:-1], problem.n + problem.n_p
        slope = lq.r + jnp.einsum("tij,ti->tj", lq.B, model.costates[1:])
        held = self._held(at.us, slope, *modeller.control_bounds(at), BINDING * model.scale)
        C = each(problem, lambda x, u, t: modeller.constraints.stage_slopes(x, u, t, at.p)[1], at.xs[:-1], at.us, times)
        rows = C[:, :, order], modeller.constraints.terminal_slopes(at.xs[-1], at.p)[1]
        size = weight * jnp.max(jnp.abs(jnp.diagonal(lq.R, axis1=1, axis2=2)))
        weights = self._weights(rows, y, size)
        parameter_slope = model.costates[0][problem.n :] + model.initial_gradient[len(model.initial_gradient) - problem.n_p :]
        low, high = (jnp.asarray(bound, at.p.dtype) for bound in (problem.parameter_lower, problem.parameter_upper))
        free = ~self._held(at.p, parameter_slope, low, high, BINDING * model.scale)
        lq = _added(lq, rows, weights, n_e)
        keep = (~held).astype(lq.R.dtype)
        lq = dataclasses.replace(
            lq, B=lq.B * keep[:, None, :], S=lq.S * keep[:, None, :],
            R=lq.R * keep[:, None, :] * keep[:, :, None] + jax.vmap(jnp.diag)(held.astype(lq.R.dtype)),
        )  # fmt: skip
        policy = self._policy(lq)
        H = self._start(model.initial_hessian, policy.P[0], free)
        convex = policy.convex & jnp.all(jnp.isfinite(symmetric_cholesky(H)))
        found = Factors(
            lq, model.initial_hessian, rows, weights, convex, model.stationarity, model.scale, held, free
        )
        none = jnp.zeros_like
        return found, Point(none(model.costates[:, : problem.n]), none(at.us), none(at.p), model.costates[:, : problem.n], *y)

    def solve(self, factors: Factors, right: Point) -> tuple[Point, Float[Array, ""]]:
        """(the s with K s + right = 0, the largest residual of its rows relative to the right side's)."""
        (C, C_end), (w, w_end) = factors.rows, factors.weights

        def binding(stage: Array, terminal: Array) -> tuple[Array, Array]:
            return jnp.where(w > 0, stage, 0.0), jnp.where(w_end > 0, terminal, 0.0)

        def rows_of(s: Point) -> tuple[Array, Array]:
            """C z of the rows that bind."""
            z = jnp.concatenate([self._extended(s)[:-1], s.dus], 1)
            return binding(jnp.einsum("tmz,tz->tm", C, z), C_end @ self._extended(s)[-1])

        def given(y: tuple[Array, Array], right: Point) -> Point:
            return self._without_rows(factors, right, y)

        e = binding(right.stage, right.terminal)
        first = given(jax.tree.map(jnp.multiply, (w, w_end), e), right)
        if not (w.size or w_end.size):
            return first, jnp.zeros((), w.dtype)
        missing = jax.tree.map(jnp.add, rows_of(first), e)
        nothing = jax.tree.map(jnp.zeros_like, right)

        def compliance(y: tuple[Array, Array]) -> tuple[Array, Array]:
            """What multipliers take from the rows, and the identity of rows that do not bind."""
            taken = rows_of(given(y, nothing))
            return jax.tree.map(lambda a, b, own: jnp.where(own > 0, -a, b), taken, y, (w, w_end))

        preconditioned = lambda r: jax.tree.map(lambda a, own: jnp.where(own > 0, own * a, a), r, (w, w_end))  # noqa: E731
        y, _ = jax.scipy.sparse.linalg.cg(compliance, missing, tol=ACCURACY, maxiter=MOST, M=preconditioned)
        total = jax.tree.map(lambda a, own, b: a + own * b, y, (w, w_end), e)
        s = given(total, right)
        left = jax.tree.map(jnp.add, rows_of(s), e)
        size = lambda rows: jnp.sqrt(sum(jnp.sum(row**2) for row in rows))  # noqa: E731
        scale = size(missing)
        accuracy = size(left) / jnp.where(scale > 0, scale, 1.0)
        return dataclasses.replace(s, stage=y[0], terminal=y[1]), accuracy

    def _without_rows(self, factors: Factors, right: Point, y: tuple[Array, Array]) -> Point:
        """`solve` with given multipliers of the rows in place of what they ask for."""
        problem, lq, (C, C_end) = self.problem, factors.lq, factors.rows
        n, n_p, n_e = problem.n, problem.n_p, problem.n + problem.n_p
        pulled = jnp.einsum("tmz,tm->tz", C, y[0])
        q = jnp.pad(right.dxs, ((0, 0), (0, n_p))).at[:-1].add(pulled[:, :n_e]).at[-1].add(C_end.T @ y[1])
        q = q.at[0, n:].add(right.dp)
        r = jnp.where(factors.held, 0.0, right.dus + pulled[:, n_e:])
        d = jnp.pad(right.costates[1:], ((0, 0), (0, n_p)))
        own = dataclasses.replace(lq, q=q, r=r, d=d)
        policy = self._policy(own)
        start = jnp.zeros(n_e, q.dtype)
        if not problem.free_initial_state:
            start = start.at[:n].set(right.costates[0])
        free = self.modeller.free()
        if free.size:
            H = self._start(factors.initial_hessian, policy.P[0], factors.free)
            mask = jnp.concatenate([jnp.ones(self.problem.n, bool), factors.free])  # zero for parameters that a bound holds
            g = jnp.where(mask, policy.p[0] + policy.P[0] @ start, 0.0)[free]
            start = start.at[free].add(-cho_solve_vector(symmetric_cholesky(H), g))
        dxs, dus = lq_rollout(own, policy, start)
        costates = (jnp.einsum("tij,tj->ti", policy.P, dxs) + policy.p)[:, :n]
        if problem.free_initial_state:
            costates = costates.at[0].set(0.0)
        return Point(dxs[:, :n], dus, dxs[0, n:], costates, jnp.zeros_like(right.stage), jnp.zeros_like(right.terminal))

    def _policy(self, lq: LQProblem) -> Any:
        return (riccati_native if runs_native(self.problem) else riccati)(lq)

    def _extended(self, s: Point) -> Array:
        """[dx_t, dp] of each state."""
        return jnp.concatenate([s.dxs, jnp.broadcast_to(s.dp, (len(s.dxs), s.dp.size))], 1)

    def _start(self, initial_hessian: Array, P: Array, free: Array) -> Array:
        """The Hessian by what is free of [dx_0, dp], the identity where a bound holds a parameter."""
        own = self.modeller.free()
        mask = jnp.concatenate([jnp.ones(self.problem.n, bool), free])[own]
        H = P[own][:, own] + initial_hessian
        return jnp.where(mask[:, None] & mask[None, :], H, jnp.eye(own.size, dtype=P.dtype))

    def _held(self, x: Array, slope: Array, low: Array, high: Array, least: Array) -> Array:
        """What a bound holds: at it, and pushed against it."""
        near = lambda bound: jnp.abs(x - bound) <= AT_BOUND * (1.0 + jnp.abs(bound))  # noqa: E731
        return (near(low) & (slope > least)) | (near(high) & (slope < -least))

    def _weights(self, rows: tuple[Array, Array], y: tuple[Array, Array], size: Array) -> tuple[Array, Array]:
        """Of the rows: equalities, and inequalities with a multiplier, bind; zero of the others, and of rows without a slope."""
        kinds, relevant = self.modeller.constraints.inequality(), self.modeller.constraints.relevant()
        counts = jnp.asarray(relevant), jnp.ones_like(y[1], bool)
        largest = jnp.maximum(*(jnp.max(jnp.abs(part), initial=0.0) for part in y))

        def of(C: Array, y: Array, inequality: np.ndarray, counts: Array) -> Array:
            square = jnp.sum(C**2, -1)
            binds = counts & (square > 0) & (~inequality | (y > BINDING * largest))
            return jnp.where(binds, size / jnp.where(square > 0, square, 1.0), 0.0)

        return of(rows[0], y[0], kinds[0], counts[0]), of(rows[1], y[1], kinds[1], counts[1])

    # -- F -------------------------------------------------------------------------------------------------------------

    def forward(self, at: Trajectory, s: Point, tangent: Any) -> tuple[Point, Float[Array, ""]]:
        """(F dtheta, d cost / d theta . dtheta) for shifts dtheta of the problem's numbers."""
        zero = jax.tree.map(jnp.zeros_like, tangent)

        def along(part: Callable[..., Array]) -> Callable[[Point], Array]:
            return lambda s: jax.jvp(lambda shifts: part(at, shifts, s), (zero,), (tangent,))[1]

        def displaced(share: float) -> Point:
            moved = jax.tree.map(lambda a: share * h * a, tangent)
            return jax.grad(lambda s: self._once(at, moved, s))(s)

        h, twice, change = _step(tangent), jax.grad(along(self._twice))(s), along(self._all)(s)
        if self.smooth:
            return twice, change
        return jax.tree.map(lambda a, b, c: a + (b - c) / (2.0 * h), twice, displaced(1.0), displaced(-1.0)), change

    def reverse(self, at: Trajectory, s: Point, w: Point, by_cost: ScalarLike, shifts: Any) -> Any:
        """F^T w plus by_cost times the gradient of the cost; shifts: zeros, of the numbers to differentiate by."""

        def along(part: Callable[..., Array]) -> Callable[[Any], Array]:
            return lambda shifts: jax.jvp(lambda s: part(at, shifts, s), (s,), (w,))[1]

        def displaced(share: float) -> Any:
            moved = jax.tree.map(lambda a, b: a + share * h * b, s, w)
            return jax.grad(lambda shifts: self._once(at, shifts, moved))(shifts)

        cost = jax.grad(lambda shifts: by_cost * self._all(at, shifts, s))(shifts)
        h, found = _step(w), jax.tree.map(jnp.add, jax.grad(along(self._twice))(shifts), cost)
        if self.smooth:
            return found
        return jax.tree.map(lambda a, b, c: a + (b - c) / (2.0 * h), found, displaced(1.0), displaced(-1.0))

    def _twice(self, at: Trajectory, shifts: Any, s: Point) -> Float[Array, ""]:
        """The part of L that has second derivatives."""
        if self.smooth:
            return self._all(at, shifts, s)
        return jnp.zeros((), at.us.dtype) if needs_steps(self.problem) else self._costs(at, shifts, s)

    def _once(self, at: Trajectory, shifts: Any, s: Point) -> Float[Array, ""]:
        """The rest of L, with the steps through contact."""
        return self._all(at, shifts, s) if needs_steps(self.problem) else self._dynamics(at, shifts, s)

    def _all(self, at: Trajectory, shifts: Any, s: Point) -> Float[Array, ""]:
        """L of the shifted problem."""
        return self._costs(at, shifts, s) + self._dynamics(at, shifts, s)

    def _moved(self, at: Trajectory, s: Point) -> Trajectory:
        return Trajectory(jax.vmap(self.problem.retract)(at.xs, s.dxs), at.us + s.dus, at.p + s.dp)

    def _costs(self, at: Trajectory, shifts: Any, s: Point) -> Float[Array, ""]:
        """The part of costs, rows and the initial state."""
        problem = shifted(self.problem, shifts)
        motion = self._moved(at, s)
        stage, terminal = dataclasses.replace(self.modeller.constraints, problem=problem).along(motion)
        total = problem.cost(motion) + jnp.vdot(s.stage, stage) + jnp.vdot(s.terminal, terminal)
        if problem.free_initial_state:
            return total
        return total + jnp.vdot(s.costates[0], problem.local(at.xs[0], jnp.asarray(problem.x0)) - s.dxs[0])

    def _dynamics(self, at: Trajectory, shifts: Any, s: Point) -> Float[Array, ""]:
        """The part of the steps."""
        problem = shifted(self.problem, shifts)
        motion, times = self._moved(at, s), jnp.asarray(self.problem.times)[:-1]

        def defect(x: Array, x_after: Array, dx: Array, u: Array, t: ScalarLike) -> Array:
            return problem.local(x_after, problem.step(x, u, t, motion.p)) - dx

        defects = each(problem, defect, motion.xs[:-1], at.xs[1:], s.dxs[1:], motion.us, times)
        return jnp.vdot(s.costates[1:], defects)


def _added(lq: LQProblem, rows: tuple[Array, Array], weights: tuple[Array, Array], n_e: int) -> LQProblem:
    """The problem with the weighted rows in its Hessians."""
    (C, C_end), (w, w_end) = rows, weights
    lq = with_curvature(lq, jnp.einsum("tmi,tm,tmj->tij", C, w, C))
    return dataclasses.replace(lq, Q=lq.Q.at[-1].add(C_end.T @ (w_end[:, None] * C_end)))


def _step(direction: Any) -> Float[Array, ""]:
    """How far along a direction its differences reach."""
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in jax.tree.leaves(direction)]))
    return STEP / jnp.where(largest > 0, largest, 1.0)
