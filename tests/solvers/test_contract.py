"""What every solver must do, whatever its algorithm."""

import dataclasses
import functools
import inspect
import os
import pathlib
import signal
import sys
import time
import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from least_squares_cases import affine, decay, linear, rosenbrock
from processes import python

from trajopt import solvers
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.problems import Certificate, Display, LeastSquaresProblem
from trajopt.result import Status, status_message, status_name, status_named, status_names
from trajopt.solvers.loop import base
from trajopt.solvers.loop.contract import LibrarySolver
from trajopt.solvers.loop.solution import Solution

# Every registered solver of least squares, and one with another optimiser inside.
ALL = {name: functools.partial(solvers.get, name) for name in solvers.names(LeastSquaresProblem)}
ALL["adam"] = functools.partial(solvers.GradientDescent, optax.adam(0.05))
each_solver = pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())


def forbidden(*arguments):
    raise AssertionError("compiled")


def test_every_status_has_a_name():
    """The name under which a file keeps a status leads back to it, and its message begins with what it says."""
    assert len(status_names()) == len(Status) == 11
    for name in status_names():
        assert status_name(status_named(name)) == name
        assert status_message(status_named(name)) == Status[status_named(name)]
    with pytest.raises(UnknownNameError, match="there is no status 'solvd'.*solved"):
        status_named("solvd")


@each_solver
@pytest.mark.parametrize("gradient", ["implicit", "finite-difference", "ridders"])
def test_solves_a_well_conditioned_problem_in_every_gradient_mode(make, gradient):
    problem, A, b = linear(tolerance=None)
    solution = solvers.solve(problem, make(tolerance=1e-6, max_iterations=3000), gradient=gradient)
    exact = np.linalg.lstsq(A, b, rcond=None)[0]
    assert solution.success and status_name(solution.status) == "solved"
    # A removable residual of 1e-6 max(|r|, 1) leaves an error of that over the smallest singular value of A.
    error = 1e-6 * max(np.linalg.norm(b), 1.0) / np.linalg.svd(A)[1].min()
    assert np.linalg.norm(solution.x - exact) < 1.1 * error
    assert solution.residuals["removable_residual"] <= 1e-6 * max(solution.residuals["residual_norm"], 1.0)


@each_solver
def test_the_solution_reports_recomputed_quantities(make):
    affine.cache_clear()  # of a new function nothing is compiled yet
    problem, A, b = linear()
    solution = solvers.solve(problem, make(max_iterations=3))
    r = A @ solution.x - b
    assert solution.residuals["residual"] == pytest.approx(np.abs(r).max(), rel=1e-12)
    assert solution.residuals["gradient_norm"] == pytest.approx(np.abs(A.T @ r).max(), rel=1e-6, abs=1e-9)
    assert solution.cost == pytest.approx(0.5 * r @ r, rel=1e-12)
    assert solution.initial_cost == pytest.approx(0.5 * b @ b, rel=1e-12)
    assert solution.compile_time_s > 0 and solution.wall_time_s > 0


@each_solver
def test_the_trace_has_a_row_for_every_iteration(make):
    solution = solvers.solve(rosenbrock(), make(max_iterations=4))
    trace = solution.trace
    assert {len(values) for values in trace.values()} == {solution.iterations + 1}
    assert trace["iteration"].tolist() == list(range(solution.iterations + 1))
    assert trace["cost"][0] == solution.initial_cost
    assert np.all(np.diff(trace["evaluations"]) > 0) and np.all(np.diff(trace["time"]) >= 0)
    assert trace["evaluations"][-1] == solution.evaluations
    assert solution.cost == trace["cost"].min()


