"""half-cheetah and hopper: the guess moves and stays up, the cost is its formula, iterations lower it; solved runs (slow)."""

import functools
import pathlib

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.problems.library import running
from trajopt.problems.trajectory import Trajectory

NAMES = ("half-cheetah", "hopper")


@functools.cache
def problem(name: str):
    return problems.get(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_guess_moves_and_does_not_fall(name):
    p = problem(name)
    states, _ = p.system.rollout(p.as_state(jnp.asarray(p.x0)), jnp.asarray(p.u0))
    xs = np.concatenate([states.q, states.v], 1)
    assert xs[-1, 0] > 0.3 and np.abs(xs[:, 2]).max() < 0.6 and np.abs(p.u0).max() <= 1.0
    # The lowest point of torso and head stays off the ground, by MuJoCo's kinematics.
    folder = pathlib.Path(str(running.__file__)).parents[2] / "models" / "bundled"
    model = mujoco.MjModel.from_xml_path(str(folder / f"{name}.xml"))
    data = mujoco.MjData(model)
    lowest = []
    for row in xs:
        data.qpos[:] = row[: p.display.model.nq]
        mujoco.mj_kinematics(model, data)
        geoms = np.flatnonzero(model.geom_bodyid == model.body("torso").id)
        radius, half = model.geom_size[geoms, 0], model.geom_size[geoms, 1]
        upright = np.abs(data.geom_xmat[geoms].reshape(-1, 3, 3)[:, 2, 2])
        lowest.append((data.geom_xpos[geoms, 2] - half * upright - radius).min())
    named = running.examine(p.system, Trajectory(xs, np.asarray(p.u0), np.zeros(0)), 1.0, 1.0, 0.0)
    np.testing.assert_allclose(named["trunk_clearance"], np.min(lowest), atol=1e-12)
    assert named["trunk_clearance"] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name):
    p = problem(name)
    solution = solvers.solve(p, solvers.get(p.defaults.solver, **p.defaults.options))
    assert solution.success and solution.cost < 0.5 * solution.initial_cost
    duration = p.times[-1]
    assert solution.xs[-1, 0] > 0.75 * problems.settings(name)["speed"] * duration
    assert np.abs(solution.xs[:, 2]).max() < 0.8 and solution.residuals["trunk_clearance"] > 0.1
    assert np.abs(solution.us).max() <= 1.0
