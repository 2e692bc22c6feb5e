"""What a sampling solver searches: knots of the controls, free parameters, a free initial state, in one scaled vector.

    z = [knots (K nu), p (np), dx_0 (n, if x_0 is free)] = scale y
    u_t = clip(sum_k W_tk knot_k),    x_0 = start (+) dx_0

W (T, K) says how knots become controls: held over stretches ("piecewise-constant"), or interpolated between equidistant
knots by straight lines ("linear") or a natural cubic spline ("cubic"). `scale` is the initial standard deviation of each
component, so that every search starts from a unit deviation in y.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from trajopt.errors import OptionError, ShapeError
from trajopt.problems.ocp import OptimalControlProblem, Trajectory

PARAMETRISATIONS = ("piecewise-constant", "linear", "cubic")
SHARE_OF_RANGE = 0.25  # default deviation, as a share of the distance between the bounds


def basis(kind: str, steps: int, knots: int) -> Float[np.ndarray, "T K"]:
    """W, the controls of each step from the knots."""
    if kind == "piecewise-constant":
        return np.eye(knots)[np.arange(steps) * knots // steps]
    at, times = np.linspace(0.0, steps - 1.0, knots), np.arange(float(steps))
    if knots == 1:
        return np.ones((steps, 1))
    if kind == "linear":
        return np.stack([np.interp(times, at, row) for row in np.eye(knots)], 1)
    return scipy.interpolate.CubicSpline(at, np.eye(knots), bc_type="natural")(times)


@dataclasses.dataclass(frozen=True)
class Space:
    """The search space of one problem: the bounds of y, and the arrays that a compiled program needs, `data`."""

    problem: OptimalControlProblem
    knots: int
    lower: np.ndarray
    upper: np.ndarray
    data: dict[str, np.ndarray]

    @property
    def size(self) -> int:
        """Number of components of y."""
        return self.lower.size

    def clip(self, y: Float[np.ndarray, "*b d"]) -> Float[np.ndarray, "*b d"]:
        """y with controls and parameters in their bounds."""
        return np.clip(y, self.lower, self.upper)

    def encode(self, motion: Trajectory) -> Float[np.ndarray, " d"]:
        """y of a motion from the start; its controls are fitted by the knots in the least-squares sense."""
        W, us = np.asarray(self.data["basis"], float), np.asarray(motion.us, float)
        knots = us if len(us) == self.knots else np.linalg.lstsq(W, us, rcond=None)[0]
        rest = np.zeros(self.size - knots.size - self.problem.n_p)
        return self.clip(np.concatenate([knots.ravel(), np.asarray(motion.p, float), rest]) / self.data["scale"])


def make_space(
    problem: OptimalControlProblem,
    start: Float[np.ndarray, " nx"],
    kind: str = "piecewise-constant",
    knots: int | None = None,
    deviations: tuple[Any, Any, Any] = (None, None, None),
    solver: str = "",
) -> Space:
    """The search space about an initial state.

    deviations: initial standard deviations of controls (scalar or (nu,)), parameters (scalar or (np,)) and initial state
    (scalar or (n,), tangent coordinates); None: a quarter of the distance between the bounds.
    Raises `OptionError` where bounds are missing for that, and `ShapeError`.
    """
    T = problem.horizon
    count = T if knots is None else knots
    if count > T:
        raise OptionError(f"{solver}: knots is {count}; problem '{problem.name}' has {T} steps, expected 1 to {T}")
    W = basis(kind, T, count)
    unbounded = np.full(problem.n if problem.free_initial_state else 0, np.inf)
    kinds = [
        ("standard_deviation", problem.control_lower, problem.control_upper),
        ("parameter_deviation", problem.parameter_lower, problem.parameter_upper),
        ("initial_state_deviation", -unbounded, unbounded),
    ]
    if problem.free_initial_state and problem.nx == problem.n:
        kinds[2] = ("initial_state_deviation", problem.state_lower, problem.state_upper)
    found = zip(kinds, deviations, strict=True)
    scales = [_deviation(problem, solver, *kind, given) for kind, given in found]
    scale = np.concatenate([np.tile(scales[0], count), *scales[1:]])
    lower = np.concatenate([np.tile(problem.control_lower, count), problem.parameter_lower, -unbounded])
    upper = np.concatenate([np.tile(problem.control_upper, count), problem.parameter_upper, unbounded])
    data = {"basis": W, "scale": scale, "start": np.asarray(start)}
    data = {key: value.astype(problem.dtype) for key, value in data.items()}
    return Space(problem, count, lower / scale, upper / scale, data)


def _deviation(
    problem: OptimalControlProblem, solver: str, key: str, lower: np.ndarray, upper: np.ndarray, given: Any
) -> np.ndarray:
    size = lower.size
    if given is not None:
        value = np.asarray(given, float)
        if value.shape not in ((), (size,)):
            raise ShapeError(f"{solver}: {key} has shape {value.shape}; expected a number or ({size},)")
        if not (np.isfinite(value).all() and (value > 0).all()):
            raise OptionError(f"{solver}: {key} is {given}; it must be positive and finite")
        return np.broadcast_to(value, (size,))
    bounded = np.isfinite(lower) & np.isfinite(upper) & (upper > lower)
    if not bounded.all():
        what = {"standard_deviation": "controls", "parameter_deviation": "parameters"}.get(key, "free initial state")
        raise OptionError(
            f"{solver}: problem '{problem.name}' does not bound its {what} on both sides, so there is no default for how "
            f"far to search; give {key}=... (a number, or one for each of the {size}), or bounds"
        )
    return SHARE_OF_RANGE * (upper - lower)


def decode(
    problem: OptimalControlProblem, data: dict[str, Float[Array, "..."]], y: Float[Array, " d"]
) -> tuple[Float[Array, " nx"], Float[Array, "T nu"], Float[Array, " np"]]:
    """(x_0, us (T, nu), p) of a point; controls between knots and parameters are clipped to their bounds."""
    z = y * data["scale"]
    count = data["basis"].shape[1] * problem.nu
    us = data["basis"] @ z[:count].reshape(-1, problem.nu)
    dtype = us.dtype
    us = jnp.clip(us, problem.control_lower.astype(dtype), problem.control_upper.astype(dtype))
    p = z[count : count + problem.n_p]
    p = jnp.clip(p, problem.parameter_lower.astype(dtype), problem.parameter_upper.astype(dtype))
    x0 = data["start"]
    return (problem.retract(x0, z[count + problem.n_p :]) if problem.free_initial_state else x0), us, p
