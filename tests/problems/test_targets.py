"""Joint targets: their splines in closed form, the law that follows them, their search space, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trajopt
from trajopt import solvers
from trajopt.dynamics import NoContact, RigidContact, State, System
from trajopt.errors import OptionError, ShapeError
from trajopt.problems import JointTargets, OptimalControlProblem, Trajectory
from trajopt.solvers.sampling.parametrisation import decode_targets, follow_targets, make_space


def hopper(steps: int = 6, contact=None, **options):
    model = trajopt.load_model("hopper")
    system = System(model, 0.005, RigidContact(max_contacts=4) if contact is None else contact)
    home = np.asarray(model.keyframes["home"])
    options = {"stage_residual": lambda x, u, t: 0.1 * u, "terminal_residual": lambda x: x.q[:2]} | options
    return OptimalControlProblem("targets", system, steps, State(home, np.zeros(model.nv)), u0=np.zeros(3), **options)


def test_splines_and_mirror():
    targets = JointTargets(3, mirror=[[1.0], [1.0], [-2.0]])
    W = targets.basis(5, 3, 0.1)
    # A polygon through (0, 1, 0) at the first, third and fifth of five steps; the third joint moves by -2 of it.
    np.testing.assert_allclose(W @ [0.0, 1.0, 0.0], np.array([0, 0.5, 1, 0.5, 0])[:, None] * [1.0, 1.0, -2.0], atol=1e-15)


def test_a_gait_is_periodic_and_shifted():
    targets = JointTargets(4, interpolation="cubic", period=0.4, shift=[0.0, 0.5], ramp=0.2)
    W = targets.basis(9, 2, 0.1)
    knots = np.random.default_rng(0).normal(size=W.shape[2])
    angles = W @ knots
    grown = np.minimum(np.arange(9) / 2, 1.0)
    np.testing.assert_allclose(angles[2:5], angles[6:9], atol=1e-12)  # a period later
    np.testing.assert_allclose(angles[:, 0], grown * np.tile(knots[::2], 3)[:9], atol=1e-12)  # knots are passed through
    np.testing.assert_allclose(angles[:, 1], grown * np.tile(np.roll(knots[1::2], -2), 3)[:9], atol=1e-12)  # half a period early


def test_targets_are_followed_by_the_law():
    """Step by step by the public `step`, in and out of the limits of the motors."""
    problem = hopper()
    space = make_space(problem, problem.x0, JointTargets(2, 200.0, 2.0, reach=9.0))
    y = 4.0 * np.random.default_rng(1).normal(size=space.size)
    data = jax.tree.map(jnp.asarray, space.data)
    x0, qs, _ = decode_targets(problem, data, jnp.asarray(y))
    xs, us, residual = follow_targets(problem, problem.system, data, x0, qs)
    model, x = problem.system.model, State(jnp.asarray(problem.x0[:6]), jnp.zeros(6))
    gear = np.asarray(model.actuation).max(0)
    wanted = problem.x0[3:6] + space.data["basis"] @ (0.5 * y)
    for t in range(problem.horizon):
        u = jnp.clip((200.0 * (wanted[t] - x.q[3:]) - 2.0 * x.v[3:]) / gear, -1.0, 1.0)
        np.testing.assert_allclose(us[t], u, atol=1e-9)
        x, _ = problem.system.step(x, u)
        np.testing.assert_allclose(xs[t + 1], jnp.concatenate([x.q, x.v]), atol=1e-8)
    assert np.abs(us).max() == 1.0 and float(residual.max()) < 1e-8


def test_a_motion_is_encoded_by_its_targets():
    problem = hopper()
    space = make_space(problem, problem.x0, JointTargets(2, 60.0, 2.0))
    y = 0.05 * np.random.default_rng(2).normal(size=space.size)
    data = jax.tree.map(jnp.asarray, space.data)
    x0, qs, p = decode_targets(problem, data, jnp.asarray(y))
    xs, us, _ = follow_targets(problem, problem.system, data, x0, qs)
    np.testing.assert_allclose(space.encode(Trajectory(xs, us, p)), y, atol=1e-8)


def test_a_search_over_targets_reaches_a_pose():
    problem = hopper(contact=NoContact(), terminal_residual=lambda x: 10.0 * (x.q[3:] - 0.05))
    solver = solvers.CEM(parametrisation=JointTargets(2, 60.0, 2.0), population=64, max_iterations=40)
    solution = solvers.solve(problem, solver)
    assert solution.cost < 0.3 * solution.initial_cost


def test_what_is_refused():
    with pytest.raises(OptionError, match="interpolation is 'cubik'"):
        JointTargets(3, interpolation="cubik")
    with pytest.raises(OptionError, match="knots is 0; it must be at least 1"):
        JointTargets(0)
    with pytest.raises(OptionError, match="give period"):
        JointTargets(3, shift=[0.5])
    with pytest.raises(ShapeError, match=r"mirror has shape \(2, 1\); expected \(3, m\)"):
        JointTargets(3, mirror=[[1.0], [1.0]]).basis(5, 3, 0.1)
    with pytest.raises(OptionError, match="knots is that of the controls"):
        solvers.CEM(parametrisation=JointTargets(3), knots=4)
    plain = OptimalControlProblem(
        "f", lambda x, u, t: x + u, 3, np.zeros(1), u0=np.zeros(1), control_lower=-1, control_upper=1,
        terminal_cost=lambda x: x[0],
    )  # fmt: skip
    with pytest.raises(OptionError, match="has no System"):
        make_space(plain, plain.x0, JointTargets(2))
