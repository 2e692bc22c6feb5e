"""Solvers by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from trajopt.errors import UnknownNameError
from trajopt.names import closest
from trajopt.solvers.first_order import GradientDescent
from trajopt.solvers.gauss_newton import GaussNewton
from trajopt.solvers.hybrid import Hybrid
from trajopt.solvers.ilqr import DDP, iLQR
from trajopt.solvers.lbfgs import LBFGS
from trajopt.solvers.multiple_shooting import MultipleShooting
from trajopt.solvers.sampling.cem import CEM
from trajopt.solvers.sampling.cmaes import CMAES
from trajopt.solvers.sampling.mppi import MPPI
from trajopt.solvers.sampling.stochastic_search import StochasticSearch
from trajopt.solvers.single_shooting import SingleShooting

SOLVERS: dict[str, tuple[type, str]] = {
    "iLQR": (iLQR, "iterative LQR: Gauss-Newton Hessians, bounds, augmented Lagrangian (optimal control)"),
    "DDP": (DDP, "differential dynamic programming: second-order dynamics, otherwise as iLQR (optimal control)"),
    "MultipleShooting": (MultipleShooting, "multiple shooting with IPOPT, exact sparsity (optimal control)"),
    "SingleShooting": (SingleShooting, "L-BFGS-B or any optax optimiser on the rollout (optimal control)"),
    "CEM": (CEM, "cross-entropy method: elites refit a Gaussian of the controls (optimal control)"),
    "MPPI": (MPPI, "path integral control: exponentially weighted mean of the draws (optimal control)"),
    "CMAES": (CMAES, "covariance matrix adaptation, full or separable (optimal control)"),
    "StochasticSearch": (StochasticSearch, "natural gradient of a shaped expected cost, bounds kept (optimal control)"),
    "Hybrid": (Hybrid, "a sampling solver to escape, then a gradient solver to polish (optimal control)"),
    "GaussNewton": (GaussNewton, "Levenberg-Marquardt with bounds, rank handling and covariance (least squares, horizons)"),
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
