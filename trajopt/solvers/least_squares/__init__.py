"""Nonlinear least squares: Gauss-Newton, first-order descent, L-BFGS, with the state and the test of stationarity that they
share. `solvers.batch` solves many problems at once."""
