"""MuJoCo's off-screen renderer: the parts of a scene as geoms of its own scene, with shadows, over a chequered ground."""

from __future__ import annotations

import importlib

import mujoco
import numpy as np
from jaxtyping import Float, UInt8

from trajopt.dynamics.model import ShapeType
from trajopt.models.descriptions import quaternion_to_matrix
from trajopt.models.mujoco_geoms import GEOMS
from trajopt.viz.rendering.camera import VERTICAL_ANGLE, Camera
from trajopt.viz.rendering.scene import FORCE, LIGHT, Part, Pose, Scene, rgb

_WORLD = """
<mujoco>
  <visual>
    <global offwidth="{width}" offheight="{height}" fovy="{angle}"/>
    <quality shadowsize="2048" offsamples="4"/>
    <headlight ambient="0.55 0.55 0.55" diffuse="0.15 0.15 0.15" specular="0 0 0"/>
    <map znear="0.01" zfar="{far}" shadowclip="{reach}"/>
  </visual>
  <statistic extent="{extent}" center="0 0 0"/>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="1 1 1" rgb2="1 1 1" width="8" height="48"/>
    <texture name="tiles" type="2d" builtin="checker" rgb1="0.93 0.925 0.91" rgb2="0.87 0.865 0.85" width="128" height="128"/>
    <material name="tiles" texture="tiles" texrepeat="{tiles} {tiles}" texuniform="true" specular="0" shininess="0"/>
  </asset>
  <worldbody>
    <light directional="true" castshadow="true" pos="0 0 1" dir="{down}" diffuse="0.45 0.45 0.45" specular="0.1 0.1 0.1"/>
    {ground}
  </worldbody>
</mujoco>
"""
_SUN = 6.0  # distance of the light in views: nothing that is seen is behind it
_SHAFT = 0.008  # radius of the arrows, in shares of the view's height


class MujocoRenderer:
    """Draws a `Scene`; see `Renderer`. backend: of MuJoCo's contexts without a display, "egl", "osmesa" or "cgl"."""

    name = "mujoco"

    def __init__(self, scene: Scene, camera: Camera, backend: str = "egl") -> None:
        self.scene = scene
        width, height, extent = camera.width, camera.height, camera.view
        ground = ""
        if scene.ground is not None:
            ground = f'<geom type="plane" size="0 0 0.01" pos="0 0 {scene.ground}" material="tiles" contype="0" conaffinity="0"/>'
        text = _WORLD.format(
            width=width, height=height, angle=VERTICAL_ANGLE, extent=extent, tiles=0.5 / camera.tile, ground=ground,
            far=4 * camera.distance / extent, reach=5.0 * max(camera.width / camera.height, 1.0),
            down=" ".join(str(-value) for value in LIGHT),
        )  # fmt: skip
        spec = mujoco.MjSpec.from_string(text)
        meshes = [k for k, part in enumerate(scene.parts) if part.mesh]
        for k in meshes:
            part = scene.parts[k]
            spec.add_mesh(
                name=f"part{k}", uservert=part.points.reshape(-1).tolist(), userface=part.triangles.reshape(-1).tolist(),
                inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL,
            )  # fmt: skip
        self.model = spec.compile()
        self.data = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, self.data)
        self.mesh_of = {k: i for i, k in enumerate(meshes)}
        self.drawn = mujoco.MjvScene(self.model, maxgeom=len(scene.parts) + 300)
        self.drawn.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self.options, self.unmoved = mujoco.MjvOption(), mujoco.MjvPerturb()
        self.camera = mujoco.MjvCamera()
        self.camera.type = mujoco.mjtCamera.mjCAMERA_FREE
        self.picture = mujoco.MjrRect(0, 0, width, height)
        self.gl = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
        self.gl.make_current()
        self.context = mujoco.MjrContext(self.model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self.context)

    def draw(self, pose: Pose, camera: Camera) -> UInt8[np.ndarray, "h w 3"]:
        view = self.camera
        view.lookat[:] = camera.centre
        view.distance, view.azimuth, view.elevation = camera.distance, camera.azimuth + 180.0, -camera.elevation
        self.data.light_xpos[0] = camera.centre + _SUN * camera.view * LIGHT
        every = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self.model, self.data, self.options, self.unmoved, view, every, self.drawn)
        for k, part in enumerate(self.scene.parts):
            self._add(k, part, pose.rotation[k], pose.position[k])
        radius = _SHAFT * camera.view
        for start, end in pose.arrows:
            geom = self._next(mujoco.mjtGeom.mjGEOM_ARROW, np.zeros(3), np.zeros(3), np.eye(3), rgb(FORCE))
            if geom is not None:
                mujoco.mjv_connector(geom, mujoco.mjtGeom.mjGEOM_ARROW, radius, start, end)
                geom.size[2] *= 2  # MuJoCo draws arrows half as long as connectors are
        self.gl.make_current()
        image = np.empty((camera.height, camera.width, 3), np.uint8)
        mujoco.mjr_render(self.picture, self.drawn, self.context)
        mujoco.mjr_readPixels(image, None, self.picture, self.context)
        return np.flipud(image)

    def _add(self, k: int, part: Part, rotation: Float[np.ndarray, "3 3"], place: Float[np.ndarray, "3"]) -> None:
        if not part.mesh:
            size = np.where(part.kind == ShapeType.SPHERE, part.size[0], part.size)
            self._next(GEOMS[part.kind], size, place, rotation, part.colour)
            return
        mesh = self.mesh_of[k]  # MuJoCo has moved its vertices to the frame of the inertia
        turned = rotation @ quaternion_to_matrix(self.model.mesh_quat[mesh])
        centre = place + rotation @ self.model.mesh_pos[mesh]
        geom = self._next(mujoco.mjtGeom.mjGEOM_MESH, np.zeros(3), centre, turned, part.colour)
        if geom is not None:
            geom.dataid = 2 * mesh

    def _next(self, kind, size, place, rotation, colour) -> mujoco.MjvGeom | None:
        """The next free geom of the scene, None where it is full."""
        drawn = self.drawn
        if drawn.ngeom >= drawn.maxgeom:
            return None
        geom = drawn.geoms[drawn.ngeom]
        mujoco.mjv_initGeom(
            geom, kind, np.asarray(size, float), np.asarray(place, float), np.asarray(rotation, float).reshape(-1),
            np.append(colour, 1.0).astype(np.float32),
        )  # fmt: skip
        geom.specular, geom.shininess = 0.2, 0.4
        drawn.ngeom += 1
        return geom

    def close(self) -> None:
        self.context.free()
        self.gl.free()
