"""One iteration of iLQR from a measured state as one compiled program: what a receding horizon runs again and again.

A `Plan` is a motion with feedback, u = clip(u_t + K_t (x (-) x_t)). It is shifted by the time that has passed since it was made,
rolled out from the measured state with its feedback, and improved by one iteration: expansion, backward pass, line search. From
the state where a solver stands, n such iterations without a shift are n iterations of that solver.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike

from trajopt.errors import OptionError
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.programs import subject
from trajopt.solvers.ddp.iteration import Iteration
from trajopt.solvers.ddp.reports import Direction, Iterate
from trajopt.solvers.subproblems.augmented_lagrangian import Multipliers
from trajopt.solvers.subproblems.riccati import Policy

KNOT_ROUNDING = 1e-6  # of a knot: times nearer than that to a knot are at it


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Plan:
    """States (T+1, nx) at the knots, controls (T, nu) held between them, feedback gains (T, nu, n)."""

    xs: Any
    us: Any
    gains: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Replanned:
    """What became of a plan: the new one, the damping for the next iteration, the cost of the old plan from the
    measured state and of the new one, whether a step was accepted, and whether the new plan is finite."""

    plan: Plan
    damping: Any
    cost_before: Any
    cost: Any
    accepted: Any
    finite: Any


@subject("iteration")
@dataclasses.dataclass(frozen=True)
class Replanning:
    """The programs of a receding horizon for one problem and the options of one solver."""

    iteration: Iteration
    damping: float

    def __post_init__(self) -> None:
        """Refuse what one iteration from a measured state cannot be about."""
        problem, modeller = self.problem, self.iteration.modeller
        reasons = {
            "has a free initial state; the measured state is the initial one": problem.free_initial_state,
            "has free parameters; hold them, or estimate them apart": bool(problem.n_p),
            "has constraints beside bounds on controls; state them as residuals (residuals.Barrier)": problem.constrained,
        }
        for reason, wrong in reasons.items():
            if wrong:
                raise OptionError(f"problem '{problem.name}' {reason}")
        if modeller.multiple or modeller.second_order or modeller.aware:
            raise OptionError(
                "a receding horizon takes iLQR with shooting='single' and a gradient mode that needs no direction of the loss"
            )

    @property
    def problem(self) -> OptimalControlProblem:
        return self.iteration.problem

    def blank(self) -> Plan:
        """A plan of zeros, for shapes and types."""
        problem = self.problem
        T, dtype = problem.horizon, problem.dtype
        return Plan(
            np.zeros((T + 1, problem.nx), dtype),
            np.zeros((T, problem.nu), dtype),
            np.zeros((T, problem.nu, problem.n), dtype),
        )

    def first(self) -> Plan:
        """The problem's guess without feedback."""
        guess = self.problem.initial_point
        return dataclasses.replace(self.blank(), xs=np.asarray(guess.xs), us=np.asarray(guess.us))

    def replan(
        self,
        x0: Float[Array, " nx"],
        start_time: Float[Array, ""],
        shift: Float[Array, ""],
        plan: Plan,
        damping: Float[Array, ""],
    ) -> Replanned:
        """The plan after one iteration from x0 at `start_time` (s), having been made `shift` knots ago."""
        iteration = self._begun(x0, start_time)
        multipliers = iteration.modeller.constraints.initial(1.0)
        plan = self.shifted(plan, shift)
        motion, _ = self._followed(iteration, plan, x0, multipliers)
        model = iteration.modeller.expand(motion, multipliers)
        iterate = Iterate(motion, model, damping, jnp.zeros((), x0.dtype))
        moved, report = iteration.step(iterate, multipliers)
        gains = jnp.where(report.accepted, report.gains, plan.gains)
        new = Plan(moved.motion.xs, moved.motion.us, gains)
        finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(new)]).all()
        cost = jnp.where(report.accepted, report.merit, model.cost)
        return Replanned(new, moved.damping, model.cost, cost, report.accepted, finite)

    def control(self, x: Float[Array, " nx"], time: Float[Array, ""], plan: Plan) -> Float[Array, " nu"]:
        """u at the state x, `time` knots after the plan begins; beyond its end the last control and state are held."""
        problem = self.problem
        index, share = _place(time, problem.horizon)
        bar = self._between(plan.xs[index], plan.xs[index + 1], share)
        u = plan.us[index] + plan.gains[index] @ problem.local(bar, x)
        return jnp.clip(u, problem.control_lower.astype(u.dtype), problem.control_upper.astype(u.dtype))

    def shifted(self, plan: Plan, shift: ScalarLike) -> Plan:
        """The plan `shift` knots later: states along the shortest way, held controls as their mean over each new interval, what
        lies beyond the end as at the end."""
        T = self.problem.horizon
        steps = jnp.arange(T + 1, dtype=plan.us.dtype) + shift
        index, share = _place(steps, T)
        xs = jax.vmap(self._between)(plan.xs[index], plan.xs[index + 1], share)
        here, after = jnp.minimum(index[:T], T - 1), jnp.minimum(index[:T] + 1, T - 1)

        def mixed(a: Array, share: Array) -> Array:
            return (1.0 - share) * a[here] + share * a[after]

        share = share[:T]
        return Plan(xs, mixed(plan.us, share[:, None]), mixed(plan.gains, share[:, None, None]))

    def _between(self, x0: Array, x1: Array, share: Array) -> Array:
        """The state at a share of the way from x0 to x1: exactly x0 at 0, x1 at 1."""
        problem = self.problem
        moved = problem.retract(x0, share * problem.local(x0, x1))
        return jnp.where(share == 0, x0, jnp.where(share == 1, x1, moved))

    def _begun(self, x0: Array, start_time: Array) -> Iteration:
        """The iteration of the problem that starts at a measured state."""
        problem = self.problem
        return self.iteration.on(dataclasses.replace(problem, x0=x0, start_time=start_time, validate=False))

    def _followed(
        self, iteration: Iteration, plan: Plan, x0: Array, multipliers: Multipliers
    ) -> tuple[Trajectory, Array]:
        """(the motion from x0 under the plan's feedback, its cost)."""
        p = jnp.zeros(0, x0.dtype)
        zero, T, n = jnp.zeros((), x0.dtype), self.problem.horizon, self.problem.n
        policy = Policy(
            plan.gains, jnp.zeros_like(plan.us), jnp.zeros((T + 1, n, n), x0.dtype), jnp.zeros((T + 1, n), x0.dtype),
            jnp.zeros(T + 1, x0.dtype), zero, zero, jnp.ones((), bool),
        )  # fmt: skip
        direction = Direction(policy, jnp.zeros(n, x0.dtype), zero, zero)
        return iteration.follow(x0, Trajectory(plan.xs, plan.us, p), direction, jnp.ones((), x0.dtype), multipliers)


def _place(time: Any, T: int) -> tuple[Array, Array]:
    """(knot, share of the way to the next) of a time in knots within 0..T; at the end the last interval, share 1."""
    time = jnp.clip(time, 0.0, T)
    near = jnp.rint(time)
    time = jnp.where(jnp.abs(time - near) < KNOT_ROUNDING, near, time)
    index = jnp.minimum(jnp.floor(time).astype(jnp.int32), T - 1)
    return index, time - index.astype(time.dtype)
