"""Multiple shooting through contact: friction identified, a cube pushed to a target, a body that turns in flight."""

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
