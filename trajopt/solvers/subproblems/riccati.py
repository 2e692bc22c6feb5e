"""The time-varying linear-quadratic problem, and its solution by Riccati recursion.

    minimise    sum_{t<T} 1/2 x_t^T Q_t x_t + x_t^T S_t u_t + 1/2 u_t^T R_t u_t + q_t^T x_t + r_t^T u_t
                + 1/2 x_T^T Q_T x_T + q_T^T x_T
    subject to  x_{t+1} = A_t x_t + B_t u_t + d_t

The cost to go from x_t is c_t + p_t^T x_t + 1/2 x_t^T P_t x_t and the best control u_t = K_t x_t + k_t. The backward pass is
the textbook recursion, and takes bounds on the controls (Tassa et al. 2014: the part of the feedback that belongs to
controls at a bound is zero). It needs every R_t + B_t^T P_{t+1} B_t positive definite.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt import native
from trajopt.dynamics.linear_algebra import cho_solve, cho_solve_vector, symmetric_cholesky
from trajopt.solvers.subproblems.box_qp import box_qp, held_at_bound


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LQProblem:
    """The data of the problem in the module's docstring."""

    A: Float[Array, "T n n"]
    B: Float[Array, "T n m"]
    d: Float[Array, "T n"]
    Q: Float[Array, "T+1 n n"]
    R: Float[Array, "T m m"]
    S: Float[Array, "T n m"]
    q: Float[Array, "T+1 n"]
    r: Float[Array, "T m"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Policy:
    """Feedback K, feed-forward k, cost to go (P, p, c), and whether every minimisation over u_t was strictly convex.

    `slope` and `curvature` are the sums over t of k_t^T g_t and k_t^T H_t k_t, with g_t and H_t the gradient and Hessian of the
    cost to go with respect to u_t at x_t = 0: for d = 0, and 0 instead of x_0, the cost changes by slope + curvature / 2.
    """

    K: Float[Array, "T m n"]
    k: Float[Array, "T m"]
    P: Float[Array, "T+1 n n"]
    p: Float[Array, "T+1 n"]
    c: Float[Array, " T+1"]
    slope: Float[Array, ""]
    curvature: Float[Array, ""]
    convex: Bool[Array, ""]


def riccati(
    lq: LQProblem, lower: Float[Array, "T m"] | None = None, upper: Float[Array, "T m"] | None = None
) -> Policy:
    """Backward pass. lower, upper: bounds on u_t at x_t = 0; the feedback may leave them."""

    def body(carry: tuple, inputs: tuple) -> tuple[Any, Any]:
        P, p, c, k_next, slope, bend, convex = carry
        A, B, d, Q, R, S, q, r, low, high = inputs
        w = p + P @ d
        PB = P @ B
        H, G, F = R + B.T @ PB, S.T + PB.T @ A, Q + A.T @ P @ A
        H = _symmetric(H)
        g, f = r + B.T @ w, q + A.T @ w
        if low is None:
            factor = symmetric_cholesky(H)
            k, K = -cho_solve_vector(factor, g), -cho_solve(factor, G)
        else:
            k, free, factor = box_qp(H, g, low, high, k_next)
            K = -jnp.where(free[:, None], cho_solve(factor, jnp.where(free[:, None], G, 0.0)), 0.0)
        HK, Hk = H @ K, H @ k
        P_new = _symmetric(F + K.T @ HK + K.T @ G + G.T @ K)
        p_new = f + K.T @ (Hk + g) + G.T @ k
        down, turn = jnp.vdot(k, g), jnp.vdot(k, Hk)
        c = c + jnp.vdot(d, p + 0.5 * (P @ d)) + down + 0.5 * turn
        convex = convex & jnp.all(jnp.isfinite(factor))
        return (P_new, p_new, c, k, slope + down, bend + turn, convex), (K, k, P_new, p_new, c)

    zero = jnp.zeros((), lq.q.dtype)
    start = (lq.Q[-1], lq.q[-1], zero, jnp.zeros_like(lq.r[-1]), zero, zero, jnp.ones((), bool))
    low, high = (None, None) if lower is None else (lower, upper)
    inputs = (lq.A, lq.B, lq.d, lq.Q[:-1], lq.R, lq.S, lq.q[:-1], lq.r, low, high)
    (_, _, _, _, slope, bend, convex), (K, k, P, p, c) = jax.lax.scan(body, start, inputs, reverse=True)
    P, p = jnp.concatenate([P, lq.Q[-1:]]), jnp.concatenate([p, lq.q[-1:]])
    return Policy(K, k, P, p, jnp.concatenate([c, zero[None]]), slope, bend, convex)


def riccati_native(
    lq: LQProblem, lower: Float[Array, "T m"] | None = None, upper: Float[Array, "T m"] | None = None
) -> Policy:
    """`riccati` by the compiled core, in float64 whatever the arrays: the same recursion, the same rules of the box, one call.

    Of a pass that is not convex the steps that are left have gains that are not numbers. No derivative is defined.
    """
    T, n, m = lq.B.shape
    shapes = ((T, m, n), (T, m), (T + 1, n, n), (T + 1, n), (T + 1,), (3,))
    low, high = (lq.r if bound is None else bound for bound in (lower, upper))
    K, k, P, p, c, sums = native.call(
        "riccati", tuple(jax.ShapeDtypeStruct(shape, lq.q.dtype) for shape in shapes),
        lq.A, lq.B, lq.d, lq.Q, lq.R, lq.S, lq.q, lq.r, low, high, bounded=lower is not None,
    )  # fmt: skip
    return Policy(K, k, P, p, c, sums[0], sums[1], sums[2] > 0)


def lq_rollout(
    lq: LQProblem, policy: Policy, x0: Float[Array, " n"]
) -> tuple[Float[Array, "T1 n"], Float[Array, "T m"]]:
    """States (T+1, n) and controls (T, m) of the policy from x0."""

    def body(x: Array, inputs: tuple) -> tuple[Any, Any]:
        A, B, d, K, k = inputs
        u = K @ x + k
        x_next = A @ x + B @ u + d
        return x_next, (x_next, u)

    _, (xs, us) = jax.lax.scan(body, x0, (lq.A, lq.B, lq.d, policy.K, policy.k))
    return jnp.concatenate([x0[None], xs]), us


def adjoint(lq: LQProblem) -> tuple[Float[Array, "T1 n"], Float[Array, "T m"]]:
    """Costates (T+1, n), lambda_t = q_t + A_t^T lambda_{t+1}, and dH/du_t = r_t + B_t^T lambda_{t+1} (T, m).

    At x = 0 and u = 0; d plays no part.
    """

    def body(costate: Array, inputs: tuple) -> tuple[Any, Any]:
        A, q = inputs
        return (q + A.T @ costate,) * 2

    last = lq.q[-1]
    _, costates = jax.lax.scan(body, last, (lq.A, lq.q[:-1]), reverse=True)
    costates = jnp.concatenate([costates, last[None]])
    return costates, lq.r + (lq.B.mT @ costates[1:, :, None])[..., 0]


def adjoint_of_policy(
    lq: LQProblem,
    gains: Float[Array, "T m n"],
    us: Float[Array, "T m"],
    lower: Float[Array, " m"],
    upper: Float[Array, " m"],
) -> tuple[Float[Array, "T1 n"], Float[Array, "T m"]]:
    """`adjoint` along a motion that follows the policy u_t = K_t x_t + w_t: its costates, and the gradient by w.

    The gradient is dH/du_t with lambda_t = q_t + A_t^T lambda_{t+1} + K_t^T dH/du_t. It vanishes where that by u does, since
    u_t - w_t depends on w before t alone; but along an unstable motion that by u, and its rounding, grow exponentially with the
    number of steps. us: the controls at u = 0; those that this gradient pushes against a bound they are at do not follow the
    state. Gains that are not finite, of a pass that is not convex, count as zero.
    """

    def body(costate: Array, inputs: tuple) -> tuple[Any, Any]:
        A, B, q, r, K, u = inputs
        gradient = r + B.T @ costate
        follows = ~held_at_bound(u, gradient, lower, upper)[:, None] & jnp.all(jnp.isfinite(K))
        before = q + A.T @ costate + jnp.where(follows, K, 0.0).T @ gradient
        return before, (before, gradient)

    last = lq.q[-1]
    _, (costates, gradient) = jax.lax.scan(body, last, (lq.A, lq.B, lq.q[:-1], lq.r, gains, us), reverse=True)
    return jnp.concatenate([costates, last[None]]), gradient


def _symmetric(M: Array) -> Array:
    return 0.5 * (M + M.mT)
