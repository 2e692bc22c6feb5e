"""Contact that is not made yet: stages of smoothed contact, goals, and a status that says when controls have no influence.

The oracle of the answers is MuJoCo-free: goals are recomputed here by one rollout of the controls with rigid contact, in NumPy.
"""

import dataclasses
import pathlib
import sys

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from compilations import compilations
from jax.tree_util import Partial

from trajopt import load_model, problems, solvers
from trajopt.dynamics import RelaxedContact, State, System
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.errors import OptionError
from trajopt.models import bundled_file, load_model_from_string
from trajopt.problems import residuals
from trajopt.problems.library.two_arm_lift import random_start
from trajopt.problems.residuals import StepOutcome
from trajopt.result import status_name
from trajopt.solvers import Solution
from trajopt.solvers.stages import first_rho

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
import goals_in_numpy


def final_configuration(problem, us):
    """That of one rollout of the controls with rigid contact."""
    x = problem.system.initial_state() if problem.x0 is None else problem.as_state(problem.x0)
    for u in us:
        x, info = problem.system.step(x, u)
    return np.asarray(x.q)


@pytest.fixture(scope="module")
def turned():
    problem = problems.get("spinner")
    return problem, solvers.solve(problem)


def test_the_finger_reaches_the_disc_and_turns_it(turned):
    problem, solution = turned
    assert solution.success
    q = final_configuration(problem, solution.us)
    assert abs(q[2] - 2.0) <= 0.07
    assert solution.goals["turn"].met
    np.testing.assert_allclose(solution.goals["turn"].value, abs(q[2] - 2.0), atol=1e-9)


def test_the_answer_is_a_motion_with_rigid_contact(turned):
    problem, solution = turned
    np.testing.assert_allclose(final_configuration(problem, solution.us), solution.xs[-1][:3], atol=1e-8)
    assert solution.cost < 0.1 * solution.initial_cost


def test_another_start_compiles_nothing(turned):
    """The problem is built anew: other numbers, the same programs, those of goals and stages too."""
    problem = problems.get("spinner", seed=1)
    with compilations() as count:
        solution = solvers.solve(problem)
    assert solution.success and solution.compile_time_s == 0
    assert count.names == set()


def test_the_last_smoothed_plan_is_returned_beside_the_answer(turned, tmp_path):
    problem, solution = turned
    plan = solution.smoothed_plan
    assert plan["rho"] == 1e-4 and plan["us"].shape == solution.us.shape
    relaxed = dataclasses.replace(problem.system, contact=RelaxedContact(1e-4))
    q = final_configuration(dataclasses.replace(problem, dynamics=relaxed), plan["us"])
    np.testing.assert_allclose(q, plan["xs"][-1][:3], atol=1e-8)
    solution.save(tmp_path)
    np.testing.assert_array_equal(Solution.load(tmp_path).smoothed_plan["us"], plan["us"])


def test_single_precision_has_stages_that_it_resolves():
    """The first rho and the last one would be below the rounding of the finger's motion in float32, which `System` refuses."""
    system = System(load_model("spinner").to_device(jnp.float32), dt=0.05, implicit_damping=True)
    home = system.initial_state("home")
    problem = problems.OptimalControlProblem(
        "turn", system, 40, home,
        stage_residual=lambda x, u, t: 0.07 * jnp.concatenate([3.0 * (x.q[:2] - home.q[:2]), x.v, u]),
        terminal_residual=lambda x: 10.0 * (x.q[2:] - 2.0),
        goals={"turn": problems.Goal(lambda x: x.q[2:] - 2.0, tolerance=0.1, unit="rad")},
    )  # fmt: skip
    solution = solvers.solve(problem)
    assert solution.success and abs(solution.xs[-1, 2] - 2.0) < 0.1


@pytest.mark.parametrize("seed", [3, 4])
def test_a_goal_that_no_cost_asks_for_is_reached(seed):
    """The costs are least where nothing moves; the goal alone says what is to be done."""
    spinner = problems.get("spinner", seed=seed)
    problem = problems.OptimalControlProblem(
        "turn", spinner.system, 40, spinner.x0, stage_residual=residuals.Control(weight=0.1) + residuals.Velocity(weight=0.1),
        goals=spinner.goals,
    )  # fmt: skip
    solution = solvers.solve(problem)
    turn = final_configuration(problem, solution.us)[2] - spinner.x0[2]
    assert solution.success and abs(turn - 2.0) <= 0.1
    assert status_name(solution.status) == "acceptable"


