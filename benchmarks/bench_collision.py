"""Time of one pair of shapes, and its agreement with `coal`, in one run.

    python benchmarks/bench_collision.py [--poses N] [--pairs NAME,NAME] [--json FILE]

single: one pair in a compiled program; with the derivative by the motion of body 1 (7 x 6 for each contact); in a batch of 256
pairs, per pair, separated and overlapping poses mixed. coal: `coal.distance` called from Python, warm. The differences are the
largest over N random poses, about half overlapping; overlapping curved shapes are left out of them, where the library's
penetration is not the smallest. Meshes: UR5's forearm and upper arm (example-robot-data) and two random hulls of 500 vertices.
"""

from __future__ import annotations

import argparse
import functools
import json
import time

from measure import banner, microseconds, pin_to_one_core

BATCH = 256


def shapes(name: str):
    """(kind, size, vertices or None, coal's shape) of one of the two shapes of a pair."""
    import coal
    import numpy as np

    from trajopt.dynamics.model import ShapeType as T
    from trajopt.models.meshes import convex_hull, hull_triangles

    size = np.array([0.3, 0.2, 0.25])
    if name == "sphere":
        return T.SPHERE, size, None, coal.Sphere(size[0])
    if name == "capsule":
        return T.CAPSULE, size, None, coal.Capsule(size[0], 2 * size[1])
    if name == "box":
        return T.BOX, size, None, coal.Box(*(2 * size))
    if name == "cylinder":
        return T.CYLINDER, size, None, coal.Cylinder(size[0], 2 * size[1])
    if name == "ellipsoid":
        return T.ELLIPSOID, size, None, coal.Ellipsoid(*size)
    vertices = convex_hull(points(name), name, print)
    corners, triangles = coal.StdVec_Vec3s(), coal.StdVec_Triangle()
    for x in vertices:
        corners.append(x)
    for t in hull_triangles(vertices):
        triangles.append(coal.Triangle(*t))
    return T.MESH, np.zeros(3), vertices, coal.Convex(corners, triangles)


def points(name: str):
    import numpy as np
    from published_robots import folder

    from trajopt.models.meshes import load_vertices

    if name.startswith("hull"):
        x = np.random.default_rng(int(name[-1])).normal(size=(500, 3))
        return x / np.linalg.norm(x, axis=1, keepdims=True) * [0.3, 0.2, 0.15]
    vertices = load_vertices(next(folder().rglob(f"ur5/collision/{name}.stl")))
    return vertices - (vertices.max(0) + vertices.min(0)) / 2


PAIRS = {
    "sphere-sphere": ("sphere", "sphere"),
    "capsule-box": ("capsule", "box"),
    "box-box": ("box", "box"),
    "capsule-cylinder": ("capsule", "cylinder"),
    "box-cylinder": ("box", "cylinder"),
    "cylinder-cylinder": ("cylinder", "cylinder"),
    "sphere-ellipsoid": ("sphere", "ellipsoid"),
    "ellipsoid-ellipsoid": ("ellipsoid", "ellipsoid"),
    "sphere-mesh": ("sphere", "forearm"),
    "capsule-mesh": ("capsule", "forearm"),
    "box-mesh": ("box", "forearm"),
    "cylinder-mesh": ("cylinder", "forearm"),
    "ur5 forearm-upperarm": ("forearm", "upperarm"),
    "two hulls of 500": ("hull0", "hull1"),
}


