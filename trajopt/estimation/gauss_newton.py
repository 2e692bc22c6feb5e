r"""Gauss-Newton over many recordings with shared parameters: the unknowns of each recording are eliminated.

    minimise  sum_j [ 1/2 sum_s rho(|r_js(theta, l_j)|^2) + 1/2 l_j^T P l_j ]

theta are shared, l_j = [first state, static errors of sensors] belongs to recording j and s counts its samples. The normal
equations have the shape of an arrow: blocks of the recordings on the diagonal, and one border of theta. With A_j, B_j, C_j the
blocks l l, l theta, theta theta of recording j and g_j, h_j the gradients,

    S = sum_j S_j,  S_j = C_j - B_j^T A_j^-1 B_j,      s_j = h_j - B_j^T A_j^-1 g_j,
    S dtheta = -sum_j s_j,      dl_j = -A_j^-1 (g_j + B_j dtheta).

S_j is what recording j says about theta, whatever its own unknowns are, and s_j is its score: the two give the sandwich
covariance (`uncertainty.py`). theta is scaled by what it may be off; directions of S that the recordings do not determine are
left out of a step. S is raised by the mean square of the residuals (Yamashita and Fukushima 2001 damp by it): while the
predictions are far off, what little the recordings say about a direction is not more than the error of the linear model.

Derivatives are exact, in forward mode, where no contact can act, and central differences of whole rollouts elsewhere: through
contact the compiled core takes rollouts in less time than XLA compiles their derivative.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.estimation.loss import RobustLoss
from trajopt.estimation.packing import Data, Group
from trajopt.estimation.prediction import Predictor
from trajopt.estimation.uncertainty import LEAST_INFORMATION, Information

STEP_OF_LOCAL = 1e-6  # of central differences, in m, rad, m/s, rad/s
STEP_OF_SCALE = 1e-4  # of central differences by theta, in units of its scale
LEAST_GAIN = 0.02  # decrease of the cost, a log-likelihood, at which the iteration ends
GAVE_UP = 1e8  # damping above which no step is sought any longer
RIDGE = 1e-12  # relative, of the blocks of recordings


@dataclasses.dataclass(frozen=True)
class Fit:
    """The point at which Gauss-Newton ended.

    theta, locals: unknowns, the latter group by group (R, l); cost; information: of theta; iterations; rollouts: of single
    recordings, with their derivatives where these are exact; converged.
    """

    theta: Float[np.ndarray, " n"]
    locals: list[Float[np.ndarray, "R l"]]
    cost: float
    information: Information
    iterations: int
    rollouts: int
    converged: bool


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """The parts of the normal equations of the recordings of a group, with R in front."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    g: np.ndarray
    h: np.ndarray
    cost: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class ArrowProblem:
    """The problem above: its data in groups, and the functions of a group that are compiled.

    exact: whether derivatives are taken in forward mode; else by central differences. least_information: in units of the scales,
    about a direction along which steps are taken.
    """

    predictor: Predictor
    groups: Sequence[Group]
    loss: RobustLoss
    exact: bool
    least_information: float = LEAST_INFORMATION

    @functools.cached_property
    def scale(self) -> Float[np.ndarray, " n"]:
        return self.predictor.unknowns.scale

    @functools.cached_property
    def _prior(self) -> Float[np.ndarray, " l"]:
        return self.predictor.prior()

    @functools.cached_property
    def _residuals(self):
        """(z, local, data) -> residuals of a group (R, m), z being theta over its scale."""
        scale = jnp.asarray(self.scale)

        def one(z: Array, local: Array, data: Data) -> Array:
            return self.predictor.residual(z * scale, local, data)

        return jax.jit(jax.vmap(one, (None, 0, 0)))

    @functools.cached_property
    def _jacobians(self):
        """(z, local, data) -> residuals (R, m) and their Jacobian by [local, z], (R, m, l + n)."""
        scale, n_local = jnp.asarray(self.scale), self.predictor.n_local

        def one(z: Array, local: Array, data: Data) -> tuple[Array, Array]:
            def residual(x: Array) -> Array:
                return self.predictor.residual(x[n_local:] * scale, x[:n_local], data)

            x = jnp.concatenate([local, z])
            if self.exact:
                return residual(x), jax.jacfwd(residual)(x)
            h = jnp.concatenate([jnp.full(n_local, STEP_OF_LOCAL), jnp.full(z.size, STEP_OF_SCALE)])
            moved = jax.vmap(residual)(jnp.concatenate([x + jnp.diag(h), x - jnp.diag(h), x[None]]))
            ahead, behind = moved[: x.size], moved[x.size : -1]
            return moved[-1], ((ahead - behind) / (2.0 * h[:, None])).T

        return jax.jit(jax.vmap(one, (None, 0, 0)))

    def costs(
        self, z: Float[np.ndarray, " n"], locals_: Sequence[Float[np.ndarray, "R l"]]
    ) -> list[Float[np.ndarray, " R"]]:
        """The robust cost of every recording, group by group (R,)."""
        found = []
        for group, local in zip(self.groups, locals_):
            r = np.asarray(self._residuals(jnp.asarray(z), jnp.asarray(local), group.data))
            cost = self._weighted(r, group)[1] + 0.5 * local**2 @ self._prior
            found.append(np.where(np.isfinite(cost), cost, np.inf))
        return found

    def mean_square(
        self, theta: Float[np.ndarray, " n"], locals_: Sequence[Float[np.ndarray, "R l"]]
    ) -> float:
        """Of all residuals, without weights."""
        total, count = 0.0, 0.0
        for group, local in zip(self.groups, locals_):
            r = np.asarray(self._residuals(jnp.asarray(theta / self.scale), jnp.asarray(local), group.data))
            present = self.predictor.present(group)
            total, count = total + float((r**2 * present).sum()), count + float(present.sum())
        return total / max(count, 1.0)

    def _weighted(self, r: np.ndarray, group: Group) -> tuple[np.ndarray, np.ndarray]:
        return self.loss.weights(r, self.predictor.sample_index(group), self.predictor.present(group))

    def blocks(self, z: Float[np.ndarray, " n"], locals_: Sequence[Float[np.ndarray, "R l"]]) -> list[_Blocks]:
        """The normal equations at a point."""
        found, n_local = [], self.predictor.n_local
        for group, local in zip(self.groups, locals_):
            r, J = (np.asarray(a) for a in self._jacobians(jnp.asarray(z), jnp.asarray(local), group.data))
            weight, cost = self._weighted(r, group)
            present = self.predictor.present(group) * weight
            N = np.matmul(np.swapaxes(J * present[:, :, None], 1, 2), J)
            g = np.einsum("rmi,rm->ri", J, present * r, optimize=True)
            A = N[:, :n_local, :n_local] + np.diag(self._prior)
            A = A + RIDGE * np.trace(A, axis1=1, axis2=2)[:, None, None] * np.eye(n_local) / n_local
            cost = cost + 0.5 * local**2 @ self._prior
            found.append(
                _Blocks(
                    A,
                    N[:, :n_local, n_local:],
                    N[:, n_local:, n_local:],
                    g[:, :n_local] + local * self._prior,
                    g[:, n_local:],
                    cost,
                )
            )
        return found

    def rollouts_of_blocks(self) -> int:
        """Rollouts of single recordings that `blocks` takes."""
        one = 1 if self.exact else 1 + 2 * (self.predictor.n_local + self.scale.size)
        return one * sum(len(group.index) for group in self.groups)


