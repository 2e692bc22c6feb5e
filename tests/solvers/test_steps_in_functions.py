"""Dynamics that are a function around `System.step`: whether they are smooth is known from the laws of the steps they take."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import load_model
from trajopt.dynamics import CompliantContact, NoContact, RigidContact, SmoothedContact, State, System
from trajopt.errors import DerivativeError
from trajopt.problems import OptimalControlProblem
from trajopt.problems.expansions import dynamics_hessian, twice_differentiable
from trajopt.problems.trajectory import flat_state
from trajopt.solvers import DDP, MultipleShooting, iLQR, solve

DT = 0.05
GOAL = jnp.array([0.0, 0.3, -0.2, 0.0, 0.0, 0.0])


def stepped(system: System, x, u):
    """The flat state after a step from a flat one."""
    return flat_state(system.step(State(x[: system.nq], x[system.nq :]), u)[0])


def problem_of(dynamics, x0, nu: int, **more) -> OptimalControlProblem:
    """Which brings the joints of a double pendulum on a cart to the goal."""
    dt = None if isinstance(dynamics, System) else DT
    return OptimalControlProblem(
        "any", dynamics, 40, x0, dt=dt, u0=np.zeros(nu), control_lower=-np.inf, control_upper=np.inf,
        stage_residual=lambda x, u, t: 0.1 * u,
        terminal_residual=lambda x: 30 * ((flat_state(x) if isinstance(x, State) else x[:6]) - GOAL), **more,
    )  # fmt: skip


@pytest.mark.parametrize("solver", [iLQR(), DDP(), MultipleShooting()], ids=lambda solver: solver.name)
def test_a_step_in_a_function_is_solved_as_the_system_is(solver):
    system = System(load_model("double-cart-pole"), DT, NoContact())
    stated = solve(problem_of(system, system.initial_state(), system.nu), solver)
    wrapped = solve(problem_of(lambda x, u, t: stepped(system, x, u), np.zeros(6), system.nu), solver)
    assert stated.success and wrapped.success
    assert wrapped.iterations == stated.iterations
    assert abs(wrapped.cost - stated.cost) < 1e-9


@pytest.mark.parametrize("solver", [iLQR(), DDP(), MultipleShooting()], ids=lambda solver: solver.name)
def test_an_actuator_with_lag(solver):
    """The force follows the control with a time constant of two steps. Without lag the answer takes four to seven iterations."""
    system = System(load_model("double-cart-pole"), DT, NoContact())

    def lagging(x, u, t):
        force = x[6:] + 0.5 * (u - x[6:])
        return jnp.concatenate([stepped(system, x[:6], force), force])

    answer = solve(problem_of(lagging, np.zeros(6 + system.nu), system.nu), solver)
    assert answer.success and answer.iterations <= 20
    assert "no second derivative" not in answer.message
    if solver.name != "MultipleShooting":
        force = np.asarray(answer.xs)[:, 6:]
        np.testing.assert_allclose(force[1:], 0.5 * (force[:-1] + np.asarray(answer.us)), atol=1e-9)


def in_a_loop(step, x):
    return jax.lax.fori_loop(0, 2, lambda _, y: step(y), x)


def in_a_branch(step, x):
    return jax.lax.cond(x[0] > 0, step, lambda y: y, x)


@pytest.mark.parametrize(
    "law, backend, gradient, smooth, within",
    [
        (NoContact(), "auto", "implicit", True, None),
        (NoContact(), "auto", "implicit", True, jax.jit),
        (NoContact(), "auto", "implicit", True, in_a_loop),
        (NoContact(), "auto", "implicit", True, in_a_branch),
        (NoContact(), "jax", "implicit", True, None),
        (NoContact(), "auto", "smoothed", True, None),
        (NoContact(limits=True), "auto", "implicit", False, None),
        (RigidContact(), "auto", "implicit", False, None),
        (RigidContact(), "auto", "implicit", False, jax.jit),
        (RigidContact(), "jax", "implicit", False, None),
        (RigidContact(), "jax", "randomized", False, None),
        (RigidContact(), "jax", "unrolled", False, in_a_branch),
        (SmoothedContact(), "auto", "implicit", False, None),
        (CompliantContact(), "auto", "implicit", False, None),
        (CompliantContact(), "auto", "implicit", False, in_a_loop),
    ],
    ids=lambda value: getattr(value, "name", getattr(value, "__name__", str(value))),
)
def test_the_law_of_a_step_decides(law, backend, gradient, smooth, within):
    """A hopper has contacts and limits. JAX can differentiate some steps with contact twice, between their kinks; this decides
    nothing, and neither does where in the function the step is taken."""
    system = System(load_model("hopper"), 1e-3, law, backend=backend, gradient=gradient)
    start = system.initial_state()
    start = dataclasses.replace(start, q=start.q.at[1].set(2.0))
    contact = start.contact

    def step(x):
        y, _ = system.step(State(x[: system.nq], x[system.nq :], contact), jnp.zeros(system.nu))
        return jnp.concatenate([y.q, y.v])

    around = step if within is None else within(step) if within is jax.jit else functools.partial(within, step)
    x0 = np.concatenate([start.q, start.v])
    problem = OptimalControlProblem(
        "any", lambda x, u, t: around(x), 2, x0, dt=1e-3, u0=np.zeros(1), stage_residual=lambda x, u, t: u
    )
    assert twice_differentiable(problem) == smooth
    stated = OptimalControlProblem("any", system, 2, start, stage_residual=lambda x, u, t: u)
    assert twice_differentiable(stated) == smooth
    if not smooth:
        with pytest.raises(DerivativeError, match=f"{law.name}, under which the dynamics take steps, defines no second"):
            dynamics_hessian(problem)


def test_a_law_without_anything_to_act_on_is_smooth():
    """The cart-pole of the library has neither shapes that touch nor dry friction: its limits alone make steps with rows."""
    model = load_model("cart-pole")
    law = RigidContact(limits=False)
    system = System(model, DT, law)
    assert system.smooth == (system.step(system.initial_state(), jnp.zeros(1))[1].impulse.size == 0)
    assert not System(load_model("hopper"), DT, law).smooth


def test_a_function_that_reverse_mode_cannot_pass():
    """Forward derivatives of a `while_loop` are all that iLQR needs."""

    def reduced(x, u, t):
        y = jax.lax.while_loop(lambda y: y[0] > 100.0, lambda y: y * jnp.cos(y), x)
        return y + 0.1 * u

    problem = OptimalControlProblem(
        "loop", reduced, 5, np.zeros(1), dt=0.1, u0=np.zeros(1), stage_residual=lambda x, u, t: u
    )
    assert not twice_differentiable(problem)
    with pytest.raises(DerivativeError, match="a function without a second derivative in JAX defines"):
        dynamics_hessian(problem)
