"""What goes with a problem beside its statement: what judges an answer, what shows it, what it is solved with by default.

No compiled function reads any of it.

What an estimation problem was given: measurements with their deviations, and what a point of the problem says of them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt.errors import OptionError, ShapeError
from trajopt.names import NamedOptions


@dataclasses.dataclass(frozen=True, eq=False)
class Observations:
    """Measurements of m channels at k times, for pictures of data, fit and residuals; no solver reads them.

    t (k,): s. values (k, m): what was measured. deviations (m,): of the measurement errors, in the units of the channels.
    names, units (m,). predicted: point of the problem (an array of a `LeastSquaresProblem`, a `Trajectory` of an
    `OptimalControlProblem`) -> (k, m), what the measurements would be without errors. shown: channels that are drawn one by one;
    default: the first nine. plane: two channels that are the coordinates of a place, drawn against each other. truth: the true
    states (T+1, nx) of simulated data, where the problem estimates states.

    Raises `ShapeError`, naming the field.
    """

    t: Float[np.ndarray, " k"]
    values: Float[np.ndarray, "k m"]
    deviations: Float[np.ndarray, " m"]
    names: tuple[str, ...]
    units: tuple[str, ...]
    predicted: Callable[[Any], Any]
    shown: tuple[int, ...] = ()
    plane: tuple[int, int] | None = None
    truth: Float[np.ndarray, "states nx"] | None = None

    def __post_init__(self) -> None:
        k, m = np.shape(self.values)
        for field, expected in (("t", (k,)), ("deviations", (m,)), ("names", (m,)), ("units", (m,))):
            if np.shape(getattr(self, field)) != expected:
                raise ShapeError(f"observations.{field} has shape {np.shape(getattr(self, field))}; expected {expected}")
        if not self.shown:
            object.__setattr__(self, "shown", tuple(range(min(m, 9))))
        chosen = [*self.shown, *(self.plane or ())]
        if chosen and not 0 <= min(chosen) <= max(chosen) < m:
            raise ShapeError(f"observations.shown and .plane name channel {max(chosen)}; there are {m}")

    def residuals(self, point: Any) -> Float[np.ndarray, "k m"]:
        """(predicted - measured) / deviation at a point."""
        return (np.asarray(self.predicted(point), float) - self.values) / self.deviations


@dataclasses.dataclass(frozen=True)
class Certificate(NamedOptions):
    """What the user relies on, recomputed outside the solver.

    A point is an array of a `LeastSquaresProblem`, a `Trajectory` of an `OptimalControlProblem`.

    Options:
        function: `point -> {name: value}`.
        tolerances: bounds of these values, and of other recomputed ones by name, which success requires.
        goals: those of the bounded values that the question is about, and the unit of each; a `Solution` shows them as goals.
            As with `Goal`s, a point that meets them and breaks no bound is a success where the solver stops, optimal or not.
    """

    function: Callable[[Any], Mapping[str, Any]] | None = None
    tolerances: Mapping[str, float] = dataclasses.field(default_factory=dict)
    goals: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def values(self, point: Any) -> dict[str, float]:
        """The recomputed values."""
        return {} if self.function is None else {key: float(value) for key, value in self.function(point).items()}


@dataclasses.dataclass(frozen=True)
class Display(NamedOptions):
    """How an answer is shown.

    Options:
        model: what the animation draws. Default: the model of the `System`, where there is one.
        motion: `point -> {"t", "q", "v", "u", "impulse"}`, what is stored, plotted and animated where the dynamics are no
            `System`: T + 1 states at the times t, q (T+1, nq), v (T+1, nv), controls u (T, nu), contact impulses (T, contacts,
            3). Missing keys are left out.
        report: `point -> text` that is printed with the answer.
        observations: what the data of an estimation problem are, for its pictures.
        control_names, control_units: of the controls, for plots ("N m"; "" for a pure number). Default: the actuators of the
            model.
    """

    model: Any = None
    motion: Callable[[Any], Mapping[str, Any]] | None = None
    report: Callable[[Any], str] | None = None
    observations: Observations | None = None
    control_names: tuple[str, ...] = ()
    control_units: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Defaults(NamedOptions):
    """What a problem is solved with where nothing else is asked for.

    Options:
        solver: name of the solver. Default: iLQR for optimal control, GaussNewton for least squares.
        options: its options by name.
        gradient: the gradient mode. Default: the `System`'s own, for a function "implicit".
    """

    solver: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    gradient: str | None = None


# Where keywords of problems have gone.
MOVED = {
    "certificate_tolerances": "certificate=Certificate(function, tolerances)",
    "certificate_suffices": "certificate=Certificate(function, tolerances, goals={name: unit})",
    **{field.name: f"display=Display({field.name}=...)" for field in dataclasses.fields(Display)},
    "trajectory": "display=Display(motion=...)",
    "solver": "defaults=Defaults(solver, options)",
    "solver_options": "defaults=Defaults(solver, options)",
    "gradient": "defaults=Defaults(gradient=...)",
}


def check_parts(where: str, problem: Any) -> None:
    """Raise `OptionError` for a part of another kind."""
    for key, kind in (("certificate", Certificate), ("display", Display), ("defaults", Defaults)):
        value = getattr(problem, key)
        if not isinstance(value, kind):
            raise OptionError(f"{where}{key} is {value!r}; expected a {kind.__name__}, such as {_EXAMPLES[key]}")
    if problem.certificate.function is not None and not callable(problem.certificate.function):
        raise OptionError(f"{where}certificate.function is {problem.certificate.function!r}; expected a function of a point")
    unbounded = [name for name in problem.certificate.goals if name not in problem.certificate.tolerances]
    if unbounded:
        raise OptionError(f"{where}certificate.goals names '{unbounded[0]}', which certificate.tolerances does not bound")


_EXAMPLES = {
    "certificate": "Certificate(lambda motion: {'miss': ...}, {'miss': 1e-3})",
    "display": "Display(report=lambda motion: ...)",
    "defaults": "Defaults('CEM', {'population': 64})",
}