def solve(
    problem: ArrowProblem, theta: Float[np.ndarray, " n"], locals_: list[Float[np.ndarray, "R l"]], iterations: int = 20,
    nearly_linear: bool = False,
) -> Fit:  # fmt: skip
    """Levenberg-Marquardt from theta and the local unknowns, within the bounds of theta. nearly_linear: without the mean square
    of the residuals in S."""
    unknowns, scale = problem.predictor.unknowns, problem.scale
    lower, upper = unknowns.lower / scale, unknowns.upper / scale
    z, count, rollouts, converged = np.clip(theta / scale, lower, upper), 0, 0, False
    shared, own = 1e-6, [np.full(len(group.index), 1e-6) for group in problem.groups]
    recordings = sum(len(group.index) for group in problem.groups)
    entries = sum(float(problem.predictor.present(group).sum()) for group in problem.groups)
    while True:
        blocks = problem.blocks(z, locals_)
        rollouts += problem.rollouts_of_blocks()
        cost = sum(float(b.cost.sum()) for b in blocks)
        information = _information(problem, blocks)
        if count == iterations or converged:
            break
        count += 1
        while True:
            square = 0.0 if nearly_linear else 2.0 * cost / entries
            step, local_steps, predicted = _step(problem, blocks, information, (z, lower, upper), (shared, square), own)
            trial = np.clip(z + step, lower, upper)
            moved = [local + d for local, d in zip(locals_, local_steps)]
            moved, new, own, tried = _best_of_each(problem, trial, blocks, locals_, moved, own)
            rollouts += tried * recordings
            gain, least = cost - new, LEAST_GAIN * (1.0 + 1e-6 * cost)
            if gain > 0.0:
                ratio = gain / max(predicted, 1e-300)
                z, locals_, shared = trial, moved, max(shared * (0.2 if ratio > 0.5 else 1.0 if ratio > 0.1 else 5.0), 1e-10)
                converged = gain < least
                break
            if predicted < least or shared > GAVE_UP:
                converged = True
                break
            shared *= 10.0
    return Fit(z * scale, locals_, cost, information, count, rollouts, converged)


