"""How a search moves its mean onto terminal equalities and its multipliers between two updates; `search` says when."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt.solvers.sampling.rollouts import Scores
from trajopt.solvers.subproblems.augmented_lagrangian import Multipliers, estimate

MULTIPLIER_SHARE = 0.2  # of the regressed multipliers in each generation
DRIFT = 0.05  # share of the other rows' first-order update in each generation


def restoring_move(
    y: Float[np.ndarray, "K d"], scores: Scores, weights: Float[np.ndarray, " P"], deviation: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " d"]:
    """Move (d,) of the mean onto the terminal equalities; y, scores: [mean, incumbent, draws]; weights: of the draws."""
    finite = np.isfinite(scores.merit[2:])
    displacement, change = (y[2:] - y[0])[finite], (scores.arrival[2:] - scores.arrival[0])[finite]
    rows = scores.arrival[0] + weights[finite] @ change
    a = np.linalg.lstsq(change.T.astype(float), -rows.astype(float), rcond=1e-10)[0]
    move = a @ displacement
    return move / max(1.0, float(np.max(np.abs(move) / np.maximum(deviation, 1e-300))))


def drifted(
    multipliers: Multipliers, rows: tuple[Float[np.ndarray, "T m"], Float[np.ndarray, " k"]], flags: tuple
) -> Multipliers:
    """With a share of the first-order update at the mean's rows; flags: which rows are inequalities."""

    def moved(y: np.ndarray, w: np.ndarray, c: np.ndarray, inequality: np.ndarray) -> np.ndarray:
        new = np.asarray(estimate(jnp.asarray(y), jnp.asarray(w), jnp.asarray(c), inequality))
        return y + DRIFT * np.where(w > 0, new - y, 0.0).astype(y.dtype)

    m = multipliers
    stage = moved(m.stage, m.stage_penalty, rows[0], flags[0])
    terminal = moved(m.terminal, m.terminal_penalty, rows[1], flags[1])
    return dataclasses.replace(m, stage=stage, terminal=terminal)


def regressed(multipliers: Multipliers, before: Multipliers, scores: Scores) -> Multipliers:
    """With those of the terminal equalities moved towards the regression of the cost on the rows over the draws.

    before: the multipliers that the draws were rated with.
    """
    k = scores.arrival.shape[1]
    y, w = (np.array(a, float) for a in (before.terminal, before.terminal_penalty))
    finite = 2 + np.flatnonzero(np.isfinite(scores.merit[2:]))
    rows = scores.arrival[finite].astype(float)
    rest = scores.merit[finite] - rows @ y[:k] - 0.5 * rows**2 @ w[:k]
    slopes = np.linalg.lstsq(rows - rows.mean(0), rest - rest.mean(), rcond=1e-10)[0]
    terminal = np.array(multipliers.terminal)
    terminal[:k] = y[:k] + MULTIPLIER_SHARE * (-slopes - y[:k])
    return dataclasses.replace(multipliers, terminal=terminal)
