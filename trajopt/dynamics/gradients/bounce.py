r"""Gradients through elastic impacts as in continuous time (Nimble VI, App. E).

A time step that contains an impact moves by dt v+ wherever in the step the impact was, so that its derivative by the position
is the identity: the closer the body was to the wall, the closer it ends. In continuous time it is reflected with the velocity:
the closer it was, the sooner it turned, and the further it ends. With the bouncing normal rows J, their coefficients e and
G = J M^-1 J^T,

    X = I - M^-1 J^T G^-1 diag(1 + e) J,      dq+ = X (dq + dt dv),      dv+ = X dv  + what q, tau and the rest do to v+,

so that impulses reflect positions as they reflect velocities: momentum holds and J X = -e J in every row at once, for any
masses. The source asks for J_i X J_i^+ = -e_i on the diagonal alone, by least squares around the identity, which its own engine
meets for a single body only.

dv+ is that of the time-stepped map, in which X dv is contained. What is not in it: that a body which arrives later has been
accelerated for longer, (1 + e) g / v_n of velocity per height for a ball under gravity. Redundant bouncing rows share their
reflection (pseudo-inverse). Contacts that do not bounce are differentiated as in `implicit`.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, Law, Need
from trajopt.dynamics.contact.ncp import SEPARATING
from trajopt.dynamics.contact.step import DerivativeRule, SolvedStep, solve_step
from trajopt.dynamics.gradients.first_order import first_order_only
from trajopt.dynamics.gradients.implicit import implicit_tangents
from trajopt.dynamics.gradients.mode import GradientMode
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.rigid_body.crba import solve_mass_matrix
from trajopt.errors import OptionError

_RANK = 1e-10  # singular values of G below this fraction of the largest count as zero; its square root in float32


@dataclasses.dataclass(frozen=True)
class Bounce(GradientMode, DerivativeRule):
    """The derivative of the law, with positions reflected by impacts; q is handed through with the derivative X dq."""

    name: ClassVar[str] = "bounce"
    need: ClassVar[Need] = Need.IMPACTS
    purpose: ClassVar[str] = "reflects positions by the impulses of a hard contact law"

    def check(self, law: Law, model: Model) -> None:
        super().check(law, model)
        if model.topology.constrained:
            raise OptionError(
                f"gradient is '{self.name}', which reflects positions by impacts of free bodies, but model '{model.name}' has "
                "equality constraints; use 'implicit'"
            )

    def rule(self, law: ContactLaw) -> DerivativeRule | None:
        return self

    def tangents(self, inputs: StepInputs, dinputs: StepInputs) -> tuple[Any, Any]:
        inputs = first_order_only(self.name, inputs)
        model, q = inputs.model, inputs.q
        solved = solve_step(inputs)
        outputs = implicit_tangents(solved, inputs, dinputs)
        # On the manifold: the ambient tangent of q, in tangent coordinates, reflected, and back.
        _, dq = jax.jvp(lambda y: difference(model, q, y), (q,), (dinputs.q,))
        _, dq = jax.jvp(lambda d: integrate(model, q, d), (jnp.zeros_like(dq),), (reflection(solved) @ dq,))
        return (q, solved.result), (dq, outputs)


def reflection(solved: SolvedStep) -> Float[Array, "nv nv"]:
    """X of the module's docstring; the identity where nothing bounces."""
    rows = solved.rows
    nc, nv = rows.mu.shape[0], solved.velocity.shape[0]
    dtype = solved.velocity.dtype
    if nc == 0:
        return jnp.eye(nv, dtype=dtype)
    bounces = rows.impact[:nc] & (solved.solution.modes.cone != SEPARATING)
    J = jnp.where(bounces[:, None], rows.J[2 : 3 * nc : 3], 0.0)
    push = jax.vmap(lambda row: solve_mass_matrix(solved.factor, row), 0, 1)(J)  # M^-1 J^T
    inverse = linear_algebra.pinv(J @ push, _RANK if dtype == jnp.float64 else _RANK**0.5, True)
    return jnp.eye(nv, dtype=dtype) - push @ (inverse @ ((1.0 + rows.restitution)[:, None] * J))
