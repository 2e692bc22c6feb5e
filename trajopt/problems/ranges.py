"""Ranges of a problem's settings, checked when the problem is made.

    @ranged(steps=Count(1, 10_000), duration=Real(0.1, 60.0, "s"), contact=Choice(("hard", "soft")))
    def swing(duration: float = 2.0, steps: int = 100, contact: str = "hard") -> OptimalControlProblem: ...

A value out of its range raises `OptionError`, which names the problem, the setting, the value, the range and the default.
"""

import dataclasses
import functools
import inspect
import math
import numbers
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from trajopt.errors import OptionError


@runtime_checkable
class Range(Protocol):
    """What a setting may be."""

    def accept(self, value: Any) -> Any:
        """The value in its normal form. Raises `ValueError` when it is out of the range."""

    def __str__(self) -> str:
        """The range in words, as they follow "expected"."""


@dataclasses.dataclass(frozen=True)
class Count:
    """A setting that is a whole number.

    Options:
        least: smallest number.
        most: largest number; None: no upper end.
    """

    least: int = 0
    most: int | None = None

    def accept(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise ValueError
        number = int(value)
        if number < self.least or (self.most is not None and number > self.most):
            raise ValueError
        return number

    def __str__(self) -> str:
        upper = "or more" if self.most is None else f"to {self.most}"
        return f"a whole number, {self.least} {upper}"


@dataclasses.dataclass(frozen=True)
class Real:
    """A setting that is a finite number.

    Options:
        least: lower end of the range.
        most: upper end of the range.
        unit: unit of the setting, for messages.
        inside: whether the ends themselves are excluded.
        why: what lies beyond the range, for the error message.
    """

    least: float
    most: float
    unit: str = ""
    inside: bool = False
    why: str = ""

    def accept(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise ValueError
        number = float(value)
        if not (self.least < number < self.most if self.inside else self.least <= number <= self.most):
            raise ValueError
        return number

    def __str__(self) -> str:
        unit, ends = f" {self.unit}" if self.unit else "", ", ends excluded" if self.inside else ""
        return f"a number, {self.least:g} to {self.most:g}{unit}{ends}" + (f" ({self.why})" if self.why else "")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A setting that is one of several strings.

    Options:
        names: the strings.
    """

    names: tuple[str, ...]

    def accept(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.names:
            raise ValueError
        return value

    def __str__(self) -> str:
        return "one of " + ", ".join(self.names)


P = ParamSpec("P")
T = TypeVar("T")


def ranged(**ranges: Range) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator of a problem's factory: its settings are checked against `ranges` before it is called.

    The factory is called like the problem, with underscores for hyphens. Raises `OptionError` where a setting has no range or a
    range no setting.
    """

    def decorate(factory: Callable[P, T]) -> Callable[P, T]:
        signature, name = inspect.signature(factory), factory.__name__.replace("_", "-")
        if set(signature.parameters) != set(ranges):
            odd = ", ".join(sorted(set(signature.parameters) ^ set(ranges)))
            raise OptionError(f"problem '{name}': settings and ranges differ in {odd}; give one range for every setting")

        @functools.wraps(factory)
        def made(*args: P.args, **kwargs: P.kwargs) -> T:
            given = signature.bind(*args, **kwargs)
            for key, value in given.arguments.items():
                given.arguments[key] = _accepted(name, key, value, ranges[key], signature.parameters[key].default)
            return factory(*given.args, **given.kwargs)

        made.ranges = ranges  # type: ignore[attr-defined]
        return made

    return decorate


def _accepted(name: str, key: str, value: Any, allowed: Range, default: Any) -> Any:
    try:
        return allowed.accept(value)
    except ValueError:
        raise OptionError(
            f"problem '{name}': setting {key} is {value!r}; expected {allowed}; the default is {default!r}"
        ) from None
