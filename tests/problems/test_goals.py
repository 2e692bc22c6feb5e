"""Goals of a task: recomputed from one rollout of the controls, they decide on success."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations

from trajopt import load_model, solvers
from trajopt.dynamics import NoContact, System
from trajopt.dynamics.rigid_body.kinematics import frame_placement
from trajopt.errors import OptionError, ShapeError, UnknownNameError
from trajopt.problems import Goal, OptimalControlProblem, Trajectory, periodic
from trajopt.problems import residuals as r
from trajopt.problems.residuals.frames import reach
from trajopt.result import status_name
from trajopt.solvers.loop.solution import Solution

T = 10


def pushed_mass(x, u, t):
    return jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * u[0]])


def little_force(x, u, t):
    return 0.1 * u


def off(x):
    return x[:1] - 1.0


def weighed(weight, x):
    return weight * (x - jnp.array([1.0, 0.0]))


def push(tolerance=0.01, weight=100.0, at="end", **changes):
    """A mass that is pushed to x = 1: the heavier the weight of its place, the nearer it comes."""
    fields = {
        "u0": np.zeros(1), "dt": 0.1, "stage_residual": little_force,
        "terminal_residual": jax.tree_util.Partial(weighed, weight), "goals": {"place": Goal(off, tolerance, "m", at)},
    }  # fmt: skip
    return OptimalControlProblem("push", pushed_mass, T, np.zeros(2), **fields | changes)


@functools.lru_cache
def cart_pole():
    system = System(load_model("cart-pole"), 0.05, NoContact())
    return system, system.initial_state()


def arm(**changes):
    return OptimalControlProblem(
        "arm", cart_pole()[0], T, cart_pole()[1], stage_residual=r.Control(weight=1e-2), **changes,
    )  # fmt: skip


def test_goals_decide_on_success_and_the_status_says_how_the_solver_stopped():
    reached = solvers.solve(push(), solvers.iLQR())
    assert reached.success and status_name(reached.status) == "solved"
    value, tolerance, unit, met = reached.goals["place"]
    assert value == abs(reached.xs[-1, 0] - 1.0) and (tolerance, unit, met) == (0.01, "m", True)
    for never in (solvers.iLQR(), solvers.SingleShooting()):  # optimal, and not what the task is about
        missed = solvers.solve(push(weight=0.01), never)
        assert not missed.success and status_name(missed.status) == "solved"
        assert not missed.goals["place"].met and "goal place is 1 m, allowed 0.01 m" in missed.message
    curved = {"stage_cost": lambda x, u, t: 1e-4 * u[0] ** 4}
    early = solvers.solve(push(**curved), solvers.iLQR(), max_iterations=1)  # not stationary yet, and there
    assert early.success and status_name(early.status) == "max_iterations"
    assert not solvers.solve(push(**curved, goals={}), solvers.iLQR(), max_iterations=1).success
    broken = solvers.solve(push(terminal_inequality=lambda x: 0.5 - x[:1], tolerance=1.0), solvers.iLQR(), max_iterations=0)
    assert broken.goals["place"].met and not broken.success  # constraints count as well


SOLVERS = {
    "iLQR": solvers.iLQR(), "DDP": solvers.DDP(), "multiple": solvers.iLQR(shooting="multiple"),
    "MultipleShooting": solvers.MultipleShooting(), "SingleShooting": solvers.SingleShooting(),
    "GaussNewton": solvers.GaussNewton(), "CEM": solvers.CEM(), "MPPI": solvers.MPPI(), "CMAES": solvers.CMAES(),
    "StochasticSearch": solvers.StochasticSearch(), "Hybrid": solvers.Hybrid(generations=3), "none": None,
}  # fmt: skip


def pushed(us):
    """How far from x = 1 the mass ends."""
    x, v = 0.0, 0.0
    for u in us:
        x, v = x + 0.1 * v, v + 0.1 * u[0]
    return abs(x - 1.0)


@functools.lru_cache
def within_limits(weight):
    """The least effort of a light weight ends elsewhere, for every solver."""
    return push(weight=weight, tolerance=0.05, control_lower=-30.0, control_upper=30.0)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_motion_is_a_success_if_and_only_if_it_meets_the_goals(name):
    """Whatever made the solver stop: at its end, at a limit of iterations, at a guess that is there already."""
    there = solvers.solve(within_limits(100.0), solvers.iLQR()).us
    runs = [(100.0, None, 300), (0.01, None, 300), (0.01, there, 1), (100.0, there, 0), (100.0, None, 0)]
    met = []
    for weight, guess, limit in runs:
        found = solvers.solve(within_limits(weight), SOLVERS[name], x0=guess, max_iterations=limit)
        away = pushed(found.us)
        assert found.success == found.goals["place"].met == (away <= 0.05)
        assert status_name(found.status) not in ("stalled", "line_search_failed", "no_influence") or not found.success
        np.testing.assert_allclose(found.goals["place"].value, away, atol=1e-9)
        met.append(found.success)
    assert met == [True, False, True, True, False]


def test_a_motion_that_meets_the_goals_is_returned_rather_than_one_that_costs_less():
    problem = within_limits(0.01)
    there = solvers.solve(within_limits(100.0), solvers.iLQR()).us
    found = solvers.solve(problem, solvers.iLQR(), x0=there)
    assert found.success and status_name(found.status) == "solved"
    assert found.cost > solvers.solve(problem, solvers.iLQR()).cost + 0.1


def test_states_that_no_step_leads_to_meet_no_goal():
    """A rollout may take another solution of a contact problem than the step alone; such a motion would be refused in the end."""
    problem = push()
    oracle = problem.compile()
    us = np.full((T, 1), 2.0)
    motion = oracle.rollout(problem.x0, us, np.zeros(0))
    jumps = dataclasses.replace(motion, xs=np.concatenate([motion.xs[:-1], [[1.0, 0.0]]]))
    assert oracle.goals_of(jumps)["place"].met and not oracle.meets_goals(jumps)
    there = dataclasses.replace(motion, us=us / motion.xs[-1, 0], xs=motion.xs / motion.xs[-1, 0])
    assert oracle.meets_goals(there)


def test_a_batch_judges_by_goals_as_a_single_solve_does():
    for weight in (100.0, 0.01):
        problem = within_limits(weight)
        batch = solvers.solve_batch(problem, solvers.iLQR(), x0=np.array([[0.0, 0.0], [1.0, 0.0]]))
        away = [abs(xs[-1, 0] - 1.0) for xs in batch.xs]
        assert list(batch.success) == [value <= 0.05 for value in away] == [weight > 1, True]


def test_goals_are_recomputed_from_a_rollout_of_the_controls():
    """States that the dynamics do not repeat do not count, at the end, at any time and at all times."""
    us = np.linspace(1.0, -1.0, T)[:, None]
    for at in ("end", "always", "once", 0.32):
        problem = push(at=at)
        oracle = problem.compile()
        motion = oracle.rollout(problem.x0, us, np.zeros(0))
        away = np.abs(motion.xs[:, 0] - 1.0)
        expected = {"end": away[-1], "always": away.max(), "once": away.min(), 0.32: away[3]}[at]
        claimed = Trajectory(np.ones_like(motion.xs), us, motion.p)
        claimed.xs[0] = problem.x0
        for found in (motion, claimed):
            np.testing.assert_allclose(oracle.residuals(found)["goal place"], expected, rtol=1e-12)


def test_a_residual_may_be_a_goal():
    target = np.array([0.1, 0.0])
    problem = arm(
        terminal_residual=r.Posture(reference=target, weight=1e3) + r.Velocity(weight=10.0),
        goals={
            "pose": Goal(r.Posture(reference=target), 2e-3, "rad"),
            "rail": Goal(lambda x: jnp.maximum(jnp.abs(x.q[:1]) - 1.5, 0.0), 0.0, "m", "always"),
        },
    )
    found = solvers.solve(problem, solvers.iLQR())
    assert found.success and found.goals["rail"].value == 0.0
    np.testing.assert_allclose(found.goals["pose"].value, np.abs(found.xs[-1, :2] - target).max(), atol=1e-12)
    with compilations() as count:
        solvers.solve(problem.replace(x0=np.full(4, 0.01)), solvers.iLQR())
    assert count.programs == 0
    batch = solvers.solve_batch(problem, solvers.iLQR(), x0=np.stack([problem.x0, problem.x0 + 0.01]))
    assert batch.success.all() and (batch.residuals["goal pose"] < 2e-3).all()


def test_goals_of_a_motion_that_returns():
    problem = periodic(push(u0=np.zeros((T, 1)), terminal_residual=None))
    found = solvers.solve(problem, solvers.iLQR())
    assert found.goals["place"].value == pytest.approx(abs(found.xs[-1, 0] - 1.0), abs=1e-6)


def test_goals_are_saved(tmp_path):
    found = solvers.solve(push(), solvers.iLQR())
    found.save(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["goals"]["place"] == {"value": found.goals["place"].value, "tolerance": 0.01, "unit": "m", "met": True}
    assert Solution.load(tmp_path).goals == found.goals
    nowhere = dataclasses.replace(found, goals={"place": found.goals["place"]._replace(value=float("nan"), met=False)})
    nowhere.save(tmp_path)
    assert np.isnan(Solution.load(tmp_path).goals["place"].value)


BAD = [
    (lambda: push(tolerance=-0.1), OptionError, "goal 'place': tolerance is -0.1; expected a number that is not negative"),
    (lambda: push(tolerance=float("nan")), OptionError, "goal 'place': tolerance is nan"),
    (lambda: push(at="start"), OptionError, "at is 'start'; expected 'end', 'always', 'once' or a time of at most 1 s"),
    (lambda: push(at=2.0), OptionError, "goal 'place': at is 2.0; expected"),
    (lambda: push(goals={"place": Goal(3.0, 0.1)}), OptionError, "goal 'place': residual is 3.0; expected a function x -> r"),
    (lambda: push(goals={"place": lambda x: x}), OptionError, r"is no Goal; expected Goal\(residual, tolerance, unit\)"),
    (lambda: push(goals=[1]), OptionError, "goals is .*; expected {'box position': Goal"),
    (lambda: push(goals={"p": Goal(r.Posture(), 0.1)}), OptionError, "made of residuals, which need a System"),
    (lambda: push(goals={"p": Goal(lambda x: x[0], 0.1)}), ShapeError, "goal 'p': residual returned .*; expected a flat array"),
    (lambda: arm(goals={"p": Goal(r.FramePosition("too"), 0.1)}), UnknownNameError, "goal 'p': .*has no frame or shape 'too'"),
    (lambda: arm(goals={"p": Goal(r.Posture(["cart"], reference=[5.0, 0.0]), 0.1)}), OptionError,
     "goal 'p': no state can meet it: joint 'cart' would have to be at 5, and its limits are -2 and 2"),
    (lambda: arm(goals={"p": Goal(r.FramePosition("bob", reference=[0.0, 0.0, 9.0]), 0.1)}), OptionError,
     r"goal 'p': no state can meet it: 'bob' would have to be 8.9 m away from \(0, 0, 0\), and reaches 2.5 m"),
    (lambda: arm(goals={"p": Goal(r.Height("bob", reference=[-9.0], weight=10.0), 1.0)}), OptionError, "have to be 8.9 m away"),
    (lambda: arm(goals={"p": Goal(r.Control(), 0.1)}), OptionError, "goal 'p': .*depends on the control"),
]


def test_a_place_within_reach_may_be_a_goal():
    for frame, place in (("bob", [2.0, 0.0, -0.5]), ("bob", [2.5, 0.0, 0.0]), ("cart", [2.0, 0.0, 0.0])):
        assert arm(goals={"p": Goal(r.FramePosition(frame, reference=place), 1e-3)}).goals["p"].tolerance == 1e-3


@pytest.mark.parametrize("name", ["ur5", "cart-pole", "spinner", "push-t"])
def test_no_configuration_leads_beyond_the_reach(name):
    model, generator = load_model(name), np.random.default_rng(0)
    lower, upper = (np.clip(np.asarray(bound), -10.0, 10.0) for bound in (model.lower, model.upper))
    place = jax.jit(lambda q, frame: frame_placement(model, q, frame)[1], static_argnums=1)
    for frame in (spec.name for spec in model.topology.frames):
        start, farthest = reach(model, frame)
        apart = [np.linalg.norm(place(q, frame) - start) for q in generator.uniform(lower, upper, (50, model.nq))]
        assert max(apart) <= farthest + 1e-12


@pytest.mark.check
@pytest.mark.parametrize("make, error, message", BAD, ids=[message[:40] for *_, message in BAD])
def test_bad_goals_are_named_before_compilation(make, error, message):
    cart_pole()
    with compilations() as count, pytest.raises(error, match=message):
        make()
    assert count.programs == 0
