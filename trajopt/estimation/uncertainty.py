r"""How well shared parameters are known, from what each recording says about them.

Near the estimate the loss of recording j is s_j^T d + 1/2 d^T S_j d, with d the change of the parameters in units of their
scales. With S = sum_j S_j, the estimate moves by -S^-1 s when a score moves by s, and recordings are independent of each other:

    C = S^-1 [ sum_j u_j u_j^T ] S^-1,      u_j = A_j (s_j - S_j S^-1 sum_i s_i)

the sandwich covariance clustered by recording (Huber 1967; Cameron and Miller 2015). It asks nothing of the noise within a
recording. A recording pulls the estimate towards itself, by its leverage h_j = S_j S^-1; A_j = (1 - h_j)^-1/2, in coordinates in
which S = 1, undoes what that takes from its score (Bell and McCaffrey 2002, CR2). Intervals follow Student's t with
Satterthwaite's degrees of freedom: n - 1 where n recordings say alike, fewer where some say more than others (Pustejovsky and
Tipton 2018). Directions in which one recording has nearly all the leverage take the stated noise. So do all with fewer than
eight recordings: C = S^-1, times the mean square of the residuals where that is above 1.

Losses of whole motions through impacts are no likelihoods: no noise is stated for them, every recording has the leverage 1 / n,
and two recordings are enough.

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

ENOUGH_RECORDINGS = 8  # for the sandwich, where a noise is stated
MOST_LEVERAGE = 0.9  # of one recording in a direction, from which on that takes the stated noise
LEAST_INFORMATION = 1e-2  # about a direction: a deviation of ten scales
LEAKAGE = 0.3  # of a value's change, relative, along what is not determined, above which it has no interval
NAMED_SHARE = 0.2  # of the largest entry, from which on a parameter is named in a direction


@dataclasses.dataclass(frozen=True)
class Information:
    """Curvature S (R, n, n) and score s (R, n) of each recording, in units of the parameters' scales; ends: covariance of where a
    search ends, whatever the recordings (n, n), None without one; likelihood: whether the losses are those of a stated noise."""

    S: Float[np.ndarray, "R n n"]
    s: Float[np.ndarray, "R n"]
    ends: Float[np.ndarray, "n n"] | None = None
    likelihood: bool = True

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

    def covariance(self, free: Bool[np.ndarray, " n"], noise: float = 1.0) -> Float[np.ndarray, "n n"]:
        """Covariance on the determined directions; noise: variance of the noise over the stated one."""
        K = self.determined(free)
        if not K.shape[1]:
            return np.zeros_like(self.total)
        F, h, A, stated = self._clusters(K)
        t = self.s @ F
        u = np.einsum("rij,rj->ri", A, t - h @ t.sum(0))
        ends = 0.0 if self.ends is None else K @ K.T @ self.ends @ K @ K.T
        return F @ (u.T @ u + noise * stated) @ F.T + ends

    def freedom(self, free: Bool[np.ndarray, " n"], slopes: Float[np.ndarray, "k n"]) -> Float[np.ndarray, " k"]:
        """Degrees of freedom of the variance of values with these slopes (over the scales)."""
        K = self.determined(free)
        found = np.full(len(slopes), np.inf)
        if not K.shape[1]:
            return found
        F, h, A, _ = self._clusters(K)
        for k, w in enumerate(slopes @ F):
            p = A @ w
            hp = np.einsum("rij,rj->ri", h, p)
            M = np.diag(np.einsum("ri,ri->r", p, hp)) - hp @ hp.T  # covariance of u_j^T w, where that of s_j is S_j
            if np.sum(M * M) > 0.0:
                found[k] = (w @ w) ** 2 / np.sum(M * M)
        return np.maximum(found, 1.0)

    def _clusters(self, K: Float[np.ndarray, "n k"]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """F (n, k) with S^-1 = F F^T on the directions K; h_j and A_j (R, k, k) in the coordinates F^T; the covariance there that
        is left to the stated noise (k, k)."""
        values, vectors = np.linalg.eigh(K.T @ self.total @ K)
        F, k, n = K @ vectors / np.sqrt(values), K.shape[1], len(self.s)
        if not self.likelihood:
            h = np.tile(np.eye(k) / n, (n, 1, 1))
        else:
            h = np.einsum("ia,rij,jb->rab", F, self.S, F, optimize=True)
        if not self.clustered:
            return F, h, np.zeros_like(h), np.eye(k)
        share, axes = np.linalg.eigh(h)
        shared = share < MOST_LEVERAGE
        A = np.einsum("rij,rj,rkj->rik", axes, shared / np.sqrt(1.0 - np.minimum(share, MOST_LEVERAGE)), axes)
        return F, h, A, np.einsum("rij,rj,rkj->ik", axes, np.where(shared, 0.0, share), axes)

    @property
    def clustered(self) -> bool:
        """Whether there are enough recordings for the sandwich."""
        return len(self.s) >= (ENOUGH_RECORDINGS if self.likelihood else 2)

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


def quantile(freedom: Float[np.ndarray, "*k"] | float, level: float = 0.95) -> Float[np.ndarray, "*k"]:
    """Half width of an interval in standard deviations."""
    return np.asarray(scipy.stats.t.ppf(0.5 + 0.5 * level, freedom))


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
