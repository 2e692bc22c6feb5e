"""The stages of smoothed contact: the problem of a stage, the values of rho, and what a stage costs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.laws.relaxed import least_rho
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model
from trajopt.dynamics.policies import follow_policy
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.system import State, System
from trajopt.errors import OptionError
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.trajectory import Trajectory

LAST_RHO = 1e-4  # J, or a tenth of the first one where that is less
LEAST_RHO = 1e-12  # J: below it contact problems are not solved to their tolerance in double precision
# Of the first rho, one after the other while a goal is missed. Bodies at rest on a floor float at a small rho and so ask for a
# small first one; what is to be grasped is not felt until rho is ten to three hundred times that.
SHARES = 1.0, 1 / 3, 0.1, 10.0, 100.0, 30.0, 300.0
LARGEST_RHO = 1.0  # J, of those that are larger than the first one
MOVES = 10.0  # gaps by which the first rho moves the contacts of the guess over the horizon; good values move them by 3 to 16
FIRST_RHOS = 10.0 ** np.arange(0.5, -6.1, -0.5)  # J, of which the first one is taken
TOUCHING = 1e-3  # m: gaps of contacts that are nearly made count as this much


class Counted:
    """What a stage's own oracle has cost goes into the account of the run."""

    def __init__(self, oracle: OptimalControlOracle, stage: OptimalControlOracle) -> None:
        self.oracle, self.stage = oracle, stage
        self.evaluations, self.compile_time_s = stage.evaluations, stage.compile_time_s

    def take(self) -> None:
        """Add what has come since the last time."""
        self.oracle.evaluations += self.stage.evaluations - self.evaluations
        self.oracle.compile_time_s += self.stage.compile_time_s - self.compile_time_s
        self.evaluations, self.compile_time_s = self.stage.evaluations, self.stage.compile_time_s


def schedules(smoothing: Any, oracle: OptimalControlOracle, guess: Trajectory) -> list[tuple[float, ...]]:
    """rho of each stage, J: one schedule after the other, the later ones where a goal is still missed."""
    if smoothing != "auto":
        return [smoothing]
    assert oracle.problem.system is not None
    least = 1.01 * least_rho(oracle.problem.system.model)  # more than the rounding of rho itself
    first, shares = first_rho(oracle, guess, least), SHARES if oracle.problem.goals else SHARES[:1]
    return [falling(share * first, least) for share in shares if least < share * first <= max(first, LARGEST_RHO)]


def falling(first: float, least: float) -> tuple[float, ...]:
    """rho of each stage, J: decades from the first one, none below `least`."""
    last = max(min(LAST_RHO, 0.1 * first), least)
    return (*(rho for rho in first / 10.0 ** np.arange(9) if rho > 1.01 * last), last)


def checked_schedule(smoothing: Any) -> tuple[float, ...]:
    """Raises `OptionError` unless rho falls and is above rounding."""
    what = f"smoothing is {smoothing!r}; expected 'auto', None, or values of rho in J that fall, such as [0.1, 0.01, 1e-3]"
    what += f", to at least {LEAST_RHO:g}"
    if not isinstance(smoothing, Sequence | np.ndarray) or isinstance(smoothing, str) or not len(smoothing):
        raise OptionError(what)
    try:
        values = np.asarray(smoothing, float)
    except (TypeError, ValueError):
        raise OptionError(what) from None
    if values.ndim != 1 or not (np.isfinite(values).all() and (values >= LEAST_RHO).all() and (np.diff(values) < 0).all()):
        raise OptionError(what)
    return tuple(values.tolist())


def smoothed_problem(problem: OptimalControlProblem, rho: float) -> OptimalControlProblem:
    """The problem with its contact relaxed by rho, J."""
    system = problem.system
    assert system is not None
    relaxed = system.contact.relaxation()
    assert relaxed is not None
    smooth = dataclasses.replace(system, contact=relaxed, rho=rho, gradient="implicit")
    return dataclasses.replace(problem, dynamics=smooth, validate=False)


def followed(oracle: OptimalControlOracle, motion: Trajectory, gains: Float[Any, "T nu n"]) -> Float[np.ndarray, "T nu"]:
    """The controls with which the problem's system follows the motion of another rho by feedback."""
    problem = oracle.problem
    bounds = problem.control_lower, problem.control_upper
    oracle.evaluations += 1
    return np.asarray(oracle.call(_followed, problem.system, bounds, motion, gains, effort=Effort.QUICK))


def _followed(system: System, bounds: tuple[Array, Array], motion: Trajectory, gains: Array) -> Float[Array, "T nu"]:
    q, v = motion.xs[:, : system.nq], motion.xs[:, system.nq :]
    return follow_policy(system, State(q[0], v[0]), q[:-1], v[:-1], motion.us, gains, *bounds)[1]


def first_rho(oracle: OptimalControlOracle, guess: Trajectory, least: float) -> float:
    """The rho above `least`, J, whose forces move the contacts of the guess by about `MOVES` gaps over the horizon.

    By dimension it is a force times a gap; the force that matters is the one that moves bodies within the time there is. What
    moves without it, such as an arm that falls, does not count.
    """
    problem, system = oracle.problem, oracle.problem.system
    assert system is not None
    shares, rhos = [], FIRST_RHOS[: max(1, np.count_nonzero(FIRST_RHOS > least))]

    def distances(of: OptimalControlOracle) -> np.ndarray:
        xs = of.rollout(guess.xs[0], guess.us, guess.p).xs
        return np.asarray(oracle.call(_distances, system.model, xs[:, : system.nq], effort=Effort.QUICK))

    rigid = distances(oracle)
    gaps = np.maximum(rigid[0], TOUCHING)
    for rho in rhos:
        relaxed = smoothed_problem(problem, float(rho)).compile("implicit")
        counted = Counted(oracle, relaxed)
        path = np.abs(np.diff(distances(relaxed) - rigid, axis=0)).sum(0)
        counted.take()
        shares.append(float(np.nan_to_num(np.max(path / gaps), nan=np.inf)))
    return float(rhos[np.argmin(np.abs(np.log(np.clip(shares, 1e-12, 1e12) / MOVES)))])


def _distances(model: Model, qs: Float[Array, "T nq"]) -> Float[Array, "T k"]:
    """Of all contacts that may be, m, at each configuration."""
    return jax.lax.map(lambda q: collide(model, kinematics(model, q)).distance, qs)
