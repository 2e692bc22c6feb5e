"""The problem library by name: `get`, `names`, `register`. Modules are imported when a problem is asked for.

A problem is made by a factory, a function whose keyword arguments are the problem's settings; each has a default that
also tells its type. The library's factories are called like the problem, with underscores for hyphens.
"""

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trajopt import walltime
from trajopt.errors import OptionError, UnknownNameError
from trajopt.names import check_name, closest
from trajopt.problems.ranges import Range


@dataclasses.dataclass(frozen=True)
class Entry:
    """One problem: where its factory is, one line about it, and the solver that suits it."""

    factory: Callable[..., Any] | str
    summary: str
    solver: str = "GaussNewton"

    def load(self) -> Callable[..., Any]:
        """The factory; its module is imported here."""
        if not isinstance(self.factory, str):
            return self.factory
        module, _, function = self.factory.partition(":")
        with walltime.part("import"):
            return getattr(importlib.import_module(module), function)


# Module of the library: its problems, each with the solver that suits it and one line about it.
_LIBRARY: dict[str, dict[str, tuple[str, str]]] = {
    "contact_inverse_dynamics": {
        "go1-stand": ("GaussNewton", "torques that keep a standing Go1 still for one step"),
        "go1-stand-payload": ("GaussNewton", "the same with 10 kg on its back"),
        "go1-handstand": ("GaussNewton", "torques that hold a Go1 in a hand-stand"),
        "h1-pushup": ("GaussNewton", "torques that hold an H1 humanoid in a push-up"),
    },
    "cube": {
        "cube-initial-velocity": ("GaussNewton", "initial velocity that slides a cube to a given final pose"),
        "cube-initial-impulse": ("GaussNewton", "initial impulse that throws a cube to a given final pose"),
    },
    "cartpole": {
        "cartpole-swingup": ("MultipleShooting", "least effort that swings a pole on a cart upright"),
        "double-cartpole-swingup": ("MultipleShooting", "least effort that swings a double pendulum on a cart upright"),
    },
    "falling_mass": {
        "falling-mass": ("GaussNewton", "height from which a dropped mass ends above the ground after half a second"),
    },
    "drone_takeoff": {"drone-takeoff": ("SingleShooting", "thrust that lifts a drone off the ground to a height")},
    "catapult": {"catapult": ("MultipleShooting", "torques with which a three-link arm bats a cube to a point")},
    "jump_worm": {"jump-worm": ("MultipleShooting", "torques with which a chain of links jumps high")},
    "atlas_jump": {"atlas-jump": ("iLQR", "torques with which Atlas jumps from a crouch to a height")},
    "go1_jump": {"go1-jump": ("Hybrid", "torques with which Go1 jumps, lands and stands")},
    "go1_backflip": {"go1-backflip": ("Hybrid", "torques with which Go1 turns once backwards in the air and stands")},
    "go1_trot": {"go1-trot": ("Hybrid", "torques with which Go1 trots, to a given phase")},
    "h1_step": {"h1-step": ("Hybrid", "torques with which H1 takes one step forward and stands")},
    "spinner": {"spinner": ("iLQR", "torques with which a finger turns a disc, from afar")},
    "pushing": {
        "push-box": ("iLQR", "forces with which a finger pushes a box to a pose"),
        "push-t": ("iLQR", "forces with which a finger pushes a T to a pose"),
    },
    "in_hand_rotation": {"in-hand-rotation": ("iLQR", "angles with which an Allegro hand turns a ball on its palm")},
    "two_arm_lift": {"two-arm-lift": ("iLQR", "angles with which two arms lift a ball that neither can hold alone")},
    "hopper_step": {"hopper-step": ("iLQR", "torques with which the hopper jumps onto a step")},
    "arm_obstacle": {"arm-obstacle": ("iLQR", "torques with which a UR5 reaches a place behind a ball")},
    "go1_climb": {"go1-climb": ("Hybrid", "torques with which Go1 gets onto a box of 15 cm")},
    "hopper_hops": {"hopper-hops": ("Hybrid", "torques with which the hopper hops five times")},
    "half_cheetah_sprint": {"half-cheetah-sprint": ("Hybrid", "torques with which the half-cheetah runs at 3 m/s")},
    "atlas_jump_landing": {"atlas-jump-landing": ("iLQR", "torques with which Atlas jumps, lands and stands")},
    "running": {
        "half-cheetah": ("iLQR", "a half-cheetah runs from standing"),
        "hopper": ("iLQR", "a hopper moves forward without falling"),
    },
    "identification": {
        "friction-identification": ("GaussNewton", "friction of a sliding cube from noisy poses, with covariance"),
        "inertia-identification": ("GaussNewton", "mass, centre of mass and inertia of a box from noisy poses"),
        "link-length-identification": ("GaussNewton", "lengths of a hopper's thigh and shank from its landing"),
    },
    "state_estimation": {
        "go1-state-estimation": ("GaussNewton", "base of a trotting Go1 from encoders and an inertial unit, through contact"),
    },
}  # fmt: skip

