"""Validation of an `OptimalControlProblem`: arguments in their normal form, or an error that names the culprit."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt.dynamics.arguments import holds_traced
from trajopt.dynamics.start import warn_of_limits, warn_of_overlaps
from trajopt.dynamics.system import State, System
from trajopt.errors import NonFiniteError, OptionError, ShapeError
from trajopt.models.overlaps import deep_overlaps
from trajopt.problems.goals import checked_goals
from trajopt.problems.guesses import QuasiStatic, quasi_static
from trajopt.problems.parts import check_parts
from trajopt.problems.residuals.base import StepOutcome, is_task, normalised
from trajopt.problems.trajectory import TASKS
from trajopt.problems.tree import CONTROL, with_arrays

HOLD = "quasi-static"  # u0 that asks for the controls that hold x0

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
    T = checked_horizon(problem, problem.horizon)
    values: dict[str, Any] = {"horizon": T}
    if not (np.isfinite(problem.tolerance) and problem.tolerance > 0):
        raise OptionError(f"{where}tolerance is {problem.tolerance}; it must be a positive number")
    values["dt"] = _dt(where, problem, system)
    x0 = values["x0"] = _initial_state(where, problem, system, problem.x0)
    values["start_time"] = checked_start_time(problem, x0.dtype, problem.start_time)
    values["tangent_size"] = _tangent_size(where, problem, system, x0)
    values["goals"] = checked_goals(problem, system, x0.dtype, float(values["start_time"]) + T * values["dt"])
    values["u0"] = _controls(
        where, problem, system, T, x0.dtype, problem.u0, holding := _held(problem, system, x0, problem.u0)
    )
    if problem.xs0 is not None:
        values["xs0"] = _array(where, "xs0", problem.xs0, (T + 1, x0.size), x0.dtype)
    p = np.zeros(0) if problem.parameters is None else np.atleast_1d(np.asarray(problem.parameters, float))
    values["parameters"] = _array(where, "parameters", p, (p.size,), x0.dtype)
    if problem.parametrize is not None and (system is None or not p.size):
        raise OptionError(f"{where}parametrize needs a System as dynamics and initial `parameters`")
    if system is not None and p.size and problem.parametrize is None:
        raise OptionError(f"{where}parameters of a System need `parametrize`, (system, p) -> system")
    values |= _parts(where, problem, system)
    if system is not None and "contact" not in problem.meta:
        values["meta"] = {**problem.meta, "contact": type(system.contact).__name__}
    if holding is not None:
        values["meta"] = {**values.get("meta", problem.meta), "guess": holding.described}
    _check_labels(where, problem, nu := values["u0"].shape[1])
    if system is not None:
        limits = np.asarray(system.model.control_lower), np.asarray(system.model.control_upper)
    else:
        limits = np.full(nu, -np.inf), np.full(nu, np.inf)
    values |= _bounds(where, problem, "control", nu, limits)
    values |= _bounds(where, problem, "state", x0.size, (np.full(x0.size, -np.inf), np.full(x0.size, np.inf)))
    values |= _bounds(where, problem, "parameter", p.size, (np.full(p.size, -np.inf), np.full(p.size, np.inf)))
    bounds = [key for key in values if key.endswith(("_lower", "_upper"))]
    values["finite_bounds"] = tuple((key, tuple(np.isfinite(values[key]).tolist())) for key in bounds)
    _refuse_excluded_state(where, problem, x0, values["state_lower"], values["state_upper"])
    values["u0"] = np.clip(values["u0"], values["control_lower"], values["control_upper"]).astype(x0.dtype)
    values["parameters"] = np.clip(values["parameters"], values["parameter_lower"], values["parameter_upper"])
    if system is not None and any(
        np.isfinite(values[key][: system.nq]).any() for key in ("state_lower", "state_upper")
    ):
        _refuse_quaternion_bounds(where, system, values)
    values |= {key: with_arrays(function, x0.dtype) for key in CONTROL.functions if _is_own(function := getattr(problem, key))}
    values |= _tasks(where, problem, system, x0.dtype)
    _check_functions(where, problem, values, system)
    if system is not None and problem.arguments is None:  # not of a copy, which differs in a number or two
        _warn_of_violations(where.rstrip(": "), system, x0[: system.nq].astype(float))
    return values


def _parts(where: str, problem: Any, system: System | None) -> dict[str, Any]:
    """Display and defaults, with what they say where they are left out."""
    check_parts(where, problem)
    defaults, display = problem.defaults, problem.display
    if defaults.gradient is not None:
        problem.check_gradient(defaults.gradient)
    own = "implicit" if system is None else system.gradient
    defaults = dataclasses.replace(
        defaults, solver=defaults.solver or "iLQR", gradient=own if defaults.gradient is None else defaults.gradient
    )
    if display.model is None and system is not None:
        display = dataclasses.replace(display, model=system.model)
    return {"defaults": defaults, "display": display}


def _is_own(function: Any) -> bool:
    """Whether it is a function of the user's own, which may be a pytree."""
    return function is not None and not isinstance(function, System) and not is_task(function)


