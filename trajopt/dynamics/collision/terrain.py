r"""Contacts with smooth ground z = h(x, y): a height field, or a function with parameters.

A grid of heights is interpolated by cubic convolution (Keys, IEEE ASSP 29, 1981): h passes through the nodes, its slope is
continuous, and planes are reproduced. Beyond its border the ground goes on level. The signed distance of a point c is
n . (c - f), f its closest point on the ground and n the normal there. f solves (x - c_xy) + (h - c_z) grad h = 0; Newton's
method starts at the vertical foot and its last step carries the derivative, by pose and by heights. Should it not converge
(a point farther from the ground than its radius of curvature), f is the best point found, which gives the distance to the
tangent plane there.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.collision.features import BOX_CORNERS, Rotation, Vector, choose, take, unit
from trajopt.dynamics.collision.primitives.plane import cylinder_plane
from trajopt.dynamics.model import ShapeType, Surface
from trajopt.dynamics.rigid_body.spatial import cross

_ITERATIONS = 8
# Contacts of a shape with the ground; None: one for each point.
GROUND: dict[ShapeType, int | None] = {
    ShapeType.SPHERE: 1,
    ShapeType.CAPSULE: 2,
    ShapeType.BOX: 4,
    ShapeType.CYLINDER: 4,
    ShapeType.ELLIPSOID: 1,
    ShapeType.MESH: 4,
    ShapeType.POINTS: None,
}
Height = Callable[[Float[Array, "2"]], Float[Array, ""]]


def ground_height(surface: Surface, size: Float[Array, "3"], numbers: Float[Array, " k"]) -> Height:
    """h as a function of (x, y), m, in the axes of the terrain's shape; `numbers`: its part of `Model.terrain`."""
    if surface.function is not None:
        function = surface.function
        return lambda xy: jnp.asarray(function(xy[0], xy[1], numbers), xy.dtype)
    grid = numbers.reshape(surface.rows, surface.columns)
    # One more row and column on each side, on the line through the two next to it.
    for _ in range(2):
        grid = jnp.concatenate([2 * grid[:1] - grid[1:2], grid, 2 * grid[-1:] - grid[-2:-1]]).T
    cells = jnp.asarray([surface.columns - 1, surface.rows - 1], size.dtype)

    def height(xy):
        u = jnp.clip((xy + size[:2]) / (2 * size[:2]), 0.0, 1.0) * cells
        first = jnp.clip(jnp.floor(jax.lax.stop_gradient(u)), 0.0, cells - 1.0)
        t = u - first
        first = first.astype(int)
        weights = jnp.stack(
            [((2 - t) * t - 1) * t, (3 * t - 5) * t * t + 2, ((4 - 3 * t) * t + 1) * t, (t - 1) * t * t], -1
        )
        patch = jax.lax.dynamic_slice(grid, (first[1], first[0]), (4, 4))
        return weights[1] @ patch @ weights[0] / 4

    return height


def _foot(height: Height, c: Float[Array, "3"]) -> tuple[Float[Array, "3"], Float[Array, "3"]]:
    """The point of the ground closest to c, and the normal there."""
    slope, bend = jax.grad(height), jax.hessian(height)
    still = jax.lax.stop_gradient(c)

    def residual(xy, c):
        return xy - c[:2] + (height(xy) - c[2]) * slope(xy)

    def newton(xy):
        g, rise = slope(xy), height(xy) - still[2]
        flat = jnp.eye(2, dtype=c.dtype) + g[:, None] * g[None]
        full = flat + rise * bend(xy)
        convex = (full[0, 0] > 0) & (full[0, 0] * full[1, 1] - full[0, 1] ** 2 > 1e-3)
        J = jnp.where(convex, full, flat)
        turned = jnp.stack([jnp.stack([J[1, 1], -J[0, 1]]), jnp.stack([-J[1, 0], J[0, 0]])])
        return turned / (J[0, 0] * J[1, 1] - J[0, 1] * J[1, 0])

    def far(xy):
        return jnp.sum((xy - still[:2]) ** 2) + (height(xy) - still[2]) ** 2

    def improve(_, xy):
        step = newton(xy) @ residual(xy, still)
        nearer = jnp.where(far(xy - step) <= far(xy), 1.0, 0.25)
        return jnp.where(far(xy - nearer * step) <= far(xy), xy - nearer * step, xy)

    fixed = jax.lax.stop_gradient
    xy = fixed(jax.lax.fori_loop(0, _ITERATIONS, improve, still[:2]))
    xy = xy - fixed(newton(xy)) @ residual(xy, c)
    normal, _ = unit(jnp.append(-slope(xy), jnp.ones((), c.dtype)), jnp.zeros(3, c.dtype))
    return jnp.append(xy, height(xy)), normal


