r"""How well shared parameters are known, from what each recording says about them.

Near the estimate the loss of recording j is s_j^T d + 1/2 d^T S_j d, with d the change of the parameters in units of their
scales. With S = sum_j S_j, the estimate moves by -S^-1 s when a score moves by s, and recordings are independent of each other:

    C = n / (n - 1) S^-1 [ sum_j (s_j - s)(s_j - s)^T ] S^-1          s the mean of the scores

the sandwich covariance clustered by recording (Huber 1967; Cameron and Miller 2015). It asks nothing of the noise within a
recording, and intervals follow Student's t with n - 1 degrees of freedom. With fewer than eight recordings, or no more than
there are directions, it is worth nothing, and C = S^-1, which takes the sensors' noise as it is stated.

Directions in which S is below a hundredth of what the scales suppose are not determined: no step is taken along them. They may
be off by their scale, which the intervals of values that depend on them a little take in; values that depend on them have no
interval.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float, Int

ENOUGH_RECORDINGS = 8  # for the sandwich
LEAST_INFORMATION = 1e-2  # about a direction: a deviation of ten scales
LEAKAGE = 0.3  # of a value's change, relative, along what is not determined, above which it has no interval
NAMED_SHARE = 0.2  # of the largest entry, from which on a parameter is named in a direction


@dataclasses.dataclass(frozen=True)
class Information:
    """Curvature S (R, n, n) and score s (R, n) of each recording, in units of the parameters' scales; ends: covariance of where a
    search ends, whatever the recordings (n, n), None without one."""

    S: Float[np.ndarray, "R n n"]
    s: Float[np.ndarray, "R n"]
    ends: Float[np.ndarray, "n n"] | None = None

    @property
    def total(self) -> Float[np.ndarray, "n n"]:
        """Curvature of the sum."""
        return self.S.sum(0)

    def summed(self, owner: Int[np.ndarray, " R"]) -> Information:
        """That of owners, of which each has the sum of its parts."""
        S, s = (np.zeros((int(owner.max()) + 1, *a.shape[1:])) for a in (self.S, self.s))
        np.add.at(S, owner, self.S)
        np.add.at(s, owner, self.s)
        return Information(S, s)

    def determined(self, free: Bool[np.ndarray, " n"], least: float = LEAST_INFORMATION) -> Float[np.ndarray, "n k"]:
        """An orthonormal basis of the directions, among the free coordinates, that the recordings determine."""
        where = np.flatnonzero(free)
        if not where.size:
            return np.zeros((free.size, 0))
        values, vectors = np.linalg.eigh(self.total[np.ix_(where, where)])
        basis = np.zeros((free.size, where.size))
        basis[where] = vectors
        return basis[:, values > least]

    def covariance(self, free: Bool[np.ndarray, " n"]) -> Float[np.ndarray, "n n"]:
        """Covariance on the determined directions: the sandwich, or that of the stated noise where recordings are few."""
        K = self.determined(free)
        if not K.shape[1]:
            return np.zeros_like(self.total)
        bread = np.linalg.inv(K.T @ self.total @ K)
        ends = np.zeros_like(bread) if self.ends is None else K.T @ self.ends @ K
        if not self.clustered:
            return K @ (bread + ends) @ K.T
        scores = (self.s - self.s.mean(0)) @ K
        n = len(scores)
        return K @ (bread @ (scores.T @ scores) @ bread * n / (n - 1) + ends) @ K.T

    @property
    def clustered(self) -> bool:
        """Whether there are enough recordings for the sandwich, and more than directions that they determine."""
        directions = self.determined(np.ones(self.total.shape[0], bool)).shape[1]
        return len(self.s) >= max(ENOUGH_RECORDINGS, directions + 1)

    def bootstrap(self, free: Bool[np.ndarray, " n"], draws: int, seed: int) -> Float[np.ndarray, "draws n"]:
        """Changes of the estimate for recordings drawn with replacement: one Newton step on each draw, and another end of the
        search."""
        K, rng, n = self.determined(free), np.random.default_rng(seed), len(self.s)
        found = np.zeros((draws, self.s.shape[1]))
        for k in range(draws):
            counts = np.bincount(rng.integers(n, size=n), minlength=n)
            S = K.T @ np.tensordot(counts, self.S, 1) @ K
            floor = K.T @ self.total @ K
            S = S if np.linalg.eigvalsh(S)[0] > 0.05 * np.linalg.eigvalsh(floor)[0] else floor
            found[k] = -K @ np.linalg.solve(S, K.T @ (counts @ (self.s - self.s.mean(0))))
        if self.ends is not None:
            found += rng.multivariate_normal(np.zeros(K.shape[1]), K.T @ self.ends @ K, draws) @ K.T
        return found


def quantile(recordings: int, clustered: bool, level: float = 0.95) -> float:
    """Half width of an interval in standard deviations."""
    p = 0.5 + 0.5 * level
    return float(scipy.stats.t.ppf(p, recordings - 1) if clustered else scipy.stats.norm.ppf(p))


def hidden(slopes: Float[np.ndarray, "k n"], lost: Float[np.ndarray, "n l"]) -> Bool[np.ndarray, " k"]:
    """Whether values with these slopes (over the scales) depend on directions that are not determined."""
    along = np.linalg.norm(slopes @ lost, axis=1)
    return along > LEAKAGE * np.maximum(np.linalg.norm(slopes, axis=1), 1e-300)


def named(direction: Float[np.ndarray, " n"], labels: Sequence[str]) -> str:
    """A direction in words: the parameters that change along it, with their shares."""
    largest = np.abs(direction).max()
    chosen = [k for k in np.argsort(-np.abs(direction)) if abs(direction[k]) >= NAMED_SHARE * largest]
    sign = np.sign(direction[chosen[0]])
    return " ".join(f"{sign * direction[k]:+.2f} {labels[k]}" for k in chosen)


def simple_directions(lost: Float[np.ndarray, "n l"]) -> Float[np.ndarray, "n l"]:
    """Another basis of the same directions, of which each involves few parameters: by elimination with full pivoting."""
    basis = lost.T.copy()
    for k in range(len(basis)):
        rest = np.abs(basis[k:])
        row, column = divmod(int(np.argmax(rest)), rest.shape[1])
        basis[[k, k + row]] = basis[[k + row, k]]
        basis[k] /= basis[k, column]
        others = np.arange(len(basis)) != k
        basis[others] -= np.outer(basis[others, column], basis[k])
    basis[np.abs(basis) < 1e-6] = 0.0
    return (basis / np.maximum(np.linalg.norm(basis, axis=1, keepdims=True), 1e-300)).T
