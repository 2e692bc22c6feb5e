"""The modes that keep the value of a step and take the derivative of another: the smoothed law's, or that of some sweeps.

| mode | derivative of |
|---|---|
| `smoothed` | the smoothed law, at the state where the hard law is solved |
| `unrolled` | as many Gauss-Seidel sweeps on the law's problem (`contact.sweeps`), at the state where the law is solved |
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import jax

from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, Need, SolverOptions
from trajopt.dynamics.contact.laws.smoothed import R_FACTORS
from trajopt.dynamics.contact.rows import assemble
from trajopt.dynamics.contact.solve.solve import zero_tangent
from trajopt.dynamics.contact.step import DerivativeRule, VelocityStep, solve_step
from trajopt.dynamics.gradients.first_order import first_order_only
from trajopt.dynamics.gradients.implicit import IMPLICIT, velocity_step
from trajopt.dynamics.gradients.mode import GradientMode, GradientOptions
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.options import check_options


@dataclasses.dataclass(frozen=True)
class _OtherStep(GradientMode, DerivativeRule):
    """The law's own step, with the derivative of `other`."""

    def rule(self, law: ContactLaw) -> DerivativeRule | None:
        return self if law.acts else IMPLICIT.rule(law)

    @abc.abstractmethod
    def other(self, inputs: StepInputs) -> VelocityStep:
        """The step whose velocity and impulse are differentiated."""

    def tangents(self, inputs: StepInputs, dinputs: StepInputs) -> tuple[Any, Any]:
        inputs = first_order_only(self.name, inputs)
        own = solve_step(inputs).result

        def substitute(inputs: StepInputs):
            other = self.other(inputs)
            kin = kinematics(inputs.model, inputs.q)
            rows = assemble(inputs, kin, collide(inputs.model, kin, inputs.law.pair_limit, inputs.travel))
            return other.velocity, other.impulse, rows

        _, (dv, dimpulse, drows) = jax.jvp(substitute, (inputs,), (dinputs,))
        return (inputs.q, own), (dinputs.q, VelocityStep(dv, dimpulse, drows, zero_tangent(own.solution)))


@dataclasses.dataclass(frozen=True)
class Smoothed(_OtherStep):
    """The derivative of smoothed contact (docs/contact-laws.md) at the state that hard contact reached."""

    name: ClassVar[str] = "smoothed"
    need: ClassVar[Need] = Need.SMOOTHING
    purpose: ClassVar[str] = "smooths the impulses of a hard contact law"
    default_kappa: ClassVar[float | None] = 300.0  # 1/m, the source's: contact acts over some millimetres

    def differentiated_law(self, law: ContactLaw) -> ContactLaw | None:
        return law.smoothed() if type(self) is Smoothed else None  # a mode derived from it may take another step

    def other(self, inputs: StepInputs) -> VelocityStep:
        law = inputs.law.smoothed()
        assert law is not None, f"{inputs.law.name} offers Need.SMOOTHING without a smoothed law"
        return velocity_step(dataclasses.replace(inputs, law=law, warm_start=None))


@dataclasses.dataclass(frozen=True)
class Unrolled(_OtherStep):
    """The derivative through `sweeps` Gauss-Seidel sweeps with the r-factors `r_factor`."""

    sweeps: int = 10
    r_factor: str = R_FACTORS[0]

    name: ClassVar[str] = "unrolled"
    need: ClassVar[Need] = Need.IMPULSES
    purpose: ClassVar[str] = "differentiates the iterations that solve for impulses"

    def __post_init__(self) -> None:
        check_options(self, sweeps="[1, inf)", r_factor=R_FACTORS)

    @classmethod
    def from_options(cls, options: GradientOptions, labellings: str) -> Unrolled:
        return cls(options.sweeps, options.r_factor)

    def other(self, inputs: StepInputs) -> VelocityStep:
        options = SolverOptions(tolerance=inputs.law.tolerance, sweeps=self.sweeps, r_factor=self.r_factor)
        return solve_step(inputs, options=options).result
