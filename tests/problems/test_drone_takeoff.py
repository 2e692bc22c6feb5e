"""drone-takeoff (Nimble VII-C, Fig. 8): plain gradient descent lifts off with complementarity-aware gradients only."""

import dataclasses

import numpy as np
import optax
import pytest

from trajopt import problems, solvers
from trajopt.result import Status


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
