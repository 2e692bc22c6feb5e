"""The receding horizon against closed forms (LQR, an undisturbed plan), the solver itself, and what it refuses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from compilations import compilations

from trajopt import control, dynamics, load_model, models, solvers
from trajopt.control.receding_horizon import Drive
from trajopt.dynamics import State, System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.problems import OptimalControlProblem, guesses
from trajopt.problems import residuals as r
from trajopt.solvers.plan import Plan
from trajopt.viz.receding_horizon import plot_recording

DT = 0.05
PLAIN = solvers.iLQR(curvature="none")  # which a receding horizon iterates, one step at a time
A, B = np.array([[1.0, DT], [0.3 * DT, 1.0]]), np.array([[0.0], [DT]])
Q, R = np.diag([2.0, 0.5]), np.array([[0.1]])


class LinearPlant:
    """x+ = A x + B u + w."""

    name, nx, nu, dt, bodies = "linear plant", 2, 1, DT, ("mass",)

    def __init__(self, noise=0.0):
        self.noise, self.state = noise, np.zeros(2)

    def reset(self, x):
        self.state, self.random = np.array(x), np.random.default_rng(0)

    def step(self, u, forces):
        self.state = A @ self.state + B @ u + self.noise * self.random.normal(size=2)


@functools.cache
def lq_problem():
    """The terminal cost is that of the infinite horizon."""
    P = scipy.linalg.solve_discrete_are(A, B, Q, R)
    Lq, Lr, Lp = (jnp.asarray(np.linalg.cholesky(M).T) for M in (Q, R, P))
    return OptimalControlProblem(
        "linear", lambda x, u, t: jnp.asarray(A) @ x + jnp.asarray(B) @ u, 10, np.array([1.0, -0.5]), u0=np.zeros((10, 1)), dt=DT,
        stage_residual=lambda x, u, t: jnp.concatenate([Lq @ x, Lr @ u]), terminal_residual=lambda x: Lp @ x,
    ), -np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)  # fmt: skip


@functools.cache
def cart_pole(dt=DT):
    """By midpoint steps, which plans without contact take: plans are motions of it to rounding."""
    return System(load_model("cart-pole"), dt, dynamics.NoContact(), integrator="moreau")


@functools.cache
def reach():
    stage = sum([r.Control(weight=0.03), r.Velocity(weight=0.1)])
    final = r.Posture(reference=[0.3, 0.0], weight=5.0)
    return OptimalControlProblem(
        "reach", cart_pole(), 12, State([0.0, 0.1], np.zeros(2)), stage_residual=stage, terminal_residual=final
    )


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_with_the_cost_to_go_of_the_infinite_horizon_it_is_the_lqr(noise):
    problem, K = lq_problem()
    found = control.RecedingHorizon(problem, solvers.iLQR(), LinearPlant(noise), DT).run(2.0)
    # One iteration solves a linear-quadratic problem; rounding of a pass of ten steps.
    np.testing.assert_allclose(found.us, found.xs[:-1] @ K.T, atol=1e-11)
    P = scipy.linalg.solve_discrete_are(A, B, Q, R)
    value = 0.5 * np.einsum("ti,ij,tj->t", found.xs[:-1], P, found.xs[:-1])
    np.testing.assert_allclose(found.cost, value, rtol=1e-10)


def test_between_solves_the_feedback_of_the_plan_acts():
    """One solve in five ticks: the gains of the plan are those of the LQR, so that nothing is lost, whatever disturbs."""
    problem, K = lq_problem()
    found = control.RecedingHorizon(problem, solvers.iLQR(), LinearPlant(0.3), 5 * DT).run(2.0)
    assert len(found.solve_time) == 8
    np.testing.assert_allclose(found.us, found.xs[:-1] @ K.T, atol=1e-11)


def test_a_late_plan_acts_late_and_loses_nothing_where_the_model_is_right():
    problem, K = lq_problem()
    horizon = control.RecedingHorizon(problem, solvers.iLQR(), LinearPlant(), 2 * DT, delay=DT)
    np.testing.assert_allclose((found := horizon.run(2.0)).us, found.xs[:-1] @ K.T, atol=1e-11)


@pytest.mark.parametrize("delay", [DT / 2, DT, 2 * DT])
def test_a_plan_begins_where_the_plant_is_when_it_acts(delay):
    """The plant steps as the prediction does, by a quarter of the problem's steps: the prediction is exact."""
    horizon = control.RecedingHorizon(reach(), solvers.iLQR(), cart_pole(DT / 4), DT, delay=delay, max_iterations=1)
    start = np.array([0.1, -0.2, 0.3, 0.1])
    horizon.plant.reset(start)
    drive = Drive(horizon, horizon.controller.first_plan(np.asarray(reach().x0)))  # of another state: the plant departs from it
    horizon.plant.reset(start)
    plans = {}
    while drive.time < 8 * DT:
        plans[drive.plans.newest.begun] = np.asarray(drive.plans.newest.plan.xs[0])
        drive.tick()
    begun = [t for t in plans if DT < t <= drive.time]
    assert len(begun) >= 5
    for t in begun:
        np.testing.assert_allclose(plans[t], drive.xs[round(t / horizon.plant.dt)], atol=1e-9)


