r"""Derivatives of a whole step from evaluations of it at other states: differences, and the bundled gradient.

    finite-difference   central differences in tangent coordinates
    ridders             these, extrapolated to zero step (Nimble, App. D)
    randomized          of E_w f(z + w), z = [q, v, u]: mean over samples w of the exact derivatives (order 1), or least squares
                        fit of J in f(z + w) - f(z - w) = 2 J w (order 0); Suh, Pang, Tedrake, RA-L 2022

The value of a step is the step's own. Differences are taken along every entry of what is differentiated by, be it a state or
a parameter: two evaluations each (16 for Ridders). The mean of exact derivatives does not see jumps of f between its samples
(Smoothed, section 3.1); the fit does, at the price of its variance. Both use the same samples in every step.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.contact.laws.base import ContactLaw, Law
from trajopt.dynamics.contact.solve.solve import zero_tangent
from trajopt.dynamics.contact.step import DerivativeRule
from trajopt.dynamics.gradients.differences import RIDDERS_STEP, central_differences, central_step, ridders
from trajopt.dynamics.gradients.first_order import first_order_only, is_zero
from trajopt.dynamics.gradients.implicit import IMPLICIT
from trajopt.dynamics.gradients.mode import GradientMode, GradientOptions, Step
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.state import State
from trajopt.errors import DerivativeError, OptionError


@dataclasses.dataclass(frozen=True)
class _Estimate(GradientMode):
    """A derivative of whole steps, under any law, from steps (and their exact derivatives) at other states."""

    options: GradientOptions = GradientOptions()

    estimates: ClassVar[bool] = True

    @classmethod
    def from_options(cls, options: GradientOptions, labellings: str) -> _Estimate:
        return cls(options)

    def rule(self, law: ContactLaw) -> DerivativeRule | None:
        return IMPLICIT.rule(law)

    def estimated(self, step: Step, system: Any, x: Any, u: Any, force: Any, init: Any) -> Any:
        return _estimated_step(step, self, system, x, u, force, jax.lax.stop_gradient(init))

    @abc.abstractmethod
    def along(self, around: _Around) -> Float[Array, " k"]:
        """The derivative of the step's coordinates along the tangent of its inputs."""


@dataclasses.dataclass(frozen=True)
class FiniteDifference(_Estimate):
    """Central differences; options.difference_step: half step, None for eps^(1/3)."""

    name: ClassVar[str] = "finite-difference"

    def along(self, around: _Around) -> Float[Array, " k"]:
        start = self.options.difference_step
        start = central_step(around.dtype) if start is None else start
        return central_differences(around.coordinates, start * around.inputs.scale) @ around.inputs.tangent


@dataclasses.dataclass(frozen=True)
class Ridders(_Estimate):
    """Differences extrapolated to zero step; options.difference_step: largest half step, None for `RIDDERS_STEP`."""

    name: ClassVar[str] = "ridders"

    def along(self, around: _Around) -> Float[Array, " k"]:
        start = RIDDERS_STEP if self.options.difference_step is None else self.options.difference_step
        return ridders(around.coordinates, start * around.inputs.scale) @ around.inputs.tangent


