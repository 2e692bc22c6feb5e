"""Validation of an `OptimalControlProblem`: arguments in their normal form, or an error that names the culprit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trajopt.dynamics.start import warn_of_limits, warn_of_overlaps
from trajopt.dynamics.system import State, System
from trajopt.errors import NonFiniteError, OptionError, ShapeError
from trajopt.models.overlaps import deep_overlaps

_STAGE = ("stage_residual", "stage_cost", "equality", "inequality")
_TERMINAL = ("terminal_residual", "terminal_cost", "terminal_equality", "terminal_inequality")
_SCALAR = ("stage_cost", "terminal_cost")


def normalise(problem: Any) -> dict[str, Any]:
    """The fields of `problem` as arrays of full shape. Raises `ShapeError`, `NonFiniteError`, `OptionError`."""
    where = f"problem '{problem.name}': "
    system = problem.dynamics if isinstance(problem.dynamics, System) else None
    if system is None and not callable(problem.dynamics):
        raise OptionError(
            f"{where}dynamics is {problem.dynamics!r}; expected a System or a function (x, u, t) -> x_next"
        )
    T = problem.horizon
    if isinstance(T, bool) or not isinstance(T, (int, np.integer)) or T < 1:
        raise OptionError(f"{where}horizon is {T!r}; expected a number of steps of at least 1")
    values: dict[str, Any] = {"horizon": int(T)}
    if not (np.isfinite(problem.tolerance) and problem.tolerance > 0):
        raise OptionError(f"{where}tolerance is {problem.tolerance}; it must be a positive number")
    values["dt"] = _dt(where, problem, system)
    x0 = values["x0"] = _initial_state(where, problem, system)
    dtype = x0.dtype
    values["tangent_size"] = _tangent_size(where, problem, system, x0)
    values["u0"] = _controls(where, problem, system, int(T), dtype)
    if problem.xs0 is not None:
        values["xs0"] = _array(where, "xs0", problem.xs0, (T + 1, x0.size), dtype)
    p = np.zeros(0) if problem.parameters is None else np.atleast_1d(np.asarray(problem.parameters, float))
    values["parameters"] = _array(where, "parameters", p, (p.size,), dtype)
    if problem.parametrize is not None and (system is None or not p.size):
        raise OptionError(f"{where}parametrize needs a System as dynamics and initial `parameters`")
    if system is not None and p.size and problem.parametrize is None:
        raise OptionError(f"{where}parameters of a System need `parametrize`, (system, p) -> system")
    if problem.gradient is None:
        values["gradient"] = "implicit" if system is None else system.gradient
    else:
        problem.check_gradient(problem.gradient)
    if problem.model is None and system is not None:
        values["model"] = system.model
    if system is not None and "contact" not in problem.meta:
        values["meta"] = {**problem.meta, "contact": type(system.contact).__name__}
    nu = values["u0"].shape[1]
    for key in ("control_names", "control_units"):
        if getattr(problem, key) and len(getattr(problem, key)) != nu:
            raise ShapeError(f"{where}{key} has {len(getattr(problem, key))} entries; there are {nu} controls")
    if system is not None:
        limits = np.asarray(system.model.control_lower), np.asarray(system.model.control_upper)
    else:
        limits = np.full(nu, -np.inf), np.full(nu, np.inf)
    values |= _bounds(where, problem, "control", nu, limits)
    values |= _bounds(where, problem, "state", x0.size, (np.full(x0.size, -np.inf), np.full(x0.size, np.inf)))
    values |= _bounds(where, problem, "parameter", p.size, (np.full(p.size, -np.inf), np.full(p.size, np.inf)))
    values["u0"] = np.clip(values["u0"], values["control_lower"], values["control_upper"]).astype(dtype)
    values["parameters"] = np.clip(values["parameters"], values["parameter_lower"], values["parameter_upper"])
    if system is not None and any(
        np.isfinite(values[key][: system.nq]).any() for key in ("state_lower", "state_upper")
    ):
        _refuse_quaternion_bounds(where, system, values)
    _check_functions(where, problem, values, system)
    if system is not None and problem.arguments is None:  # not of a copy, which differs in a number or two
        _warn_of_violations(where.rstrip(": "), system, x0[: system.nq].astype(float))
    return values


def _warn_of_violations(where: str, system: System, q: np.ndarray) -> None:
    """Issue a `StartWarning` where the initial configuration will be pushed out of joint limits or of other shapes."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(system)):
        return
    law, dt, model = system.contact, float(system.dt), jax.tree.map(np.asarray, system.model)
    push = law.push_out(dt)
    if push is None:
        return
    warn_of_limits(where, model, law, dt, q, stacklevel=7)
    if law.acts:
        names = [shape.name for shape in model.topology.shapes]
        pairs = [(names[i], names[j]) for i, j in deep_overlaps(model, q, push.depth)]
        warn_of_overlaps(where, push, pairs, stacklevel=7)


