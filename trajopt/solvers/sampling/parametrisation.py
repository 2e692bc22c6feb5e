"""What a sampling solver searches: knots of the controls, free parameters, a free initial state, in one scaled vector.

    z = [knots (K nu), p (np), dx_0 (n, if x_0 is free)] = scale y
    u_t = clip(sum_k W_tk knot_k),    x_0 = start (+) dx_0

W (T, K) says how knots become controls: held over stretches ("piecewise-constant"), or interpolated between equidistant
knots by straight lines ("linear") or a natural cubic spline ("cubic"). With `JointTargets` the knots are those of joint angles
that a law u = clip(kp (q* - q) - kd v) follows (`problems.targets`). `scale` is the initial standard deviation of each component,
so that every search starts from a unit deviation in y. What bounds fix, by equal ends, is no component of y.
"""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from trajopt.dynamics.policies import follow_policy
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import OptionError, ShapeError
from trajopt.problems.ocp import OptimalControlProblem, Trajectory
from trajopt.problems.targets import JointTargets, driven
from trajopt.solvers.sampling.distribution import LARGEST_COVARIANCE

# The arrays of a space; of controls, parameters and initial state.
Data = dict[str, Float[Array, "..."]]
Deviations = tuple[Any, Any, Any]

PARAMETRISATIONS = ("piecewise-constant", "linear", "cubic")
FEWEST_KNOTS, MOST_KNOTS = 10, 20  # by default: few enough to search; almost half as many periods are still a spline of them
STEPS_OF_KNOT = 10  # one for so many steps in between
SHARE_OF_RANGE = 0.25  # default deviation, as a share of the distance between the bounds


@functools.lru_cache(maxsize=16)
def basis(kind: str, steps: int, knots: int) -> Float[np.ndarray, "T K"]:
    """W, the controls of each step from the knots; not to be changed."""
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
    """The search space of one problem: the bounds of y, and the arrays that a compiled program needs, `data`.

    y begins with `knots` rows of `width` numbers: those of the controls that are not fixed, or of the splines of joint targets.
    """

    problem: OptimalControlProblem
    knots: int
    width: int
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
        if "stiffness" in self.data:
            knots = self._fitted_targets(W, np.asarray(motion.xs, float), us)
        else:
            knots = us if len(us) == self.knots else np.linalg.lstsq(W, us, rcond=None)[0]
        rest = np.zeros(self.problem.n if self.problem.free_initial_state else 0)
        z = np.concatenate([knots.ravel(), np.asarray(motion.p, float), rest])
        return self.clip(z[self.data.get("places", np.arange(z.size))] / self.data["scale"])

    def _fitted_targets(self, W: np.ndarray, xs: np.ndarray, us: np.ndarray) -> np.ndarray:
        """The knots whose targets come nearest to those that would have given the controls us along xs."""
        system = self.problem.system
        assert system is not None
        kp, kd = (np.asarray(self.data[key], float) for key in ("stiffness", "damping"))
        dofs, coordinates = driven(system.model)
        q, v = xs[:-1, : system.nq], xs[:-1, system.nq : system.nq + system.nv]
        rows = np.arange(len(dofs))
        away = q[:, coordinates] - np.asarray(self.data["start"], float)[coordinates]
        wanted = away + (us + v @ kd.T) / np.maximum(np.abs(kp[rows, dofs]), 1e-12) * np.sign(kp[rows, dofs])
        return np.linalg.lstsq(W.reshape(-1, W.shape[2]), wanted.ravel(), rcond=None)[0]


