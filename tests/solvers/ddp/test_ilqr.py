"""iLQR and DDP: linear-quadratic problems against a dense solve, known optima, convergence orders, failures."""

import dataclasses
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from control_cases import (
    OPTIMA,
    SECOND_CART_POLE_OPTIMUM,
    cart_pole,
    double_integrator,
    effort,
    pendulum,
    pushed_box,
    satellite,
    unicycle,
    van_der_pol,
)
from least_squares_cases import linear
from lq_cases import M, N, T, dense_kkt, random_lq

from trajopt.dynamics import NoContact, System
from trajopt.errors import OptionError
from trajopt.models import load_model
from trajopt.problems import OptimalControlProblem, residuals
from trajopt.problems.ocp import Trajectory
from trajopt.result import status_name
from trajopt.solvers import DDP, iLQR, solve
from trajopt.solvers.ddp.curvature import learnt
from trajopt.solvers.ddp.local_model import Modeller
from trajopt.solvers.subproblems.riccati import riccati

riccati_gains = jax.jit(lambda lq: riccati(lq).K)


def lq_problem(seed: int, **changes) -> tuple[OptimalControlProblem, object]:
    """A random time-varying linear-quadratic problem, t counting the steps, and its data."""
    lq = random_lq(seed)
    at = jax.tree.map(jnp.asarray, lq)

    def dynamics(x, u, t):
        k = t.astype(int)
        return at.A[k] @ x + at.B[k] @ u + at.d[k]

    def stage(x, u, t):
        k = t.astype(int)
        quadratic = 0.5 * x @ at.Q[k] @ x + x @ at.S[k] @ u + 0.5 * u @ at.R[k] @ u
        return quadratic + at.q[k] @ x + at.r[k] @ u

    options = {
        "u0": np.zeros((T, M)),
        "stage_cost": stage,
        "terminal_cost": lambda x: 0.5 * x @ at.Q[T] @ x + at.q[T] @ x,
    }
    rng = np.random.default_rng(seed + 100)
    return OptimalControlProblem("lq", dynamics, T, rng.normal(size=N), **options | changes), lq


VARIANTS = [iLQR(), DDP(shooting="multiple"), iLQR(shooting="multiple")]