@each_solver
def test_iteration_limit(make):
    solution = solvers.solve(rosenbrock(), make(), max_iterations=2)
    assert (status_name(solution.status), solution.iterations, solution.success) == ("max_iterations", 2, False)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"max_iterations": "many"}, "max_iterations is 'many'; expected a whole number or None"),
        ({"max_iterations": 2.5}, "max_iterations is 2.5; expected a whole number or None"),
        ({"seed": "x"}, "seed is 'x'; expected a whole number"),
        ({"seed": True}, "seed is True; expected a whole number"),
        ({"time_budget": "soon"}, "time_budget is 'soon'; expected a number or None"),
        ({"callback": 3}, "callback is 3; expected a function of a row of the trace, or None"),
    ],
)
def test_arguments_of_another_kind_are_named(option, expected, monkeypatch):
    problem = rosenbrock()
    monkeypatch.setattr(LeastSquaresProblem, "compile", forbidden)
    unchecked = inspect.unwrap(solvers.solve)  # as users call it, without the suite's checks of annotations
    monkeypatch.setattr(base, "solve", inspect.unwrap(base.solve))
    with pytest.raises(OptionError, match=expected):
        unchecked(problem, solvers.GaussNewton(), **option)


@pytest.mark.parametrize("name", solvers.names())
def test_options_of_another_kind_are_named(name):
    """Every option that is a number or a string, of every registered solver."""
    checked, hints = 0, typing.get_type_hints(type(solvers.get(name)))
    for field in dataclasses.fields(solvers.get(name)):
        for kind, wrong in ((int, "many"), (int, 1.5), (float, "small"), (float, True), (str, 7), (bool, 1)):
            if hints[field.name] in (kind, kind | None):
                checked += 1
                with pytest.raises(OptionError, match=f"{name}: {field.name} is {wrong!r}; expected"):
                    solvers.get(name, **{field.name: wrong})
    assert checked >= 4


@each_solver
def test_time_budget(make):
    solution = solvers.solve(rosenbrock(), make(), time_budget=0.0)
    assert (status_name(solution.status), solution.iterations) == ("time_budget", 0)
    with pytest.raises(OptionError, match="time_budget is -1"):
        solvers.solve(rosenbrock(), make(), time_budget=-1)


@each_solver
def test_success_needs_the_problems_own_tolerance(make):
    """A stationary point whose residual is above the problem's tolerance is not a success."""
    problem = LeastSquaresProblem("offset", lambda x: jnp.stack([x[0], 1 + 0 * x[0]]), np.array([1.0]), tolerance=1e-3)
    solution = solvers.solve(problem, make(max_iterations=400))
    assert not solution.success and status_name(solution.status) in ("stalled", "max_iterations")
    assert "residual is 1, allowed 0.001" in solution.message


@each_solver
def test_success_needs_the_certificate(make):
    options = {"certificate": Certificate(lambda x: {"cone": 1.5}, {"cone": 1.0})}
    problem = linear(m=3, n=3, tolerance=1e-4, **options)[0]
    solution = solvers.solve(problem, make(max_iterations=5000))
    assert solution.residuals["residual"] <= 1e-4
    assert not solution.success and "cone is 1.5, allowed 1" in solution.message


@each_solver
def test_non_finite_values_name_the_iteration_and_the_entry(make):
    problem = LeastSquaresProblem("log", lambda x: jnp.concatenate([x, jnp.log(x)]), np.array([-1.0]))
    solution = solvers.solve(problem, make())
    assert status_name(solution.status) == "non_finite" and not solution.success
    assert "iteration 0" in solution.message and "residual[1]" in solution.message


@each_solver
@pytest.mark.parametrize(
    ("x0", "error", "match"),
    [
        (np.zeros(3), ShapeError, r"x0 has shape \(3,\); expected \(2,\)"),
        (np.array([0.0, np.nan]), NonFiniteError, r"x0\[1\] is nan"),
        (np.array([0.0, 9.0]), OptionError, r"x0\[1\] = 9.0 is outside its bounds \[-5.0, 5.0\]"),
    ],
)
def test_a_bad_initial_guess_is_refused_before_compiling(make, x0, error, match, monkeypatch):
    problem = rosenbrock(lower=-5.0, upper=5.0)
    monkeypatch.setattr(LeastSquaresProblem, "compile", forbidden)
    with pytest.raises(error, match=match):
        solvers.solve(problem, make(), x0=x0)


