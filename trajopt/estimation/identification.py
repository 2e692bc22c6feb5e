"""The result of `identify`: values with intervals, what is not determined, how well the sensors' noise explains the errors,
predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.model import Model
from trajopt.dynamics.system import System
from trajopt.errors import OptionError
from trajopt.estimation import flight, gauss_newton
from trajopt.estimation.packing import Data, First, guessed_firsts, pack
from trajopt.estimation.prediction import Predictor, zeros
from trajopt.estimation.recording import Recording, check_recordings
from trajopt.estimation.sensors import Sensor
from trajopt.estimation.uncertainty import hidden, named, quantile, simple_directions

if TYPE_CHECKING:
    from trajopt.estimation.identify import Found

CHI_SQUARED_LIMIT = 2.0  # factor by which a mean square may differ from one, either way
STARTS = ("recorded", "estimated")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted channels of one recording, at its time stamps.

    Attributes:
        name: of the recording.
        rows: by channel, (n, w).
        errors: measured minus predicted by channel, (n, rows), NaN where an entry is missing.
    """

    name: str
    rows: Mapping[str, Float[np.ndarray, "n w"]]
    errors: Mapping[str, Float[np.ndarray, "n rows"]]


@dataclasses.dataclass(frozen=True)
class Identification:
    """What recordings say about a model.

    Attributes:
        labels: names and units of the values.
        values: estimates, (k,).
        deviations: standard deviations, (k,), NaN where the recordings do not determine a value or it lies at a bound.
        intervals: of 95 %, (k, 2).
        covariance: of the values, (k, k).
        method: "gauss-newton" or "staged".
        reason: why this method was taken.
        undetermined: directions that the recordings do not determine, in words.
        at_bound: names of parameters that ended at a bound.
        chi_squared: mean square of the residuals in deviations of the noise, 1 when the noise is as stated, by channel; of the
            samples that the fit explains sample by sample: all of them, or with impacts those before the first contact.
        recording_chi_squared: the same by recording.
        outliers: recordings with little weight under the loss, or an error far above that of the others.
        warnings: sentences about what may be wrong.
        stages: what was done, in sentences.
        rollouts: simulated motions of a recording that it took.
        converged: whether the search ended by itself.
        theta: the parameters in the coordinates of the search, (n,).
        found: what the method found, as predictions and reports take it.
    """

    labels: tuple[str, ...]
    values: Float[np.ndarray, " k"]
    deviations: Float[np.ndarray, " k"]
    intervals: Float[np.ndarray, "k 2"]
    covariance: Float[np.ndarray, "k k"]
    method: str
    reason: str
    undetermined: tuple[str, ...]
    at_bound: tuple[str, ...]
    chi_squared: Mapping[str, float]
    recording_chi_squared: Mapping[str, float]
    outliers: tuple[str, ...]
    warnings: tuple[str, ...]
    stages: tuple[str, ...]
    rollouts: int
    converged: bool
    theta: Float[np.ndarray, " n"]
    found: Found = dataclasses.field(repr=False)

    def __getitem__(self, label: str) -> float:
        """The value whose label is, or begins with, `label`."""
        for name, value in zip(self.labels, self.values):
            if name == label or name.split(",")[0] == label:
                return float(value)
        raise OptionError(f"there is no value '{label}'; labels are {', '.join(self.labels)}")

    @property
    def system(self) -> System:
        """The system with the identified model."""
        model, _ = self.found.predictor.unknowns.applied(self.found.predictor.system.model, jnp.asarray(self.theta))
        return dataclasses.replace(self.found.predictor.system, model=model)

    @property
    def model(self) -> Model:
        """The identified model."""
        return self.system.model

    @property
    def sensors(self) -> tuple[Sensor, ...]:
        """The sensors with the identified delays, gains, biases and mountings."""
        predictor = self.found.predictor
        _, constants = predictor.unknowns.applied(predictor.system.model, jnp.asarray(self.theta))
        made = []
        for sensor in predictor.sensors:
            named_fields = {field.name for field in dataclasses.fields(sensor)}
            changed: dict[str, Any] = {}
            for name, value in constants[sensor.channel].items():
                array = np.asarray(value, float)
                if name in named_fields:
                    changed[name] = float(array) if array.ndim == 0 else tuple(float(x) for x in array)
            made.append(dataclasses.replace(sensor, **changed))
        return tuple(made)

    @property
    def correlation(self) -> Float[np.ndarray, "k k"]:
        """Correlation of the estimates."""
        sd = np.sqrt(np.diag(self.covariance))
        return self.covariance / np.where(np.outer(sd, sd) > 0, np.outer(sd, sd), np.inf)

    def predict(
        self, recordings: Recording | Sequence[Recording], start: str = "recorded", *, nominal: bool = False
    ) -> list[Prediction]:
        """Motions of other recordings, from their first states to their ends.

        start: "recorded", the state that the first rows of the channels give as they are; "estimated", that which the motion
        before the first contact gives (without impacts, the whole recording). nominal: with the parameters before the fit.
        """
        if start not in STARTS:
            raise OptionError(f"start is {start!r}; expected 'recorded' or 'estimated'")
        given = check_recordings(recordings)
        theta = self.found.predictor.unknowns.start if nominal else self.theta
        firsts, locals_ = self._firsts(given, start, theta)
        return predictions(self.found.predictor, given, firsts, locals_, theta)

    def _firsts(
        self, recordings: tuple[Recording, ...], start: str, theta: np.ndarray
    ) -> tuple[list[First], np.ndarray]:
        predictor = self.found.predictor
        guesses = guessed_firsts(predictor.system, recordings, predictor.sensors)
        known = fixed(predictor, theta)
        if start == "recorded":
            return guesses, np.zeros((len(recordings), predictor.n_local))
        if self.method == "staged":
            begun = flight.before_contact(known, recordings, guesses, self.found.loss)
            return list(begun.firsts), np.zeros((len(recordings), predictor.n_local))
        groups = pack(predictor.system, recordings, predictor.sensors, guesses)
        problem = gauss_newton.ArrowProblem(known, groups, self.found.loss, exact=predictor.system.smooth)
        fit = gauss_newton.solve(problem, known.unknowns.start, zeros(known, groups))
        order = np.argsort(np.concatenate([group.index for group in groups]))
        return guesses, np.concatenate(fit.locals)[order]

    def describe(self) -> str:
        """Values with their intervals, and everything that a reader should know about them."""
        width = max(len(label) for label in self.labels)
        n, pieces = len(self.found.parts[0][1].s), len(self.found.recordings)
        used = f"{n} recording{'s' * (n > 1)}" + (f" in {pieces} pieces" if pieces > n else "")
        lines = [f"{self.method} ({self.reason}); {used}, {self.rollouts} rollouts"]
        lines += [f"  {stage}" for stage in self.stages]
        for label, value, (low, high) in zip(self.labels, self.values, self.intervals):
            interval = "no interval" if np.isnan(low) else f"95 % from {low:.5g} to {high:.5g}"
            lines.append(f"{label:<{width}}  {value: .6g}  {interval}")
        lines += [
            f"mean square of residuals of '{channel}': {value:.3g}" for channel, value in self.chi_squared.items()
        ]
        lines += [f"not determined: {text}" for text in self.undetermined]
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)


