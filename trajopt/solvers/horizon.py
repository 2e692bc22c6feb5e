r"""Gauss-Newton over a horizon: estimation of states, process noise and parameters from measurements along a motion.

The problem is an `OptimalControlProblem` whose costs are residuals of unit variance:

    minimise  sum_t 1/2 |r_t(x_t, u_t, p)|^2 + 1/2 |r_T(x_T, p)|^2 + 1/2 |r_0(x_0)|^2 + 1/2 |r_p(p)|^2
    subject to  x_{t+1} = f(x_t, u_t, p)

with x_0 free, u_t the process noise (or the torques, known up to a deviation) and p constants of the model. States and noise
are variables and the dynamics equalities, whose defects a Gauss-Newton step closes: a noise that may be small or zero in a
direction makes no ill-conditioned weights, and with the noise in the rows of r_t it costs what it is worth. The normal
equations of a step are block-tridiagonal in (x_0, u_0, x_1, ...) with an arrow of p; carrying p as a state that does not
change, one Riccati pass from the end is their block elimination, at T times the cost of a stage. The iteration is iLQR's in
multiple shooting (`ddp_iteration`), with Levenberg-Marquardt damping of the states.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from trajopt.errors import OptionError
from trajopt.problems.ocp import Trajectory
from trajopt.problems.transcription import COMPLEMENTARITY
from trajopt.result import Status
from trajopt.solvers.base import default_tolerance
from trajopt.solvers.ilqr import RELAXED_EXPONENT, DDPState, iLQR
from trajopt.solvers.local_model import LocalModel, Modeller
from trajopt.solvers.smoothing import held_controls, information, inverse_information, marginals


@dataclasses.dataclass(frozen=True)
class HorizonGaussNewton:
    """What `GaussNewton` does with an `OptimalControlProblem`; its options, and the four methods of a solver.

    Raises `OptionError` for a problem with `stage_cost` or `terminal_cost`.
    """

    tolerance: float | None = None
    max_iterations: int = 50
    damping: float = 0.0
    rank_tolerance: float | None = None

    @property
    def _iteration(self) -> iLQR:
        return iLQR(
            tolerance=self.tolerance, max_iterations=self.max_iterations, damping=self.damping, shooting="multiple",
            regularization="state",
        )  # fmt: skip

    def init(self, oracle: Any, x0: Any, key: Any) -> DDPState:
        """The linear-quadratic model along the initial states, which need not obey the dynamics."""
        problem = oracle.problem
        if oracle.gradient == COMPLEMENTARITY:
            raise OptionError(
                f"GaussNewton: gradient='{COMPLEMENTARITY}' is a direction to search in, and the estimate and its covariance "
                "need the exact derivative; use 'implicit', or iLQR"
            )
        for kind in ("stage_cost", "terminal_cost"):
            if getattr(problem, kind) is not None:
                raise OptionError(
                    f"GaussNewton: problem '{problem.name}' has a {kind}, which is no sum of squares; "
                    f"give {kind.replace('cost', 'residual')}, or use iLQR"
                )
        return self._iteration.init(oracle, x0, key)

    def step(self, oracle: Any, state: DDPState) -> DDPState:
        """One accepted step, or the same point with `halt` set."""
        return self._iteration.step(oracle, state)

    def terminate(self, oracle: Any, state: DDPState) -> Any:
        """As iLQR's; where that gives up, the part of the residual that a Gauss-Newton step can still remove decides.

        Over long horizons the gradients by x_0 and p are sums whose rounding may be above the tolerance.
        """
        status = self._iteration.terminate(oracle, state)
        gave_up = state.halt in ("stalled", "line_search_failed") and state.violation <= oracle.problem.tolerance
        if not gave_up or oracle.problem.constrained:
            return status
        removable = self._backward(oracle, state)[-1]
        least = default_tolerance(oracle.problem.dtype) if self.tolerance is None else self.tolerance
        size = max(float(np.sqrt(2.0 * state.cost)), 1.0)
        if removable <= least * size:
            return Status.solved
        return Status.acceptable if removable <= least**RELAXED_EXPONENT * size else status

    def finish(self, oracle: Any, state: DDPState) -> dict[str, Any]:
        """Stationarity, multipliers, gains and the `covariances` of states, controls and parameters."""
        result = self._iteration.finish(oracle, state)
        if oracle.problem.constrained:
            result["notes"].append("no covariance: constraints beside the dynamics and the bounds on controls")
            return result
        held, lq, policy, free, matrix, removable = self._backward(oracle, state)
        result["residuals"]["removable_residual"] = removable
        initial, lacking = inverse_information(matrix, free, self.rank_tolerance)
        if lacking:
            result["notes"].append(f"{lacking} directions of the initial state and parameters are not determined")
            return result
        n = oracle.problem.n
        states, controls = oracle.call("marginals", marginals, lq, policy, held, initial)
        values = {"states": np.asarray(states)[:, :n, :n], "controls": np.asarray(controls)}
        values |= {"parameters": initial[n:, n:]} if oracle.problem.n_p else {}
        return result | {"covariances": values}

    def _backward(self, oracle: Any, state: DDPState) -> tuple:
        """(controls held at a bound, the model without them, its Riccati pass, the free entries of e_0, the information about
        e_0, the norm of the residual that the linearised problem can still remove)."""
        problem, model = oracle.problem, state.model
        modeller = Modeller(problem, oracle.gradient, multiple=True, second_order=False)
        where = modeller.free()

        def backward(at: Trajectory, model: LocalModel) -> tuple:
            # Defects within the tolerance are left: the gradient is that of the cost along the motion.
            lq = dataclasses.replace(model.lq, d=jnp.zeros_like(model.lq.d))
            held = held_controls(problem, at, lq)
            reduced, policy = information(lq, held)
            matrix = policy.P[0].at[jnp.ix_(where, where)].add(model.initial_hessian)
            gradient = policy.p[0].at[where].add(model.initial_gradient)
            low, high = modeller.initial_bounds(at.p)
            pull = model.costates[0][where] + model.initial_gradient
            kept = ~(((low >= 0) & (pull > 0)) | ((high <= 0) & (pull < 0)))
            free = jnp.zeros(matrix.shape[0], bool).at[where].set(kept)
            return held, reduced, policy, free, matrix, gradient

        held, lq, policy, free, matrix, gradient = oracle.call("information", backward, state.x, model)
        matrix, free, gradient = np.asarray(matrix), np.asarray(free), np.asarray(gradient) * np.asarray(free)
        first = inverse_information(matrix, free)[0]
        removable = float(np.sqrt(max(gradient @ first @ gradient - float(policy.slope), 0.0)))
        return held, lq, policy, free, matrix, removable
