"""What every residual is: an error with a name, a weight, a reference and an activation; sums of them are a task.

    rows(x, u, t) = weight * activation(error(x, u, t; reference))

As a cost, 1/2 |rows|^2; as an equality rows = 0, as an inequality rows <= 0. Reference and weight may vary with time: their
first axis is then the step t / dt, and their last entry holds from there on, the terminal state included. They are leaves of a
pytree, so that other values need no other program (`OptimalControlProblem.replace`).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, ScalarLike

from trajopt.dynamics.collision.narrowphase import Contacts, collide
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.kinematics import Kinematics, kinematics
from trajopt.dynamics.state import ContactInfo, State, StepInfo
from trajopt.dynamics.system import System
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.names import NamedOptions, closest
from trajopt.problems.residuals.activations import Activation

STATIC = {"static": True}


class StepOutcome:
    """A state and a control of a `System`, and what its step finds there, computed where a residual first asks for it.

    Without a control (u None, the terminal state) there is no step: asking for it raises `OptionError`.

    Options:
        system: the `System`.
        x: the `State`.
        u: the control, or None.
        taken: (state after the step, its `StepInfo`), where the step has been taken already.
    """

    def __init__(
        self, system: System, x: State, u: Float[Array, " nu"] | None, taken: tuple[State, StepInfo] | None = None
    ) -> None:
        self.system, self.x, self.u = system, x, u
        if taken is not None:
            self._taken = taken

    @property
    def model(self) -> Model:
        """The system's model."""
        return self.system.model

    @functools.cached_property
    def kinematics(self) -> Kinematics:
        """Placements at x."""
        return kinematics(self.model, self.x.q)

    @functools.cached_property
    def nearby(self) -> Contacts:
        """The contact candidates at x."""
        return collide(self.model, self.kinematics)

    @functools.cached_property
    def midway(self) -> StepOutcome:
        """The same half a step later, at q (+) h/2 v and v, where the control still acts."""
        x, h = self.x, jnp.asarray(self.system.dt, self.x.v.dtype)
        return StepOutcome(self.system, State(integrate(self.model, x.q, 0.5 * h * x.v), x.v), self.u)

    @functools.cached_property
    def _taken(self) -> tuple[State, StepInfo]:
        if self.u is None:
            raise OptionError("there is no step at the terminal state")
        system = self.system
        if system.gradient != "implicit":  # the derivative of a cost is the exact one, whatever that of the dynamics
            system = dataclasses.replace(system, gradient="implicit")
        return system.step(self.x, self.u)

    @property
    def x_next(self) -> State:
        """The state after the step."""
        return self._taken[0]

    @property
    def contacts(self) -> ContactInfo:
        """The contacts of the step (`StepInfo.contacts`)."""
        return self._taken[1].contacts

    @property
    def impulse(self) -> Float[Array, " m"]:
        """Of all rows (`StepInfo.impulse`)."""
        return self._taken[1].impulse