BUTTON = """<mujoco><compiler angle="radian"/><worldbody>
  <body name="button" pos="0.4 0 0.1"><joint name="button" type="slide" axis="0 0 1" range="-0.03 0" stiffness="300" damping="3"/>
    <geom type="cylinder" size="0.02 0.01" mass="0.05"/></body>
  <body name="upper" pos="0 0 0.3"><joint name="shoulder" axis="0 1 0" damping="0.5"/>
    <geom type="capsule" fromto="0 0 0 0.25 0 0" size="0.03" mass="1" contype="0" conaffinity="0"/>
    <body name="fore" pos="0.25 0 0"><joint name="elbow" axis="0 1 0" damping="0.5"/>
      <geom type="capsule" fromto="0 0 0 0.23 0 0" size="0.02" mass="0.6" contype="0" conaffinity="0"/>
      <geom type="sphere" pos="0.25 0 0" size="0.015" mass="0.05"/></body></body>
</worldbody><actuator><motor joint="shoulder" ctrlrange="-30 30"/><motor joint="elbow" ctrlrange="-20 20"/></actuator></mujoco>"""


def test_an_arm_that_falls_does_not_choose_the_first_rho():
    """What falls under the guess moves its contacts by many gaps with any rho, however small; that says nothing of rho."""
    system = System(load_model_from_string(BUTTON), 0.03, implicit_damping=True)
    x0 = State(jnp.array([0.0, -0.6, 0.8]), jnp.zeros(3))
    chosen = {}
    for name, u0 in (("held", None), ("falls", np.zeros((40, 2)))):
        problem = problems.OptimalControlProblem("press", system, 40, x0, u0=u0, stage_residual=residuals.Control())
        oracle = problem.compile()
        fallen = oracle.rollout(problem.x0, problem.u0, np.zeros(0)).xs[-1] - problem.x0
        assert (np.abs(fallen[1:3]).max() > 0.5) == (name == "falls")
        chosen[name] = first_rho(oracle, problem.initial_point, 1e-6)
    assert chosen["falls"] >= 0.1 * chosen["held"] and min(chosen.values()) >= 1e-3


def test_draws_help_where_smoothing_makes_no_progress():
    """A rho this small is felt by no one 8 cm away."""
    problem, blind = problems.get("spinner"), solvers.iLQR(smoothing=[1e-9])
    alone = solvers.solve(problem, blind)
    assert not alone.success and not alone.goals["turn"].met
    search = solvers.Hybrid(solvers.CEM(), solvers.iLQR(), generations=30, attempts=3)
    found = solvers.solve(problem, solvers.Continuation(solvers.iLQR(smoothing=None), [1e-9], search))
    assert found.success and abs(final_configuration(problem, found.us)[2] - 2.0) <= 0.1
    stopped = solvers.solve(problem, solvers.Continuation(solvers.iLQR(smoothing=None), [1e-9], search), max_iterations=30)
    assert stopped.cost < alone.cost  # the best draw


def test_the_option_smoothing_of_another_solver_means_another_thing():
    problem = problems.get("spinner", duration=0.2)
    solution = solvers.solve(problem, solvers.MPPI(smoothing=0.5, standard_deviation=1.0), max_iterations=2)
    assert solution.solver == "MPPI"


@pytest.mark.parametrize("solver", [
    solvers.iLQR(smoothing=None), solvers.SingleShooting(), pytest.param(solvers.MultipleShooting(), marks=pytest.mark.slow),
    pytest.param(solvers.GaussNewton(), marks=pytest.mark.slow),
], ids=lambda solver: solver.name)  # fmt: skip
def test_without_smoothing_doing_nothing_is_no_answer(solver):
    problem = problems.get("spinner")
    solution = solvers.solve(problem, solver)
    assert status_name(solution.status) == "no_influence"
    assert not solution.success
    assert not solution.goals["turn"].met


def test_an_optimum_of_costs_that_ask_for_nothing_is_no_answer_where_nothing_touches():
    """The cost of doing nothing is zero, and no control changes the goal: the remedies are those of a contact not yet made."""
    spinner = problems.get("spinner")
    problem = problems.OptimalControlProblem(
        "turn", spinner.system, 40, spinner.x0, u0=np.zeros((40, 2)), stage_residual=residuals.Control(), goals=spinner.goals
    )
    solution = solvers.solve(problem, solvers.iLQR(smoothing=None))
    assert status_name(solution.status) == "no_influence" and not solution.success


