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
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import OptionError
from trajopt.estimation import flight, gauss_newton, impacts
from trajopt.estimation.checks import checked
from trajopt.estimation.identification import Identification, fixed, summarised
from trajopt.estimation.loss import RobustLoss, checked_loss
from trajopt.estimation.packing import Data, First, Group, cut, guessed_firsts, moved, pack
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
SEARCHED_GROUPS, SEARCHED_WORTH = 4, 0.95  # of `pack`: a thousand predictions of each recording pay for more programs
FAR = 30.0  # deviations of the noise, the size of the first errors from which on short pieces are fitted first
SHORTEST_SAMPLES = 8  # of a piece
SHORT_ITERATIONS = 8  # with short pieces, which only begin the fit
STUCK = 1.5  # times the mean square of those that fit well, from which on a recording is fitted again from another first state
TYPICAL = 0.25  # share of the recordings that fit at least so well
SETTLING, SETTLING_STEP = 40, 5e-3  # steps, of s, in which a first configuration comes down by up to 1 cm on its contacts
PRESSING_STEP = 0.05  # s, in which weight takes away what velocity lifts bodies off their contacts
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
    """Parameters that explain recordings, with intervals of 95 %, first states, and directions that stay undetermined.

    Arguments:
        system: the nominal model. Its `dt` is the step of the simulated motions; with impacts choose at most half the time
            between samples. Half of it should move no value by more than its interval.
        parameters: names, such as "friction" or "mass:LINK" (`trajopt.estimation.parameters`), or `Parameter` objects.
        sensors: one for each channel that is used; `Input` for the channel of the controls.
        loss: of samples or of recordings, a name or a `RobustLoss`.
        method: "gauss-newton", "staged" (with impacts), or "auto": by the predicted motions.
        segment (s): Gauss-Newton cuts recordings into pieces of this length, each with its own first state.
        evaluations: predictions of all searched recordings by CMA-ES; default 150 for each direction.
        bootstrap: number of draws of recordings for the intervals; 0: intervals of the covariance.
        seed: of CMA-ES, the response surface and the bootstrap.

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
    stage determines; the first states; rollouts."""

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

    @property
    def clustered(self) -> bool:
        """Whether the intervals come from how the recordings differ, and none from the stated noise."""
        return all(information.clustered for _, information in self.parts)


