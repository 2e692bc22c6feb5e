"""A receding horizon in the browser, through the server that the browser talks to: what moves, and what may be changed
meanwhile."""

import urllib.request

import numpy as np
import pytest

from trajopt import load_model
from trajopt.cli import main
from trajopt.control.tasks import TASKS, Slider, Task, task
from trajopt.dynamics import NoContact, System
from trajopt.errors import OptionError, UnknownNameError
from trajopt.problems import OptimalControlProblem
from trajopt.problems import residuals as r
from trajopt.problems.library.behaviours import at_rest
from trajopt.viz.live import Live, show


def cart() -> OptimalControlProblem:
    system = System(load_model("cart-pole"), 0.05, NoContact())
    stage = sum([r.Posture(reference=[0.2, 0.0]), r.Velocity(weight=0.3), r.Control(weight=0.03)])
    return OptimalControlProblem("cart", system, 12, at_rest(system.model, np.zeros(2)), stage_residual=stage)


CART = Task(
    "a cart goes to a place", "cart-pole", cart, 0.05, 0.01, "iLQR", {}, (Slider("place", "posture", 0, -0.5, 0.5, "m"),), "pole",
    5.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def live():
    made = Live(CART, plant="system", port=8190)
    yield made
    made.close()


def test_the_page_is_served_and_the_plant_moves_with_the_plan_beside_it(live):
    assert urllib.request.urlopen(live.address).status == 200
    live.advance(1.0)
    assert live.drive.time == pytest.approx(1.0) and live.drive.xs[-1][0] > 0.05
    robot, plan = (actor.bodies for actor in live.stage.actors)
    cart_body = max(robot, key=lambda n: abs(robot[n].position[0]))
    assert robot[cart_body].position[0] == pytest.approx(live.drive.xs[-1][0], abs=0.2)
    assert plan[cart_body].position[0] != robot[cart_body].position[0]
    assert "1.0 s" in live.says.content and len(live.plot.data[0]) == len(live.drive.solves)


def test_sliders_change_references_and_weights(live):
    live.set("place", -0.3)
    live.set("weight of velocity", 2.0)
    live.advance(2.0)
    terms = {term.label: term for term in live.horizon.problem.stage_residual.terms}
    np.testing.assert_allclose(terms["posture"].reference, [-0.3, 0.0])
    np.testing.assert_allclose(terms["velocity"].weight, 0.6)
    assert live.drive.xs[-1][0] < -0.05
    for wrong, value, error, words in (
        ("place", 0.7, OptionError, "slider 'place': 0.7 is outside its range of -0.5 to 0.5"),
        ("plase", 0.1, UnknownNameError, "there is no slider 'plase'.*place"),
    ):
        with pytest.raises(error, match=words):
            live.set(wrong, value)
    assert live.sliders["place"].value == -0.3 and not live.pending


def test_the_buttons_push_and_start_again(live):
    live.requests += ["push", "push"]
    live.advance(0.02)
    forces = [np.asarray(push.force) for push in live.drive.pushes]
    np.testing.assert_allclose([np.linalg.norm(force) for force in forces], 5.0)
    assert np.abs(forces[0] - forces[1]).max() > 1.0
    live.requests.append("reset")
    live.advance(0.01)
    assert live.drive.time == pytest.approx(0.01) and not live.drive.pushes


def test_a_plant_that_is_not_finite_starts_again(live):
    live.horizon.plant.reset(np.full(4, np.nan))
    live.advance(0.1)
    assert "the measured state is not finite" in live.says.content and "started again" in live.says.content
    live.advance(0.1)
    assert np.isfinite(live.drive.xs[-1]).all()


def test_it_runs_for_some_seconds_of_real_time():
    said = []
    drive = show(CART, plant="system", port=8190, browser=False, seconds=0.3, say=said.append)
    assert drive.time > 0.0 and "http://localhost:" in said[0]


def test_what_is_wrong_is_named(capsys):
    assert main(["mpc", "push-bx"]) == 2
    assert "no task 'push-bx' of a receding horizon" in capsys.readouterr().err
    with pytest.raises(OptionError, match="plant is 'gazebo'; expected one of mujoco, system"):
        CART.plant("gazebo", cart())


def test_the_tasks_are_listed(capsys):
    assert main(["list", "mpc"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in TASKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_task_runs_in_both_plants(name):
    for plant in ("mujoco", "system"):
        recording = task(name).horizon(plant=plant, max_iterations=1).run(0.1)
        assert np.isfinite(recording.xs).all()
        for slider in task(name).sliders:
            assert slider.least < slider.largest
