r"""Inertial parameters that any ten numbers make physical: the log-Cholesky parametrisation.

The pseudo-inertia of a body about its frame's origin, [[S, m c], [m c^T, m]] with S = integral of r r^T dm, is positive definite
exactly when a distribution of positive mass has these moments. Its Cholesky factor with positive diagonal,

    e^alpha [[e^d1, s12, s13, t1], [0, e^d2, s23, t2], [0, 0, e^d3, t3], [0, 0, 0, 1]],

is free of constraints: theta = (alpha, d1, d2, d3, s12, s23, s13, t1, t2, t3). Then m = e^(2 alpha), c = t, and the inertia about
the centre of mass is tr(S_c) 1 - S_c with S_c = m U U^T, U the upper left block.

Rucker, Wensing, Smooth parameterization of rigid-body inertia, IEEE RA-L 2022, eqs. 8-13.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.errors import OptionError

LABELS = ("alpha", "d1", "d2", "d3", "s12", "s23", "s13", "t1", "t2", "t3")


def from_log_cholesky(
    theta: Float[Array, "10"],
) -> tuple[Float[Array, ""], Float[Array, "3"], Float[Array, "3 3"]]:
    """(mass, centre of mass, inertia about it), kg, m, kg m^2, in the axes of the body's frame."""
    mass, d = jnp.exp(2.0 * theta[0]), jnp.exp(theta[1:4])
    zero = jnp.zeros((), theta.dtype)
    U = jnp.stack(
        [
            jnp.stack([d[0], theta[4], theta[6]]),
            jnp.stack([zero, d[1], theta[5]]),
            jnp.stack([zero, zero, d[2]]),
        ]
    )
    S = mass * U @ U.T
    return mass, theta[7:], jnp.trace(S) * jnp.eye(3, dtype=theta.dtype) - S


def to_log_cholesky(
    mass: float, com: Float[np.ndarray, "3"], inertia: Float[np.ndarray, "3 3"]
) -> Float[np.ndarray, "10"]:
    """theta of a body. Raises `OptionError` for moments that no distribution of mass has."""
    about_com = np.asarray(inertia, float)
    S = 0.5 * np.trace(about_com) * np.eye(3) - about_com
    try:
        # The upper factor is the lower one of the matrix read backwards.
        U = np.linalg.cholesky(S[::-1, ::-1] / mass)[::-1, ::-1]
    except np.linalg.LinAlgError as error:
        moments = np.array2string(np.linalg.eigvalsh(about_com), precision=4)
        raise OptionError(
            f"principal moments {moments} of mass {mass} belong to no distribution of mass: the mass must be positive and "
            "every moment below the sum of the other two"
        ) from error
    entries = np.concatenate([np.log(np.diag(U)), [U[0, 1], U[1, 2], U[0, 2]], np.asarray(com, float)])
    return np.concatenate([[0.5 * np.log(mass)], entries])
