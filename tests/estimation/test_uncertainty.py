"""Covariances against dense formulae, directions in words, robust weights against their definition."""

import numpy as np
import pytest
import scipy.stats

from trajopt.errors import OptionError
from trajopt.estimation import RobustLoss
from trajopt.estimation.uncertainty import Information, hidden, named, quantile, simple_directions

ALL = np.ones(2, bool)


def linear_model(rng, recordings, samples, spread):
    """y = X b + an error that a recording's samples share; curvature and scores at the least-squares estimate."""
    X = rng.normal(size=(recordings, samples, 2))
    y = (
        np.einsum("rsi,i->rs", X, [1.0, -2.0])
        + rng.normal(size=X.shape[:2])
        + spread * rng.normal(size=(recordings, 1)) * X[:, :, 0]
    )
    flat, target = X.reshape(-1, 2), y.reshape(-1)
    b = np.linalg.lstsq(flat, target, rcond=None)[0]
    r = np.einsum("rsi,i->rs", X, b) - y
    return b, Information(np.einsum("rsi,rsj->rij", X, X), np.einsum("rsi,rs->ri", X, r))


def test_few_recordings_take_the_stated_noise():
    _, information = linear_model(np.random.default_rng(0), 5, 20, 0.0)
    np.testing.assert_allclose(information.covariance(ALL), np.linalg.inv(information.total), rtol=1e-9)
    assert quantile(5, False) == pytest.approx(1.96, abs=1e-3)
    assert quantile(10, True) == pytest.approx(scipy.stats.t.ppf(0.975, 9))


def test_the_sandwich_covers_where_the_stated_noise_does_not():
    rng, hits, naive = np.random.default_rng(1), 0, 0
    for _ in range(400):
        b, information = linear_model(rng, 12, 20, 1.0)
        sd = np.sqrt(information.covariance(ALL)[0, 0])
        hits += abs(b[0] - 1.0) < quantile(12, True) * sd
        naive += abs(b[0] - 1.0) < 1.96 * np.sqrt(np.linalg.inv(information.total)[0, 0])
    assert 0.9 < hits / 400 < 0.99 and naive / 400 < 0.6


def test_pieces_of_recordings_count_once():
    """Twelve pieces of four recordings are four clusters; the sandwich of twelve wants no more than eleven directions."""
    _, information = linear_model(np.random.default_rng(3), 12, 20, 0.0)
    whole = information.summed(np.repeat(np.arange(4), 3))
    assert information.clustered and not whole.clustered
    np.testing.assert_allclose(whole.total, information.total)
    np.testing.assert_allclose(whole.s[1], information.s[3:6].sum(0))
    wide = Information(np.tile(np.eye(12), (12, 1, 1)), np.zeros((12, 12)))
    assert not wide.clustered
    np.testing.assert_allclose(wide.covariance(np.ones(12, bool)), np.eye(12) / 12)


def test_bootstrap_of_a_linear_model():
    _, information = linear_model(np.random.default_rng(2), 40, 20, 1.0)
    draws = information.bootstrap(ALL, 2000, 0)
    np.testing.assert_allclose(draws.std(0), np.sqrt(np.diag(information.covariance(ALL))), rtol=0.2)


def test_directions_that_are_not_determined():
    S = np.tile(np.outer([1.0, 1.0, 0.0], [1.0, 1.0, 0.0]), (10, 1, 1))
    information = Information(S, np.random.default_rng(0).normal(size=(10, 3)))
    known = information.determined(np.ones(3, bool))
    np.testing.assert_allclose(np.abs(known[:, 0]), [np.sqrt(0.5), np.sqrt(0.5), 0.0], atol=1e-12)
    lost = np.linalg.svd(known)[0][:, 1:]
    words = sorted(named(d, ("a", "b", "c")) for d in simple_directions(lost).T)
    assert words == ["+0.71 a -0.71 b", "+1.00 c"] or words == ["+0.71 b -0.71 a", "+1.00 c"]
    assert hidden(np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), lost).tolist() == [False, True, True]


def test_robust_weights_by_sample_and_by_recording():
    r = np.array([[0.5, 0.5, 10.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    present = np.array([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    sample = np.array([0, 0, 1, 1])
    weight, cost = RobustLoss("huber").weights(r, sample, present)
    assert weight[0, 0] == pytest.approx(1.0) and weight[0, 2] == pytest.approx(1.345 / 10.0)
    assert cost[1] == pytest.approx(2.0) and cost[0] == pytest.approx(0.25 + 1.345 * 10.0 - 1.345**2 / 2)
    linear, half = RobustLoss().weights(r, sample, present)
    assert np.all(linear == 1.0) and half[0] == pytest.approx(0.5 * (0.5 + 100.0))
    whole, _ = RobustLoss("cauchy", by="recording").weights(
        np.array([[1.0], [1.0], [30.0]]), np.zeros(1, int), np.ones((3, 1))
    )
    assert whole[2, 0] < 0.01 < 0.8 < whole[0, 0]


def test_bad_losses():
    with pytest.raises(OptionError, match="by is 'row'"):
        RobustLoss("huber", by="row")
