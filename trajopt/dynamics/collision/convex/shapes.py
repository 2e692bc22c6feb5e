"""Convex shapes as the general pair function sees them: support points, curvature, faces, edges, and a polygon for a patch.

A sphere and a capsule are a point and a segment, their *core*, with a radius that is taken off the distance. A direction n is
a unit vector in world axes that points out of the shape; positions are relative to any common origin.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.dynamics.collision.features import FACE_CORNERS, cross_with, take, tolerance, unit
from trajopt.dynamics.model import ShapeType
from trajopt.dynamics.rigid_body.spatial import cross

CURVED = (ShapeType.CYLINDER, ShapeType.ELLIPSOID)
WITH_FACES = (ShapeType.BOX, ShapeType.CYLINDER, ShapeType.MESH)
WITH_EDGES = (ShapeType.CAPSULE, ShapeType.BOX, ShapeType.CYLINDER, ShapeType.MESH)
ROUNDED = (ShapeType.SPHERE, ShapeType.CAPSULE)

_TURN = 2 * np.pi * np.arange(8) / 8
_OCTAGON = np.stack([np.cos(_TURN), np.sin(_TURN)], 1)
# Of a mesh's face: no direction is across the first edge, both ends of which would be the farthest, by rounding one of them.
_ASKEW = np.stack([np.cos(_TURN + np.pi / 8), np.sin(_TURN + np.pi / 8)], 1)
_OUTWARD = np.array([[0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [1.0, 0.0]])  # of the edges that start at these corners


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hull:
    """A convex polyhedron: vertices (v, 3), triangles (f, 3) and edges (e, 2) as indices, outward unit normals (f, 3).

    The normals choose a face, they carry no derivative. Padding repeats a vertex, a triangle, an edge.
    """

    vertices: Float[Array, "v 3"]
    triangles: Int[Array, "f 3"]
    edges: Int[Array, "e 2"]
    normals: Float[Array, "f 3"]


def hull(vertices: Float[Array, "v 3"], triangles: Int[Array, "f 3"], edges: Int[Array, "e 2"]) -> Hull:
    """The polyhedron with its normals; triangles are wound outwards."""
    corners = jax.lax.stop_gradient(vertices)[triangles]
    normals, _ = unit(cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), jnp.zeros(3, vertices.dtype))
    return Hull(vertices, triangles, edges, normals)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Polygon:
    """A flat convex polygon: points (k, 3) in order, outward vectors of the edges that start there (zero: none), unit normal."""

    points: Float[Array, "k 3"]
    outward: Float[Array, "k 3"]
    normal: Float[Array, "3"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Convex:
    """A shape of `kind` with axes `rotation` (3, 3) about `centre` (3,); `size` as in `ShapeType`; `hull` of a mesh."""

    kind: ShapeType = dataclasses.field(metadata={"static": True})
    rotation: Float[Array, "3 3"]
    centre: Float[Array, "3"]
    size: Float[Array, "3"]
    hull: Hull | None = None

    @property
    def radius(self) -> Float[Array, ""]:
        """What the shape has around its core."""
        return self.size[0] if self.kind in ROUNDED else jnp.zeros_like(self.size[0])

    @property
    def extent(self) -> Float[Array, ""]:
        """Length scale of the shape."""
        if self.hull is not None:
            return jnp.sum(jnp.max(self.hull.vertices, 0) - jnp.min(self.hull.vertices, 0)) / 2
        used = {ShapeType.SPHERE: 1, ShapeType.CAPSULE: 2, ShapeType.CYLINDER: 2}.get(self.kind, 3)
        return jnp.sum(self.size[:used])

    def support(self, n: Float[Array, "*b 3"]) -> Float[Array, "*b 3"]:
        """The point of the core that is farthest along n; on an edge or a face, one of its ends or corners."""
        return self.centre + _local_support(self.kind, self.size, self.hull, n @ self.rotation) @ self.rotation.T

    def curvature(
        self, n: Float[Array, "*b 3"], tangents: Float[Array, "*b 2 3"]
    ) -> tuple[Float[Array, "*b"], Float[Array, "*b"], Float[Array, "*b"]] | None:
        """Components aa, ab, bb of d support / d n along two tangents a, b at n, where the surface is curved; else None."""
        if self.kind not in CURVED:
            return None
        y, t = n @ self.rotation, tangents @ self.rotation
        a, b = t[..., 0, :], t[..., 1, :]
        if self.kind == ShapeType.CYLINDER:
            flat, length = _flat_direction(y)
            radius = self.size[0] / jnp.maximum(length, tolerance(y.dtype))
            a, b = (x[..., 1] * flat[..., 0] - x[..., 0] * flat[..., 1] for x in (a, b))
            return radius * a * a, radius * a * b, radius * b * b
        along, reach = unit(self.size * y, jnp.zeros(3, y.dtype))
        scaled = jnp.where(reach > 0, 1.0 / jnp.where(reach > 0, reach, jnp.ones_like(reach)), jnp.zeros_like(reach))
        a, b = (self.size * x for x in (a, b))
        x, y = jnp.sum(along * a, -1), jnp.sum(along * b, -1)
        return (
            scaled * (jnp.sum(a * a, -1) - x * x),
            scaled * (jnp.sum(a * b, -1) - x * y),
            scaled * (jnp.sum(b * b, -1) - y * y),
        )

    def edge(self, n: Float[Array, "3"]) -> Float[Array, "3"]:
        """Direction of the edge, or of the straight line on the surface, that lies farthest along n. Not normalised."""
        if self.kind == ShapeType.MESH:
            assert self.hull is not None
            height = jax.lax.stop_gradient(self.hull.vertices @ (n @ self.rotation))
            ends = jax.lax.stop_gradient(self.hull.vertices)[self.hull.edges]
            length = jnp.sqrt(jnp.sum((ends[:, 1] - ends[:, 0]) ** 2, 1))
            # The edge that the smallest turn makes the farthest; of short ones, both ends are high anyway.
            turn = (jnp.max(height) - jnp.min(height[self.hull.edges], 1)) / jnp.where(length > 0, length, 1.0)
            best = jnp.argmin(turn)
            ends = take(self.hull.vertices, take(self.hull.edges, best))
            return self.rotation @ (ends[1] - ends[0])
        if self.kind == ShapeType.BOX:
            return take(self.rotation.T, jnp.argmin(jnp.abs(jax.lax.stop_gradient(n @ self.rotation))))
        return self.rotation[:, 2]

    def face(self, n: Float[Array, "3"]) -> Float[Array, "3"]:
        """Outward normal of the face most along n; n itself, without derivative, for shapes that have none."""
        y = jax.lax.stop_gradient(n @ self.rotation)
        if self.kind == ShapeType.MESH:
            assert self.hull is not None
            return self.rotation @ self._facet(y)[0]
        if self.kind == ShapeType.BOX:
            axis = jnp.argmax(jnp.abs(y))
            normal = take(self.rotation.T, axis)
            return jnp.where(take(y, axis) >= 0, normal, -normal)
        if self.kind == ShapeType.CYLINDER:
            return jnp.where(y[2] >= 0, self.rotation[:, 2], -self.rotation[:, 2])
        return jax.lax.stop_gradient(n)

    def edges_of_face(self, n: Float[Array, "3"]) -> Float[Array, "3 3"]:
        """Directions of the edges of a mesh's triangle most along n. Not normalised."""
        corners = self._corners(jax.lax.stop_gradient(n @ self.rotation))
        return (jnp.roll(corners, -1, 0) - corners) @ self.rotation.T

    def _corners(self, y):
        """Corners of the triangle most along the unit vector y, the first of those that are so up to rounding (a flat face has
        several), in the shape's axes, (3, 3). The cosine of an angle would tell none apart that differ by less than its root."""
        assert self.hull is not None
        turned = jax.lax.stop_gradient(self.hull.normals) - y
        apart = jnp.sqrt(jnp.sum(turned * turned, -1))
        triangle = take(self.hull.triangles, jnp.argmax(apart <= jnp.min(apart) + tolerance(apart.dtype)))
        return take(self.hull.vertices, triangle)

    def _facet(self, y):
        """Of the triangle most along y: unit normal and first edge, in the shape's axes."""
        a, b, c = self._corners(y)
        return unit(cross(b - a, c - a), jnp.zeros_like(a))[0], unit(b - a, jnp.zeros_like(a))[0]

    def polygon(self, n: Float[Array, "3"]) -> Polygon:
        """The face most along n, or the straight line towards n as a rectangle without width. Of a round or large face an
        octagon inside it; the first corner of the octagon in a cylinder's cap is the farthest along n."""
        rotation, y = self.rotation, n @ self.rotation
        x_axis, y_axis, z_axis = jnp.eye(3, dtype=n.dtype)
        if self.kind == ShapeType.BOX:
            axis = jnp.argmax(jnp.abs(jax.lax.stop_gradient(y)))
            rows = jnp.concatenate([rotation.T, self.size[:, None]], 1)
            rows = take(jnp.concatenate([rows, rows[:2]]), axis + jnp.arange(3))
            normal = jnp.where(take(y, axis) >= 0, rows[0, :3], -rows[0, :3])
            return _rectangle(self.centre + rows[0, 3] * normal, rows[1:, :3], rows[1:, 3], normal)
        if self.kind == ShapeType.CAPSULE:
            outward, _ = unit(y - y[2] * z_axis, x_axis)
            local = _along_z(jnp.zeros(3, n.dtype), outward, self.size[1])
        elif self.kind == ShapeType.CYLINDER:
            local = self._cylinder_polygon(y)
        else:
            assert self.hull is not None
            vertices = self.hull.vertices
            normal, first = self._facet(jax.lax.stop_gradient(y))
            height = jax.lax.stop_gradient(vertices @ normal)
            on_face = height >= jnp.max(height) - tolerance(n.dtype) ** 0.75 * jax.lax.stop_gradient(self.extent)
            towards = jnp.asarray(_ASKEW, n.dtype) @ jnp.stack([first, cross(normal, first)])
            reach = jnp.where(on_face, jax.lax.stop_gradient(towards) @ jax.lax.stop_gradient(vertices).T, -jnp.inf)
            points = take(vertices, jnp.argmax(reach, 1))
            outward, _ = unit(cross_with(jnp.roll(points, -1, 0) - points, normal), jnp.zeros_like(normal))
            local = Polygon(points, outward, normal)
        return Polygon(self.centre + local.points @ rotation.T, local.outward @ rotation.T, rotation @ local.normal)

    def _cylinder_polygon(self, y) -> Polygon:
        """Cap or side, in the cylinder's axes, as eight points."""
        radius, half = self.size[0], self.size[1]
        x_axis, _, z_axis = jnp.eye(3, dtype=y.dtype)
        flat, length = _flat_direction(y)
        lowest = jnp.concatenate([flat, jnp.zeros(1, y.dtype)])
        rim = jnp.asarray(_OCTAGON, y.dtype) @ jnp.stack([lowest, cross(z_axis, lowest)])
        up = jnp.where(y[2] >= 0, z_axis, -z_axis)
        bisector = rim + jnp.roll(rim, -1, 0)
        side = _along_z(radius * lowest, lowest, half)
        over_cap = jax.lax.stop_gradient(jnp.abs(y[2])) > jax.lax.stop_gradient(length)
        return Polygon(
            jnp.where(over_cap, radius * rim + half * up, jnp.repeat(side.points, 2, 0)),
            jnp.where(over_cap, bisector / float(2 * np.cos(np.pi / 8)), jnp.repeat(side.outward, 2, 0)),
            jnp.where(over_cap, up, lowest),
        )