def fixed(predictor: Predictor, theta: Float[np.ndarray, " n"]) -> Predictor:
    """The predictor with these parameters and none that is unknown."""
    unknown = predictor.unknowns
    model, constants = unknown.applied(predictor.system.model, jnp.asarray(theta))
    return dataclasses.replace(
        predictor,
        system=dataclasses.replace(predictor.system, model=model),
        unknowns=dataclasses.replace(unknown, parameters=(), base=constants),
    )


def predictions(
    predictor: Predictor,
    recordings: Sequence[Recording],
    firsts: Sequence[First],
    locals_: Float[np.ndarray, "R l"],
    theta: Float[np.ndarray, " n"],
) -> list[Prediction]:
    """Predictions from given first states."""

    def both(theta: Array, local: Array, data: Data) -> tuple[dict, dict]:
        return predictor.rows(theta, local, data), predictor.errors(theta, local, data)

    program = jax.jit(jax.vmap(both, (None, 0, 0)))
    made: dict[int, Prediction] = {}
    for group in pack(predictor.system, recordings, predictor.sensors, firsts, groups=1):  # steps cost less than programs
        # As arrays of NumPy: a slice of each length of JAX's is a program of its own.
        rows, errors, measured = jax.device_get(
            (*program(jnp.asarray(theta), jnp.asarray(locals_[group.index]), group.data), group.data.measured)
        )
        for j, k in enumerate(group.index):
            channels = recordings[k].channels
            sizes = {s.channel: channels[s.channel].t.size for s in predictor.measuring if s.channel in channels}
            present = {c: measured[c].present[j, :n] > 0 for c, n in sizes.items()}
            made[k] = Prediction(
                recordings[k].name, {c: rows[c][j, :n] for c, n in sizes.items()},
                {c: np.where(present[c], errors[c][j, :n], np.nan) for c, n in sizes.items()},
            )  # fmt: skip
    return [made[k] for k in range(len(recordings))]


