"""One unknown: its coordinates, how they change a model or the constants of a sensor, and the values that are reported."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array

from trajopt.dynamics.model import Model
from trajopt.errors import OptionError, UnknownNameError
from trajopt.names import closest


def _itself(x: Array) -> Array:
    return x


@dataclasses.dataclass(frozen=True, eq=False)
class Parameter:
    """An unknown of n coordinates.

    Options:
        name: by which reports call it.
        start: where the search begins, (n,).
        scale: by how much it may well be off, (n,): the unit of the search.
        apply: (model, coordinates) -> model; None for a constant of a sensor.
        labels: of the reported values.
        values: coordinates -> reported values; the coordinates themselves by default.
        lower, upper: bounds of the coordinates, (n,).
        constant: (channel, name) of the sensor's constant that it is.
    """

    name: str
    start: Any
    scale: Any
    apply: Callable[[Model, Array], Model] | None
    labels: tuple[str, ...]
    values: Callable[[Array], Array] = _itself
    lower: Any = None
    upper: Any = None
    constant: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        start = np.atleast_1d(np.asarray(self.start, float))
        scale = np.broadcast_to(np.asarray(self.scale, float), start.shape)
        if start.ndim != 1 or not np.isfinite(start).all() or not np.all(scale > 0):
            raise OptionError(
                f"parameter '{self.name}': start is {self.start}, scale {self.scale}; expected (n,), finite and positive"
            )
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "scale", scale)
        for name, default in (("lower", -np.inf), ("upper", np.inf)):
            given = getattr(self, name)
            object.__setattr__(
                self, name, np.broadcast_to(np.asarray(default if given is None else given, float), start.shape)
            )


def nodes_of(model: Model, body: str | None) -> list[int]:
    """Nodes of a body, or of all that have mass."""
    top = model.topology
    if body is None:
        return [k for k in range(top.n_nodes) if float(model.mass[k]) > 0]
    frames = {frame.name: frame.node for frame in top.frames if frame.node >= 0}
    if body not in frames:
        raise UnknownNameError(f"model '{model.name}' has no body '{body}'{closest(body, frames)}")
    return [frames[body]]