@dataclasses.dataclass(frozen=True)
class Residual(NamedOptions, abc.ABC):
    """An error that a task is made of.

        rows(x, u, t) = weight * activation(error(x, u, t; reference))

    As a cost it counts $1/2 |rows|^2$, as an equality it asks for $rows = 0$, as an inequality for $rows <= 0$. Both
    reference and weight may vary with time: their first axis is then the step, and their last entry holds from there on, the
    terminal state included.

    Options:
        reference: what the error is measured from. Default: `default_reference`, zeros unless the subclass says otherwise.
        weight: a number, one for each row (m,), or over the steps (T, 1) or (T, m); 1 / weight is the error that costs 1/2.
        activation: an `Activation`. Default: none, a quadratic cost.
        name: by which the residual is reported and replaced. Default: its kind and what it is about.
        sense: -1 where an inequality asks for at least the reference, see `at_least`.
    """

    _: dataclasses.KW_ONLY
    reference: Any = None
    weight: Any = 1.0
    activation: Activation | None = None
    name: str = dataclasses.field(default="", metadata=STATIC)
    sense: float = dataclasses.field(default=1.0, metadata=STATIC)

    # Entries of the reference, zero where none is given.
    size = 1
    # Whether `error` asks for the step (`StepOutcome.x_next`, `contacts`); whether for the control.
    needs_step = False
    needs_control = False
    # Which of configuration, velocity and control `error` depends on: "q", "v", "u", "qv" or "qvu"; derivatives by others are not
    # taken.
    depends_on = "qvu"

    @abc.abstractmethod
    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "..."]
    ) -> Float[Array, " m"]:
        """The error (m,) from the reference of this step."""

    def default_reference(self, system: System) -> Float[Array, "..."] | Float[np.ndarray, "..."]:
        """The reference where none is given; its shape is that of every reference."""
        return np.zeros(self.size)

    def subject(self) -> tuple[str, ...]:
        """What the residual is about, for its name: a frame, shapes."""
        return ()

    def check(self, system: System) -> None:
        """Raise `UnknownNameError` or `OptionError` for what the system does not have."""

    @property
    def label(self) -> str:
        """`name`, or the kind and what it is about, such as "frame position tool"."""
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(self).__name__).lower()
        return self.name or " ".join((kind, *self.subject()))

    @property
    def terms(self) -> tuple[Residual, ...]:
        return (self,)

    def __call__(self, x: State, u: Float[Array, " nu"] | None, t: ScalarLike, step: StepOutcome) -> Float[Array, " m"]:
        """The weighted rows at time t, s."""
        dtype, index = x.q.dtype, step_index(step.system, t, x.q.dtype)
        return self.weighted(self.error(x, u, step, self.reference_at(step.system, index, dtype)), index)

    def reference_at(self, system: System, index: Int[Array, ""], dtype: Any) -> Float[Array, "..."]:
        """The reference of a step."""
        natural = self.default_reference(system)
        reference = jnp.asarray(natural if self.reference is None else self.reference).astype(dtype)
        reference = jnp.broadcast_to(reference, np.shape(natural)) if reference.ndim == 0 else reference
        return _now(reference, np.ndim(natural), index)

    def weighted(self, error: Float[Array, " m"], index: Int[Array, ""]) -> Float[Array, " m"]:
        """The rows of an error at a step."""
        weight = _now(jnp.asarray(self.weight).astype(error.dtype), 1, index)
        return self.sense * weight * (error if self.activation is None else self.activation(error))

    def slope(self, x: State, step: StepOutcome) -> Float[Array, "m z"] | None:
        """d error / d dq in closed form, of an error that depends on the configuration alone, or by [dq, dv], of a row of a
        constraint; None: automatic differentiation."""
        return None

    def at_least(self, bound: float | Sequence[float] | Float[np.ndarray, "..."]) -> Residual:
        """As an inequality: what is measured is at least `bound`."""
        return self._bounded(bound, -1.0)

    def at_most(self, bound: float | Sequence[float] | Float[np.ndarray, "..."]) -> Residual:
        """As an inequality: what is measured is at most `bound`."""
        return self._bounded(bound, 1.0)

    def _bounded(self, bound: Any, sense: float) -> Residual:
        return dataclasses.replace(self, reference=bound, sense=sense, activation=None)

    def out_of_reach(self, system: System, tolerance: float) -> str:
        """Why no state brings the rows of this residual, in its normal form, below a tolerance; empty where that is not known."""
        return ""

    def reference_meaning(self, system: System) -> str:
        """What of a reference counts, as the end of a sentence; empty where its shape says all."""
        return ""

    def __add__(self, other: Any) -> Terms:
        return Terms(self.terms) + other

    def __radd__(self, other: Any) -> Residual | Terms:
        return self if _is_nothing(other) else other + Terms(self.terms) if is_task(other) else Terms((*_terms(other), self))