def summarised(found: Found, why: str, bootstrap: int, seed: int, notes: Sequence[str]) -> Identification:
    """The result of what a method found."""
    unknown, n = found.predictor.unknowns, len(found.parts[0][1].s)
    theta, scale = found.theta, found.predictor.unknowns.scale
    chi, by_recording = _chi_squared(found)
    noise = max([1.0, *chi.values()]) if found.loss.kind == "linear" else 1.0  # of the channel that is furthest off
    slopes = unknown.slopes(theta) * scale
    values = np.asarray(unknown.values(jnp.asarray(theta)))
    C, known = np.zeros((theta.size, theta.size)), np.zeros((theta.size, 0))
    uncertain = np.zeros(values.size)  # sum over parts of variance^2 / degrees of freedom
    draws = np.zeros((bootstrap, theta.size))
    for k, (basis, information) in enumerate(found.parts):
        free, along = np.ones(basis.shape[1], bool), slopes @ basis
        known = np.concatenate([known, basis @ information.determined(free)], 1)
        part = information.covariance(free, noise)
        C += basis @ part @ basis.T
        uncertain += np.einsum("vi,ij,vj->v", along, part, along) ** 2 / information.freedom(free, along)
        if bootstrap:
            draws += information.bootstrap(free, bootstrap, seed + k) @ basis.T
    held = _held(found)
    lost = np.linalg.svd(np.concatenate([known, np.zeros((theta.size, 1))], 1))[0][:, known.shape[1] :]
    spread = np.where(held[:, None], 0.0, lost)  # what is not determined may be off by its scale
    covariance = slopes @ (C + spread @ spread.T) @ slopes.T
    unjudged = [basis for basis, information in found.parts if not (information.likelihood or information.clustered)]
    no_interval = hidden(slopes, np.concatenate([lost, *unjudged], 1))
    sd = np.where(no_interval, np.nan, np.sqrt(np.maximum(np.diag(covariance), 0.0)))
    half = quantile(np.diag(covariance) ** 2 / np.maximum(uncertain, 1e-300)) * sd
    intervals = values[:, None] + half[:, None] * np.array([-1.0, 1.0])
    if bootstrap:
        draws += np.random.default_rng([seed, 3]).normal(size=(bootstrap, lost.shape[1])) @ spread.T
        intervals = np.quantile(values + draws @ slopes.T, [0.025, 0.975], axis=0).T
        intervals[no_interval] = np.nan
    directions = simple_directions(lost) if lost.shape[1] else lost
    undetermined = tuple(named(d, unknown.owners) for d in directions.T if not _only(d, held))
    outliers = _outliers(found, by_recording)
    warnings = [*notes, *_warnings(found, chi, undetermined, held, outliers, n)]
    names = tuple(name for name, h in zip(unknown.owners, held) if h)
    return Identification(
        unknown.labels, values, sd, intervals, covariance, found.method, why, undetermined, names, chi, by_recording, outliers,
        tuple(warnings), found.stages, found.rollouts, found.converged, theta, found,
    )  # fmt: skip


def _held(found: Found) -> Bool[np.ndarray, " n"]:
    unknown = found.predictor.unknowns
    slack = 1e-6 * unknown.scale
    return (found.theta <= unknown.lower + slack) | (found.theta >= unknown.upper - slack)