def test_undisturbed_the_plant_follows_the_open_loop_solution():
    problem = reach()
    horizon = control.RecedingHorizon(problem, solvers.iLQR(), cart_pole(), problem.horizon * DT, max_iterations=1)
    found = horizon.run(problem.horizon * DT)
    # One solve, at the start, after those of the first plan: the iterations of the solver itself.
    expected = solvers.solve(problem, PLAIN, max_iterations=found.first_iterations + 1)
    np.testing.assert_allclose(found.us, expected.us, atol=1e-9)
    np.testing.assert_allclose(found.xs, expected.xs, atol=1e-9)
    np.testing.assert_allclose(found.cost, expected.cost, rtol=1e-12)


def test_iterations_are_those_of_the_solver():
    problem = reach()
    for count in (1, 3):
        controller = control.Controller(problem, solvers.iLQR(), DT)
        found, done, _ = controller.solve(problem.x0, 0.0, 0.0, controller.planner.first(), 1)
        for _ in range(count - 1):
            found, done, _ = controller.solve(problem.x0, 0.0, 0.0, found.plan, 1)
        assert done == 1
        expected = solvers.solve(problem, PLAIN, max_iterations=count)
        np.testing.assert_allclose(found.plan.us, expected.us, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.plan.gains, expected.gains, atol=1e-8)


def test_damped_gains_are_those_of_dearer_controls_and_the_motion_is_the_same():
    problem, _ = lq_problem()
    controllers = [control.Controller(problem, solvers.iLQR(gain_damping=mu), DT) for mu in (0.0, 0.7)]
    plain, damped = (one.solve(problem.x0, 0.0, 0.0, one.planner.first(), 1)[0].plan for one in controllers)
    np.testing.assert_array_equal(damped.us, plain.us)
    P = scipy.linalg.solve_discrete_are(A, B, Q, R)
    for plan, mu in ((plain, 0.0), (damped, 0.7)):  # of the last step, behind which lies the terminal cost alone
        np.testing.assert_allclose(plan.gains[-1], -np.linalg.solve(R + mu + B.T @ P @ B, B.T @ P @ A), rtol=1e-9)


