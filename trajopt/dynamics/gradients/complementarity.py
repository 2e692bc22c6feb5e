r"""Complementarity-aware gradients (Nimble IV-D): derivatives in the contact modes that the loss would like to be in.

The exact derivative at a held contact is that of a body glued to the ground: no control lifts it, and a descent that starts
there stays. Given the direction p = d loss / d v+, contacts are labelled anew, by s = J M^-1 p, the rate of the contact
velocities under a force along p:

    s_n < 0   descent opens the contact: separating, with all its rows
    s_n > 0   descent closes it: clamping; friction rows keep their mode, those of a separating contact carry nothing

Of the true labelling and this one (`labellings="paper"`), and, as a third, all touching contacts clamping ("all"), that one is
used whose gradient has the largest measure |d loss / d q|^2 + |d loss / d u|^2 / dt. The measure leaves the derivative of the
offset b out: with gap/dt in it the true labelling would always win. u are the actuated generalised forces.

Only contacts that touch (or carry an impulse) are labelled; the derivative of an impulse among redundant relabelled contacts
is the one of least norm. The direction p exists in reverse mode only: forward mode is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, Need
from trajopt.dynamics.contact.ncp import CLAMPED, SEPARATING, Modes, newton_matrix, projection_jacobian
from trajopt.dynamics.contact.solve.solve import NCPSolution, zero_tangent
from trajopt.dynamics.contact.step import DerivativeRule, SolvedStep, VelocityStep
from trajopt.dynamics.gradients.implicit import outputs_in_modes
from trajopt.dynamics.gradients.mode import GradientMode, GradientOptions, LossDirection
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.actuation import actuators
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.crba import solve_mass_matrix
from trajopt.errors import OptionError
from trajopt.names import closest

LABELLINGS = ("all", "paper")
TOUCHING = 1e-6  # m: gap up to which a contact without impulse may be labelled
_RANK = 1e-9  # singular values of K below this fraction of the largest count as zero


@dataclasses.dataclass(frozen=True)
class ComplementarityAware(GradientMode, DerivativeRule):
    """The derivative in the labels that the loss asks for. labellings: "all" or "paper", see the module's docstring.

    q is handed through, so that what the loss says of it is part of the measure.
    """

    labellings: str = LABELLINGS[0]

    name: ClassVar[str] = "complementarity-aware"
    need: ClassVar[Need] = Need.LABELS
    purpose: ClassVar[str] = "relabels the contacts of a law at velocity level"
    needs_adjoint: ClassVar[bool] = True
    has_closed_form: ClassVar[bool] = True
    reverse_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_labellings(self.labellings)

    @classmethod
    def from_options(cls, options: GradientOptions, labellings: str) -> ComplementarityAware:
        return cls(labellings)

    def rule(self, law: ContactLaw) -> DerivativeRule | None:
        return self

    def cotangents(
        self, inputs: StepInputs, solved: SolvedStep, outputs: tuple[Float[Array, " nq"], VelocityStep]
    ) -> StepInputs:
        by_q, result = outputs
        labelled, count = _labelled(self.labellings, solved, result.velocity)

        def body(carry, k):
            # One program for all labellings and, at last, for the gradient in the chosen one: it is long to compile.
            measures, _ = carry
            last = k == count
            part = jax.tree.map(lambda a: a[jnp.where(last, _best(measures), k)], labelled)
            gradient = _pull_back(last.astype(by_q.dtype), _with(solved, *part), inputs, result)
            measure = _measure(inputs, _in_tangent(inputs.model, inputs.q, by_q), gradient)
            measures = jnp.where(jnp.arange(count) == k, measure, measures)
            return (measures, gradient), None

        start = (jnp.zeros(count, by_q.dtype), jax.tree.map(jnp.zeros_like, inputs))
        gradient = jax.lax.scan(body, start, jnp.arange(count + 1))[0][1]
        return dataclasses.replace(gradient, q=gradient.q + by_q)

    def relabelling(self, inputs: StepInputs, direction: LossDirection) -> Callable[[SolvedStep], NCPSolution]:
        def relabel(solved: SolvedStep) -> NCPSolution:
            by_q, by_v = direction(solved.velocity)
            outputs = dataclasses.replace(zero_tangent(solved.result), velocity=by_v)
            labelled, _ = _labelled(self.labellings, solved, by_v)

            def measure(part):
                unstabilised = jnp.zeros((), inputs.q.dtype)
                return _measure(inputs, by_q, _pull_back(unstabilised, _with(solved, *part), inputs, outputs))

            best = _best(jax.lax.map(measure, labelled))
            return _with(solved, *jax.tree.map(lambda a: a[best], labelled)).solution

        return relabel


def check_labellings(labellings: str) -> None:
    """Raise `OptionError` unless it names the labels that are tried."""
    if labellings not in LABELLINGS:
        raise OptionError(f"labellings is '{labellings}'{closest(str(labellings), LABELLINGS)}")


def _in_tangent(model: Model, q, cotangent) -> Float[Array, " nv"]:
    """The derivative by tangent coordinates at q, from that by q."""
    return jax.vjp(lambda dq: integrate(model, q, dq), jnp.zeros(model.nv, q.dtype))[1](cotangent)[0]


def _measure(inputs: StepInputs, by_q: Float[Array, " nv"], gradient: StepInputs) -> Float[Array, ""]:
    """|d loss / d q|^2 + |d loss / d u|^2 / dt, q in tangent coordinates."""
    model = inputs.model
    slope_u = actuators(model).unsaturated_gain().T @ gradient.tau if model.nu else gradient.tau
    slope_q = _in_tangent(model, inputs.q, gradient.q) + by_q
    return slope_q @ slope_q + slope_u @ slope_u / inputs.dt


def _best(measures: Float[Array, " k"]) -> Int[Array, ""]:
    """The largest measure, the first of equals: the true labelling wins ties; what is not finite never wins."""
    return jnp.argmax(jnp.where(jnp.isfinite(measures), measures, -1.0))


def _pull_back(offset_weight, solved: SolvedStep, inputs: StepInputs, outputs: VelocityStep) -> StepInputs:
    """Cotangents of the inputs from those of `solved.result`, at the modes of `solved`."""
    _, pull = jax.vjp(lambda inputs: outputs_in_modes(offset_weight, solved, inputs), inputs)
    return pull(outputs)[0]


def _labelled(labellings: str, solved: SolvedStep, p: Float[Array, " nv"]):
    """(modes, inverse of K, degenerate), stacked, and how many: the true labelling, the sign rule's, with "all" all clamping."""
    rows, modes = solved.rows, solved.solution.modes
    truth = (modes, solved.solution.inverse, solved.solution.degenerate)
    if solved.impulse.shape[0] == 0:  # no rows, no labels
        return jax.tree.map(lambda a: jnp.stack([a]), truth), 1
    nc, nl = rows.mu.shape[0], rows.limit_dof.shape[0]
    s = rows.J @ solve_mass_matrix(solved.factor, p)
    s_n, s_l = s[2 : 3 * nc : 3], s[3 * nc : 3 * nc + nl]
    touching = rows.exists & (rows.distance <= TOUCHING)
    closed = touching[:nc] | (modes.cone != SEPARATING)
    held = touching[nc:] | modes.limit
    parts = [_part(solved, modes, _signed(modes, closed, held, s_n, s_l))]
    if labellings == "all":
        clamped = Modes(_clamped(modes.cone, closed), modes.limit | held, modes.dry, modes.tangent)
        parts.append(_part(solved, modes, clamped))
    return jax.tree.map(lambda *a: jnp.stack(a), truth, *parts), 1 + len(parts)


