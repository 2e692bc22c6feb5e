"""Derivatives of solutions against central differences of problems solved anew, closed forms, and each other."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import double_integrator, pendulum

from trajopt import dynamics, solvers
from trajopt.errors import DerivativeError, OptionError, ShapeError, UnknownNameError
from trajopt.models import load_model_from_string
from trajopt.problems import OptimalControlProblem, residuals

EXACT = solvers.DDP(tolerance=1e-11, smoothing=None)
TIGHT = 1e-11  # of constraints: differences divide it by their step
ARM = """
<mujoco><worldbody>
  <body name="upper" pos="0 0 1"><joint name="shoulder" type="hinge" axis="0 1 0" damping="0.2"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.04" mass="1.5" contype="0" conaffinity="0"/>
    <body name="fore" pos="0 0 -0.4"><joint name="elbow" type="hinge" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="1.0" contype="0" conaffinity="0"/>
      <body name="tool" pos="0 0 -0.3"/></body></body></worldbody>
  <actuator><motor joint="shoulder" ctrlrange="-4 4" ctrllimited="true"/><motor joint="elbow"/></actuator></mujoco>
"""
BLOCK = """
<mujoco><worldbody><geom type="plane" size="5 5 1" friction="0.3"/>
  <body name="block" pos="0 0 0.1"><joint name="along" type="slide" axis="1 0 0"/><joint name="up" type="slide" axis="0 0 1"/>
    <geom type="sphere" size="0.1" mass="1" friction="0.3"/>
    <body name="bob"><joint name="swing" type="hinge" axis="0 1 0"/>
      <geom type="sphere" pos="0 0 0.2" size="0.03" mass="0.3" contype="0" conaffinity="0"/></body></body></worldbody>
  <actuator><motor joint="along"/></actuator></mujoco>
"""
FLOATING = """
<mujoco><option gravity="0 0 0"/><worldbody><body name="base"><freejoint/>
  <geom type="box" size="0.2 0.1 0.1" mass="2" contype="0" conaffinity="0"/>
  <body name="arm" pos="0 0 0.1"><joint name="wave" type="hinge" axis="0 1 0"/>
    <geom type="capsule" fromto="0 0 0 0 0.05 0.4" size="0.03" mass="1" contype="0" conaffinity="0"/></body></body></worldbody>
  <actuator><motor joint="wave"/></actuator></mujoco>
