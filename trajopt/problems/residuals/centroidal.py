"""Residuals of the whole body: centre of mass and centroidal momentum."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.rigid_body.energy import centroidal_momentum
from trajopt.dynamics.rigid_body.kinematics import com_jacobian
from trajopt.dynamics.rigid_body.spatial import rotate
from trajopt.dynamics.state import State
from trajopt.problems.residuals.base import Residual, StepOutcome


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CentreOfMass(Residual):
    """Centre of mass in the world minus the reference (3,), m; default reference: the origin."""

    depends_on = "q"
    size = 3

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "3"]
    ) -> Float[Array, "3"]:
        kin, model = step.kinematics, step.model
        mass = jnp.asarray(model.mass, kin.position.dtype)
        centres = kin.position + rotate(kin.rotation, jnp.asarray(model.com, kin.position.dtype))
        return (mass[:, None] * centres).sum(0) / mass.sum() - reference

    def slope(self, x: State, step: StepOutcome) -> Float[Array, "3 nv"]:
        """The Jacobian of the centre of mass."""
        return com_jacobian(step.model, x.q)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CentroidalMomentum(Residual):
    """Momentum [linear; angular] about the centre of mass minus the reference (6,), N s and N m s, world axes."""

    depends_on = "qv"
    size = 6

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "6"]
    ) -> Float[Array, "6"]:
        return centroidal_momentum(step.model, x.q, x.v) - reference