@pytest.mark.slow
def test_a_batch_names_guesses_without_influence_too():
    problem = problems.get("spinner")
    batch = solvers.solve_batch(problem, solvers.iLQR(), x0=np.stack([problem.x0, problem.x0]))
    assert [status_name(status) for status in batch.status] == ["no_influence"] * 2 and not batch.success.any()


def test_the_guess_without_influence_is_named_without_goals_too():
    problem = dataclasses.replace(problems.get("spinner"), goals={})
    solution = solvers.solve(problem, solvers.iLQR(smoothing=None))
    assert status_name(solution.status) == "no_influence"
    assert not solution.success


def test_a_minimum_that_controls_hold_is_solved():
    """The states of a standing minimum cost something that controls could change: that is no lack of influence."""
    solution = solvers.solve(problems.get("cartpole-swingup"), solvers.iLQR(smoothing=None))
    again = solvers.solve(problems.get("cartpole-swingup"), solvers.iLQR(smoothing=None), x0=solution)
    assert status_name(again.status) == "solved"


@pytest.mark.parametrize("iterations", [3, 500])
def test_without_goals_a_guess_with_influence_is_solved_as_by_rigid_contact_alone(iterations):
    """The box is reached for, which is influence, and no goal is missed: status, cost and trace are those without smoothing."""
    problem = dataclasses.replace(problems.get("push-box", duration=0.4), goals={})
    alone, asked = (
        solvers.solve(problem, solvers.iLQR(max_iterations=iterations, smoothing=smoothing)) for smoothing in (None, "auto")
    )
    assert status_name(asked.status) == status_name(alone.status)
    assert (asked.cost, asked.iterations, asked.success) == (alone.cost, alone.iterations, alone.success)
    np.testing.assert_array_equal(asked.trace["cost"], alone.trace["cost"])


def test_multiple_shooting_says_where_smoothing_is():
    with pytest.raises(OptionError, match=r"MultipleShooting has no 'smoothing' of its own; give it to iLQR\(smoothing=...\)"):
        solvers.MultipleShooting(smoothing="auto")


@pytest.mark.parametrize("smoothing", [[], [0.1, 0.2], [0.1, -1e-3], [0.1, 1e-16], [np.nan], "much", 0.1, [[0.1]]])
def test_a_schedule_that_does_not_fall_is_refused(smoothing):
    with pytest.raises(OptionError, match="smoothing is"):
        solvers.solve(problems.get("spinner"), solvers.iLQR(smoothing=smoothing))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["behind", "beside", "in-front"])
def test_the_box_is_pushed_from_every_side(start):
    problem = problems.get("push-box", start=start)
    solution = solvers.solve(problem)
    assert solution.success
    q = final_configuration(problem, solution.us)
    assert np.abs(q[:2] - [0.15, 0.1]).max() <= 0.01
    assert abs(q[2] - 0.5) <= 0.05


def recomputed(problem, us):
    """The largest entry of each goal at the end of one rollout of the controls with rigid contact."""
    x = problem.as_state(problem.x0)
    for u in us:
        x, info = problem.system.step(x, u)
    step = StepOutcome(problem.system, x, None)
    return {name: float(np.abs(goal.residual(x, None, 0.0, step)).max()) for name, goal in problem.goals.items()}


def test_the_t_is_pushed_a_little():
    problem = problems.get("push-t", x=0.04, y=0.0, yaw=0.0, duration=0.8)
    solution = solvers.solve(problem)
    q = final_configuration(problem, solution.us)
    assert solution.success
    assert np.abs(q[:2] - [0.04, 0.0]).max() <= 0.01
    assert abs(q[2]) <= 0.05


@jax.jit
def distances(model, q):
    """Of all contacts, m."""
    return collide(model, kinematics(model, q)).distance


def test_the_finger_starts_clear_of_the_t():
    model = problems.get("push-t").system.model
    starts = np.array([problems.get("push-t", seed=seed).x0[:5] for seed in range(1, 41)])
    assert min(distances(model, q).min() for q in starts) >= 0.01 - 1e-9
    assert (starts[:, 3:].min(0) < -0.1).all() and (starts[:, 3:].max(0) > 0.1).all()


def test_the_hopper_starts_with_its_foot_flat_on_the_floor():
    model = problems.get("hopper-step").system.model
    for seed in range(10):
        q = problems.get("hopper-step", seed=seed).x0[:6]
        gaps = np.sort(distances(model, q))
        np.testing.assert_allclose(gaps[:2], 0.0, atol=1e-9)
        assert gaps[2] > 0.01
        assert np.all(q[3:] >= model.lower[3:]) and np.all(q[3:] <= model.upper[3:])


