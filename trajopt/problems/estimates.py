"""Estimates as text: value, standard deviation and, for simulated data, the distance from the truth."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def estimates(
    labels: Sequence[str],
    x: Float[np.ndarray, " n"],
    covariance: Float[np.ndarray, "n n"] | None = None,
    truth: Float[np.ndarray, " n"] | None = None,
) -> list[str]:
    """One line for each entry of x, aligned; without a covariance no deviations, without a truth no comparison."""
    width = max(len(label) for label in labels)
    sd = None if covariance is None or covariance.shape != (len(x),) * 2 else np.sqrt(np.diag(covariance))
    lines = []
    for i, label in enumerate(labels):
        line = f"{label:<{width}}  {x[i]: .6g}"
        if sd is not None:
            line += f" +- {sd[i]:.2g}"
        if truth is not None:
            line += f"  (truth {truth[i]:.6g}"
            line += f", {(x[i] - truth[i]) / sd[i]:+.2f} deviations)" if sd is not None and sd[i] > 0 else ")"
        lines.append(line)
    return lines


def deviations(error: Float[np.ndarray, " n"], covariance: Float[np.ndarray, "n n"]) -> dict[str, float]:
    """Of an error: the largest |error_i| / sd_i, and error^T covariance^-1 error / n, whose mean is 1 when all is well.

    Entries without variance (held at a bound) are left out.
    """
    free = np.diag(covariance) > 0
    error, part = error[free], covariance[np.ix_(free, free)]
    if not error.size:
        return {}
    sd = np.sqrt(np.diag(part))
    scaled = np.linalg.solve(part / np.outer(sd, sd), error / sd)
    return {
        "deviations_from_truth": float(np.abs(error / sd).max()),
        "normalised_error_squared": float(error / sd @ scaled) / error.size,
    }
