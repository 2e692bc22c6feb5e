r"""One vectorised evaluation of the pairs that a contact function serves, and of those whose shapes pass each other.

The contacts of separated shapes keep to one half-space, that of the normal n between their nearest points. Where the motion of a
step leads past an edge, that is the wrong one: a box that slides from one tile to the next meets its side. Shapes stay
apart as long as *some* direction separates them. Therefore, where the motion d of the step leaves the half-space, the contact
function is evaluated at the pose that d leads to. If the shapes are apart there, and its direction n' separates them now too, it
separates them all the way, and the contacts are those of n': the same features with their distances now, which are less by n' . d
(docs/contact-semantics.md, Shapes that pass each other).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.branches import along, any_in_batch
from trajopt.dynamics.collision.convex.shapes import WITH_FACES, Convex
from trajopt.dynamics.collision.features import take_along, unit
from trajopt.dynamics.model import ShapeType
from trajopt.dynamics.precision import Threshold
from trajopt.dynamics.rigid_body.spatial import multiply, skew

# Shares of the shapes' size: an overlap that counts as flush, and a motion that is more than rounding. The look ahead reaches
# LOOK_AHEAD times the first at least, so that what is flush is told from what is met.
FLUSH, MOVES = Threshold(1e-5, 4e-5), Threshold(4e-11, 2e-6)
LOOK_AHEAD = 4.0
TURNS = Threshold(1e-9, 1e-5)  # change of a normal that is more than rounding
ROUND = (ShapeType.SPHERE, ShapeType.CAPSULE, ShapeType.CYLINDER)

# Distance, point and normal of k contacts of p pairs; their derivative, None where nobody asks for it.
Found = tuple[Float[Array, "p k"], Float[Array, "p k 3"], Float[Array, "p k 3"], Float[Array, "p k 7 6"] | None]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs that one call serves: `call(R1, p1, size1, R2, p2, size2, more)` for a single one of `arguments`.

    kinds: of the shapes, in the order of the arguments; axis: of the pairs in `more`; derivatives: whether they are asked for.
    """

    call: Callable
    kinds: tuple[ShapeType, ShapeType]
    arguments: tuple
    axis: int | None
    derivatives: bool

    def contacts(self) -> Found:
        """Contacts of the shapes where they are."""
        return self._evaluated(self.call, self.arguments, (0,) * 6 + (self.axis,))

    def contacts_ahead(self, shift: Float[Array, "p 3"]) -> Found:
        """Contacts of the features that meet once shape 1 has moved by `shift`, as they are now.

        With a normal that the shift does not turn, that of a face or of two edges, points are affine in it and followed back.
        Others are taken back with body 1, so that they stay on the line of the normal.
        """

        def call(R1, p1, size1, R2, p2, size2, more, shift):
            there = lambda p1: self.call(R1, p1, size1, R2, p2, size2, more)  # noqa: E731
            (distance, point, normal), (_, moved, turned) = jax.jvp(there, (p1 + shift,), (shift,))
            along = normal @ shift
            turns = jnp.max(jnp.abs(jax.lax.stop_gradient(turned)), 1) > TURNS.at(shift.dtype)
            back = jnp.where(turns[:, None], shift - along[:, None] * normal, moved)
            return distance - along, point - back, normal

        return self._evaluated(call, (*self.arguments, shift), (0,) * 6 + (self.axis, 0))

    def _evaluated(self, call: Callable, arguments: tuple, axes: tuple) -> Found:
        if self.derivatives:
            slope, found = jax.vmap(functools.partial(slope_and_value, call), in_axes=axes)(*arguments)
            return (*found, slope)
        return (*jax.vmap(call, in_axes=axes)(*arguments), None)

    def radii(self) -> tuple[Float[Array, ""] | Float[Array, " p"], ...]:
        """Of round shapes, from their surface to what does not turn with them when they roll."""
        sizes = self.arguments[2], self.arguments[5]
        return tuple(
            size[:, 0] if kind in ROUND else jnp.zeros_like(size[:, 0]) for kind, size in zip(self.kinds, sizes, strict=True)
        )


def past_each_other(pairs: Pairs, found: Found, scale: Float[Array, " p"], motion: Callable) -> Found:
    """`found`, with the contacts along n' where shapes with faces pass each other.

    scale: size of both shapes; motion: displacement (p, k, 3) of body 1 relative to body 2 within the step, at points (p, k, 3).
    """
    if not any(kind in WITH_FACES for kind in pairs.kinds):
        return found
    distance, point, normal = jax.lax.stop_gradient(found[:3])
    flush, small = (limit.at(scale.dtype) * jax.lax.stop_gradient(scale) for limit in (FLUSH, MOVES))
    approach = jnp.sum(normal * motion(point), -1)
    worst = jnp.argmin(distance + approach, 1)
    distance_there, approach_there, n, x = (take_along(a, worst) for a in (distance, approach, normal, point))
    leaves = (jnp.min(distance, 1) > -flush) & (approach_there < -small) & (distance_there + approach_there < -small)
    radius1, radius2 = pairs.radii()
    core = x + jnp.where(radius1 > 0, radius1, -radius2)[:, None] * n
    direction, length = unit(motion(core[:, None])[:, 0], jnp.zeros_like(n))
    shift = jax.lax.stop_gradient(jnp.maximum(length, LOOK_AHEAD * flush)[:, None] * direction)

    def chosen(found: Found) -> Found:
        ahead = pairs.contacts_ahead(shift)
        then = ahead[0] + jnp.einsum("pkc,pc->pk", ahead[2], shift)
        passes = leaves & (jnp.min(ahead[0], 1) >= -flush) & (jnp.min(then, 1) >= -flush)
        return jax.tree.map(lambda new, old: jnp.where(along(passes, new), new, old), ahead, found)

    return jax.lax.cond(any_in_batch(jnp.any(leaves)), chosen, lambda found: found, found)


def extent(kind: ShapeType, size: Float[Array, "p 3"], hull: Any) -> Float[Array, " p"]:
    """Length scale of p shapes of one kind; hull: of meshes, None of others."""
    return jax.vmap(lambda size, hull: Convex(kind, size, size, size, hull).extent)(size, hull)


def slope_and_value(
    single: Callable, R1: Float[Array, "3 3"], p1: Float[Array, "3"], *others: Any
) -> tuple[Float[Array, "k 7 6"], tuple[Float[Array, " k"], Float[Array, "k 3"], Float[Array, "k 3"]]]:
    """d [distance; point; normal] / d (motion of body 1), and the (distance, point, normal) of a pair function's k contacts.

    single: a pair function, such as those of `PRIMITIVES`, called as single(R1, p1, *others); the motion is a translation in m
    and a rotation vector in rad, world axes. By forward differentiation.
    """

    def moved(motion):
        turn = motion[3:]
        contacts = single(R1 + multiply(skew(turn), R1), p1 + motion[:3], *others)
        distance, point, normal = contacts
        return jnp.concatenate([distance[:, None], point, normal], 1), contacts

    return jax.jacfwd(moved, has_aux=True)(jnp.zeros(6, p1.dtype))
