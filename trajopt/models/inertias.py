"""Inertias: those of several bodies as one, which no body can have, those of solids."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import Model, ShapeType
from trajopt.errors import ModelError
from trajopt.models.descriptions import skew_square
from trajopt.models.meshes import hull_triangles

Inertial = tuple[
    float, np.ndarray, np.ndarray
]  # mass (kg), centre of mass (m), inertia about it (kg m^2), one set of axes


def joined(parts: Sequence[Inertial]) -> Inertial:
    """Mass, centre of mass and inertia of several rigid parts, in the same axes."""
    mass = float(sum(m for m, _, _ in parts))
    com = np.zeros(3)
    if len(parts) == 1:
        com = np.asarray(parts[0][1], float)
    elif mass > 0:
        com = sum((m * c for m, c, _ in parts), np.zeros(3)) / mass
    inertia = np.zeros((3, 3))
    for m, c, about_com in parts:
        inertia += about_com + m * skew_square(c - com)
    return mass, com, (inertia + inertia.T) / 2


def symmetric(entry: Callable[[int, int], float]) -> Float[np.ndarray, "3 3"]:
    """The symmetric matrix of which `entry` gives the upper triangle."""
    upper = np.array([[entry(i, j) if i <= j else 0.0 for j in range(3)] for i in range(3)])
    return upper + np.triu(upper, 1).T


def impossible_inertias(model: Model) -> str | None:
    """A sentence about bodies whose principal moments are negative or break the triangle inequality; None if there are none."""
    bad = []
    for i, name in enumerate(model.topology.node_names):
        moments: Float[np.ndarray, "3"] = np.linalg.eigvalsh(model.inertia[i])
        scale = abs(moments).max()
        slack = 1e-6 * scale + 1e-15
        if moments[0] < -slack or moments[0] + moments[1] < moments[2] - slack:
            bad.append(f"'{name}' ({', '.join(f'{m:.3g}' for m in moments)})")
    if not bad:
        return None
    return (
        "no rigid body can have these principal moments of inertia (negative, or the largest above the sum of "
        f"the others): {', '.join(bad)}; the dynamics may be ill-posed"
    )


def solid(
    kind: ShapeType, size: Float[np.ndarray, "3"], vertices: Float[np.ndarray, "k 3"] | None, density: float
) -> Inertial:
    """Mass, centre of mass and inertia of a homogeneous solid (density in kg/m^3), in the shape's frame; meshes as their hulls.

    Raises `ModelError` for kinds without volume.
    """
    if kind is ShapeType.MESH and vertices is not None:
        return _polyhedron(vertices, density)
    a, b = float(size[0]), float(size[1])
    if kind is ShapeType.SPHERE:
        mass = density * 4 / 3 * np.pi * a**3
        moments = np.full(3, 0.4 * mass * a * a)
    elif kind is ShapeType.BOX:
        mass = density * 8 * float(np.prod(size))
        moments = mass / 3 * (float(np.sum(size**2)) - size**2)
    elif kind is ShapeType.ELLIPSOID:
        mass = density * 4 / 3 * np.pi * float(np.prod(size))
        moments = mass / 5 * (float(np.sum(size**2)) - size**2)
    elif kind is ShapeType.CYLINDER:
        mass = density * 2 * np.pi * a * a * b
        across = mass * (a * a / 4 + b * b / 3)
        moments = np.array([across, across, mass * a * a / 2])
    elif kind is ShapeType.CAPSULE:  # a cylinder and two half balls, whose centres of mass are 3/8 a beyond its ends
        rod, balls = density * 2 * np.pi * a * a * b, density * 4 / 3 * np.pi * a**3
        mass = rod + balls
        across = rod * (a * a / 4 + b * b / 3) + balls * (0.4 * a * a + b * b + 0.75 * a * b)
        moments = np.array([across, across, rod * a * a / 2 + balls * 0.4 * a * a])
    else:
        raise ModelError(f"a {kind.name.lower()} has no volume to take a mass from")
    return mass, np.zeros(3), np.diag(moments)


def _polyhedron(vertices: np.ndarray, density: float) -> Inertial:
    """Sum over the tetrahedra from the mean vertex to the triangles of the hull."""
    middle = vertices.mean(axis=0)
    corners = vertices[np.array(hull_triangles(vertices))] - middle
    volumes = np.linalg.det(corners) / 6
    volume = float(volumes.sum())
    com = np.einsum("t,tci->i", volumes, corners) / 4 / volume
    # integral of x x^T over a tetrahedron with a corner at the origin: V/20 (sum_c x_c x_c^T + s s^T), s the sum of the corners
    sums = corners.sum(axis=1)
    second = np.einsum("t,tci,tcj->ij", volumes, corners, corners) + np.einsum("t,ti,tj->ij", volumes, sums, sums)
    second = density * (second / 20 - volume * np.outer(com, com))
    return density * volume, middle + com, float(np.trace(second)) * np.eye(3) - second
