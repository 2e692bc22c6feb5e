"""Shapes of a model as surfaces, and where the bodies are along a motion: what every picture of a model starts from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.collision.features import BOX_CORNERS
from trajopt.dynamics.collision.terrain import ground_height
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model, ShapeType
from trajopt.dynamics.rigid_body.kinematics import Kinematics, kinematics
from trajopt.models.meshes import hull_triangles
from trajopt.problems import programs

_ROUND = (ShapeType.SPHERE, ShapeType.CAPSULE, ShapeType.ELLIPSOID)
_CONVEX = (*_ROUND, ShapeType.BOX, ShapeType.CYLINDER)
_GROUND = 33  # points of a height field along each side, as drawn


def surface(
    kind: ShapeType,
    size: Float[np.ndarray, "3"],
    vertices: Float[np.ndarray, "k 3"] | None = None,
    *,
    around: int = 32,
    along: int = 16,
) -> tuple[Float[np.ndarray, "v 3"], Int[np.ndarray, "f 3"]]:
    """Triangles of a shape in its own frame, wound outwards: vertices (v, 3) and their indices (f, 3); none of planes and points.

    size (3,) m, as `ShapeType` says; vertices (k, 3) of a mesh, whose hull is meant, or of the ground (`shape_vertices`).
    around: facets of a turn about z; along: facets of a half circle, an even number. By default fine enough to look round.
    """
    if kind in _CONVEX:
        points, triangles = _corners(kind, size, around, along), _hull(kind, around, along)
    elif kind == ShapeType.MESH and vertices is not None and len(vertices) >= 4:
        points, triangles = vertices, np.array(hull_triangles(vertices))
    elif kind == ShapeType.HEIGHTFIELD and vertices is not None:
        grid = np.arange(len(vertices)).reshape(_GROUND, _GROUND)
        one, two, three, four = (grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1])
        return vertices, np.stack([one, two, three, one, three, four], axis=2).reshape(-1, 3)
    else:
        return np.zeros((0, 3)), np.zeros((0, 3), int)
    used, index = np.unique(triangles, return_inverse=True)
    return points[used], index.reshape(-1, 3)


@functools.cache
def _hull(kind: ShapeType, around: int, along: int) -> Int[np.ndarray, "f 3"]:
    """Triangles between the `_corners` of a convex shape, whatever its size."""
    return np.array(hull_triangles(_corners(kind, np.ones(3), around, along)))


def _corners(kind: ShapeType, size: np.ndarray, around: int, along: int) -> Float[np.ndarray, "k 3"]:
    """Points whose hull a convex shape is."""
    if kind == ShapeType.BOX:
        return BOX_CORNERS * size
    turn, height = 2 * np.pi * np.arange(around) / around, np.array([0.0, 0.0, size[1]])
    circle = np.stack([np.cos(turn), np.sin(turn), np.zeros(around)], axis=1)
    if kind == ShapeType.CYLINDER:
        return np.concatenate([size[0] * circle + height, size[0] * circle - height])
    latitude = np.pi * (np.arange(1, along) / along - 0.5)
    rings = [circle * np.cos(angle) + [0.0, 0.0, np.sin(angle)] for angle in latitude]
    ball = np.concatenate([*rings, [[0.0, 0.0, -1.0], [0.0, 0.0, 1.0]]])
    if kind == ShapeType.CAPSULE:
        return np.concatenate([size[0] * ball + height, size[0] * ball - height])
    return ball * (size if kind == ShapeType.ELLIPSOID else size[0])


def shape_vertices(model: Model, index: int) -> Float[np.ndarray, "k 3"] | None:
    """Vertices (k, 3) of a mesh or point set; points of the ground, over its extent or 2 m around its origin; else None."""
    shape = model.topology.shapes[index]
    if shape.surface is None:
        return np.asarray(model.meshes[shape.mesh], float) if shape.mesh >= 0 else None
    size = jnp.asarray(model.shape_size)[index]
    numbers = jnp.asarray(model.terrain)[shape.surface.start : shape.surface.start + shape.surface.count]
    reach = (2.0, 2.0) if shape.surface.function is not None else np.asarray(size, float)[:2]
    x, y = np.meshgrid(*(np.linspace(-r, r, _GROUND) for r in reach))
    flat = np.stack([x.ravel(), y.ravel()], axis=1)
    height = jax.vmap(ground_height(shape.surface, size, numbers))(jnp.asarray(flat, size.dtype))
    return np.concatenate([flat, np.asarray(height, float)[:, None]], axis=1)


def is_round(kind: ShapeType) -> bool:
    """Whether the surface has no edges, so that light should run smoothly over it."""
    return kind in _ROUND


def placements(
    model: Model, q: Float[np.ndarray, "t nq"]
) -> tuple[Float[np.ndarray, "t n 3 3"], Float[np.ndarray, "t n 3"]]:
    """World rotations and positions (m) of all nodes at every configuration of a motion."""
    device = model.to_device()
    kin, _ = programs.run(_along, None, device, np.asarray(q, device.mass.dtype), effort=Effort.QUICK)
    return np.asarray(kin.rotation, float), np.asarray(kin.position, float)


def _along(subject: None, model: Model, q: Float[Array, "t nq"]) -> Kinematics:
    """Placements of all nodes at every configuration; a program (`programs`) without a subject."""
    return jax.vmap(lambda row: kinematics(model, row))(q)
