r"""Gauss-Newton over a horizon: estimation of states, process noise and parameters from measurements along a motion.

The problem is an `OptimalControlProblem` whose costs are residuals of unit variance:

    minimise  sum_t 1/2 |r_t(x_t, u_t, p)|^2 + 1/2 |r_T(x_T, p)|^2 + 1/2 |r_0(x_0)|^2 + 1/2 |r_p(p)|^2
    subject to  x_{t+1} = f(x_t, u_t, p)

with x_0 free, u_t the process noise (or the torques, known up to a deviation) and p constants of the model. States and noise
are variables and the dynamics equalities, whose defects a Gauss-Newton step closes: a noise that may be small or zero in a
direction makes no ill-conditioned weights, and with the noise in the rows of r_t it costs what it is worth. The normal
equations of a step are block-tridiagonal in (x_0, u_0, x_1, ...) with an arrow of p; carrying p as a state that does not
change, one Riccati pass from the end is their block elimination, at T times the cost of a stage. The iteration is iLQR's in
multiple shooting (`ddp.iteration`), with Levenberg-Marquardt damping of the states.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from trajopt.errors import OptionError
from trajopt.problems.expansions import COMPLEMENTARITY
from trajopt.problems.ocp import Trajectory
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.result import Status
from trajopt.solvers.ddp.ilqr import RELAXED_EXPONENT, iLQR
from trajopt.solvers.ddp.local_model import LocalModel, Modeller
from trajopt.solvers.ddp.state import DDPState
from trajopt.solvers.estimation.smoothing import held_controls, information, inverse_information, marginals
from trajopt.solvers.loop.contract import Findings, default_tolerance
from trajopt.solvers.subproblems.box_qp import held_at_bound
from trajopt.solvers.subproblems.riccati import LQProblem, Policy


@dataclasses.dataclass(frozen=True)
class HorizonGaussNewton:
    """What `GaussNewton` does with an `OptimalControlProblem`: the four methods of a solver.

    Raises `OptionError` for a problem with `stage_cost` or `terminal_cost`.
    """

    iteration: iLQR

    def init(self, oracle: OptimalControlOracle, guess: Trajectory, key: PRNGKeyArray) -> DDPState:
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
        return self.iteration.init(oracle, guess, key)

    def step(self, oracle: OptimalControlOracle, state: DDPState) -> DDPState:
        """One accepted step, or the same point with `halt` set."""
        return self.iteration.step(oracle, state)

    def terminate(self, oracle: OptimalControlOracle, state: DDPState) -> Status | None:
        """As iLQR's; where that gives up, the part of the residual that a Gauss-Newton step can still remove decides.

        Over long horizons the gradients by x_0 and p are sums whose rounding may be above the tolerance.
        """
        status = self.iteration.terminate(oracle, state)
        gave_up = state.halt in ("stalled", "line_search_failed", "acceptable") and state.violation <= oracle.problem.tolerance
        if not gave_up or oracle.problem.constrained:
            return status
        removable = self._backward(oracle, state)[-1]
        least = self.iteration.tolerance or default_tolerance(oracle.problem.dtype)
        size = max(float(np.sqrt(2.0 * state.cost)), 1.0)
        if removable <= least * size:
            return Status.solved
        return Status.acceptable if removable <= least**RELAXED_EXPONENT * size else status

    def finish(self, oracle: OptimalControlOracle, state: DDPState) -> Findings:
        """Stationarity, multipliers, gains and the `covariances` of states, controls and parameters."""
        result = self.iteration.finish(oracle, state)
        if oracle.problem.constrained:
            lacking_why = "no covariance: constraints beside the dynamics and the bounds on controls"
            return dataclasses.replace(result, notes=[*result.notes, lacking_why])
        held, lq, policy, free, matrix, removable = self._backward(oracle, state)
        result = dataclasses.replace(result, residuals=result.residuals | {"removable_residual": removable})
        initial, lacking = inverse_information(matrix, free)
        if lacking:
            lacking_why = f"{lacking} directions of the initial state and parameters are not determined"
            return dataclasses.replace(result, notes=[*result.notes, lacking_why])
        n = oracle.problem.n
        states, controls = oracle.call(_marginals, None, lq, policy, held, initial)
        values = {"states": np.asarray(states)[:, :n, :n], "controls": np.asarray(controls)}
        values |= {"parameters": initial[n:, n:]} if oracle.problem.n_p else {}
        return dataclasses.replace(result, fields=result.fields | {"covariances": values})

    def _backward(self, oracle: OptimalControlOracle, state: DDPState) -> tuple:
        """(controls held at a bound, the model without them, its Riccati pass, the free entries of e_0, the information about
        e_0, the norm of the residual that the linearised problem can still remove)."""
        model, motion = state.model, state.progress.iterate.motion
        modeller = Modeller(oracle.problem, oracle.gradient, multiple=True, second_order=False)
        held, lq, policy, free, matrix, gradient = oracle.call(_information, modeller, motion, model)
        matrix, free, gradient = np.asarray(matrix), np.asarray(free), np.asarray(gradient) * np.asarray(free)
        first = inverse_information(matrix, free)[0]
        removable = float(np.sqrt(max(gradient @ first @ gradient - float(policy.slope), 0.0)))
        return held, lq, policy, free, matrix, removable


def _information(modeller: Modeller, at: Trajectory, model: LocalModel) -> tuple:
    """(controls held at a bound, the model without them, its Riccati pass, the free entries of e_0, the information about e_0,
    the gradient by e_0).

    Defects within the tolerance are left out: the gradient is that of the cost along the motion.
    """
    where = modeller.free()
    lq = dataclasses.replace(model.lq, d=jnp.zeros_like(model.lq.d))
    held = held_controls(modeller.problem, at, lq)
    reduced, policy = information(lq, held)
    matrix = policy.P[0].at[jnp.ix_(where, where)].add(model.initial_hessian)
    gradient = policy.p[0].at[where].add(model.initial_gradient)
    low, high = modeller.initial_bounds(at.p)
    pull = model.costates[0][where] + model.initial_gradient
    held_start = held_at_bound(jnp.zeros_like(pull), pull, low, high)  # bounds counted from the present point
    free = jnp.zeros(matrix.shape[0], bool).at[where].set(~held_start)
    return held, reduced, policy, free, matrix, gradient


def _marginals(_: None, lq: LQProblem, policy: Policy, held: Array, initial: Array) -> tuple[Array, Array]:
    """`smoothing.marginals`, which depends on arrays alone."""
    return marginals(lq, policy, held, initial)
