"""Features that pairs of shapes share: safe unit vectors, closest points of segments, the choice of a contact patch.

Choices (which feature, which points) are made on values without gradient; what is chosen is computed with gradient.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

# Of a shape in the world: its axes as columns; its position, or its sizes.
Rotation = Float[Array, "3 3"]
Vector = Float[Array, "3"]

# A candidate that is farther than the closest one by this share of the shapes' size counts half as much in the spread.
DEPTH_SCALE = 1e-3
# Points of a patch closer than this share of the shapes' size are one point.
DISTINCT = 1e-3
# Of a box and, in order, of a face, with half extents 1.
BOX_CORNERS = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
FACE_CORNERS = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])


def tolerance(dtype: DTypeLike) -> float:
    """Relative size below which two lengths are the same: 4e-11 in float64, 2e-5 in float32."""
    return float(jnp.finfo(dtype).eps) ** (2 / 3)


# Levi-Civita tensor, as a matrix that turns u into the matrix X(u) with w @ X(u) = w x u.
_LEVI_CIVITA = np.array(
    [[[0, 0, 0], [0, 0, 1], [0, -1, 0]], [[0, 0, -1], [0, 0, 0], [1, 0, 0]], [[0, 1, 0], [-1, 0, 0], [0, 0, 0]]], float
)


def take(x: Shaped[Array, "n ..."], index: Int[Array, "..."]) -> Shaped[Array, "..."]:
    """x[index] along the first axis, for indices that are known to lie in it (a smaller program than x[index])."""
    return x.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def take_along(x: Shaped[Array, "p k ..."], index: Int[Array, " p"]) -> Shaped[Array, "p ..."]:
    """x[i, index[i]] for every i."""
    return jax.vmap(take)(x, index)


def cross_with(w: Float[Array, "k 3"], u: Float[Array, "3"]) -> Float[Array, "k 3"]:
    """w x u of many vectors with one."""
    return w @ jnp.tensordot(u, jnp.asarray(-_LEVI_CIVITA, u.dtype), 1)


def products(a: Float[Array, "m 3"], b: Float[Array, "n 3"]) -> Float[Array, "m n 3"]:
    """a_i x b_j of all pairs."""
    return jnp.einsum("iac,ja->ijc", jnp.tensordot(a, jnp.asarray(_LEVI_CIVITA, a.dtype), 1), b)


def unit(d: Float[Array, "*b n"], fallback: Float[Array, "*#b n"]) -> tuple[Float[Array, "*b n"], Float[Array, "*b"]]:
    """(d / |d|, |d|); (`fallback`, 0) where d vanishes, with finite derivatives."""
    square = jnp.sum(d * d, -1)
    regular = square > float(jnp.finfo(d.dtype).eps) ** 3
    length = jnp.sqrt(jnp.where(regular, square, jnp.ones_like(square)))
    direction = jnp.where(regular[..., None], d / length[..., None], fallback)
    return direction, jnp.where(regular, length, jnp.zeros_like(length))


def unit_beyond(
    d: Float[Array, "*b n"], fallback: Float[Array, "*#b n"], small: Float[Array, ""]
) -> tuple[Float[Array, "*b n"], Float[Array, "*b"]]:
    """`unit`, except that a d not longer than `small`, what rounding leaves of zero, has the direction `fallback` and a length
    along it that is signed."""
    vanishes = jnp.sum(d * d, -1) <= small * small
    direction, length = unit(jnp.where(vanishes[..., None], jnp.zeros_like(d), d), fallback)
    return direction, jnp.where(vanishes, jnp.sum(direction * d, -1), length)


def segment_parameters(
    r: Float[Array, "*b 3"],
    along1: Float[Array, "*#b 3"],
    half1: Float[Array, "*#b"],
    along2: Float[Array, "*#b 3"],
    half2: Float[Array, "*#b"],
) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """(s, t), |s| <= half1, |t| <= half2, minimising |r + s along1 - t along2|; unit directions, r = centre 1 - centre 2."""
    b = jnp.sum(along1 * along2, -1)
    c, f = jnp.sum(along1 * r, -1), jnp.sum(along2 * r, -1)
    sine = 1.0 - b * b
    # In (near) parallel segments every s is (nearly) optimal: zero, kept finite by the clip.
    skew = sine > float(jnp.finfo(r.dtype).eps) ** 0.75
    s = limit(jnp.where(skew, b * f - c, 0.0) / jnp.where(skew, sine, 1.0), half1)
    t = limit(b * s + f, half2)
    return limit(b * t - c, half1), t


def limit(x: Float[Array, "*b"], half: Float[Array, "*#b"]) -> Float[Array, "*b"]:
    """x limited to [-half, half]."""
    return jnp.minimum(jnp.maximum(x, -half), half)


def weighted_point(
    centre1: Float[Array, "*#b 3"],
    radius1: Float[Array, "*#b"],
    centre2: Float[Array, "*#b 3"],
    radius2: Float[Array, "*#b"],
):
    """(r2 c1 + r1 c2) / (r1 + r2), the midpoint for two zero radii (Nimble, app. C-2)."""
    total = radius1 + radius2
    share = jnp.where(
        total > 0, radius2 / jnp.where(total > 0, total, jnp.ones_like(total)), 0.5 * jnp.ones_like(total)
    )
    return centre2 + jnp.asarray(share)[..., None] * (centre1 - centre2)


def patch(
    distance: Float[Array, " k"],
    point: Float[Array, "k 3"],
    normal: Float[Array, "k 3"],
    valid: Bool[Array, " k"],
    axis: Float[Array, "3"],
    size: Float[Array, ""],
    count: int,
) -> tuple[Float[Array, " m"], Float[Array, "m 3"], Float[Array, "m 3"]]:
    """`count` (2 or 4) of the candidate contacts: the deepest, and those that spread the patch most across `axis`.

    Candidates that are farther away spread less. Where the patch has fewer distinct points, the remaining slots repeat the
    deepest one with a distance that is larger by `size`, the sum of the shapes' sizes.
    """
    index, used = choose(*jax.lax.stop_gradient((distance, point, valid, axis, size)), count)
    rows = take(jnp.concatenate([distance[:, None], point, normal], 1), jnp.where(used, index, index[0]))
    return rows[:, 0] + jnp.where(used, 0.0, size), rows[:, 1:4], rows[:, 4:]


def choose(
    distance: Float[Array, " k"],
    point: Float[Array, "k 3"],
    valid: Bool[Array, " k"],
    axis: Float[Array, "3"],
    size: Float[Array, ""],
    count: int,
) -> tuple[Int[Array, " m"], Bool[Array, " m"]]:
    """Indices of a patch (see `patch`) and whether each of them is a distinct point."""
    small = tolerance(distance.dtype) * size
    distance = jnp.where(valid, distance, jnp.inf)
    lowest = jnp.min(distance)
    first = jnp.argmax(distance <= lowest + small)
    scale = DEPTH_SCALE * size + float(jnp.finfo(size.dtype).tiny)
    weight = scale / (scale + (distance - lowest))
    x = point - take(point, first)
    x = x - (x @ axis)[:, None] * axis
    spread = weight * jnp.sqrt(jnp.sum(x * x, -1))
    second, farthest = _largest(spread)
    several = farthest > DISTINCT * size
    index, used = [first, second], [jnp.ones((), bool), several]
    if count > 2:
        # Twice the area of the triangle; the fourth point adds most beyond one of its three sides.
        area = weight * (x @ (take(x, second) @ jnp.tensordot(axis, jnp.asarray(_LEVI_CIVITA, x.dtype), 1)))
        third, largest = _largest(jnp.abs(area))
        corners = take(x, jnp.stack([first, second, third]))
        edges = jnp.roll(corners, -1, 0) - corners
        across = cross_with(edges, jnp.where(take(area, third) > 0, axis, -axis))
        beyond = jnp.max(x @ across.T - jnp.sum(corners * across, -1), 1)
        fourth, gain = _largest(weight * beyond)
        index += [third, fourth]
        span = DISTINCT * size * farthest
        flat = several & (largest > span)
        used += [flat, flat & (gain > span)]
    return jnp.stack(index), jnp.stack(used)


def _largest(x):
    """The first entry that is largest up to a relative rounding, which shall not decide between equals: (index, largest)."""
    largest = jnp.max(x)
    return jnp.argmax(x >= largest * (1.0 - tolerance(x.dtype))), largest