def test_a_shift_by_whole_knots_is_that_of_the_guesses_and_half_of_one_is_between():
    problem = reach()
    shift = control.Controller(problem, solvers.iLQR(), DT).planner.replanning.shifted
    solution = solvers.solve(problem, solvers.iLQR())
    plan = Plan(jnp.asarray(solution.xs), jnp.asarray(solution.us), jnp.asarray(solution.gains))
    whole, expected = shift(plan, 2.0), guesses.shifted(solution, 2)
    np.testing.assert_array_equal(whole.us, expected.us)
    np.testing.assert_array_equal(whole.xs, expected.xs)
    half = shift(plan, 0.5)
    np.testing.assert_allclose(half.us[:-1], (plan.us[:-1] + plan.us[1:]) / 2)
    between = np.array((plan.xs[:-1] + plan.xs[1:]) / 2)
    between[:, :2] -= DT / 8 * np.diff(plan.xs[:, 2:], axis=0)  # velocities change evenly, places follow them
    np.testing.assert_allclose(half.xs[:-1], between, atol=1e-12)


def test_nothing_is_compiled_after_the_first_solve_whatever_is_measured():
    problem = reach()
    pushes = [control.Push("pole", (1.0, 0.0, 0.0), 0.1)]
    horizon = control.RecedingHorizon(problem, solvers.iLQR(), cart_pole(0.025), DT)
    horizon.run(0.2, pushes=pushes)
    with compilations() as count:
        found = horizon.run(0.5, x0=[0.1, -0.2, 0.3, 0.1], pushes=pushes)
        again = control.RecedingHorizon(
            problem.replace(references={"posture": [0.0, 0.1]}), solvers.iLQR(), cart_pole(0.025), DT
        ).run(0.2)
    assert count.programs == 0, count.names
    assert found.compile_time_s == 0 and again.compile_time_s == 0
    assert found.accepted.any() and np.isfinite(found.xs).all()


def test_costs_know_the_time_of_the_whole_motion():
    """A reference over the steps of the whole motion: what is planned is where it is when its time comes."""
    times = DT * np.arange(60)
    reference = np.stack([0.2 * np.sin(2 * times), np.zeros(60)], 1)
    stage = sum([r.Control(weight=1e-3), r.Posture(reference=reference, weight=[10.0, 1.0]), r.Velocity(weight=1e-2)])
    problem = OptimalControlProblem("follow", cart_pole(), 12, State(np.zeros(2), np.zeros(2)), stage_residual=stage)
    found = control.RecedingHorizon(problem, solvers.iLQR(), cart_pole(), DT).run(2.0)
    np.testing.assert_allclose(found.xs[10:, 0], reference[10:41, 0], atol=0.03)


def test_another_start_time_is_another_argument_and_is_checked():
    problem = reach()
    later = problem.replace(start_time=1.5)
    np.testing.assert_allclose(later.times, problem.times + 1.5)
    assert jax.tree.structure(later) == jax.tree.structure(problem)
    with pytest.raises(OptionError, match="start_time is nan; expected a number of seconds"):
        problem.replace(start_time=float("nan"))


def test_a_recording_is_summed_up_saved_and_drawn(tmp_path):
    found = control.RecedingHorizon(lq_problem()[0], solvers.iLQR(), LinearPlant(0.3), DT).run(1.0)
    summary = found.summary()
    assert summary["solves"] == 20 and summary["latency_99"] <= summary["latency_largest"]
    assert summary["late_share"] == np.mean(found.latency > DT)
    found.save(tmp_path / "run.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "run.npz")["xs"], found.xs)
    late = dataclasses.replace(found, latency=np.where(found.solve_time < 0.5, 1.0, 0.0), accepted=found.solve_time < 0.7)
    drawn = plot_recording(late, tmp_path / "run.png")
    latency, cost, _ = drawn.axes
    assert [len(line.get_xdata()) for line in latency.lines[:2]] == [20, 10]
    assert len(cost.lines[2].get_xdata()) == np.sum(found.solve_time >= 0.7)
    assert (tmp_path / "run.png").stat().st_size > 1000


def test_pushes_are_the_same_forces_in_both_plants():
    """One short step from rest: dv = dt M^-1 J^T f in both, to the order of the step."""
    tick, start, pushes = 1e-4, np.array([0.1, 0.4, 0.0, 0.0]), {"pole": np.array([3.0, 0.0, 1.0])}
    plants = [
        control.SystemPlant(dataclasses.replace(cart_pole(tick), integrator="semi-implicit")),  # as MuJoCo
        control.MujocoPlant.from_file(models.bundled_file("cart-pole"), tick),
    ]
    found = []
    for plant in plants:
        assert "pole" in plant.bodies
        plant.reset(start)
        plant.step(np.zeros(1), pushes)
        found.append(plant.state)
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)
    plants[0].reset(start)
    plants[0].step(np.zeros(1), {})
    assert np.abs(plants[0].state - found[0])[2:].max() > 1e-5


