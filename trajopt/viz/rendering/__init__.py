"""Pictures of a model in space with a depth buffer, without a display: by MuJoCo's renderer, or by software of our own."""

from trajopt.viz.rendering.camera import Camera
from trajopt.viz.rendering.renderers import RENDERERS, Renderer, open_renderer
from trajopt.viz.rendering.scene import Pose, Scene

__all__ = ["RENDERERS", "Camera", "Pose", "Renderer", "Scene", "open_renderer"]