def _only(direction: Float[np.ndarray, " n"], held: Bool[np.ndarray, " n"]) -> bool:
    """Whether a direction is that of one coordinate at its bound."""
    return bool(held[np.argmax(np.abs(direction))] and np.abs(direction).max() > 0.99)


def _chi_squared(found: Found) -> tuple[dict[str, float], dict[str, float]]:
    """Mean squares of the residuals in deviations, by channel and by recording, corrected for the unknowns of each recording."""
    predictor, recordings = found.predictor, found.recordings
    model = predictor.system.model
    made = predictions(predictor, recordings, found.firsts, found.locals, found.theta)
    squares: dict[str, list[float]] = {s.channel: [] for s in predictor.measuring}
    counts: dict[str, list[float]] = {s.channel: [] for s in predictor.measuring}
    for k, (recording, prediction) in enumerate(zip(recordings, made)):
        for sensor in predictor.measuring:
            error = prediction.errors.get(sensor.channel)
            z = np.zeros((0, 1)) if error is None else error / sensor.deviations(model)
            if found.until is not None and error is not None:
                z = z[recording[sensor.channel].t <= found.until[k]]
            squares[sensor.channel].append(float(np.nansum(z**2)))
            counts[sensor.channel].append(float(np.sum(~np.isnan(z))))
    total_counts = sum(np.array(c) for c in counts.values())
    lost = predictor.n_local + len(found.theta) / len(recordings)
    share = np.maximum(total_counts - lost, 0.2 * total_counts) / np.maximum(total_counts, 1.0)
    by_channel = {
        c: sum(squares[c]) / max(float(np.dot(counts[c], share)), 1e-9) for c in squares if sum(counts[c]) > 0
    }
    sums = sum(np.array(v) for v in squares.values())
    mean = np.where(total_counts > lost, sums / np.maximum(total_counts * share, 1e-9), np.nan)
    return by_channel, {r.name: float(m) for r, m in zip(recordings, mean)}


OUTLIER = 5.0  # robust deviations of log mean squares above the median, beyond which a recording is listed


def _outliers(found: Found, by_recording: Mapping[str, float]) -> tuple[str, ...]:
    logs = np.log(np.maximum(np.array(list(by_recording.values())), 1e-12))
    good = np.isfinite(logs)
    if good.sum() < 5:
        return ()
    middle = np.median(logs[good])
    spread = max(1.4826 * float(np.median(np.abs(logs[good] - middle))), 0.1)
    return tuple(
        name for name, value in zip(by_recording, logs) if np.isfinite(value) and value > middle + OUTLIER * spread
    )


def _warnings(found: Found, chi, undetermined, held, outliers, n: int) -> list[str]:
    said = []
    for channel, value in chi.items():
        if value > CHI_SQUARED_LIMIT or 0.0 < value < 1.0 / CHI_SQUARED_LIMIT:
            factor = np.sqrt(value)
            larger = "larger" if factor > 1 else "smaller"
            said.append(
                f"the residuals of channel '{channel}' are {factor if factor > 1 else 1 / factor:.2g} times {larger} than its "
                f"noise says: "
                + (
                    "the noise is stated too small, the time step is too long, or the model lacks something"
                    if factor > 1
                    else "the noise is stated too large"
                )
            )
    if not found.clustered:
        said.append(
            f"with {n} recording{'s' * (n > 1)} the intervals rely on the stated noise; from eight on they come from the "
            "recordings' spread"
        )
    if found.method == "staged" and n == 1:
        said.append("what whole motions of one recording determine has no interval: record at least two")
    if undetermined:
        said.append(
            f"{len(undetermined)} directions of the parameters are not determined by these recordings; they keep their first "
            f"values"
        )
    for name, h in zip(found.predictor.unknowns.owners, held):
        if h:
            said.append(
                f"'{name}' ended at a bound: its interval is one-sided, and the others are those with it held there"
            )
    if outliers:
        said.append(
            f"recordings unlike the others: {', '.join(outliers)}; look at them, or fit with loss=RobustLoss('cauchy', "
            f"by='recording')"
        )
    if not found.converged:
        said.append("the search ended at its limit of iterations: values may still move")
    return said


__all__ = ["Identification", "Prediction", "summarised"]
