"""atlas-jump: the crouch is static, the guess is a jump, the cost is its formula; the solved jump, judged by MuJoCo (slow)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.errors import OptionError
from trajopt.models.registry import load_model
from trajopt.problems.library import atlas_jump
from trajopt.problems.library.static_pose import certify
from trajopt.problems.trajectory import Trajectory

FILE = str(atlas_jump.__file__).replace("problems/library/atlas_jump.py", "models/bundled/atlas.xml")


@functools.cache
def problem():
    return problems.get("atlas-jump")


@functools.cache
def mujoco_model():
    return mujoco.MjModel.from_xml_path(FILE)


def sole_heights(q):
    """Lowest corner of each sole, by MuJoCo's kinematics."""
    model = mujoco_model()
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    heights = []
    for name in atlas_jump.SOLES:
        geom = model.geom(name).id
        up = data.geom_xmat[geom].reshape(3, 3)[2]
        heights.append(data.geom_xpos[geom][2] - np.abs(up) @ model.geom_size[geom])
    return np.array(heights)


@pytest.mark.slow
def test_the_crouch_can_be_stood_in_and_its_torques_keep_it():
    """Static equilibrium by the certificate of static poses, and in one step under the guess's first torques."""
    p = problem()
    pose = certify(load_model("atlas"), p.x0[:37], atlas_jump.SOLES)
    assert pose.support_distance < 1e-12 and pose.equilibrium < 1e-9
    assert pose.use < 0.5 and pose.com_offset > 0.1 and pose.limit_margin > 0.1 and pose.clearance > 0.2
    after, info = p.system.step(p.as_state(jnp.asarray(p.x0)), jnp.asarray(p.u0[0]))
    # Inverse dynamics is exact; what is left is the tolerance of the contact solve, 1e-10 N s, on a foot of 2.4 kg.
    assert float(jnp.abs(after.v).max()) < 1e-8 and float(info.residual) < 1e-9


def test_the_guess_is_a_jump_to_the_height():
    p = problem()
    q, v, dt = p.xs0[:, :37], p.xs0[:, 37:], p.dt
    heights = np.array([sole_heights(row).min() for row in q])
    push, flight = atlas_jump.schedule(q[0, 2], 1.2)
    standing = p.times <= 0.1 + push
    np.testing.assert_allclose(heights[standing], 0.0, atol=1e-9)
    assert (heights[p.times > 0.1 + push + 2 * dt] > 1e-3).all() and heights[-1] > 0.2
    # The last step is the first at or after the apex: less than one step of free fall from rest away.
    assert abs(q[-1, 2] - 1.2) < 0.5 * 9.81 * dt**2
    rise = q[standing][-1, 2] - q[0, 2]
    assert 0.9 * (atlas_jump.STRAIGHT - q[0, 2]) < rise < atlas_jump.STRAIGHT - q[0, 2]
    np.testing.assert_allclose(np.diff(v[~standing][1:, 2]) / dt, -9.81, rtol=1e-9)
    np.testing.assert_allclose(v[1:, 2], np.diff(q[:, 2]) / dt, atol=1e-12)
    assert (np.abs(p.u0) < p.control_upper).all()


@pytest.mark.parametrize("lift, flight", [(0.0, 0.0), (0.5, None)])
def test_quantities_of_a_motion_that_stays_on_the_ground_or_never_is(lift, flight):
    """A search may end with either."""
    p = problem()
    x = np.array(p.x0)
    x[2] += lift
    motion = Trajectory(np.repeat(x[None], 4, 0), np.zeros((3, p.nu)), p.parameters)
    found = p.certificate.function(motion)
    assert all(np.isfinite(value) for value in found.values())
    assert found["flight_time"] == pytest.approx(3 * p.dt if flight is None else flight)
    assert p.display.report(motion)


def test_leg_angles_are_the_inverse_of_the_leg():
    """Against MuJoCo's ankle; the sole is level."""
    model = mujoco_model()
    data = mujoco.MjData(model)
    target = np.array([0.03, -0.71])
    q = np.array(problem().x0[:37])
    column = {model.joint(j).name: model.joint(j).qposadr[0] for j in range(1, model.njnt)}
    for name, angle in zip(atlas_jump.SAGITTAL, atlas_jump.leg_angles(target)):
        q[column[f"l_leg_{name}"]] = angle
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    ankle = data.body("l_foot").xpos - data.body("pelvis").xpos
    np.testing.assert_allclose(ankle[[0, 2]], target, atol=1e-12)
    np.testing.assert_allclose(data.body("l_foot").xmat.reshape(3, 3), np.eye(3), atol=1e-12)