@dataclasses.dataclass(frozen=True, eq=False)
class _Work:
    predictor: Predictor
    recordings: tuple[Recording, ...]
    loss: RobustLoss
    seed: int

    @functools.cached_property
    def firsts(self) -> list[First]:
        return guessed_firsts(self.predictor.system, self.recordings, self.predictor.sensors)

    def has_impacts(self) -> tuple[bool, str]:
        """Whether a predicted motion has impacts, and a sentence that says why. First states that nearly touch stand on their
        contacts: a fall by the noise of a pose is no impact."""
        system = self.predictor.system
        if system.smooth:
            return False, "no contact can act"
        few = impacts.chosen(len(self.recordings), LOOKED_AT, self.seed)
        recordings, firsts = [self.recordings[k] for k in few], _on_contacts(system, [self.firsts[k] for k in few])
        (group,) = pack(system, recordings, self.predictor.sensors, firsts, groups=1)
        count = np.asarray(_spikes(self.predictor)(self._start, group.data))
        if not count.any():
            return False, "no impact in the predicted motions"
        return True, f"impacts in {np.mean(count > 0):.0%} of the predicted motions"

    @property
    def _start(self) -> Float[Array, " n"]:
        return jnp.asarray(self.predictor.unknowns.start)

    def smooth(self, segment: float) -> Found:
        """Gauss-Newton throughout. A rollout of a piece counts by its share of a recording."""
        predictor = self.predictor
        sizes, pieces = _cut(self.recordings, predictor, segment)
        firsts = guessed_firsts(predictor.system, pieces, predictor.sensors)
        theta, rollouts, said = predictor.unknowns.start, 0, []
        held = self._standing(firsts, theta)
        problem = self._arrow(pieces, held)
        if problem.mean_square(theta, zeros(predictor, problem.groups)) > FAR**2:
            begun, firsts = self._begun(pieces, segment)
            theta, held = begun.theta, self._standing(firsts, begun.theta)
            problem = self._arrow(pieces, held)
            said.append(f"Gauss-Newton on short pieces: {begun.iterations} iterations")
            rollouts = round(begun.rollouts * len(self.recordings) / len(begun.information.s))
        fit = gauss_newton.solve(problem, theta, zeros(predictor, problem.groups))
        said.append(f"Gauss-Newton: {fit.iterations} iterations")
        for how in ("on", "off", "on"):
            stuck = 0 if predictor.system.smooth else int((_typical(problem, fit) > STUCK).sum())
            if stuck:
                ends = _ends(problem, fit, held)
                other = self._standing(ends, fit.theta) if how == "on" else firsts
                took = fit.rollouts
                problem, fit, held, again = self._unstuck(pieces, ends, other, problem, fit)
                rollouts += round((took + again) * len(self.recordings) / len(pieces))
                said.append(f"{stuck} recordings began again {how} their contacts")
        rollouts += round(fit.rollouts * len(self.recordings) / len(pieces))
        basis = np.eye(fit.theta.size)[:, _free(predictor, fit.theta)]
        information = _along(fit.information, basis).summed(np.repeat(np.arange(len(sizes)), sizes))
        return Found(
            predictor, tuple(pieces), "gauss-newton", fit.theta, ((basis, information),), tuple(held),
            _in_order(problem.groups, fit.locals), None, rollouts, fit.converged, tuple(said), self.loss,
        )  # fmt: skip

    def _begun(self, pieces: Sequence[Recording], segment: float) -> tuple[gauss_newton.Fit, list[First]]:
        """A fit of tenths of the pieces, and the first states of the pieces in it: the shorter a prediction, the closer it is
        to linear in the parameters and in the first state."""
        predictor = self.predictor
        length = max(0.1 * segment, SHORTEST_SAMPLES * _interval(predictor, self.recordings))
        sizes, tenths = _cut(pieces, predictor, length)
        guesses = self._standing(guessed_firsts(predictor.system, tenths, predictor.sensors), predictor.unknowns.start)
        problem = self._arrow(tenths, guesses)
        fit = gauss_newton.solve(problem, predictor.unknowns.start, zeros(predictor, problem.groups), SHORT_ITERATIONS)
        ends = _ends(problem, fit, guesses)
        return fit, [ends[k] for k in np.cumsum(sizes) - sizes]

    def _standing(self, firsts: Sequence[First], theta: Float[np.ndarray, " n"]) -> list[First]:
        """First states on the contacts that they nearly have. Noise lifts them off what they stand on, or puts them into it, and
        Gauss-Newton does not find the way back."""
        system = fixed(self.predictor, theta).system
        return list(firsts) if system.smooth else _on_contacts(system, firsts)

    def _unstuck(
        self, pieces: Sequence[Recording], ends: Sequence[First], other: Sequence[First], problem: gauss_newton.ArrowProblem,
        fit: gauss_newton.Fit,
    ) -> tuple[gauss_newton.ArrowProblem, gauss_newton.Fit, list[First], int]:  # fmt: skip
        """The fit with the better first state of each recording: where it ended, or where it ends from another one."""
        predictor = self.predictor
        trial = self._arrow(pieces, other)
        again = gauss_newton.solve(trial, fit.theta, zeros(predictor, trial.groups), SHORT_ITERATIONS)
        old, new = (
            _in_order(arrow.groups, arrow.costs(end.theta / arrow.scale, end.locals))
            for arrow, end in ((problem, fit), (trial, again))
        )
        chosen = [t if b < a else k for a, b, k, t in zip(old, new, ends, _ends(trial, again, other))]
        final = self._arrow(pieces, chosen)
        theta = again.theta if new.sum() < old.sum() else fit.theta
        return final, gauss_newton.solve(final, theta, zeros(predictor, final.groups)), chosen, again.rollouts

    def _arrow(self, pieces: Sequence[Recording], firsts: Sequence[First]) -> gauss_newton.ArrowProblem:
        groups = pack(self.predictor.system, pieces, self.predictor.sensors, firsts)
        return gauss_newton.ArrowProblem(self.predictor, groups, self.loss, exact=self.predictor.system.smooth)

    def staged(self, evaluations: int | None) -> Found:
        """Free motion, rest, and whole motions."""
        start = flight.before_contact(self.predictor, self.recordings, self.firsts, self.loss)
        known, theta = start.basis, start.theta
        left = _complement(known, theta.size)
        stages, rollouts, parts = list(start.stages), start.rollouts, [(known, start.information)]
        if left.shape[1]:
            predictor = impacts.coarse(self.predictor)
            groups = pack(
                predictor.system, self.recordings, predictor.sensors, start.firsts, groups=SEARCHED_GROUPS, worth=SEARCHED_WORTH
            )  # fmt: skip
            few = impacts.chosen(len(self.recordings), MOST_SEARCHED, self.seed)
            whole = impacts.WholeMotions(predictor, groups, theta / predictor.unknowns.scale, left, self.loss, few)
            end = impacts.search(whole, few, evaluations, self.seed)
            surface = impacts.response_surface(whole, end, few, self.seed)
            theta = whole.theta(surface.z)
            rollouts += end.rollouts + surface.rollouts
            parts.append((left, surface.information))
            stages.append(
                f"whole motions: CMA-ES over {left.shape[1]} directions, loss {end.first_merit:.4g} to {end.merit:.4g}; response "
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


def _typical(problem: gauss_newton.ArrowProblem, fit: gauss_newton.Fit) -> Float[np.ndarray, " R"]:
    """Mean square of the residuals of each recording, in that of those that fit well, or of the stated noise if less."""
    costs = np.concatenate(problem.costs(fit.theta / problem.scale, fit.locals))
    counts = np.concatenate([problem.predictor.present(group).sum(1) for group in problem.groups])
    size = 2.0 * costs / np.maximum(counts, 1.0)
    return size / max(min(float(np.quantile(size, TYPICAL)), 1.0), 1e-300)


def _ends(problem: gauss_newton.ArrowProblem, fit: gauss_newton.Fit, begun: Sequence[First]) -> list[First]:
    """The first states at which a fit ended."""
    system, nv = problem.predictor.system, problem.predictor.system.nv
    return [moved(system, f, d[: 2 * nv]) for f, d in zip(begun, _in_order(problem.groups, fit.locals))]


def _on_contacts(system: System, firsts: Sequence[First]) -> list[First]:
    """First states that stand on what they nearly touch: configurations after a few steps that all begin at rest, and the
    velocities that their weight leaves there, without friction."""
    model = system.model
    slippery = model.replace(
        pair_friction=jnp.zeros_like(model.pair_friction), pair_restitution=jnp.zeros_like(model.pair_restitution)
    )
    settling = dataclasses.replace(system, dt=SETTLING_STEP)
    pressing = dataclasses.replace(system, model=slippery, dt=PRESSING_STEP)

    def settled(q: Array, v: Array) -> tuple[Array, Array]:
        rest, none = jnp.zeros(system.nv), jnp.zeros(system.nu)
        q = jax.lax.fori_loop(0, SETTLING, lambda _, q: settling.step(State(q, rest), none)[0].q, q)
        x, info = pressing.step(State(q, v), none)
        return q, jnp.where((info.contacts.impulse[..., 2] > 0.0).any(), x.v, v)

    q, v = jax.jit(jax.vmap(settled))(*(jnp.asarray(np.stack([getattr(f, n) for f in firsts])) for n in ("q", "v")))
    return [First(*pair) for pair in zip(np.asarray(q), np.asarray(v))]


def _cut(
    recordings: Sequence[Recording], predictor: Predictor, length: float
) -> tuple[Int[np.ndarray, " R"], list[Recording]]:
    """How many pieces of this length, s, each recording has, and the pieces."""
    parts = [cut(recording, predictor.sensors, length) for recording in recordings]
    return np.array([len(part) for part in parts]), [piece for part in parts for piece in part]


def _interval(predictor: Predictor, recordings: Sequence[Recording]) -> float:
    """The time between samples of the fastest sensor, s."""
    measured = {s.channel for s in predictor.measuring}
    return min(c.interval for r in recordings for name, c in r.channels.items() if name in measured)


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
