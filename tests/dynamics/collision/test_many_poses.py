"""Ten thousand placements of every pair: random, exactly touching, with coincident centres, with aligned axes."""

from __future__ import annotations

import functools
import itertools

import jax
import numpy as np
import pytest

from dynamics.collision import pair_judges as judge
from dynamics.collision.test_convex_meshes import as_hull, polyhedron
from trajopt.dynamics.collision.evaluation import slope_and_value
from trajopt.dynamics.collision.narrowphase import HULLS, PRIMITIVES
from trajopt.dynamics.model import ShapeType as T

N = 10_000
PART = 2_000
# Rotations of a cube onto itself: parallel and perpendicular axes, faces and edges.
ALIGNED = [
    np.array([[signs[i] * (order[i] == j) for j in range(3)] for i in range(3)], float)
    for order in itertools.permutations(range(3))
    for signs in itertools.product((1, -1), repeat=3)
]
ALIGNED = [R for R in ALIGNED if np.linalg.det(R) > 0]


def placements(kinds):
    """Half of them random, the others aligned, with coincident centres, or with both."""
    R1, p1, size1, R2, p2, size2 = (x.copy() for x in judge.poses(seed=11, n=N))
    rng = np.random.default_rng(0)
    half = N // 2
    R1[half:] = [ALIGNED[k] for k in rng.integers(0, 24, half)]
    R2[half:] = [ALIGNED[k] for k in rng.integers(0, 24, half)]
    p1[half:] = p2[half:] + np.round((p1 - p2)[half:] * 10) / 10  # equal lengths and exact contact are frequent
    size1[half:], size2[half:] = (np.round(s[half:] * 10) / 10 for s in (size1, size2))
    p1[N - N // 8 :] = p2[N - N // 8 :]
    return R1, p1, size1, R2, p2, size2


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", [*PRIMITIVES, *HULLS], ids=lambda kinds: "-".join(kind.name.lower() for kind in kinds)
)
def test_all_results_are_finite(kinds):
    """Distances, points, normals and their derivatives are finite, normals are unit vectors, also when exactly touching."""
    function, _ = HULLS[kinds] if kinds in HULLS else PRIMITIVES[kinds]
    mesh = as_hull(*polyhedron("link"))
    hulls = (mesh if kinds[0] == T.MESH else None, mesh) if kinds in HULLS else ()
    pose = placements(kinds)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0,) * 6)
    def call(*pose):
        return slope_and_value(lambda *moved: function(*moved, *hulls), *pose)

    for k in range(0, N, PART):
        part = [x[k : k + PART] for x in pose]
        _, (distance, _, normal) = result = call(*part)
        check(result, part)
        # Exactly touching: back along the normal by the distance.
        rows = np.arange(PART)
        deepest = np.asarray(distance).argmin(1)
        shift = np.asarray(distance)[rows, deepest, None] * np.asarray(normal)[rows, deepest]
        touching = [part[0], part[1] - shift, *part[2:]]
        result = call(*touching)
        check(result, touching)
        # Moving along the normal of an overlap by its depth is what the signed distance says.
        far = np.asarray(result[1][0]).min(1)
        assert far.min() > -1e-6 and (np.abs(far) < 1e-6).mean() > 0.99


def check(result, pose):
    slope, (distance, point, normal) = (result[0], [np.asarray(x) for x in result[1]])
    assert np.isfinite(np.asarray(slope)).all()
    assert all(np.isfinite(x).all() for x in (distance, point, normal))
    np.testing.assert_allclose(np.linalg.norm(normal, axis=-1), 1.0, atol=1e-9)
    assert (np.abs(distance.min(1)) < np.linalg.norm(pose[1] - pose[4], axis=1) + 3).all()
