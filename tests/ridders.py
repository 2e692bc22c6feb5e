"""Ridders' extrapolation of central differences, with an error estimate per entry (Ridders 1982; Nimble, app. D).

Central differences at h, h/c, h/c^2, ... are extrapolated to h = 0 in powers of h^2 (Neville). Each entry keeps the value of
the table with the smallest error estimate: the larger of its distances to the two values it was built from. To this the
rounding of the finest difference that entered is added, `noise` / h, because the minimum over a table of estimates can be
small by chance.

An entry can be judged to a tolerance only where its error estimate is well below that tolerance. Near a change of the
contact modes the table does not converge, the estimate is large, and the entry is not trusted; `compare` fails when the
share of untrusted entries is above what the caller allows, so that a test cannot pass by trusting nothing.
"""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A derivative and the error estimate of each of its entries."""

    value: np.ndarray
    error: np.ndarray


def ridders(
    f: Callable[[float], np.ndarray], h: float, levels: int = 6, shrink: float = 1.6, noise: float | None = None
) -> Estimate:
    """d f(s) / ds at s = 0. h: largest half step. noise: absolute rounding of f (default: 8 eps max |f|)."""
    steps = h / shrink ** np.arange(levels)
    plus, minus = [np.asarray(f(s), float) for s in steps], [np.asarray(f(-s), float) for s in steps]
    size = max(np.abs(plus[0]).max(initial=0.0), np.abs(minus[0]).max(initial=0.0))
    rounding = 8 * np.finfo(float).eps * size if noise is None else noise
    previous: list[np.ndarray] = []
    best = np.full(plus[0].shape, np.nan)
    error = np.full(plus[0].shape, np.inf)
    for k, s in enumerate(steps):
        row = [(plus[k] - minus[k]) / (2 * s)]
        factor = 1.0
        for j in range(k):
            factor *= shrink * shrink
            row.append((row[j] * factor - previous[j]) / (factor - 1.0))
            change = np.maximum(np.abs(row[j + 1] - row[j]), np.abs(row[j + 1] - previous[j])) + rounding / s
            better = change < error
            best, error = np.where(better, row[j + 1], best), np.where(better, change, error)
        previous = row
    return Estimate(best, error)


def ridders_jacobian(f: Callable[[np.ndarray], np.ndarray], n: int, h, columns=None, **options) -> Estimate:
    """d f(x) / dx at x = 0, (len(f), n) or only the given columns of it. h: half step, a number or one per direction."""
    h = np.broadcast_to(np.asarray(h, float), (n,))
    out = [
        ridders(lambda s, j=j: f(s * np.eye(n)[j]), h[j], **options) for j in (range(n) if columns is None else columns)
    ]
    return Estimate(np.stack([e.value for e in out], -1), np.stack([e.error for e in out], -1))


def compare(
    jacobian,
    estimate: Estimate,
    relative: float = 1e-6,
    floor: float = 1e-2,
    smallest: float = 1e-4,
    untrusted: float = 0.02,
    label: str = "",
) -> float:
    """Assert that `jacobian` (m, n) equals the estimate to `relative`; the largest relative error.

    The size of an entry is its own magnitude, but at least `floor` times the largest of its column (the entries of a column
    come out of one linear solve, whose backward error is relative to the column) and `smallest` times the largest of the
    matrix. An entry is trusted where its estimated error is below a tenth of the tolerance; trusted entries must agree to
    the tolerance.
    """
    jacobian, value = np.asarray(jacobian, float), estimate.value
    assert jacobian.shape == value.shape, f"{label}: shape {jacobian.shape}, differences have {value.shape}"
    assert np.isfinite(jacobian).all(), f"{label}: the derivative has non-finite entries"
    columns = value.reshape(value.shape[0], -1) if value.ndim > 1 else value[:, None]
    column = np.abs(columns).max(0, initial=0.0).reshape(value.shape[1:])
    size = np.maximum(np.abs(value), np.maximum(floor * column, smallest * np.abs(value).max(initial=0.0)))
    size = np.where(size > 1e-9, size, 1.0)  # a matrix of zeros, but for rounding, is compared absolutely
    tolerance = relative * size
    trusted = estimate.error <= 0.1 * tolerance
    share = 1.0 - trusted.mean() if trusted.size else 0.0
    assert share <= untrusted, f"{label}: {100 * share:.1f} % of the differences are not accurate enough to judge by"
    ratio = np.where(trusted, np.abs(jacobian - value) / tolerance, 0.0)
    worst = np.unravel_index(np.argmax(ratio), ratio.shape) if ratio.size else ()
    largest = float(ratio[worst]) if ratio.size else 0.0
    assert largest <= 1.0, (
        f"{label}: entry {tuple(int(i) for i in worst)} is {jacobian[worst]:.12g}, differences give {value[worst]:.12g} "
        f"+- {estimate.error[worst]:.1e}; {largest:.2g} times the tolerance, {int((ratio > 1).sum())} entries above it"
    )
    return largest * relative
