"""Motions that end where they began, and constraints that hold at some steps only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from trajopt import load_model
from trajopt.dynamics import NoContact, State, System
from trajopt.errors import OptionError
from trajopt.models import load_model_from_string
from trajopt.problems import OptimalControlProblem, periodic
from trajopt.problems import residuals as r
from trajopt.problems.zero_rows import used_rows
from trajopt.solvers import DDP, MultipleShooting, iLQR, solve

SOLVERS = [iLQR(), DDP(), MultipleShooting()]
DT = 0.05
BALL = """<mujoco><worldbody><body name="bob" pos="0 0 0"><joint name="pivot" type="ball" damping="0.05"/>
<geom type="sphere" size="0.1" pos="0 0 -1" mass="1" contype="0" conaffinity="0"/></body></worldbody>
<actuator><motor joint="pivot" gear="1 0 0"/><motor joint="pivot" gear="0 1 0"/></actuator></mujoco>"""


def pendulum(x, u, t):
    rate = x[1] + DT * (u[0] - 4.0 * jnp.sin(x[0]))
    return jnp.stack([x[0] + DT * rate, rate])


def swinging(**more) -> OptimalControlProblem:
    """A pendulum that is pulled to one radian in the middle of the motion."""
    return OptimalControlProblem(
        "swinging", pendulum, 40, np.array([0.1, 0.0]), dt=DT, u0=np.zeros(1), stage_residual=pulled, **more
    )


def pulled(x, u, t):
    return jnp.concatenate([u, jnp.where(jnp.abs(t - 1.0) < 1e-6, 30.0, 0.0) * (x[:1] - 1.0)])


@pytest.fixture(scope="module")
def least_cost() -> float:
    """By scipy, of the initial state and the controls, in the direct formulation: x_T(x_0, u) - x_0 = 0."""

    def motion(z):
        def body(x, inputs):
            u, t = inputs
            rows = pulled(x, u, t)
            return pendulum(x, u, t), 0.5 * jnp.vdot(rows, rows)

        end, costs = jax.lax.scan(body, z[:2], (z[2:, None], DT * jnp.arange(40.0)))
        return jnp.sum(costs), end - z[:2]

    cost, gap = jax.jit(jax.value_and_grad(lambda z: motion(z)[0])), jax.jit(lambda z: motion(z)[1])
    slope, start = jax.jit(jax.jacfwd(lambda z: motion(z)[1])), np.append([0.1, 0.0], np.zeros(40))
    found = scipy.optimize.minimize(
        lambda z: tuple(np.asarray(a) for a in cost(z)), start, jac=True, method="SLSQP",
        constraints={"type": "eq", "fun": lambda z: np.asarray(gap(z)), "jac": lambda z: np.asarray(slope(z))},
        options={"ftol": 1e-10, "maxiter": 500},
    )  # fmt: skip
    assert found.success
    return float(found.fun)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)
def test_a_pendulum_returns(solver, least_cost):
    answer = solve(periodic(swinging()), solver)
    assert answer.success, answer.message
    xs = np.asarray(answer.xs)
    np.testing.assert_allclose(xs[-1], xs[0], atol=2e-6)
    np.testing.assert_allclose(xs[0] - [0.1, 0.0], answer.parameters, atol=2e-6)
    assert abs(float(answer.cost) - least_cost) < 1e-5 * least_cost


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS[::2], ids=lambda solver: solver.name)
def test_a_pendulum_on_a_ball_joint_returns(solver):
    """On a manifold: the same rotation, of which two quaternions are one."""
    system = System(load_model_from_string(BALL), DT, NoContact())
    tilted = State(jnp.array([np.cos(0.2), np.sin(0.2), 0.0, 0.0]), jnp.array([0.0, 1.0, 0.0]))
    problem = OptimalControlProblem(
        "cone", system, 30, tilted, u0=np.zeros(2), stage_residual=lambda x, u, t: jnp.concatenate([u, x.q[1:2] - 0.3]),
    )  # fmt: skip
    answer = solve(periodic(problem), solver)
    assert answer.success, answer.message
    first, last = np.asarray(answer.xs)[[0, -1]]
    np.testing.assert_allclose(problem.local(jnp.asarray(first), jnp.asarray(last)), 0.0, atol=2e-6)


def test_some_coordinates_return_and_the_rest_of_the_problem_stays():
    """A cart goes on while its pole returns; own parameters, constraints, terms and priors keep their meaning."""
    system = System(load_model("cart-pole"), DT, NoContact())
    problem = OptimalControlProblem(
        "going", system, 20, system.initial_state(), u0=np.zeros(1), stage_residual=r.Control(weight=0.1),
        terminal_cost=lambda x, p: 0.0 * p[0], terminal_equality=lambda x, p: x.q[:1] - p[0], parameters=np.array([0.5]),
        parameter_residual=lambda p: p - 0.7, parametrize=lambda system, p: system, control_lower=-np.inf, control_upper=np.inf,
    )  # fmt: skip
    answer = solve(periodic(problem, [1, 2, 3]), iLQR())
    assert answer.success, answer.message
    first, last = np.asarray(answer.xs)[[0, -1]]
    np.testing.assert_allclose(last[1:], first[1:], atol=2e-6)
    assert abs(last[0] - answer.parameters[0]) < 2e-6 and answer.parameters.shape == (4,)
    assert any("control" in name for name in answer.terms)


@pytest.mark.parametrize("coordinates", [[2], [-1], [0, 0], [], [0.5]], ids=str)
def test_coordinates_that_there_are_not(coordinates):
    with pytest.raises(OptionError, match="periodic: coordinates is .* from 0 to 1, tangent coordinates of problem 'swinging'"):
        periodic(swinging(), coordinates)


# -- rows of some steps ------------------------------------------------------------------------------------------------

TRACED = {
    "weighted": lambda x, u, t: jnp.where(t < DT / 2, 1.0, 0.0) * (x - 0.1),
    "chosen": lambda x, u, t: jnp.where(t < DT / 2, x - 0.1, 0.0),
    "divided": lambda x, u, t: (x - 0.1) * (t < DT / 2).astype(float) / 3.0,
    "compiled": lambda x, u, t: jax.jit(lambda x: (t < DT / 2).astype(float) * jnp.sin(x))(x),
    "joined": lambda x, u, t: jnp.concatenate([jnp.eye(2) @ ((t < DT / 2).astype(float) * x)]),
    "table": lambda x, u, t: jnp.asarray(np.eye(40)[0])[jnp.rint(t / DT).astype(int)] * x,
}


@pytest.mark.parametrize("name", TRACED)
def test_rows_of_the_first_step_alone(name):
    expected = np.zeros((40, 2), bool)
    expected[0] = True
    np.testing.assert_array_equal(used_rows(swinging(equality=TRACED[name]), "equality"), expected)


def test_rows_that_are_zero_by_chance_are_kept():
    """Zero at the guess, at zero, where a part of the motion is, or where only the numbers of the motion say so."""
    for rows in (
        lambda x, u, t: x - x[::-1],
        lambda x, u, t: x * u,
        lambda x, u, t: jnp.maximum(x - 1e6, 0.0),
        lambda x, u, t: jnp.where(x > 1e6, x, 0.0 * t + 0.0),
        lambda x, u, t: jax.lax.cond(t < -1.0, lambda: x, lambda: x - x[0]),
    ):
        assert used_rows(swinging(equality=rows), "equality").all()


def test_one_row_of_several_and_other_problems_of_the_same_shape():
    """Another weight is no other program elsewhere; here other rows are handed over."""
    system = System(load_model("double-cart-pole"), DT, NoContact())
    pole = np.zeros((11, 1))
    pole[5] = 1.0
    names = [joint.name for joint in system.model.topology.joints]
    problem = OptimalControlProblem(
        "passing", system, 10, system.initial_state(), u0=np.zeros(1), stage_residual=r.Control(weight=0.1),
        equality=r.Posture([names[0]], reference=np.full(system.nq, 0.05), weight=pole, name="gate"),
        control_lower=-np.inf, control_upper=np.inf,
    )  # fmt: skip
    assert used_rows(problem, "equality")[:, 0].tolist() == [k == 5 for k in range(10)]
    for at in (5, 8):
        weight = np.zeros((11, 1))
        weight[at] = 1.0
        answer = solve(problem.replace(weights={"gate": weight}), MultipleShooting())
        assert answer.success, answer.message
        assert abs(answer.xs[at, 0] - 0.05) < 1e-6 and answer.multipliers["rows"].size == 10 * problem.n + 1


@pytest.mark.parametrize("kind", ["equality", "inequality"])
def test_intervals_of_several_steps(kind):
    """Rows inside an interval have other places in the Jacobian than those at its start."""

    def at_two(x, u, t):
        return jnp.where((jnp.abs(t - 0.35) < 1e-6) | (jnp.abs(t - 1.0) < 1e-6), 1.0, 0.0) * (x[:1] - 0.6)

    problem = swinging(**{kind: at_two})
    answers = [solve(problem, MultipleShooting(interval=k)) for k in (1, 3)]
    assert all(answer.success for answer in answers)
    assert abs(answers[0].cost - answers[1].cost) < 1e-5 * answers[0].cost
    x = np.asarray(answers[1].xs)[[7, 20], 0]
    np.testing.assert_allclose(x if kind == "equality" else np.maximum(x, 0.6), 0.6, atol=1e-5)
