"""What a gradient mode is: an object that says which derivative of a step it defines, and of which contact laws."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, Law, Need
from trajopt.dynamics.contact.solve.solve import NCPSolution
from trajopt.dynamics.contact.step import DerivativeRule, SolvedStep
from trajopt.dynamics.gradients.options import GradientOptions
from trajopt.dynamics.model import Model
from trajopt.errors import OptionError
from trajopt.names import NamedOptions

# v+ -> d loss / d (q, v+), in tangent coordinates
LossDirection = Callable[[Float[Array, " nv"]], tuple[Float[Array, " nv"], Float[Array, " nv"]]]
# (system, x, u, force, warm start) -> (x_next, info)
Step = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class GradientMode(NamedOptions, abc.ABC):
    """Base of the gradient modes. Immutable and hashable, with its options as fields: part of what a compiled step depends on.

    Of the class: name; need, what it asks of a contact law (`Law.offers`), and purpose, what it does, as the end of a
    sentence that begins with "which"; needs_adjoint, whether the derivative depends on the loss, so that `linearize` asks for
    its direction and forward mode is refused; has_closed_form, whether `gradients.closed_form`, in the modes that
    `relabelling` leaves, is this derivative; estimates, whether it comes from evaluations of whole steps (`estimated`), under
    any law; default_kappa (1/m), the sharpness where `System.kappa` is None, None for that of the law.

    A mode of one's own defines `rule`, or sets `estimates` and defines `estimated`; give the object to `System(gradient=...)`.
    """

    name: ClassVar[str]
    need: ClassVar[Need] = Need.NOTHING
    purpose: ClassVar[str] = ""
    needs_adjoint: ClassVar[bool] = False
    has_closed_form: ClassVar[bool] = False
    estimates: ClassVar[bool] = False
    default_kappa: ClassVar[float | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.estimates and cls.estimated is GradientMode.estimated:
            raise TypeError(f"gradient mode {cls.__name__} sets estimates: define estimated")

    @classmethod
    def from_options(cls, options: GradientOptions, labellings: str) -> GradientMode:
        """The mode with what `System(options=..., labellings=...)` says of it."""
        return cls()

    @abc.abstractmethod
    def rule(self, law: ContactLaw) -> DerivativeRule | None:
        """The derivative of a step under a law at velocity level; None: differentiated automatically."""

    def check(self, law: Law, model: Model) -> None:
        """Raise `OptionError` where the mode is not defined for the law, or its options do not fit the model."""
        reason = law.refusal(self)
        if reason is not None:
            raise OptionError(f"gradient is '{self.name}', {reason}")

    def sharpness(self, kappa: float | Float[Array, ""] | None) -> Float[Array, ""] | None:
        """The sharpness of smoothed contact in a step of a `System` with this kappa."""
        kappa = self.default_kappa if kappa is None else kappa
        return None if kappa is None else jnp.asarray(kappa)

    def relabelling(self, inputs: StepInputs, direction: LossDirection) -> Callable[[SolvedStep], NCPSolution] | None:
        """From the solved step to the contact modes in which the loss wants it differentiated; None for its own."""
        return None

    def estimated(self, step: Step, system: Any, x: Any, u: Any, force: Any, init: Any) -> Any:
        """step(system, x, u, force, init) -> (x_next, info) with the derivative of the mode; init carries none."""
        raise NotImplementedError(f"gradient mode '{self.name}' does not estimate derivatives of whole steps")
