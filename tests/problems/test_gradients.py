"""Gradient modes of a `System` reach the solvers' linearisation of an optimal control problem."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import dynamics, load_model, problems
from trajopt.errors import UnknownNameError
from trajopt.problems.expansions import linear_dynamics


def test_a_mode_of_the_system_is_not_replaced_by_differences():
    """The resting drone: d v+ / d u is zero under hard contact, and (1 - s) dt / m smoothed, s = sigmoid(300 depth)."""
    problem = problems.get("drone-takeoff").with_gradient("smoothed")
    x, u = jnp.asarray(problem.x0), jnp.zeros(1)
    _, F = jax.jit(lambda x, u: linear_dynamics(problem, "smoothed")(x, u, jnp.zeros(()), jnp.zeros(0)))(x, u)
    share = 1 / (1 + np.exp(-300.0 * 1e-4))
    np.testing.assert_allclose(F[1, 2], (1 - share) * 1e-3 / 0.1, rtol=1e-6)


def drone_problem(mode: str, **changes) -> problems.OptimalControlProblem:
    system = dynamics.System(load_model("drone"), dt=1e-3, contact=dynamics.RigidContact(), gradient=mode)
    options = {"terminal_residual": lambda x: x.q - 5.0}
    return problems.OptimalControlProblem("drone", system, 2, system.initial_state(), **options | changes)


@pytest.mark.filterwarnings("ignore::trajopt.dynamics.start.StartWarning")  # the drone stands in the floor
def test_without_a_gradient_of_its_own_the_problem_keeps_that_of_its_system():
    """A problem whose System is "smoothed" is compiled smoothed, unless the problem or the caller asks for another mode."""
    assert drone_problem("smoothed").defaults.gradient == "smoothed"
    assert drone_problem("smoothed").compile().problem.system.gradient == "smoothed"
    implicit = drone_problem("smoothed", defaults=problems.Defaults(gradient="implicit"))
    assert implicit.compile().problem.system.gradient == "implicit"
    assert drone_problem("smoothed").compile("unrolled").problem.system.gradient == "unrolled"
    function = problems.OptimalControlProblem(
        "sum", lambda x, u, t: x + u, 2, np.zeros(1), u0=np.zeros(1), stage_residual=lambda x, u, t: x
    )
    assert function.defaults.gradient == "implicit" and function.compile().gradient == "implicit"
    with pytest.raises(UnknownNameError, match="gradient mode 'smothed' is not available for problem 'drone'.*smoothed"):
        drone_problem("implicit", defaults=problems.Defaults(gradient="smothed"))
