"""Quadratic model of an optimal control problem along a motion, constraints in their augmented Lagrangian.

Local coordinates are [dx, dp] of each state, the free parameters p being carried along as states that do not change, and
du of the controls. With the model comes what is judged at the motion: cost, violation and stationarity.

Complementarity-aware steps are linearised one after the other, from the last to the first, in the contact labels that the
costate p_{t+1} asks for, p_t = q_t + A_t^T p_{t+1}: the gradient of the augmented cost by the state after the step, of which
later steps have chosen their labels already. It is V_x of a backward pass without a step (all k_t = 0). V_x of the pass
itself, of the cost that is left after the step, would be no better direction: it depends on the damping, so that each
attempt of the line search had to linearise anew, and it vanishes where the step reaches all it wants, when its sign, and with
it the labels, is that of rounding. Where states have gaps p is that of the states given, and gaps pull at no label.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, ScalarLike

from trajopt.problems.expansions import (
    aware_dynamics,
    final_expansion,
    linear_dynamics,
    moved,
    prior_expansion,
    relabels,
    stage_expansion,
)
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.programs import subject
from trajopt.solvers.subproblems import augmented_lagrangian as al
from trajopt.solvers.subproblems.batching import each
from trajopt.solvers.subproblems.box_qp import held_at_bound
from trajopt.solvers.subproblems.riccati import (
    LQProblem,
    adjoint,
    adjoint_of_policy,
    riccati,
    riccati_native,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LocalModel:
    """Quadratic model at a motion, and what is judged there.

    costates: multipliers of the dynamics, the adjoint of the augmented cost (along a motion that follows
    its policy where `Modeller.followed`); cost; augmented: what the constraints add; size:
    sum of the magnitudes of both; gap: sum of |defects|; violation: largest of defects and constraints; excess: largest of
    violation and lack of complementarity; stationarity: largest |dH/du| over the controls not held at a bound (and of the
    derivatives by a free initial state and parameters); pull: the largest sum of magnitudes that cancel in it; scale: that, at
    least 1; bad_step: first step whose model is not finite, T for the terminal cost, -1: none.
    """

    lq: LQProblem
    costates: Float[Array, "T+1 n"]
    initial_gradient: Float[Array, " k"]
    initial_hessian: Float[Array, "k k"]
    rows: tuple[Array, Array]
    cost: Float[Array, ""]
    augmented: Float[Array, ""]
    size: Float[Array, ""]
    gap: Float[Array, ""]
    violation: Float[Array, ""]
    excess: Float[Array, ""]
    stationarity: Float[Array, ""]
    pull: Float[Array, ""]
    scale: Float[Array, ""]
    bad_step: Any


@subject("problem")
@dataclasses.dataclass(frozen=True)
class Modeller:
    """Makes the models of one problem.

    gradient: mode of the dynamics' derivative; multiple: states need not obey the dynamics; second_order: exact Hessians of
    costs and constraints, instead of Gauss-Newton's where there are residuals; followed: the gradient is that by the
    feed-forward controls of the policy that minimises the model; native: the compiled core finds that; terms: of the constraints.
    """

    problem: OptimalControlProblem
    gradient: str
    multiple: bool
    second_order: bool
    followed: bool = False
    native: bool = False

    @property
    def constraints(self) -> al.Constraints:
        return al.Constraints(self.problem)

    @property
    def aware(self) -> bool:
        """Whether the labels of contacts follow the costates."""
        return relabels(self.problem, self.gradient)

    def order(self) -> Int[np.ndarray, " z"]:
        """Positions of [dx, dp, du] in z = [dx, du, dp]."""
        n, nu, n_p = self.problem.n, self.problem.nu, self.problem.n_p
        return np.concatenate([np.arange(n), n + nu + np.arange(n_p), n + np.arange(nu)])

    def free(self) -> Int[np.ndarray, " k"]:
        """Positions in [dx_0, dp] of what may change at the start."""
        n = self.problem.n
        return np.arange(0 if self.problem.free_initial_state else n, n + self.problem.n_p)

    def blank(self) -> LocalModel:
        """A model of zeros, to be filled by the first call."""
        problem, (stage, terminal) = self.problem, self.constraints.inequality()
        T, n, m, k = problem.horizon, problem.n + problem.n_p, problem.nu, self.free().size

        def zeros(*shape: int) -> Any:
            return np.zeros(shape, problem.dtype)

        lq = LQProblem(
            zeros(T, n, n), zeros(T, n, m), zeros(T, n), zeros(T + 1, n, n), zeros(T, m, m), zeros(T, n, m),
            zeros(T + 1, n), zeros(T, m),
        )  # fmt: skip
        zero, none = zeros(), np.zeros((), np.int32)
        rows = zeros(T, stage.size), zeros(terminal.size)
        return LocalModel(lq, zeros(T + 1, n), zeros(k), zeros(k, k), rows, *(zero,) * 9, none)

    def expand(self, at: Trajectory, multipliers: al.Multipliers) -> LocalModel:
        """The model at a motion."""
        problem, free = self.problem, self.free()
        final, c_end, g_end, H_end = self._final_model(at, multipliers)
        F, defect, running, g, H, c = self._stage_models(at, multipliers, g_end)
        lq = self._lq(F, defect if self.multiple else jnp.zeros_like(defect), g, H, g_end, H_end)
        prior = prior_expansion(problem, at.xs[0], at.p, self._hessian)
        rows = c, c_end
        augmented = self.constraints.added(multipliers, rows)
        costates, stationarity, pull = self._stationarity(at, lq, prior.gradient[free])
        violation = jnp.maximum(self.constraints.violation(rows), jnp.max(jnp.abs(lq.d)))
        excess = [jnp.max(al.excess(*part), initial=0.0) for part in self.constraints.parts(multipliers, rows)]
        return LocalModel(
            lq=lq,
            costates=costates,
            initial_gradient=prior.gradient[free],
            initial_hessian=prior.hessian[free][:, free],
            rows=rows,
            cost=jnp.sum(running) + final + prior.value,
            augmented=augmented,
            size=jnp.sum(jnp.abs(running)) + jnp.abs(final) + prior.value + jnp.abs(augmented),
            gap=jnp.sum(jnp.abs(lq.d)),
            violation=violation,
            # A penalty of zero hides a row from the excess, not from the violation.
            excess=jnp.maximum(violation, jnp.maximum(*excess)),
            stationarity=stationarity,
            pull=pull,
            scale=jnp.maximum(pull, 1.0),
            bad_step=_first_bad(F, defect, running, g, H, c, last=(final, g_end, H_end)),
        )

    @property
    def _hessian(self) -> str:
        """Which Hessian of costs: one of `expansions.HESSIANS`."""
        return "exact" if self.second_order else "gauss-newton"

    def _final_model(self, at: Trajectory, multipliers: al.Multipliers) -> tuple[Array, Array, Array, Array]:
        """(terminal cost, terminal rows, gradient and Hessian by [dx_T, dp] with the rows' augmented term)."""
        problem, n, p = self.problem, self.problem.n, at.p
        final = final_expansion(problem, at.xs[-1], p, self._hessian)

        def rows_at(z: Array) -> Array:
            return self.constraints.terminal(problem.retract(at.xs[-1], z[:n]), p + z[n:])

        y, w, inequality = multipliers.terminal, multipliers.terminal_penalty, self.constraints.inequality()[1]
        found = self.constraints.terminal_slopes(at.xs[-1], p)
        return final.value, *self._with_rows(rows_at, found, final.gradient, final.hessian, y, w, inequality)

    def _stage_models(self, at: Trajectory, multipliers: al.Multipliers, g_end: Array) -> tuple[Array, ...]:
        """Of each step, stacked: (F, defect, cost, gradient, Hessian, rows), in [dx, dp, du].

        g_end: gradient at the end, where the sweep of complementarity-aware linearisations starts.
        """
        problem, n, p = self.problem, self.problem.n, at.p
        order: Any = self.order() if problem.n_p else slice(None)  # without parameters it is that of z
        linear = aware_dynamics(problem) if self.aware else linear_dynamics(problem, self.gradient)
        curved, inequality = self.multiple and not self._flat, self.constraints.inequality()[0]

        def read(x_after: Array, x_next: Array) -> Array:
            """Derivative of the defect by x_next."""
            return jax.jacfwd(lambda e: problem.local(x_after, problem.retract(x_next, e)))(jnp.zeros(n, at.xs.dtype))

        def stage(x: Array, x_after: Array, u: Array, t: ScalarLike, y: Array, w: Array, *costate: Array) -> tuple:
            if costate and curved:
                costate = (read(x_after, problem.step(x, u, t, p)).T @ costate[0],)
            x_next, F = linear(x, u, t, p, *costate)
            defect = problem.local(x_after, x_next)
            F = read(x_after, x_next) @ F if curved else F
            model = stage_expansion(problem, x, u, t, p, self._hessian)
            go = moved(problem, x, u, p)

            def rows_at(z: Array) -> Array:
                x, u, p = go(z)
                return self.constraints.stage(x, u, t, p)

            found = self.constraints.stage_slopes(x, u, t, p)
            c, g, H = self._with_rows(rows_at, found, model.gradient, model.hessian, y, w, inequality)
            return F[:, order], defect, model.value, g[order], H[order][:, order], c

        def sweep(costate: Array, row: tuple) -> tuple[Any, Any]:
            parts = stage(*row, costate)
            F, g = parts[0], parts[3]
            before = g[:n] + F[:, :n].T @ costate
            return before, parts

        y, w = multipliers.stage, multipliers.stage_penalty
        steps = (at.xs[:-1], at.xs[1:], at.us, jnp.asarray(problem.times)[:-1], y, w)
        if self.aware:
            return jax.lax.scan(sweep, g_end, steps, reverse=True)[1]
        return each(problem, stage, *steps)

    @property
    def _flat(self) -> bool:
        """Whether states form a vector space."""
        return self.problem.integrate is None and self.problem.n == self.problem.nx

    def _with_rows(
        self,
        rows_at: Callable[[Array], Array],
        found: tuple[Array, Array],
        g: Array,
        H: Array,
        y: Array,
        w: Array,
        inequality: np.ndarray,
    ) -> tuple[Array, Array, Array]:
        """(c, gradient, Hessian): the cost's plus those of the augmented term of the rows; found: rows and their derivative."""
        if not inequality.size:
            return jnp.zeros(0, g.dtype), g, H
        c, C = found
        pull = al.estimate(y, w, c, inequality)
        H = H + C.T @ (al.weight(y, w, c, inequality)[:, None] * C)
        if self.second_order:
            pulled = jax.lax.stop_gradient(pull)
            H = H + jax.jacfwd(jax.jacrev(lambda z: jnp.vdot(pulled, rows_at(z))))(jnp.zeros_like(g))
        return c, g + C.T @ pull, H

    def _lq(self, F: Array, d: Array, g: Array, H: Array, g_end: Array, H_end: Array) -> LQProblem:
        n, n_p = self.problem.n, self.problem.n_p
        n_e, T = n + n_p, self.problem.horizon
        A, B = F[:, :, :n_e], F[:, :, n_e:]
        if n_p:
            keep = jnp.broadcast_to(jnp.eye(n_p, n_e, n, dtype=F.dtype), (T, n_p, n_e))
            A = jnp.concatenate([A, keep], 1)
            B = jnp.concatenate([B, jnp.zeros((T, n_p, B.shape[2]), F.dtype)], 1)
            d = jnp.concatenate([d, jnp.zeros((T, n_p), F.dtype)], 1)
        Q, q = jnp.concatenate([H[:, :n_e, :n_e], H_end[None]]), jnp.concatenate([g[:, :n_e], g_end[None]])
        return LQProblem(A, B, d, Q, H[:, n_e:, n_e:], H[:, :n_e, n_e:], q, g[:, n_e:])

    @property
    def bounded(self) -> bool:
        """Whether a control has a bound."""
        return bounds_controls(self.problem)

    def control_bounds(self, at: Trajectory) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Bounds on the controls."""
        low, high = self.problem.control_lower, self.problem.control_upper
        return jnp.asarray(low, at.us.dtype), jnp.asarray(high, at.us.dtype)

    def control_room(self, at: Trajectory) -> tuple[Float[Array, "T m"] | None, Float[Array, "T m"] | None]:
        """Bounds on du, none where no control has one."""
        if not self.bounded:
            return None, None
        low, high = self.control_bounds(at)
        return low - at.us, high - at.us

    def _adjoint(self, at: Trajectory, lq: LQProblem) -> tuple[Array, Array]:
        """Costates and gradient: by the controls, or by the feed-forward of the policy that minimises the model."""
        if not self.followed:
            return adjoint(lq)
        policy = (riccati_native if self.native else riccati)(lq, *self.control_room(at))
        return adjoint_of_policy(lq, policy.K, at.us, *self.control_bounds(at))

    def _stationarity(self, at: Trajectory, lq: LQProblem, initial_gradient: Array) -> tuple[Array, Array, Array]:
        free = self.free()
        costates, slope = self._adjoint(at, lq)
        first = costates[0][free] + initial_gradient
        low, high = self.initial_bounds(at.p)
        largest = jnp.maximum(
            _free_gradient(at.us, slope, *self.control_bounds(at)),
            _free_gradient(jnp.zeros_like(first), first, low, high),
        )
        pulls = jnp.abs(lq.r) + jnp.einsum("tij,ti->tj", jnp.abs(lq.B), jnp.abs(costates[1:]))
        return costates, largest, jnp.max(pulls, initial=jnp.zeros((), pulls.dtype))

    def initial_bounds(self, p: Float[Array, " np"]) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """Bounds on the free part of [dx_0, dp]; those on x_0 are constraint rows."""
        problem = self.problem
        free_states = problem.n if problem.free_initial_state else 0
        wide = jnp.full(free_states, jnp.inf, p.dtype)
        low, high = problem.parameter_lower.astype(p.dtype) - p, problem.parameter_upper.astype(p.dtype) - p
        return jnp.concatenate([-wide, low]), jnp.concatenate([wide, high])


def bounds_controls(problem: OptimalControlProblem) -> bool:
    """Whether a control has a bound."""
    return bool(problem.finite("control_lower").any() or problem.finite("control_upper").any())


def runs_native(problem: OptimalControlProblem) -> bool:
    """Whether the compiled core makes the problem's steps, and so the passes."""
    return problem.system is not None and problem.system.resolved_backend == "native"


def _free_gradient(x: Array, gradient: Array, lower: Array, upper: Array) -> Array:
    """Largest component of the gradient over variables not held at a bound."""
    held = held_at_bound(x, gradient, lower, upper)
    return jnp.max(jnp.where(held, 0.0, jnp.abs(gradient)), initial=jnp.zeros((), gradient.dtype))


def _first_bad(*stages: Array, last: tuple) -> Array:
    """Index of the first entry along the first axis with a value that is not finite; T for `last`, -1 if there is none."""
    good = jnp.stack([jnp.all(jnp.isfinite(a.reshape(a.shape[0], -1)), 1) for a in stages]).all(0)
    end = jnp.stack([jnp.all(jnp.isfinite(a)) for a in last]).all()
    bad = ~jnp.concatenate([good, end[None]])
    return jnp.where(jnp.any(bad), jnp.argmax(bad), -1).astype(jnp.int32)
