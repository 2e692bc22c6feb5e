"""The damped Gauss-Newton Hessian of MultipleShooting."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import solvers
from trajopt.errors import OptionError
from trajopt.problems import OptimalControlProblem


@pytest.fixture(scope="module")
def problem():
    """A mass is to be at 1 after 6 steps: the cost is a function of the last state alone, most directions are free."""
    dt = 0.5

    def mass(x, u, t):
        return jnp.stack([x[0] + dt * x[1], x[1] + dt * u[0]])

    return OptimalControlProblem(
        "reach", mass, 6, np.zeros(2), u0=np.zeros(1), dt=dt, control_lower=-1e3, control_upper=1e3,
        terminal_residual=lambda x: x[:1] - 1.0,
    )  # fmt: skip


@pytest.mark.parametrize("damping, low, high", [(1e-6, 0.0, 1e-6), (100.0, 0.4, 0.5)])
def test_damping_shortens_steps(problem, damping, low, high):
    """The cost starts at 1/2. The first step takes nearly all of it where damping is far below the slopes' square, and little
    where it is far above."""
    options = {"interval": 2, "hessian": "gauss-newton", "max_iterations": 1, "ipopt_options": {"mu_init": 1e-9}}
    found = solvers.solve(problem, solvers.MultipleShooting(damping=damping, **options))
    assert low <= found.cost <= high and found.residuals["defect"] < 1e-9


def test_damping_of_another_hessian_is_refused(problem):
    with pytest.raises(OptionError, match="damping is for a Gauss-Newton Hessian; this one is 'exact'"):
        solvers.solve(problem, solvers.MultipleShooting(damping=1.0))
    for bad in (-1.0, np.inf):
        with pytest.raises(OptionError, match="damping is .*; it must be at least 0"):
            solvers.MultipleShooting(damping=bad)