def test_cost_is_its_formula():
    p = problem()
    rng = np.random.default_rng(0)
    x, u = np.array(p.xs0[-1]), rng.normal(size=30)
    x[7:37] += 0.01 * rng.normal(size=30)
    x[7 + 1] = 0.5  # back_bky: 0.038783 rad before its limit, of a margin of 0.1
    x[37:] = rng.normal(size=36)
    dt, q0, q, v = p.dt, p.x0[7:37], x[7:37], x[43:]
    lower, upper = (np.asarray(a)[6:] for a in (p.display.model.lower, p.display.model.upper))
    near = np.maximum(0.1 - (q - lower), 0) / 0.1 + np.maximum(0.1 - (upper - q), 0) / 0.1
    share = u / np.asarray(p.display.model.control_upper)
    parts = [3.0**2 * share @ share, 0.3**2 * (q - q0) @ (q - q0)]
    parts += [atlas_jump.RATE**2 * v @ v, 3.0**2 * near @ near]
    np.testing.assert_allclose(
        p.running_cost(jnp.asarray(x), jnp.asarray(u), 0.0, jnp.zeros(0)), 0.5 * dt * sum(parts), rtol=1e-12
    )
    assert near[1] > 0.6
    tilt = 2.0 * x[4:7]
    parts = [9 * (x[:2] @ x[:2]), 100.0**2 * (x[2] - 1.2) ** 2, 9 * (x[37:39] @ x[37:39]), 30.0**2 * x[39] ** 2]
    parts += [25 * tilt @ tilt, 4 * x[40:43] @ x[40:43], 2.25 * (q - q0) @ (q - q0), 0.01 * v @ v, 0.09 * near @ near]
    np.testing.assert_allclose(p.final_cost(jnp.asarray(x), jnp.zeros(0)), 0.5 * sum(parts), rtol=1e-12)


def test_heights_a_foot_on_the_ground_could_reach_are_refused():
    """The bound is the leg's length: no random posture with its lowest sole on the ground has the pelvis higher."""
    rng = np.random.default_rng(1)
    model = mujoco_model()
    low, high = model.jnt_range[1:].T
    highest = 0.0
    for k in range(200):
        share = rng.uniform(size=30) if k else np.clip(-low / (high - low), 0.0, 1.0)
        turn = rng.normal(size=4) * 0.2 + [1.0, 0, 0, 0] if k else np.array([1.0, 0, 0, 0])
        q = np.concatenate([np.zeros(3), turn / np.linalg.norm(turn), low + share * (high - low)])
        highest = max(highest, -sole_heights(q).min())
    assert 0.93 < highest < atlas_jump.highest_standing() < 1.15
    for height in (1.1, 2.0, float("nan")):
        with pytest.raises(OptionError, match="expected a number, 1.18[0-9]* to 1.6 m"):
            problems.get("atlas-jump", height=height)
    with pytest.raises(OptionError, match="wait is -1"):
        problems.get("atlas-jump", wait=-1.0)


@pytest.mark.slow
def test_it_jumps():
    p = problem()
    solution = solvers.solve(p, solvers.get(p.defaults.solver, **p.defaults.options))
    assert solution.success and solution.residuals["defect"] < 1e-9
    assert abs(solution.xs[-1, 2] - 1.2) < 5e-3 and solution.residuals["replay_error"] < 1e-3
    heights = np.array([sole_heights(q[:37]) for q in solution.xs])
    assert heights[-1].min() > 0.05 and heights.min() > -2e-3
    assert (np.abs(solution.us) <= p.control_upper).all()
    at = jax.tree.map(jnp.asarray, Trajectory(solution.xs, solution.us, np.zeros(0)))
    np.testing.assert_allclose(p.cost(at), solution.cost, rtol=1e-12)
    assert solution.cost < 0.5 * float(p.cost(jax.tree.map(jnp.asarray, p.initial_point)))
