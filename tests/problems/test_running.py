"""half-cheetah and hopper: the guess moves and stays up, the cost is its formula, iterations lower it; solved runs (slow)."""

from __future__ import annotations

import dataclasses
import functools
import pathlib

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.errors import OptionError
from trajopt.problems.library import running
from trajopt.problems.trajectory import Trajectory

NAMES = ("half-cheetah", "hopper")


@functools.cache
def problem(name: str):
    return problems.get(name)


def test_a_rhythm_is_a_sine_with_a_bias_that_grows_and_is_cut():
    rhythm = running.Rhythm(2.0, (0.5, 3.0), (0.0, 0.5 * np.pi), (0.1, 0.0))
    us = rhythm.controls(40, 0.0125)
    assert us[0, 0] == 0.1 and us[0, 1] == 0.0  # it grows from the bias
    np.testing.assert_allclose(us[20, 0], 0.1, atol=1e-12)  # half a period later
    np.testing.assert_allclose(us[30, 0], 0.1 - 0.5 * np.sin(0.5 * np.pi), atol=1e-12)
    assert us[20, 1] == -1.0 and np.abs(us).max() == 1.0


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


@pytest.mark.parametrize("name", NAMES)
def test_cost_is_its_formula(name):
    p = problem(name)
    rng = np.random.default_rng(0)
    nq, nv, nu = p.display.model.nq, p.display.model.nv, p.display.model.nu
    lower, upper = (np.asarray(a)[3:] for a in (p.display.model.lower, p.display.model.upper))
    q, v, u = rng.normal(size=nq), rng.normal(size=nv), rng.uniform(-1, 1, nu)
    q[3:] = upper - 0.04
    w = running.WEIGHTS[name]
    speed = problems.settings(name)["speed"]
    near = (np.maximum(0.1 - (q[3:] - lower), 0) + np.maximum(0.1 - (upper - q[3:]), 0)) / 0.1
    posture = w.forward**2 * (v[0] - speed) ** 2 + w.pitch**2 * q[2] ** 2 + (w.height * (q[1] - p.x0[1])) ** 2
    posture += w.rate**2 * v[2:] @ v[2:]
    posture += w.limit**2 * near @ near
    x = jnp.concatenate([q, v])
    stage = p.running_cost(x, jnp.asarray(u), 0.0, jnp.zeros(0))
    np.testing.assert_allclose(stage, 0.5 * p.dt * (posture + w.effort**2 * u @ u), rtol=1e-12)
    np.testing.assert_allclose(p.final_cost(x, jnp.zeros(0)), 0.5 * running.FINAL * p.dt * posture, rtol=1e-12)
    np.testing.assert_allclose(near, 0.6, rtol=1e-12)


@pytest.mark.slow
def test_a_few_iterations_lower_the_cost():
    p = problems.get("hopper", steps=40)
    solution = solvers.solve(p, dataclasses.replace(solvers.get(p.defaults.solver, **p.defaults.options), max_iterations=5))
    assert solution.cost < 0.8 * solution.initial_cost and solution.residuals["defect"] < 1e-12
    assert np.abs(solution.us).max() <= 1.0


def test_what_cannot_be_is_refused():
    for name in NAMES:
        with pytest.raises(OptionError, match="setting speed is -1.0; expected a number, 0.001 to 20 m/s"):
            problems.get(name, speed=-1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name):
    p = problem(name)
    solution = solvers.solve(p, solvers.get(p.defaults.solver, **p.defaults.options))
    assert solution.success and solution.cost < 0.5 * solution.initial_cost
    duration = p.times[-1]
    assert solution.xs[-1, 0] > 0.5 * problems.settings(name)["speed"] * duration
    assert np.abs(solution.xs[:, 2]).max() < 0.8 and solution.residuals["trunk_clearance"] > 0.1
    assert np.abs(solution.us).max() <= 1.0
