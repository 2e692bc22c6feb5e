"""What places keep to between two knots: a row that holds at both may fail on the way.

A link that passes a ball comes nearer to it between two knots than it is there, by up to (h s)^2 / 8 R at a speed s, R being the
distance from the ball's centre: 2 mm at 2 m/s and 0.1 m with steps h of 20 ms. A `Midway` term asks for the same rows half a
step later, at q (+) h/2 v.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, ScalarLike

from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.problems.residuals.base import Function, Residual, StepOutcome, Terms, is_task


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Midway(Residual):
    """The rows of a term half a step later, with its reference and weight.

    Options:
        term: the `Residual`.
    """

    term: Any = dataclasses.field(kw_only=False)

    @property
    def label(self) -> str:
        return str(self.term.label)

    @property
    def depends_on(self) -> str:  # type: ignore[override]
        return "qvu" if "u" in self.term.depends_on else "qv"

    def __call__(self, x: State, u: Float[Array, " nu"] | None, t: ScalarLike, step: StepOutcome) -> Float[Array, " m"]:
        return self.term(step.midway.x, u, t, step.midway)

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "..."]
    ) -> Float[Array, " m"]:
        return self.term.error(step.midway.x, u, step.midway, reference)

    def reference_at(self, system: System, index: Int[Array, ""], dtype: Any) -> Float[Array, "..."]:
        return self.term.reference_at(system, index, dtype)

    def weighted(self, error: Float[Array, " m"], index: Int[Array, ""]) -> Float[Array, " m"]:
        return self.term.weighted(error, index)

    def slope(self, x: State, step: StepOutcome) -> Float[Array, "m nx"] | None:
        """By dq and dv, where configurations form a vector space."""
        system = step.system
        found = self.term.slope(step.midway.x, step.midway) if system.nq == system.nv else None
        return None if found is None else jnp.concatenate([found, 0.5 * jnp.asarray(system.dt, found.dtype) * found], 1)


def with_midway(rows: Residual | Terms | Callable[..., Array] | None) -> Terms | None:
    """The rows of an inequality, and those that depend on the configuration half a step later too."""
    if rows is None:
        return None
    terms = rows.terms if is_task(rows) else (Function(rows),)
    return Terms((*terms, *(Midway(term, weight=None) for term in terms if "q" in term.depends_on and not term.needs_step)))