def test_while_measurements_are_not_finite_the_last_plan_goes_on_to_its_end():
    class Broken(LinearPlant):
        def step(self, u, forces):
            assert np.isfinite(u).all()
            self.state = np.full(2, np.nan)

    run = control.RecedingHorizon(lq_problem()[0], solvers.iLQR(), Broken(), DT).run
    with pytest.warns(UserWarning, match="linear plant: the measured state is not finite at 0.05 s; the last plan goes on"):
        assert len(run(10 * DT).us) == 10
    with (
        pytest.warns(UserWarning, match="not finite at 0.05 s"),
        pytest.raises(NonFiniteError, match="linear plant: no measured state is finite from 0.05 s on"),
    ):
        run(1.0)


def horizon(problem=None, solver=None, plant=None, period=DT, **options):
    return control.RecedingHorizon(
        problem or reach(), solvers.iLQR() if solver is None else solver, plant or cart_pole(), period, **options
    )


@pytest.mark.parametrize(("make", "error", "words"), [
    (lambda: horizon(period=0.07), OptionError, "period is 0.07 s, which is not a multiple of 0.05 s.*use 0.05 s"),
    (lambda: horizon(period=0.0), OptionError, "period is 0.0 s"),
    (lambda: horizon(period=float("nan")), OptionError, "period is nan"),
    (lambda: horizon(delay=0.01), OptionError, "delay is 0.01 s, which is not a multiple"),
    (lambda: horizon(delay="soon"), OptionError, "delay is 'soon'; expected seconds or 'measured'"),
    (lambda: horizon(solver=solvers.MultipleShooting()), OptionError, "solver MultipleShooting cannot go on.*use solvers.iLQR"),
    (lambda: horizon(solver=solvers.iLQR), OptionError, "solver iLQR cannot go on"),
    (lambda: horizon(solver=solvers.iLQR(shooting="multiple")), OptionError, "shooting='single'"),
    (lambda: horizon(plant="mujoco"), OptionError, "plant is 'mujoco'; expected a System"),
    (lambda: horizon(plant=LinearPlant()), ShapeError, "states of 4 numbers, linear plant of 2; load the same model"),
    (lambda: horizon(max_iterations=0), OptionError, "max_iterations is 0"),
    (lambda: horizon(time_budget=-1.0), OptionError, "time_budget is -1.0"),
    (lambda: horizon().run(1.0, x0=np.zeros(3)), ShapeError, r"x0 has shape \(3,\); expected \(4,\)"),
    (lambda: horizon().run(1.0, x0=np.full(4, np.nan)), NonFiniteError, "x0 has non-finite"),
    (lambda: horizon().run(1.0, pushes=[control.Push("poel", (1, 0, 0))]), UnknownNameError, "no body 'poel'.*pole"),
    (lambda: control.Push("pole", (1, 0)), ShapeError, r"force has shape \(2,\)"),
    (lambda: control.Push("pole", (1, 0, 0), duration=0.0), OptionError, "duration 0.0"),
    (lambda: control.MujocoPlant("go1"), OptionError, "model is str; expected a mujoco.MjModel"),
])  # fmt: skip
def test_what_is_wrong_is_named_before_anything_compiles(make, error, words):
    horizon()  # the array operations of stating a problem are programs of their own
    with compilations() as count, pytest.raises(error, match=words):
        make()
    assert count.programs == 0, count.names