def _signed(modes: Modes, closed: Bool[Array, " nc"], held: Bool[Array, " nl"], s_n, s_l) -> Modes:
    """Labels by the sign rule; where s vanishes the mode stays."""
    cone = jnp.where(closed & (s_n < 0), SEPARATING, jnp.where(s_n > 0, _clamped(modes.cone, closed), modes.cone))
    limit = jnp.where(held & (s_l < 0), False, jnp.where(s_l > 0, modes.limit | held, modes.limit))
    return Modes(cone, limit, modes.dry, modes.tangent)


def _clamped(cone: Int[Array, " nc"], closed: Bool[Array, " nc"]) -> Int[Array, " nc"]:
    return jnp.where(closed & (cone == SEPARATING), CLAMPED, cone)


def _part(solved: SolvedStep, truth: Modes, modes: Modes):
    """(modes, inverse of K there, degenerate); the labelling that equals the true one keeps its inverse."""
    ncp, solution = solved.ncp, solved.solution
    K = newton_matrix(ncp, projection_jacobian(ncp, solution.impulse, solution.velocity, modes), ncp.G)
    same = ~modes.differ_from(truth)
    inverse = jnp.where(same, solution.inverse, linear_algebra.pinv(K, _RANK))
    return modes, inverse, same & solution.degenerate


def _with(solved: SolvedStep, modes: Modes, inverse, degenerate) -> SolvedStep:
    solution = dataclasses.replace(solved.solution, modes=modes, inverse=inverse, degenerate=degenerate)
    return dataclasses.replace(solved, solution=solution)
