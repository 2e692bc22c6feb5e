"""Identification: parameters of a model, and the first states of its recordings, with intervals.

Systems without impacts are fitted by Gauss-Newton with every recording's own unknowns eliminated (`gauss_newton.py`). With
impacts the parameters are found in stages, each from what shows it and nothing else: motion before the first contact by
Gauss-Newton (`flight.py`); the height at rest (`flight.py`); what is then left, by whole predicted motions (`impacts.py`). A
direction of the parameters that a stage determines is kept by the later ones. Which of the two ways is taken is decided by the
predicted motions and told with the result.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.system import System
from trajopt.errors import OptionError
from trajopt.estimation import flight, gauss_newton, impacts
from trajopt.estimation.checks import checked
from trajopt.estimation.identification import Identification, summarised
from trajopt.estimation.loss import RobustLoss, checked_loss
from trajopt.estimation.packing import Data, First, Group, cut, guessed_first, pack
from trajopt.estimation.parameter import Parameter
from trajopt.estimation.parameters import unknowns
from trajopt.estimation.prediction import Predictor, zeros
from trajopt.estimation.recording import Recording, check_recordings
from trajopt.estimation.sensors import Sensor, check_sensors
from trajopt.estimation.uncertainty import Information

METHODS = ("auto", "gauss-newton", "staged")
SPIKE = 5.0  # weights, and times the force of the steps beside it, from which on a step is an impact
LOOKED_AT = 20  # recordings in which impacts are looked for
MOST_SEARCHED = 100  # recordings that CMA-ES predicts; the response surface takes all
_log = logging.getLogger(__name__)


def identify(
    system: System,
    recordings: Recording | Sequence[Recording],
    parameters: Sequence[str | Parameter],
    sensors: Sequence[Sensor],
    *,
    loss: str | RobustLoss = "linear",
    method: str = "auto",
    segment: float = 1.0,
    evaluations: int | None = None,
    bootstrap: int = 0,
    seed: int = 0,
) -> Identification:
    """Parameters that explain recordings, with intervals of 95 %, first states, and what the recordings do not determine.

    system: whose `dt` is the step of the simulated motions; with impacts choose at most half the time between samples.
    parameters: names (`trajopt.estimation.parameters`) or `Parameter` objects.
    sensors: what the channels of the recordings measure, `Input` among them where there are controls.
    loss: of samples or of recordings, a name or a `RobustLoss`. method: "gauss-newton" or "staged" in place of deciding.
    segment: s, of which recordings are cut for Gauss-Newton, each piece with a first state of its own: errors of long
    predictions grow. evaluations: predictions of all searched recordings by CMA-ES, by default 150 for each direction.
    bootstrap: draws of recordings for intervals in place of the covariance's. seed: of CMA-ES, the surface and the bootstrap.
    Raises `RecordingError`, `OptionError` or `UnknownNameError`, before anything is compiled.
    """
    if method not in METHODS:
        raise OptionError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    if not isinstance(system, System):
        raise OptionError(f"system is {system!r}; expected a System, such as System(load_model('cube'), dt=1e-3)")
    given = check_recordings(recordings)
    fitted = check_sensors(sensors, system.model)
    robust = checked_loss(loss)
    predictor = Predictor(system, fitted, unknowns(system.model, fitted, parameters))
    if not segment > 0:
        raise OptionError(f"segment is {segment}; expected a positive time in s")
    kept, notes = checked(system, given, fitted)
    work = _Work(predictor, kept, robust, seed)
    if method == "auto":
        staged, why = work.has_impacts()
    else:
        staged, why = method == "staged", "as asked"
    _log.info("method: %s (%s)", "staged" if staged else "gauss-newton", why)
    found = work.staged(evaluations) if staged else work.smooth(segment)
    return summarised(found, why, bootstrap, seed, notes)


@dataclasses.dataclass(frozen=True)
class Found:
    """What a method found. theta; information about it in units of its scales, of `basis` coordinates in the parts that each
    stage determines; the first states; rollouts; chi-squared parts (`residuals`): by channel of each recording."""

    predictor: Predictor
    recordings: tuple[Recording, ...]
    method: str
    theta: Float[np.ndarray, " n"]
    parts: tuple[tuple[Float[np.ndarray, "n k"], Information], ...]
    firsts: tuple[First, ...]
    locals: Float[np.ndarray, "R l"]
    until: Float[np.ndarray, " R"] | None
    rollouts: int
    converged: bool
    stages: tuple[str, ...]
    loss: RobustLoss


@dataclasses.dataclass(frozen=True, eq=False)
class _Work:
    predictor: Predictor
    recordings: tuple[Recording, ...]
    loss: RobustLoss
    seed: int

    @functools.cached_property
    def firsts(self) -> list[First]:
        return [guessed_first(self.predictor.system, r, self.predictor.sensors) for r in self.recordings]

    def has_impacts(self) -> tuple[bool, str]:
        """Whether a predicted motion has impacts, and a sentence that says why."""
        system = self.predictor.system
        if system.smooth:
            return False, "no contact can act"
        few = impacts.chosen(len(self.recordings), LOOKED_AT, self.seed)
        groups = pack(system, [self.recordings[k] for k in few], self.predictor.sensors, [self.firsts[k] for k in few])
        count = np.concatenate([np.asarray(_spikes(self.predictor)(self._start, group.data)) for group in groups])
        if not count.any():
            return False, "no impact in the predicted motions"
        return True, f"impacts in {np.mean(count > 0):.0%} of the predicted motions"

    @property
    def _start(self) -> Float[Array, " n"]:
        return jnp.asarray(self.predictor.unknowns.start)

    def smooth(self, segment: float) -> Found:
        """Gauss-Newton throughout."""
        predictor = self.predictor
        pieces = tuple(piece for recording in self.recordings for piece in cut(recording, predictor.sensors, segment))
        firsts = [guessed_first(predictor.system, piece, predictor.sensors) for piece in pieces]
        groups = pack(predictor.system, pieces, predictor.sensors, firsts)
        problem = gauss_newton.ArrowProblem(predictor, groups, self.loss, exact=predictor.system.smooth)
        fit = gauss_newton.solve(problem, predictor.unknowns.start, zeros(predictor, groups))
        free = _free(predictor, fit.theta)
        locals_ = _in_order(groups, fit.locals)
        basis = np.eye(fit.theta.size)[:, free]
        said = f"Gauss-Newton: {fit.iterations} iterations, {fit.rollouts} rollouts"
        return Found(
            predictor, pieces, "gauss-newton", fit.theta, ((basis, _along(fit.information, basis)),),
            tuple(firsts), locals_, None, fit.rollouts, fit.converged, (said,), self.loss,
        )  # fmt: skip

    def staged(self, evaluations: int | None) -> Found:
        """Free motion, rest, and whole motions."""
        start = flight.before_contact(self.predictor, self.recordings, self.firsts, self.loss)
        known, theta = start.basis, start.theta
        left = _complement(known, theta.size)
        stages, rollouts, parts = list(start.stages), start.rollouts, [(known, start.information)]
        if left.shape[1]:

            def motions(chosen: np.ndarray) -> impacts.WholeMotions:
                groups = pack(
                    self.predictor.system, [self.recordings[k] for k in chosen], self.predictor.sensors,
                    [start.firsts[k] for k in chosen],
                )  # fmt: skip
                origin = theta / self.predictor.unknowns.scale
                quick = impacts.coarse(self.predictor)
                return impacts.WholeMotions(quick, groups, zeros(quick, groups), origin, left, self.loss)

            whole = motions(np.arange(len(self.recordings)))
            few = impacts.chosen(len(self.recordings), MOST_SEARCHED, self.seed)
            searched = whole if len(few) == len(self.recordings) else motions(few)
            end = impacts.search(searched, evaluations, self.seed)
            surface = impacts.response_surface(whole, end, self.seed)
            theta = whole.theta(surface.z)
            rollouts += end.rollouts + surface.rollouts
            parts.append((left, surface.information))
            stages.append(
                f"whole motions: CMA-ES over {left.shape[1]} directions, loss {end.first_merit:.4g} to {end.merit:.4g}; "
                f"response "
                f"surface of {surface.rollouts} rollouts explains {surface.explained:.0%}"
            )
        locals_ = np.zeros((len(self.recordings), self.predictor.n_local))
        return Found(
            self.predictor, self.recordings, "staged", theta, tuple(parts), start.firsts, locals_, start.until, rollouts, True,
            tuple(stages), self.loss,
        )  # fmt: skip


def _spikes(predictor: Predictor) -> Any:
    """(theta, data) -> impacts in the motion of each recording of a group, (R,): steps whose contact force is far above that of
    the steps beside it and above the weight."""
    model = predictor.system.model
    weight = float(jnp.sum(model.mass) * jnp.linalg.norm(model.gravity))

    def one(theta: Array, data: Data) -> Array:
        _, _, _, info = predictor.motion(theta, jnp.zeros(predictor.n_local), data)
        force = jnp.abs(info.contacts.impulse[..., 2]).sum(-1) / jnp.asarray(predictor.system.dt)
        beside = jnp.minimum(force[:-2], force[2:])
        return ((force[1:-1] > SPIKE * weight) & (force[1:-1] > SPIKE * beside)).sum()

    return jax.jit(jax.vmap(one, (None, 0)))


def _free(predictor: Predictor, theta: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Which coordinates lie inside their bounds."""
    unknown = predictor.unknowns
    slack = 1e-6 * unknown.scale
    return (theta > unknown.lower + slack) & (theta < unknown.upper - slack)


def _along(information: Information, basis: Float[np.ndarray, "n k"]) -> Information:
    """The information in coordinates along a basis."""
    return Information(np.einsum("ia,rij,jb->rab", basis, information.S, basis, optimize=True), information.s @ basis)


def _complement(basis: Float[np.ndarray, "n k"], n: int) -> Float[np.ndarray, "n l"]:
    """The directions orthogonal to a basis; coordinates that it leaves alone are directions of their own."""
    alone = np.flatnonzero(np.abs(basis).max(1, initial=0.0) < 1e-9)
    rest = np.setdiff1d(np.arange(n), alone)
    u, s, _ = np.linalg.svd(basis[rest], full_matrices=True)
    mixed = np.zeros((n, rest.size - basis.shape[1]))
    mixed[rest] = u[:, basis.shape[1] :]
    return np.concatenate([np.eye(n)[:, alone], mixed], 1)


def _in_order(groups: Sequence[Group], values: Sequence[np.ndarray]) -> Float[np.ndarray, "R l"]:
    """Values of the recordings of groups, in the order of the recordings."""
    order = np.argsort(np.concatenate([group.index for group in groups]))
    return np.concatenate(list(values))[order]


__all__ = ["Found", "identify"]
