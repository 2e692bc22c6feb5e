"""What a step under a law at velocity level is made of."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.contact.laws.base import ContactLaw
from trajopt.dynamics.model import Model


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepInputs:
    """One step to be solved: `law` on `model` from the configuration q and velocity v, under the generalised force tau.

    q (nq,), v (nv,), tau (nv,) dual to v; dt: step, s; kappa (1/m): sharpness of a smoothed law, None for the law's own; rho (J):
    relaxation of a relaxed law, None under others; warm_start (m,): impulses to begin the solve at, None for zero, without a
    derivative: a guess, or the solution itself where only its derivative is wanted. Where the law has several solutions they can
    decide which is found.
    """

    law: ContactLaw = dataclasses.field(metadata={"static": True})
    model: Model
    q: Float[Array, " nq"]
    v: Float[Array, " nv"]
    tau: Float[Array, " nv"]
    dt: Float[Array, ""]
    kappa: Float[Array, ""] | None = None
    warm_start: Float[Array, " m"] | None = None
    rho: Float[Array, ""] | None = None

    @property
    def travel(self) -> Float[Array, " nv"] | None:
        """dt v, what the velocity before the step covers, where the law's contacts close their gaps."""
        return self.dt * self.v if self.law.closes_gaps else None

    def at(self, q: Float[Array, " nq"], v: Float[Array, " nv"], tau: Float[Array, " nv"]) -> StepInputs:
        """The same step from another state, under another force."""
        return dataclasses.replace(self, q=q, v=v, tau=tau)

    def with_start(self, m: int) -> StepInputs:
        """The same with a warm start of m entries, zero where none was given, that carries no derivative."""
        start = jnp.zeros(m, self.q.dtype) if self.warm_start is None else jax.lax.stop_gradient(self.warm_start)
        return dataclasses.replace(self, warm_start=start)