def _check_labels(where: str, problem: Any, nu: int) -> None:
    for key in ("control_names", "control_units"):
        labels = getattr(problem.display, key)
        if labels and len(labels) != nu:
            raise ShapeError(f"{where}display.{key} has {len(labels)} entries; there are {nu} controls")


def _warn_of_violations(where: str, system: System, q: np.ndarray) -> None:
    """Issue a `StartWarning` where the initial configuration will be pushed out of joint limits or of other shapes."""
    if holds_traced(system):
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


def checked_initial_state(problem: Any, x0: Any) -> Float[np.ndarray, " nx"]:
    """Another initial state of a validated problem, flat. Raises what the construction of the problem raises."""
    where = f"problem '{problem.name}': "
    flat = _initial_state(where, problem, problem.system, x0)
    if flat.shape == problem.x0.shape:
        _refuse_excluded_state(where, problem, flat, problem.state_lower, problem.state_upper)
    return flat


def checked_start_time(problem: Any, dtype: Any, value: Any) -> Float[np.ndarray, ""]:
    """The time of x_0, s."""
    number = np.asarray(value, dtype)
    if number.shape or not np.isfinite(number):
        raise OptionError(f"problem '{problem.name}': start_time is {value!r}; expected a number of seconds")
    return number


def checked_horizon(problem: Any, steps: Any) -> int:
    """A number of steps."""
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
        raise OptionError(f"problem '{problem.name}': horizon is {steps!r}; expected a number of steps of at least 1")
    return int(steps)


def checked_controls(
    problem: Any, u0: Any, x0: Float[np.ndarray, " nx"]
) -> tuple[Float[np.ndarray, "T nu"], dict[str, Any]]:
    """(another guess of the controls of a validated problem, (T, nu), within its bounds, the problem's `meta` with it); x0: the
    initial state, flat, from which guesses by name and the default are made."""
    where = f"problem '{problem.name}': "
    holding = _held(problem, problem.system, x0, u0)
    u0 = _controls(where, problem, problem.system, problem.horizon, problem.dtype, u0, holding)
    meta = {key: value for key, value in problem.meta.items() if key != "guess"}
    meta |= {} if holding is None else {"guess": holding.described}
    return np.clip(u0, problem.control_lower, problem.control_upper).astype(problem.dtype), meta


def checked_guess(problem: Any, xs0: Any) -> Float[np.ndarray, "knots nx"]:
    """Another guess of the states of a validated problem, (T+1, nx)."""
    shape = (problem.horizon + 1, problem.nx)
    return _array(f"problem '{problem.name}': ", "xs0", xs0, shape, problem.dtype)


def _tasks(where: str, problem: Any, system: System | None, dtype: Any) -> dict[str, Any]:
    """The functions that are made of residuals, in their normal form."""
    found = {key: getattr(problem, key) for key in TASKS if is_task(getattr(problem, key))}
    if not found:
        return {}
    if system is None:
        raise OptionError(f"{where}{next(iter(found))} is made of residuals, which need a System as dynamics; give a function")
    return {
        key: normalised(task, system, dtype, f"{where}{key}: ", key.startswith(("terminal", "initial")))
        for key, task in found.items()
    }


