"""How a step is differentiated: what a gradient mode is (`mode`), the modes by name (`modes`), the implicit derivative as a
rule and in closed form, and the modes that replace it. A mode of one's own subclasses `GradientMode`."""

from trajopt.dynamics.gradients.mode import GradientMode
from trajopt.dynamics.gradients.modes import DIFFERENCES, GRADIENTS, MODES
from trajopt.dynamics.gradients.options import GradientOptions

__all__ = ["DIFFERENCES", "GRADIENTS", "MODES", "GradientMode", "GradientOptions"]