def _flat_direction(y):
    """Unit vector along (y0, y1) and its length; x, without derivative, where that is rounding (an upright cylinder)."""
    flat = y[..., :2]
    square = jnp.sum(flat * flat, -1)
    regular = square > float(jnp.finfo(y.dtype).eps) ** 1.5
    length = jnp.sqrt(jnp.where(regular, square, jnp.ones_like(square)))
    direction = jnp.where(regular[..., None], flat / length[..., None], jnp.asarray([1.0, 0.0], y.dtype))
    return direction, jnp.where(regular, length, jnp.zeros_like(length))


def _local_support(kind: ShapeType, size, polyhedron: Hull | None, y):
    zero = jnp.zeros_like(y[..., 0])
    if kind == ShapeType.SPHERE:
        return jnp.zeros_like(y)
    if kind == ShapeType.CAPSULE:
        return jnp.stack([zero, zero, jnp.where(y[..., 2] >= 0, size[1], -size[1])], -1)
    if kind == ShapeType.BOX:
        return jnp.where(y >= 0, size, -size)
    if kind == ShapeType.CYLINDER:
        flat, _ = _flat_direction(y)
        up = jnp.where(y[..., 2] >= 0, size[1], -size[1])
        return jnp.concatenate([size[0] * flat, up[..., None]], -1)
    if kind == ShapeType.ELLIPSOID:
        return size * unit(size * y, jnp.zeros(3, y.dtype))[0]
    assert polyhedron is not None
    best = jnp.argmax(jax.lax.stop_gradient(y @ polyhedron.vertices.T), -1)
    return take(polyhedron.vertices, best)


def _along_z(middle, outward, half) -> Polygon:
    """The rectangle without width along z whose normal is `outward`."""
    z_axis = jnp.eye(3, dtype=outward.dtype)[2]
    axes = jnp.stack([z_axis, cross(outward, z_axis)])
    return _rectangle(middle, axes, jnp.stack([half, jnp.zeros_like(half)]), outward)


def _rectangle(middle, axes, half, normal) -> Polygon:
    points = middle + (jnp.asarray(FACE_CORNERS, half.dtype) * half) @ axes
    return Polygon(points, jnp.asarray(_OUTWARD, half.dtype) @ axes, normal)
