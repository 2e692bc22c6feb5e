"""One iteration of iLQR or DDP as one compiled program: backward pass, line search, expansion at the new motion.

Damping mu is added to R_t of the model ("control") or to Q_t, t >= 1 ("state"); the pass is repeated with a larger mu until it
is strictly convex and the line search succeeds. For iLQR on smooth dynamics it begins at a share of the curvature along the step
that was refused, k^T H k / |k|^2, and is zero below that, so that it is felt whatever the units. Curvature of the dynamics
(`curvature`) may make a pass that is not convex: a half, a quarter and none of it are tried before any damping.

Line search: lengths 1, 1/2, ..., 2^-MAX_HALVINGS, the controls being u_t + a k_t + K_t (x (-) x_t), clipped to their bounds.
The first length is taken whose decrease of the merit is at least ACCEPT times what the model predicts. The merit is the
augmented cost, plus nu sum_t |d_t|_1 in multiple shooting, where the new motion keeps the share (1 - a) of every defect
d_t and nu is as large as Nocedal and Wright, eq. 18.36, ask for a descent direction.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.policies import follow_policy
from trajopt.problems.expansions import advance, needs_steps, twice_differentiable
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.programs import subject
from trajopt.solvers.ddp.curvature import SHORT, Curvature
from trajopt.solvers.ddp.local_model import LocalModel, Modeller
from trajopt.solvers.ddp.reports import Direction, Iterate, Report
from trajopt.solvers.subproblems import augmented_lagrangian as al
from trajopt.solvers.subproblems.box_qp import box_qp
from trajopt.solvers.subproblems.riccati import (
    Policy,
    lq_rollout,
    riccati,
    riccati_native,
)

ACCEPT = 0.25
SURPRISE = 10.0  # greatest decrease that is believed, in units of the predicted one (Howell, Jackson, Manchester 2019)
MAX_HALVINGS = 12
DAMPING = (1e-6, 1e10)  # smallest damping, below which it is zero, and largest
DAMPING_FACTOR = 10.0
ROUNDING = 100.0  # in units of rounding: changes of the merit below it say nothing
DAMPED_LENGTH = 2.0**-3  # the least one of damped states through contact: they shorten steps where contacts close and open
GAP_SHARE = 0.5  # rho of Nocedal and Wright, eq. 18.36
TELLING_DAMPING = 0.01  # of the curvature along the step: less damping would not be felt
LEAST_SHARE = 0.2  # of the learnt curvature: below it, none


class _Attempt(NamedTuple):
    """State of the search for a damping: where the last line search ended, the next damping and gap penalty, its report, the
    share of the learnt curvature that the next pass takes, and whether another search is to be made."""

    motion: Trajectory
    damping: Float[Array, ""]
    gap_penalty: Float[Array, ""]
    report: Report
    share: Float[Array, ""]
    unfinished: Bool[Array, ""]


@subject("modeller")
@dataclasses.dataclass(frozen=True)
class Iteration:
    """The program for one problem.

    curvature: where that of the dynamics comes from; the rest are the options of iLQR.
    """

    modeller: Modeller
    damp_state: bool
    curvature: Curvature = Curvature()

    @property
    def problem(self) -> OptimalControlProblem:
        return self.modeller.problem

    @property
    def multiple(self) -> bool:
        return self.modeller.multiple

    def on(self, problem: OptimalControlProblem) -> Iteration:
        """The same for a problem with other numbers, which may be traced."""
        return dataclasses.replace(self, modeller=dataclasses.replace(self.modeller, problem=problem))

    # -- backward pass -------------------------------------------------------------------------------------------------

    def backward_pass(self, at: Trajectory, model: LocalModel, damping: Float[Array, ""]) -> Direction:
        """The minimiser of the damped model, by a Riccati recursion and, where they are free, in [dx_0, dp]."""
        problem, lq, free = self.problem, model.lq, self.modeller.free()
        n, n_e = problem.n, problem.n + problem.n_p
        if self.damp_state:
            weight = damping * jnp.diag(jnp.arange(n_e) < n).astype(lq.Q.dtype)
            damped = dataclasses.replace(lq, Q=lq.Q.at[1:].add(weight))
        else:
            damped = dataclasses.replace(lq, R=lq.R + damping * jnp.eye(problem.nu, dtype=lq.R.dtype))
        low, high = self.modeller.control_room(at)
        policy = (riccati_native if self.modeller.native else riccati)(damped, low, high)
        start = jnp.zeros(n_e, lq.q.dtype)
        slope, total, convex = policy.slope, policy.c[0], policy.convex
        if free.size:
            eye = jnp.eye(free.size, dtype=lq.q.dtype)
            H = policy.P[0][free][:, free] + model.initial_hessian + damping * eye
            g = policy.p[0][free] + model.initial_gradient
            first = box_qp(H, g, *self.modeller.initial_bounds(at.p))
            start, down = start.at[free].set(first.x), jnp.vdot(g, first.x)
            slope, total = slope + down, total + down + 0.5 * jnp.vdot(first.x, H @ first.x)
            convex = convex & jnp.all(jnp.isfinite(first.factor))
        if self.multiple:
            dxs, dus = lq_rollout(lq, policy, start)
            slope = jnp.vdot(lq.q, dxs) + jnp.vdot(lq.r, dus) + jnp.vdot(model.initial_gradient, start[free])
        return Direction(dataclasses.replace(policy, convex=convex), start, slope, total)

    # -- line search ---------------------------------------------------------------------------------------------------

    def forward_pass(
        self, iterate: Iterate, direction: Direction, length: Float[Array, ""], multipliers: al.Multipliers
    ) -> tuple[Trajectory, Float[Array, ""]]:
        """The motion of the policy at a step length, and its augmented cost."""
        problem, at = self.problem, iterate.motion
        move = length * direction.start[: problem.n]
        x0 = problem.retract(at.xs[0], move) if problem.free_initial_state else at.xs[0]
        return self.follow(x0, at, direction, length, multipliers, iterate.model.lq.d)

    def follow(
        self,
        x0: Float[Array, " nx"],
        at: Trajectory,
        direction: Direction,
        length: Float[Array, ""],
        multipliers: al.Multipliers,
        defects: Float[Array, "T n"] | None = None,
    ) -> tuple[Trajectory, Float[Array, ""]]:
        """The motion from x0 of the policy about `at` at a step length, and its augmented cost; defects: of `at`, none: zero."""
        policy, start = direction.policy, direction.start
        problem, constraints = self.problem, self.modeller.constraints
        n, inequality = problem.n, constraints.inequality()
        low, high = self.modeller.control_bounds(at)
        dp = length * start[n:]
        p = at.p + dp
        if problem.n_p:
            p = jnp.clip(p, problem.parameter_lower.astype(p.dtype), problem.parameter_upper.astype(p.dtype))
            dp = p - at.p

        def body(x: Array, inputs: tuple) -> tuple[Any, Any]:
            x_bar, u_bar, d, t, K, k, y, w = inputs
            dx = jnp.concatenate([problem.local(x_bar, x), dp])
            u = u_bar + length * k + K @ dx
            u = jnp.clip(u, low, high) if self.modeller.bounded else u
            x_next, cost, _ = advance(problem, x, u, t, p)
            if inequality[0].size:
                cost = cost + al.term(y, w, constraints.stage(x, u, t, p), inequality[0])
            if self.multiple:
                x_next = problem.retract(x_next, (length - 1.0) * d[:n])
            return x_next, (x_next, u, cost)

        if self._follows_at_once:
            return self._followed(x0, at, direction, length, multipliers)
        times, rows = jnp.asarray(problem.times)[:-1], (multipliers.stage, multipliers.stage_penalty)
        defects = jnp.zeros((problem.horizon, n), at.us.dtype) if defects is None else defects
        inputs = (at.xs[:-1], at.us, defects, times, policy.K, policy.k, *rows)
        _, (xs, us, costs) = jax.lax.scan(body, x0, inputs)
        prior = problem.prior_residual(x0, p)
        total = jnp.sum(costs) + problem.final_cost(xs[-1], p) + 0.5 * jnp.vdot(prior, prior)
        if inequality[1].size:
            last = constraints.terminal(xs[-1], p)
            total = total + al.term(multipliers.terminal, multipliers.terminal_penalty, last, inequality[1])
        return Trajectory(jnp.concatenate([x0[None], xs]), us, p), total

    @property
    def _follows_at_once(self) -> bool:
        """Whether the motion of a policy is one call of the `System`, its cost another: nothing else happens along it."""
        problem = self.problem
        system = problem.system
        plain = system is not None and system.contact.contact_state_shape(system.model) is None and not problem.n_p
        return self.modeller.native and plain and not (self.multiple or needs_steps(problem))

    def _followed(
        self, x0: Array, at: Trajectory, direction: Direction, length: Array, multipliers: al.Multipliers
    ) -> tuple[Trajectory, Float[Array, ""]]:
        """`follow` through `follow_policy`."""
        problem, system = self.problem, self.problem.system
        assert system is not None
        nq = system.nq
        low, high = self.modeller.control_bounds(at)
        policy, bar = direction.policy, (at.xs[:-1, :nq], at.xs[:-1, nq:])
        us = at.us + length * policy.k
        found, us, _ = follow_policy(system, problem.as_state(x0), *bar, us, policy.K, low, high)
        xs = jnp.concatenate([x0[None], jnp.concatenate([found.q, found.v], 1)])
        motion, constraints = Trajectory(xs, us, at.p), self.modeller.constraints
        cost = problem.cost(motion)
        if problem.constrained:
            cost = cost + constraints.added(multipliers, constraints.along(motion))
        return motion, cost

    def line_search(
        self,
        iterate: Iterate,
        direction: Direction,
        gap_penalty: Float[Array, ""],
        multipliers: al.Multipliers,
        report: Report,
    ) -> tuple[Trajectory, Report]:
        """(the motion of the first length that is accepted, or of the last one that was tried, what happened).

        report: of the earlier searches of this iteration. A direction that is not a minimiser is not tried.
        """
        at, model, nu = iterate.motion, iterate.model, gap_penalty
        policy, _, slope, total = direction
        noise = ROUNDING * jnp.finfo(at.us.dtype).eps * model.size
        merit = model.cost + model.augmented

        def proceed(search: tuple[Array, Trajectory, Report]) -> Array:
            length, _, report = search
            return ~report.accepted & (length >= self.shortest)

        def trial(search: tuple[Array, Trajectory, Report]) -> tuple[Array, Trajectory, Report]:
            length, _, report = search
            motion, value = self.forward_pass(iterate, direction, length, multipliers)
            finite = jnp.isfinite(value)
            predicted = -(length * slope + length**2 * (total - slope)) + nu * length * model.gap
            decrease = merit - value + nu * length * model.gap
            rounded = predicted <= noise
            good = (
                jnp.where(
                    rounded, decrease >= -noise, (decrease >= ACCEPT * predicted) & (decrease <= SURPRISE * predicted)
                )
                & finite
            )
            bad = jnp.where(finite, report.bad_step, _first_bad_state(motion.xs))
            step_size = jnp.sqrt(jnp.sum((motion.us - at.us) ** 2) + jnp.sum((motion.p - at.p) ** 2))
            trials, gains = report.trials + 1, policy.K[:, :, : self.problem.n]
            finite = report.finite_trial | finite
            report = Report(good, length, rounded, trials, finite, bad, step_size, gains, value)
            return 0.5 * length, motion, report

        ready = policy.convex & jnp.isfinite(total)
        length = jnp.where(ready, jnp.ones((), at.us.dtype), 0.0)
        first = length, at, dataclasses.replace(report, accepted=jnp.zeros((), bool))
        _, motion, report = jax.lax.while_loop(proceed, trial, first)
        return motion, report

    def _raised_gap_penalty(self, direction: Direction, model: LocalModel, nu: Array) -> Array:
        """The least gap penalty, at least nu, for which the direction lowers the merit; nu where there are no gaps."""
        slope, total = direction.slope, direction.total
        bend = jnp.maximum(total - slope, 0.0)
        needed = (slope + bend) / ((1.0 - GAP_SHARE) * jnp.where(model.gap > 0, model.gap, 1.0))
        ready = direction.policy.convex & jnp.isfinite(total)
        return jnp.where(ready & (model.gap > 0), jnp.maximum(nu, needed), nu)

    def step(self, iterate: Iterate, multipliers: al.Multipliers) -> tuple[Iterate, Report]:
        """(the iterate after a step, whose model is still the old one, what happened): backward passes and line searches with
        ever larger damping until a length is accepted."""
        smallest, largest = DAMPING
        at = iterate.motion

        def attempt(state: _Attempt) -> _Attempt:
            damping, nu, share = state.damping, state.gap_penalty, state.share
            model = self.curvature.added(iterate.model, iterate.curvature, share)
            direction = self.backward_pass(at, model, damping)
            if self.multiple:
                nu = self._raised_gap_penalty(direction, iterate.model, nu)
            motion, report = self.line_search(iterate, direction, nu, multipliers, state.report)
            felt = self._felt_damping(direction.policy)
            telling = jnp.where(felt > 0, felt, smallest)
            least = smallest if self.damp_state else telling  # the curvature is that by the controls
            raised = jnp.where(damping > 0, DAMPING_FACTOR * damping, telling)
            lowered = jnp.where(damping > DAMPING_FACTOR * least, damping / DAMPING_FACTOR, 0.0)
            kept = jnp.where(report.length >= 0.5, lowered, jnp.where(report.length < SHORT, raised, damping))
            next_damping = jnp.where(report.accepted, kept, jnp.where(share > 0, damping, raised))
            less = jnp.where(share > LEAST_SHARE, 0.5 * share, 0.0)
            return _Attempt(motion, next_damping, nu, report, less, ~report.accepted & (next_damping <= largest))

        first = _Attempt(
            at,
            iterate.damping,
            iterate.gap_penalty,
            self.report(at.us.dtype),
            jnp.full((), float(self.curvature.present), at.us.dtype),
            jnp.ones((), bool),
        )
        last = jax.lax.while_loop(lambda state: state.unfinished, attempt, first)
        report = last.report
        motion = jax.tree.map(lambda new, old: jnp.where(report.accepted, new, old), last.motion, at)
        return Iterate(motion, iterate.model, last.damping, last.gap_penalty, iterate.curvature), report

    @property
    def shortest(self) -> float:
        """The least length of a line search."""
        damped = self.damp_state and not twice_differentiable(self.problem)
        return DAMPED_LENGTH if damped else 2.0**-MAX_HALVINGS

    def _felt_damping(self, policy: Policy) -> Float[Array, ""]:
        """The least damping that counts, for iLQR on smooth dynamics: a share of the curvature along the step; else 0.

        Where contacts open and close steps are short for another reason, and DDP's own Hessian knows how far it holds.
        """
        bend = policy.curvature / jnp.sum(policy.k**2)
        felt = policy.convex & jnp.isfinite(bend) & (twice_differentiable(self.problem) and self.curvature.kind != "computed")
        return jnp.where(felt, TELLING_DAMPING * bend, 0.0)

    def report(self, dtype: Any) -> Report:
        """Of an iteration that has not tried anything."""
        return Report.blank((self.problem.horizon, self.problem.nu, self.problem.n), dtype)

    def advance(self, move: Bool[Array, ""], iterate: Iterate, multipliers: al.Multipliers) -> tuple[Iterate, Report]:
        """(the iterate after a step with the model there, what happened); without `move` only the model is made anew."""

        def stay(iterate: Iterate, _: al.Multipliers) -> tuple[Iterate, Report]:
            return iterate, self.report(iterate.motion.us.dtype)

        moved, report = jax.lax.cond(move, self.step, stay, iterate, multipliers)
        model = self.modeller.expand(moved.motion, multipliers)
        old, new = (iterate.motion, iterate.model), (moved.motion, model)
        curvature = self.curvature.after(self.modeller, iterate.curvature, old, new, report.length)
        return dataclasses.replace(moved, model=model, curvature=curvature), report


def _first_bad_state(xs: Array) -> Array:
    """The step that first leads to a state that is not finite."""
    bad = ~jnp.all(jnp.isfinite(xs), 1)
    return jnp.where(jnp.any(bad), jnp.maximum(jnp.argmax(bad) - 1, 0), -1).astype(jnp.int32)