def measure(name: str, poses: int) -> dict:
    import coal
    import jax
    import jax.numpy as jnp
    import numpy as np
    from scipy.spatial.transform import Rotation

    from trajopt.dynamics.collision.convex.hulls import edges_of
    from trajopt.dynamics.collision.convex.shapes import hull
    from trajopt.dynamics.collision.evaluation import slope_and_value
    from trajopt.dynamics.collision.narrowphase import HULLS, PRIMITIVES
    from trajopt.dynamics.model import ShapeType as T
    from trajopt.models.meshes import hull_triangles

    one, two = (shapes(s) for s in PAIRS[name])
    kinds = one[0], two[0]
    function, contacts = HULLS[kinds] if kinds in HULLS else PRIMITIVES[kinds]
    hulls = []
    for _, _, vertices, _ in (one, two):
        if vertices is None:
            hulls.append(None)
        else:
            triangles = hull_triangles(vertices)
            hulls.append(
                hull(jnp.asarray(vertices), jnp.asarray(np.array(triangles)), jnp.asarray(edges_of(triangles)))
            )
    extra = tuple(hulls) if kinds in HULLS else ()
    size1, size2 = jnp.asarray(one[1]), jnp.asarray(two[1])

    def call(R1, p1, R2, p2):
        return function(R1, p1, size1, R2, p2, size2, *extra)

    rng = np.random.default_rng(0)
    R1, R2 = Rotation.random(poses, rng).as_matrix(), Rotation.random(poses, rng).as_matrix()
    p2 = rng.normal(size=(poses, 3))
    p1 = p2 + rng.normal(size=(poses, 3)) * rng.choice([0.1, 0.25, 0.5], size=(poses, 1))
    both = functools.partial(slope_and_value, call)
    start = time.perf_counter()
    single = jax.jit(call).lower(R1[0], p1[0], R2[0], p2[0]).compile()
    slope = jax.jit(both).lower(R1[0], p1[0], R2[0], p2[0]).compile()
    compile_s = time.perf_counter() - start
    batched = jax.jit(jax.vmap(call))
    got = [
        jax.block_until_ready(batched(R1[k : k + BATCH], p1[k : k + BATCH], R2[k : k + BATCH], p2[k : k + BATCH]))
        for k in range(0, poses, BATCH)
    ]
    distance, normal = (np.concatenate([np.asarray(part[i]) for part in got]) for i in (0, 2))
    deepest = distance.argmin(1)
    distance, normal = distance.min(1), normal[np.arange(poses), deepest]

    request = coal.DistanceRequest()
    request.enable_signed_distance = True
    request.gjk_tolerance = request.epa_tolerance = 1e-10
    request.gjk_max_iterations = request.epa_max_iterations = 500
    places = [(coal.Transform3s(R1[k], p1[k]), coal.Transform3s(R2[k], p2[k])) for k in range(poses)]

    def judge(k):
        result = coal.DistanceResult()
        return coal.distance(one[3], places[k][0], two[3], places[k][1], request, result), result

    expected, direction = np.zeros(poses), np.zeros((poses, 3))
    start = time.perf_counter()
    for k in range(poses):
        expected[k], result = judge(k)
        direction[k] = -np.asarray(result.normal).ravel()
    coal_us = (time.perf_counter() - start) / poses * 1e6
    compared = np.ones(poses, bool)
    if {T.CYLINDER, T.ELLIPSOID} & {*kinds}:
        compared = expected > 0
    sample = np.linspace(0, poses - 1, 12).astype(int)
    times = [
        [microseconds(lambda k=k, f=f: f(R1[k], p1[k], R2[k], p2[k])[0], batches=3, seconds=0.01) for k in sample]
        for f in (single, slope)
    ]
    part = slice(0, BATCH)
    return {
        "contacts": contacts,
        "single_us": float(np.median(times[0])),
        "single_worst_us": float(np.max(times[0])),
        "slope_us": float(np.median(times[1])),
        "batch_us": microseconds(lambda: batched(R1[part], p1[part], R2[part], p2[part])[0], seconds=0.3) / BATCH,
        "coal_us": coal_us,
        "compile_s": compile_s,
        "overlapping": float((distance < 0).mean()),
        "distance_difference_m": float(np.abs(distance - expected)[compared].max()),
        "normal_difference": float(np.quantile(np.linalg.norm(normal - direction, axis=1)[compared], 0.99)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--poses", type=int, default=1024)
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--json")
    options = parser.parse_args()
    pin_to_one_core()
    import jax

    jax.config.update("jax_enable_x64", True)
    print(banner())
    print(
        "pair                   contacts | single  worst  with slope  batch   coal (us) | compile | overlap | |d - d_coal|"
    )
    table = {}
    for name in options.pairs.split(","):
        row = table[name] = measure(name, options.poses)
        print(
            f"{name:22} {row['contacts']:8d} | {row['single_us']:6.0f} {row['single_worst_us']:6.0f} {row['slope_us']:11.0f} "
            f"{row['batch_us']:6.1f} {row['coal_us']:6.1f}      | {row['compile_s']:5.1f} s | {100 * row['overlapping']:5.0f} % "
            f"| {row['distance_difference_m']:.1e} m, 99 % of normals within {row['normal_difference']:.0e}",
            flush=True,
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
