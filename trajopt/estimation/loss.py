"""Robust losses of whole samples or whole recordings: weights, and which recordings count as outliers."""

import dataclasses
import functools

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.errors import OptionError
from trajopt.names import NamedOptions
from trajopt.problems.losses import check_loss, robust, robust_slope

# Sizes above which residuals of unit variance count as outliers, for 95 % efficiency without any (Huber and Ronchetti 2009).
SCALES = {"linear": 1.0, "soft_l1": 1.345, "huber": 1.345, "cauchy": 2.385, "arctan": 2.385, "tukey": 4.685}
OUTLIER_WEIGHT = 0.3  # of a recording, below which it is listed
BY = ("sample", "recording")


@dataclasses.dataclass(frozen=True)
class RobustLoss(NamedOptions):
    """What large errors cost.

    Options:
        kind: "linear" (least squares), "soft_l1", "huber", "cauchy", "arctan" or "tukey", as in `trajopt.problems.losses`.
        by: "sample": of all rows of a sensor at one time stamp together; "recording": of a whole recording, whose mean squared
            error is compared with that of the typical one.
        f_scale: root mean square, in deviations of the noise (by recording: in those of the median recording), above which an
        error
            counts as an outlier. None: 95 % efficiency without outliers.
    """

    kind: str = "linear"
    by: str = "sample"
    f_scale: float | None = None

    def __post_init__(self) -> None:
        check_loss(self.kind, 1.0 if self.f_scale is None else self.f_scale, "loss: ")
        if self.by not in BY:
            raise OptionError(f"loss: by is {self.by!r}; expected 'sample' or 'recording'")

    @property
    def scale(self) -> float:
        """The size of an outlier."""
        return SCALES[self.kind] if self.f_scale is None else self.f_scale

    def of_size(self, size: Float[np.ndarray, "..."]) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
        """Weight of errors of this root mean square, and the loss that stands for half its square."""
        if self.kind == "linear":
            return np.ones_like(size), 0.5 * size**2
        weight, loss = _weight_and_loss(self.kind, np.maximum(size, 1e-12).reshape(-1), self.scale)
        return np.asarray(weight).reshape(size.shape), np.asarray(loss).reshape(size.shape)

    def weights(
        self, r: Float[np.ndarray, "R m"], sample: Int[np.ndarray, " m"], present: Float[np.ndarray, "R m"]
    ) -> tuple[Float[np.ndarray, "R m"], Float[np.ndarray, " R"]]:
        """Weights of the entries of residuals, and the cost of each recording."""
        if self.kind == "linear":
            return np.ones_like(r), 0.5 * (r**2 * present).sum(1)
        if self.by == "recording":
            counts = np.maximum(present.sum(1), 1.0)
            size = np.sqrt((r**2 * present).sum(1) / counts)
            typical = max(float(np.median(size)), 1e-12)
            weight, cost = self.of_size(size / typical)
            return np.repeat(weight[:, None], r.shape[1], 1), cost * counts * typical**2
        squares, rows = np.zeros((len(r), sample.max() + 1)), np.zeros((len(r), sample.max() + 1))
        np.add.at(squares.T, sample, (r**2 * present).T)
        np.add.at(rows.T, sample, present.T)
        weight, cost = self.of_size(np.sqrt(squares / np.maximum(rows, 1.0)))
        return weight[:, sample], (cost * rows).sum(1)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _weight_and_loss(kind: str, x: Float[Array, " n"], scale: float) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    value = robust(x, kind, scale)
    return value * robust_slope(x, kind, scale) / x, 0.5 * value**2


def checked_loss(loss: str | RobustLoss) -> RobustLoss:
    """`loss` as a `RobustLoss`."""
    if isinstance(loss, RobustLoss):
        return loss
    if not isinstance(loss, str):
        raise OptionError(
            f"loss is {loss!r}; expected a name such as 'cauchy', or RobustLoss('cauchy', by='recording')"
        )
    return RobustLoss(loss)
