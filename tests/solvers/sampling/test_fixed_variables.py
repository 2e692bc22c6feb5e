"""What equal bounds fix is left out of a search: it goes as that of the same problem stated without it."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.errors import OptionError
from trajopt.problems import OptimalControlProblem
from trajopt.solvers import (
    CEM,
    CMAES,
    DDP,
    MPPI,
    Hybrid,
    SingleShooting,
    StochasticSearch,
    iLQR,
    solve,
)

DT = 0.05
SEARCHES = [CEM, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (MPPI, CMAES, StochasticSearch))]


def pushed(x, force):
    return jnp.stack([x[0] + DT * x[1], x[1] + DT * force])


def problem_of(dynamics, nu: int, **more) -> OptimalControlProblem:
    """A mass is to come to rest at 0.3 m."""
    return OptimalControlProblem(
        "mass", dynamics, 20, np.zeros(2), dt=DT, u0=np.zeros(nu), terminal_residual=arrived, stage_residual=effort, **more
    )


def arrived(x, *p):
    return 10.0 * (x - jnp.array([0.3, 0.0]))


def effort(x, u, t, *p):
    return 0.1 * u[:1]


def both() -> tuple[OptimalControlProblem, OptimalControlProblem]:
    """With a second force that is held at 0.5 N, and with this force in the dynamics."""
    held = problem_of(lambda x, u, t: pushed(x, u[0] + u[1]), 2, control_lower=[-1.0, 0.5], control_upper=[1.0, 0.5])
    alone = problem_of(lambda x, u, t: pushed(x, u[0] + 0.5), 1, control_lower=-1.0, control_upper=1.0)
    return held, alone


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_is_that_without_the_fixed_control(kind):
    held, alone = (solve(problem, kind(), max_iterations=30, seed=3) for problem in both())
    assert held.iterations == alone.iterations
    np.testing.assert_allclose(held.us[:, 0], alone.us[:, 0], atol=1e-12)
    np.testing.assert_array_equal(held.us[:, 1], 0.5)
    assert abs(held.cost - alone.cost) < 1e-12


@pytest.mark.parametrize("kind", SEARCHES)
def test_fixed_parameters_and_initial_states(kind):
    """The second parameter is a force that is held, and the mass begins at rest at a free place."""
    more = {"free_initial_state": True, "initial_residual": lambda x, p: 3.0 * (x - 0.1)}
    held = problem_of(
        lambda x, u, t, p: pushed(x, u[0] + p[0] + p[1]), 1, parameters=[0.0, 0.0], parameter_lower=[-1.0, 0.2],
        parameter_upper=[1.0, 0.2], control_lower=-1.0, control_upper=1.0, **more,
    )  # fmt: skip
    alone = problem_of(
        lambda x, u, t, p: pushed(x, u[0] + p[0] + 0.2), 1, parameters=[0.0], parameter_lower=[-1.0], parameter_upper=[1.0],
        control_lower=-1.0, control_upper=1.0, **more,
    )  # fmt: skip
    answers = [solve(problem, kind(initial_state_deviation=0.1), max_iterations=20) for problem in (held, alone)]
    np.testing.assert_allclose(answers[0].us, answers[1].us, atol=1e-12)
    assert answers[0].parameters[1] == 0.2 and abs(answers[0].parameters[0] - answers[1].parameters[0]) < 1e-12


OTHERS = (DDP(), SingleShooting(), Hybrid(), CEM(restoration=False))
SOLVERS = [iLQR(), *(pytest.param(solver, marks=pytest.mark.slow) for solver in OTHERS)]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_every_solver_keeps_a_fixed_control(solver):
    held, alone = (solve(problem, solver, seed=1) for problem in both())
    assert held.success and alone.success
    np.testing.assert_array_equal(held.us[:, 1], 0.5)
    assert abs(held.cost - alone.cost) < 1e-8 * max(1.0, alone.cost)


def test_nothing_to_search():
    problem = problem_of(lambda x, u, t: pushed(x, u[0]), 1, control_lower=0.5, control_upper=0.5)
    with pytest.raises(OptionError, match="CEM: problem 'mass' has nothing to search: equal bounds fix all"):
        solve(problem, CEM())


def test_what_has_no_bounds_is_still_refused():
    problem = problem_of(lambda x, u, t: pushed(x, u[0] + u[1]), 2, control_lower=[-np.inf, 0.5], control_upper=[1.0, 0.5])
    with pytest.raises(OptionError, match="does not bound its controls on both sides"):
        solve(problem, CEM())