def test_doing_nothing_misses_the_goals_of_the_step():
    problem = problems.get("hopper-step")
    missed = recomputed(problem, problem.u0)
    assert missed["distance"] > 0.3 and missed["height"] > 0.1


def test_the_ball_lies_on_the_palm_clear_of_the_fingers():
    model = problems.get("in-hand-rotation").system.model
    for seed in range(40):
        gaps = np.sort(distances(model, problems.get("in-hand-rotation", seed=seed).x0[:23]))
        np.testing.assert_allclose(gaps[0], 0.0, atol=1e-9)
        assert gaps[1] > 1e-3


def test_the_hand_is_asked_for_a_turn_about_the_vertical():
    """A ball that has rolled misses the goal whatever its yaw."""
    problem = problems.get("in-hand-rotation")

    def missed(at, rotation):
        x = np.array(problem.x0)
        x[16:23] = *at, *rotation
        return recomputed(dataclasses.replace(problem, x0=x, validate=False), problem.u0[:0])

    there, turned = problem.x0[16:19], (np.sqrt(0.75), 0.0, 0.0, 0.5)
    assert missed(there, (1.0, 0.0, 0.0, 0.0)) == pytest.approx({"turn": np.pi / 3, "drift": 0.0}, abs=1e-7)
    assert missed(there, turned) == pytest.approx({"turn": 0.0, "drift": 0.0}, abs=1e-7)
    assert missed(there + [0.0, 0.03, 0.0], turned) == pytest.approx({"turn": 0.0, "drift": 0.03}, abs=1e-7)
    rolled = np.array([turned[0] * np.cos(0.2), turned[0] * np.sin(0.2), -0.5 * np.sin(0.2), 0.5 * np.cos(0.2)])
    assert missed(there, rolled)["turn"] > problem.goals["turn"].tolerance


def test_the_big_ball_lies_on_its_table_clear_of_the_arms():
    """By MuJoCo's distances."""
    model = mujoco.MjModel.from_xml_path(str(bundled_file("two-arms")))
    data, ball, table = mujoco.MjData(model), model.geom("ball").id, model.geom("table").id
    arms = [geom for geom in range(model.ngeom) if model.geom_contype[geom] == 1]
    for seed in range(40):
        data.qpos[:] = random_start(seed)
        mujoco.mj_kinematics(model, data)
        assert abs(mujoco.mj_geomDistance(model, data, ball, table, 1.0, None)) < 1e-9
        assert len(arms) == 10
        assert min(mujoco.mj_geomDistance(model, data, ball, arm, 1.0, None) for arm in arms) > 1e-3


def test_the_big_ball_is_to_be_lifted_and_held_still():
    problem = problems.get("two-arm-lift", seed=1)
    x = np.array(problem.x0)
    x[14], x[33] = x[14] + 0.1, 0.5
    missed = recomputed(dataclasses.replace(problem, x0=x, validate=False), problem.u0[:0])
    assert missed == pytest.approx({"place": 0.2, "speed": 0.5}, abs=1e-9)


@pytest.mark.slow
def test_one_arm_alone_does_not_lift_the_ball():
    """The plan of both with one of them left where it was."""
    problem = problems.get("two-arm-lift")
    both = solvers.solve(problem)
    assert both.success
    for arm in (slice(0, 6), slice(6, 12)):
        us = np.array(both.us)
        us[:, arm] = problem.u0[:, arm]
        assert recomputed(problem, us)["place"] > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("task", ["push-t", "hopper-step", "in-hand-rotation", "two-arm-lift", "go1-climb"])
def test_nine_of_ten_starts_reach_the_goals(task):
    """By goals in NumPy, along one rollout of the controls."""
    met = 0
    for seed in range(10):
        problem = problems.get(task, seed=seed)
        solution = solvers.solve(problem)
        values = goals_in_numpy.values_of(problem, solution.us)
        reached = goals_in_numpy.met(problem, values, solution.residuals)
        reached &= not goals_in_numpy.broken(problem, solution.residuals)
        assert reached == solution.success
        met += reached
    assert met >= 9


