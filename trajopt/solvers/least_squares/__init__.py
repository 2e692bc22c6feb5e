"""Nonlinear least squares: Gauss-Newton, first-order descent, L-BFGS, with the state and the test of stationarity that they
share. `solvers.batch` solves many problems at once."""

from trajopt.solvers.least_squares.first_order import GradientDescent
from trajopt.solvers.least_squares.gauss_newton import GaussNewton
from trajopt.solvers.least_squares.lbfgs import LBFGS

__all__ = ["GaussNewton", "GradientDescent", "LBFGS"]
