"""Lambda-returns and advantages against plain loops, with episodes that end in both ways."""

import numpy as np
import pytest

from trajopt.learning.returns import lambda_returns

T, N, DISCOUNT = 9, 4, 0.9


@pytest.fixture(scope="module")
def given():
    random = np.random.default_rng(0)
    ends = random.uniform(size=(T, N))
    return (*random.normal(size=(3, T, N)), ends < 0.15, (ends >= 0.15) & (ends < 0.3))


def plain_lambda_return(rewards, following, terminated, truncated, t, lambda_):
    """G_t as the mean of n-step returns (Sutton and Barto, eq. 12.3), weights (1 - lambda) lambda^(n - 1), the rest on the
    last."""
    found, weight, total, factor = 0.0, 1.0, 0.0, 1.0
    for k in range(t, T):
        total += factor * rewards[k]
        factor *= DISCOUNT
        if terminated[k]:
            return found + weight * total
        if truncated[k] or k == T - 1:
            return found + weight * (total + factor * following[k])
        found += weight * (1 - lambda_) * (total + factor * following[k])
        weight *= lambda_
    raise AssertionError


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_lambda_returns_are_means_of_n_step_returns(given, lambda_):
    rewards, _, following, terminated, truncated = given
    found = np.asarray(lambda_returns(rewards, following, terminated, truncated, DISCOUNT, lambda_))
    for i in range(N):
        columns = [a[:, i] for a in (rewards, following, terminated, truncated)]
        wanted = [plain_lambda_return(*columns, t, lambda_) for t in range(T)]
        np.testing.assert_allclose(found[:, i], wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_advantages_are_sums_of_temporal_differences(given, lambda_):
    rewards, values, following, terminated, truncated = given
    following = following.copy()  # of an episode that goes on, the value after a step is that before the next
    following[:-1] = np.where(terminated | truncated, following, np.roll(values, -1, 0))[:-1]
    found = np.asarray(lambda_returns(rewards, following, terminated, truncated, DISCOUNT, lambda_) - values)
    for i in range(N):
        later = 0.0
        for t in reversed(range(T)):
            difference = rewards[t, i] + DISCOUNT * (not terminated[t, i]) * following[t, i] - values[t, i]
            over = terminated[t, i] or truncated[t, i]
            later = difference + DISCOUNT * lambda_ * (0.0 if over else later)
            assert abs(found[t, i] - later) < 1e-13
