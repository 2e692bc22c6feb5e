"""How a step is differentiated: what a gradient mode is (`mode`), the modes by name (`modes`), the implicit derivative as a
rule and in closed form, and the modes that replace it. A mode of one's own subclasses `GradientMode`."""

from trajopt.dynamics.gradients.mode import GradientMode, GradientOptions
from trajopt.dynamics.gradients.modes import DIFFERENCES, GRADIENTS, MODES

__all__ = ["DIFFERENCES", "GRADIENTS", "MODES", "GradientMode", "GradientOptions"]
