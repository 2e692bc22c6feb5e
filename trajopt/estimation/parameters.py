"""Unknown parameters: coordinates in which they are searched, how they change a model or a sensor, and the values that are
reported.

`identify(parameters=[...])` takes names, as below, and `Parameter` objects. NAME:BODY is that of one body, NAME that of all of
them (masses, inertias) or of the whole model (friction, gravity); CHANNEL.CONSTANT is a constant of a sensor, such as
"imu.gyro_bias".

    friction, restitution   of all pairs of shapes; with :BODY of the pairs of this body
    impact_friction         friction of contacts that bounce, as a factor of the friction of those that slide
    mass                    kg; the inertia changes with it, as that of a body of the same shape and another density
    com                     centre of mass, m, in the body's axes
    inertia                 six entries about the centre of mass, kg m^2, of a given mass
    inertial                mass, centre of mass and inertia
    size                    a factor of the half extents and radii of the body's shapes
    gravity                 three components, m/s^2
    ground                  height of the fixed shapes, m
    armature, damping, frictionloss, stiffness     of joints; with :JOINT of one

Inertias are searched in log-Cholesky coordinates (`trajopt.problems.inertia`), in which every point is that of a real body.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model
from trajopt.errors import OptionError, UnknownNameError
from trajopt.estimation.inertial_parameters import INERTIAL_KINDS
from trajopt.estimation.parameter import Parameter, nodes_of
from trajopt.estimation.sensors import Constants, Sensor
from trajopt.names import closest


@dataclasses.dataclass(frozen=True, eq=False)
class Unknowns:
    """All unknown parameters as one vector theta (n,), in units of their own."""

    parameters: tuple[Parameter, ...]
    base: dict[str, Constants]

    @property
    def start(self) -> Float[np.ndarray, " n"]:
        return np.concatenate([np.zeros(0), *(p.start for p in self.parameters)])

    @property
    def scale(self) -> Float[np.ndarray, " n"]:
        return np.concatenate([np.zeros(0), *(np.asarray(p.scale) for p in self.parameters)])

    @property
    def lower(self) -> Float[np.ndarray, " n"]:
        return np.concatenate([np.zeros(0), *(np.asarray(p.lower) for p in self.parameters)])

    @property
    def upper(self) -> Float[np.ndarray, " n"]:
        return np.concatenate([np.zeros(0), *(np.asarray(p.upper) for p in self.parameters)])

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the reported values."""
        return tuple(label for p in self.parameters for label in p.labels)

    @property
    def owners(self) -> tuple[str, ...]:
        """The parameter that each coordinate belongs to, numbered where it has several."""
        return tuple(
            p.name if p.start.size == 1 else f"{p.name}[{k}]" for p in self.parameters for k in range(p.start.size)
        )

    def parts(self, theta: Float[Array, " n"]) -> list[Float[Array, " _"]]:
        """theta, parameter by parameter."""
        sizes = [p.start.size for p in self.parameters]
        return list(jnp.split(theta, np.cumsum(sizes)[:-1])) if sizes else []

    def applied(self, model: Model, theta: Float[Array, " n"]) -> tuple[Model, dict[str, Constants]]:
        """The model and the constants of the sensors under theta."""
        constants = {channel: dict(values) for channel, values in self.base.items()}
        for parameter, part in zip(self.parameters, self.parts(theta)):
            if parameter.constant is not None:
                channel, name = parameter.constant
                constants[channel][name] = part.reshape(jnp.shape(constants[channel][name]))
            else:
                assert parameter.apply is not None
                model = parameter.apply(model, part)
        return model, constants

    def values(self, theta: Float[Array, " n"]) -> Float[Array, " k"]:
        """The reported values."""
        return jnp.concatenate([jnp.atleast_1d(p.values(part)) for p, part in zip(self.parameters, self.parts(theta))])

    def slopes(self, theta: Float[np.ndarray, " n"]) -> Float[np.ndarray, "k n"]:
        """Derivative of the reported values."""
        return np.asarray(jax.jacfwd(self.values)(jnp.asarray(theta)))