@pytest.mark.parametrize("solver", VARIANTS, ids=["iLQR", "DDP-multiple", "iLQR-multiple"])
def test_linear_quadratic_problems_take_one_iteration(solver):
    """From states that break the dynamics in multiple shooting, from a rollout in single shooting."""
    rng = np.random.default_rng(9)
    problem, lq = lq_problem(1, xs0=rng.normal(size=(T + 1, N)), u0=rng.normal(size=(T, M)))
    solution = solve(problem, solver)
    assert (status_name(solution.status), solution.iterations, solution.success) == ("solved", 1, True)
    xs, us, _, cost = dense_kkt(lq, problem.x0)
    np.testing.assert_allclose(solution.xs, xs, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(solution.us, us, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(solution.cost, cost, rtol=1e-9)
    np.testing.assert_allclose(solution.gains, riccati_gains(lq), rtol=1e-9, atol=1e-9)
    assert solution.residuals["defect"] < 1e-12 and solution.residuals["stationarity"] < 1e-10
    again = solve(problem, solver, x0=solution)
    assert again.iterations == 0 and again.success


def test_free_initial_state_and_parameters_against_least_squares():
    """Everything is a residual, so the reference stacks them; the bound on the parameter is active."""
    dt, steps = 0.2, 12
    rng = np.random.default_rng(5)
    data = rng.normal(size=steps)

    def dynamics(x, u, t, p):
        return jnp.stack([x[0] + dt * x[1], x[1] + dt * (u[0] - p[0] * jnp.sin(x[0]) + p[1])])

    problem = OptimalControlProblem(
        "fit", dynamics, steps, np.array([0.5, 0.0]),
        u0=np.zeros(1), dt=dt, free_initial_state=True, parameters=[1.0, 0.0],
        parameter_lower=np.array([0.9, -5.0]), parameter_upper=np.array([3.0, 5.0]),
        stage_residual=lambda x, u, t, p: jnp.stack([0.5 * x[0] - jnp.asarray(data)[(t / dt + 0.5).astype(int)], u[0]]),
        terminal_residual=lambda x, p: x,
        initial_residual=lambda x, p: 2.0 * (x - jnp.array([1.0, 0.0])),
        parameter_residual=lambda p: p - jnp.array([0.5, 0.3]),
    )  # fmt: skip

    def stacked(z):
        x, p, us, rows = z[:2], z[2:4], z[4:], []
        rows += [2.0 * (x[0] - 1.0), 2.0 * x[1], p[0] - 0.5, p[1] - 0.3]
        for k in range(steps):
            rows += [0.5 * x[0] - data[k], us[k]]
            x = np.array([x[0] + dt * x[1], x[1] + dt * (us[k] - p[0] * np.sin(x[0]) + p[1])])
        return np.array([*rows, *x])

    lower = np.full(4 + steps, -np.inf)
    lower[2] = 0.9
    start = np.concatenate([problem.x0, [1.0, 0.0], np.zeros(steps)])
    options = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-12}
    reference = scipy.optimize.least_squares(stacked, start, bounds=(lower, np.inf), **options)
    solution = solve(problem, iLQR(tolerance=1e-9))
    assert solution.success and solution.parameters[0] == 0.9
    np.testing.assert_allclose(solution.cost, reference.cost, rtol=1e-11)
    np.testing.assert_allclose(solution.parameters, reference.x[2:4], atol=1e-6)
    np.testing.assert_allclose(solution.xs[0], reference.x[:2], atol=1e-6)
    np.testing.assert_allclose(solution.us[:, 0], reference.x[4:], atol=1e-6)


def test_double_integrator_with_terminal_constraints():
    solution = solve(double_integrator(tolerance=1e-9), iLQR())
    assert solution.success and solution.residuals["terminal_equality"] <= 1e-9
    assert solution.cost == pytest.approx(12.0012001, abs=1e-6)
    # The optimal force falls linearly, and by dH/du = 0 it is -(dt / 2) costate / dt of the rate, here and with multipliers.
    slopes = np.diff(solution.us[:, 0])
    np.testing.assert_allclose(slopes, slopes.mean(), rtol=1e-6)
    dt, costates = 0.01, solution.multipliers["dynamics"]
    np.testing.assert_allclose(solution.us[:, 0], -0.5 * (0.5 * dt * costates[1:, 0] + costates[1:, 1]), rtol=1e-6)
    np.testing.assert_allclose(costates[-1], solution.multipliers["terminal"], rtol=1e-9)


@pytest.mark.parametrize("solver", [iLQR(), DDP()], ids=["iLQR", "DDP"])
def test_pendulum_swing_up_with_bounded_torque(solver):
    """The torque bound holds exactly, is reached, and the cost is that of IPOPT."""
    solution = solve(pendulum(), solver)
    assert solution.success and np.abs(solution.us).max() == 4.0 and np.sum(np.abs(solution.us) == 4.0) > 5
    assert solution.cost == pytest.approx(OPTIMA["pendulum"], rel=1e-7)


@pytest.mark.parametrize("make", [unicycle, van_der_pol], ids=["unicycle", "van-der-pol"])
def test_path_constraints_and_state_bounds(make):
    problem = make()
    solution = solve(problem, DDP())
    assert solution.success and solution.violation <= 1e-6
    # A violation of 1e-6 moves the cost by its multiplier times as much.
    assert solution.cost == pytest.approx(OPTIMA[problem.name], rel=1e-6)
    assert solution.residuals["stationarity"] <= 1e-6 and solution.residuals["complementarity"] <= 1e-6


def test_cart_pole_from_a_straight_line_that_breaks_the_dynamics():
    """Feasibility-driven: the guess is the line from start to target, and the defects close. IPOPT starts from it too."""
    solution = solve(cart_pole(), iLQR(shooting="multiple"))
    assert solution.success and solution.residuals["defect"] < 1e-12
    assert solution.trace["violation"][0] > 0.3
    assert solution.cost == pytest.approx(OPTIMA["cart-pole"], rel=1e-6)
    np.testing.assert_allclose(solution.xs[-1], [1.0, np.pi, 0.0, 0.0], atol=1e-6)


def test_cart_pole_from_rest():
    """From zero force DDP finds another local optimum, below the one of the straight line; IPOPT confirms it from there."""
    solution = solve(cart_pole(), DDP())
    assert solution.success
    assert solution.cost == pytest.approx(SECOND_CART_POLE_OPTIMUM, rel=1e-5)


@pytest.mark.parametrize("gradient", ["implicit", "finite-difference"])
def test_single_precision_and_difference_quotients(gradient):
    """Float32 to its own tolerance, central differences (with damped states) to theirs: both reach the optimum of float64."""
    single = gradient == "implicit"
    problem = pendulum(dtype=np.float32 if single else np.float64)
    solver = DDP() if single else iLQR(tolerance=1e-6, regularisation="state")
    solution = solve(problem, solver, gradient=gradient)
    assert solution.success and solution.us.dtype == problem.dtype
    assert solution.cost == pytest.approx(OPTIMA["pendulum"], rel=1e-5 if single else 1e-6)
    columns = 3
    trials = solution.evaluations - 1 - (solution.iterations + 1) * (1 if single else 2 * columns + 1)
    assert solution.iterations <= trials < 20 * solution.iterations


def test_a_resumed_run_goes_on_where_it_stopped(tmp_path):
    whole = solve(pendulum(), iLQR(), max_iterations=12)
    solve(pendulum(), iLQR(), max_iterations=7, checkpoint=tmp_path / "half.npz")
    rest = solve(pendulum(), iLQR(), max_iterations=5, resume=tmp_path / "half.npz")
    for key in ("cost", "step_size", "gradient_norm", "evaluations"):
        np.testing.assert_allclose(rest.trace[key], whole.trace[key], rtol=1e-12)
    np.testing.assert_array_equal(rest.us, whole.us)


def test_convergence_is_quadratic_for_ddp_and_linear_for_ilqr():
    """|d_k+1| / |d_k|^2 over the last three full steps, d the change of the controls, and the fall of the gradient by each; the
    cost at the optimum is not small."""
    options = {"control_lower": None, "control_upper": None, "terminal_residual": lambda x: 2.0 * (x - 2.0)}
    ratios, rates = {}, {}
    for solver in (DDP, iLQR):
        solution = solve(pendulum(**options), solver(tolerance=1e-11, curvature="none"), max_iterations=60)
        assert solution.success and solution.cost > 0.9
        d = solution.trace["step_size"][1:]
        d = d[d > 1e-8][-4:]
        gradients = solution.trace["gradient_norm"][-4:]
        ratios[solver], rates[solver] = d[1:] / d[:-1] ** 2, gradients[1:] / gradients[:-1]
    assert ratios[DDP].max() < 0.2 and rates[DDP][-1] < 1e-4
    assert ratios[iLQR].min() > 1e3 and rates[iLQR].min() > 0.3


@pytest.mark.slow
def test_learnt_curvature_converges_faster_than_linearly():
    """Where Gauss-Newton alone converges linearly: the last changes of the controls fall ever faster, to the same optimum."""
    options = {"control_lower": None, "control_upper": None, "terminal_residual": lambda x: 2.0 * (x - 2.0)}
    plain, learning = (solve(pendulum(**options), iLQR(tolerance=1e-10, curvature=c)) for c in ("none", "secant"))
    assert plain.success and learning.success and learning.iterations < 0.7 * plain.iterations
    np.testing.assert_allclose(learning.us, plain.us, atol=1e-7)
    d = learning.trace["step_size"][1:]
    d = d[d > 1e-9]
    assert (d[-1] / d[-4]) ** (1 / 3) < 0.3


def test_cart_pole_from_rest_without_second_derivatives():
    """The optimum that DDP finds from zero force, in fewer than a hundred iterations; pure Gauss-Newton takes several hundred."""
    solution = solve(cart_pole(), iLQR())
    assert solution.success and solution.iterations <= 100
    assert solution.cost == pytest.approx(SECOND_CART_POLE_OPTIMUM, rel=1e-5)


def test_rank_one_updates_find_the_curvature_of_quadratic_dynamics():
    """Dynamics quadratic in z have one curvature under costates that stay: the rank-one updates find it once steps span z."""
    rng = np.random.default_rng(0)
    n, m, T = 2, 1, 3
    bend = rng.normal(size=(n, n + m, n + m))
    bend = bend + np.swapaxes(bend, 1, 2)

    def f(x, u, t):
        z = jnp.concatenate([x, u])
        return x + 0.1 * u + 0.05 * jnp.einsum("kij,i,j->k", jnp.asarray(bend), z, z)

    problem = OptimalControlProblem("quadratic", f, T, np.zeros(n), u0=np.zeros(m), terminal_residual=lambda x: x - 1.0)
    modeller = Modeller(problem, "implicit", multiple=True, second_order=False)
    multipliers = modeller.constraints.initial(1.0)
    expand = jax.jit(lambda motion: modeller.expand(motion, multipliers))
    points = [Trajectory(rng.normal(size=(T + 1, n)), rng.normal(size=(T, m)), np.zeros(0)) for _ in range(40)]
    points = [jax.tree.map(jnp.asarray, dataclasses.replace(point, xs=0.3 * point.xs)) for point in points]
    S, at = jnp.zeros((T, n + m, n + m)), (points[0], expand(points[0]))
    for point in points[1:]:
        new = (point, expand(point))
        # The same costates throughout, so that there is one curvature to find.
        new = (point, dataclasses.replace(new[1], costates=jnp.ones((T + 1, n))))
        S = learnt(problem, S, at, new)
        at = new
    np.testing.assert_allclose(S, np.tile(0.1 * bend.sum(0), (T, 1, 1)), rtol=1e-6, atol=1e-6)


TOOL = [[0.4, 0.3, 0.5], [0.3, -0.3, 0.6], [-0.4, 0.4, 0.4], [0.5, 0.1, 0.2], [0.2, 0.5, 0.7]]


@pytest.mark.slow
def test_an_arm_that_falls_reaches_a_place():
    """UR5, 1 s, the tool's place at the end a terminal equality, from zero controls, under which the arm falls and whirls."""
    arm = System(load_model("ur5"), dt=0.02, contact=NoContact())
    stage = sum([residuals.Control(weight=2e-3), residuals.Velocity(weight=0.1), residuals.LimitMargin(weight=0.1)])
    reach = OptimalControlProblem(
        "reach", arm, 50, arm.initial_state("home"), u0=np.zeros(6), stage_residual=stage,
        terminal_residual=residuals.Velocity(weight=1.0),
        terminal_equality=residuals.FramePosition("tool", reference=TOOL[0]),
    )  # fmt: skip
    for place in TOOL:
        solution = solve(reach.replace(references={"frame position tool": place}), iLQR())
        assert solution.success and solution.iterations < 80
        assert solution.residuals["terminal_equality"] < 1e-6 and np.abs(solution.xs[:, 6:]).max() < 3.0
    # Damped states keep the next motion near the last one: from whirling, to any place, in few iterations.
    for place in np.array([0.4, 0.2, 0.5]) + np.random.default_rng(0).uniform(-0.15, 0.15, size=(8, 3)):
        problem = reach.replace(references={"frame position tool": place})
        solution = solve(problem, iLQR(regularisation="state", damping=1.0))
        assert solution.success and solution.iterations < 40 and np.abs(solution.xs[:, 6:]).max() < 3.0


@pytest.mark.slow
def test_arms_reach_random_places_from_random_postures():
    """The draws of `benchmarks/ur5_reach.py`: from states that stay all are reached; the rollouts of zero torques whirl."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "benchmarks"))
    import ur5_reach

    runs = [solve(ur5_reach.stated("damped", reach), iLQR()) for reach in ur5_reach.draws()]
    assert all(run.success for run in runs) and len(runs) == 20
    assert np.median([run.iterations for run in runs]) < 19 and max(run.iterations for run in runs) < 40
    assert max(run.residuals["terminal_equality"] for run in runs) < 1e-6
    assert max(np.abs(run.xs[:, 6:]).max() for run in runs) < 3.0


@pytest.mark.slow
def test_an_arm_under_effort_alone_reaches_most_places():
    """Gradients of 1e-4 and penalties that grew with every update before: 8 of these 20 draws were solved."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "benchmarks"))
    import ur5_reach

    runs = [solve(ur5_reach.stated("effort", reach), iLQR()) for reach in ur5_reach.draws()]
    assert sum(run.success for run in runs) >= 18
    assert max(run.residuals["terminal_equality"] for run in runs if run.success) < 1e-6


def test_the_units_of_the_cost_do_not_matter():
    """The swing-up with its cost, penalty and tolerance 2^-20 of their size: the same iterates. Gradients are below 1e-3 then;
    were they held against 1, each step would count as a minimisation and raise the penalties."""
    usual = solve(cart_pole(xs0=None), iLQR(penalty=8.0, tolerance=2.0**-23))
    small = cart_pole(xs0=None, stage_residual=lambda x, u, t: 2.0**-10 * effort(0.02)(x, u, t))
    solution = solve(small, iLQR(penalty=8.0 * 2.0**-20, tolerance=2.0**-43))
    assert usual.success and solution.success and usual.iterations > 40
    assert abs(solution.iterations - usual.iterations) <= 2  # the last tolerances are relative to max(1, ...)
    both = slice(0, min(usual.iterations, solution.iterations))
    np.testing.assert_array_equal(solution.trace["cost"][both] * 2.0**20, usual.trace["cost"][both])
    np.testing.assert_array_equal(solution.trace["violation"][both], usual.trace["violation"][both])


@pytest.mark.slow
def test_a_guess_that_is_worth_less_than_none_is_not_rolled_out():
    """A pendulum that is pushed over by a poor guess: "auto" starts from staying, "single" from the rollout; both end alike."""
    problem = double_integrator(stage_residual=lambda x, u, t: jnp.concatenate([0.1 * u, x]))
    poor = Trajectory(np.tile(problem.x0, (problem.horizon + 1, 1)), np.full((problem.horizon, 1), 50.0), np.zeros(0))
    auto, single = (solve(problem, iLQR(shooting=kind), x0=poor) for kind in ("auto", "single"))
    assert auto.success and single.success
    np.testing.assert_allclose(auto.us, single.us, atol=1e-6)
    assert auto.initial_cost < 0.1 * single.initial_cost


def turned(solution, angle: float) -> tuple[np.ndarray, float]:
    """Final quaternion of the satellite, with w >= 0, and the effort."""
    q = solution.xs[-1][3:7]
    return q * np.sign(q[0]), float(np.sum(solution.us**2) / len(solution.us))


def test_rotation_of_a_free_rigid_body():
    """About a principal axis the motion is the double integrator's; the base's quaternion stays one."""
    angle, steps, inertia = 2.5, 20, 0.02
    solution = solve(satellite(steps, angle, axis=(0.0, 1.0, 0.0), tolerance=1e-9), iLQR())
    assert solution.success
    q, cost = turned(solution, angle)
    np.testing.assert_allclose(q, [np.cos(angle / 2), 0, np.sin(angle / 2), 0], atol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(solution.xs[:, 3:7], axis=1), 1.0, atol=1e-12)
    # Semi-implicit Euler: the angle is dt^2 / I sum (T - k) u_k, the rate dt / I sum u_k; least norm u in closed form.
    dt = 1.0 / steps
    rows = dt / inertia * np.stack([dt * (steps - np.arange(steps)), np.ones(steps)])
    expected = np.linalg.lstsq(rows, np.array([angle, 0.0]), rcond=None)[0]
    np.testing.assert_allclose(solution.us[:, 1], expected, atol=1e-6)
    np.testing.assert_allclose(solution.us[:, [0, 2]], 0.0, atol=1e-6)
    np.testing.assert_allclose(cost, np.sum(expected**2) * dt, rtol=1e-6)


@pytest.mark.slow
def test_pushing_a_box_along_the_floor():
    """Sliding throughout, the box is a double integrator with friction; DDP says that it has no second derivatives."""
    problem = pushed_box()
    solution = solve(problem, DDP())
    assert solution.success and "Gauss-Newton" in solution.message
    assert solution.residuals["contact_residual"] < 1e-9
    steps, dt, drag = problem.horizon, problem.dt, 0.4 * 9.81
    # While it slides v_k+1 = v_k + dt (u_k - mu g), x_k+1 = x_k + dt v_k+1; all residuals are linear in u.
    ahead = dt * (steps - np.arange(steps))
    J = np.vstack([0.01 * np.eye(steps), 10.0 * dt * ahead, np.full(steps, dt)])
    r = np.concatenate([np.zeros(steps), [-10.0 * drag * dt * ahead.sum() - 2.0, -drag * dt * steps]])
    u = np.linalg.lstsq(J, -r, rcond=None)[0]
    assert np.all(np.cumsum(u - drag) > 0)
    np.testing.assert_allclose(solution.us[:, 0], u, atol=1e-7)


def test_values_that_are_not_finite_are_located():
    def dynamics(x, u, t):
        return jnp.stack([x[0] + 0.1 * x[1], jnp.sqrt(1.0 - x[0]) + u[0]])

    problem = OptimalControlProblem(
        "root", dynamics, 25, np.zeros(2), u0=np.zeros(1), stage_residual=lambda x, u, t: jnp.concatenate([x, u])
    )
    x, step = problem.x0, 0
    while np.isfinite(x).all():
        with np.errstate(invalid="ignore"):
            x = np.array([x[0] + 0.1 * x[1], np.sqrt(1.0 - x[0])])
        step += 1
    assert 5 < step < 25
    solution = solve(problem, iLQR())
    assert (status_name(solution.status), solution.success) == ("non_finite", False)
    assert f"non-finite at step {step - 1}" in solution.message
    # Here the motion is finite, but not any that has another control at step 3.
    brittle = OptimalControlProblem(
        "brittle", lambda x, u, t: jnp.where((t == 3.0) & (u != 1.0), jnp.nan, x + u), 5, np.zeros(1), u0=np.ones(1),
        stage_residual=lambda x, u, t: u,
    )  # fmt: skip
    failed = solve(brittle, iLQR())
    assert status_name(failed.status) == "non_finite" and "non-finite at step 3" in failed.message
    # From controls that keep clear of the root's end the line search stays there.
    assert solve(problem, iLQR(), x0=np.full((25, 1), -1.0)).success


BAD = [
    (lambda: iLQR(shooting="both"), "shooting is 'both'"),
    (lambda: iLQR(regularisation="x"), "regularisation is 'x'"),
    (lambda: iLQR(curvature="bfgs"), "curvature is 'bfgs'"),
    (lambda: iLQR(tolerance=0.0), "tolerance is 0.0"),
    (lambda: iLQR(penalty_factor=1.0), "penalty_factor is 1.0"),
    (lambda: iLQR(damping=-1.0), "damping is -1.0"),
    (lambda: solve(linear()[0], iLQR()), "iLQR solves an OptimalControlProblem"),
]


@pytest.mark.parametrize("make, message", BAD, ids=[message for _, message in BAD])
def test_bad_options_are_named(make, message):
    with pytest.raises(OptionError, match=message):
        make()
