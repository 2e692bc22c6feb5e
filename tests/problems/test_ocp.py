"""Optimal control problems: validation, flat functions, expansions against differences, certificate.

Gradient modes of a `System` reach the solvers' linearisation of an optimal control problem.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import compare, ridders_jacobian

from trajopt import dynamics, load_model, problems
from trajopt.dynamics.start import StartWarning
from trajopt.errors import DerivativeError, NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.models.overlaps import deep_overlaps
from trajopt.models.registry import load_model_from_string
from trajopt.problems import Display, OptimalControlProblem, Trajectory
from trajopt.problems.expansions import (
    HESSIANS,
    dynamics_hessian,
    final_expansion,
    linear_dynamics,
    stage_constraints,
    stage_expansion,
)
from trajopt.problems.trajectory import flat_state


def pendulum(x, u, t, p=None):
    length = 1.0 if p is None else p[0]
    return jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u[0] - jnp.sin(x[0]) / length + 0.1 * t)])


def plain(**changes):
    options = {
        "u0": np.zeros((5, 1)),
        "dt": 0.1,
        "stage_residual": lambda x, u, t: jnp.concatenate([x * jnp.exp(0.1 * x), u - t]),
        "stage_cost": lambda x, u, t: jnp.cos(x[0]) * u[0] ** 2,
        "terminal_residual": lambda x: 3.0 * (x - 1.0),
    }
    return OptimalControlProblem("pendulum", pendulum, 5, np.array([0.3, -0.2]), **options | changes)


def robot(**changes):
    system = dynamics.System(load_model("cube"), dt=1e-2, contact=dynamics.RigidContact())
    x0 = system.initial_state()
    options = {"stage_residual": lambda x, u, t: x.v, "terminal_cost": lambda x: jnp.sum(x.q[:3] ** 2)}
    return OptimalControlProblem("cube", system, 4, x0, **options | changes)


def test_a_start_in_deep_overlap_is_said_once():
    """With both shapes named, when the problem is made and not by its copies; a start that only touches is none."""
    touching = robot()
    system, start = touching.system, touching.system.initial_state()
    low = dataclasses.replace(start, q=start.q.at[2].set(0.0))
    with pytest.warns(StartWarning, match="problem 'low': .*'cube' and 'floor'; .*push_out_speed=1 .*exclude="):
        deep = OptimalControlProblem("low", system, 4, low, stage_residual=lambda x, u, t: x.v)
    dataclasses.replace(deep, tolerance=1e-5)


def test_depth_of_overlaps():
    """Two balls of radius 0.1 whose centres are 0.15 apart overlap by 0.05, whichever way the centres lie."""
    text = """<mujoco><worldbody><body><freejoint/><geom type="sphere" size="0.1" mass="1"/></body>
      <body pos="0.09 0.12 0"><freejoint/><geom type="sphere" size="0.1" mass="1"/></body></worldbody></mujoco>"""
    model = load_model_from_string(text)
    q = np.asarray(model.q_default)
    assert deep_overlaps(model, q, 0.049) == ((0, 1),) and deep_overlaps(model, q, 0.051) == ()


BAD = [
    (lambda: OptimalControlProblem("a", 3, 5, np.zeros(2)), OptionError, "dynamics is 3"),
    (lambda: plain(u0=None), OptionError, "u0 is missing"),
    (lambda: plain(u0=np.zeros((4, 1))), ShapeError, r"u0 has shape \(4, 1\)"),
    (lambda: plain(u0=np.full((5, 1), np.nan)), NonFiniteError, r"u0\[0, 0\]"),
    (lambda: plain(dt=-1.0), OptionError, "dt is -1.0"),
    (lambda: plain(stage_residual=None, stage_cost=None, terminal_residual=None), OptionError, "no cost"),
    (lambda: plain(stage_cost=lambda x, u, t: x), ShapeError, "stage_cost returned"),
    (lambda: plain(stage_cost=lambda x: x[0]), OptionError, "stage_cost cannot be called"),
    (lambda: plain(equality=lambda x, u, t: x[0]), ShapeError, "equality returned"),
    (lambda: plain(control_lower=1.0, control_upper=0.0), OptionError, "infeasible bounds: control_lower"),
    (lambda: plain(state_upper=np.zeros(3)), ShapeError, "state_upper has shape"),
    (lambda: plain(display=Display(control_names=("a", "b"))), ShapeError, "display.control_names has 2 entries; there are 1"),
    (lambda: plain(integrate=lambda x, d: x), OptionError, "difference is missing"),
    (lambda: plain(parametrize=lambda s, p: s), OptionError, "parametrize needs a System"),
    (lambda: OptimalControlProblem("a", pendulum, 0, np.zeros(2), u0=np.zeros(1)), OptionError, "horizon is 0"),
    (lambda: robot(dt=0.1), OptionError, "the System's own"),
    (lambda: robot(state_lower=np.full(13, -1.0)), OptionError, "bounds a quaternion"),
    (lambda: plain().check_point(np.zeros((5, 2))), ShapeError, r"x0.us has shape \(5, 2\)"),
    (lambda: plain().compile("implcit"), UnknownNameError, "implicit"),
    (lambda: plain(solver="CEM"), OptionError, r"no 'solver' of its own; give defaults=Defaults\(solver, options\)"),
    (lambda: plain().replace(certificate_suffices=True), OptionError, "'certificate_suffices' of its own; give certificate="),
    (lambda: plain(certificate=lambda motion: {}), OptionError, "certificate is <function .*; expected a Certificate, such as"),
]


@pytest.mark.check
@pytest.mark.parametrize("make, error, message", BAD, ids=[message for *_, message in BAD])
def test_bad_input_is_named_before_compilation(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_any_field_of_a_problem_can_be_replaced():
    """A field that is left alone is validated anew as it was given: defaults follow the new system, horizon or state."""
    problem = robot()
    assert dataclasses.replace(problem).dt == problem.dt
    for field in dataclasses.fields(problem):
        if field.init and field.name not in ("_", "arguments"):
            same = dataclasses.replace(problem, **{field.name: getattr(problem, field.name)})
            np.testing.assert_array_equal(same.u0, problem.u0)
    slower = dataclasses.replace(problem, dynamics=dataclasses.replace(problem.system, dt=2e-2, gradient="smoothed"))
    assert slower.dt == 2e-2 and slower.defaults.gradient == "smoothed"
    moved = dataclasses.replace(slower, x0=slower.x0 + np.eye(13)[0])
    assert moved.x0[0] == slower.x0[0] + 1 and moved.dt == 2e-2
    assert dataclasses.replace(problem, horizon=7).u0.shape == (7, problem.nu)
    with pytest.raises(OptionError, match="the System's own"):
        dataclasses.replace(problem, dt=0.5)
    function = plain(state_lower=-9.0)
    assert function.tangent_size == 2
    longer = dataclasses.replace(function, x0=np.zeros(3), dynamics=lambda x, u, t: x + u, terminal_residual=None)
    assert longer.n == 3 and longer.state_lower.shape == (3,) and longer.u0.shape == function.u0.shape


@pytest.mark.parametrize("hessian", HESSIANS)
def test_cost_expansions_against_differences(hessian):
    """Gradient and Hessian of stage and terminal cost; the Gauss-Newton Hessian is that of the linearised residual."""
    problem = plain()
    x, u, t, p = np.array([0.4, -0.7]), np.array([0.6]), jnp.asarray(0.2), jnp.zeros(0)
    got = jax.jit(lambda x, u: stage_expansion(problem, x, u, t, p, hessian))(x, u)
    cost = jax.jit(lambda z: problem.running_cost(z[:2], z[2:], t, p))
    slope = jax.jit(jax.grad(lambda z: problem.running_cost(z[:2], z[2:], t, p)))
    z = np.r_[x, u]
    estimate = ridders_jacobian(lambda d: cost(z + d)[None], 3, 1e-1)
    compare(got.gradient[None], estimate, label="gradient")
    np.testing.assert_allclose(got.value, cost(z), rtol=1e-14)
    exact = ridders_jacobian(lambda d: slope(z + d), 3, 1e-1).value
    if hessian == "gauss-newton":
        curved = jax.hessian(lambda z: 0.5 * jnp.sum((z[:2] * jnp.exp(0.1 * z[:2])) ** 2))(z)
        J = np.diag(np.r_[np.exp(0.1 * x) * (1 + 0.1 * x), 0.0])
        exact = exact - curved + J.T @ J
    np.testing.assert_allclose(got.hessian, exact, rtol=1e-8, atol=1e-9)
    final = final_expansion(problem, jnp.asarray(x), p, hessian)
    np.testing.assert_allclose(final.hessian, 9.0 * np.eye(2), rtol=1e-14)


@pytest.mark.parametrize("gradient", ["implicit", "finite-difference", "ridders"])
def test_linear_dynamics_of_a_function_with_parameters(gradient):
    problem = plain(
        parameters=[1.3],
        stage_residual=lambda x, u, t, p: x,
        stage_cost=None,
        terminal_residual=lambda x, p: x,
    )
    x, u, t, p = jnp.array([0.4, -0.7]), jnp.array([0.6]), jnp.asarray(0.2), jnp.array([1.3])
    x_next, F = jax.jit(linear_dynamics(problem, gradient))(x, u, t, p)
    np.testing.assert_allclose(x_next, pendulum(x, u, t, p), rtol=1e-14)
    expected = [[1, 0.1, 0, 0], [-0.1 * np.cos(0.4) / 1.3, 1, 0.1, 0.1 * np.sin(0.4) / 1.3**2]]
    np.testing.assert_allclose(F, expected, atol=1e-8 if gradient == "finite-difference" else 1e-11)


def test_linear_dynamics_of_a_system_with_parameters():
    """The cube on the floor, pushed: columns for [dq, dv], none for controls, and the mass as free parameter."""
    problem = robot(
        parameters=[1.2],
        parametrize=lambda system, p: dynamics.System(
            system.model.replace(mass=p * system.model.mass), system.dt, system.contact
        ),
        stage_residual=lambda x, u, t, p: x.v,
        terminal_cost=lambda x, p: jnp.sum(x.q[:3] ** 2),
    )
    x = np.concatenate([problem.x0[:7], [0.5, 0.1, 0.0, 0.0, 0.0, 0.3]])
    x[2] -= 1e-4  # away from the kink between approach and penetration
    u, t, p = jnp.zeros(problem.nu), jnp.zeros(()), jnp.array([1.2])
    x_next, F = jax.jit(linear_dynamics(problem))(jnp.asarray(x), u, t, p)
    step, local = jax.jit(problem.step), jax.jit(problem.local)
    retract = jax.jit(problem.retract)

    def f(z):
        return local(x_next, step(retract(jnp.asarray(x), jnp.asarray(z[:12])), u, t, p + z[12:]))

    compare(F, ridders_jacobian(f, 13, 1e-5, noise=1e-15), relative=1e-5, untrusted=0.3, label="cube")


def test_rollout_cost_and_certificate():
    problem = plain(
        equality=lambda x, u, t: u - 1.0, terminal_inequality=lambda x: x - 10.0, control_lower=-0.5, state_lower=-0.25
    )
    oracle = problem.compile()
    us = np.full((5, 1), 0.1)
    motion = oracle.rollout(problem.x0, us, np.zeros(0))
    x, cost = problem.x0, 0.0
    for k in range(5):
        t = jnp.asarray(0.1 * k)
        cost += float(problem.running_cost(x, us[k], t, jnp.zeros(0)))
        x = pendulum(x, us[k], t)
        np.testing.assert_allclose(motion.xs[k + 1], x, rtol=1e-14)
    cost += float(problem.final_cost(x, jnp.zeros(0)))
    np.testing.assert_allclose(oracle.cost(motion), cost, rtol=1e-14)
    values = oracle.residuals(motion)
    assert values["defect"] == 0 and values["initial_state_error"] == 0 and values["terminal_inequality"] == 0
    np.testing.assert_allclose(values["equality"], 0.9, rtol=1e-14)
    np.testing.assert_allclose(values["bound_violation"], -0.25 - np.min(motion.xs[1:]), rtol=1e-12)
    assert [line.split()[0] for line in oracle.shortfalls(values)] == ["bound_violation", "equality"]
    broken = Trajectory(motion.xs + np.eye(6, 2) * 0.1, us - 1.0, motion.p)
    values = oracle.residuals(broken)
    np.testing.assert_allclose(values["initial_state_error"], 0.1, rtol=1e-12)
    assert values["defect"] > 0.05 and values["bound_violation"] >= 0.4
    c, C = stage_constraints(problem, "equality", motion.xs[0], jnp.asarray(us[0]), jnp.zeros(()), jnp.zeros(0))
    np.testing.assert_allclose(c, [-0.9], rtol=1e-14)
    np.testing.assert_allclose(C, [[0, 0, 1.0]], rtol=1e-14)


def test_a_systems_motion_is_its_rollout_and_its_contacts_are_certified():
    problem = robot()
    oracle = problem.compile()
    motion = oracle.rollout(problem.x0, problem.u0, problem.parameters)
    states, _ = problem.system.rollout(problem.as_state(jnp.asarray(problem.x0)), jnp.asarray(problem.u0))
    np.testing.assert_allclose(motion.xs[-1], np.r_[states.q[-1], states.v[-1]], atol=1e-12)
    values = oracle.residuals(motion)
    assert values["contact_residual"] < 1e-9 and values["dropped_contacts"] == 0
    assert oracle.fields(motion)["trajectory"]["impulse"].shape[0] == 4
    back = problem.local(motion.xs[0], problem.retract(motion.xs[0], jnp.arange(12.0) / 10))
    np.testing.assert_allclose(back, np.arange(12.0) / 10, atol=1e-12)
    assert flat_state(problem.as_state(motion.xs[1])).shape == (13,)


def test_second_derivatives_are_refused_through_contact():
    with pytest.raises(DerivativeError, match="RigidContact defines no second derivative"):
        dynamics_hessian(robot())
    hessian = dynamics_hessian(plain())
    H = hessian(jnp.array([0.4, 0.0]), jnp.zeros(1), jnp.zeros(()), jnp.zeros(0), jnp.array([0.0, 2.0]))
    np.testing.assert_allclose(H, np.diag([0.2 * np.sin(0.4), 0, 0]), atol=1e-15)


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
