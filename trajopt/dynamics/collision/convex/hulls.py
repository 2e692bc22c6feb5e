"""The convex meshes of a model, padded to one size so that one vectorised call serves all pairs of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from trajopt.dynamics.collision.convex.shapes import Hull, hull
from trajopt.dynamics.collision.features import Rotation, Vector, patch
from trajopt.dynamics.model import Model, ShapeSpec, ShapeType
from trajopt.dynamics.rigid_body.spatial import rotate

Triangles = tuple[tuple[int, int, int], ...]


@functools.lru_cache(maxsize=256)
def edges_of(triangles: Triangles) -> Int[np.ndarray, "e 2"]:
    """Edges of a closed surface, each once."""
    corners = np.array(triangles, int)
    pairs = np.sort(np.concatenate([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [2, 0]]]), axis=1)
    return np.unique(pairs, axis=0)


def hulls_of(model: Model, dtype: DTypeLike, shapes: tuple[int, ...]) -> Hull | None:
    """The polyhedra of `shapes`, all of them meshes, stacked in that order; None for other shapes."""
    specs = [model.topology.shapes[k] for k in shapes]
    if specs[0].kind != ShapeType.MESH:
        return None
    distinct = sorted({spec.mesh for spec in specs})
    first: dict[int, ShapeSpec] = {spec.mesh: spec for spec in reversed(specs)}
    triangles = [np.array(first[mesh].triangles, int) for mesh in distinct]
    edges = [edges_of(first[mesh].triangles) for mesh in distinct]
    vertices = [jnp.asarray(model.meshes[mesh], dtype) for mesh in distinct]
    most = max(len(v) for v in vertices)
    stacked = jax.vmap(hull)(
        jnp.stack([jnp.concatenate([v, jnp.broadcast_to(v[:1], (most - len(v), 3))]) for v in vertices]),
        jnp.asarray(_padded(triangles)),
        jnp.asarray(_padded(edges)),
    )
    if len(distinct) == 1 and len(specs) == 1:
        return stacked
    index = np.array([distinct.index(spec.mesh) for spec in specs])
    return jax.tree.map(lambda x: x[index], stacked)


def _padded(arrays: list[np.ndarray]) -> np.ndarray:
    most = max(len(a) for a in arrays)
    return np.stack([np.concatenate([a, np.repeat(a[:1], most - len(a), axis=0)]) for a in arrays])


def mesh_plane(vertices: Float[Array, "n 3"], R1: Rotation, p1: Vector, R2: Rotation, p2: Vector, count: int = 4):
    """Four contacts: the deepest vertex, and those that spread the patch most; their feet on the plane."""
    normal = R2[:, 2]
    points = p1 + rotate(R1, vertices)
    height = (points - p2) @ normal
    size = jnp.max(jnp.max(points, 0) - jnp.min(points, 0))
    normals = jnp.broadcast_to(normal, points.shape)
    valid = jnp.ones(len(vertices), bool)
    return patch(height, points - height[:, None] * normal, normals, valid, normal, size, count)
