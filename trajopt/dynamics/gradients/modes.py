"""Gradient modes of a `System` by name (docs/gradients.md): the table that a mode is added to."""

from trajopt.dynamics.gradients.bounce import Bounce
from trajopt.dynamics.gradients.complementarity import ComplementarityAware, check_labellings
from trajopt.dynamics.gradients.implicit import Implicit
from trajopt.dynamics.gradients.mode import GradientMode, GradientOptions
from trajopt.dynamics.gradients.sampled import FiniteDifference, Randomized, Ridders
from trajopt.dynamics.gradients.substituted import Smoothed, Unrolled
from trajopt.errors import OptionError
from trajopt.names import closest

MODES: dict[str, type[GradientMode]] = {
    mode.name: mode
    for mode in (Implicit, ComplementarityAware, Smoothed, Randomized, Bounce, FiniteDifference, Ridders, Unrolled)
}
GRADIENTS = tuple(MODES)
DIFFERENCES = (FiniteDifference.name, Ridders.name)


def resolve(gradient: str | GradientMode, options: GradientOptions, labellings: str) -> GradientMode:
    """The mode that `System(gradient=..., options=..., labellings=...)` means; an object is its own answer.

    Raises `OptionError` naming the argument that means nothing.
    """
    check_labellings(labellings)
    if not isinstance(options, GradientOptions):
        raise OptionError(f"options is {options!r}, expected GradientOptions(...)")
    if isinstance(gradient, GradientMode):
        return gradient
    if not isinstance(gradient, str) or gradient not in MODES:
        raise OptionError(f"gradient is '{gradient}'{closest(str(gradient), GRADIENTS)}")
    return MODES[gradient].from_options(options, labellings)
