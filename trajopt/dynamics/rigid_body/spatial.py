"""Spatial vector algebra in world axes, vectors ordered [linear; angular].

Notation: a motion is m = [l; w] (velocity of the body-fixed point at the origin, angular velocity), a force is
f = [p; n] (force or linear momentum, moment about the origin).

A rigid body's spatial inertia is *packed* in ten numbers about the origin,

    (mass, h_x, h_y, h_z, J_xx, J_xy, J_yy, J_xz, J_yz, J_zz),    h = mass * c,  J = inertia about the origin,

in which it is linear, so that composite inertias are sums of packed vectors.

Components lie along `axis`, the last one by default; other axes broadcast. The algorithms of this package use `axis=0`
inside (arrays "by columns", one column a body or a DoF): the inner loops then run over bodies, not over three
components, which is several times faster on CPUs.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

Components = Float[Array, "..."]


def cross(a: Components, b: Components, axis: int = -1) -> Components:
    """Vector product a x b of vectors of three components."""
    return jnp.concatenate(_cross(_parts(a, axis), _parts(b, axis)), axis)


def skew(w: Float[Array, "*b 3"]) -> Float[Array, "*b 3 3"]:
    """Matrix [w]x with [w]x u = w x u."""
    x, y, z = w[..., 0], w[..., 1], w[..., 2]
    o = jnp.zeros_like(x)
    return jnp.stack([jnp.stack([o, -z, y], -1), jnp.stack([z, o, -x], -1), jnp.stack([-y, x, o], -1)], -2)


def rotate(rotation: Float[Array, "*#b 3 3"], u: Float[Array, "*#b 3"]) -> Float[Array, "*b 3"]:
    """R u over leading axes; written as a broadcast sum, which XLA fuses on CPU."""
    return (rotation * u[..., None, :]).sum(-1)


def multiply(a: Float[Array, "*#b i j"], b: Float[Array, "*#b j k"]) -> Float[Array, "*b i k"]:
    """Product of small matrices over leading axes; written as a broadcast sum, which XLA fuses on CPU."""
    return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)


def rotate_columns(rotation: Float[Array, "3 3 *#b"], u: Float[Array, "3 *#b"]) -> Float[Array, " 3 *b"]:
    """R u with the components in front."""
    return rotation[:, 0] * u[0] + rotation[:, 1] * u[1] + rotation[:, 2] * u[2]


def multiply_columns(a: Float[Array, "i _ *#b"], b: Float[Array, "3 k *#b"]) -> Float[Array, "i k *b"]:
    """Product of small matrices with the components in front."""
    return a[:, 0, None] * b[0] + a[:, 1, None] * b[1] + a[:, 2, None] * b[2]


def cross_motion(v: Components, m: Components, axis: int = -1) -> Components:
    """Rate of change of the motion m carried along by the velocity v: v x m (RBDA eq. 2.31)."""
    l, w = _halves(v, axis)
    ml, mw = _halves(m, axis)
    return jnp.concatenate([*_add(_cross(w, ml), _cross(l, mw)), *_cross(w, mw)], axis)


def cross_force(v: Components, f: Components, axis: int = -1) -> Components:
    """Rate of change of the force f carried along by the velocity v: v x* f (RBDA eq. 2.32)."""
    l, w = _halves(v, axis)
    p, n = _halves(f, axis)
    return jnp.concatenate([*_cross(w, p), *_add(_cross(w, n), _cross(l, p))], axis)


def pack_inertia(mass: Components, com: Components, inertia: Components, axis: int = -1) -> Components:
    """Packed inertia of a body with centre of mass `com` (from the origin) and `inertia` about the centre of mass.

    Along `axis`, `mass` has one component, `com` three and `inertia` six, in the packed order (see `unpack_symmetric`).
    """
    x, y, z = _parts(com, axis)
    hx, hy, hz = mass * x, mass * y, mass * z
    xx, xy, yy, xz, yz, zz = _parts(inertia, axis)
    shifted = [xx + hy * y + hz * z, xy - hx * y, yy + hx * x + hz * z, xz - hx * z, yz - hy * z, zz + hx * x + hy * y]
    moments = jnp.concatenate([jnp.broadcast_to(mass, hx.shape), hx, hy, hz], axis)
    return jnp.concatenate(materialise(moments, jnp.concatenate(shifted, axis)), axis)


def unpack_symmetric(packed: Float[Array, "*b 6"]) -> Float[Array, "*b 3 3"]:
    """The symmetric matrix of (xx, xy, yy, xz, yz, zz)."""
    xx, xy, yy, xz, yz, zz = (packed[..., k] for k in range(6))
    return jnp.stack([jnp.stack([xx, xy, xz], -1), jnp.stack([xy, yy, yz], -1), jnp.stack([xz, yz, zz], -1)], -2)


def inertia_times(packed: Components, v: Components, axis: int = -1) -> Components:
    """Momentum I v = [m l + w x h; h x l + J w] of a packed inertia."""
    mass, hx, hy, hz, xx, xy, yy, xz, yz, zz = _parts(packed, axis)
    l, w = _halves(v, axis)
    x, y, z = w
    h = (hx, hy, hz)
    spin = (xx * x + xy * y + xz * z, xy * x + yy * y + yz * z, xz * x + yz * y + zz * z)
    linear = _add([mass * k for k in l], _cross(w, h))
    return jnp.concatenate([*linear, *_add(_cross(h, l), spin)], axis)


def inertia_matrix(packed: Float[Array, "*b 10"]) -> Float[Array, "*b 6 6"]:
    """6 x 6 spatial inertia of a packed inertia."""
    mass, h = packed[..., 0], skew(packed[..., 1:4])
    eye = jnp.eye(3, dtype=packed.dtype)
    above = jnp.concatenate([mass[..., None, None] * eye, -h], -1)
    return jnp.concatenate([above, jnp.concatenate([h, unpack_symmetric(packed[..., 4:])], -1)], -2)


def coriolis(packed: Components, v: Components, axis: int = -1) -> Components:
    """The twelve numbers (p, K row by row) of a rigid body's Coriolis matrix B (see `derivatives`)."""
    mass, hx, hy, hz, xx, xy, yy, xz, yz, zz = _parts(packed, axis)
    l, w = _halves(v, axis)
    lx, ly, lz = l
    half = (xx + yy + zz) / 2
    # Columns of J - tr(J)/2 1; [w]x times them are the columns of the second half of K.
    columns = [_cross(w, c) for c in ((xx - half, xy, xz), (xy, yy - half, yz), (xz, yz, zz - half))]
    p = _add([mass * k for k in l], _cross(w, (hx, hy, hz)))
    K = [
        columns[0][0] + (hy * ly + hz * lz), columns[1][0] - lx * hy, columns[2][0] - lx * hz,
        columns[0][1] - ly * hx, columns[1][1] + (hx * lx + hz * lz), columns[2][1] - ly * hz,
        columns[0][2] - lz * hx, columns[1][2] - lz * hy, columns[2][2] + (hx * lx + hy * ly),
    ]  # fmt: skip
    return jnp.concatenate(materialise(jnp.concatenate(p, axis), jnp.concatenate(K, axis)), axis)


