"""`BoxedLCP` as the law of a `System`: friction in closed form, linearisation, warm starts, limits, restitution."""

import jax.numpy as jnp
import numpy as np
import pytest

from dynamics.contact import scenes
from trajopt.dynamics import BoxedLCP
from trajopt.dynamics.system import State, System
from trajopt.result import Status


def boxed(name: str) -> System:
    return System(scenes.model(name), dt=scenes.DT, contact=BoxedLCP())


CUBE_MU, CUBE_MASS = 0.4, 1.0


@pytest.mark.parametrize("angle, factor", [(0.0, 1.0), (np.pi / 2, 1.0), (np.pi / 4, np.sqrt(2.0))])
def test_friction_of_a_pushed_box(angle, factor):
    """mu m g along the tangents x and y, sqrt(2) mu m g between them: the square that replaces the disc."""
    sys, along = boxed("cube"), np.array([np.cos(angle), np.sin(angle)])
    limit = factor * CUBE_MU * CUBE_MASS * scenes.GRAVITY
    at_rest = np.array([0, 0, 0.1, 1, 0, 0, 0])
    for share in (0.98, 1.02):
        force = np.r_[share * limit * along, np.zeros(4)]
        _, v, _ = scenes.solved_step(sys, State(at_rest, np.zeros(6)), force=force)
        excess = max(share - 1.0, 0.0) * limit / CUBE_MASS * scenes.DT
        np.testing.assert_allclose(v[:2], excess * along, atol=1e-12)
    v0 = np.r_[0.5 * along, np.zeros(4)]
    _, v, _ = scenes.solved_step(sys, State(at_rest, v0))
    np.testing.assert_allclose(v[:2], (0.5 - limit / CUBE_MASS * scenes.DT) * along, atol=1e-12)


@pytest.mark.parametrize("kind", ["standing", "sliding"])
def test_linearize(kind):
    """A against differences of the step, redundant contacts included."""
    sys, x = boxed("cube"), scenes.cube_state(kind)
    scenes.judged_slopes(sys, x, np.zeros(0), (2e-5, 1e-4, 0, 0), untrusted=0.05, label=kind)


def test_step_does_not_depend_on_warm_start():
    """A warm start leads where the cold solve does; from the solution itself one iteration gets there."""
    sys, rng = boxed("cube"), np.random.default_rng(0)
    for kind in ("standing", "sliding", "landing", "edge"):
        x = scenes.cube_state(kind)
        _, v, info = scenes.solved_step(sys, x)
        _, _, again = scenes.solved_step(sys, x, warm_start=info.impulse)
        assert int(again.iterations) <= 1 and int(again.fallbacks) == 0
        lam = np.asarray(info.impulse)
        for scale in (1e-3, 0.3, 10.0):
            start = lam * (1 + scale * rng.normal(size=lam.shape)) + 1e-3 * scale * rng.normal(size=lam.shape)
            _, other, _ = scenes.solved_step(sys, x, warm_start=start)
            np.testing.assert_allclose(other, v, atol=1e-9)


def test_rollout_of_a_landing_cube():
    """A cube falls, slides and comes to rest; every step is solved, most in one iteration, and nothing sinks in."""
    sys = boxed("cube")
    start = State(np.array([0, 0, 0.11, *scenes.about([1, 0.3, 0], 0.05)]), np.array([0.4, 0.1, 0, 0, 0, 0.5]))
    states, infos = sys.rollout(start, np.zeros((600, 0)))
    assert (np.asarray(infos.status == Status.solved)).all()
    assert (np.asarray(infos.iterations) <= 1).mean() > 0.9
    assert np.abs(np.asarray(states.v)[-1]).max() < 1e-9
    np.testing.assert_allclose(np.asarray(states.q)[-1, 2], 0.1, atol=1e-6)


def test_limits_and_dry_friction_are_those_of_the_other_law():
    """Without contacts the two laws are one problem by other projections: a slider at its limit, both with dry friction."""
    box, disc = boxed("sliders"), scenes.system("sliders")
    for q, v, u in (([0.4999, 0.0], [1.0, 0.2], [0.0, 0.0]), ([0.1, 0.0], [1e-4, 1e-4], [2.0, 9.0])):
        x = State(np.array(q), np.array(v))
        _, one, info = scenes.solved_step(box, x, np.array(u))
        _, two, other = scenes.solved_step(disc, x, np.array(u))
        np.testing.assert_allclose(one, two, atol=1e-12)
        np.testing.assert_allclose(info.impulse, other.impulse, atol=1e-12)
        assert np.abs(np.asarray(info.impulse)).max() > 0


def test_restitution():
    """A ball dropped on the plane with e = 0.6 leaves with 0.6 of its speed."""
    ball = scenes.model("ball")
    sys = System(
        ball.replace(pair_restitution=jnp.full_like(ball.pair_restitution, 0.6)), dt=scenes.DT, contact=BoxedLCP()
    )
    x = State(np.array([0, 0, 0.1005, 1, 0, 0, 0]), np.array([0, 0, -2.0, 0, 0, 0]))
    _, v, _ = scenes.solved_step(sys, x)
    np.testing.assert_allclose(v[2], 1.2, atol=1e-10)
