"""falling-mass (Smoothed, Fig. 3): curves against a loop in NumPy, the limit of sharp smoothing, signs of derivatives.

drone-takeoff (Nimble VII-C, Fig. 8): plain gradient descent lifts off with complementarity-aware gradients only.
"""

import dataclasses

import numpy as np
import optax
import pytest

from trajopt import problems, solvers
from trajopt.errors import OptionError
from trajopt.problems.library.falling_mass import curves, falling_system, perturbed_curves
from trajopt.result import Status

G, DT, STEPS = 9.81, 1e-2, 50
THRESHOLD = 0.5 * G * (DT * STEPS) ** 2
HEIGHTS = np.array([0.7, 0.9, 1.1, 1.2, 1.25, 1.4, 2.5])


def fall(h, kappa=None):
    """Moreau's steps of a point mass, its impulse scaled by sigmoid(kappa depth), or by the step function."""
    z, v = np.array(h, float), np.zeros_like(h)
    for _ in range(STEPS):
        middle = z + 0.5 * DT * v
        share = (middle <= 0) if kappa is None else 1 / (1 + np.exp(kappa * middle))
        free = v - G * DT
        v = free - share * np.minimum(free, 0.0)
        z = middle + 0.5 * DT * v
    return z, v


def test_smoothed_contact_is_that_of_the_source():
    y = curves(falling_system("smoothed"), HEIGHTS)
    z, v = fall(HEIGHTS, 20.0)
    np.testing.assert_allclose(y.height, z, atol=1e-10)
    np.testing.assert_allclose(y.velocity, v, atol=1e-9)
    d = 1e-5
    (z1, v1), (z0, v0) = fall(HEIGHTS + d, 20.0), fall(HEIGHTS - d, 20.0)
    np.testing.assert_allclose(y.height_slope, (z1 - z0) / (2 * d), atol=1e-7)
    np.testing.assert_allclose(y.velocity_slope, (v1 - v0) / (2 * d), atol=1e-7)
    # Flat where the mass comes to rest. Towards h* it ends the higher and the faster, and both are felt from 0.1 m below.
    assert (np.abs(y.height_slope[:2]) < 0.02).all()
    assert (y.height_slope[2:] > 0.1).all() and (y.velocity_slope[2:-1] < -1.0).all() and HEIGHTS[2] < THRESHOLD - 0.1
    np.testing.assert_allclose([y.height_slope[-1], y.velocity_slope[-1]], [1.0, 0.0], atol=1e-6)


@pytest.mark.slow
def test_sharp_smoothing_is_hard_contact_with_its_sawtooth():
    """Away from phi = 0 at the detection; the derivative is 1 on each tooth, though the curve does not rise."""
    z, v = fall(HEIGHTS)
    y = curves(falling_system("smoothed", kappa=3e4), HEIGHTS)
    hard = curves(falling_system("detect"), HEIGHTS)
    np.testing.assert_allclose(hard.height, z, atol=1e-10)
    np.testing.assert_allclose(hard.velocity, v, atol=1e-10)
    np.testing.assert_allclose(y.height, hard.height, atol=1e-9)
    np.testing.assert_allclose(y.velocity, hard.velocity, atol=1e-9)
    np.testing.assert_allclose(hard.height_slope, 1.0, atol=1e-9)
    np.testing.assert_allclose(hard.velocity_slope, 0.0, atol=1e-9)
    below = np.linspace(0.7, 1.1, 40)
    teeth = curves(falling_system("detect"), below).height
    assert np.ptp(teeth) < 0.05 and (np.diff(teeth) < -0.01).sum() >= 3


def test_the_mean_of_derivatives_is_biased_and_the_fit_is_not():
    heights = np.array([0.8, 1.0])
    mean, fit = perturbed_curves(falling_system("detect"), heights, samples=400)
    np.testing.assert_allclose(mean.height_slope, 1.0, atol=1e-9)
    assert (np.abs(fit.height_slope) < 0.2).all()  # the curve of the means is flat


@pytest.mark.slow
def test_the_height_is_found_with_smoothed_contact_only():
    found = solvers.solve(problems.get("falling-mass"), solvers.GaussNewton())
    assert found.success
    np.testing.assert_allclose(found.x, [0.5 + THRESHOLD], atol=1e-3)
    blind = solvers.solve(problems.get("falling-mass", contact="speculative"), solvers.GaussNewton())
    assert not blind.success
    np.testing.assert_allclose(blind.x, [1.1], atol=1e-9)


def test_errors():
    with pytest.raises(OptionError, match="contact is 'smooth'; did you mean 'smoothed'"):
        falling_system("smooth")
    with pytest.raises(OptionError, match="steps is 0"):
        problems.get("falling-mass", steps=0)


@pytest.mark.slow
def test_exact_gradients_stay_and_aware_ones_arrive():
    problem = problems.get("drone-takeoff")
    descent = solvers.SingleShooting(optax.sgd(10.0), max_iterations=150)
    aware = solvers.solve(problem, descent)
    cost = aware.trace["cost"]
    np.testing.assert_allclose(cost[0], (5.0 - 0.8) ** 2, rtol=1e-3)
    assert np.ptp(cost[:3]) < 1e-3  # the thrust has to outgrow the weight first
    assert cost[min(100, cost.size - 1)] < 1e-2 and cost[-1] < 1e-4
    assert aware.success and aware.residuals["height_error"] < 1e-2
    exact = solvers.solve(problem, dataclasses.replace(descent, max_iterations=3), gradient="implicit")
    np.testing.assert_allclose(exact.cost, cost[0], rtol=1e-12)
    assert exact.residuals["gradient_norm"] < 1e-15
    assert not exact.success and exact.status == Status.stalled and "height_error" in exact.message
