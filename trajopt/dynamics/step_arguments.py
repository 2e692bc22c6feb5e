"""What `System` checks of the state, the controls and what else a step is given: errors name the argument and the model."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

from trajopt.dynamics.arguments import checked_array, in_precision, require_real
from trajopt.dynamics.contact.laws.base import Law
from trajopt.dynamics.gradients.mode import GradientMode
from trajopt.dynamics.gradients.modes import MODES
from trajopt.dynamics.model import Model
from trajopt.dynamics.state import State
from trajopt.errors import DerivativeError, OptionError, ShapeError, UnknownNameError
from trajopt.names import closest
from trajopt.native.process import check_process

PARAMETERS = (  # leaves of a model that `System.linearize(parameters=...)` differentiates by
    "mass", "com", "inertia", "pair_friction", "pair_restitution", "pair_impact_friction", "shape_size", "shape_position",
    "placement_position", "armature", "damping", "stiffness", "frictionloss", "gravity", "terrain",
)  # fmt: skip
OUTPUTS = ("impulse",)  # what `System.linearize(outputs=...)` differentiates besides the next state


def checked_arguments(
    model: Model, law: Law, x: State, u: Any, force: Any
) -> tuple[State, Float[Array, " nu"], Float[Array, " nv"]]:
    """x, u and force (None: zero) in the model's precision; `ShapeError`, `NonFiniteError` or `ForkError`."""
    check_process()
    top, dtype = model.topology, model.mass.dtype
    if not isinstance(x, State):
        raise ShapeError(f"x is {type(x).__name__}, expected a State(q, v): State(x[:{top.nq}], x[{top.nq}:]) of a flat array")
    where = f" for model '{model.name}'; use jax.vmap for a batch of states"

    def vector(name: str, value: Any, size: int) -> Array:  # made anew by every call of a step
        return checked_array(name, value, (size,), dtype, where)

    q, v, u = vector("x.q", x.q, top.nq), vector("x.v", x.v, top.nv), vector("u", u, top.nu)
    force = zeros(top.nv, dtype) if force is None else vector("force", force, top.nv)
    return State(q, v, checked_contact_state(model, law, x.contact, dtype)), u, force


def checked_controls(model: Model, us: Any) -> Float[Array, "T nu"]:
    """The controls of T steps in the model's precision; `ShapeError` or `NonFiniteError`."""
    nu = model.topology.nu
    require_real("us", us)
    if np.ndim(us) != 2 or np.shape(us)[1] != nu:
        raise ShapeError(f"us has shape {np.shape(us)}, expected (T, {nu})")
    return checked_array("us", us, (len(us), nu), model.mass.dtype)


def checked_warm_start(model: Model, law: Law, m: int, warm_start: Any) -> Float[Array, " m"]:
    """The warm start of m impulses in the model's precision; zeros for None, and under laws that do not start from it."""
    dtype = model.mass.dtype
    if warm_start is None:
        return zeros(m, dtype)
    if np.shape(warm_start) != (m,):
        raise ShapeError(f"warm_start has shape {np.shape(warm_start)}, expected ({m},)")
    given = in_precision("warm_start", warm_start, dtype)
    return given if law.takes_warm_start else zeros(m, dtype)


def checked_contact_state(model: Model, law: Law, given: Any, dtype: np.dtype) -> Float[Array, "..."] | None:
    """`given` as the contact state of the law: zeros for None, None where the law carries none."""
    shape = law.contact_state_shape(model)
    if shape is None:
        if given is not None:
            raise ShapeError(f"x.contact has shape {np.shape(given)}, but {law.name} carries no state; leave it out")
        return None
    if given is None:
        return zeros(shape, dtype)
    return checked_array("x.contact", given, shape, dtype, f" for {law.name} on model '{model.name}', or None")


def checked_parameters(parameters: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the leaves of a model to differentiate by; `UnknownNameError` for another name."""
    for name in parameters:
        if name not in PARAMETERS:
            raise UnknownNameError(f"no derivative with respect to '{name}'{closest(name, PARAMETERS)}")
    return tuple(parameters)


def checked_outputs(outputs: Any) -> tuple[str, ...]:
    """Names of the outputs of a step to differentiate; `OptionError` for a bare string, `UnknownNameError` for another name."""
    if isinstance(outputs, str):
        raise OptionError(f"outputs is '{outputs}', expected names in a tuple, such as ('{OUTPUTS[0]}',)")
    for name in outputs:
        if name not in OUTPUTS:
            raise UnknownNameError(f"a step has no output '{name}' to differentiate{closest(str(name), OUTPUTS)}")
    return tuple(outputs)


def checked_adjoint(
    mode: GradientMode, size: int, dtype: np.dtype, adjoint: Any, parameters: tuple[str, ...]
) -> Float[Array, " n"] | None:
    """The adjoint (size,) that a gradient mode needs; `OptionError` where it needs none, `DerivativeError` where it lacks."""
    if not mode.needs_adjoint:
        if adjoint is not None:
            needing = [repr(name) for name, kind in MODES.items() if kind.needs_adjoint]
            raise OptionError(f"adjoint is for gradient={' or '.join(needing)}; this system's is '{mode.name}'")
        return None
    if adjoint is None:
        direction = f"adjoint = d loss / d x_next ({size},)"
        raise DerivativeError(
            f"{mode.name} derivatives depend on the loss: give linearize {direction}, or take jax.grad"
        )
    if parameters:
        raise DerivativeError(f"linearize has no {mode.name} parameter derivatives; take jax.grad")
    return checked_array("adjoint", adjoint, (size,), dtype)


@functools.lru_cache(maxsize=64)
def zeros(size: int | tuple[int, ...], dtype: DTypeLike) -> Shaped[Array, "..."]:
    """A concrete array of zeros, made once: left-out arguments neither cost an allocation nor another compilation."""
    with jax.ensure_compile_time_eval():
        return jnp.zeros(size, dtype)
