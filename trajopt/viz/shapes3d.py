"""Shapes of a model as surfaces, and where the bodies are along a motion: what every picture of a model starts from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.collision.terrain import ground_height
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model, ShapeType
from trajopt.dynamics.rigid_body.kinematics import Kinematics, kinematics
from trajopt.models.meshes import hull_triangles
from trajopt.problems import programs

_ROUND = (ShapeType.SPHERE, ShapeType.CAPSULE, ShapeType.ELLIPSOID)
_GROUND = 33  # points of a height field along each side, as drawn
_JOINED = 1e-9  # vertices closer than this share of the shape's size are one


def polygons(
    kind: ShapeType,
    size: Float[np.ndarray, "3"],
    vertices: Float[np.ndarray, "k 3"] | None = None,
    *,
    around: int = 14,
    along: int = 8,
) -> list[Float[np.ndarray, "corners 3"]]:
    """Faces of a shape in its own frame, each (k, 3), wound outwards; planes and points have none.

    size (3,) m, as `ShapeType` says; vertices (k, 3) of a mesh, whose hull is meant, or of the ground (`shape_vertices`).
    around: facets of a turn about z; along: facets of a half circle, an even number.
    """
    if kind == ShapeType.BOX:
        return _box(size)
    if kind == ShapeType.SPHERE:
        return _revolved(*_ellipse(size[0], along), around)
    if kind == ShapeType.ELLIPSOID:
        return [face * (size / size[0]) for face in _revolved(*_ellipse(size[0], along), around)]
    if kind == ShapeType.CYLINDER:
        r, h = size[0], size[1]
        return _revolved(np.array([0.0, r, r, 0.0]), np.array([-h, -h, h, h]), around)
    if kind == ShapeType.CAPSULE:
        radii, heights = _ellipse(size[0], along)
        half = len(radii) // 2 + 1
        profile = np.concatenate([heights[:half] - size[1], heights[half - 1 :] + size[1]])
        return _revolved(np.concatenate([radii[:half], radii[half - 1 :]]), profile, around)
    if kind == ShapeType.MESH and vertices is not None and len(vertices) >= 4:
        return [vertices[list(corners)] for corners in hull_triangles(vertices)]
    if kind == ShapeType.HEIGHTFIELD and vertices is not None:
        grid = vertices.reshape(_GROUND, _GROUND, 3)
        corners = [grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1]]
        return list(np.stack(corners, axis=2).reshape(-1, 4, 3))
    return []


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


def _ellipse(radius: float, along: int) -> tuple[np.ndarray, np.ndarray]:
    """Profile of a ball: distances from the axis and heights, from the south to the north pole."""
    angle = np.linspace(-0.5 * np.pi, 0.5 * np.pi, along + 1)
    return radius * np.cos(angle), radius * np.sin(angle)


def _revolved(radii: np.ndarray, heights: np.ndarray, count: int) -> list[np.ndarray]:
    """Quadrilaterals of a profile turned about the z axis."""
    angle = np.linspace(0.0, 2 * np.pi, count + 1)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    points = np.concatenate(
        [radii[:, None, None] * ring, np.broadcast_to(heights[:, None, None], (len(radii), count + 1, 1))], axis=-1
    )
    return [
        np.array([points[i, k], points[i, k + 1], points[i + 1, k + 1], points[i + 1, k]])
        for i in range(len(radii) - 1)
        for k in range(count)
    ]


def _box(half: np.ndarray) -> list[np.ndarray]:
    faces = []
    for axis in range(3):
        a, b = (axis + 1) % 3, (axis + 2) % 3
        for sign in (1.0, -1.0):
            face = np.zeros((4, 3))
            face[:, axis] = sign
            face[:, a] = np.array([-1, 1, 1, -1]) * sign
            face[:, b] = [-1, -1, 1, 1]
            faces.append(face * half)
    return faces


def surface(
    kind: ShapeType,
    size: Float[np.ndarray, "3"],
    vertices: Float[np.ndarray, "k 3"] | None = None,
    *,
    around: int = 32,
    along: int = 16,
) -> tuple[Float[np.ndarray, "v 3"], Int[np.ndarray, "f 3"]]:
    """The same as triangles, by default fine enough to look round: vertices (v, 3), each once, and their indices (f, 3)."""
    faces = polygons(kind, size, vertices, around=around, along=along)
    if not faces:
        return np.zeros((0, 3)), np.zeros((0, 3), int)
    corners = np.concatenate([face[[0, k, k + 1]] for face in faces for k in range(1, len(face) - 1)])
    grid = np.round(corners / (_JOINED * np.abs(corners).max())) + 0.0  # -0 is 0
    _, first, index = np.unique(grid, axis=0, return_index=True, return_inverse=True)
    triangles = index.reshape(-1, 3)
    distinct = (triangles != np.roll(triangles, 1, axis=1)).all(axis=1)  # at a pole, quadrilaterals become triangles
    return corners[first], triangles[distinct]


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