def _refuse_excluded_state(where: str, problem: Any, x0: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
    """A given initial state has to be within the bounds on states, which it cannot come back to."""
    excess = np.maximum(lower - x0, x0 - upper)
    if not problem.free_initial_state and excess.max(initial=0.0) > problem.tolerance:
        i = int(np.argmax(excess))
        side, bound = ("lower", lower[i]) if x0[i] < lower[i] else ("upper", upper[i])
        raise OptionError(
            f"{where}x0[{i}] is {x0[i]:g}, beyond state_{side}[{i}] = {bound:g}; widen the bound, change x0, or set "
            "free_initial_state=True"
        )


def _dt(where: str, problem: Any, system: System | None) -> float:
    if system is not None:
        if problem.dt is not None:
            raise OptionError(f"{where}dt is the System's own; leave it out")
        return float(system.dt)
    dt = 1.0 if problem.dt is None else float(problem.dt)
    if not (np.isfinite(dt) and dt > 0):
        raise OptionError(f"{where}dt is {dt}; it must be a positive number of seconds")
    return dt


def _initial_state(where: str, problem: Any, system: System | None, x0: Any) -> np.ndarray:
    if isinstance(x0, State):
        if system is None:
            raise OptionError(f"{where}x0 is a State, but the dynamics are a function; give a flat array")
        parts = [x0.q, x0.v] + ([] if x0.contact is None else [np.ravel(x0.contact)])
        x0 = np.concatenate([np.asarray(part) for part in parts])
    x0 = np.asarray(x0)
    if x0.ndim == 0 and system is None:
        x0 = x0[None]
    _refuse_precision(where, x0, system)
    x0 = x0.astype(np.float32 if x0.dtype == np.float32 else jax.dtypes.canonicalize_dtype(np.float64))
    if x0.ndim != 1 or not x0.size:
        raise ShapeError(f"{where}x0 has shape {x0.shape}; expected a State or a flat array")
    if system is not None and x0.size < system.nq + system.nv:
        raise ShapeError(f"{where}x0 has {x0.size} entries; the System's [q, v] has {system.nq} + {system.nv}")
    if system is not None:
        for start, _ in system.model.topology.ball_starts:
            if not np.any(x0[start : start + 4]):
                raise OptionError(
                    f"{where}x0[{start}:{start + 4}] is a quaternion of zeros, which is no rotation; (1, 0, 0, 0) is upright"
                )
    return _array(where, "x0", x0, x0.shape, x0.dtype)


def _refuse_precision(where: str, x0: np.ndarray, system: System | None) -> None:
    """A state of single precision beside a System of double precision would compute in neither."""
    if system is None or x0.dtype != np.float32:
        return
    numbers = np.dtype(system.model.mass.dtype)
    if numbers != np.float32:
        raise OptionError(
            f"{where}x0 is float32 and the System's numbers are {numbers}; give x0 in {numbers} (what is made before "
            "jax_enable_x64 is set is float32), or make the System in single precision: System(model.to_device(np.float32), ...)"
        )


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


def _held(problem: Any, system: System | None, x0: np.ndarray, u0: Any) -> QuasiStatic | None:
    """Torques that hold x0, where they are asked for, or where nothing is given and they do hold a robot at rest."""
    asked = isinstance(u0, str)
    if system is None or not system.nu or not (asked or u0 is None):
        return None
    q, v = x0[: system.nq], x0[system.nq : system.nq + system.nv]
    if not asked and np.any(v):
        return None
    found = quasi_static(system, State(jnp.asarray(q), jnp.asarray(v)))
    return found if asked or found.robot_held else None


def _controls(
    where: str, problem: Any, system: System | None, T: int, dtype: Any, u0: Any, holding: QuasiStatic | None
) -> np.ndarray:
    if isinstance(u0, str) and u0 != HOLD:
        raise OptionError(f"{where}u0 is {u0!r}; expected an array, a number or '{HOLD}'")
    if u0 is None or isinstance(u0, str):
        if system is None:
            raise OptionError(f"{where}u0 is missing; give an initial guess of the controls, (T, nu) or (nu,)")
        u0 = np.zeros(system.nu) if holding is None else holding.torque
    u0 = np.asarray(u0, dtype)
    if u0.ndim == 0 and (system is None or system.nu == 1):
        u0 = u0[None]
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
    extra: tuple = (as_struct(p),) if p.size else ()
    inputs = {key: (state, as_struct(u), t, *extra) for key in _STAGE}
    inputs |= dict.fromkeys(_TERMINAL + ("initial_residual",), (state, *extra))
    inputs["parameter_residual"] = (as_struct(p),)
    functions = {key: values.get(key, getattr(problem, key)) for key in inputs}
    goals = {f"goal '{name}': residual": goal.residual for name, goal in values["goals"].items()}
    inputs |= dict.fromkeys(goals, (state, *extra))
    for key, fn in (functions | goals).items():
        arguments = inputs[key]
        if fn is None:
            continue
        if is_task(fn):
            assert system is not None
            fn, arguments = _of_task(fn, system, key in _STAGE), (arguments[0], as_struct(u), t)
        out = _evaluated(where, key, fn, arguments)
        scalar = key in _SCALAR
        if getattr(out, "ndim", None) != (0 if scalar else 1) or not jnp.issubdtype(out.dtype, jnp.floating):
            shown = f"shape {out.shape} of {out.dtype}" if isinstance(out, jax.ShapeDtypeStruct) else out
            wanted = "a scalar" if scalar else "a flat array, such as jnp.stack([...]),"
            raise ShapeError(f"{where}{key} returned {shown}; expected {wanted} of floats")
    if system is None:
        out = _evaluated(where, "dynamics", problem.dynamics, (as_struct(x), as_struct(u), t, *extra))
        if getattr(out, "shape", None) != x.shape:
            raise ShapeError(
                f"{where}dynamics returned shape {getattr(out, 'shape', out)}; expected x_next of {x.shape}"
            )


def _of_task(task: Any, system: System, stage: bool) -> Any:
    """A sum of residuals as a function of state, control and time."""

    def call(x: State, u: Any, t: Any) -> Any:
        u = u if stage else None
        return task(x, u, t, StepOutcome(system, x, u))

    return call


def _evaluated(where: str, key: str, fn: Any, arguments: tuple) -> Any:
    """Shape of what `fn` returns; a failure inside it is reported as that of the argument `key`."""
    try:
        return jax.eval_shape(fn, *arguments)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        shown = ", ".join("State" if isinstance(a, State) else str(a.shape) for a in arguments)
        hint, reason = "", str(error)
        if isinstance(error, jax.errors.TracerArrayConversionError):
            hint, reason = "; write it with jax.numpy in place of numpy", reason.splitlines()[0]
        elif isinstance(arguments[0], State) and "'State'" in reason:
            hint = "; a State has the fields q and v"
        raise OptionError(f"{where}{key} cannot be called with arguments of shapes ({shown}): {reason}{hint}") from error