@dataclasses.dataclass(frozen=True)
class Randomized(_Estimate):
    """The bundled gradient: mean of exact derivatives (order 1), or fit to the steps (order 0), at perturbed states."""

    name: ClassVar[str] = "randomized"

    def check(self, law: Law, model: Model) -> None:
        super().check(law, model)
        if self.options.order == 1:
            return
        if law.carries_state:
            raise OptionError(
                f"gradient is 'randomized' with order 0, which perturbs q, v and u, but {law.name} carries a state besides; "
                "use order=1"
            )
        unknowns = 2 * model.nv + model.nu
        if self.options.samples < unknowns:
            raise OptionError(
                f"samples is {self.options.samples}, but with order 0 the fit for model '{model.name}' has {unknowns} unknowns "
                f"(2 nv + nu); use at least as many samples, or order=1"
            )

    def along(self, around: _Around) -> Float[Array, " k"]:
        return self._mean_slope(around) if self.options.order == 1 else self._fit(around)

    def _mean_slope(self, around: _Around) -> Float[Array, " k"]:
        along, model = around.inputs.tangent, around.system.model

        def slope(w):
            # In the tangent coordinates of the sample's own result.
            y, dy = jax.jvp(lambda z: around.evaluate(z, w), (jnp.zeros_like(along),), (along,))
            dq = jax.jvp(lambda q: difference(model, y[0].q, q), (y[0].q,), (dy[0].q,))[1]
            return jnp.concatenate([dq, *(jnp.ravel(part) for part in jax.tree.leaves(_read(dy)))])

        return jnp.mean(jax.vmap(slope)(_samples(self.options, around.system, around.dtype)), 0)

    def _fit(self, around: _Around) -> Float[Array, " k"]:
        around.inputs.only_state_and_control()
        w = _samples(self.options, around.system, around.dtype)
        nothing, f = jnp.zeros_like(around.inputs.tangent), around.coordinates
        rise = jax.vmap(lambda w: 0.5 * (f(nothing, w) - f(nothing, -w)))(w)
        # Least squares in standardised perturbations, which is well conditioned whatever the deviations are.
        deviation = _deviations(self.options, around.system, around.dtype)
        J = linear_algebra.least_squares(w / deviation, rise).T / deviation
        return J @ around.inputs.state_and_control()


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _estimated_step(step: Callable[..., Any], mode: _Estimate, system, x: State, u, force, init):
    return step(system, x, u, force, init)


def _estimated_jvp(step, mode: _Estimate, primals, tangents):
    primals = first_order_only(mode.name, primals)
    system, x, u, force, init = primals
    out = step(*primals)
    inputs = _Inputs((system, x, u, force), tangents[:4])
    if inputs.size == 0:
        return out, zero_tangent(out)
    return out, _as_slopes(system.model, out, mode.along(_Around(step, inputs, out, init)))


_estimated_step.defjvp(_estimated_jvp, symbolic_zeros=True)


@dataclasses.dataclass(frozen=True)
class _Around:
    """The step as a function of perturbations about the state, control, force and parameters where it is differentiated."""

    step: Callable[..., Any]
    inputs: _Inputs
    out: Any
    init: Array

    @property
    def system(self) -> Any:
        return self.inputs.system

    @property
    def dtype(self):
        return self.inputs.scale.dtype

    def evaluate(self, z: Float[Array, " k"], w: Float[Array, " n"] | None = None) -> Any:
        """(x_next, info) at z, perturbed by w besides."""
        return self.step(*self.inputs.at(z, w), self.init)

    def coordinates(self, z: Float[Array, " k"], w: Float[Array, " n"] | None = None) -> Float[Array, " m"]:
        """`evaluate` as one vector, in tangent coordinates at the unperturbed step."""
        return _coordinates(self.system.model, self.out[0], self.evaluate(z, w))


