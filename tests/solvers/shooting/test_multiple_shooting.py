"""Multiple shooting: exact sparsity and derivatives of the transcription, known optima, how a run of IPOPT ends."""

from __future__ import annotations

import builtins

import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import cart_pole, double_integrator
from ridders import compare, ridders_jacobian

from trajopt import dynamics, load_model
from trajopt.errors import DerivativeError, MissingExtraError, OptionError, ShapeError
from trajopt.problems import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.result import status_name
from trajopt.solvers import MultipleShooting, SingleShooting, Solution, solve
from trajopt.solvers.shooting.nlp import Shooting

# -- the transcription -------------------------------------------------------------------------------------------------


def dense(x, u, t, p):
    """A map in which everything depends on everything."""
    A = jnp.array([[0.9, 0.3], [-0.2, 0.8]])
    return A @ x + 0.3 * jnp.sin(x[::-1] + u[0] * x + p[0]) + 0.2 * u[0] + 0.1 * p[0] * x**2 + 0.05 * t


def everything(**changes):
    """Five steps with every feature; states are plain vectors."""
    options = {
        "u0": np.full((5, 1), 0.2),
        "dt": 0.1,
        "stage_residual": lambda x, u, t, p: jnp.concatenate([jnp.sin(x + p[0]), u * x[:1]]),
        "stage_cost": lambda x, u, t, p: jnp.exp(0.3 * x[0] * u[0]) + 0.1 * p[0] ** 2 * x[1] ** 2,
        "terminal_residual": lambda x, p: jnp.exp(x + p[0]),
        "equality": lambda x, u, t, p: jnp.sin(x.sum() + u + p),
        "inequality": lambda x, u, t, p: x * x[::-1] * u[0] - 10.0 * p[0],
        "terminal_equality": lambda x, p: jnp.sum(x * x)[None] * p,
        "terminal_inequality": lambda x, p: jnp.cos(x + 0.5 * x[::-1]) * p[0] - 2.0,
        "control_lower": -2.0,
        "state_lower": np.array([-3.0, -np.inf]),
        "state_upper": np.array([4.0, np.inf]),
        "free_initial_state": True,
        "initial_residual": lambda x, p: jnp.sin(x) * p[0],
        "parameters": [0.7],
        "parameter_lower": 0.1,
        "parameter_residual": lambda p: 0.1 * p**2,
    }
    return OptimalControlProblem("everything", dense, 5, np.array([0.3, -0.2]), **options | changes)


def on_circle(**changes):
    """The same with a state (cos, sin, rate) on a manifold: a bound on its sine is no bound on a coordinate."""

    def turned(x, d):
        c, s = jnp.cos(d[0]), jnp.sin(d[0])
        return jnp.stack([c * x[0] - s * x[1], s * x[0] + c * x[1], x[2] + d[1] * (1.0 + 0.1 * d[0])])

    def between(a, b):
        angle = jnp.arctan2(a[0] * b[1] - a[1] * b[0], a[0] * b[0] + a[1] * b[1])
        return jnp.stack([angle, (b[2] - a[2]) / (1.0 + 0.1 * angle)])

    def step(x, u, t, p):
        return turned(x, jnp.stack([0.2 * x[2] + 0.1 * u[0] * x[0], u[0] * p[0] - x[1] - 0.1 * x[2] ** 2]))

    options = {
        "integrate": turned,
        "difference": between,
        "tangent_size": 2,
        "state_lower": np.array([-np.inf, -0.9, -np.inf]),
        "state_upper": np.array([np.inf, np.inf, 5.0]),
        "terminal_residual": None,
        "terminal_inequality": None,
        "inequality": None,
        "initial_residual": lambda x, p: jnp.sin(x) * p[0],
    }
    x0 = np.array([np.cos(0.4), np.sin(0.4), 0.5])
    base = {f: getattr(everything(), f) for f in ("u0", "dt", "stage_residual", "stage_cost", "equality", "parameters")}
    base |= {"terminal_equality": everything().terminal_equality, "free_initial_state": True}
    base |= {"stage_residual": lambda x, u, t, p: jnp.concatenate([jnp.sin(x + p[0]), u * x[:1]])}
    return OptimalControlProblem("circle", step, 5, x0, **base | options | changes)


