r"""Covariance of a motion that was estimated over a horizon, at a cost linear in the horizon.

The unknowns of an estimation problem over T steps are the initial state x_0, the parameters p and the process noise u_t; the
states follow by x_{t+1} = f(x_t, u_t, p). With residuals of unit variance the negative logarithm of the posterior is, to second
order, the linear-quadratic problem of the last Gauss-Newton step, in e_t = [dx_t, dp]. Its Riccati pass eliminates u_{T-1},
x_T, u_{T-2}, ... from the block-tridiagonal normal equations: what remains of the cost after step t is 1/2 e_t^T P_t e_t, so
that P_t is the information which the measurements from t on hold about e_t, and

    cov e_0     = (P_0 + information of the priors)^-1
    cov e_{t+1} = (A + B K) cov e_t (A + B K)^T + B H^-1 B^T,     cov u_t = K cov e_t K^T + H^-1,     H = R + B^T P_{t+1} B

since given e_t the best u_t is K e_t, known up to a covariance of H^-1. The forward recursion adds positive terms only. It
gives the marginals of the Rauch-Tung-Striebel smoother without an inverse of any P_t, and at t = T those of the Kalman filter.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.linear_algebra import cho_solve, symmetric_cholesky
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.solvers.subproblems.box_qp import held_at_bound
from trajopt.solvers.subproblems.riccati import LQProblem, Policy, adjoint, riccati


def held_controls(problem: OptimalControlProblem, at: Trajectory, lq: LQProblem) -> Bool[Array, "T m"]:
    """Controls at a bound that the cost pushes against: they are known, not estimated."""
    _, slope = adjoint(lq)
    low, high = (jnp.asarray(b, at.us.dtype) for b in (problem.control_lower, problem.control_upper))
    return held_at_bound(at.us, slope, low, high)


def without(lq: LQProblem, held: Bool[Array, "T m"]) -> LQProblem:
    """The problem with the controls that are held taken out: they have unit cost and no effect."""
    free = jnp.where(held, 0.0, 1.0).astype(lq.R.dtype)
    R = lq.R * free[:, :, None] * free[:, None] + jax.vmap(jnp.diag)(1.0 - free)
    return dataclasses.replace(lq, B=lq.B * free[:, None], S=lq.S * free[:, None], R=R, r=lq.r * free)


def information(lq: LQProblem, held: Bool[Array, "T m"]) -> tuple[LQProblem, Policy]:
    """The problem in the free controls and its Riccati pass, whose P_t are informations."""
    reduced = without(lq, held)
    return reduced, riccati(reduced)


def marginals(
    lq: LQProblem, policy: Policy, held: Bool[Array, "T m"], initial: Float[Array, "n n"]
) -> tuple[Float[Array, "T+1 n n"], Float[Array, "T m m"]]:
    """(cov e_t, cov u_t) from cov e_0, of what `information` returned."""
    free = jnp.where(held, 0.0, 1.0).astype(initial.dtype)

    def body(cov: Array, inputs: tuple) -> tuple[Any, Any]:
        A, B, R, K, P, free = inputs
        H = R + B.T @ P @ B
        factor = symmetric_cholesky(H)
        spread = cho_solve(factor, jnp.diag(free)) * free
        closed = A + B @ K
        after = closed @ cov @ closed.T + B @ spread @ B.T
        return 0.5 * (after + after.T), (cov, K @ cov @ K.T + spread)

    inputs = (lq.A, lq.B, lq.R, policy.K, policy.P[1:], free)
    last, (states, controls) = jax.lax.scan(body, initial, inputs)
    return jnp.concatenate([states, last[None]]), controls


def inverse_information(
    matrix: Float[np.ndarray, "n n"], free: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n n"], int]:
    """((n, n) covariance, how many directions of the free variables are not determined); zero for the others.

    Judged in units in which the diagonal is 1, by 1000 n eps: an information, the square of a Jacobian, resolves no
    more. Directions that are not determined are left out of the inverse.
    """
    value = np.zeros_like(matrix)
    part = matrix[np.ix_(free, free)]
    if not part.size:
        return value, 0
    size = np.sqrt(np.maximum(np.diag(part), 0.0))
    lacking = int((size == 0).sum())
    size = np.where(size > 0, size, 1.0)
    w, V = np.linalg.eigh(part / np.outer(size, size))
    kept = w > 1000 * len(w) * np.finfo(matrix.dtype).eps * w.max(initial=0.0)
    root = V[:, kept] / np.sqrt(w[kept]) / size[:, None]
    value[np.ix_(free, free)] = root @ root.T
    return value, max(lacking, int((~kept).sum()))
