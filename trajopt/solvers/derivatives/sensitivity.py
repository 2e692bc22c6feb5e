"""`sensitivity`: the derivative of a solution by the numbers of its problem."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.effort import Effort
from trajopt.errors import DerivativeError, OptionError, ShapeError
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.oracle import CompiledCalls
from trajopt.solvers.derivatives.conditions import EXACT, WEIGHTS, Conditions, Factors, Point
from trajopt.solvers.derivatives.parameters import checked, chosen
from trajopt.solvers.loop.contract import default_tolerance
from trajopt.solvers.loop.solution import Solution

BY = ("x0", "references", "weights")  # what `vjp` differentiates by where nothing is named
STATIONARY = 0.6  # exponent of the default tolerance: less stationary than that, relative to its scale, is no optimum
ACCURATE = 1e-6  # relative residual of the constraints' rows above which the linear problem counts as not solved


@dataclasses.dataclass(frozen=True)
class Change:
    """How a solution changes with its problem, to first order.

    Attributes:
        xs: of the states, (T+1, n) in tangent coordinates.
        us: of the controls, (T, nu).
        parameters: of the free parameters, (np,).
        cost: of the optimal cost.
    """

    xs: Float[np.ndarray, "T1 n"]
    us: Float[np.ndarray, "T nu"]
    parameters: Float[np.ndarray, " np"]
    cost: float


class Sensitivity(CompiledCalls):
    """The derivative of a solution: `sensitivity` makes it.

    Options:
        problem: the problem that was solved.
        motion: the solution's.
        multipliers: those of the rows of the constraints, of the stages (T, m) and of the end (k,).

    Attributes:
        stationarity: largest |dH/du| over the controls that no bound holds, recomputed with exact derivatives, relative to the
            sum of magnitudes that cancel in it. The derivative is as far from exact.
        held: (T, nu), which controls a bound holds; they stay there.
        curvature: of the dynamics, "exact", or through contact "within modes" (by differences of the compiled core's derivatives)
            or "none" (Gauss-Newton: not exact unless residuals are small).
    """

    def __init__(
        self,
        problem: OptimalControlProblem,
        motion: Trajectory,
        multipliers: tuple[Float[np.ndarray, "T m"], Float[np.ndarray, " k"]],
    ) -> None:
        self.problem = problem.with_gradient(EXACT)
        self._conditions = Conditions(self.problem)
        self._motion = motion
        for weight in WEIGHTS:
            size = np.asarray(weight, problem.dtype)
            found = self._call(Conditions.factors, motion, multipliers, size)
            self._factors: Factors = found[0]
            self._point: Point = found[1]
            if self._factors.convex or not any(row.size for row in multipliers):
                break
        self.stationarity = float(self._factors.stationarity / self._factors.scale)
        self.held = np.asarray(self._factors.held)
        smooth, curved = self._conditions.smooth, self._conditions.curved
        self.curvature = "exact" if smooth else "within modes" if curved else "none"
        self._check()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A function of the conditions; its program compiles for longer than it runs."""
        return self.call(function, self._conditions, *arguments, effort=Effort.QUICK)

    def _check(self) -> None:
        where = f"sensitivity of a solution of '{self.problem.name}': "
        if not self._factors.convex:
            raise DerivativeError(
                f"{where}it is no strict minimum, so that it may jump where the problem changes a little. Some controls or "
                "parameters change nothing, or the solver stopped at a saddle: add a small cost of the controls, or solve on "
                "by DDP"
            )
        allowed = default_tolerance(self.problem.dtype) ** STATIONARY
        if not self.stationarity <= allowed:
            warnings.warn(
                f"{where}it is stationary to {self.stationarity:.2g} only, an optimum to {allowed:.2g}; the derivative is "
                "about as wrong. Solve on with iLQR or DDP, x0=solution, until it says solved",
                stacklevel=3,
            )

    def apply(self, **changes: Any) -> Change:
        """How the solution changes when the problem's numbers do: its derivative along `changes`.

        changes: of x0, state_lower, state_upper; references={name: ...}, weights={name: ...}, model={leaf: ...}; of a
            function that is a pytree, such as dynamics made by `jax.tree_util.Partial`, a pytree like it. Numbers stand for
            arrays of them.

        Raises `OptionError`, `UnknownNameError` or `ShapeError`, naming the culprit.
        """
        if not changes:
            raise OptionError("sensitivity: apply() needs a change, such as x0=dx0 or weights={'control': 1.0}")
        tangent = checked(self.problem, changes)
        right, cost = self._call(Conditions.forward, self._motion, self._point, tangent)
        s = self._solved(right)
        return Change(np.asarray(s.dxs), np.asarray(s.dus), np.asarray(s.dp), float(cost))

    def vjp(
        self,
        xs: Float[np.ndarray, "T1 nx"] | Float[Array, "T1 nx"] | None = None,
        us: Float[np.ndarray, "T nu"] | Float[Array, "T nu"] | None = None,
        *,
        parameters: Float[np.ndarray, " np"] | Float[Array, " np"] | None = None,
        cost: float | Float[Array, ""] = 0.0,
        by: tuple[str, ...] | list[str] = BY,
    ) -> dict[str, Any]:
        """The gradient of a function of the solution by the problem's numbers, from its gradient by the solution.

        xs, us, parameters, cost: of the function by the states (T+1, nx), flat as in `Solution.xs`, by the controls (T, nu), by
            the free parameters (np,), and by the optimal cost. Default: zero.
        by: "x0", "references", "weights", "model", "state_lower", ..., or one of several: "weights.control", "model.friction".

        Returns a dictionary with these names, as `apply` takes it. Raises as `apply`.
        """
        zeros = jax.tree.map(jnp.zeros_like, chosen(self.problem, tuple(by)))
        motion = self._motion
        given = {"xs": (xs, motion.xs), "us": (us, motion.us), "parameters": (parameters, motion.p)}
        covector = []
        for key, (value, like) in given.items():
            value = np.zeros_like(like) if value is None else np.asarray(value, like.dtype)
            if value.shape != like.shape:
                raise ShapeError(f"sensitivity: {key} has shape {value.shape}; expected {like.shape}")
            covector.append(value)
        right = self._call(_in_tangent_coordinates, motion, self._point, Trajectory(*covector))
        w, by_cost = self._solved(right), np.asarray(cost, motion.us.dtype)
        found = self._call(Conditions.reverse, motion, self._point, w, by_cost, zeros)
        return jax.tree.map(np.asarray, found)

    def _solved(self, right: Point) -> Point:
        s, residual = self._call(Conditions.solve, self._factors, right)
        if not residual <= ACCURATE:
            warnings.warn(
                f"sensitivity of a solution of '{self.problem.name}': the rows of the constraints that bind are kept to a share "
                f"of {float(residual):.1g} only; some of them may contradict each other to first order",
                stacklevel=3,
            )
        return s


def _in_tangent_coordinates(conditions: Conditions, at: Trajectory, s: Point, covector: Trajectory) -> Point:
    """A gradient by states, controls and parameters as the right side of `Conditions.solve`."""
    _, back = jax.vjp(lambda dxs: jax.vmap(conditions.problem.retract)(at.xs, dxs), s.dxs)
    zero = jax.tree.map(jnp.zeros_like, s)
    return dataclasses.replace(zero, dxs=back(covector.xs)[0], dus=covector.us, dp=covector.p)


def sensitivity(problem: Any, solution: Any) -> Sensitivity:
    """The derivative of a solution by what its problem was given: x0, references, weights, leaves of the model.

    By the implicit function theorem on the conditions of optimality at the solution: whatever solver found it, the answer is that
    of the exact second derivatives of costs, constraints and dynamics, as far as these have some (`Sensitivity.curvature`).
    Controls at a bound that holds them stay there, and inequalities with a multiplier stay active; through contact the modes stay
    as they are. Where one of them is about to change, the derivative is that to one side.

    Arguments:
        problem: the `OptimalControlProblem`.
        solution: the `Solution` of it.

    Raises `DerivativeError` where the solution is no strict minimum, `OptionError` for a problem of another kind, and for
    constraints without multipliers. Warns where the solution is not stationary.
    """
    if not isinstance(problem, OptimalControlProblem):
        raise OptionError(f"sensitivity: problem is {problem!r}; expected an OptimalControlProblem")
    return Sensitivity(problem, problem.point_of(solution), multipliers_of(problem, solution))


def multipliers_of(
    problem: OptimalControlProblem, solution: Solution
) -> tuple[Float[np.ndarray, "T m"], Float[np.ndarray, " k"]]:
    """Those of the rows of the stages and of the end. Raises `OptionError` where the solution has none."""
    blank = Conditions(problem).modeller.constraints.initial(1.0)
    if not (blank.stage.size or blank.terminal.size):
        return blank.stage, blank.terminal
    known = solution.multipliers
    if not {"stage", "terminal"} <= set(known) or np.shape(known["stage"]) != blank.stage.shape:
        raise OptionError(
            f"sensitivity: problem '{problem.name}' has constraints, and the solution by {solution.solver} has no multipliers of "
            "them; solve on from it: solve(problem, iLQR(), x0=solution)"
        )
    return np.asarray(known["stage"], problem.dtype), np.asarray(known["terminal"], problem.dtype)
