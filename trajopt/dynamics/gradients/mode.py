"""What a gradient mode is: an object that says which derivative of a step it defines, and of which contact laws.

`GradientOptions` are those of the modes that are named by a string.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws.base import ContactLaw, Law, Need
from trajopt.dynamics.contact.laws.smoothed import R_FACTORS
from trajopt.dynamics.contact.solve.solve import NCPSolution
from trajopt.dynamics.contact.step import DerivativeRule, SolvedStep
from trajopt.dynamics.model import Model
from trajopt.errors import OptionError
from trajopt.names import NamedOptions
from trajopt.options import check_options

DEVIATIONS = ("position_deviation", "velocity_deviation", "control_deviation")


@dataclasses.dataclass(frozen=True)
class GradientOptions(NamedOptions):
    """Options of the gradient modes that are named by a string; part of what a compiled step depends on.

    Options:
        samples: of `randomized`: number of perturbations, drawn in pairs of opposite sign. With order 0 at least 2 nv + nu.
        order: of `randomized`: 1, the mean of the exact derivatives at the samples; 0, a least-squares fit to the steps
            from two points for each sample.
        position_deviation (m): of `randomized`: standard deviation of the perturbations of q in tangent coordinates, in rad
            for joints that turn.
        velocity_deviation (m/s): of `randomized`: standard deviation of the perturbations of v, in rad/s for joints that
            turn.
        control_deviation (N): of `randomized`: standard deviation of the perturbations of u, in N m for motors that turn.
        seed: of `randomized`: from which the perturbations are drawn.
        difference_step: of `finite-difference` half the step of the difference, of `ridders` half the largest one; in
            tangent coordinates, and for physical parameters relative to the largest entry. Default: $eps^(1/3)$ and 1e-2.
        sweeps: of `unrolled`: number of Gauss-Seidel sweeps.
        r_factor: of `unrolled`: step length of the sweeps, "row-sum" or "determinant".
    """

    samples: int = 64
    order: int = 1
    position_deviation: float = 1e-3
    velocity_deviation: float = 1e-2
    control_deviation: float = 1e-2
    seed: int = 0
    difference_step: float | None = None
    sweeps: int = 10
    r_factor: str = R_FACTORS[0]

    def __post_init__(self) -> None:
        if self.order not in (0, 1):
            raise OptionError(
                f"order is {self.order!r}, expected 1 (mean of derivatives) or 0 (fit to the steps themselves)"
            )
        intervals = {"samples": "[1, inf)", "difference_step": "(0, inf)", "sweeps": "[1, inf)"}
        check_options(self, r_factor=R_FACTORS, **intervals, **dict.fromkeys(DEVIATIONS, "[0, inf)"))
        for name in DEVIATIONS:
            if self.order == 0 and getattr(self, name) == 0:
                raise OptionError(f"{name} is 0; it must be positive with order 0, which has no derivative without it")


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
