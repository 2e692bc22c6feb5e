"""Estimation along a motion: Gauss-Newton over a horizon (which `GaussNewton` calls), the moving horizon, and covariances by one
backward and one forward pass."""

from trajopt.solvers.estimation.moving_horizon import Estimate, MovingHorizon, Window

__all__ = ["Estimate", "MovingHorizon", "Window"]
