r"""Second derivatives of a step through contact, by differences of its first derivatives within a contact mode.

While no contact opens, closes, sticks or slips, a step is smooth, and the Lagrangian of stage t has the curvature

    M_t = d/dz (F_t(z)^T lambda_{t+1}),    z = [dx, du, dp], F = d x_{t+1} / dz,

which Gauss-Newton Hessians lack. Each column is the difference quotient of F to one side or to the other. Where both agree, it is
their mean; where they do not, a mode ends within `STEP`, and the smaller quotient is the one that did not jump (the minmod rule
of slope limiters, here for columns: Harten 1983). Where all steps are smooth `motion_curvature` takes `dynamics_hessian`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from trajopt.problems.expansions import dynamics_hessian, linear_dynamics, moved, twice_differentiable
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.trajectory import ControlProblem

STEP = 1e-7  # of each coordinate: first derivatives are good to 1e-12, and contacts at rest open within 1e-5
AGREE = 0.5  # greatest difference of two quotients' sizes, as a share of the larger one, at which both are in one mode


def motion_curvature(
    problem: OptimalControlProblem, motion: Trajectory, costates: Float[Array, "T1 n"]
) -> Float[Array, "T z z"]:
    """M_t of each stage, symmetric, in [dx, du, dp]; through contact within its mode, and zero where it is not finite."""
    curvature = dynamics_hessian(problem) if twice_differentiable(problem) else step_curvature(problem)
    times = jnp.asarray(problem.times)[:-1]
    return jax.vmap(lambda x, u, t, w: curvature(x, u, t, motion.p, w))(motion.xs[:-1], motion.us, times, costates[1:])


def curvature_along(
    problem: OptimalControlProblem,
    motion: Trajectory,
    costates: Float[Array, "T1 n"],
    directions: Float[Array, "T z"],
) -> Float[Array, "T z"]:
    """M_t d_t of each stage for one direction d_t in [dx, du, dp], by three linearisations each; zero where it is not finite."""
    pulled, times = pulled_costate(problem), jnp.asarray(problem.times)[:-1]

    def along(x: Array, u: Array, t: ScalarLike, w: Array, direction: Array) -> Array:
        square = jnp.vdot(direction, direction)
        size = jnp.sqrt(jnp.where(square > 0, square, 1.0))
        displaced = STEP * direction / size * jnp.array([[0.0], [1.0], [-1.0]], u.dtype)
        here, ahead, behind = jax.vmap(lambda dz: pulled(x, u, t, motion.p, w, dz))(displaced)
        product = size * one_mode((ahead - here) / STEP, (here - behind) / STEP)
        return jnp.where(jnp.all(jnp.isfinite(product)), product, 0.0)

    return jax.vmap(along)(motion.xs[:-1], motion.us, times, costates[1:], directions)


def pulled_costate(problem: ControlProblem) -> Callable[..., Array]:
    """The function (x, u, t, p, w, dz) -> F^T w at a step displaced by dz (z,), F being in the tangent coordinates there."""
    linear = linear_dynamics(problem.with_gradient("implicit"))

    def pulled(x: Array, u: Array, t: ScalarLike, p: Array, w: Array, dz: Array) -> Array:
        x, u, p = moved(problem, x, u, p)(dz)
        return linear(x, u, t, p)[1].T @ w

    return pulled


def step_curvature(problem: ControlProblem) -> Callable[..., Array]:
    """The function (x, u, t, p, w) -> M (z, z) of one step whose successor has the costate w; z = [dx, du, dp].

    On manifolds F is in the tangent coordinates of each displaced state, so that M leaves out how these turn.
    """
    pulled, size = pulled_costate(problem), problem.n + problem.nu + problem.n_p

    def curvature(x: Array, u: Array, t: ScalarLike, p: Array, w: Array) -> Array:
        displaced = STEP * jnp.concatenate([jnp.zeros((1, size)), jnp.eye(size), -jnp.eye(size)]).astype(u.dtype)
        values = jax.vmap(lambda dz: pulled(x, u, t, p, w, dz))(displaced)
        here, ahead, behind = values[:1], values[1 : size + 1], values[size + 1 :]
        rows = one_mode((ahead - here) / STEP, (here - behind) / STEP)
        M = 0.5 * (rows + rows.T)
        return jnp.where(jnp.all(jnp.isfinite(M)), M, 0.0)

    return curvature


def one_mode(ahead: Float[Array, "*b z"], behind: Float[Array, "*b z"]) -> Float[Array, "*b z"]:
    """Of two one-sided quotients their mean where their sizes agree, else the smaller one."""
    a, b = jnp.linalg.norm(ahead, axis=-1, keepdims=True), jnp.linalg.norm(behind, axis=-1, keepdims=True)
    both = jnp.abs(a - b) <= AGREE * jnp.maximum(a, b)
    return jnp.where(both, 0.5 * (ahead + behind), jnp.where(a < b, ahead, behind))
