r"""Multiple shooting as a sparse nonlinear program: minimise f(w) subject to g_l <= g(w) <= g_u and bounds on w.

The variables w and the rows of g are laid out in `layout`. Row by row, g holds the defects

    local(r_{k+1}, F_k(x_k, U_k, p)) - xi_{k+1},        x_k = r_k (+) xi_k,

with F_k the motion over interval k and r_k a reference state (zero, and then xi_k = x_k, where states are plain vectors);
the path constraints at every step; state bounds at steps inside intervals (at nodes they are bounds of w); and the terminal
constraints. On a manifold xi_k are exponential coordinates about r_k: exact, but singular one turn (2 pi) away and folding
at half a turn, so that the references have to follow (`Shooting.departure`).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.effort import Effort
from trajopt.problems.ocp import Trajectory
from trajopt.solvers.shooting.functions import DIFFERENCED, EXACT, GAUSS_NEWTON, ShootingFunctions, euclidean
from trajopt.solvers.shooting.hessian import lagrangian_hessian
from trajopt.solvers.shooting.layout import used_at_steps

# All variables of the program; a number for each row.
Variables = Float[np.ndarray, " nw"]
Rows = Float[np.ndarray, " m"]


@dataclasses.dataclass
class Values:
    """f, g (m,), the states xs (T+1, nx) and the first step whose motion, cost or constraints are not finite, T + 1: none."""

    cost: float
    constraints: np.ndarray
    xs: np.ndarray
    bad_step: int


@dataclasses.dataclass
class Slopes:
    """grad f, the non-zeros of the Jacobian and of the Gauss-Newton Hessian (if asked for), see `Shooting.departure`."""

    gradient: np.ndarray
    jacobian: np.ndarray
    hessian: np.ndarray
    departure: float


class Shooting:
    """The nonlinear program of one problem about a reference; everything is evaluated by compiled functions.

    Arguments: the problem's oracle, steps per interval, one of `HESSIANS`, the motion about which states are counted, and what
    is added to the diagonal of a Gauss-Newton Hessian. `latest`: multipliers of the rows that came with the last Hessian, zero
    while unknown, the direction of complementarity-aware slopes; slopes at the w of the last call are not computed again.
    Raises `DerivativeError` when an exact Hessian is asked for and the dynamics have no second derivative.
    """

    def __init__(self, oracle: Any, interval: int, hessian: str, reference: Trajectory, damping: float = 0.0) -> None:
        self.oracle, self.problem, self.hessian_kind = oracle, oracle.problem, hessian
        self._functions = ShootingFunctions(self.problem, interval, oracle.gradient, hessian, used_at_steps(self.problem))
        if hessian in (EXACT, DIFFERENCED):
            _ = self._functions.curvature  # raises where there is none
        self.layout = layout = self._functions.layout
        self._damping = damping * (layout.hessian.rows == layout.hessian.columns)
        self.constraint_lower, self.constraint_upper = layout.constraint_bounds
        self._refer_to(reference)

    def _refer_to(self, reference: Trajectory) -> None:
        problem = self.problem
        self.references = self._nodes(reference)
        if euclidean(problem):
            self.references = np.zeros_like(self.references)
        if not problem.free_initial_state:
            self.references[0] = problem.x0
        self.lower, self.upper = self.layout.variable_bounds(self.references)
        self._values: tuple[np.ndarray, Values] | None = None
        self._slopes: tuple[np.ndarray, Slopes] | None = None
        self.last_bad_step = problem.horizon + 1
        self.latest = np.zeros(self.layout.constraints)

    def about(self, reference: Trajectory) -> Shooting:
        """The same program about another motion."""
        other = copy.copy(self)
        other._refer_to(reference)
        return other

    def _nodes(self, motion: Trajectory) -> np.ndarray:
        return np.array(motion.xs, self.problem.dtype)[np.append(self.layout.step[:, 0], self.problem.horizon)]

    def variables(self, motion: Trajectory) -> Variables:
        """w of a motion (its states between the nodes are not part of it)."""
        layout, problem = self.layout, self.problem
        nodes = self._nodes(motion)
        if euclidean(problem):
            xi = nodes - np.where(layout.nodes[:, :1] >= 0, self.references, nodes)
        else:
            xi = np.asarray(self._call(ShootingFunctions.coordinates, self.references, nodes))
        w = np.zeros(layout.variables)
        present = layout.nodes[:, 0] >= 0
        w[layout.nodes[present]] = xi[present]
        w[layout.controls] = np.asarray(motion.us)[layout.step]
        w[layout.parameters] = motion.p
        return w

    def motion(self, w: Variables) -> Trajectory:
        """The motion of w, rolled out inside each interval."""
        layout = self.layout
        us = w[layout.controls][layout.valid]
        return Trajectory(self.values(w).xs, us, w[layout.parameters])

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.oracle.call(function, self._functions, *arguments, effort=Effort.LIGHT)

    def values(self, w: Variables) -> Values:
        if self._values is None or not np.array_equal(self._values[0], w):
            self.oracle.evaluations += 1
            cost, g, xs, bad = self._call(ShootingFunctions.values, w, self.references)
            self._values = w.copy(), Values(float(cost), np.asarray(g), np.asarray(xs), int(bad))
            self.last_bad_step = int(bad) if bad <= self.problem.horizon else self.last_bad_step
        return self._values[1]

    def slopes(self, w: Variables) -> Slopes:
        if self._slopes is None or not np.array_equal(self._slopes[0], w):
            self.oracle.evaluations += self.oracle.cost_of_linearization
            arguments = w, self.references, self.latest
            gradient, jacobian, hessian, departure = self._call(ShootingFunctions.slopes, *arguments)
            arrays = np.asarray(gradient), np.asarray(jacobian), np.asarray(hessian)
            self._slopes = w.copy(), Slopes(*arrays, float(departure))
        return self._slopes[1]

    def hessian(self, w: Variables, multipliers: Rows, factor: float) -> Float[np.ndarray, " nh"]:
        """Non-zeros of the Hessian of factor f + multipliers . g, or of its Gauss-Newton part factor f, damped."""
        if factor != 0:  # not those of a restoration phase
            self.latest = np.array(multipliers, self.problem.dtype)
        if self.hessian_kind == GAUSS_NEWTON:
            return factor * (self.slopes(w).hessian + self._damping)
        weight = np.asarray(factor, self.problem.dtype)
        return np.asarray(self._call(lagrangian_hessian, w, self.references, multipliers, weight))

    def departure(self, w: Variables) -> float:
        """How far the coordinates xi are from tangent ones: largest column of d(xi as a tangent at x) / dxi - 1.

        Zero for plain vectors; for a rotation 0.48 at one radian from the reference, 0.89 at two, 1.19 at half a turn.
        """
        return self.slopes(w).departure

    def carried(self, w: Variables, rows: Rows) -> Rows:
        """Multipliers of the rows for the program about w's own motion: with defects counted at tangents of its nodes."""
        place, rows = self.layout.rows["defect"], rows.copy()
        if not euclidean(self.problem):
            rows[place] = np.asarray(self._call(ShootingFunctions.carry, w, self.references, rows[place]))
        return rows

    def violation(self, w: Variables) -> float:
        """Largest violation of rows and bounds; NaN where the rows are not finite."""
        g = self.values(w).constraints
        rows = np.maximum(self.constraint_lower - g, g - self.constraint_upper)
        bounds = np.maximum(self.lower - w, w - self.upper)
        return float(max(rows.max(initial=0.0), bounds.max(initial=0.0))) if np.isfinite(g).all() else float("nan")

    def stationarity(self, w: Variables, rows: Rows, lower: Variables, upper: Variables) -> float:
        """Largest |grad f + J^T rows - lower + upper| over the variables that are not fixed."""
        slopes, entries = self.slopes(w), self.layout.jacobian
        pull = np.bincount(entries.columns, weights=slopes.jacobian * rows[entries.rows], minlength=w.size)
        residual = slopes.gradient + pull - lower + upper
        return float(np.abs(residual[self.lower < self.upper]).max(initial=0.0))

    def complementarity(self, w: Variables, rows: Rows, lower: Variables, upper: Variables) -> float:
        """Largest product of a multiplier and the distance to its bound."""
        g = self.values(w).constraints
        pairs = (
            (lower, w - self.lower),
            (upper, self.upper - w),
            (np.maximum(-rows, 0.0), g - self.constraint_lower),
            (np.maximum(rows, 0.0), self.constraint_upper - g),
        )
        products = [np.abs(a * np.where(np.isfinite(gap), gap, 0.0)).max(initial=0.0) for a, gap in pairs]
        return float(max(products))