def step_index(system: System, t: ScalarLike, dtype: Any) -> Int[Array, ""]:
    """The step at a time, s."""
    return jnp.rint(jnp.asarray(t, dtype) / jnp.asarray(system.dt, dtype)).astype(int)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Terms:
    """Residuals one below the other: what `sum([...])` of them gives.

    Attributes:
        terms: the residuals.
    """

    terms: tuple[Residual, ...]

    def __call__(self, x: State, u: Float[Array, " nu"] | None, t: ScalarLike, step: StepOutcome) -> Float[Array, " m"]:
        """The rows of all terms."""
        return jnp.concatenate([term(x, u, t, step) for term in self.terms])

    def __add__(self, other: Any) -> Terms:
        return self if _is_nothing(other) else Terms((*self.terms, *_terms(other)))

    def __radd__(self, other: Any) -> Terms:
        return self if _is_nothing(other) else Terms((*_terms(other), *self.terms))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Function(Residual):
    """A function of one's own as a term: `(x, u, t) -> error`, of the terminal state `x -> error`, minus the reference, a number.

    `term + function` makes one, called by the function's name.

    Options:
        function: which is given the `State`, the control and the time in seconds.
    """

    function: Callable[..., Array] = dataclasses.field(metadata=STATIC, kw_only=False)

    @property
    def label(self) -> str:
        return self.name or str(getattr(self.function, "__name__", type(self.function).__name__)).strip("<>").replace("_", " ")

    def default_reference(self, system: System) -> Float[np.ndarray, ""]:
        return np.zeros(())

    def check(self, system: System) -> None:
        if not callable(self.function):
            raise OptionError(f"function is {self.function!r}; expected a function (x, u, t) -> error")

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, ""]
    ) -> Float[Array, " m"]:
        return self._error_at(x, u, jnp.zeros((), x.q.dtype), reference)

    def __call__(self, x: State, u: Float[Array, " nu"] | None, t: ScalarLike, step: StepOutcome) -> Float[Array, " m"]:
        dtype, index = x.q.dtype, step_index(step.system, t, x.q.dtype)
        return self.weighted(self._error_at(x, u, t, self.reference_at(step.system, index, dtype)), index)

    def _error_at(self, x: State, u: Array | None, t: ScalarLike, reference: Array) -> Array:
        error = jnp.asarray(self.function(x) if u is None else self.function(x, u, t))
        if error.ndim != 1:
            raise ShapeError(f"term '{self.label}' returned shape {error.shape}; expected a flat array (m,)")
        return error - reference


def _is_nothing(value: Any) -> bool:
    """What `sum` starts from."""
    return isinstance(value, int) and value == 0


def _terms(value: Any) -> tuple[Residual, ...]:
    """Of what is added to residuals: residuals, or a function of one's own. Raises `OptionError` for anything else."""
    if is_task(value):
        return value.terms
    if not callable(value):
        raise OptionError(f"{value!r} is added to residuals; expected a residual, or a function (x, u, t) -> error")
    return (Function(value),)


def is_task(value: Any) -> TypeGuard[Residual | Terms]:
    """Whether a function of a problem is made of residuals."""
    return isinstance(value, Residual | Terms)


def task_costs(
    task: Residual | Terms, x: State, u: Float[Array, " nu"] | None, t: ScalarLike, step: StepOutcome
) -> dict[str, Float[Array, ""]]:
    """1/2 |rows|^2 of each term, by name."""
    rows = {term.label: term(x, u, t, step) for term in task.terms}
    return {label: 0.5 * jnp.vdot(row, row) for label, row in rows.items()}


def normalised(task: Residual | Terms, system: System, dtype: Any, where: str, terminal: bool) -> Terms:
    """The terms with arrays as leaves, references of full shape.

    Raises `OptionError`, `UnknownNameError`, `ShapeError` or `NonFiniteError`, naming the term.
    """
    labels = [term.label for term in task.terms]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise OptionError(f"{where}there are two terms '{twice}'; give them names of their own by name='...'")
    return Terms(
        tuple(_normalised(term, system, dtype, f"{where}term '{term.label}': ", terminal) for term in task.terms)
    )