def coriolis_times(packed: Components, m: Components, axis: int = -1) -> Components:
    """B m = [-p x m_w; K m_w] of the twelve numbers of `coriolis`."""
    p0, p1, p2, *K = _parts(packed, axis)
    _, w = _halves(m, axis)
    x, y, z = w
    bottom = [K[3 * i] * x + K[3 * i + 1] * y + K[3 * i + 2] * z for i in range(3)]
    return jnp.concatenate([*_cross(w, (p0, p1, p2)), *bottom], axis)


def coriolis_transposed_times(packed: Components, m: Components, axis: int = -1) -> Components:
    """The angular half of B^T m, p x m_l + K^T m_w (the linear half is zero)."""
    p0, p1, p2, *K = _parts(packed, axis)
    l, w = _halves(m, axis)
    x, y, z = w
    bottom = [K[i] * x + K[3 + i] * y + K[6 + i] * z for i in range(3)]
    return jnp.concatenate(_add(_cross((p0, p1, p2), l), bottom), axis)


def materialise(*arrays: Shaped[Array, "..."]) -> tuple[Shaped[Array, "..."], ...]:
    """The same arrays, each computed as a whole.

    XLA compiles a concatenation of ten or more operands, nested ones counted, row by row into that many tiny kernels,
    whose dispatch costs more than their arithmetic. Materialising parts of fewer rows keeps each in one kernel.
    """
    return lax.optimization_barrier(arrays)


def _parts(x, axis):
    return [lax.slice_in_dim(x, k, k + 1, axis=axis) for k in range(x.shape[axis])]


def _halves(x, axis):
    parts = _parts(x, axis)
    return parts[:3], parts[3:]


def _cross(a, b):
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def _add(a, b):
    return [x + y for x, y in zip(a, b, strict=True)]
