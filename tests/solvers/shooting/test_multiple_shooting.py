"""Multiple shooting: known optima, and how a run of IPOPT ends.

The damped Gauss-Newton Hessian of MultipleShooting.

Multiple shooting through contact: friction identified, a cube pushed to a target, a body that turns in flight.
"""

import builtins
import time

import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import cart_pole, double_integrator

from trajopt import dynamics, load_model, solvers
from trajopt.errors import DerivativeError, MissingExtraError, OptionError
from trajopt.problems import OptimalControlProblem
from trajopt.problems.expansions import twice_differentiable
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.result import status_name
from trajopt.solvers import DDP, MultipleShooting, SingleShooting, Solution, solve
from trajopt.solvers.shooting.nlp import Shooting

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


# -- how a run ends ----------------------------------------------------------------------------------------------------


def short(**changes):
    return double_integrator(10, **changes)


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

    def slow(row):
        rows.append(row)
        time.sleep(0.1)

    some = solve(cart_pole(), MultipleShooting(), time_budget=0.5, callback=slow)
    assert status_name(some.status) == "time_budget" and 1 <= some.iterations < swing_up.iterations
    assert len(rows) == some.iterations + 1 == some.trace["cost"].size
    path = tmp_path / "checkpoint.npz"
    part = solve(cart_pole(), MultipleShooting(), callback=interrupt, checkpoint=path)
    assert status_name(part.status) == "interrupted" and part.iterations == 5
    np.testing.assert_allclose(part.trace["cost"][:6], swing_up.trace["cost"][:6], rtol=1e-9)
    assert part.violation == part.trace["violation"].min()
    rest = solve(cart_pole(), MultipleShooting(), resume=path)
    assert rest.success and rest.iterations > 5 and rest.cost == pytest.approx(58.8883, abs=1e-3)


@pytest.mark.parametrize("name", ["hessian", "slopes", "values"])
def test_an_error_in_an_evaluation_is_raised(monkeypatch, name):
    """It once ended the process: IPOPT takes norms of constraints whose evaluation failed."""
    calls, evaluate = [], getattr(Shooting, name)

    def broken(self, *arguments):
        calls.append(name)
        if len(calls) == 3:
            raise RuntimeError("broken")
        return evaluate(self, *arguments)

    monkeypatch.setattr(Shooting, name, broken)
    with pytest.raises(RuntimeError, match="broken"):
        solve(cart_pole(), MultipleShooting(hessian="exact"))


def test_a_step_with_contact_in_a_function_has_no_second_derivative():
    """Dynamics that are a function may take a step of a system that has first derivatives alone."""
    system = dynamics.System(load_model("cube"), 1e-2)
    start = system.initial_state("home")

    def thrown(x, u, t):
        x_next, _ = system.step(dynamics.State(x[:7], x[7:]), jnp.zeros(0), force=jnp.zeros(6).at[:1].set(u))
        return jnp.concatenate([x_next.q, x_next.v])

    problem = OptimalControlProblem(
        "thrown", thrown, 2, np.concatenate([start.q, start.v]), u0=np.zeros(1), dt=1e-2,
        stage_residual=lambda x, u, t: jnp.concatenate([x[:1] - 0.01, 1e-3 * u]),
    )  # fmt: skip
    assert not twice_differentiable(problem) and twice_differentiable(cart_pole())
    for solver in (MultipleShooting(), DDP()):
        assert np.isfinite(solve(problem, solver, max_iterations=3).cost)


def test_bad_input_is_refused_before_compilation(monkeypatch):
    contact = OptimalControlProblem(
        "cube", dynamics.System(load_model("cube"), 1e-2), 2, load_cube_state(), stage_residual=lambda x, u, t: x.v
    )
    monkeypatch.setattr(OptimalControlOracle, "call", None)
    for problem, options, error, match in (
        (short(), {"interval": 0}, OptionError, "interval is 0"),
        (short(), {"hessian": "exat"}, OptionError, "exact"),
        (short(), {"tolerance": 0.0}, OptionError, "tolerance is 0"),
        (short(), {"gauss_newton_iterations": -1}, OptionError, "gauss_newton_iterations is -1"),
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
    with pytest.raises(MissingExtraError, match=r"pip install 'trajopt-contact\[ipopt\]'"):
        solve(short(), MultipleShooting())


def load_cube_state():
    return dynamics.System(load_model("cube"), 1e-2).initial_state()


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


BOX = """<mujoco><default><geom friction="0.4"/></default><worldbody>
<geom type="plane" size="0 0 1"/><body pos="0 0 {height}">{joints}
<geom type="box" size="0.1 0.1 0.1" mass="1"/></body></worldbody><actuator>{motors}</actuator></mujoco>"""


def box(folder, joints, motors, law, dt, height=0.1):
    """A box of 1 kg, side 0.2, over a floor with friction 0.4."""
    path = folder / "box.xml"
    path.write_text(BOX.format(joints=joints, motors="".join(f"<motor {motor}/>" for motor in motors), height=height))
    return dynamics.System(load_model(path), dt, law)


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