def _normalised(term: Residual, system: System, dtype: Any, where: str, terminal: bool) -> Residual:
    if terminal and (term.needs_step or term.needs_control):
        what = "what a step finds" if term.needs_step else "the control"
        raise OptionError(f"{where}it depends on {what}, and the terminal state has none; use it at the stages")
    try:
        term.check(system)
    except UnknownNameError as error:
        raise UnknownNameError(f"{where}{error}") from None
    except OptionError as error:
        raise OptionError(f"{where}{error}") from None
    natural = np.asarray(term.default_reference(system))
    reference = np.asarray(natural if term.reference is None else term.reference, dtype)
    if reference.ndim < natural.ndim or reference.ndim == 0:
        reference = np.broadcast_to(reference, natural.shape).copy() if reference.ndim == 0 else reference
    fits = reference.shape[reference.ndim - natural.ndim :] == natural.shape
    if not fits or reference.ndim > natural.ndim + 1:
        raise ShapeError(
            f"{where}reference has shape {reference.shape}; expected {natural.shape}, or over the steps "
            f"{('T', *natural.shape)}".replace("'", "") + term.reference_meaning(system)
        )
    weight = np.atleast_1d(np.asarray(term.weight, dtype))
    if weight.ndim > 2 or weight.shape[-1] != 1:  # else it fits however many rows there are
        m = _row_count(term, system, natural.astype(dtype))
        if weight.ndim > 2 or weight.shape[-1] != m:
            raise ShapeError(
                f"{where}weight has shape {weight.shape}; expected a number, ({m},), or over the steps (T, 1) or (T, {m})"
            )
    for key, value in (("reference", reference), ("weight", weight)):
        if not np.isfinite(value).all():
            raise NonFiniteError(f"{where}{key} has non-finite entries")
    if (weight < 0).any():
        raise OptionError(
            f"{where}weight has the negative entry {weight.min():g}; weights multiply errors and must not be negative. at_least "
            "and at_most choose the side of an inequality"
        )
    activation = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), term.activation)
    return dataclasses.replace(term, reference=reference, weight=weight, activation=activation)


def _row_count(term: Residual, system: System, reference: np.ndarray) -> int:
    def rows(q: Array, v: Array, u: Array) -> Array:
        x = State(q, v)
        return term.error(x, u, StepOutcome(system, x, u), jnp.asarray(reference))

    sizes = (system.nq, system.nv, system.nu)
    return jax.eval_shape(rows, *(jax.ShapeDtypeStruct((size,), reference.dtype) for size in sizes)).shape[0]


def _now(value: Array, natural: int, index: Array) -> Array:
    """The entry of this step of what may vary with time; natural: dimensions without time."""
    if value.ndim <= natural:
        return value
    return value[jnp.clip(index, 0, value.shape[0] - 1)]


def replaced(task: Residual | Terms, references: Mapping[str, Any], weights: Mapping[str, Any]) -> Terms:
    """The terms with other references and weights, by name; names that are not there are left to the caller."""
    terms = []
    for term in task.terms:
        changes = {"reference": references, "weight": weights}
        new = {key: values[term.label] for key, values in changes.items() if term.label in values}
        terms.append(dataclasses.replace(term, **new) if new else term)
    return Terms(tuple(terms))


def labels_of(tasks: Sequence[Any]) -> Iterator[str]:
    """Names of all terms of those that are made of residuals."""
    for task in tasks:
        if is_task(task):
            yield from (term.label for term in task.terms)


def unknown_term(where: str, name: str, labels: set[str]) -> UnknownNameError:
    return UnknownNameError(f"{where}there is no term '{name}'{closest(name, labels)}")
