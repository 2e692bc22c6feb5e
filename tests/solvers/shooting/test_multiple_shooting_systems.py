"""Multiple shooting through contact: friction identified, a cube pushed to a target, a body that turns in flight."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import dynamics, load_model
from trajopt.problems import OptimalControlProblem
from trajopt.solvers import MultipleShooting, solve

BOX = """<mujoco><default><geom friction="0.4"/></default><worldbody>
<geom type="plane" size="0 0 1"/><body pos="0 0 {height}">{joints}
<geom type="box" size="0.1 0.1 0.1" mass="1"/></body></worldbody><actuator>{motors}</actuator></mujoco>"""


def box(folder, joints, motors, law, dt, height=0.1):
    """A box of 1 kg, side 0.2, over a floor with friction 0.4."""
    path = folder / "box.xml"
    path.write_text(BOX.format(joints=joints, motors="".join(f"<motor {motor}/>" for motor in motors), height=height))
    return dynamics.System(load_model(path), dt, law)


SLIDES = '<joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>'


@pytest.mark.slow
def test_friction_is_identified_through_contact(tmp_path):
    """A sliding box brakes by mu g; mu = 0.3 is found from its recorded positions, the push being known."""
    law = dynamics.RigidContact(erp=1.0)
    system = box(tmp_path, SLIDES, ['joint="x"'], law, 0.02)
    pushes, mu, g = np.array([2.0, 1.0, 0.0, 0.0]), 0.3, 9.81
    speed = 1.0 + 0.02 * np.cumsum(pushes - mu * g)
    places = 0.02 * np.cumsum(speed)

    def with_friction(system, p):
        scale = p[0] / 0.4
        return dynamics.System(
            system.model.replace(pair_friction=system.model.pair_friction * scale), system.dt, system.contact
        )

    problem = OptimalControlProblem(
        "friction", system, 4, dynamics.State(system.model.q_default, jnp.array([1.0, 0.0]), None),
        u0=pushes[:, None], control_lower=-3.0, control_upper=3.0, parameters=[0.4], parametrize=with_friction,
        stage_residual=lambda x, u, t, p: u - jnp.interp(t, jnp.asarray(0.02 * np.arange(4)), jnp.asarray(pushes)),
        terminal_equality=lambda x, p: jnp.stack([x.q[0] - places[-1], x.v[0] - speed[-1]]),
    )  # fmt: skip
    solution = solve(problem, MultipleShooting(interval=2))
    assert solution.success and solution.parameters[0] == pytest.approx(mu, abs=1e-6)
    np.testing.assert_allclose(solution.us[:, 0], pushes, atol=1e-4)
    assert solution.residuals["contact_residual"] < 1e-9


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


@pytest.mark.slow
def test_a_free_body_turns_in_flight(tmp_path):
    """Quaternion states without contact: a cube turns by 2.6 rad about a diagonal from rest to rest with least effort.

    It is the same in every direction, so that its optimum is that of the double integrator, of inertia 1/150 kg m^2.
    """
    motors = [f'joint="root" gear="0 0 0 {axis}"' for axis in ("1 0 0", "0 1 0", "0 0 1")]
    system = box(tmp_path, '<freejoint name="root"/>', motors, dynamics.NoContact(), 0.1, height=5)
    angle, axis, inertia = 2.6, np.array([1.0, 2.0, -1.0]) / np.sqrt(6), 1 / 150
    target = np.r_[np.cos(angle / 2), np.sin(angle / 2) * axis]
    problem = OptimalControlProblem(
        "turn", system, 10, system.initial_state(), stage_residual=lambda x, u, t: np.sqrt(0.2) / inertia * u,
        terminal_equality=lambda x: jnp.concatenate([x.q[4:7] - target[1:], x.v[3:]]),
    )  # fmt: skip
    solution = solve(problem, MultipleShooting())
    # Semi-implicit Euler, v then q: theta_T = h^2 sum (T - k) u_k, with least effort d^2 / (h^4 sum c^2) and c centred.
    arms = np.arange(10, 0, -1) - 5.5
    effort = angle**2 / (0.1**4 * np.sum(arms**2)) * 0.1
    assert solution.success and solution.cost == pytest.approx(effort, rel=1e-6)
    np.testing.assert_allclose(solution.xs[-1][3:7], target, atol=1e-6)
