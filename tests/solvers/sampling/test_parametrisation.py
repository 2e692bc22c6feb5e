"""Knots, bounds and deviations of the search space, and the rollout program against the problem's own functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import double_integrator
from test_single_shooting import everything

from trajopt.errors import OptionError, ShapeError
from trajopt.solvers.sampling.parametrisation import PARAMETRISATIONS, basis, decode, make_space
from trajopt.solvers.sampling.rollouts import score
from trajopt.solvers.subproblems.augmented_lagrangian import Constraints, Multipliers, term, violation


def test_bases():
    np.testing.assert_array_equal(basis("piecewise-constant", 5, 2) @ [1.0, 2.0], [1, 1, 1, 2, 2])
    np.testing.assert_allclose(basis("linear", 5, 3) @ [0.0, 2.0, 0.0], [0, 1, 2, 1, 0], atol=1e-15)
    # A natural spline through (0, 1, 0) at t = 0, 2, 4 is 1 - 3/2 s^2 + s^3/2 at distance s = |t - 2| / 2 from its top.
    np.testing.assert_allclose(basis("cubic", 5, 3) @ [0.0, 1.0, 0.0], [0, 11 / 16, 1, 11 / 16, 0], atol=1e-15)
    for kind in PARAMETRISATIONS:
        np.testing.assert_allclose(basis(kind, 7, 7), np.eye(7), atol=1e-15)
        np.testing.assert_allclose(basis(kind, 7, 3).sum(1), 1.0)
    np.testing.assert_array_equal(basis("cubic", 4, 1), np.ones((4, 1)))


@pytest.mark.parametrize("kind", PARAMETRISATIONS)
def test_controls_stay_in_their_bounds_and_are_encoded(kind):
    problem = double_integrator(9, control_lower=-1.0, control_upper=2.0)
    space = make_space(problem, problem.x0, kind, 4)
    np.testing.assert_allclose(space.data["scale"], 0.75)
    y = space.clip(10.0 * np.random.default_rng(0).normal(size=4))
    assert np.all(y * 0.75 >= -1.0) and np.all(y * 0.75 <= 2.0)
    x0, us, _ = decode(problem, jax.tree.map(jnp.asarray, space.data), jnp.asarray(y))
    assert us.shape == (9, 1) and us.min() >= -1.0 and us.max() <= 2.0
    inside = np.array([0.1, -0.2, 0.3, 0.4])
    motion = problem.check_point(np.asarray(decode(problem, space.data, inside)[1]))
    np.testing.assert_allclose(space.encode(motion), inside, atol=1e-12)


def test_what_cannot_be_searched_is_refused():
    free = double_integrator(9)
    with pytest.raises(OptionError, match=r"does not bound its controls on both sides.*give standard_deviation"):
        make_space(free, free.x0)
    with pytest.raises(ShapeError, match=r"standard_deviation has shape \(3,\); expected a number or \(1,\)"):
        make_space(free, free.x0, deviations=([1.0] * 3, None, None))
    with pytest.raises(OptionError, match="standard_deviation is 0.0; it must be positive"):
        make_space(free, free.x0, deviations=(0.0, None, None))
    with pytest.raises(OptionError, match="has 9 steps, expected 1 to 9"):
        make_space(free, free.x0, knots=10, deviations=(1.0, None, None))
    problem = everything()
    with pytest.raises(OptionError, match="does not bound its parameters.*give parameter_deviation"):
        make_space(problem, problem.x0, deviations=(1.0, None, 1.0))
    with pytest.raises(OptionError, match="does not bound its free initial state.*give initial_state_deviation"):
        make_space(problem, problem.x0, deviations=(1.0, 1.0, None))


def test_scores_are_those_of_the_problem():
    """Every kind of constraint, a parameter and a free initial state; in one batch, one by one, and in chunks with a rest."""
    problem = everything()
    oracle, constraints = problem.compile(), Constraints(problem)
    space = make_space(problem, problem.x0, deviations=(0.5, 0.2, 0.1))
    rng = np.random.default_rng(1)
    y = rng.normal(size=(7, space.size))
    zero = constraints.initial(3.0)
    draw = lambda a: rng.normal(size=a.shape)  # noqa: E731
    multipliers = Multipliers(draw(zero.stage), draw(zero.terminal), zero.stage_penalty, zero.terminal_penalty)
    scores = score(oracle, space, y, multipliers)

    @jax.jit
    def expected(y):
        motion = problem.rollout(*decode(problem, jax.tree.map(jnp.asarray, space.data), y))
        times = jnp.asarray(problem.times[:-1])
        rows = jax.vmap(lambda x, u, t: constraints.stage(x, u, t, motion.p))(motion.xs[:-1], motion.us, times)
        end = constraints.terminal(motion.xs[-1], motion.p)
        stage, terminal = constraints.inequality()
        held = term(multipliers.stage, multipliers.stage_penalty, rows, stage)
        held += term(multipliers.terminal, multipliers.terminal_penalty, end, terminal)
        largest = jnp.maximum(
            violation(rows, constraints.relevant(), stage), violation(end, np.ones(end.shape[0], bool), terminal)
        )
        return problem.cost(motion), problem.cost(motion) + held, largest, motion

    for i in range(7):
        cost, merit, largest, motion = expected(y[i])
        np.testing.assert_allclose([scores.cost[i], scores.merit[i], scores.violation[i]], [cost, merit, largest])
        if i == scores.best:
            np.testing.assert_allclose(scores.motion.xs, motion.xs)
    assert scores.best == np.argmin(scores.violation) and oracle.evaluations == 7
    for chunk in (1, 3):
        chunked = score(oracle, space, y, multipliers, chunk)
        assert chunked.best == scores.best
        for key in ("merit", "cost", "violation", "arrival"):
            np.testing.assert_allclose(getattr(chunked, key), getattr(scores, key), rtol=1e-12)
        np.testing.assert_allclose(chunked.rows[1][0], scores.rows[1][0], rtol=1e-12)
