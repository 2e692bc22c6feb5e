"""Masses, centres of mass and inertias as unknowns, in log-Cholesky coordinates: every point is that of a real body."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.model import Model
from trajopt.errors import OptionError
from trajopt.estimation.parameter import Parameter, nodes_of
from trajopt.problems.inertia import from_log_cholesky, to_log_cholesky


def _radius(model: Model, node: int) -> float:
    """Radius of gyration, m."""
    return float(np.sqrt(np.trace(np.asarray(model.inertia[node], float)) / 2 / max(float(model.mass[node]), 1e-9)))


def _coordinates(model: Model, node: int) -> Float[np.ndarray, "10"]:
    return to_log_cholesky(float(model.mass[node]), np.asarray(model.com[node]), np.asarray(model.inertia[node]))


def _scales(theta: Float[np.ndarray, "10"], radius: float) -> Float[np.ndarray, "10"]:
    # The inertia may well be off by a fifth: a body that is drawn as a solid may be a shell, which has two thirds more.
    shape = 0.1 * np.exp(theta[1:4]).mean()
    return np.concatenate([[0.05], np.full(3, 0.1), np.full(3, shape), np.full(3, 0.1 * radius)])


_SIX = ("Ixx", "Iyy", "Izz", "Ixy", "Ixz", "Iyz")


def _six(inertia: Array) -> Array:
    return jnp.stack([inertia[0, 0], inertia[1, 1], inertia[2, 2], inertia[0, 1], inertia[0, 2], inertia[1, 2]])


@dataclasses.dataclass(frozen=True)
class _InertialKind:
    """Some of the ten log-Cholesky coordinates of each body."""

    name: str
    free: slice
    labels: Callable[[str], tuple[str, ...]]
    values: Callable[[Array], Array]
    apply: Callable[[Model, int, Array, Array], Model]

    def __call__(self, model: Model, body: str | None) -> list[Parameter]:
        made = []
        for node in nodes_of(model, body):
            title = model.topology.node_names[node] if body is None else body
            try:
                whole = _coordinates(model, node)
            except OptionError as error:
                raise OptionError(f"parameters asks for '{self.name}:{title}': {error}") from error
            fixed = jnp.asarray(whole)

            def shown(x: Array, fixed: Array = fixed) -> Array:
                return self.values(fixed.at[self.free].set(x))

            def apply(model: Model, x: Array, fixed: Array = fixed, node: int = node) -> Model:
                return self.apply(model, node, fixed, fixed.at[self.free].set(x))

            scale = _scales(whole, _radius(model, node))[self.free]
            made.append(Parameter(f"{self.name}:{title}", whole[self.free], scale, apply, self.labels(title), shown))
        return made


def _with_mass(model: Model, node: int, old: Array, new: Array) -> Model:
    factor = jnp.exp(2.0 * (new[0] - old[0])).astype(model.mass.dtype)
    return model.replace(mass=model.mass.at[node].multiply(factor), inertia=model.inertia.at[node].multiply(factor))


def _with_com(model: Model, node: int, old: Array, new: Array) -> Model:
    return model.replace(com=model.com.at[node].set(new[7:].astype(model.com.dtype)))


def _with_inertia(model: Model, node: int, old: Array, new: Array) -> Model:
    inertia = from_log_cholesky(new.at[0].set(0.5 * jnp.log(model.mass[node].astype(new.dtype))))[2]
    return model.replace(inertia=model.inertia.at[node].set(inertia.astype(model.inertia.dtype)))


def _with_all(model: Model, node: int, old: Array, new: Array) -> Model:
    mass, com, inertia = (part.astype(model.mass.dtype) for part in from_log_cholesky(new))
    return model.replace(
        mass=model.mass.at[node].set(mass), com=model.com.at[node].set(com), inertia=model.inertia.at[node].set(inertia)
    )


def _of_mass(theta: Array) -> Array:
    return from_log_cholesky(theta)[0][None]


def _of_com(theta: Array) -> Array:
    return from_log_cholesky(theta)[1]


def _of_inertia(theta: Array) -> Array:
    return _six(from_log_cholesky(theta)[2])


def _of_all(theta: Array) -> Array:
    return jnp.concatenate([_of_mass(theta), _of_com(theta), _of_inertia(theta)])


def _mass_label(body: str) -> tuple[str, ...]:
    return (f"mass of {body}, kg",)


def _com_labels(body: str) -> tuple[str, ...]:
    return tuple(f"centre of mass {a} of {body}, m" for a in "xyz")


def _inertia_labels(body: str) -> tuple[str, ...]:
    return tuple(f"{entry} of {body}, kg m^2" for entry in _SIX)


def _all_labels(body: str) -> tuple[str, ...]:
    return _mass_label(body) + _com_labels(body) + _inertia_labels(body)


INERTIAL_KINDS: dict[str, Callable[[Model, str | None], list[Parameter]]] = {
    "mass": _InertialKind("mass", slice(0, 1), _mass_label, _of_mass, _with_mass),
    "com": _InertialKind("com", slice(7, 10), _com_labels, _of_com, _with_com),
    "inertia": _InertialKind("inertia", slice(1, 7), _inertia_labels, _of_inertia, _with_inertia),
    "inertial": _InertialKind("inertial", slice(0, 10), _all_labels, _of_all, _with_all),
}