def test_unknown_names_are_answered_with_the_closest():
    with pytest.raises(UnknownNameError, match="GaussNewton"):
        solvers.get("GausNewton")
    with pytest.raises(UnknownNameError, match="max_iterations"):
        solvers.get("GaussNewton", max_iteration=3)
    with pytest.raises(UnknownNameError, match="finite-difference"):
        solvers.solve(rosenbrock(), solvers.GaussNewton(), gradient="finite-differences")
    assert solvers.get("gauss-newton", max_iterations=3) == solvers.GaussNewton(max_iterations=3)


@each_solver
def test_bounds_are_kept_and_an_active_one_is_found(make):
    problem, A, b = linear(lower=-0.2, upper=np.inf)
    tried = []

    def residual(x):
        jax.debug.callback(lambda value: tried.append(np.array(value)), x)
        return problem.residual(x)

    watched = LeastSquaresProblem("watched", residual, problem.x0, lower=-0.2, upper=np.inf)
    solution = solvers.solve(watched, make(tolerance=1e-6, max_iterations=3000))
    exact = scipy.optimize.lsq_linear(A, b, bounds=(-0.2, np.inf), tol=1e-14).x
    assert (exact < -0.2 + 1e-9).any() and (exact > -0.19).any()
    assert solution.success
    np.testing.assert_allclose(solution.x, exact, atol=3e-6)
    assert np.min(tried) >= -0.2


@each_solver
def test_float32(make):
    problem = LeastSquaresProblem("one", lambda x: x * x - x.dtype.type(2), np.array([1.0], np.float32))
    solution = solvers.solve(problem, make(max_iterations=2000))
    assert solution.x.dtype == np.float32
    assert solution.success and solution.x[0] == pytest.approx(np.sqrt(2), rel=1e-5)


