"""Nonlinear least squares: Gauss-Newton, first-order descent, L-BFGS, and many data sets at once (`estimate_batch`), with the
state and the test of stationarity that they share."""

from trajopt.solvers.least_squares.batch import Estimates, estimate_batch
from trajopt.solvers.least_squares.first_order import GradientDescent
from trajopt.solvers.least_squares.gauss_newton import GaussNewton
from trajopt.solvers.least_squares.lbfgs import LBFGS

__all__ = ["Estimates", "GaussNewton", "GradientDescent", "LBFGS", "estimate_batch"]
