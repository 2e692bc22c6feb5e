"""The numbers of a model's shapes in the order in which the compiled core reads them (native/parameters.h)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.collision.features import BOX_CORNERS
from trajopt.dynamics.compiled_pairs import PlanePair, pairs_under
from trajopt.dynamics.contact.laws import ContactLaw
from trajopt.dynamics.model import Model, ShapeType, Topology
from trajopt.dynamics.rigid_body.spatial import rotate


def shape_numbers(top: Topology, law: ContactLaw, model: Model) -> list[Float[Array, "..."]]:
    """Planes, shapes against them, shapes against each other, vertices of meshes, and the balls of shapes against planes."""
    pairs = pairs_under(top, tuple(int(np.shape(mesh)[0]) for mesh in model.meshes), law)
    numbers = functools.partial(jnp.asarray, dtype=jax.dtypes.canonicalize_dtype(model.mass.dtype))
    rotation, position, size = (numbers(x) for x in (model.shape_rotation, model.shape_position, model.shape_size))
    planes, shapes = np.array(pairs.planes, int), np.array([x.shape for x in pairs.against], int)
    between = np.array(pairs.shapes_between, int)

    def flat(index, *parts):
        wide = [part.reshape(part.shape[0], int(np.prod(part.shape[1:])))[index] for part in parts]
        return jnp.concatenate(wide, 1).reshape(-1)

    balls = [_balls(x, top, rotation, position, size, model) for x in pairs.against if x.balls]
    boxes, spheres = size, jnp.zeros((len(top.shapes), 4), size.dtype)
    collided = sorted({*pairs.shapes_between, *(x.shape for x in pairs.against)})
    meshes = [k for k in collided if top.shapes[k].kind == ShapeType.MESH]
    if meshes:
        around = {mesh: _around(numbers(model.meshes[mesh])) for mesh in sorted({top.shapes[k].mesh for k in meshes})}
        half, ball = (jnp.stack(x) for x in zip(*(around[top.shapes[k].mesh] for k in meshes), strict=True))
        boxes, spheres = boxes.at[np.array(meshes)].set(half), spheres.at[np.array(meshes)].set(ball)
    vertices = [numbers(model.meshes[mesh]).T.reshape(-1) for mesh in pairs.hulls(top)]
    return [
        flat(planes, rotation, position), flat(shapes, position, rotation, size, spheres),
        flat(between, position, rotation, boxes, spheres), *vertices, *balls,
    ]  # fmt: skip


def _around(vertices: Float[Array, "n 3"]) -> tuple[Float[Array, "3"], Float[Array, "4"]]:
    """Half extents of a box around the vertices; centre of it and radius of a ball that holds them."""
    low, high = jnp.min(vertices, 0), jnp.max(vertices, 0)
    centre = (low + high) / 2
    away = jax.lax.stop_gradient(vertices - centre)
    return (high - low) / 2, jnp.append(centre, jnp.sqrt(jnp.max(jnp.sum(away * away, 1))))


def _balls(x: PlanePair, top: Topology, rotation, position, size, model: Model) -> Float[Array, " k"]:
    """Centres in the node's frame and radii of the balls of a shape that touch a plane first."""
    kind, R, p, extent = top.shapes[x.shape].kind, rotation[x.shape], position[x.shape], size[x.shape]
    numbers = functools.partial(jnp.asarray, dtype=position.dtype)
    zero = numbers(0.0)
    radius = extent[0] if kind in (ShapeType.SPHERE, ShapeType.CAPSULE) else zero
    if kind == ShapeType.SPHERE:
        local = numbers(np.zeros((1, 3)))
    elif kind == ShapeType.CAPSULE:
        local = numbers(np.array([[0, 0, 1.0], [0, 0, -1.0]])) * extent[1]
    elif kind == ShapeType.BOX:
        local = numbers(BOX_CORNERS) * extent
    else:
        local = numbers(model.meshes[top.shapes[x.shape].mesh])
    return jnp.concatenate([p + rotate(R, local), jnp.broadcast_to(radius, (x.balls, 1))], 1).reshape(-1)
