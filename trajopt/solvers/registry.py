"""Solvers by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from trajopt.errors import UnknownNameError
from trajopt.names import closest
from trajopt.solvers.first_order import GradientDescent
from trajopt.solvers.gauss_newton import GaussNewton
from trajopt.solvers.ilqr import DDP, iLQR
from trajopt.solvers.lbfgs import LBFGS
from trajopt.solvers.multiple_shooting import MultipleShooting
from trajopt.solvers.single_shooting import SingleShooting

SOLVERS: dict[str, tuple[type, str]] = {
    "iLQR": (iLQR, "iterative LQR: Gauss-Newton Hessians, bounds, augmented Lagrangian (optimal control)"),
    "DDP": (DDP, "differential dynamic programming: second-order dynamics, otherwise as iLQR (optimal control)"),
    "MultipleShooting": (MultipleShooting, "multiple shooting with IPOPT, exact sparsity (optimal control)"),
    "SingleShooting": (SingleShooting, "L-BFGS-B or any optax optimiser on the rollout (optimal control)"),
    "GaussNewton": (GaussNewton, "Levenberg-Marquardt with bounds, rank handling and covariance (least squares)"),
    "LBFGS": (LBFGS, "L-BFGS-B with bounds (least squares; in SingleShooting for optimal control)"),
    "GradientDescent": (GradientDescent, "steepest descent with a line search, or any optax optimiser (least squares)"),
}


def names() -> tuple[str, ...]:
    """Names of all solvers."""
    return tuple(SOLVERS)


def get(name: str, **options: Any) -> Any:
    """The solver `name`; capitals, hyphens and underscores do not matter.

    Raises `UnknownNameError` for an unknown solver or option, with the closest names.
    """
    plain = name.replace("-", "").replace("_", "").lower()
    for known, (kind, _) in SOLVERS.items():
        if known.lower() == plain:
            fields = [field.name for field in dataclasses.fields(kind)]
            for option in options:
                if option not in fields:
                    raise UnknownNameError(f"solver '{known}' has no option '{option}'{closest(option, fields)}")
            return kind(**options)
    raise UnknownNameError(f"there is no solver '{name}'{closest(name, SOLVERS)}")
