"""Which shapes of a model overlap at one configuration, and by how much, by MuJoCo's distances: nothing is compiled for it.

The engine's own distances (`trajopt.dynamics.collision`) would have to be compiled for every model that is loaded; the tests
compare the two.
"""

import mujoco
import numpy as np
from jaxtyping import Float, Int

from trajopt.dynamics.model import Model, ShapeType
from trajopt.models.descriptions import quaternion_to_matrix
from trajopt.models.limits import refuse
from trajopt.models.mujoco_geoms import GEOMS
from trajopt.models.placements import shape_placements

TOUCHING = 1e-6  # share of the sizes by which shapes that touch may overlap: far above the rounding of placements
_SMALLEST = 1e-6  # m, extent of a mesh from which on MuJoCo makes a hull of it; smaller ones are not looked at
_KINDS = {kind for kind in GEOMS if kind is not ShapeType.HEIGHTFIELD}


def deep_overlaps(model: Model, q: Float[np.ndarray, " nq"], depth: float) -> tuple[tuple[int, int], ...]:
    """The contact pairs (indices of shapes) that overlap by more than `depth` (m)."""
    distances, _ = _distances(model, q, None)
    return tuple(pair for pair, distance in zip(model.topology.pairs, distances) if distance < -depth)


def overlapping_pairs(
    model: Model, q: Float[np.ndarray, " nq"] | None = None, *, most: int | None = None
) -> tuple[tuple[int, int], ...]:
    """The contact pairs of the model (indices of shapes) whose shapes overlap at `q`, by default at `q_default`.

    Pairs with a height field or a point set are not looked at. Shapes that touch to about 1e-6 of their size do not overlap.
    Raises `ModelError` where the boxes around more than `most` pairs overlap.
    """
    distances, sizes = _distances(model, model.q_default if q is None else q, most)
    deep = distances < -TOUCHING * sizes
    return tuple(pair for pair, overlaps in zip(model.topology.pairs, deep) if overlaps)


def _distances(
    model: Model, q: Float[np.ndarray, " nq"], most: int | None
) -> tuple[Float[np.ndarray, " np"], Float[np.ndarray, " np"]]:
    """Signed distance (m) of the shapes of each contact pair, infinite where their boxes are apart; and the extent of both."""
    shapes, pairs = model.topology.shapes, np.array(model.topology.pairs, int).reshape(-1, 2)
    distances, sizes = np.full(len(pairs), np.inf), np.zeros(len(pairs))
    known = np.array([shape.kind in _KINDS and not _tiny(model, shape.mesh) for shape in shapes], bool)
    wanted = np.flatnonzero(known[pairs].all(axis=1))
    if not len(wanted):
        return distances, sizes
    used = np.unique(pairs[wanted])
    rotation, position = shape_placements(model, q)
    geoms = _compiled(model, used)
    data = mujoco.MjData(geoms)
    for geom, shape in enumerate(used):
        data.geom_xmat[geom], data.geom_xpos[geom] = rotation[shape].ravel(), position[shape]
        mesh = int(geoms.geom_dataid[geom])
        if mesh >= 0:  # MuJoCo has moved the vertices to the frame of the mesh's inertia
            data.geom_xmat[geom] = (rotation[shape] @ quaternion_to_matrix(geoms.mesh_quat[mesh])).ravel()
            data.geom_xpos[geom] += rotation[shape] @ geoms.mesh_pos[mesh]
    number = {int(shape): geom for geom, shape in enumerate(used)}
    ends = np.array([[number[int(shape)] for shape in pair] for pair in pairs[wanted]])
    low, high = _boxes(geoms, data)
    near = np.all((low[ends[:, 0]] < high[ends[:, 1]]) & (low[ends[:, 1]] < high[ends[:, 0]]), axis=1)
    if most is not None and near.sum() > most:
        remedy = "load it with self_collision='all' or 'none', which compute no overlaps"
        things = "pairs of shapes of one robot near each other"
        refuse(f"model '{model.topology.name}'", int(near.sum()), most, things, remedy)
    extent = np.where(np.isfinite(high), high - low, 0.0).max(axis=1)
    sizes[wanted] = extent[ends].sum(axis=1)
    for pair, (one, two) in zip(wanted[near], ends[near]):
        reach = float(sizes[pair])
        distances[pair] = mujoco.mj_geomDistance(geoms, data, int(one), int(two), reach, None)
    return distances, sizes


def _compiled(model: Model, used: Int[np.ndarray, " k"]) -> mujoco.MjModel:
    """A MuJoCo model whose geoms are the shapes `used`, in this order."""
    spec = mujoco.MjSpec()
    for k in used:
        shape = model.topology.shapes[k]
        geom = spec.worldbody.add_geom(type=GEOMS[shape.kind], contype=0, conaffinity=0)
        size = np.asarray(model.shape_size[k], float)
        geom.size = [0.0, 0.0, 1.0] if shape.kind is ShapeType.PLANE else np.maximum(size, 1e-12)
        if shape.kind is ShapeType.MESH:
            vertices = np.asarray(model.meshes[shape.mesh], float)
            spec.add_mesh(name=f"mesh{k}", uservert=vertices.ravel(), inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL)
            geom.meshname = f"mesh{k}"
    spec.option.ccd_tolerance = 1e-9
    spec.option.ccd_iterations = 200
    return spec.compile()


def _tiny(model: Model, mesh: int) -> bool:
    return mesh >= 0 and float(np.ptp(np.asarray(model.meshes[mesh], float), axis=0).max()) < _SMALLEST


def _boxes(geoms: mujoco.MjModel, data: mujoco.MjData) -> tuple[Float[np.ndarray, "k 3"], Float[np.ndarray, "k 3"]]:
    """Corners of the boxes around all geoms in the world's axes; infinite for planes."""
    matrix = data.geom_xmat.reshape(-1, 3, 3)
    centre = data.geom_xpos + np.einsum("gij,gj->gi", matrix, geoms.geom_aabb[:, :3])
    reach = np.einsum("gij,gj->gi", np.abs(matrix), geoms.geom_aabb[:, 3:])
    reach[geoms.geom_type == mujoco.mjtGeom.mjGEOM_PLANE] = np.inf
    return centre - reach, centre + reach
