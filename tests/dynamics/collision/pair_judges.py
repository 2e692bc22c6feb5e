"""Independent references for pairs of shapes: support functions, a brute-force signed distance, the `coal` library, poses."""

import functools

import coal
import jax
import jax.numpy as jnp
import numpy as np
from ridders import ridders
from scipy.optimize import minimize

from dynamics.contact import scenes
from trajopt.dynamics.collision.evaluation import slope_and_value
from trajopt.dynamics.collision.narrowphase import PRIMITIVES
from trajopt.dynamics.model import ShapeType as T

BATCH = 400
FEWER = 80  # poses of the pairs that the general function serves, which takes longer
PAIRS = [kinds for kinds in PRIMITIVES if kinds[1] != T.PLANE]
NAMES = ["-".join(kind.name.lower() for kind in kinds) for kinds in PAIRS]


def is_general(kinds):
    return T.ELLIPSOID in kinds or kinds in ((T.BOX, T.CYLINDER), (T.CYLINDER, T.CYLINDER))


def batch(kinds):
    return FEWER if is_general(kinds) else BATCH


@functools.cache
def compiled(kinds):
    """(slopes (n, k, 7, 6), (distance, point, normal)) of n pairs in one call."""
    function, _ = PRIMITIVES[kinds]
    return jax.jit(jax.vmap(functools.partial(slope_and_value, function)))


def evaluate(kinds, R1, p1, size1, R2, p2, size2, dtype=np.float64):
    """The compiled call for any number of pairs, in batches of one size."""
    n, size = len(p1), batch(kinds)
    parts = []
    for start in range(0, n, size):
        part = [x[start : start + size] for x in (R1, p1, size1, R2, p2, size2)]
        missing = size - len(part[0])
        padded = [jnp.asarray(np.concatenate([x, np.repeat(x[-1:], missing, 0)]), dtype) for x in part]
        slope, value = compiled(kinds)(*padded)
        parts.append([np.asarray(x)[: size - missing] for x in (slope, *value)])
    slope, *value = (np.concatenate(x) for x in zip(*parts, strict=True))
    return slope, tuple(value)


def random_rotation(rng):
    quaternion = rng.normal(size=4)
    return scenes.rotation(quaternion / np.linalg.norm(quaternion))


def poses_of(kinds, seed=0):
    """`poses`, as many as a test of these kinds takes."""
    return tuple(x[: batch(kinds)] for x in poses(seed))


@functools.cache
def poses(seed=0, n=BATCH):
    """Random placements and sizes (0.1 to 0.5 m) of n pairs, about half of them overlapping."""
    rng = np.random.default_rng(seed)
    R1, R2 = (np.stack([random_rotation(rng) for _ in range(n)]) for _ in range(2))
    p2 = rng.normal(size=(n, 3))
    p1 = p2 + rng.normal(size=(n, 3)) * rng.choice([0.15, 0.35, 0.6], size=(n, 1))
    return R1, p1, rng.uniform(0.1, 0.5, (n, 3)), R2, p2, rng.uniform(0.1, 0.5, (n, 3))


def check_motion_slopes(evaluate, pose, step, levels, relative, share, coordinates=range(6)):
    """The slopes that `evaluate(pose)` returns, by translations of body 1 and turns about its centre, against Ridders. share:
    of the entries, must be far enough from a change of features to be judged."""
    slope, _ = evaluate(pose)
    R1, p1, *others = pose

    def moved(s, j):
        turn = scenes.rotation(scenes.about(np.eye(6)[j, 3:], s)) if j > 2 else np.eye(3)
        _, (distance, point, normal) = evaluate((turn @ R1, p1 + s * np.eye(6)[j, :3], *others))
        return np.concatenate([distance[..., None], point, normal], -1)

    for j in coordinates:
        estimate = ridders(lambda s, j=j: moved(s, j), step, levels=levels)
        # Relative to the entry, at least one (metres and radians).
        tolerance = relative * np.maximum(1.0, np.abs(estimate.value))
        trusted = estimate.error < 0.1 * tolerance
        assert trusted.mean() > share, (j, trusted.mean())
        wrong = trusted & ~(np.abs(slope[..., j] - estimate.value) <= tolerance)
        assert not wrong.any(), (j, np.argwhere(wrong)[:5], slope[..., j][wrong][:5], estimate.value[wrong][:5])


def support(kind, size, R, n):
    """max n . x over the shape about its centre, for directions n (m, 3)."""
    m = n @ R
    flat, up = np.hypot(m[:, 0], m[:, 1]), np.abs(m[:, 2])
    if kind == T.SPHERE:
        return np.full(len(m), size[0])
    if kind == T.CAPSULE:
        return size[0] + size[1] * up
    if kind == T.CYLINDER:
        return size[0] * flat + size[1] * up
    if kind == T.ELLIPSOID:
        return np.linalg.norm(m * size, axis=1)
    return np.abs(m) @ size


def separation(kinds, pose, n):
    """s(n): how far the shapes are apart along n (m, 3). Its largest value over unit vectors is the signed distance."""
    R1, p1, size1, R2, p2, size2 = pose
    return n @ (p1 - p2) - support(kinds[0], size1, R1, n) - support(kinds[1], size2, R2, n)


def brute_distance(kinds, pose, starts=6):
    """Signed distance by search over directions: a fixed set, then a simplex search from the best of them."""
    rng = np.random.default_rng(0)
    grid = rng.normal(size=(3000, 3))
    grid /= np.linalg.norm(grid, axis=1)[:, None]
    grid = np.concatenate([grid, *(sign * R.T for R in (pose[0], pose[3]) for sign in (1, -1))])
    score = separation(kinds, pose, grid)
    chosen: list[int] = []
    for i in np.argsort(-score):
        if all(grid[i] @ grid[j] < 0.9 for j in chosen):
            chosen.append(i)
        if len(chosen) == starts:
            break
    best = score.max()
    for i in chosen:
        frame = np.linalg.svd(grid[i][None])[2]
        frame *= np.sign(frame[0] @ grid[i])

        def apart(z, frame):
            n = frame.T @ np.array([1.0, *z])
            return -separation(kinds, pose, (n / np.linalg.norm(n))[None])[0]

        options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 400}
        best = max(best, -minimize(apart, np.zeros(2), args=(frame,), method="Nelder-Mead", options=options).fun)
    return best


def coal_distance(kinds, pose):
    """(signed distance, normal from 2 to 1) of the library `coal`."""
    R1, p1, size1, R2, p2, size2 = pose
    shapes = [
        {
            T.SPHERE: lambda s: coal.Sphere(s[0]),
            T.CAPSULE: lambda s: coal.Capsule(s[0], 2 * s[1]),
            T.BOX: lambda s: coal.Box(*(2 * s)),
            T.CYLINDER: lambda s: coal.Cylinder(s[0], 2 * s[1]),
            T.ELLIPSOID: lambda s: coal.Ellipsoid(*s),
        }[kind](size)
        for kind, size in zip(kinds, (size1, size2), strict=True)
    ]
    return distance_of(shapes, ((R1, p1), (R2, p2)))


def distance_of(shapes, places):
    """The same for two of the library's shapes, each with its (rotation, position)."""
    request = coal.DistanceRequest()
    request.enable_signed_distance = True
    request.gjk_tolerance = request.epa_tolerance = 1e-10
    request.gjk_max_iterations = request.epa_max_iterations = 500
    result = coal.DistanceResult()
    placed = [coal.Transform3s(*place) for place in places]
    distance = coal.distance(shapes[0], placed[0], shapes[1], placed[1], request, result)
    return distance, -np.asarray(result.normal).ravel()