"""


def difference(solved, h: float):
    """Central difference at 0 of a function of a number to a `Solution`, of fourth order: (us, xs, cost)."""
    parts = {k: solved(k * h) for k in (-2, -1, 1, 2)}
    assert all(part.success for part in parts.values())

    def of(read):
        value = {k: np.asarray(read(part)) for k, part in parts.items()}
        return (8.0 * (value[1] - value[-1]) - (value[2] - value[-2])) / (12.0 * h)

    return of(lambda s: s.us), of(lambda s: s.xs), of(lambda s: s.cost)


@pytest.fixture(scope="module")
def swing():
    """A swing-up whose torque is at its bound in several steps; gravity and damping are numbers of its dynamics."""

    def step(numbers, x, u, t):
        gravity, damping = numbers
        rate = x[1] + 0.1 * (u[0] - damping * x[1] - gravity * jnp.sin(x[0]))
        return jnp.stack([x[0] + 0.1 * rate, rate])

    def effort_of(weight, x, u, t):
        return weight * u

    def end(x):
        return 10.0 * (x - jnp.array([jnp.pi, 0.0]))

    def stated(gravity=9.81, damping=0.1, effort=0.3):
        return OptimalControlProblem(
            "swing", jax.tree_util.Partial(step, (jnp.asarray(gravity), jnp.asarray(damping))), 40, np.zeros(2), dt=0.1,
            u0=np.zeros(1), control_lower=-4.0, control_upper=4.0,
            stage_residual=jax.tree_util.Partial(effort_of, jnp.asarray(effort)), terminal_residual=end,
        )  # fmt: skip

    problem = stated()
    solution = solvers.solve(problem, EXACT, x0=np.random.default_rng(1).normal(size=(40, 1)))
    assert solution.success
    return stated, problem, solution, solvers.sensitivity(problem, solution)


def test_a_swing_up_with_torques_at_their_bounds(swing):
    stated, problem, solution, sens = swing
    assert 3 <= sens.held.sum() <= 20 and sens.curvature == "exact" and sens.stationarity < 1e-10
    move = np.array([1.0, 0.5])
    us, xs, cost = difference(lambda h: solvers.solve(problem.replace(x0=h * move), EXACT, x0=solution), 1e-4)
    found = sens.apply(x0=move)
    # Differences are good to the stationarity over h, 1e-7, and to h^4.
    np.testing.assert_allclose(found.us, us, atol=1e-6 * np.abs(us).max())
    np.testing.assert_allclose(found.xs, xs, atol=1e-6 * np.abs(us).max())
    assert found.cost == pytest.approx(cost, rel=1e-7)
    assert not found.us[sens.held].any()
    us, _, cost = difference(lambda h: solvers.solve(stated(9.81 + h, 0.1 + 0.3 * h), EXACT, x0=solution), 1e-4)
    step = problem.dynamics.func
    found = sens.apply(dynamics=jax.tree_util.Partial(step, (1.0, 0.3)))
    np.testing.assert_allclose(found.us, us, atol=1e-5 * np.abs(us).max())
    assert found.cost == pytest.approx(cost, rel=1e-7)


def test_forward_and_reverse_are_each_others_transpose(swing):
    _, problem, solution, sens = swing
    rng = np.random.default_rng(0)
    by_xs, by_us = rng.normal(size=solution.xs.shape), rng.normal(size=solution.us.shape)
    slope = sens.vjp(by_xs, by_us, cost=0.7, by=("x0", "dynamics", "stage_residual"))
    move = rng.normal(size=2)
    tree = jax.tree_util.Partial(problem.dynamics.func, (jnp.asarray(0.4), jnp.asarray(-1.0)))
    change = sens.apply(x0=move, dynamics=tree)
    by_hand = np.vdot(by_xs, change.xs) + np.vdot(by_us, change.us) + 0.7 * change.cost
    gravity, damping = slope["dynamics"].args[0]
    assert np.vdot(slope["x0"], move) + 0.4 * gravity - damping == pytest.approx(by_hand, rel=1e-10)


def test_a_solve_inside_a_gradient(swing):
    stated, problem, solution, _ = swing
    solved, h = solvers.differentiable(problem, EXACT, x0=solution), 1e-4
    term = problem.stage_residual.func

    def loss(effort):
        found = solved(stage_residual=jax.tree_util.Partial(term, effort))
        return jnp.sum(found.xs**2) + 0.1 * found.cost

    value, slope = jax.value_and_grad(loss)(0.3)
    runs = [solvers.solve(stated(effort=0.3 + k * h), EXACT, x0=solution) for k in (1, -1)]
    ahead, behind = (float(np.sum(run.xs**2) + 0.1 * run.cost) for run in runs)
    assert value == pytest.approx(0.5 * (ahead + behind), rel=1e-6)
    assert slope == pytest.approx((ahead - behind) / (2 * h), rel=1e-5)
    assert float(solved().cost) == solution.cost
    with pytest.raises(OptionError, match="outside of them"):
        jax.jit(loss)(0.3)


def test_an_equality_in_closed_form():
    """J = 12 (1 - x)^2 / (1 - 1/T^2) from x; the controls are linear in x too."""
    problem = double_integrator(10, tolerance=TIGHT)
    sens = solvers.sensitivity(problem, solvers.solve(problem, EXACT))
    change = sens.apply(x0=np.array([1.0, 0.0]))
    assert change.cost == pytest.approx(-24.0 / (1.0 - 0.01), rel=1e-8)
    # From x = 1 no force is needed, and it falls linearly until there.
    np.testing.assert_allclose(change.us, -solvers.solve(problem, EXACT).us, rtol=1e-7)
    np.testing.assert_allclose(change.xs[-1], 0.0, atol=1e-9)
    slope = sens.vjp(us=change.us, by=("x0",))
    assert slope["x0"][0] == pytest.approx(np.sum(change.us**2), rel=1e-8)


def test_a_bound_on_states_that_binds():
    """Of the rate of a double integrator, which binds in the middle; the derivative by the bound, the target and the start."""
    problem = double_integrator(12, state_upper=np.array([np.inf, 1.2]), tolerance=TIGHT)
    solution = solvers.solve(problem, EXACT)
    assert (np.abs(solution.xs[:, 1] - 1.2) < 1e-9).sum() >= 3
    sens = solvers.sensitivity(problem, solution)
    us, _, cost = difference(lambda h: solvers.solve(dataclasses.replace(problem, state_upper=[np.inf, 1.2 + h]), EXACT), 1e-4)
    found = sens.apply(state_upper=np.array([0.0, 1.0]))
    np.testing.assert_allclose(found.us, us, atol=1e-5 * np.abs(us).max())
    assert found.cost == pytest.approx(cost, rel=1e-6)
    us, _, cost = difference(lambda h: solvers.solve(problem.replace(x0=[h, 0.5 * h]), EXACT), 1e-4)
    found = sens.apply(x0=np.array([1.0, 0.5]))
    np.testing.assert_allclose(found.us, us, atol=1e-5 * np.abs(us).max())


def test_a_free_start_and_free_parameters():
    """States that decay with a rate p, seen from above at every step; the target of the prior moves the estimate."""


    def from_mean(mean, p):
        return 0.5 * (p - mean)

    def prior(mean):
        return jax.tree_util.Partial(from_mean, jnp.asarray(mean))

    problem = OptimalControlProblem(
        "decay", lambda x, u, t, p: x * jnp.exp(-0.1 * p) + u, 6, np.ones(1), u0=np.zeros(1), free_initial_state=True,
        parameters=np.ones(1), stage_residual=lambda x, u, t, p: jnp.concatenate([x - 2.0 * jnp.exp(-0.2 * t), 3.0 * u]),
        terminal_residual=lambda x, p: x - 0.5, parameter_residual=prior(1.5),
    )  # fmt: skip
    solution = solvers.solve(problem, EXACT)
    sens = solvers.sensitivity(problem, solution)
    found = sens.apply(parameter_residual=prior(1.0))
    h = 1e-4
    others = [dataclasses.replace(problem, parameter_residual=prior(1.5 + k * h)) for k in (1, -1)]
    ahead, behind = (solvers.solve(other, EXACT) for other in others)
    for read, mine in ((lambda s: s.parameters, found.parameters), (lambda s: s.us, found.us), (lambda s: s.xs, found.xs)):
        np.testing.assert_allclose(mine, (read(ahead) - read(behind)) / (2 * h), atol=1e-6)
    slope = sens.vjp(found.xs, found.us, parameters=found.parameters, by=("parameter_residual",))["parameter_residual"].args[0]
    square = sum(float(np.sum(part**2)) for part in (found.xs, found.us, found.parameters))
    assert slope == pytest.approx(square, rel=1e-9)


def test_a_block_that_slides_over_the_ground():
    """Contact: by weight, start and friction, within its mode; a bob on the block gives the dynamics curvature."""
    system, x0 = dynamics.System(load_model_from_string(BLOCK), 0.02), np.array([0.0, 0.0, 0.3, 1.0, 0.0, 0.0])
    problem = OptimalControlProblem(
        "slide", system, 20, x0, u0=np.zeros(1), stage_residual=sum([residuals.Control(weight=0.3)]),
        terminal_residual=lambda x: 10.0 * jnp.stack([x.q[0] - 0.5, x.q[2] - 0.6]),
    )  # fmt: skip
    solution = solvers.solve(problem, EXACT)
    sens = solvers.sensitivity(problem, solution)
    assert sens.curvature == "within modes"

    def rough(h):
        model = system.model
        ground = dataclasses.replace(system, model=model.replace(pair_friction=model.pair_friction + h))
        return dataclasses.replace(problem, dynamics=ground)

    move = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.5])
    cases = [
        ({"weights": {"control": 1.0}}, lambda h: problem.replace(weights={"control": 0.3 + h})),
        ({"x0": move}, lambda h: problem.replace(x0=x0 + h * move)),
        ({"model": {"pair_friction": 1.0}}, rough),
    ]
    for changes, at in cases:
        us, _, cost = difference(lambda h, at=at: solvers.solve(at(h), EXACT, x0=solution), 1e-3)
        found = sens.apply(**changes)
        # Derivatives of steps through contact are good to 1e-12, their differences over 1e-7 to 1e-5.
        np.testing.assert_allclose(found.us, us, atol=1e-5 * np.abs(us).max())
        assert found.cost == pytest.approx(cost, rel=1e-6)
    slope = sens.vjp(us=found.us, by=("model.pair_friction",))
    assert np.sum(slope["model"]["pair_friction"]) == pytest.approx(np.sum(found.us**2), rel=1e-5)


def test_an_arm_that_reaches_an_equality_with_a_torque_at_its_bound():
    """By place, weight and mass."""
    system = dynamics.System(load_model_from_string(ARM), 0.05, dynamics.NoContact())
    place, label = np.array([0.35, 0.0, 0.6]), "frame position tool"
    problem = OptimalControlProblem(
        "arm", system, 16, system.initial_state(), u0=np.zeros(2), tolerance=1e-9, control_lower=-1.35, control_upper=1.35,
        stage_residual=sum([residuals.Control(weight=0.1), residuals.Velocity(weight=0.05)]),
        terminal_residual=residuals.Velocity(weight=1.0), terminal_equality=residuals.FramePosition("tool", reference=place),
    )  # fmt: skip
    exact = solvers.DDP(tolerance=1e-9)
    solution = solvers.solve(problem, exact)
    sens = solvers.sensitivity(problem, solution)
    assert sens.held.any(0).all()
    model, heavier = system.model, np.array([0.0, 1.0])

    def loaded(h):
        arm = dataclasses.replace(system, model=model.replace(mass=model.mass + h * heavier))
        return dataclasses.replace(problem, dynamics=arm)

    along = np.array([1.0, 0.0, 1.0])
    cases = [
        ({"references": {label: along}}, lambda h: problem.replace(references={label: place + h * along})),
        ({"weights": {"control": 1.0}}, lambda h: problem.replace(weights={"control": 0.1 + h})),
        ({"model": {"mass": heavier}}, loaded),
    ]
    changes = []
    for change, at in cases:
        us, _, cost = difference(lambda h, at=at: solvers.solve(at(h), exact, x0=solution), 1e-4)
        changes.append(sens.apply(**change))
        # The tolerances over the step.
        np.testing.assert_allclose(changes[-1].us, us, atol=1e-5 * np.abs(us).max())
        assert changes[-1].cost == pytest.approx(cost, rel=1e-4)
    by_us = np.random.default_rng(0).normal(size=solution.us.shape)
    slope = sens.vjp(us=by_us, by=(f"references.{label}", "weights.control", "model.mass"))
    found = slope["references"][label] @ along, slope["weights"]["control"][0], slope["model"]["mass"] @ heavier
    np.testing.assert_allclose(found, [np.vdot(by_us, change.us) for change in changes], rtol=1e-8)


def test_a_floating_body_in_its_tangent_coordinates():
    """A start that turns and tilts, its quaternion moved along the unit sphere."""
    system = dynamics.System(load_model_from_string(FLOATING), 0.05, dynamics.NoContact())
    x0 = np.concatenate([np.zeros(3), [0.8, 0.6, 0.0, 0.0], [0.3], [0.1, 0.0, 0.0, 0.2, -0.4, 0.3], [0.0]])
    problem = OptimalControlProblem(
        "floating", system, 12, x0, u0=np.zeros(1), stage_residual=sum([residuals.Control(weight=0.5)]),
        terminal_residual=lambda x: jnp.concatenate([5.0 * x.q[5:6], 2.0 * x.q[7:] - 1.0, 0.1 * x.v]),
    )  # fmt: skip
    solution = solvers.solve(problem, EXACT)
    sens = solvers.sensitivity(problem, solution)
    move = np.zeros(15)
    move[3:7], move[11] = [-0.6, 0.8, 0.0, 0.0], 1.0
    turned = lambda h: x0 + h * move + 0.5 * h**2 * np.array([0, 0, 0, -0.8, -0.6, *np.zeros(10)])  # noqa: E731
    us, xs, cost = difference(lambda h: solvers.solve(problem.replace(x0=turned(h)), EXACT, x0=solution), 3e-4)
    found = sens.apply(x0=move)
    np.testing.assert_allclose(found.us, us, atol=1e-5 * np.abs(us).max())
    assert found.cost == pytest.approx(cost, rel=1e-6)
    by_xs = np.random.default_rng(0).normal(size=xs.shape)
    assert sens.vjp(by_xs, by=("x0",))["x0"] @ move == pytest.approx(np.vdot(by_xs, xs), rel=1e-5)


def test_what_is_wrong_is_named():
    problem = double_integrator(6)
    solution = solvers.solve(problem, EXACT)
    sens = solvers.sensitivity(problem, solution)
    with pytest.raises(OptionError, match="'horizon' is none of the numbers .* those are x0, state_lower"):
        sens.apply(horizon=7)
    with pytest.raises(OptionError, match="apply.. needs a change"):
        sens.apply()
    with pytest.raises(ShapeError, match=r"x0 has shape \(3,\); expected \(2,\)"):
        sens.apply(x0=np.zeros(3))
    with pytest.raises(ShapeError, match=r"us has shape \(5, 1\); expected \(6, 1\)"):
        sens.vjp(us=np.zeros((5, 1)))
    with pytest.raises(UnknownNameError, match="weights names no residual 'contrl'"):
        sens.apply(weights={"contrl": 1.0})
    with pytest.raises(OptionError, match="weights is 1.0; expected a dictionary"):
        sens.apply(weights=1.0)
    with pytest.raises(OptionError, match="no multipliers of them; solve on from it"):
        solvers.sensitivity(problem, dataclasses.replace(solution, multipliers={}))
    with pytest.raises(OptionError, match="expected an OptimalControlProblem"):
        solvers.sensitivity(solution, problem)
    with pytest.raises(OptionError, match="expected an OptimalControlProblem"):
        solvers.differentiable(solution)


def test_an_answer_that_is_no_strict_minimum_has_no_derivative():
    step = lambda x, u, t: x + 0.1 * u[:1]  # noqa: E731  # the second control moves nothing
    problem = OptimalControlProblem("idle", step, 4, np.zeros(1), u0=np.zeros(2), terminal_residual=lambda x: x - 1.0)
    solution = solvers.solve(problem, solvers.iLQR())
    with pytest.raises(DerivativeError, match="no strict minimum"):
        solvers.sensitivity(problem, solution)


def test_an_answer_that_is_not_stationary_is_a_warning():
    problem = pendulum(20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solvers.sensitivity(problem, solvers.solve(problem, EXACT))
    with pytest.warns(UserWarning, match="stationary to .* only, .* Solve on with iLQR or DDP"):
        solvers.sensitivity(problem, solvers.solve(problem, EXACT, max_iterations=1))
