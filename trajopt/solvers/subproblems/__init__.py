"""Problems that solvers solve in every iteration: linear-quadratic control (`riccati`), quadratic programs over a box (`box_qp`),
the augmented Lagrangian, line searches; and what iterations share: held bounds, batches of steps, compiled loops (`iterate`)."""

from trajopt.solvers.subproblems.augmented_lagrangian import Constraints, Multipliers, PenaltyRule
from trajopt.solvers.subproblems.batching import each
from trajopt.solvers.subproblems.box_qp import held_at_bound
from trajopt.solvers.subproblems.linesearch import armijo
from trajopt.solvers.subproblems.riccati import LQProblem, Policy, adjoint, lq_rollout, riccati

__all__ = [
    "Constraints",
    "LQProblem",
    "Multipliers",
    "PenaltyRule",
    "Policy",
    "adjoint",
    "armijo",
    "each",
    "held_at_bound",
    "lq_rollout",
    "riccati",
]
