"""What is known about the unknowns before any data."""

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from trajopt.errors import OptionError
from trajopt.names import NamedOptions


@dataclasses.dataclass(frozen=True, eq=False)
class Prior(NamedOptions):
    """What is known about x beforehand: adds the rows $W (x (-) mean)$ to the residual, $W^T W = covariance^-1$.

    Options:
        mean: expected x, (nx,).
        covariance: (n, n), symmetric positive definite. Exactly one of `covariance` and `sqrt_information` is given.
        sqrt_information: W, (k, n).
    """

    mean: Float[Array, " nx"]
    covariance: Float[Array, "n n"] | None = None
    sqrt_information: Float[Array, "k n"] | None = None

    def weight(self) -> Float[np.ndarray, "k n"]:
        """W (k, n). Raises `OptionError` unless exactly one of the two descriptions is given and it is usable."""
        if (self.covariance is None) == (self.sqrt_information is None):
            raise OptionError("prior: give either covariance or sqrt_information, not both and not none")
        if self.sqrt_information is not None:
            return np.asarray(self.sqrt_information, float)
        covariance = np.asarray(self.covariance, float)
        try:
            factor = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError as error:
            raise OptionError("prior.covariance has no Cholesky factor; it must be positive definite") from error
        return np.linalg.inv(factor)