class _Inputs:
    """What a step depends on, as a function of coordinates z of those parts that are differentiated by: q in tangent
    coordinates, everything else as it is. `tangent` (size,) is dz; `scale` the size of each coordinate for differences."""

    def __init__(self, primals, tangents) -> None:
        self.system, x, u, _ = primals
        model, dtype = self.system.model, x.q.dtype
        self.leaves, self.structure = jax.tree.flatten(primals)
        slopes = jax.tree.leaves(tangents, is_leaf=lambda a: isinstance(a, SymbolicZero))
        # Places of q, v and u among the leaves; x, u and force come after the system, and their natural size is 1.
        first = len(jax.tree.leaves(self.system))
        places = jax.tree.unflatten(jax.tree.structure(primals[1:]), range(first, len(self.leaves)))
        self.q, self.v, self.u = places[0].q, places[0].v, places[1]
        self.sizes = {self.q: model.nv, self.v: model.nv, self.u: u.shape[0]}
        self.moved = [k for k, slope in enumerate(slopes) if not is_zero(slope)]
        parts, scales = [jnp.zeros(0, dtype)], [jnp.zeros(0, dtype)]
        for k in self.moved:
            leaf, slope = self.leaves[k], slopes[k]
            if k == self.q:
                slope = jax.jvp(lambda y: difference(model, x.q, y), (x.q,), (slope,))[1]
            largest = jnp.max(jnp.abs(leaf), initial=0.0)
            known = jnp.isfinite(largest) & (largest > 0) & (k < first)
            parts.append(jnp.ravel(slope))
            scales.append(jnp.full(parts[-1].shape, jnp.where(known, largest, 1.0), dtype))
        self.tangent, self.scale = jnp.concatenate(parts), jnp.concatenate(scales)
        self.size = self.tangent.shape[0]

    def at(self, z: Float[Array, " k"], w: Float[Array, " n"] | None = None):
        """(system, x, u, force) at z; w: perturbation [dq, dv, du] besides."""
        model, leaves, start = self.system.model, list(self.leaves), 0
        for k in self.moved:
            if k == self.q:
                leaves[k] = integrate(model, leaves[k], z[start : start + model.nv])
                start += model.nv
            else:
                size = leaves[k].size
                leaves[k] = leaves[k] + z[start : start + size].reshape(leaves[k].shape)
                start += size
        if w is not None:
            nv = model.nv
            leaves[self.q] = integrate(model, leaves[self.q], w[:nv])
            leaves[self.v] = leaves[self.v] + w[nv : 2 * nv]
            leaves[self.u] = leaves[self.u] + w[2 * nv :]
        return jax.tree.unflatten(self.structure, leaves)

    def only_state_and_control(self) -> None:
        """Raise `DerivativeError` where something else is differentiated by."""
        if not set(self.moved) <= set(self.sizes):
            raise DerivativeError(
                "gradient='randomized' with order 0 perturbs q, v and u alone and has no derivative by parameters, forces or "
                "dt; use order=1"
            )

    def state_and_control(self) -> Float[Array, " n"]:
        """[dq, dv, du], zero where they are not differentiated by."""
        found, start = {}, 0
        for k in self.moved:
            found[k] = self.tangent[start : start + self.sizes[k]]
            start += self.sizes[k]
        return jnp.concatenate([found.get(k, jnp.zeros(size, self.scale.dtype)) for k, size in self.sizes.items()])


def _deviations(options: GradientOptions, system, dtype) -> Float[Array, " n"]:
    nv, nu = system.model.nv, system.model.nu
    sizes = ((options.position_deviation, nv), (options.velocity_deviation, nv), (options.control_deviation, nu))
    return jnp.concatenate([jnp.full(size, deviation, dtype) for deviation, size in sizes])


def _samples(options: GradientOptions, system, dtype) -> Float[Array, "samples n"]:
    """Perturbations [dq, dv, du]: for derivatives in pairs of opposite sign, for the fit, which takes both signs itself, not."""
    deviation = _deviations(options, system, dtype)
    count = options.samples if options.order == 0 else (options.samples + 1) // 2
    half = jax.random.normal(jax.random.key(options.seed), (count, deviation.shape[0]), dtype)
    both = half if options.order == 0 else jnp.concatenate([half, -half])[: options.samples]
    return both * deviation


def _read(out) -> tuple[Any, ...]:
    """The parts of (x_next, info) that have a derivative, besides q."""
    x, info = out
    contacts = info.contacts
    return (
        x.v, x.contact, info.impulse, contacts.distance, contacts.point, contacts.frame, contacts.impulse, contacts.friction
    )  # fmt: skip


def _coordinates(model, origin: State, out) -> Float[Array, " k"]:
    """(x_next, info) as one vector, q in tangent coordinates at `origin`."""
    return jnp.concatenate(
        [difference(model, origin.q, out[0].q), *(jnp.ravel(p) for p in jax.tree.leaves(_read(out)))]
    )


def _as_slopes(model, out, moved):
    """Tangents of `out` from those of `_coordinates`; what is not part of these (diagnostics) has none."""
    nv, q = model.nv, out[0].q
    leaves, structure = jax.tree.flatten(out)
    places = jax.tree.unflatten(structure, range(len(leaves)))
    slopes = jax.tree.leaves(zero_tangent(out))
    slopes[places[0].q] = jax.jvp(lambda d: integrate(model, q, d), (jnp.zeros(nv, q.dtype),), (moved[:nv],))[1]
    start = nv
    for k in jax.tree.leaves(_read(places)):
        slopes[k] = moved[start : start + leaves[k].size].reshape(leaves[k].shape)
        start += leaves[k].size
    return jax.tree.unflatten(structure, slopes)
