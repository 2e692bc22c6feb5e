"""Rotations: unit quaternions (w x y z), rotation vectors and the right Jacobian of SO(3).

Every function is smooth where the mathematics is: the removable singularities at zero rotation are replaced by Taylor
series (the branch not taken never sees a singular argument), so that derivatives of any order are finite there.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from trajopt.dynamics.rigid_body.spatial import multiply, skew

# Below this squared angle the series is used; the first dropped term is then under one unit in the last place.
_SMALL = 1e-2


def quaternion_product(a: Float[Array, "*#b 4"], b: Float[Array, "*#b 4"]) -> Float[Array, "*b 4"]:
    """Hamilton product a b; rotations compose as matrices do."""
    a0, a1, a2, a3 = (a[..., k] for k in range(4))
    b0, b1, b2, b3 = (b[..., k] for k in range(4))
    return jnp.stack(
        [
            a0 * b0 - a1 * b1 - a2 * b2 - a3 * b3,
            a0 * b1 + a1 * b0 + a2 * b3 - a3 * b2,
            a0 * b2 - a1 * b3 + a2 * b0 + a3 * b1,
            a0 * b3 + a1 * b2 - a2 * b1 + a3 * b0,
        ],
        -1,
    )


def quaternion_conjugate(q: Float[Array, "*b 4"]) -> Float[Array, "*b 4"]:
    """Inverse of a unit quaternion."""
    return jnp.concatenate([q[..., :1], -q[..., 1:]], -1)


def normalise_quaternion(q: Float[Array, "*b 4"]) -> Float[Array, "*b 4"]:
    """q / |q|; the zero quaternion becomes the identity."""
    square = (q * q).sum(-1, keepdims=True)
    zero = square == 0
    identity = jnp.asarray([1, 0, 0, 0], q.dtype)
    return jnp.where(zero, identity, q / jnp.sqrt(jnp.where(zero, jnp.ones_like(square), square)))


def rotation_from_quaternion(q: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Rotation matrix of q / |q| without a square root; the zero quaternion gives the identity.

    With `axis=-1`, (..., 4) to (..., 3, 3); with `axis=0`, (4, ...) to (3, 3, ...).
    """
    w, x, y, z = (lax.slice_in_dim(q, k, k + 1, axis=axis) for k in range(4))
    square = w * w + x * x + y * y + z * z
    zero = square == 0
    s = jnp.where(zero, jnp.zeros_like(square), 2 / jnp.where(zero, jnp.ones_like(square), square))
    sx, sy, sz = s * x, s * y, s * z
    rows = [
        [1 - (sy * y + sz * z), sx * y - sz * w, sx * z + sy * w],
        [sx * y + sz * w, 1 - (sx * x + sz * z), sy * z - sx * w],
        [sx * z - sy * w, sy * z + sx * w, 1 - (sx * x + sy * y)],
    ]
    if axis == 0:
        return jnp.stack([jnp.concatenate(row) for row in rows])
    return jnp.stack([jnp.concatenate(row, -1) for row in rows], -2)


def quaternion_from_rotation(rotation: Float[Array, "3 3"]) -> Float[Array, "4"]:
    """Unit quaternion (w >= 0) of a rotation matrix, from the largest of its four possible pivots."""
    m = rotation
    trace = m[0, 0] + m[1, 1] + m[2, 2]
    w = jnp.stack([1 + trace, m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]])
    x = jnp.stack([w[1], 1 + 2 * m[0, 0] - trace, m[0, 1] + m[1, 0], m[0, 2] + m[2, 0]])
    y = jnp.stack([w[2], x[2], 1 + 2 * m[1, 1] - trace, m[1, 2] + m[2, 1]])
    z = jnp.stack([w[3], x[3], y[3], 1 + 2 * m[2, 2] - trace])
    table = jnp.stack([w, x, y, z])
    q = normalise_quaternion(table[jnp.argmax(jnp.diagonal(table))])
    return jnp.where(q[0] < 0, -q, q)


