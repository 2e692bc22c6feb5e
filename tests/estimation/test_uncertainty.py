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
    np.testing.assert_allclose(information.covariance(ALL, 4.0), 4.0 * np.linalg.inv(information.total), rtol=1e-9)
    assert np.all(np.isinf(information.freedom(ALL, np.eye(2))))
    assert quantile(np.inf) == pytest.approx(1.96, abs=1e-3)
    assert quantile(9.0) == pytest.approx(scipy.stats.t.ppf(0.975, 9))


def covered(information, error, free=ALL):
    """Whether the interval of the first parameter holds a value that is so far off."""
    first = np.eye(len(free))[:1]
    half = quantile(information.freedom(free, first))[0]
    return abs(error) < half * np.sqrt(information.covariance(free)[0, 0])


def test_the_sandwich_covers_where_the_stated_noise_does_not():
    rng, hits, naive = np.random.default_rng(1), 0, 0
    for _ in range(400):
        b, information = linear_model(rng, 12, 20, 1.0)
        hits += covered(information, b[0] - 1.0)
        naive += abs(b[0] - 1.0) < 1.96 * np.sqrt(np.linalg.inv(information.total)[0, 0])
    assert 0.9 < hits / 400 < 0.99 and naive / 400 < 0.6


def test_the_sandwich_covers_with_as_many_directions_as_recordings():
    """Ten recordings of twelve parameters whose samples share errors of deviation 3, each louder in its own directions."""
    rng, hits, free = np.random.default_rng(4), 0, np.ones(12, bool)
    for _ in range(200):
        X = rng.normal(size=(10, 30, 12)) * rng.uniform(0.3, 1.0, (10, 1, 12))
        mixed = np.einsum("rsi,ri->rs", X, rng.normal(size=(10, 12)))
        r = -mixed - rng.normal(size=(10, 30))  # at b = 0, the truth
        S, s = np.einsum("rsi,rsj->rij", X, X), np.einsum("rsi,rs->ri", X, r)
        b = -np.linalg.solve(S.sum(0), s.sum(0))
        hits += covered(Information(S, s + S @ b), b[0], free)
    assert 0.9 < hits / 200 < 0.99


def test_one_recording_alone_in_a_direction_takes_the_stated_noise():
    """Nine recordings say nothing of the second parameter."""
    rng = np.random.default_rng(5)
    S = np.tile(np.diag([10.0, 0.0]), (10, 1, 1))
    S[0, 1, 1] = 4.0
    s = rng.normal(size=(10, 2)) * np.sqrt(np.einsum("rii->ri", S))
    s -= S @ np.linalg.solve(S.sum(0), s.sum(0))
    information = Information(S, s)
    C, freedom = information.covariance(ALL, 2.0), information.freedom(ALL, np.eye(2))
    np.testing.assert_allclose(C[1, 1], 2.0 / 4.0, rtol=1e-9)
    np.testing.assert_allclose(C[0, 0], (s[:, 0] ** 2).sum() / 0.9 / 100.0**2, rtol=1e-9)
    assert freedom[0] == pytest.approx(9.0) and np.isinf(freedom[1])


def test_losses_that_are_no_likelihoods_need_two_recordings():
    S, s = np.tile(np.eye(1), (2, 1, 1)), np.array([[1.0], [-1.0]])
    information = Information(S, s, likelihood=False)
    np.testing.assert_allclose(information.covariance(ALL[:1]), [[1.0]], rtol=1e-9)  # n / (n - 1) (1 + 1) / 2^2
    np.testing.assert_allclose(information.freedom(ALL[:1], np.eye(1)), [1.0])
    assert information.clustered and not Information(S, s).clustered


def test_pieces_of_recordings_count_once():
    """Twelve pieces of four recordings are four clusters."""
    _, information = linear_model(np.random.default_rng(3), 12, 20, 0.0)
    whole = information.summed(np.repeat(np.arange(4), 3))
    assert information.clustered and not whole.clustered
    np.testing.assert_allclose(whole.total, information.total)
    np.testing.assert_allclose(whole.s[1], information.s[3:6].sum(0))


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