def ground_contacts(
    kind: ShapeType, surface: Surface, R1: Rotation, p1: Vector, size1: Vector, R2: Rotation, p2: Vector, size2: Vector,
    numbers: Float[Array, " n"], vertices: Float[Array, "v 3"] | None = None,
) -> tuple[Float[Array, " k"], Float[Array, "k 3"], Float[Array, "k 3"]]:  # fmt: skip
    """Contacts of a shape with the ground (shape 2): distances, points (on the ground, or on a sphere, an ellipsoid), normals.

    Spheres and capsules: below the centre and the ends. Boxes, meshes, point sets: vertices. A cylinder: four points of its
    rims, chosen for the tangent plane below its centre. An ellipsoid: its lowest point along the normal there.
    """
    height = ground_height(surface, jax.lax.stop_gradient(size2), numbers)
    R, p = R2.T @ R1, R2.T @ (p1 - p2)
    radius = size1[0] if kind in (ShapeType.SPHERE, ShapeType.CAPSULE) else jnp.zeros_like(size1[0])
    unused = jnp.zeros_like(radius)
    if kind == ShapeType.SPHERE:
        points = p[None]
    elif kind == ShapeType.CAPSULE:
        points = jnp.stack([p + size1[1] * R[:, 2], p - size1[1] * R[:, 2]])
    elif kind == ShapeType.CYLINDER:
        foot, normal = _foot(height, p)
        helper = jnp.eye(3, dtype=p.dtype)[0]
        first, _ = unit(cross(normal, cross(helper, normal)), helper)
        tangent = jnp.stack([first, cross(normal, first), normal], 1)
        gap, below, _ = cylinder_plane(R, p, size1, tangent, foot, None)
        points = below + gap[:, None] * normal
    elif kind == ShapeType.ELLIPSOID:
        lowest = p
        for _ in range(4):
            _, normal = _foot(height, lowest)
            lowest = p - R @ (size1 * unit(size1 * (R.T @ normal), jnp.zeros(3, p.dtype))[0])
        points = lowest[None]
    else:
        if kind == ShapeType.BOX:
            vertices = jnp.asarray(BOX_CORNERS, p.dtype) * size1
        assert vertices is not None
        points = p + vertices @ R.T
        if kind != ShapeType.POINTS:
            index, unused = _nearest(height, points)
            points = take(points, index)
    foot, normal = jax.vmap(lambda c: _foot(height, c))(points)
    distance = jnp.sum((points - foot) * normal, -1) - radius + unused
    if kind in (ShapeType.SPHERE, ShapeType.ELLIPSOID):
        foot = points - radius * normal
    return distance, p2 + foot @ R2.T, normal @ R2.T


def _nearest(height: Height, points):
    """Four vertices: the deepest, along the vertical and the normal below it, and those that spread the patch; what is added to
    the distances of places that repeat the deepest."""
    points = jax.lax.stop_gradient(points)
    steep = jax.vmap(jax.grad(height))(points[:, :2])
    normals, _ = unit(jnp.concatenate([-steep, jnp.ones_like(steep[:, :1])], 1), jnp.zeros(3, points.dtype))
    distance = (points[:, 2] - jax.vmap(height)(points[:, :2])) * normals[:, 2]
    size = jnp.max(jnp.max(points, 0) - jnp.min(points, 0))
    axis = take(normals, jnp.argmin(distance))
    index, used = choose(distance, points, jnp.ones(len(points), bool), axis, size, 4)
    return jnp.where(used, index, index[0]), jnp.where(used, jnp.zeros_like(size), size)
