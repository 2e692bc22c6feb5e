"""The planner of a problem for a solver: what is planned is not quite the problem, and `Hybrid` is two planners.

Contact is relaxed for solvers that follow gradients. The exact gradient of a contact that is not made is zero. Under
`RelaxedContact` at rho = `RHO` it is not, and the motion is nearly the same: a body at rest is pushed across a gap of 1 mm by
0.1 N.

Motions without contact take midpoint steps in place of semi-implicit ones: what carries a plan out takes finer steps or none,
and the place after a step of 20 ms in which a joint gains 1 rad/s is 10 mrad off with the one scheme, next to nothing with the
other.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt.problems.expansions import twice_differentiable
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.residuals.midway import with_midway
from trajopt.solvers.continuation import applies
from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.ddp.replanning import GradientPlanner
from trajopt.solvers.hybrid import Hybrid
from trajopt.solvers.plan import Plan, Planner, Replanned
from trajopt.solvers.sampling.replanning import SamplingPlanner
from trajopt.solvers.stages import LAST_RHO as RHO
from trajopt.solvers.stages import checked_schedule, smoothed_problem


@runtime_checkable
class ReplanningSolver(Protocol):
    """A solver whose iterations go on from a plan: iLQR, DDP, those that sample."""

    def replanning(self, oracle: OptimalControlOracle) -> Planner:
        """The planner of a problem."""


def planner_of(solver: Any, problem: OptimalControlProblem, gradient: str | None = None) -> Planner:
    """The planner of a problem for a solver that `can_replan`. Raises `OptionError`."""
    if isinstance(solver, Hybrid):
        return HybridPlanner(
            solver.sampler.replanning(planned(problem, solver.sampler).compile(gradient)),
            solver.polisher.replanning(planned(problem, solver.polisher).compile(gradient), offers=True),
        )
    return solver.replanning(planned(problem, solver).compile(gradient))


def seeded(planner: Planner, seed: int) -> Planner:
    """The planner with other draws; one that draws nothing is the same."""
    if isinstance(planner, HybridPlanner):
        return HybridPlanner(planner.sampler.seeded(seed), planner.polisher)
    return planner.seeded(seed) if isinstance(planner, SamplingPlanner) else planner


def can_replan(solver: Any) -> bool:
    """Whether a solver has a planner."""
    if isinstance(solver, Hybrid):
        return isinstance(solver.polisher, ReplanningSolver)
    return isinstance(solver, ReplanningSolver) and not isinstance(solver, type)


def planned(problem: OptimalControlProblem, solver: Any) -> OptimalControlProblem:
    """The problem that is planned: `in_fine_time`, and with contact that is relaxed as the solver's option `smoothing` says: at
    its last rho, at `RHO` with "auto"."""
    if not (isinstance(solver, iLQR | DDP) and applies(problem, solver)):
        return in_fine_time(problem)
    return smoothed_problem(problem, RHO if solver.smoothing == "auto" else checked_schedule(solver.smoothing)[-1])


def in_fine_time(problem: OptimalControlProblem) -> OptimalControlProblem:
    """The problem with midpoint steps, and its inequalities also midway, where it has semi-implicit steps and no contact."""
    system = problem.system
    if system is None or system.integrator != "semi-implicit" or not twice_differentiable(problem):
        return problem
    fine = dataclasses.replace(system, integrator="moreau")
    return dataclasses.replace(problem, dynamics=fine, inequality=with_midway(problem.inequality), validate=False)


class HybridPlanner:
    """A generation of a sampling solver, then an iteration of a gradient solver from the best motion: the plan that acts,
    shifted, or the best draw (`solvers.plan.Planner`)."""

    def __init__(self, sampler: SamplingPlanner, polisher: GradientPlanner) -> None:
        self.sampler, self.polisher = sampler, polisher

    @property
    def problem(self) -> OptimalControlProblem:
        """What is solved."""
        return self.sampler.problem

    def on(self, problem: OptimalControlProblem) -> HybridPlanner:
        """The same for a problem with other numbers."""
        return HybridPlanner(self.sampler.on(problem), self.polisher.on(problem))

    def compile(self) -> float:
        """Compile what plans take, unless it is there; returns the seconds that took."""
        return self.sampler.compile() + self.polisher.compile()

    def first(self) -> Plan:
        """The problem's guess."""
        polished = self.polisher.first()
        return dataclasses.replace(polished, memory=(self.sampler.first().memory, polished.memory))

    def replan(
        self, x: Float[np.ndarray, " nx"], time_s: float, shift: float | None, plan: Plan
    ) -> Replanned:
        """A generation and an iteration from x at the time `time_s` of a plan made `shift` knots ago."""
        searched, own = plan.memory
        drawn = self.sampler.replan(x, time_s, shift, Plan(plan.xs, plan.us, None, searched))
        offered = Plan(drawn.plan.xs, drawn.plan.us, jnp.zeros_like(plan.gains)) if bool(drawn.finite) else plan
        offered = dataclasses.replace(offered, memory=None)
        found = self.polisher.replan(x, time_s, shift, dataclasses.replace(plan, memory=own), offered)
        kept = self.sampler.about(drawn.plan.memory, found.plan)
        return dataclasses.replace(found, plan=dataclasses.replace(found.plan, memory=(kept, found.plan.memory)))

    def control(self, x: Float[np.ndarray, " nx"], time: float, plan: Plan) -> Float[np.ndarray, " nu"]:
        """u at the state x, `time` knots after the plan begins."""
        return self.polisher.control(x, time, plan)