_ENTRIES: dict[str, Entry] = {
    name: Entry(f"trajopt.problems.library.{module}:{name.replace('-', '_')}", summary, solver)
    for module, problems in _LIBRARY.items()
    for name, (solver, summary) in problems.items()
}


def names() -> tuple[str, ...]:
    """Names of all problems, in the order they were registered."""
    return tuple(_ENTRIES)


def entry(name: str) -> Entry:
    """The entry of a problem. Raises `UnknownNameError` with the closest names."""
    if name not in _ENTRIES:
        raise UnknownNameError(f"there is no problem '{name}'{closest(name, _ENTRIES)}")
    return _ENTRIES[name]


def register(name: str, factory: Callable[..., Any], summary: str, solver: str = "GaussNewton") -> None:
    """Add a problem of one's own under `name`; `factory(**settings)` returns the problem. Raises `OptionError` for a name that is
    taken, and for one that cannot be that of a folder."""
    check_name("problem", name)
    if name in _ENTRIES:
        raise OptionError(f"a problem '{name}' is already registered; choose another name")
    _ENTRIES[name] = Entry(factory, summary, solver)


def unregister(name: str) -> None:
    """Take out a problem that `register` added; those of the library stay. Raises `UnknownNameError` and `OptionError`."""
    if isinstance(entry(name).factory, str):
        raise OptionError(f"problem '{name}' belongs to the library; only those that were registered can be taken out")
    del _ENTRIES[name]


def settings(name: str) -> dict[str, Any]:
    """The settings of a problem and their defaults."""
    return defaults(entry(name).load())


def defaults(factory: Callable[..., Any]) -> dict[str, Any]:
    """The keyword arguments of a factory and their defaults."""
    parameters = inspect.signature(factory).parameters.values()
    return {p.name: p.default for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def setting_ranges(name: str) -> Mapping[str, Range]:
    """What each setting of a problem may be; empty where its factory states no ranges."""
    return getattr(entry(name).load(), "ranges", {})


def get(name: str, **values: Any) -> Any:
    """The problem `name` with some settings changed.

    Raises `UnknownNameError` for an unknown problem or setting, with the closest names, and whatever the problem's
    own validation raises.
    """
    factory = entry(name).load()
    check_settings(name, values)
    return factory(**values)


def check_settings(name: str, keys: Iterable[str]) -> None:
    """Raise `UnknownNameError`, with the closest names, unless problem `name` has these settings."""
    known = settings(name)
    for key in keys:
        if key not in known:
            raise UnknownNameError(f"problem '{name}' has no setting '{key}'{closest(key, known)}")


def parse_settings(name: str, assignments: Iterable[str]) -> dict[str, Any]:
    """Turn "KEY=VALUE" strings into settings of problem `name`; values are Python literals, else plain strings.

    Raises `OptionError` when an assignment has no "=" or its value is not of the kind of the setting's default, and
    `UnknownNameError` when the problem has no such setting.
    """
    return parse_assignments(f"problem '{name}'", settings(name), assignments)


def parse_assignments(what: str, known: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """`parse_settings` of `what`, whose settings have the defaults `known`."""
    parsed = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise OptionError(f"cannot read setting '{assignment}'; expected KEY=VALUE")
        if key not in known:
            raise UnknownNameError(f"{what} has no setting '{key}'{closest(key, known)}")
        parsed[key] = _converted(what, key, _literal(text), known[key])
    return parsed


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.strip().lower(), text.strip())


def _converted(what: str, key: str, value: Any, default: Any) -> Any:
    """`value` as the kind of the default; defaults of None or without one accept anything."""
    if default is None or default is inspect.Parameter.empty:
        return value
    kind = type(default)
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (tuple, list) and isinstance(value, tuple | list):
        return kind(value)
    if kind in (bool, int, float, str, tuple, list):
        raise OptionError(
            f"setting '{key}' of {what} is {value!r}; expected {kind.__name__}, such as {default!r}"
        )
    return value
