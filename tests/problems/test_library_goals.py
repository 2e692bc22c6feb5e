"""Every problem of the library states what a person would look at, and success is that this is met."""

import dataclasses
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.errors import OptionError
from trajopt.problems import Certificate, LeastSquaresProblem
from trajopt.problems.goals import GoalReport, Judged, goal_values, goals_in_words, reports_of, worst_goal
from trajopt.result import Status
from trajopt.solvers.loop.contract import verdict
from trajopt.solvers.sweeps.comparison import compare

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import goals_in_numpy

QUICK = ("spinner", "push-box", "cartpole-swingup", "falling-mass")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in problems.names() if name not in QUICK]


@pytest.mark.parametrize("name", problems.names())
def test_every_problem_of_the_library_states_goals(name):
    """Goals of motions, or values of the certificate; where nothing is known, none is met, and the worst is beyond all bounds."""
    reports = reports_of(problems.get(name), {})
    assert reports and not any(report.met for report in reports.values())
    assert worst_goal(reports) == float("inf") and goals_in_words(reports).startswith("not met, ")
    assert all(report.unit or "estimate" in key or "hops" in key for key, report in reports.items())


def test_the_worst_goal_is_told_in_units_of_its_tolerance():
    reports = {"near": GoalReport(0.03, 0.01, "m", False), "there": GoalReport(0.05, 0.1, "rad", True)}
    assert worst_goal(reports) == pytest.approx(3.0) and goals_in_words(reports) == "not met, near at 3 of its tolerance"
    assert goals_in_words({"there": reports["there"]}) == "met, there at 0.5 of its tolerance"
    assert GoalReport(0.0, 0.0, "", True).share == 0.0 and GoalReport(1.0, 0.0, "", False).share == float("inf")
    assert goals_in_words({}) == "" and worst_goal({}) != worst_goal({})


def test_a_goal_of_a_certificate_is_one_of_its_bounded_values():
    problem = problems.get("falling-mass")
    found = solvers.solve(problem)
    assert found.success and found.goals_met and found.goals["height error"].tolerance == 1e-3
    summary, worst = found.summary(), found.residuals["height_error"] / 1e-3
    assert summary["goals_met"] and summary["worst_goal"] == found.worst_goal == pytest.approx(worst)
    row, missed = (compare(problem, solvers.GaussNewton(), max_iterations=n).rows()[0] for n in (50, 0))
    assert row["goals"] == "met" and row["success"] and missed["goals"] == "not met" and not missed["success"]
    assert missed["worst_goal"] == pytest.approx(500.0)  # it lies on the ground, 0.5 m too low
    with pytest.raises(OptionError, match="certificate.goals names 'speed', which certificate.tolerances does not bound"):
        type(problem)("fall", lambda x: x, problem.x0, certificate=Certificate(goals={"speed": "m/s"}))


@pytest.mark.parametrize("leg, missed", [((0.0, 0.0, 0.0), []), ((0.3, -0.6, 0.3), ["foot"])])
def test_a_hopper_with_its_foot_above_the_step_does_not_stand_on_it(leg, missed):
    problem = problems.get("hopper-step")
    q = np.asarray(problem.system.model.keyframes["home"]) + [0.75, 0.1, 0.0, *leg]
    ends = np.tile(np.concatenate([q, np.zeros(6)]), (problem.horizon + 1, 1))
    motion = dataclasses.replace(problem.initial_point, xs=jnp.asarray(ends))
    values = goal_values(Judged(problem, problem.goals), motion)
    assert [name for name, goal in problem.goals.items() if values[name] > goal.tolerance] == missed


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_neither_doing_nothing_nor_random_controls_are_called_a_success(name):
    """Whatever a solver claims: no controls, the guess, five draws; goals once more in NumPy."""
    problem, generator = problems.get(name), np.random.default_rng(0)
    oracle = problem.compile()
    if isinstance(problem, LeastSquaresProblem):
        points = [np.asarray(problem.x0) + scale * generator.normal(size=problem.dimension) * (problem.integrate is None)
                  for scale in (0.0, 0.1, 0.1, 0.1, 0.1, 0.1)]  # fmt: skip
        expected = [False] * len(points)
    else:
        low, high = (np.where(np.isfinite(b), b, s) for b, s in ((problem.control_lower, -1.0), (problem.control_upper, 1.0)))
        draws = [generator.uniform(low, high, problem.u0.shape) for _ in range(5)]
        start = problem.initial_point
        points = [oracle.rollout(start.xs[0], us, start.p) for us in (np.zeros_like(problem.u0), problem.u0, *draws)]
        expected = [None] * len(points)
    for point, good in zip(points, expected, strict=True):
        values = oracle.residuals(point)
        if good is None:
            apart = goals_in_numpy.values_of(problem, point.us) if name in goals_in_numpy.GOALS else {}
            good = goals_in_numpy.met(problem, apart, values) and not goals_in_numpy.broken(problem, values)
        for claimed in (Status.solved, Status.stalled, Status.time_budget):
            assert verdict(problem, claimed, oracle.shortfalls(values), 0.0)[1] == good
        assert not good or point is points[1]  # a guess may be a good motion, nothing else is


@pytest.mark.slow
@pytest.mark.parametrize("name, away", [
    ("spinner", lambda q: [abs(q[2] - 2.0) / 0.1]),
    ("cartpole-swingup", lambda q: [abs(q[0] - 1.0) / 0.01, abs(q[1] - np.pi) / 0.02]),
])  # fmt: skip
def test_in_a_comparison_the_motions_that_meet_the_goals_are_the_successes_and_no_others(name, away):
    """Gradients and draws, stopped early or not; places by a rollout of the system apart from problem and solvers."""
    problem = problems.get(name)
    methods = [
        solvers.iLQR(), solvers.DDP(), solvers.SingleShooting(), solvers.MultipleShooting(), solvers.CEM(), solvers.MPPI(),
        solvers.CMAES(), solvers.StochasticSearch(), solvers.Hybrid(generations=5),
    ]  # fmt: skip
    runs = [*compare(problem, methods, max_iterations=3).outcomes, *compare(problem, methods, time_budget=10.0).outcomes]
    successes = []
    for outcome in runs:
        found = outcome.solution
        states, _ = problem.system.rollout(problem.as_state(jnp.asarray(problem.x0)), jnp.asarray(found.us))
        reached = max(away(np.asarray(states.q[-1]))) <= 1 and found.violation <= problem.tolerance
        if name == "cartpole-swingup":
            reached &= bool(np.abs(np.asarray(states.v[-1])).max() <= 0.1)
        assert found.success == reached == (found.goals_met and found.violation <= problem.tolerance), outcome
        successes.append(found.success)
    assert any(successes) and not all(successes)
