"""Which shapes of a model overlap at one configuration, in NumPy, so that loading a model compiles nothing.

Two convex shapes overlap when the origin lies in M = {x1 - x2}. The algorithm of Gilbert, Johnson and Keerthi
(`trajopt.dynamics.collision.convex.gjk`, which also says how far apart shapes are) moves a simplex of points of M
towards the origin; here it stops as soon as the sign of the distance is known. Spheres and capsules are a point and
a segment with a radius. Shapes are shrunk about their centres by the share `TOUCHING`, so that shapes which only
touch do not overlap.
"""

from __future__ import annotations

import copy
import itertools

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import Model, ShapeType
from trajopt.models.limits import refuse
from trajopt.models.placements import shape_placements

TOUCHING = 1e-6  # far above the rounding of placements (1e-15 of the size), far below the tolerances of drawings
ITERATIONS = 64  # as in the package's own search; a search that runs out counts as an overlap if the last bound says so
_ROUND = (ShapeType.SPHERE, ShapeType.CAPSULE)
_CONVEX = (*_ROUND, ShapeType.BOX, ShapeType.CYLINDER, ShapeType.ELLIPSOID, ShapeType.MESH)


class _Placed:
    """A convex shape in the world: its support points."""

    def __init__(self, model: Model, index: int, rotation: np.ndarray, position: np.ndarray):
        spec = model.topology.shapes[index]
        self.kind, self.size, self.rotation = spec.kind, np.asarray(model.shape_size[index], float), rotation
        self.vertices = np.asarray(model.meshes[spec.mesh], float) if spec.mesh >= 0 else np.zeros((0, 3))
        middle = self.vertices.mean(axis=0) if len(self.vertices) else np.zeros(3)
        self.vertices = self.vertices - middle
        self.centre = position + rotation @ middle
        self.radius = float(self.size[0]) * (1 - TOUCHING) if self.kind in _ROUND else 0.0
        if len(self.vertices):
            turned = self.vertices @ rotation.T
            self.low, self.high = self.centre + turned.min(axis=0), self.centre + turned.max(axis=0)
        else:
            reach = np.array([abs(self._local(row)) @ abs(row) for row in rotation]) + self.radius
            self.low, self.high = self.centre - reach, self.centre + reach

    def support(self, direction: np.ndarray) -> np.ndarray:
        """The point of the core, a little shrunk, that is farthest along a direction."""
        return self.centre + (1 - TOUCHING) * (self.rotation @ self._local(direction @ self.rotation))

    def _local(self, y: np.ndarray) -> np.ndarray:
        if self.kind is ShapeType.MESH:
            return self.vertices[int(np.argmax(self.vertices @ y))]
        if self.kind is ShapeType.BOX:
            return np.where(y >= 0, self.size, -self.size)
        if self.kind is ShapeType.ELLIPSOID:
            return self.size**2 * y / max(float(np.linalg.norm(self.size * y)), 1e-300)
        end = np.array([0.0, 0.0, np.copysign(self.size[1], y[2])])
        if self.kind is ShapeType.CYLINDER:
            across = float(np.hypot(y[0], y[1]))
            if across > 0:
                end[:2] = self.size[0] * y[:2] / across
        return end if self.kind is not ShapeType.SPHERE else np.zeros(3)

    def moved(self, by: np.ndarray) -> _Placed:
        """The shape after a translation (m)."""
        other = copy.copy(self)
        other.centre, other.low, other.high = self.centre + by, self.low + by, self.high + by
        return other


def deep_overlaps(model: Model, q: Float[np.ndarray, " nq"], depth: float) -> tuple[tuple[int, int], ...]:
    """The contact pairs whose shapes still overlap when one is moved by `depth` (m), whichever way of some.

    Tried are a plane's normal, else the six world directions and the line of centres; of a pair that only moves apart some other
    way the depth is overestimated.
    """
    rotation, position = shape_placements(model, q)
    shapes, found = model.topology.shapes, []
    for i, j in overlapping_pairs(model, q):
        one = _Placed(model, i, rotation[i], position[i])
        if shapes[j].kind is ShapeType.PLANE:
            if _below(one.moved(depth * rotation[j][:, 2]), rotation[j], position[j]):
                found.append((i, j))
            continue
        two = _Placed(model, j, rotation[j], position[j])
        apart = one.centre - two.centre
        ways = np.vstack([np.eye(3), -np.eye(3), apart / max(float(np.linalg.norm(apart)), 1e-300)])
        if all(_overlap(one.moved(depth * way), two) for way in ways):
            found.append((i, j))
    return tuple(found)


