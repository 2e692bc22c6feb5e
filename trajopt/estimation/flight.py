"""What recordings say before the first contact, and at rest: parameters that act there, and the first states.

Free motion is smooth. Its length is predicted with the first guess of the parameters; a margin of it is left out. The height at
rest says how far the shapes reach: the mean gap of the contacts that carry a body whose samples have come to rest is zero.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.contact import NoContact
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.estimation import gauss_newton
from trajopt.estimation.loss import RobustLoss
from trajopt.estimation.moments import free_start
from trajopt.estimation.packing import Data, First, first_time, moved, pack
from trajopt.estimation.prediction import Predictor, zeros
from trajopt.estimation.recording import Recording
from trajopt.estimation.sensors import Encoder, Pose, errors_from
from trajopt.estimation.uncertainty import Information

FEWEST_SAMPLES = 6  # before the first contact, for a recording to count in this stage
MARGIN_SAMPLES = 1.0  # left out before the contact
MARGIN_SHARE = 0.1  # of the time up to it, left out where it is predicted instead of measured
CLEARANCE = 0.12  # share of the largest half extent of a moving shape within which shapes count as touching
WELL_KNOWN = 10.0  # information, in units of the scales, from which on a direction is not searched any longer
REST_SAMPLES = 8  # at the end of a recording, that must agree for it to be at rest
REST_MOTION = 3.0  # deviations of the noise by which they may differ


@dataclasses.dataclass(frozen=True)
class Start:
    """theta and first states after these stages; `basis` of the directions (over the scales) that they determine and the
    information along it; until: when the free motion of each recording ends, its first time where it has none."""

    theta: Float[np.ndarray, " n"]
    basis: Float[np.ndarray, "n k"]
    information: Information
    firsts: tuple[First, ...]
    until: Float[np.ndarray, " R"]
    rollouts: int
    stages: tuple[str, ...]


def before_contact(
    predictor: Predictor, recordings: Sequence[Recording], firsts: Sequence[First], loss: RobustLoss
) -> Start:
    """Gauss-Newton over the free motions, and the height at rest."""
    until, enough = free_until(predictor, recordings, firsts)
    n = predictor.unknowns.start.size
    theta, states, stages, rollouts = predictor.unknowns.start, list(firsts), [], 0
    S, s = np.zeros((len(recordings), n, n)), np.zeros((len(recordings), n))
    flying = np.flatnonzero(enough)
    if flying.size:
        free = dataclasses.replace(predictor, system=dataclasses.replace(predictor.system, contact=NoContact()))
        groups = pack(
            free.system,
            [recordings[int(k)] for k in flying],
            free.sensors,
            [firsts[int(k)] for k in flying],
            until[flying],
            groups=1,
        )
        robust = RobustLoss("cauchy", by="recording") if loss.kind == "linear" else loss
        problem = gauss_newton.ArrowProblem(free, groups, robust, exact=False, least_information=WELL_KNOWN)
        fit = gauss_newton.solve(problem, theta, zeros(free, groups), 12, nearly_linear=True)  # free motion
        theta, rollouts = fit.theta, fit.rollouts
        S[flying], s[flying] = fit.information.S, fit.information.s
        for group, locals_ in zip(groups, fit.locals):
            for k, local in zip(group.index, locals_):
                states[flying[k]] = moved(free.system, firsts[flying[k]], local)
        stages.append(f"free motion of {flying.size} recordings: Gauss-Newton, {fit.iterations} iterations")
    basis = _known(S.sum(0))
    resting = at_rest(predictor, recordings, theta)
    if resting is not None:
        theta, slope, S_rest, s_rest, count = resting
        direction = slope / np.linalg.norm(slope)
        basis = np.concatenate([basis, _outside(direction, basis)], 1)
        S, s = S + S_rest, s + s_rest
        stages.append(f"height at rest of {count} recordings")
    information = Information(np.einsum("ia,rij,jb->rab", basis, S, basis, optimize=True), s @ basis)
    return Start(theta, basis, information, tuple(states), until, rollouts, tuple(stages))


def _known(S: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n k"]:
    """Directions that are well known; coordinates without any information are left out first."""
    there = np.flatnonzero(np.diag(S) > 1e-6 * np.diag(S).max(initial=1.0))
    if not there.size:
        return np.zeros((len(S), 0))
    values, vectors = np.linalg.eigh(S[np.ix_(there, there)])
    basis = np.zeros((len(S), int((values > WELL_KNOWN).sum())))
    basis[there] = vectors[:, values > WELL_KNOWN]
    return basis


def _outside(direction: Float[np.ndarray, " n"], basis: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n 1"]:
    """The part of a direction that a basis leaves, as a column; none where it leaves nothing."""
    part = direction - basis @ (basis.T @ direction)
    size = np.linalg.norm(part)
    return (part / size)[:, None] if size > 1e-3 else np.zeros((direction.size, 0))


def free_until(
    predictor: Predictor, recordings: Sequence[Recording], firsts: Sequence[First]
) -> tuple[Float[np.ndarray, " R"], Bool[np.ndarray, " R"]]:
    """When the free motion of each recording ends, s, and whether it is long enough to be used."""
    contact = _times_of_contact(predictor, recordings, firsts)
    until, enough = np.zeros(len(recordings)), np.zeros(len(recordings), bool)
    for k, recording in enumerate(recordings):
        begin = first_time(recording, predictor.sensors)
        measured = (recording[s.channel] for s in predictor.measuring if s.channel in recording.channels)
        stamps = min(measured, key=lambda c: c.interval)
        end = contact[k] - MARGIN_SAMPLES * stamps.interval
        until[k] = max(end, begin)
        enough[k] = np.sum(stamps.t <= until[k]) >= FEWEST_SAMPLES
    return until, enough


def _times_of_contact(
    predictor: Predictor, recordings: Sequence[Recording], firsts: Sequence[First]
) -> Float[np.ndarray, " R"]:
    """When shapes first come near each other, by the measured configurations: at a sample, or where the two samples before it
    lead; by the predicted motion where configurations are not whole."""
    found = np.full(len(recordings), np.nan)
    whole = {k: c for k, r in enumerate(recordings) if (c := measured_configurations(predictor, r)) is not None}
    if whole:
        distance = distances(predictor.system, np.concatenate([q for _, q in whole.values()]))
        near = CLEARANCE * _reach(predictor)
        for (k, (t, _)), gap in zip(
            whole.items(), np.split(distance, np.cumsum([len(t) for t, _ in whole.values()])[:-1])
        ):
            ahead = np.concatenate([gap[:2], 2.0 * gap[1:-1] - gap[:-2]])[: gap.size]
            touching = np.flatnonzero(np.minimum(gap, ahead) < near)
            found[k] = t[touching[0]] if touching.size else np.inf
    rest = [k for k in range(len(recordings)) if k not in whole]
    if rest:
        touching = _first_contact(predictor)
        for group in pack(
            predictor.system, [recordings[k] for k in rest], predictor.sensors, [firsts[k] for k in rest], groups=1
        ):
            steps = np.asarray(touching(jnp.asarray(predictor.unknowns.start), group.data))
            for j, step in zip(group.index, steps):
                begin = first_time(recordings[rest[j]], predictor.sensors)
                found[rest[j]] = begin + (1.0 - MARGIN_SHARE) * step * float(predictor.system.dt)
    return found


def _reach(predictor: Predictor) -> float:
    """The largest half extent of a moving shape, m."""
    moving = np.array([shape.node >= 0 for shape in predictor.system.model.topology.shapes])
    return float(np.asarray(predictor.system.model.shape_size)[moving].max())


def distances(system: System, qs: Float[np.ndarray, "k nq"]) -> Float[np.ndarray, " k"]:
    """The least distance between shapes at configurations."""
    zero, none = jnp.zeros(system.nv), jnp.zeros(system.nu)
    program = jax.jit(jax.vmap(lambda q: system.step(State(q, zero), none)[1].contacts.distance.min()))
    padded = np.concatenate([qs, np.repeat(qs[-1:], -len(qs) % 256, 0)])
    return np.asarray(program(jnp.asarray(padded)))[: len(qs)]


def measured_configurations(
    predictor: Predictor, recording: Recording
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n nq"]] | None:
    """Time stamps (n,) and configurations (n, nq), where one channel or several of the same time stamps measure all of q."""
    model = predictor.system.model
    q, known, t = np.zeros((0, model.nq)), np.zeros(model.nq, bool), None
    for sensor in predictor.measuring:
        if sensor.channel not in recording.channels or not sensor.of_configuration:
            continue
        channel = recording[sensor.channel]
        if t is not None and not np.array_equal(t, channel.t):
            continue
        if t is None:
            t, q = channel.t, np.tile(np.asarray(model.q_default, float), (channel.t.size, 1))
        if isinstance(sensor, Pose) and (start := free_start(model, sensor.frame(model))) is not None:
            q[:, start : start + 7], known[start : start + 7] = channel.values, True
            q[:, start + 3 : start + 7] /= np.linalg.norm(q[:, start + 3 : start + 7], axis=1, keepdims=True)
        elif isinstance(sensor, Encoder):
            places = [model.topology.joint(name).q_start for name in sensor.labels(model)]
            q[:, places], known[places] = channel.values / sensor.gain, True
    if t is None or not known.all():
        return None
    good = ~np.isnan(q).any(1)
    return t[good], q[good]


def _first_contact(predictor: Predictor) -> Any:
    """(theta, data) -> the first step of each recording with an impulse, (R,); T where there is none."""

    def one(theta: Array, data: Data) -> Array:
        _, _, _, info = predictor.motion(theta, jnp.zeros(predictor.n_local), data)
        acting = info.contacts.impulse[..., 2].sum(-1) > 0.0
        return jnp.where(acting.any(), jnp.argmax(acting), data.T)

    return jax.jit(jax.vmap(one, (None, 0)))


def at_rest(predictor: Predictor, recordings: Sequence[Recording], theta: Float[np.ndarray, " n"]) -> Any:
    """theta with which the shapes touch at rest, the slope of the gap by theta (over the scales), curvature and score of each
    recording, and how many are at rest; None where no parameter changes the gap or no recording rests."""
    geometric = [p.name.split(":")[0] in ("size", "ground") for p in predictor.unknowns.parameters]
    if not any(geometric):
        return None
    resting = resting_configurations(predictor, recordings)
    if not resting:
        return None
    there, qs = np.array(list(resting)), jnp.asarray(np.stack(list(resting.values())))
    unknown = predictor.unknowns
    mask = np.concatenate([np.full(p.start.size, g) for p, g in zip(unknown.parameters, geometric)])
    scale = jnp.asarray(np.where(mask, unknown.scale, 0.0))

    def gaps(z: Array, theta: Array) -> Array:
        model, _ = unknown.applied(predictor.system.model, theta + scale * z)
        system = dataclasses.replace(predictor.system, model=model)

        def one(q: Array) -> Array:
            contacts = system.step(State(q, jnp.zeros(system.nv)), jnp.zeros(system.nu))[1].contacts
            near = (contacts.distance < contacts.distance.min() + NEAR) & jnp.isfinite(contacts.distance)
            return jnp.where(near, contacts.distance, 0.0).sum() / jnp.maximum(near.sum(), 1).astype(q.dtype)

        return jax.vmap(one)(qs)

    program = jax.jit(gaps)
    zero = jnp.zeros(mask.size)
    for _ in range(3):
        gap = np.asarray(program(zero, jnp.asarray(theta)))
        slope = np.stack(
            [(np.asarray(program(h, jnp.asarray(theta))) - np.asarray(program(-h, jnp.asarray(theta)))).mean() / 0.02 if m else
            0.0
             for h, m in zip(0.01 * jnp.eye(mask.size), mask)]
        )  # fmt: skip
        if np.linalg.norm(slope) == 0.0:
            return None
        theta = theta - np.asarray(scale) * slope * float(np.median(gap)) / float(slope @ slope)
    spread = max(float(1.4826 * np.median(np.abs(gap - np.median(gap)))), 1e-6)
    S, s = np.zeros((len(recordings), mask.size, mask.size)), np.zeros((len(recordings), mask.size))
    S[there] = np.outer(slope, slope) / spread**2
    s[there] = (gap - np.median(gap))[:, None] * slope / spread**2
    return theta, slope, S, s, there.size


NEAR = 5e-3  # m, within which of the lowest contact others carry too


def resting_configurations(
    predictor: Predictor, recordings: Sequence[Recording]
) -> dict[int, Float[np.ndarray, " nq"]]:
    """The last configurations of the recordings in which all of q is measured and the last samples agree within the noise."""
    resting = set(range(len(recordings)))
    for sensor in predictor.measuring:
        if not sensor.of_configuration:
            continue
        rows = {k: r[sensor.channel].values[-REST_SAMPLES:] for k, r in enumerate(recordings) if sensor.channel in r.channels}
        whole = {k: r for k, r in rows.items() if len(r) == REST_SAMPLES and not np.isnan(r).any()}
        errors = errors_from(sensor, list(whole.values()), -1)
        limit = REST_MOTION * sensor.deviations(predictor.system.model)
        resting -= set(rows) - {k for k, e in zip(whole, errors) if np.all(np.abs(e) <= limit)}
    found = {k: measured_configurations(predictor, recordings[k]) for k in sorted(resting)}
    return {k: measured[1][-1] for k, measured in found.items() if measured is not None}
