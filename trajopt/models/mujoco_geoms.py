"""MuJoCo's geoms for the kinds of shapes."""

import mujoco

from trajopt.dynamics.model import ShapeType

GEOMS = {
    ShapeType.PLANE: mujoco.mjtGeom.mjGEOM_PLANE,
    ShapeType.SPHERE: mujoco.mjtGeom.mjGEOM_SPHERE,
    ShapeType.CAPSULE: mujoco.mjtGeom.mjGEOM_CAPSULE,
    ShapeType.BOX: mujoco.mjtGeom.mjGEOM_BOX,
    ShapeType.CYLINDER: mujoco.mjtGeom.mjGEOM_CYLINDER,
    ShapeType.ELLIPSOID: mujoco.mjtGeom.mjGEOM_ELLIPSOID,
    ShapeType.MESH: mujoco.mjtGeom.mjGEOM_MESH,
    ShapeType.HEIGHTFIELD: mujoco.mjtGeom.mjGEOM_HFIELD,
}