def unknowns(model: Model, sensors: tuple[Sensor, ...], asked: Any) -> Unknowns:
    """The unknowns that a list of names and `Parameter` objects asks for.

    Raises `OptionError` or `UnknownNameError` naming the entry.
    """
    listed = [asked] if isinstance(asked, str | Parameter) else list(asked)
    if not listed:
        raise OptionError(
            f"parameters is empty; name what is unknown: {', '.join(KINDS)}, or CHANNEL.CONSTANT of a sensor"
        )
    base = {
        sensor.channel: {name: jnp.asarray(value) for name, value in sensor.constants(model).items()}
        for sensor in sensors
    }
    found: list[Parameter] = []
    for entry in listed:
        if isinstance(entry, Parameter):
            found.append(entry)
        elif isinstance(entry, str):
            found += _named(model, base, entry)
        else:
            raise OptionError(f"parameters holds {entry!r}; expected a name such as 'friction', or a Parameter")
    names = [parameter.name for parameter in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise OptionError(f"parameters asks for '{twice}' twice; leave one out")
    return Unknowns(tuple(found), base)


def _named(model: Model, base: dict[str, Constants], entry: str) -> list[Parameter]:
    channel, dot, constant = entry.rpartition(".")
    if dot and channel in base:
        if constant not in base[channel]:
            raise UnknownNameError(
                f"parameters: the sensor of channel '{channel}' has no constant '{constant}'{closest(constant, base[channel])}"
            )
        value = np.atleast_1d(np.asarray(base[channel][constant], float))
        labels = (entry,) if value.size == 1 else tuple(f"{entry}[{k}]" for k in range(value.size))
        return [Parameter(entry, value, SCALES.get(constant, 0.1), None, labels, constant=(channel, constant))]
    kind, _, where = entry.partition(":")
    if kind not in KINDS:
        known = (*KINDS, *(f"{channel}.{name}" for channel in base for name in base[channel]))
        raise UnknownNameError(f"there is no parameter '{entry}'{closest(entry, known)}")
    return KINDS[kind](model, where or None)


SCALES = {
    "delay": 2e-3,
    "gain": 0.05,
    "bias": 0.02,
    "gyro_bias": 0.02,
    "accelerometer_bias": 0.2,
    "position": 0.02,
    "rotation": 0.05,
}


def _pairs(model: Model, leaf: str, name: str, scale: float, upper: float, body: str | None) -> list[Parameter]:
    top = model.topology
    if not top.pairs:
        raise OptionError(f"parameters asks for '{name}', but no two shapes of model '{model.name}' can touch")
    chosen = np.ones(len(top.pairs), bool)
    if body is not None:
        node = nodes_of(model, body)[0]
        chosen = np.array([node in (top.shapes[a].node, top.shapes[b].node) for a, b in top.pairs])
        if not chosen.any():
            raise OptionError(f"parameters asks for '{name}:{body}', but no shape of '{body}' can touch another")
    old = np.asarray(getattr(model, leaf), float)
    values = old[chosen]
    same = np.ptp(values) < 1e-12
    start = float(values[0]) if same else 1.0
    label = name if body is None else f"{name}:{body}"

    def apply(model: Model, x: Array) -> Model:
        leaves = getattr(model, leaf)
        new = jnp.where(jnp.asarray(chosen), x[0] if same else x[0] * jnp.asarray(old, leaves.dtype), leaves)
        return model.replace(**{leaf: new})

    return [
        Parameter(
            label, np.array([start]), scale, apply, (label if same else f"{label}, factor",), lower=0.0, upper=upper
        )
    ]


def _friction(model: Model, body: str | None) -> list[Parameter]:
    return _pairs(model, "pair_friction", "friction", 0.05, 5.0, body)


def _restitution(model: Model, body: str | None) -> list[Parameter]:
    return _pairs(model, "pair_restitution", "restitution", 0.1, 1.0, body)


def _impact_friction(model: Model, body: str | None) -> list[Parameter]:
    return _pairs(model, "pair_impact_friction", "impact_friction", 0.2, 5.0, body)


def _size(model: Model, body: str | None) -> list[Parameter]:
    top = model.topology
    nodes = nodes_of(model, body)
    chosen = np.array([shape.node in nodes for shape in top.shapes])
    if not chosen.any():
        raise OptionError(f"parameters asks for 'size', but {'no body' if body is None else repr(body)} has a shape")
    label = "size" if body is None else f"size:{body}"

    def apply(model: Model, x: Array) -> Model:
        factor = jnp.where(jnp.asarray(chosen), x[0], jnp.ones_like(x[0]))
        return model.replace(shape_size=model.shape_size * factor[:, None])

    return [Parameter(label, np.ones(1), 0.02, apply, (f"{label}, factor",), lower=0.2, upper=5.0)]


def _ground(model: Model, body: str | None) -> list[Parameter]:
    fixed = np.array([shape.node < 0 for shape in model.topology.shapes])
    if not fixed.any():
        raise OptionError(f"parameters asks for 'ground', but model '{model.name}' has no fixed shape")

    def apply(model: Model, x: Array) -> Model:
        rise = jnp.where(jnp.asarray(fixed), x[0], jnp.zeros_like(x[0]))
        return model.replace(shape_position=model.shape_position.at[:, 2].add(rise))

    return [Parameter("ground", np.zeros(1), 2e-3, apply, ("height of the ground, m",))]


def _gravity(model: Model, body: str | None) -> list[Parameter]:
    def apply(model: Model, x: Array) -> Model:
        return model.replace(gravity=x.astype(model.gravity.dtype))

    labels = tuple(f"gravity {a}, m/s^2" for a in "xyz")
    return [Parameter("gravity", np.asarray(model.gravity, float), 0.1, apply, labels)]


def _joint_kind(leaf: str, unit: str):
    """A leaf (nv,) of the joints."""

    def make(model: Model, joint: str | None) -> list[Parameter]:
        top = model.topology
        values = np.asarray(getattr(model, leaf), float)
        scalar = [j for j in top.joints if j.nv == 1]
        chosen = [top.joint(joint)] if joint is not None else [j for j in scalar if j.kind != "free"]
        if not chosen:
            raise OptionError(
                f"parameters asks for '{leaf}', but model '{model.name}' has no joint with one coordinate"
            )
        typical = float(np.abs(values).max()) or 0.1
        made = []
        for j in chosen:
            place = slice(j.v_start, j.v_start + j.nv)

            def apply(model: Model, x: Array, place: slice = place) -> Model:
                leaves = getattr(model, leaf)
                return model.replace(**{leaf: leaves.at[place].set(x.astype(leaves.dtype))})

            start = values[place]
            scale = np.maximum(0.2 * np.abs(start), 0.05 * typical)
            labels = (
                (f"{leaf} of {j.name}, {unit}",)
                if j.nv == 1
                else tuple(f"{leaf} of {j.name}[{k}], {unit}" for k in range(j.nv))
            )
            made.append(Parameter(f"{leaf}:{j.name}", start, scale, apply, labels, lower=np.zeros(j.nv)))
        return made

    return make


KINDS: dict[str, Callable[[Model, str | None], list[Parameter]]] = {
    "friction": _friction,
    "restitution": _restitution,
    "impact_friction": _impact_friction,
    **INERTIAL_KINDS,
    "size": _size,
    "gravity": _gravity,
    "ground": _ground,
    "armature": _joint_kind("armature", "kg m^2"),
    "damping": _joint_kind("damping", "N m s/rad"),
    "frictionloss": _joint_kind("frictionloss", "N m"),
    "stiffness": _joint_kind("stiffness", "N m/rad"),
}


def names(parameters: Iterable[Parameter]) -> tuple[str, ...]:
    """Names of parameters."""
    return tuple(parameter.name for parameter in parameters)
