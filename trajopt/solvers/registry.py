"""Solvers by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from trajopt.errors import UnknownNameError
from trajopt.names import closest
from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.hybrid import Hybrid
from trajopt.solvers.least_squares.first_order import GradientDescent
from trajopt.solvers.least_squares.gauss_newton import GaussNewton
from trajopt.solvers.least_squares.lbfgs import LBFGS
from trajopt.solvers.sampling.cem import CEM
from trajopt.solvers.sampling.cmaes import CMAES
from trajopt.solvers.sampling.mppi import MPPI
from trajopt.solvers.sampling.predictive import PredictiveSampling
from trajopt.solvers.sampling.stochastic_search import StochasticSearch
from trajopt.solvers.shooting.multiple import MultipleShooting
from trajopt.solvers.shooting.single import SingleShooting


@dataclasses.dataclass(frozen=True)
class Entry:
    """A solver: its class, one line about it, and whether it draws random numbers, so that its runs differ by their seed."""

    kind: Any
    summary: str
    random: bool = False


SOLVERS: dict[str, Entry] = {
    "iLQR": Entry(iLQR, "iterative LQR: Gauss-Newton Hessians, bounds, augmented Lagrangian (optimal control)"),
    "DDP": Entry(DDP, "differential dynamic programming: second-order dynamics, otherwise as iLQR (optimal control)"),
    "MultipleShooting": Entry(MultipleShooting, "multiple shooting with IPOPT, exact sparsity (optimal control)"),
    "SingleShooting": Entry(SingleShooting, "L-BFGS-B or any optax optimiser on the rollout (optimal control)"),
    "CEM": Entry(CEM, "cross-entropy method: elites refit a Gaussian (optimal control, least squares)", random=True),
    "MPPI": Entry(MPPI, "path integral control: exponentially weighted mean of the draws (optimal control)", random=True),
    "CMAES": Entry(CMAES, "covariance matrix adaptation, full or separable (optimal control, least squares)", random=True),
    "PredictiveSampling": Entry(
        PredictiveSampling, "the best of the draws about a plan is the next plan (optimal control)", random=True
    ),
    "StochasticSearch": Entry(
        StochasticSearch, "natural gradient of a shaped expected cost, bounds kept (optimal control)", random=True
    ),
    "Hybrid": Entry(
        Hybrid, "a sampling solver to escape, then a gradient solver to polish (optimal control)", random=True
    ),
    "GaussNewton": Entry(
        GaussNewton, "Levenberg-Marquardt with bounds, rank handling and covariance (least squares, horizons)"
    ),
    "LBFGS": Entry(LBFGS, "L-BFGS-B with bounds (least squares; in SingleShooting for optimal control)"),
    "GradientDescent": Entry(
        GradientDescent, "steepest descent with a line search, or any optax optimiser (least squares)"
    ),
}


def names(problem: type | None = None) -> tuple[str, ...]:
    """Names of all solvers, or of those that take this class of problems."""
    return tuple(name for name, entry in SOLVERS.items() if problem is None or problem in entry.kind.takes)


def is_random(solver: Any) -> bool:
    """Whether runs of a solver differ by their seed; True for a solver that is not in the registry."""
    return next((entry.random for entry in SOLVERS.values() if type(solver) is entry.kind), True)


def get(name: str, **options: Any) -> Any:
    """The solver `name`; capitals, hyphens and underscores do not matter.

    An option that is a solver, such as `sampler` of `Hybrid`, may be a mapping: its name under "solver", and its options.
    Raises `UnknownNameError` for an unknown solver or option, with the closest names.
    """
    plain = name.replace("-", "").replace("_", "").lower()
    for known, entry in SOLVERS.items():
        if known.lower() == plain:
            fields = [field.name for field in dataclasses.fields(entry.kind)]
            for option in options:
                if option not in fields:
                    raise UnknownNameError(f"solver '{known}' has no option '{option}'{closest(option, fields)}")
            return entry.kind(**{key: _made(value) for key, value in options.items()})
    raise UnknownNameError(f"there is no solver '{name}'{closest(name, SOLVERS)}")


def _made(value: Any) -> Any:
    """A solver that an option describes, or the option."""
    if isinstance(value, Mapping) and "solver" in value:
        return get(**{"name" if key == "solver" else key: v for key, v in value.items()})
    return value


def chosen_solver(problem: Any, name: str) -> Any:
    """The solver `name`, with the problem's options where it is the one that suits it."""
    suits = type(get(name)) is type(get(problem.defaults.solver))
    return get(name, **problem.defaults.options) if suits else get(name)
