"""Estimation along a motion: Gauss-Newton over a horizon (which `GaussNewton` calls), and covariances by one backward and one
forward pass."""