def overlapping_pairs(
    model: Model, q: Float[np.ndarray, " nq"] | None = None, *, most: int | None = None
) -> tuple[tuple[int, int], ...]:
    """The contact pairs of the model (indices of shapes) whose shapes overlap at `q`, by default at `q_default`.

    Pairs with a height field or a point set are not looked at. Shapes that touch to about 1e-6 of their size do not overlap.
    Raises `ModelError` where the boxes around more than `most` pairs overlap, about 1 ms of work each.
    """
    shapes = model.topology.shapes
    rotation, position = shape_placements(model, model.q_default if q is None else q)
    found = {
        (i, j)
        for i, j in model.topology.pairs
        if shapes[i].kind in _CONVEX
        and shapes[j].kind is ShapeType.PLANE
        and _below(_Placed(model, i, rotation[i], position[i]), rotation[j], position[j])
    }
    wanted = [pair for pair in model.topology.pairs if all(shapes[k].kind in _CONVEX for k in pair)]
    placed = {k: _Placed(model, k, rotation[k], position[k]) for k in sorted(set(itertools.chain(*wanted)))}
    low, high = (
        np.array([[getattr(placed[k], end) for k in pair] for pair in wanted]).reshape(-1, 2, 3)
        for end in ("low", "high")
    )
    near = np.all((low[:, 0] < high[:, 1]) & (low[:, 1] < high[:, 0]), axis=1)
    if most is not None and (count := int(np.count_nonzero(near))) > most:
        things = "pairs of shapes of one robot near each other"
        remedy = "load it with self_collision='all' or 'none', which compute no overlaps"
        refuse(f"model '{model.topology.name}'", count, most, things, remedy)
    found |= {pair for pair, close in zip(wanted, near, strict=True) if close and _overlap(*(placed[k] for k in pair))}
    return tuple(pair for pair in model.topology.pairs if pair in found)


def _below(shape: _Placed, rotation: np.ndarray, position: np.ndarray) -> bool:
    normal = rotation[:, 2]
    lowest = normal @ (shape.support(-normal) - position) - shape.radius
    return bool(lowest < -TOUCHING * float(np.max(shape.high - shape.low)))


def _overlap(one: _Placed, two: _Placed) -> bool:
    radius = one.radius + two.radius
    scale = float(np.max(one.high - one.low) + np.max(two.high - two.low))
    v = one.centre - two.centre
    if not np.any(v):
        return True
    points = np.zeros((0, 3))
    v = one.support(-v) - two.support(v)
    for _ in range(ITERATIONS):
        length = float(np.linalg.norm(v))
        if length <= max(radius, 1e-12 * scale):
            return True  # |v| bounds the distance of the cores from above
        n = v / length
        w = one.support(-n) - two.support(n)
        if n @ w > radius:
            return False  # n separates them
        closest, points = _closest_to_origin(np.vstack([points, w]))
        if closest is None:
            return True
        if closest @ closest >= length * length * (1 - 1e-14) and len(points) > 1:
            return bool(n @ w <= radius and length <= radius + 1e-9 * scale)
        v = closest
    return bool(np.linalg.norm(v) <= radius + 1e-9 * scale)


def _closest_to_origin(points: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """The point of a simplex closest to the origin and the corners that carry it; None if the origin lies inside."""
    best, kept = None, points
    for count in range(1, len(points) + 1):
        for chosen in itertools.combinations(range(len(points)), count):
            corners = points[list(chosen)]
            weights = _weights(corners)
            if weights is None or np.any(weights < 0):
                continue
            candidate = weights @ corners
            if count == 4:
                return None, points
            if best is None or candidate @ candidate < best @ best:
                best, kept = candidate, corners
    return best, kept


def _weights(corners: np.ndarray) -> np.ndarray | None:
    """Barycentric coordinates of the point closest to the origin on the flat through the corners; None if they span less."""
    if len(corners) == 1:
        return np.ones(1)
    edges = corners[1:] - corners[0]
    gram = edges @ edges.T
    if np.linalg.det(gram) <= 1e-24 * np.prod(np.diag(gram)):
        return None
    inner = np.linalg.solve(gram, -edges @ corners[0])
    return np.concatenate([[1 - inner.sum()], inner])