@each_solver
def test_runs_are_deterministic(make):
    first, second = (solvers.solve(decay()[0], make(max_iterations=6), seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.x, second.x)
    for key in ("cost", "step_size", "gradient_norm", "evaluations"):
        np.testing.assert_array_equal(first.trace[key], second.trace[key])


@each_solver
def test_the_callback_sees_every_iteration_and_may_stop(make):
    rows = []
    solution = solvers.solve(rosenbrock(), make(), callback=lambda row: rows.append(row) or row["iteration"] == 3)
    assert status_name(solution.status) == "interrupted" and solution.iterations == 3
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    assert rows[-1]["cost"] == solution.trace["cost"][-1]


def interrupt_at(iteration):
    def callback(row):
        if row["iteration"] == iteration:
            raise KeyboardInterrupt

    return callback


@each_solver
def test_an_interrupted_run_resumes_as_if_it_had_not_been(make, tmp_path):
    whole = solvers.solve(rosenbrock(), make(), max_iterations=9)
    path = tmp_path / "checkpoint.npz"
    part = solvers.solve(rosenbrock(), make(), callback=interrupt_at(4), checkpoint=path)
    assert status_name(part.status) == "interrupted" and part.iterations == 4
    rest = solvers.solve(rosenbrock(), make(), resume=path, max_iterations=5)
    assert rest.iterations == 9 and rest.initial_cost == whole.initial_cost
    np.testing.assert_array_equal(rest.trace["cost"][:5], whole.trace["cost"][:5])
    if isinstance(make(), LibrarySolver):  # a library's memory is no part of the state: it starts anew from the point
        assert rest.cost < part.cost
        return
    np.testing.assert_array_equal(rest.x, whole.x)
    np.testing.assert_array_equal(rest.trace["cost"], whole.trace["cost"])
    # Initialising again costs evaluations that are not counted: the numbers go on from the checkpoint.
    assert rest.evaluations == whole.evaluations


@each_solver
def test_the_best_point_survives_a_worse_one(make, tmp_path):
    path = tmp_path / "checkpoint.npz"
    part = solvers.solve(rosenbrock(), make(), callback=interrupt_at(3), checkpoint=path)
    resumed = solvers.solve(rosenbrock(), make(), resume=path, max_iterations=0)
    np.testing.assert_array_equal(resumed.x, part.x)
    assert part.cost == part.trace["cost"].min()


def test_resuming_something_else_is_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    solver = solvers.GaussNewton()
    with pytest.raises(OptionError, match="there is no checkpoint"):
        solvers.solve(rosenbrock(), solver, resume=path)
    solvers.solve(rosenbrock(), solver, max_iterations=1, checkpoint=path)
    with pytest.raises(OptionError, match="made with solver 'GaussNewton', not 'GradientDescent'"):
        solvers.solve(rosenbrock(), solvers.GradientDescent(), resume=path)
    larger = LeastSquaresProblem("rosenbrock", lambda x: x, np.zeros(3))
    with pytest.raises(OptionError, match="other problem settings"):
        solvers.solve(larger, solver, resume=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(OptionError, match="is not a checkpoint"):
        solvers.solve(rosenbrock(), solver, resume=path)


ENDLESS = """
import sys, jax
jax.config.update("jax_enable_x64", True)
sys.path.insert(0, sys.argv[2])
from least_squares_cases import rosenbrock
from trajopt import solvers
solution = solvers.solve(rosenbrock(), solvers.GradientDescent(learning_rate=1e-9, max_iterations=10**9),
    checkpoint=sys.argv[1], callback=lambda row: print("running", flush=True) if row["iteration"] == 5 else None)
print(solution.message, solution.iterations)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_python_drops_ends_the_run(number, monkeypatch):
    """Dropped in a finaliser, of which nothing is told, since the run heard of it."""
    dropped, told = [], []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Dropping:
        def __del__(self):
            try:
                signal.raise_signal(number)
                time.sleep(1)
            except KeyboardInterrupt:
                dropped.append(number)
                raise

    def interrupt(row):
        if row["iteration"] == 4:
            Dropping()

    before = signal.signal(number, signal.default_int_handler)
    try:
        solver = solvers.GradientDescent(learning_rate=1e-9, max_iterations=100)
        solution = solvers.solve(rosenbrock(), solver, callback=interrupt)
        assert dropped and signal.getsignal(number) is signal.default_int_handler and not told
    finally:
        signal.signal(number, before)
    assert status_name(solution.status) == "interrupted" and solution.iterations == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_process_leaves_a_checkpoint(number, tmp_path):
    path = tmp_path / "checkpoint.npz"
    with python(ENDLESS, str(path), str(pathlib.Path(__file__).parent)) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == "running"
        time.sleep(1.2)
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert out.startswith("interrupted by the user")
        assert not err
    with np.load(path) as data:
        assert data["progress_iteration"] > 5
    solver = solvers.GradientDescent(learning_rate=1e-9)
    resumed = solvers.solve(rosenbrock(), solver, resume=path, max_iterations=1)
    assert resumed.iterations > 6 and resumed.cost < resumed.initial_cost


def test_a_solution_is_saved_and_loaded(tmp_path):
    motion = {"t": np.arange(2.0), "q": np.ones((2, 3)), "v": np.zeros((2, 2)), "u": np.ones((1, 1))}
    problem = rosenbrock(tolerance=1e-8, display=Display(motion=lambda x: motion), meta={"contact": "RigidContact"})
    solution = solvers.solve(problem, solvers.GaussNewton(), seed=7)
    assert solution.xs.shape == (2, 5) and solution.us.shape == (1, 1)
    solution.save(tmp_path / "run")
    loaded = Solution.load(tmp_path / "run")
    assert loaded.summary() == solution.summary()
    assert loaded.summary()["contact"] == "RigidContact" and loaded.seed == 7
    for key in ("x", "xs", "us", "covariance"):
        np.testing.assert_array_equal(getattr(loaded, key), getattr(solution, key))
    np.testing.assert_array_equal(loaded.trajectory["q"], motion["q"])
    np.testing.assert_array_equal(loaded.trace["cost"], solution.trace["cost"])
    with pytest.raises(OptionError, match="holds no finished run"):
        Solution.load(tmp_path / "elsewhere")