def random_point(program, seed=0):
    generator = np.random.default_rng(seed)
    w = program.variables(program.problem.initial_point)
    return w + 0.3 * generator.normal(size=w.size), generator.normal(size=program.layout.constraints)


def dense_jacobian(program, w):
    rows, columns = program.layout.jacobian.rows, program.layout.jacobian.columns
    matrix = np.zeros((program.layout.constraints, w.size))
    np.add.at(matrix, (rows, columns), program.slopes(w).jacobian)
    return matrix


@pytest.mark.parametrize("make", [everything, on_circle])
def test_derivatives_of_every_feature_and_exact_sparsity(make):
    """Intervals of 2, 2 and 1 steps. The structure has no entry that is zero at a random point of a dense problem, none
    twice, and none is missing: the values agree with differences everywhere."""
    problem = make()
    program = Shooting(problem.compile(), 2, "exact", problem.initial_point)
    w, multipliers = random_point(program)

    def function(d):
        values = program.values(w + d)
        return np.append(values.constraints, values.cost)

    estimate = ridders_jacobian(function, w.size, 0.05, levels=8)
    got = np.vstack([dense_jacobian(program, w), program.slopes(w).gradient])
    compare(got, estimate, relative=1e-7, label="first derivatives")
    rows, columns = program.layout.jacobian.rows, program.layout.jacobian.columns
    assert len(set(zip(rows, columns))) == rows.size
    assert make is on_circle or rows.size == np.count_nonzero(np.abs(estimate.value[:-1]) > 1e-9)

    def slope(d):
        at = w + d
        return 0.7 * program.slopes(at).gradient + dense_jacobian(program, at).T @ multipliers

    estimate = ridders_jacobian(slope, w.size, 0.05, levels=8)
    rows, columns = program.layout.hessian.rows, program.layout.hessian.columns
    assert np.all(rows >= columns) and len(set(zip(rows, columns))) == rows.size
    lower = np.zeros((w.size, w.size))
    lower[rows, columns] = program.hessian(w, multipliers, 0.7)
    compare(lower + np.tril(lower, -1).T, estimate, relative=1e-6, label="Hessian")
    assert make is on_circle or rows.size == np.count_nonzero(np.abs(np.tril(estimate.value)) > 1e-9)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("interval", [1, 3, 7, 20])
