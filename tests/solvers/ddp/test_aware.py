"""Complementarity-aware second-order solvers: the labels they linearise in, the rest they escape, what they certify."""

import dataclasses

import jax
import numpy as np
import pytest
from control_cases import double_integrator

from trajopt import problems
from trajopt.dynamics import NoContact, RigidContact, State, System
from trajopt.errors import DerivativeError, OptionError, UnknownNameError
from trajopt.models import load_model_from_string
from trajopt.problems import OptimalControlProblem
from trajopt.problems.ocp import Trajectory
from trajopt.solvers import DDP, GaussNewton, MultipleShooting, iLQR, solve
from trajopt.solvers.ddp.local_model import Modeller

AWARE = "complementarity-aware"
BALL = """<mujoco><worldbody><geom name="floor" type="plane" size="5 5 1"/>
<body name="ball"><joint name="height" type="slide" axis="0 0 1"/><geom type="sphere" size="0.2" mass="0.5"/></body>
</worldbody><actuator><motor joint="height"/></actuator></mujoco>"""
STEPS, DT, MASS, WEIGHT, TARGET, EFFORT = 20, 0.02, 0.5, 0.5 * 9.81, 1.2, 1e-3


def ball(contact=None, **changes) -> OptimalControlProblem:
    """Nimble IV-D, Fig. 3: a ball that lies on the floor, motor off, is to be at a height at the end."""
    contact = RigidContact(max_contacts=1, limits=False) if contact is None else contact
    system = System(load_model_from_string(BALL), DT, contact)
    options = {
        "u0": np.zeros(1),
        "stage_residual": lambda x, u, t: EFFORT * u,
        "terminal_residual": lambda x: 10.0 * (x.q - TARGET),
    }
    return OptimalControlProblem("ball", system, STEPS, State(np.array([0.2 - 1e-4]), np.zeros(1)), **options | changes)


@pytest.mark.slow
def test_the_pass_linearises_in_the_labels_of_its_costates():
    """Ten steps of rest, a lift-off, flight: A and B of each are `linearize` with the adjoint, augmented Lagrangian included."""
    problem = ball(terminal_inequality=lambda x: x.v - 1.0).with_gradient(AWARE)
    us = np.where(np.arange(STEPS) < 10, 0.2 * WEIGHT, 1.6 * WEIGHT)[:, None]
    at = jax.jit(problem.rollout)(problem.x0, us, np.zeros(0))
    assert np.abs(at.xs[9, 0] - at.xs[1, 0]) < 1e-4 < at.xs[-1, 0] - at.xs[9, 0]
    modeller = Modeller(problem, AWARE, multiple=False, second_order=False)
    multipliers = modeller.constraints.initial(100.0)
    model = jax.jit(modeller.expand)(Trajectory(at.xs, us, np.zeros(0)), multipliers)

    @jax.jit
    def linearize(q, v, u, p):
        step = problem.system.linearize(State(q, v), u, adjoint=p)
        return step.A, step.B

    excess = max(float(at.xs[-1, 1]) - 1.0, 0.0)
    assert excess > 0
    costate = np.array([100.0 * (at.xs[-1, 0] - TARGET), 100.0 * excess])
    slopes = []
    for k in reversed(range(STEPS)):
        A, B = linearize(at.xs[k, :1], at.xs[k, 1:], us[k], costate)
        np.testing.assert_allclose(model.lq.A[k], A, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(model.lq.B[k], B, rtol=1e-10, atol=1e-12)
        slopes.append(EFFORT**2 * us[k] + np.asarray(B).T @ costate)
        costate = np.asarray(A).T @ costate
        np.testing.assert_allclose(model.costates[k], costate, rtol=1e-10)
    # The labels are those of free flight, where the exact derivative of a resting step by u is zero.
    np.testing.assert_allclose(model.lq.B[:, 1, 0], DT / MASS, rtol=1e-9)
    np.testing.assert_allclose(model.stationarity, np.max(np.abs(slopes)), rtol=1e-10)


SMOOTH = [iLQR(), pytest.param(DDP(), marks=pytest.mark.slow), pytest.param(MultipleShooting(), marks=pytest.mark.slow)]


@pytest.mark.parametrize("solver", SMOOTH, ids=["iLQR", "DDP", "MultipleShooting"])
def test_without_contact_the_iterates_are_those_of_exact_derivatives(solver):
    problem = ball(NoContact(), control_upper=14.0, stage_residual=lambda x, u, t: EFFORT * u * (1.0 + x.q**2))
    exact, aware = (solve(problem, solver, gradient=gradient) for gradient in ("implicit", AWARE))
    assert aware.success and aware.iterations == exact.iterations >= 2
    for key in ("cost", "gradient_norm", "step_size"):
        np.testing.assert_allclose(aware.trace[key], exact.trace[key], rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(aware.us, exact.us, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("shooting", ["single", "multiple"])
def test_drone_takeoff(shooting):
    """Nimble VII-C in a few iterations, where gradient descent takes a hundred."""
    problem = problems.get("drone-takeoff")
    lifted = solve(problem, iLQR(shooting=shooting), gradient=AWARE)
    assert lifted.success and lifted.iterations <= 8 and lifted.residuals["height_error"] < 1e-2
    assert np.abs(lifted.us).max() <= 10.0
    stuck = solve(problem, iLQR(shooting=shooting), gradient="implicit")
    assert stuck.iterations == 0 and stuck.residuals["height_error"] > 4.0


def with_a_parameter():
    """The ball's mass is free."""
    return ball(
        parameters=[MASS],
        parametrize=lambda system, p: dataclasses.replace(system, model=system.model.replace(mass=p)),
        stage_residual=lambda x, u, t, p: u,
        terminal_residual=lambda x, p: x.q,
    )


REFUSED = [
    (
        lambda: solve(ball(), GaussNewton(), gradient=AWARE),
        OptionError,
        "need the exact derivative; use 'implicit', or iLQR",
    ),
    (
        lambda: solve(with_a_parameter(), iLQR(), gradient=AWARE),
        DerivativeError,
        "has free parameters.*use SingleShooting",
    ),
    (
        lambda: solve(double_integrator(), iLQR(), gradient=AWARE),
        UnknownNameError,
        "'complementarity-aware' is not available",
    ),
    (
        lambda: solve(ball(), MultipleShooting(hessian="limited-memory"), gradient=AWARE),
        OptionError,
        "not with 'limited-memory'; use hessian='gauss-newton'",
    ),
]


@pytest.mark.parametrize(
    "make, error, message", REFUSED, ids=["GaussNewton", "parameters", "function", "limited-memory"]
)
def test_what_stays_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
