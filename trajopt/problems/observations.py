"""What an estimation problem was given: measurements with their deviations, and what a point of the problem says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt.errors import ShapeError


@dataclasses.dataclass(frozen=True, eq=False)
class Observations:
    """Measurements of m channels at k times, for pictures of data, fit and residuals; no solver reads them.

    t (k,): s. values (k, m): what was measured. deviations (m,): of the measurement errors, in the units of the channels.
    names, units (m,). predicted: point of the problem (an array of a `LeastSquaresProblem`, a `Trajectory` of an
    `OptimalControlProblem`) -> (k, m), what the measurements would be without errors. shown: channels that are drawn one by one;
    default: the first nine. plane: two channels that are the coordinates of a place, drawn against each other. truth: the true
    states (T+1, nx) of simulated data, where the problem estimates states.

    Raises `ShapeError`, naming the field.
    """

    t: Float[np.ndarray, " k"]
    values: Float[np.ndarray, "k m"]
    deviations: Float[np.ndarray, " m"]
    names: tuple[str, ...]
    units: tuple[str, ...]
    predicted: Callable[[Any], Any]
    shown: tuple[int, ...] = ()
    plane: tuple[int, int] | None = None
    truth: Float[np.ndarray, "states nx"] | None = None

    def __post_init__(self) -> None:
        k, m = np.shape(self.values)
        for field, expected in (("t", (k,)), ("deviations", (m,)), ("names", (m,)), ("units", (m,))):
            if np.shape(getattr(self, field)) != expected:
                raise ShapeError(f"observations.{field} has shape {np.shape(getattr(self, field))}; expected {expected}")
        if not self.shown:
            object.__setattr__(self, "shown", tuple(range(min(m, 9))))
        chosen = [*self.shown, *(self.plane or ())]
        if chosen and not 0 <= min(chosen) <= max(chosen) < m:
            raise ShapeError(f"observations.shown and .plane name channel {max(chosen)}; there are {m}")

    def residuals(self, point: Any) -> Float[np.ndarray, "k m"]:
        """(predicted - measured) / deviation at a point."""
        return (np.asarray(self.predicted(point), float) - self.values) / self.deviations