def _best_of_each(problem: ArrowProblem, z, blocks, old, moved, own) -> tuple[list, float, list, int]:
    """Local unknowns of each recording after a step, or before it where they cost less then; the cost of all; the damping of
    each recording for the next step; how many evaluations it took."""
    new = problem.costs(z, moved)
    worse = [n > b.cost for n, b in zip(new, blocks)]
    if not any(w.any() for w in worse):
        return moved, sum(float(n.sum()) for n in new), [np.maximum(0.3 * d, 1e-10) for d in own], 1
    kept = problem.costs(z, old)
    chosen, total, damping = [], 0.0, []
    for n, k, before, after, d in zip(new, kept, old, moved, own):
        back = k < n
        chosen.append(np.where(back[:, None], before, after))
        damping.append(np.where(back, np.minimum(10.0 * d, GAVE_UP), np.maximum(0.3 * d, 1e-10)))
        total += float(np.minimum(n, k).sum())
    return chosen, total, damping, 2


def _information(problem: ArrowProblem, blocks: list[_Blocks]) -> Information:
    S, s = zip(*(_reduced(b, 0.0) for b in blocks))
    order = np.argsort(np.concatenate([group.index for group in problem.groups]))
    return Information(np.concatenate(S)[order], np.concatenate(s)[order])


def _damped(b: _Blocks, damping: np.ndarray | float) -> np.ndarray:
    """A with its diagonal raised by a share."""
    share = np.broadcast_to(damping, len(b.A))
    return b.A + (share[:, None] * np.einsum("rii->ri", b.A))[:, :, None] * np.eye(b.A.shape[1])


def _reduced(b: _Blocks, damping: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """S_j and s_j of the recordings of a group."""
    X = np.linalg.solve(_damped(b, damping), np.concatenate([b.B, b.g[:, :, None]], 2))
    Bt = np.swapaxes(b.B, 1, 2)
    return b.C - Bt @ X[:, :, :-1], b.h - (Bt @ X[:, :, -1:])[:, :, 0]


def _step(
    problem: ArrowProblem,
    blocks: list[_Blocks],
    information: Information,
    place: tuple,
    damping_of_shared: tuple[float, float],
    own: list[np.ndarray],
) -> tuple[np.ndarray, list[np.ndarray], float]:
    """The step of theta over its scale, those of the local unknowns, and the decrease that the quadratic predicts."""
    (z, lower, upper), (shared, square) = place, damping_of_shared
    damping = [np.maximum(d, shared) for d in own]
    parts = [_reduced(b, d) for b, d in zip(blocks, damping)]
    S, s = sum(S.sum(0) for S, _ in parts), sum(s.sum(0) for _, s in parts)
    S = S + shared * np.diag(np.maximum(np.diag(S), 1.0)) + square * np.eye(len(S))
    held = ((z <= lower) & (s > 0)) | ((z >= upper) & (s < 0))
    keep = information.determined(~held, problem.least_information)
    step = -keep @ np.linalg.solve(keep.T @ S @ keep, keep.T @ s) if keep.shape[1] else np.zeros_like(s)
    local_steps, predicted = [], 0.0
    for b, share in zip(blocks, damping):
        d = -np.linalg.solve(_damped(b, share), (b.g + b.B @ step)[:, :, None])[:, :, 0]
        local_steps.append(d)
        cross = np.einsum("ri,rij,j->", d, b.B, step)
        quadratic = np.einsum("ri,rij,rj->", d, b.A, d) + 2 * cross + step @ b.C.sum(0) @ step
        predicted -= float(np.einsum("ri,ri->", b.g, d) + b.h.sum(0) @ step + 0.5 * quadratic)
    return step, local_steps, predicted


__all__ = ["ArrowProblem", "Fit", "solve"]
