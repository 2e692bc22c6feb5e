"""Backtracking along the projected path of a descent direction, with Armijo's sufficient decrease."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

SUFFICIENT_DECREASE = 1e-4


class Search(NamedTuple):
    """Result of a line search: the step length, the point and its cost; `found` is False when no decrease was found."""

    found: bool
    step: float
    x: np.ndarray
    cost: float


def armijo(
    move: Callable[[float], np.ndarray],
    cost: Callable[[np.ndarray], float],
    cost0: float,
    decrease: Callable[[np.ndarray, float], float],
    step: float,
    *,
    shrink: float = 0.5,
    max_trials: int = 60,
) -> Search:
    """First of step, shrink * step, ... whose point lowers the cost enough.

    `move(t)` is the (projected) point at step length t and `decrease(x, t)` the first-order decrease promised there;
    accepted when cost(x) <= cost0 - SUFFICIENT_DECREASE * decrease. Points of non-finite cost are never accepted.
    """
    x = move(0.0)
    for _ in range(max_trials):
        x = move(step)
        value = cost(x)
        if np.isfinite(value) and value < cost0 and value <= cost0 - SUFFICIENT_DECREASE * decrease(x, step):
            return Search(True, step, x, value)
        step *= shrink
    return Search(False, step, x, cost0)
