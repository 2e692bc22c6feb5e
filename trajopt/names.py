"""Names: those that the command line knows before it imports anything heavy, which are allowed, suggestions for mistyped ones."""

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trajopt.errors import OptionError

SELF_COLLISION = ("auto", "all", "none")  # which links of one robot collide (`models.load_model`)

_COMPARED, _LONGEST = 1000, 100  # names, and their characters, that are compared with a mistyped one


_NAME = re.compile(r"[^\W_][\w .+-]{0,99}")


def check_name(kind: str, name: Any) -> None:
    """Raise `OptionError` unless a name can also be that of a folder: a letter or digit, then up to 99 more, spaces and -_.+."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(
            f"the name of the {kind} is {name!r}; expected a letter or digit, then up to 99 more, spaces and -_.+, "
            "such as 'my-problem': its results go into a folder of this name"
        )


def counted(count: int, thing: str) -> str:
    """A number of things, in words that a message can hold: 1 iteration, 2 iterations."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def closest(name: str, known: Iterable[str], most: int = 5) -> str:
    """A sentence naming the known names closest to `name`, to append to an error message."""
    known = sorted(set(known))
    if not known:
        return "; there are none"
    comparable = [other for other in known[:_COMPARED] if len(other) <= _LONGEST]
    alike = {other.casefold(): other for other in comparable}
    near = [alike[n] for n in difflib.get_close_matches(name.casefold(), alike, most, 0.4)] if len(name) <= _LONGEST else []
    if near:
        return "; did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
    shown = ", ".join(other[:_LONGEST] for other in known[:12]) + (", ..." if len(known) > 12 else "")
    return f"; known are: {shown}"


class NamedOptions:
    """Base of classes that are made of options: one that they do not have is an `OptionError` with the closest names.

    moved: where options that a class had have gone.
    """

    def __new__(cls, *options: Any, **named: Any) -> Any:
        known = _option_names(cls.__init__)
        moved: Mapping[str, str] = getattr(cls, "moved", {})
        for name in named:
            if name in moved and known is not None and name not in known:
                raise OptionError(f"{cls.__name__} has no '{name}' of its own; give {moved[name]}")
            if known is not None and name not in known:
                raise OptionError(f"{cls.__name__} got an unexpected keyword argument '{name}'{closest(name, known)}")
        return super().__new__(cls)


@functools.cache
def _option_names(make: Callable[..., None]) -> tuple[str, ...] | None:
    """What a class with this `__init__` is made of; None where it takes any name."""
    parameters = list(inspect.signature(make).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)