def _dt(where: str, problem: Any, system: System | None) -> float:
    if system is not None:
        if problem.dt is not None:
            raise OptionError(f"{where}dt is the System's own; leave it out")
        return float(system.dt)
    dt = 1.0 if problem.dt is None else float(problem.dt)
    if not (np.isfinite(dt) and dt > 0):
        raise OptionError(f"{where}dt is {dt}; it must be a positive number of seconds")
    return dt


def _initial_state(where: str, problem: Any, system: System | None) -> np.ndarray:
    x0 = problem.x0
    if isinstance(x0, State):
        if system is None:
            raise OptionError(f"{where}x0 is a State, but the dynamics are a function; give a flat array")
        parts = [x0.q, x0.v] + ([] if x0.contact is None else [np.ravel(x0.contact)])
        x0 = np.concatenate([np.asarray(part) for part in parts])
    x0 = np.asarray(x0)
    x0 = x0.astype(np.float32 if x0.dtype == np.float32 else jax.dtypes.canonicalize_dtype(np.float64))
    if x0.ndim != 1 or not x0.size:
        raise ShapeError(f"{where}x0 has shape {x0.shape}; expected a State or a flat array")
    if system is not None and x0.size < system.nq + system.nv:
        raise ShapeError(f"{where}x0 has {x0.size} entries; the System's [q, v] has {system.nq} + {system.nv}")
    return _array(where, "x0", x0, x0.shape, x0.dtype)


def _tangent_size(where: str, problem: Any, system: System | None, x0: np.ndarray) -> int:
    manifold = ("integrate", "difference", "tangent_size")
    given = [key for key in manifold if getattr(problem, key) is not None]
    if system is not None:
        if given:
            raise OptionError(f"{where}{given[0]} is for user-written dynamics; a System knows its own manifold")
        return x0.size - system.nq + system.nv
    if given and len(given) < 3:
        missing = next(key for key in manifold if key not in given)
        raise OptionError(
            f"{where}a manifold of states needs integrate, difference and tangent_size; {missing} is missing"
        )
    return int(problem.tangent_size) if given else x0.size


def _controls(where: str, problem: Any, system: System | None, T: int, dtype: Any) -> np.ndarray:
    u0 = problem.u0
    if u0 is None:
        if system is None:
            raise OptionError(f"{where}u0 is missing; give an initial guess of the controls, (T, nu) or (nu,)")
        u0 = np.zeros(system.nu)
    u0 = np.asarray(u0, dtype)
    if u0.ndim == 1:
        u0 = np.tile(u0, (T, 1))
    nu = u0.shape[-1] if system is None else system.nu
    return _array(where, "u0", u0, (T, nu), dtype)