def test_the_count_of_structural_non_zeros(interval, free):
    """Block by block; a given initial state is no variable, and rows at a step see the controls up to it."""
    T, n, m, n_p = 7, 2, 1, 1
    problem = OptimalControlProblem(
        "count", dense, T, np.zeros(2), u0=np.zeros(1), parameters=[0.7], free_initial_state=free,
        stage_cost=lambda x, u, t, p: u[0] ** 2, inequality=lambda x, u, t, p: x, state_upper=np.array([1.0, np.inf]),
        terminal_equality=lambda x, p: x,
    )  # fmt: skip
    layout = Shooting(problem.compile(), interval, "gauss-newton", problem.initial_point).layout
    K = min(interval, T)
    lengths = [min(K, T - k) for k in range(0, T, K)]
    nodes = [n if free or k else 0 for k in range(len(lengths))]
    count = sum(n * (s + K_ * m + n_p) + n for s, K_ in zip(nodes, lengths))
    count += sum(n * (s + (j + 1) * m + n_p) for s, K_ in zip(nodes, lengths) for j in range(K_))
    count += sum(s + j * m + n_p for s, K_ in zip(nodes, lengths) for j in range(1, K_))
    count += n * (n + n_p)
    assert layout.jacobian.rows.size == count
    assert layout.variables == sum(nodes) + n + T * m + n_p
    sizes = [s + K_ * m for s, K_ in zip(nodes, lengths)]
    assert layout.hessian.rows.size == sum(s * (s + 1) // 2 + s * n_p for s in sizes) + 1


def test_blocks_that_do_not_fit_the_sparsity_pattern_are_refused():
    layout = Shooting(everything().compile(), 2, "exact", everything().initial_point).layout
    for pattern in (layout.jacobian, layout.hessian):
        blocks = [jnp.zeros(size) for size in pattern.sizes]
        assert pattern.values(blocks).shape == pattern.rows.shape
        with pytest.raises(ShapeError, match="this sparsity pattern expects"):
            pattern.values(blocks[:-1])
        with pytest.raises(ShapeError, match="this sparsity pattern expects"):
            pattern.values([blocks[0][:-1], *blocks[1:]])


def test_ipopts_own_derivative_test_passes_and_its_log_is_kept():
    options = {"derivative_test": "second-order", "derivative_test_tol": 1e-5, "point_perturbation_radius": 0.1}
    solution = solve(everything(), MultipleShooting(interval=2, ipopt_options=options), max_iterations=1)
    assert "No errors detected by derivative checker" in solution.log
    assert status_name(solution.status) == "max_iterations" and solution.raw_status.startswith("5: ")


# -- known optima ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval, hessian", [(1, "exact"), (20, "limited-memory")])
def test_minimum_effort(interval, hessian):
    solution = solve(double_integrator(), MultipleShooting(interval, hessian))
    assert solution.success and solution.cost == pytest.approx(12 / (1 - 1e-4), abs=1e-6)
    assert solution.residuals["defect"] < 1e-9 and solution.residuals["kkt_residual"] < 1e-7
    assert solution.trace["cost"].size == solution.iterations + 1


@pytest.fixture(scope="module")
def swing_up():
    return solve(cart_pole(), MultipleShooting())


def test_swing_up_of_the_cart_pole(swing_up):
    """Kelly 2017, section 6; 58.8883 with controls held constant, where CasADi and IPOPT need 14 iterations."""
    assert swing_up.success and swing_up.cost == pytest.approx(58.8883, abs=1e-3)
    assert swing_up.iterations <= 20
    assert np.abs(swing_up.xs[:, 0]).max() <= 2.0 + 1e-6 and np.abs(swing_up.us).max() <= 20.0 + 1e-6
    assert swing_up.residuals["kkt_residual"] < 1e-7 and swing_up.residuals["complementarity"] < 1e-6


def test_a_warm_start_with_multipliers_saves_iterations(swing_up, tmp_path):
    """From a solution read back from disk; without its multipliers the interior-point method starts from afar."""
    saved = Solution.load(swing_up.save(tmp_path / "run"))
    warm = solve(cart_pole(), MultipleShooting(warm_start=saved), x0=saved)
    cold = solve(cart_pole(), MultipleShooting(), x0=saved)
    assert warm.success and warm.iterations <= 2 < cold.iterations
    assert saved.log == swing_up.log and "EXIT: Optimal Solution Found" in saved.log
    with pytest.raises(OptionError, match=r"multipliers\['rows'\] has shape \(404,\), expected \(164,\)"):
        solve(cart_pole(), MultipleShooting(interval=5, warm_start=saved), x0=saved)


def test_free_final_time():
    """Unit distance from rest to rest with |u| <= 1 in least time, the parameter being the duration: 2, by full thrust
    and full brake, which the grid can represent."""
    steps = 10

    def dynamics_(x, u, t, p):
        h = p[0] / steps
        return jnp.stack([x[0] + h * x[1] + 0.5 * h**2 * u[0], x[1] + h * u[0]])

    problem = OptimalControlProblem(
        "fastest", dynamics_, steps, np.zeros(2), u0=np.zeros(1), dt=1.0, control_lower=-1.0, control_upper=1.0,
        terminal_cost=lambda x, p: p[0], terminal_equality=lambda x, p: x - jnp.array([1.0, 0.0]),
        parameters=[1.0], parameter_lower=0.1,
    )  # fmt: skip
    solution = solve(problem, MultipleShooting())
    assert solution.success and solution.parameters[0] == pytest.approx(2.0, abs=1e-6)
    np.testing.assert_allclose(solution.us[:, 0], np.r_[np.ones(5), -np.ones(5)], atol=1e-5)


def test_a_free_initial_state_with_a_prior():
    """A linear problem without constraints is a linear least-squares problem in (x_0, u)."""
    A, B, prior, target = np.array([[1.0, 0.1], [-0.1, 0.9]]), np.array([0.0, 0.5]), np.array([1.0, -1.0]), np.ones(2)
    problem = OptimalControlProblem(
        "smoothing", lambda x, u, t: jnp.asarray(A) @ x + jnp.asarray(B) * u[0], 4, np.zeros(2), u0=np.zeros(1),
        stage_residual=lambda x, u, t: u, terminal_residual=lambda x: 2.0 * (x - target),
        free_initial_state=True, initial_residual=lambda x: 3.0 * (x - prior),
    )  # fmt: skip
    solution = solve(problem, MultipleShooting(interval=3, hessian="gauss-newton"))
    power = np.linalg.matrix_power
    final = np.column_stack([power(A, 4)] + [power(A, 3 - k) @ B for k in range(4)])
    rows = np.vstack([3.0 * np.eye(2, 6), np.eye(4, 6, 2), 2.0 * final])
    exact = np.linalg.lstsq(rows, np.r_[3.0 * prior, np.zeros(4), 2.0 * target], rcond=None)[0]
    assert solution.success and solution.iterations == 1
    np.testing.assert_allclose(np.r_[solution.xs[0], solution.us[:, 0]], exact, atol=1e-8)


@pytest.mark.parametrize("solver", [MultipleShooting(interval=3), SingleShooting()], ids=["multiple", "single"])
def test_an_initial_velocity_without_controls(solver):
    """Which throw from the origin is two metres up after a second? Velocity 2 + g/2, and the start held by its prior."""
    problem = OptimalControlProblem(
        "throw", lambda x, u, t: jnp.stack([x[0] + 0.1 * x[1] - 0.005 * 9.81, x[1] - 0.981]), 10, np.array([0.0, 1.0]),
        u0=np.zeros(0), dt=0.1, terminal_residual=lambda x: x[:1] - 2.0, free_initial_state=True,
        initial_residual=lambda x: 10.0 * x[:1],
    )  # fmt: skip
    solution = solve(problem, solver)
    assert solution.success
    np.testing.assert_allclose(solution.xs[0], [0.0, 2.0 + 9.81 / 2], atol=1e-5)


def test_a_state_that_turns_far_from_its_reference():
    """Least effort to turn by 2.9 rad from rest to rest, angles being counted by 2 tan(angle / 2): the references are moved
    on the way, and the optimum is that of the double integrator."""
    angle, steps = 2.9, 10
    h = 1.0 / steps

    def turned(x, d):
        c, s = (1.0 - d[0] ** 2 / 4.0) / (1.0 + d[0] ** 2 / 4.0), d[0] / (1.0 + d[0] ** 2 / 4.0)
        return jnp.stack([c * x[0] - s * x[1], s * x[0] + c * x[1], x[2] + d[1]])

    def between(a, b):
        turn = jnp.arctan2(a[0] * b[1] - a[1] * b[0], a[0] * b[0] + a[1] * b[1])
        return jnp.stack([2.0 * jnp.tan(turn / 2.0), b[2] - a[2]])

    def step(x, u, t):
        return turned(x, jnp.stack([2.0 * jnp.tan((h * x[2] + 0.5 * h**2 * u[0]) / 2.0), h * u[0]]))

    problem = OptimalControlProblem(
        "turn", step, steps, np.array([1.0, 0.0, 0.0]), u0=np.zeros(1), dt=h,
        integrate=turned, difference=between, tangent_size=2, stage_residual=lambda x, u, t: np.sqrt(2.0 * h) * u,
        terminal_equality=lambda x: between(jnp.array([np.cos(angle), np.sin(angle), 0.0]), x),
    )  # fmt: skip
    solution = solve(problem, MultipleShooting(interval=2))
    assert solution.success and solution.cost == pytest.approx(12 * angle**2 / (1 - h**2), rel=1e-7)
    assert solution.residuals["kkt_residual"] < 1e-6 and solution.log.count("This is Ipopt") > 1


# -- systems -----------------------------------------------------------------------------------------------------------

BOX = """<mujoco><default><geom friction="0.4"/></default><worldbody>
<geom type="plane" size="0 0 1"/><body pos="0 0 {height}">{joints}
<geom type="box" size="0.1 0.1 0.1" mass="1"/></body></worldbody><actuator>{motors}</actuator></mujoco>"""


def box(folder, joints, motors, law, dt, height=0.1):
    """A box of 1 kg, side 0.2, over a floor with friction 0.4."""
    path = folder / "box.xml"
    path.write_text(BOX.format(joints=joints, motors="".join(f"<motor {motor}/>" for motor in motors), height=height))
    return dynamics.System(load_model(path), dt, law)


SLIDES = '<joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>'


@pytest.mark.slow
def test_friction_is_identified_through_contact(tmp_path):
    """A sliding box brakes by mu g; mu = 0.3 is found from its recorded positions, the push being known."""
    law = dynamics.RigidContact(erp=1.0)
    system = box(tmp_path, SLIDES, ['joint="x"'], law, 0.02)
    pushes, mu, g = np.array([2.0, 1.0, 0.0, 0.0]), 0.3, 9.81
    speed = 1.0 + 0.02 * np.cumsum(pushes - mu * g)
    places = 0.02 * np.cumsum(speed)

    def with_friction(system, p):
        scale = p[0] / 0.4
        return dynamics.System(
            system.model.replace(pair_friction=system.model.pair_friction * scale), system.dt, system.contact
        )

    problem = OptimalControlProblem(
        "friction", system, 4, dynamics.State(system.model.q_default, jnp.array([1.0, 0.0]), None),
        u0=pushes[:, None], control_lower=-3.0, control_upper=3.0, parameters=[0.4], parametrize=with_friction,
        stage_residual=lambda x, u, t, p: u - jnp.interp(t, jnp.asarray(0.02 * np.arange(4)), jnp.asarray(pushes)),
        terminal_equality=lambda x, p: jnp.stack([x.q[0] - places[-1], x.v[0] - speed[-1]]),
    )  # fmt: skip
    solution = solve(problem, MultipleShooting(interval=2))
    assert solution.success and solution.parameters[0] == pytest.approx(mu, abs=1e-6)
    np.testing.assert_allclose(solution.us[:, 0], pushes, atol=1e-4)
    assert solution.residuals["contact_residual"] < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("interval", [1, 3])
def test_a_sliding_cube_is_pushed_to_a_target(interval, tmp_path):
    """A free cube, pushed and turned while it slides."""
    motors = ['joint="root" gear="1 0 0 0 0 0"', 'joint="root" gear="0 0 0 0 0 1"']
    system = box(tmp_path, '<freejoint name="root"/>', motors, dynamics.RigidContact(erp=1.0), 0.02)
    x0 = dynamics.State(system.model.q_default, jnp.array([1.0, 0.0, 0.0, 0.0, 0.0, 1.0]), None)
    problem = OptimalControlProblem(
        "push", system, 6, x0, stage_residual=lambda x, u, t: u * jnp.array([0.1, 1.0]),
        terminal_equality=lambda x: jnp.stack([x.q[0] - 0.1, x.q[6] - 0.05]),
    )  # fmt: skip
    solution = solve(problem, MultipleShooting(interval, hessian="limited-memory"), max_iterations=200)
    assert solution.success and solution.residuals["contact_residual"] < 1e-9
    np.testing.assert_allclose(solution.xs[-1][[0, 6]], [0.1, 0.05], atol=1e-6)
    assert abs(solution.xs[-1][2] - 0.1) < 1e-6


@pytest.mark.slow
def test_a_free_body_turns_in_flight(tmp_path):
    """Quaternion states without contact: a cube turns by 2.6 rad about a diagonal from rest to rest with least effort.

    It is the same in every direction, so that its optimum is that of the double integrator, of inertia 1/150 kg m^2.
    """
    motors = [f'joint="root" gear="0 0 0 {axis}"' for axis in ("1 0 0", "0 1 0", "0 0 1")]
    system = box(tmp_path, '<freejoint name="root"/>', motors, dynamics.NoContact(), 0.1, height=5)
    angle, axis, inertia = 2.6, np.array([1.0, 2.0, -1.0]) / np.sqrt(6), 1 / 150
    target = np.r_[np.cos(angle / 2), np.sin(angle / 2) * axis]
    problem = OptimalControlProblem(
        "turn", system, 10, system.initial_state(), stage_residual=lambda x, u, t: np.sqrt(0.2) / inertia * u,
        terminal_equality=lambda x: jnp.concatenate([x.q[4:7] - target[1:], x.v[3:]]),
    )  # fmt: skip
    solution = solve(problem, MultipleShooting())
    # Semi-implicit Euler, v then q: theta_T = h^2 sum (T - k) u_k, with least effort d^2 / (h^4 sum c^2) and c centred.
    arms = np.arange(10, 0, -1) - 5.5
    effort = angle**2 / (0.1**4 * np.sum(arms**2)) * 0.1
    assert solution.success and solution.cost == pytest.approx(effort, rel=1e-6)
    np.testing.assert_allclose(solution.xs[-1][3:7], target, atol=1e-6)


# -- how a run ends ----------------------------------------------------------------------------------------------------


def short(**changes):
    return double_integrator(10, **changes)


def test_the_last_permitted_iteration_may_be_the_optimum():
    """One Newton step solves a quadratic program; zero do not."""
    assert status_name(solve(short(), MultipleShooting(), max_iterations=1).status) == "solved"
    stopped = solve(short(), MultipleShooting(), max_iterations=0)
    assert status_name(stopped.status) == "max_iterations" and not stopped.success


def test_contradictory_constraints_are_infeasible():
    """A force below 4 cannot move the mass one metre in one second."""
    solution = solve(short(control_lower=-3.9, control_upper=3.9), MultipleShooting())
    assert status_name(solution.status) == "infeasible" and not solution.success
    assert "IPOPT: 2: " in solution.message and "terminal_equality is" in solution.message


def test_non_finite_dynamics_name_the_step():
    def broken(x, u, t):
        return x + jnp.sqrt(0.35 - t)

    problem = OptimalControlProblem(
        "nan", broken, 6, np.zeros(1), u0=np.zeros(1), dt=0.1, stage_cost=lambda x, u, t: u[0]
    )
    solution = solve(problem, MultipleShooting(interval=4))
    assert (
        status_name(solution.status) == "non_finite" and "at iteration 0: at step 4 of the motion" in solution.message
    )


def interrupt(row):
    if row["iteration"] == 5:
        raise KeyboardInterrupt


def test_budget_interruption_and_resuming_return_the_best_point(swing_up, tmp_path):
    none = solve(cart_pole(), MultipleShooting(), time_budget=0.0)
    assert (status_name(none.status), none.iterations) == ("time_budget", 0)
    rows = []
    some = solve(cart_pole(), MultipleShooting(), time_budget=0.01, callback=rows.append)
    assert status_name(some.status) == "time_budget" and 1 <= some.iterations < swing_up.iterations
    assert len(rows) == some.iterations + 1 == some.trace["cost"].size
    path = tmp_path / "checkpoint.npz"
    part = solve(cart_pole(), MultipleShooting(), callback=interrupt, checkpoint=path)
    assert status_name(part.status) == "interrupted" and part.iterations == 5
    np.testing.assert_allclose(part.trace["cost"][:6], swing_up.trace["cost"][:6], rtol=1e-9)
    assert part.violation == part.trace["violation"].min()
    rest = solve(cart_pole(), MultipleShooting(), resume=path)
    assert rest.success and rest.iterations > 5 and rest.cost == pytest.approx(58.8883, abs=1e-3)


def test_bad_input_is_refused_before_compilation(monkeypatch):
    contact = OptimalControlProblem(
        "cube", dynamics.System(load_model("cube"), 1e-2), 2, load_cube_state(), stage_residual=lambda x, u, t: x.v
    )
    monkeypatch.setattr(OptimalControlOracle, "call", None)
    for problem, options, error, match in (
        (short(), {"interval": 0}, OptionError, "interval is 0"),
        (short(), {"hessian": "exat"}, OptionError, "exact"),
        (short(), {"tolerance": 0.0}, OptionError, "tolerance is 0"),
        (short(), {"ipopt_options": {"tol": 1e-3}}, OptionError, "'tol' is set by the solver; use tolerance"),
        (short(), {"ipopt_options": {"mu_strategi": "adaptive"}}, OptionError, "mu_strategi"),
        (contact, {"hessian": "exact"}, DerivativeError, "RigidContact defines no second derivative"),
    ):
        with pytest.raises(error, match=match):
            solve(problem, MultipleShooting(**options))
    single = OptimalControlProblem(
        "single", lambda x, u, t: x, 2, np.zeros(1, np.float32), u0=np.zeros(1), stage_cost=lambda x, u, t: x[0]
    )
    with pytest.raises(OptionError, match="float64"):
        solve(single, MultipleShooting())
    original = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("cyipopt"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'trajopt\[ipopt\]'"):
        solve(short(), MultipleShooting())


def load_cube_state():
    return dynamics.System(load_model("cube"), 1e-2).initial_state()
