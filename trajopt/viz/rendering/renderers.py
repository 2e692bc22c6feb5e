"""Which renderer draws: MuJoCo's where a GL context can be had, else the one in software.

A context is asked for in a process of its own first: a driver that is broken may end the process that asks. TRAJOPT_RENDERER is
auto (default), mujoco or software.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from trajopt.errors import OptionError
from trajopt.viz.rendering.camera import Camera
from trajopt.viz.rendering.scene import Pose, Scene

RENDERERS = ("auto", "mujoco", "software")
_VARIABLE, _VARIABLE_OF_MUJOCO = "TRAJOPT_RENDERER", "MUJOCO_GL"
_PROBE_S = 20.0
_PROBE = """
import mujoco, mujoco.{backend}
model = mujoco.MjModel.from_xml_string("<mujoco/>")
gl = mujoco.{backend}.GLContext(16, 16)
gl.make_current()
context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
raise SystemExit(context.currentBuffer != mujoco.mjtFramebuffer.mjFB_OFFSCREEN)
"""


@runtime_checkable
class Renderer(Protocol):
    """Draws a scene."""

    name: str

    def draw(self, pose: Pose, camera: Camera) -> UInt8[np.ndarray, "h w 3"]:
        """The picture of the scene at a pose, (height, width, 3); all cameras of a renderer have the same size."""

    def close(self) -> None:
        """Give back what the renderer holds."""


def open_renderer(scene: Scene, camera: Camera, which: str | None = None) -> Renderer:
    """A renderer of a scene for pictures of the size and about the view of `camera`.

    which: one of `RENDERERS`; default: TRAJOPT_RENDERER, else auto.

    Raises `OptionError` for another name, and for "mujoco" where there is no GL context.
    """
    which = (os.environ.get(_VARIABLE) or "auto") if which is None else which
    if which not in RENDERERS:
        raise OptionError(f"renderer '{which}' ({_VARIABLE}) is not known; expected one of {', '.join(RENDERERS)}")
    backend = None if which == "software" else gl_backend()
    if backend is None and which == "mujoco":
        raise OptionError(
            "no OpenGL context without a display: install EGL (libegl1 and libgl1-mesa-dri of Debian) or OSMesa (libosmesa6), "
            f"or leave {_VARIABLE} at auto"
        )
    if backend is not None:
        try:
            from trajopt.viz.rendering.by_mujoco import MujocoRenderer

            return MujocoRenderer(scene, camera, backend)
        except Exception:
            if which == "mujoco":
                raise
    from trajopt.viz.rendering.software import SoftwareRenderer

    return SoftwareRenderer(scene)


@functools.cache
def gl_backend() -> str | None:
    """The first of MuJoCo's off-screen backends that draws a picture, in a process of its own; None where none does."""
    given = os.environ.get(_VARIABLE_OF_MUJOCO, "").lower()
    offered = ("cgl",) if sys.platform == "darwin" else ("egl", "osmesa")
    for backend in (given,) if given in offered else offered:
        try:
            done = subprocess.run(
                [sys.executable, "-c", _PROBE.format(backend=backend)], capture_output=True, timeout=_PROBE_S
            )
        except (subprocess.TimeoutExpired, OSError):
            continue
        if done.returncode == 0:
            return backend
    return None
