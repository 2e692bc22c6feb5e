"""Goals as part of the cost: what they add to it, by the formula in NumPy, and the same derivative as by differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from trajopt import problems
from trajopt.problems import Goal
from trajopt.problems import residuals as r
from trajopt.problems.expansions import final_expansion, stage_expansion
from trajopt.problems.weighed_goals import SLACK, can_weigh_goals, with_weighed_goals

WEIGHT = 3.0


def rows(scale, x, u, t):
    return scale * jnp.concatenate([u, x.v])


COSTS = {
    "none": None,
    "function": lambda x, u, t: 0.1 * u,
    "pytree": Partial(rows, 0.1),
    "terms": r.Control(weight=0.1) + r.Velocity(weight=0.2),
}


def turn(x):
    return x.q[2:] - 2.0


GOALS = {  # with the states that count, of all in units of the tolerance
    "end": (Goal(turn, 0.1, "rad"), lambda off: off[-1:]),
    "residual": (Goal(r.Posture(("spinner",), reference=np.array([0.0, 0.0, 2.0])), 0.1, "rad"), lambda off: off[-1:]),
    "always": (Goal(turn, 0.1, "rad", at="always"), lambda off: np.append(off[:-1] / np.sqrt(10), off[-1])),
    "timed": (Goal(turn, 0.1, "rad", at=0.15), lambda off: off[3:4]),
    "timed at the end": (Goal(turn, 0.1, "rad", at=0.5), lambda off: off[-1:]),
}


def stated(cost, goals):
    spinner = problems.get("spinner", duration=0.5)
    return problems.OptimalControlProblem(
        "turn", spinner.system, 10, spinner.x0, u0=np.zeros((10, 2)), stage_residual=cost,
        terminal_cost=None if cost is not None else lambda x: x.v @ x.v, goals=goals,
    )  # fmt: skip


def motion_of(problem):
    """Random states: nothing is asked of the dynamics."""
    xs = np.random.default_rng(0).normal(size=(11, 6))
    return problem.check_point(problems.Trajectory(xs, np.ones((10, 2)), np.zeros(0)))


@pytest.mark.parametrize("where", GOALS)
@pytest.mark.parametrize("kind", COSTS)
def test_what_is_lacking_beyond_the_slack_is_added_to_the_cost(kind, where):
    goal, at = GOALS[where]
    problem = stated(COSTS[kind], {"turn": goal})
    motion = motion_of(problem)
    off = (motion.xs[:, 2] - 2.0) / 0.1
    lacking = np.sign(off) * np.maximum(np.abs(off) - SLACK, 0.0)
    more = 0.5 * WEIGHT**2 * np.sum(at(lacking) ** 2)
    weighed = with_weighed_goals(problem, WEIGHT)
    np.testing.assert_allclose(weighed.cost(motion), problem.cost(motion) + more, rtol=1e-12)
    gradient = jax.grad(lambda xs: weighed.cost(problems.Trajectory(xs, motion.us, motion.p)))(jnp.asarray(motion.xs))
    k, t = 3, problem.times[3]
    found = stage_expansion(weighed, jnp.asarray(motion.xs[k]), motion.us[k], t, motion.p).gradient[:6]
    np.testing.assert_allclose(found, gradient[k], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(final_expansion(weighed, jnp.asarray(motion.xs[-1]), motion.p).gradient, gradient[-1], atol=1e-9)


def test_a_goal_to_be_met_once_is_not_weighed():
    assert can_weigh_goals(stated(None, {"turn": GOALS["end"][0]}))
    assert not can_weigh_goals(stated(None, {"turn": Goal(lambda x: x.q[2:], 0.1, "rad", at="once")}))
    assert not can_weigh_goals(stated(None, {}))


def test_other_weights_are_other_numbers_alone():
    problem = stated(COSTS["terms"], {"turn": GOALS["end"][0]})
    one, two = (jax.tree.structure(with_weighed_goals(problem, weight)) for weight in (1.0, 10.0))
    assert one == two