def default_knots(steps: int, nu: int) -> int:
    """One for every ten steps, from ten to twenty; beyond ten no more than a whole covariance is learnt of."""
    most = min(MOST_KNOTS, LARGEST_COVARIANCE // max(nu, 1))
    return min(steps, max(FEWEST_KNOTS, min(steps // STEPS_OF_KNOT, most)))


def make_space(
    problem: OptimalControlProblem,
    start: Float[np.ndarray, " nx"],
    kind: str | JointTargets = "cubic",
    knots: int | None = None,
    deviations: Deviations = (None, None, None),
    solver: str = "",
) -> Space:
    """The search space about an initial state.

    deviations: initial standard deviations of controls (scalar or (nu,)), parameters (scalar or (np,)) and initial state
    (scalar or (n,), tangent coordinates); None: a quarter of the distance between the bounds.
    Raises `OptionError` where bounds are missing for that, and `ShapeError`.
    """
    T = problem.horizon
    if isinstance(kind, JointTargets):
        return _target_space(problem, start, kind, deviations, solver)
    count = default_knots(T, problem.nu) if knots is None else knots
    if count > T:
        raise OptionError(f"{solver}: knots is {count}; problem '{problem.name}' has {T} steps, expected 1 to {T}")
    W = basis(kind, T, count)
    limits = _limits(problem, start, deviations, solver)
    return _space_of(problem, solver, count, limits, {"basis": W, "start": np.asarray(start)})


def _space_of(
    problem: OptimalControlProblem,
    solver: str,
    knots: int,
    limits: tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]],
    data: dict[str, np.ndarray],
) -> Space:
    """The space of `knots` rows and what comes after them, by their `_limits`; without what is fixed."""
    scale, lower, upper = (np.concatenate([np.tile(kind[0], knots), *kind[1:]]) for kind in limits)
    moves = lower < upper
    if not moves.any():
        raise OptionError(
            f"{solver}: problem '{problem.name}' has nothing to search: equal bounds fix all of its controls, parameters and "
            "initial state; widen bounds, or roll the motion out"
        )
    width = int(np.sum(limits[1][0] < limits[2][0]))
    data = {key: value.astype(problem.dtype) for key, value in (data | {"scale": scale[moves]}).items()}
    if not moves.all():
        fixed = np.where(moves, 0.0, lower).astype(problem.dtype)
        data |= {"fixed": fixed, "places": np.flatnonzero(moves)}
    return Space(problem, knots, width, lower[moves] / scale[moves], upper[moves] / scale[moves], data)


def _limits(
    problem: OptimalControlProblem, start: Float[np.ndarray, " nx"], deviations: Deviations, solver: str
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """(deviations, lower, upper ends) of a knot of the controls, the parameters and the free initial state."""
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
    # Bounds on a free initial state are rows like those of other states, but for what they fix.
    place = np.asarray(problem.state_lower - start, float) if problem.nx == problem.n else unbounded
    fixed = kinds[2][1] == kinds[2][2]
    ends = [np.where(fixed, place[: fixed.size], end) for end in (-unbounded, unbounded)]
    lower = [problem.control_lower, problem.parameter_lower, ends[0]]
    upper = [problem.control_upper, problem.parameter_upper, ends[1]]
    return scales, lower, upper


def _target_space(
    problem: OptimalControlProblem,
    start: Float[np.ndarray, " nx"],
    targets: JointTargets,
    deviations: Deviations,
    solver: str,
) -> Space:
    """The search space of joint targets. Raises `OptionError` for problems without a `System` that has motors of its joints."""
    system = problem.system
    if system is None or system.contact.contact_state_shape(system.model) is not None:
        raise OptionError(
            f"{solver}: problem '{problem.name}' has no System whose state is [q, v], so there are no joints with targets; "
            "use parametrisation='linear'"
        )
    kp, kd = targets.feedback(system.model)
    assert problem.dt is not None
    W = targets.basis(problem.horizon, problem.nu, problem.dt)
    any_deviation = np.full(problem.nu, 1.0)  # controls' deviations are not used
    limits = _limits(problem, start, (any_deviation, *deviations[1:]), solver)
    moves = problem.control_lower < problem.control_upper
    # Splines, the width of the rows, by whether they move a joint whose control is not fixed.
    splines = np.any(W.reshape(*W.shape[:2], targets.knots, -1)[:, moves], axis=(0, 1, 2))
    own = (np.full(splines.size, targets.deviation), *(np.where(splines, end, 0.0) for end in (-targets.reach, targets.reach)))
    for first, kind in zip(own, limits, strict=True):
        kind[0] = first
    data = {"basis": W, "start": np.asarray(start), "stiffness": kp, "damping": kd}
    space = _space_of(problem, solver, targets.knots, limits, data)
    space.data["coordinates"] = driven(system.model)[1]
    return space


def given_deviation(solver: str, key: str, given: Any, size: int) -> Float[np.ndarray, " n"]:
    """An option of `size` deviations. Raises `ShapeError` and `OptionError`."""
    value = np.asarray(given, float)
    if value.shape not in ((), (size,)):
        raise ShapeError(f"{solver}: {key} has shape {value.shape}; expected a number or ({size},)")
    if not (np.isfinite(value).all() and (value > 0).all()):
        raise OptionError(f"{solver}: {key} is {given}; it must be positive and finite")
    return np.broadcast_to(value, (size,))


def _deviation(
    problem: OptimalControlProblem, solver: str, key: str, lower: np.ndarray, upper: np.ndarray, given: Any
) -> np.ndarray:
    size = lower.size
    if given is not None:
        return given_deviation(solver, key, given, size)
    bounded = np.isfinite(lower) & np.isfinite(upper)
    if not bounded.all():
        what = {"standard_deviation": "controls", "parameter_deviation": "parameters"}.get(key, "free initial state")
        raise OptionError(
            f"{solver}: problem '{problem.name}' does not bound its {what} on both sides, so there is no default for how "
            f"far to search; give {key}=... (a number, or one for each of the {size}), or bounds"
        )
    return np.where(upper > lower, SHARE_OF_RANGE * (upper - lower), 1.0)


def decode(
    problem: OptimalControlProblem, data: Data, y: Float[Array, " d"]
) -> tuple[Float[Array, " nx"], Float[Array, "T nu"], Float[Array, " np"]]:
    """(x_0, us (T, nu), p) of a point; controls between knots and parameters are clipped to their bounds."""
    z = _whole(data, y)
    count = data["basis"].shape[1] * problem.nu
    us = data["basis"] @ z[:count].reshape(-1, problem.nu)
    dtype = us.dtype
    us = jnp.clip(us, problem.control_lower.astype(dtype), problem.control_upper.astype(dtype))
    x0, p = _rest(problem, data, z[count:])
    return x0, us, p


def decode_targets(
    problem: OptimalControlProblem, data: Data, y: Float[Array, " d"]
) -> tuple[Float[Array, " nx"], Float[Array, "T nq"], Float[Array, " np"]]:
    """(x_0, configurations whose driven joints are the targets of each step, p) of a point in a space of joint targets."""
    z, count, system = _whole(data, y), data["basis"].shape[2], problem.system
    assert system is not None
    x0, p = _rest(problem, data, z[count:])
    q = jnp.tile(data["start"][: system.nq], (problem.horizon, 1))
    return x0, q.at[:, data["coordinates"]].add(data["basis"] @ z[:count]), p


def follow_targets(
    problem: OptimalControlProblem, system: System, data: Data, x0: Float[Array, " nx"], qs: Float[Array, "T nq"]
) -> tuple[Float[Array, "T1 nx"], Float[Array, "T nu"], Float[Array, " T"]]:
    """The motion of joints that follow their targets, the controls that they took, and the residual of each step's contact
    solve."""
    gains = -jnp.concatenate([data["stiffness"], data["damping"]], 1)
    return _followed(problem, system, x0, qs, jnp.zeros((problem.horizon, problem.nu), x0.dtype), gains)


def follow_controls(
    problem: OptimalControlProblem, system: System, x0: Float[Array, " nx"], us: Float[Array, "T nu"]
) -> tuple[Float[Array, "T1 nx"], Float[Array, "T nu"], Float[Array, " T"]]:
    """The same of controls within their bounds, without feedback."""
    qs = jnp.broadcast_to(x0[: system.nq], (problem.horizon, system.nq))
    return _followed(problem, system, x0, qs, us, jnp.zeros((problem.nu, 2 * system.nv), x0.dtype))


def _followed(
    problem: OptimalControlProblem,
    system: System,
    x0: Float[Array, " nx"],
    qs: Float[Array, "T nq"],
    us: Float[Array, "T nu"],
    gains: Float[Array, "nu n"],
) -> tuple[Float[Array, "T1 nx"], Float[Array, "T nu"], Float[Array, " T"]]:
    T, nq, dtype = problem.horizon, system.nq, x0.dtype
    bounds = (jnp.asarray(bound, dtype) for bound in (problem.control_lower, problem.control_upper))
    still, every = jnp.zeros((T, system.nv), dtype), jnp.broadcast_to(gains, (T, *gains.shape))
    found, us, residual = follow_policy(system, State(x0[:nq], x0[nq:]), qs, still, us, every, *bounds)
    xs = jnp.concatenate([x0[None], jnp.concatenate([found.q, found.v], 1)])
    return xs, us, residual


def _whole(data: Data, y: Float[Array, " d"]) -> Float[Array, " k"]:
    """z, with what is fixed."""
    z = y * data["scale"]
    return z if "places" not in data else data["fixed"].at[data["places"]].set(z)


def _rest(
    problem: OptimalControlProblem, data: Data, z: Float[Array, " k"]
) -> tuple[Float[Array, " nx"], Float[Array, " np"]]:
    """(x_0, p) of what comes after the knots."""
    dtype = z.dtype
    p = z[: problem.n_p]
    p = jnp.clip(p, problem.parameter_lower.astype(dtype), problem.parameter_upper.astype(dtype))
    x0 = data["start"]
    return (problem.retract(x0, z[problem.n_p :]) if problem.free_initial_state else x0), p