GRIPPER = """<mujoco><worldbody><geom type="plane" size="5 5 1" friction="0.8"/>
<body pos="0 0 0.05"><joint name="height" type="slide" axis="0 0 1" damping="1"/>
<geom type="box" size="0.08 0.01 0.01" pos="0 0 0.2" mass="0.5" contype="0" conaffinity="0"/>
<body><joint name="left" type="slide" axis="1 0 0" damping="1"/>
<geom type="box" size="0.01 0.02 0.04" pos="-0.07 0 0" mass="0.1" friction="0.8"/></body>
<body><joint name="right" type="slide" axis="1 0 0" damping="1"/>
<geom type="box" size="0.01 0.02 0.04" pos="0.07 0 0" mass="0.1" friction="0.8"/></body></body>
<body pos="0 0 0.04"><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
<joint name="pitch" type="hinge" axis="0 1 0"/><geom type="box" size="0.03 0.03 0.04" mass="0.2" friction="0.8"/></body>
</worldbody><actuator><motor joint="height" ctrlrange="-20 20"/><motor joint="left" ctrlrange="-10 10"/>
<motor joint="right" ctrlrange="-10 10"/></actuator></mujoco>"""


def test_a_gripper_grasps_a_box_and_lifts_it_without_draws(tmp_path):
    """Nothing but the height of the box is in the cost: the fingers, 3 cm away on both sides, have to be found."""
    (tmp_path / "gripper.xml").write_text(GRIPPER)
    system = System(load_model(tmp_path / "gripper.xml"), 0.02)
    problem = problems.OptimalControlProblem(
        "lift", system, 60, system.initial_state(),
        stage_residual=lambda x, u, t: jnp.concatenate([0.3 * (x.q[4:5] - 0.2), 0.02 * x.v, 0.01 * u]),
        terminal_residual=lambda x: jnp.concatenate([20.0 * (x.q[4:5] - 0.2), 2.0 * x.q[5:], x.v]),
        goals={
            "height": problems.Goal(lambda x: x.q[4:5] - 0.2, 0.02, "m"),
            "pitch": problems.Goal(lambda x: x.q[5:], 0.2, "rad"),
        },
    )  # fmt: skip
    solution = solvers.solve(problem, solvers.iLQR())
    q = final_configuration(problem, solution.us)
    assert solution.success and abs(q[4] - 0.2) <= 0.02 and abs(q[5]) <= 0.2


DRAWER = """<mujoco><compiler angle="radian"/><option gravity="0 0 0"/><worldbody>
<body pos="0.3312 0.026 0"><joint name="drawer" type="slide" axis="1 0 0" damping="1.6433" frictionloss="0.0802"/>
<geom type="cylinder" size="0.015 0.03" mass="1.1638" friction="0.4852"/></body>
<body><joint name="shoulder" axis="0 0 1" damping="0.05"/>
<geom type="capsule" fromto="0 0 0 0.2467 0 0" size="0.01" mass="0.2907" contype="0" conaffinity="0"/>
<body pos="0.2467 0 0"><joint name="elbow" axis="0 0 1" damping="0.05"/>
<geom type="capsule" fromto="0 0 0 0.2015 0 0" size="0.008" mass="0.3162" contype="0" conaffinity="0"/>
<geom type="sphere" pos="0.2015 0 0" size="0.0187" mass="0.05" friction="0.4852"/></body></body>
</worldbody><actuator><motor joint="shoulder" ctrlrange="-5 5"/><motor joint="elbow" ctrlrange="-5 5"/></actuator></mujoco>"""


def on_the_way(there, x, u, t):
    return jnp.concatenate([6.0 * (x.q[:1] - there), 0.02 * x.v, 0.01 * u])


def in_the_end(there, x):
    return jnp.concatenate([300.0 * (x.q[:1] - there), 0.5 * x.v])


def missing(there, x):
    return x.q[:1] - there


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # steps of 40 ms are too long for the joints' damping
def test_stages_that_diverge_with_rigid_contact_do_not_end_the_run(tmp_path):
    """A finger pushes a drawer: in steps of 40 ms fast motions of the first stages diverge where contact is rigid."""
    (tmp_path / "drawer.xml").write_text(DRAWER)
    system = System(load_model(tmp_path / "drawer.xml"), 0.04)
    for there in (-0.08, 0.07, 0.1):
        place = np.array([there])
        problem = problems.OptimalControlProblem(
            "drawer", system, 50, np.array([0.0, -0.3, 0.78, 0.0, 0.0, 0.0]), stage_residual=Partial(on_the_way, place),
            terminal_residual=Partial(in_the_end, place), goals={"place": problems.Goal(Partial(missing, place), 0.01, "m")},
        )  # fmt: skip
        x, solution = problem.as_state(problem.x0), solvers.solve(problem, solvers.iLQR())
        for u in solution.us:
            x, _ = system.step(x, u)
        assert solution.success and abs(float(x.q[0]) - there) <= 0.01
