"""Pictures of a model in space with a depth buffer; they need neither a display nor a graphics driver."""

from trajopt.viz.rendering.camera import Camera
from trajopt.viz.rendering.renderer import Renderer
from trajopt.viz.rendering.scene import Pose, Scene

__all__ = ["Camera", "Pose", "Renderer", "Scene"]
