"""`trajopt identify`: parameters of a model from recordings, and a report of what they say."""

import argparse
import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from trajopt.cli.model_options import model_arguments
from trajopt.dynamics.system import System
from trajopt.errors import OptionError
from trajopt.estimation import (
    IMU,
    ContactSwitch,
    Encoder,
    ForceTorque,
    Input,
    Pose,
    Recording,
    RobustLoss,
    Sensor,
    Velocity,
    identify,
    read,
    write_report,
)
from trajopt.models import load_model

KINDS: dict[str, Callable[..., Sensor]] = {
    "pose": Pose, "encoder": Encoder, "rate": functools.partial(Encoder, velocity=True), "velocity": Velocity, "imu": IMU,
    "force": ForceTorque, "contact": ContactSwitch, "input": Input,
}  # fmt: skip
USUAL = {  # names of channels that say what they are
    "pose": "pose", "velocity": "velocity", "imu": "imu", "q": "encoder", "joints": "encoder", "encoder": "encoder",
    "position": "encoder", "dq": "rate", "u": "input", "torque": "input", "control": "input", "controls": "input",
    "command": "input", "effort": "input",
}  # fmt: skip
LONGEST_STEP = 5e-3  # s, of the simulated motions by default


def command(args: argparse.Namespace, terminated: Callable[[], bool]) -> int:
    """Run the command; returns 0 where the search ended by itself, else 1. Raises errors that name what is wrong with the
    input.
    """
    model = load_model(args.model, **model_arguments(args))
    recordings = [read(path, args.channels) for path in args.recordings]
    held_out = [read(path, args.channels) for path in args.held_out]
    chosen = dict(_pair(text) for text in args.sensor)
    sensors = [_sensor(channel, chosen.get(channel), recordings) for channel in recordings[0].channels]
    for channel in chosen:
        _ = recordings[0][channel]
    for sensor in sensors:
        noise = "" if isinstance(sensor, Input) else f", noise {_shown(sensor.noise)}"
        rates = " of velocities" if isinstance(sensor, Encoder) and sensor.velocity else ""
        print(f"sensor of channel '{sensor.channel}': {type(sensor).__name__}{rates}{noise}")
    dt = args.dt or _step(recordings, sensors)
    loss = RobustLoss(args.loss, by=args.loss_by)
    fit = identify(
        System(model, dt),
        recordings,
        [name.strip() for name in args.parameters.split(",")],
        sensors,
        loss=loss,
        bootstrap=args.bootstrap,
        seed=args.seed,
    )
    print(fit.describe())
    if args.report is not None:
        write_report(fit, args.report, held_out)
        print(f"written: {args.report}")
    return 0 if fit.converged else 1


def _pair(text: str) -> tuple[str, str]:
    channel, mark, kind = text.partition("=")
    if not mark or kind.partition(":")[0] not in KINDS:
        raise OptionError(
            f"--sensor is '{text}'; expected CHANNEL=KIND or CHANNEL=KIND:NOISE, KIND one of {', '.join(KINDS)}"
        )
    return channel, kind


def _sensor(channel: str, asked: str | None, recordings: Sequence[Recording]) -> Sensor:
    """The sensor of a channel; its noise, where it is not given, from how the samples scatter."""
    kind, _, noise = (asked or USUAL.get(channel.lower(), "")).partition(":")
    if kind not in KINDS:
        raise OptionError(
            f"what does channel '{channel}' measure? Give --sensor {channel}=KIND, KIND one of {', '.join(KINDS)}"
        )
    if kind == "input":
        return Input(channel)
    if noise:
        try:
            given = tuple(float(part) for part in noise.split(":"))
        except ValueError:
            raise OptionError(
                f"--sensor {channel}: noise is '{noise}'; expected numbers, such as 0.001 or 0.001:0.01"
            ) from None
        return KINDS[kind](channel, noise=given if len(given) > 1 else given[0])
    values = [r[channel].values for r in recordings if channel in r.channels]
    if kind == "pose":
        return Pose(channel, noise=(scatter([v[:, :3] for v in values]), 2.0 * scatter([v[:, 3:] for v in values])))
    if kind == "imu":
        return IMU(channel, noise=(scatter([v[:, :3] for v in values]), scatter([v[:, 3:] for v in values])))
    return KINDS[kind](channel, noise=scatter(values))


def scatter(values: Sequence[Float[np.ndarray, "n w"]]) -> float:
    """The noise of samples of a smooth motion: the typical size of third differences, over that of white noise of unit
    deviation.
    """
    thirds = [np.diff(v, 3, axis=0).ravel() for v in values if len(v) > 3]
    flat = np.concatenate(thirds) if thirds else np.zeros(0)
    flat = flat[np.isfinite(flat)]
    size = float(np.median(np.abs(flat))) / 0.6745 / np.sqrt(20.0) if flat.size else 0.0
    return size if size > 0 else 1e-6


def _shown(noise: float | tuple[float, ...]) -> str:
    return ", ".join(f"{value:.3g}" for value in np.atleast_1d(np.asarray(noise)))


def _step(recordings: Sequence[Recording], sensors: Sequence[Sensor]) -> float:
    """Half the least time between samples, or less, so that samples are at whole steps."""
    measured = [s.channel for s in sensors if not isinstance(s, Input)]
    interval = min(r[c].interval for r in recordings for c in measured if c in r.channels)
    return interval / (2 * int(np.ceil(interval / (2 * LONGEST_STEP)))) if np.isfinite(interval) else LONGEST_STEP


def last_words(args: argparse.Namespace) -> str:
    """What is left when the command is ended from outside."""
    return "nothing was written"


__all__ = ["command", "last_words", "scatter"]