def _bounds(where: str, problem: Any, kind: str, size: int, defaults: tuple) -> dict[str, np.ndarray]:
    found = {}
    for side, default in zip(("lower", "upper"), defaults, strict=True):
        key = f"{kind}_{side}"
        value = getattr(problem, key)
        value = default if value is None else np.asarray(value, float)
        value = np.full(size, float(value)) if np.ndim(value) == 0 else np.asarray(value, float)
        if value.shape != (size,):
            raise ShapeError(f"{where}{key} has shape {value.shape}; expected a number or ({size},)")
        if np.isnan(value).any():
            raise NonFiniteError(
                f"{where}{key}[{int(np.argmax(np.isnan(value)))}] is nan; use -inf or inf for no bound"
            )
        found[key] = value
    lower, upper = found[f"{kind}_lower"], found[f"{kind}_upper"]
    if np.any(lower > upper):
        i = int(np.argmax(lower > upper))
        raise OptionError(
            f"{where}infeasible bounds: {kind}_lower[{i}] = {lower[i]} is above {kind}_upper[{i}] = {upper[i]}"
        )
    return found


def _refuse_quaternion_bounds(where: str, system: System, values: dict[str, Any]) -> None:
    for start, _ in system.model.topology.ball_starts:
        for key in ("state_lower", "state_upper"):
            if np.isfinite(values[key][start : start + 4]).any():
                raise OptionError(f"{where}{key} bounds a quaternion; bound a function of it by `inequality` instead")


def _array(where: str, key: str, value: Any, shape: tuple, dtype: Any) -> np.ndarray:
    array = np.asarray(value, dtype)
    if array.shape != tuple(shape):
        raise ShapeError(f"{where}{key} has shape {array.shape}; expected {tuple(shape)}")
    if not np.isfinite(array).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise NonFiniteError(f"{where}{key}[{', '.join(map(str, index))}] is {array[index]}; it must be finite")
    return array


def _check_functions(where: str, problem: Any, values: dict[str, Any], system: System | None) -> None:
    if not any(getattr(problem, key) is not None for key in _STAGE[:2] + _TERMINAL[:2]):
        raise OptionError(f"{where}there is no cost; give a stage or terminal residual or cost")
    x, u, p = values["x0"], values["u0"][0], values["parameters"]
    as_struct = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)  # noqa: E731
    t = jax.ShapeDtypeStruct((), x.dtype)
    state: Any = as_struct(x)
    if system is not None:
        nq, nv = system.nq, system.nv
        parts: list[Any] = [as_struct(x[:nq]), as_struct(x[nq : nq + nv])]
        if x.size > nq + nv:
            parts.append(as_struct(x[nq + nv :]))
        state = State(*parts)
    extra = (as_struct(p),) if p.size else ()
    inputs = {key: (state, as_struct(u), t, *extra) for key in _STAGE}
    inputs |= dict.fromkeys(_TERMINAL + ("initial_residual",), (state, *extra))
    inputs["parameter_residual"] = (as_struct(p),)
    for key, arguments in inputs.items():
        fn = getattr(problem, key)
        if fn is None:
            continue
        out = _evaluated(where, key, fn, arguments)
        scalar = key in _SCALAR
        if getattr(out, "ndim", None) != (0 if scalar else 1) or not jnp.issubdtype(out.dtype, jnp.floating):
            raise ShapeError(
                f"{where}{key} returned {out}; expected a {'scalar' if scalar else 'flat array'} of floats"
            )
    if system is None:
        out = _evaluated(where, "dynamics", problem.dynamics, (as_struct(x), as_struct(u), t, *extra))
        if getattr(out, "shape", None) != x.shape:
            raise ShapeError(
                f"{where}dynamics returned shape {getattr(out, 'shape', out)}; expected x_next of {x.shape}"
            )


def _evaluated(where: str, key: str, fn: Any, arguments: tuple) -> Any:
    """Shape of what `fn` returns; a failure inside it is reported as that of the argument `key`."""
    try:
        return jax.eval_shape(fn, *arguments)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        shown = ", ".join("State" if isinstance(a, State) else str(a.shape) for a in arguments)
        raise OptionError(f"{where}{key} cannot be called with arguments of shapes ({shown}): {error}") from error
