r"""Gains that keep a robot on a motion: the time-varying linear-quadratic regulator about it.

    minimise    sum_t dt 1/2 (|e_t / errors|^2 + |du_t / controls|^2) + 1/2 |e_T / errors|^2
    subject to  e_{t+1} = A_t e_t + B_t du_t,    e_t = x_t (-) xbar_t,    u_t = ubar_t + K_t e_t

A_t, B_t are the exact derivatives of the motion's steps, contacts as the motion has them. The gains of iLQR and DDP
(`Solution.gains`) are for going on with a search: those of controls at a bound are zero, and damping makes them small where
the search had to be careful. Beyond a touchdown that comes early or late A_t, B_t are those of the wrong contacts; from there on
feedback of the joints alone (`joint_gains`) does better.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model
from trajopt.errors import NonFiniteError, OptionError, ShapeError
from trajopt.problems import programs
from trajopt.problems.expansions import linear_dynamics
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.targets import JointTargets
from trajopt.problems.trajectory import Answer
from trajopt.solvers.subproblems.riccati import LQProblem, riccati


def tracking_gains(
    problem: OptimalControlProblem, solution: Answer, errors: Any, controls: Any = None
) -> Float[np.ndarray, "T nu n"]:
    """K_t of the regulator about the motion of a solution: u = u_t + K_t (x (-) x_t), in tangent coordinates.

    errors: m, rad, m/s, rad/s: what counts as one of each component of the error, a number or (n,). controls: the same of the
    controls, a number or (nu,), by default the limits of the motors. Raises `OptionError` without a `System` or limits,
    `ShapeError`, and `NonFiniteError` where the recursion fails.
    """
    system = problem.system
    if system is None:
        raise OptionError(f"problem '{problem.name}' has no System; only a System's motions are tracked")
    upper = np.asarray(system.model.control_upper, float) if controls is None else controls
    error, control = _scales("errors", errors, problem.n), _scales("controls", upper, problem.nu)
    motion = problem.point_of(solution)
    arrays = (np.asarray(a, problem.dtype) for a in (motion.xs, motion.us, motion.p, error, control))
    K = np.array(programs.run(_regulator, problem, *arrays)[0])
    if not np.isfinite(K).all():
        raise NonFiniteError(
            f"problem '{problem.name}': the gains about the motion are not finite; allow larger errors"
        )
    return K


def joint_gains(model: Model, stiffness: Any, damping: Any) -> Float[np.ndarray, "nu n"]:
    """K of u = u_t + kp (q_t - q) + kd (v_t - v) of the joints that the motors drive; N m/rad, N m s/rad, numbers or (nu,)."""
    return -np.concatenate(JointTargets(1, stiffness, damping).feedback(model), 1)


def _scales(name: str, value: Any, size: int) -> Float[np.ndarray, " k"]:
    scales = np.asarray(value, float)
    if scales.shape not in ((), (size,)):
        raise ShapeError(f"{name} has shape {scales.shape}; expected a number or ({size},)")
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise OptionError(f"{name} is {value}; expected positive, finite numbers")
    return np.broadcast_to(scales, (size,))


def _regulator(
    problem: OptimalControlProblem,
    xs: Float[Array, "T1 nx"],
    us: Float[Array, "T nu"],
    p: Float[Array, " np"],
    error: Float[Array, " n"],
    control: Float[Array, " nu"],
) -> Float[Array, "T nu n"]:
    n, (T, m), dt = problem.n, us.shape, jnp.asarray(problem.dt, us.dtype)
    linear = linear_dynamics(problem)
    F = jax.vmap(lambda x, u, t: linear(x, u, t, p)[1])(xs[:-1], us, jnp.asarray(problem.times[:-1]))
    Q, R = jnp.diag(error**-2), dt * jnp.diag(control**-2)
    lq = LQProblem(
        A=F[:, :, :n],
        B=F[:, :, n : n + m],
        d=jnp.zeros((T, n), us.dtype),
        Q=jnp.concatenate([jnp.broadcast_to(dt * Q, (T, n, n)), Q[None]]),
        R=jnp.broadcast_to(R, (T, m, m)),
        S=jnp.zeros((T, n, m), us.dtype),
        q=jnp.zeros((T + 1, n), us.dtype),
        r=jnp.zeros((T, m), us.dtype),
    )
    return riccati(lq).K
