"""L-BFGS with bounds: the one file that knows whose implementation it is.

It is SciPy's L-BFGS-B 3.0 (Zhu, Byrd, Lu, Nocedal 1997; Morales, Nocedal 2011), fed with a compiled value and gradient. An
implementation inside JAX would build the objective into the program of its line search, which takes seconds to compile anew
for every problem.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from trajopt.errors import OptionError
from trajopt.options import check_options
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.oracle import LeastSquaresOracle
from trajopt.result import Status
from trajopt.solvers.least_squares.iteration import fields, measured, measures
from trajopt.solvers.least_squares.state import ResidualState, ended
from trajopt.solvers.loop.contract import Advance, Findings, LibrarySolver, ended_by

_HUGE = 1e10  # cost of a point that is not finite, relative to the last finite one
LINE_SEARCH = 40  # largest number of evaluations of one line search


class _Stop(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class LBFGS(LibrarySolver):
    """L-BFGS-B: for `LeastSquaresProblem` a solver by itself, for `OptimalControlProblem` in `SingleShooting(LBFGS())`.

    Options:
        tolerance: as for `GaussNewton` (alone), or that of `SingleShooting`.
        max_iterations: largest number of iterations.
        memory: number of pairs of steps and gradient changes that are kept.
    """

    takes: ClassVar[tuple[type, ...]] = (LeastSquaresProblem,)
    remedy: ClassVar[str] = "use SingleShooting(LBFGS())"

    tolerance: float | None = None
    max_iterations: int = 1000
    memory: int = 20

    def __post_init__(self) -> None:
        check_options(self, tolerance="(0, inf)", max_iterations="[0, inf)", memory="[1, inf)")

    def minimise(
        self,
        evaluate: Callable[[np.ndarray], tuple[float, np.ndarray]],
        z: Float[np.ndarray, " n"],
        lower: Float[np.ndarray, " n"],
        upper: Float[np.ndarray, " n"],
        report: Callable[[np.ndarray], bool],
    ) -> str:
        """Minimise over lower <= z <= upper until `report`, called at each new point, is true.

        Returns "" when stopped by `report`, else why it ended by itself: "converged" (to rounding) or
        "line_search_failed". Points that are not finite count as very high ones.
        """
        from scipy.optimize import minimize

        last = [0.0]

        def guarded(z: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = evaluate(z)
            if np.isfinite(value) and np.isfinite(gradient).all():
                last[0] = value
                return value, gradient
            return last[0] + _HUGE * (1.0 + abs(last[0])), np.zeros_like(z)

        def callback(intermediate_result: Any) -> None:
            if report(np.asarray(intermediate_result.x)):
                raise _Stop

        options = {
            "maxcor": self.memory, "maxls": LINE_SEARCH, "ftol": 0.0, "gtol": 0.0,
            "maxiter": 2**31 - 1, "maxfun": 2**31 - 1,
        }  # fmt: skip
        bounds = np.stack([lower, upper], 1)
        try:
            result = minimize(
                guarded, z, jac=True, method="L-BFGS-B", bounds=bounds, callback=callback, options=options
            )
        except _Stop:
            return ""
        return "converged" if result.status == 0 else "line_search_failed"

    # -- least squares -------------------------------------------------------------------------------------------------

    def init(self, oracle: LeastSquaresOracle, guess: Float[np.ndarray, " nx"], key: PRNGKeyArray) -> ResidualState:
        """State at the guess. Raises `OptionError` for points on a manifold."""
        problem = oracle.problem
        if problem.integrate is not None:
            raise OptionError(f"LBFGS: problem '{problem.name}' has points on a manifold; use GaussNewton")
        return ResidualState(**fields(problem, measured(oracle, guess), 0.0))

    def run(self, oracle: LeastSquaresOracle, state: ResidualState, advance: Advance) -> Status:
        """Iterate until the loop says that it is enough, or L-BFGS-B gives up."""
        problem = oracle.problem
        status: Status | None = None
        latest: dict[str, Any] = {}

        def evaluate(z: np.ndarray) -> tuple[float, np.ndarray]:
            latest["z"], latest["at"] = z.copy(), (at := measured(oracle, z))
            return float(at.cost), np.asarray(at.J.T @ at.r, float)

        def report(z: np.ndarray) -> bool:
            nonlocal state, status
            at = latest["at"] if np.array_equal(latest["z"], z) else measured(oracle, z)
            state = ResidualState(**fields(problem, at, float(np.linalg.norm(np.asarray(at.x) - state.x))))
            status = advance(state)
            return status is not None

        lower, upper = problem.lower, problem.upper
        why = self.minimise(evaluate, np.asarray(state.x, float), lower, upper, report)
        return status if status is not None else ended_by(state, "stalled" if why == "converged" else why, advance)

    def terminate(self, oracle: LeastSquaresOracle, state: ResidualState) -> Status | None:
        """Solved when stationary, a failure when the line search gave up, else None."""
        return ended(oracle.problem, state, self.tolerance)

    def finish(self, oracle: LeastSquaresOracle, state: ResidualState) -> Findings:
        """The measures of optimality, recomputed."""
        return Findings(residuals=measures(measured(oracle, state.x)))