def quaternion_exp(w: Float[Array, "*b 3"]) -> Float[Array, "*b 4"]:
    """Unit quaternion of the rotation vector w (radians)."""
    x = (w * w).sum(-1, keepdims=True)
    small = x < _SMALL
    angle = jnp.sqrt(jnp.where(small, jnp.ones_like(x), x))
    cosine = jnp.where(small, _series(x, (1.0, -1 / 8, 1 / 384, -1 / 46080, 1 / 10321920)), jnp.cos(angle / 2))
    sinc = jnp.where(
        small, _series(x, (1 / 2, -1 / 48, 1 / 3840, -1 / 645120, 1 / 185794560)), jnp.sin(angle / 2) / angle
    )
    return jnp.concatenate([cosine, sinc * w], -1)


def quaternion_log(q: Float[Array, "*b 4"]) -> Float[Array, "*b 3"]:
    """Rotation vector, at most pi long, of a unit quaternion; q and -q give the same."""
    q = jnp.where(q[..., :1] < 0, -q, q)
    w, u = q[..., :1], q[..., 1:]
    square = (u * u).sum(-1, keepdims=True)
    small = square < 1e-3
    s = jnp.sqrt(jnp.where(small, jnp.ones_like(square), square))
    safe_w = jnp.where(small, w, jnp.ones_like(w))
    y = jnp.where(small, square, jnp.zeros_like(square)) / (safe_w * safe_w)
    factor = jnp.where(
        small, _series(y, (2.0, -2 / 3, 2 / 5, -2 / 7, 2 / 9, -2 / 11)) / safe_w, 2 * jnp.arctan2(s, w) / s
    )
    return factor * u


def rotation_exp(w: Float[Array, "*b 3"]) -> Float[Array, "*b 3 3"]:
    """Rotation matrix of the rotation vector w."""
    return rotation_from_quaternion(quaternion_exp(w))


def rotation_log(rotation: Float[Array, "3 3"]) -> Float[Array, "3"]:
    """Rotation vector of a rotation matrix."""
    return quaternion_log(quaternion_from_rotation(rotation))


def right_jacobian(w: Float[Array, "*b 3"]) -> Float[Array, "*b 3 3"]:
    """J_r with exp(w + dw) = exp(w) exp(J_r dw) to first order: 1 - (1 - cos t)/t^2 [w]x + (t - sin t)/t^3 [w]x^2."""
    x = (w * w).sum(-1)[..., None, None]
    small = x < _SMALL
    safe = jnp.where(small, jnp.ones_like(x), x)
    t = jnp.sqrt(safe)
    a = jnp.where(small, _series(x, (1 / 2, -1 / 24, 1 / 720, -1 / 40320, 1 / 3628800)), (1 - jnp.cos(t)) / safe)
    b = jnp.where(
        small, _series(x, (1 / 6, -1 / 120, 1 / 5040, -1 / 362880, 1 / 39916800)), (t - jnp.sin(t)) / (safe * t)
    )
    k = skew(w)
    return jnp.eye(3, dtype=w.dtype) - a * k + b * multiply(k, k)


def right_jacobian_inverse(w: Float[Array, "*b 3"]) -> Float[Array, "*b 3 3"]:
    """Inverse of `right_jacobian` for |w| < 2 pi: 1 + [w]x / 2 + (1/t^2 - (1 + cos t)/(2 t sin t)) [w]x^2."""
    x = (w * w).sum(-1)[..., None, None]
    small = x < _SMALL
    safe = jnp.where(small, jnp.ones_like(x), x)
    t = jnp.sqrt(safe)
    # (1 + cos t)/(2 t sin t) = cot(t/2)/(2 t) has no singularity at t = pi in this form.
    closed = 1 / safe - jnp.cos(t / 2) / (2 * t * jnp.sin(t / 2))
    c = jnp.where(small, _series(x, (1 / 12, 1 / 720, 1 / 30240, 1 / 1209600, 1 / 47900160)), closed)
    k = skew(w)
    return jnp.eye(3, dtype=w.dtype) + k / 2 + c * multiply(k, k)


def _series(x, coefficients):
    total = jnp.zeros_like(x)
    for c in reversed(coefficients):
        total = total * x + c
    return total
