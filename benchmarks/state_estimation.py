"""The base of a trotting Go1 by moving-horizon estimation: errors, consistency, and a picture.

    taskset -c 0 python benchmarks/state_estimation.py [--steps 150] [--window 0.1] [--seeds 1] [--picture PATH]

Prints root mean squares over the recording after the first ten readings, in which the prior is overcome, for the moving horizon
and for the inertial unit alone, which is integrated from the same prior mean or from the true first state (biases unknown to
both), and the shares of errors within two claimed deviations. The picture is of the first seed.
"""

import argparse
import pathlib
import time

import numpy as np

PARTS = {
    "roll, pitch, mrad": (slice(3, 5), 1e3),
    "yaw, mrad": (slice(5, 6), 1e3),
    "velocity, mm/s": (slice(18, 21), 1e3),
    "turning rate, mrad/s": (slice(21, 24), 1e3),
    "height, mm": (slice(2, 3), 1e3),
    "x, y, mm": (slice(0, 2), 1e3),
    "gyroscope bias, mrad/s": (slice(39, 42), 1e3),
    "accelerometer bias, mm/s^2": (slice(42, 45), 1e3),
}
SETTLED = 10  # readings


def track(robot, window: float):
    """(states, deviations, seconds of an update) of the moving horizon over a recording."""
    from trajopt.estimation import MovingHorizon

    horizon = MovingHorizon(
        robot.system, robot.sensors, window, start=robot.start, start_deviation=robot.start_deviation,
        disturbance=robot.disturbance,
    )  # fmt: skip
    mean, NV = robot.walk.mean, robot.system.nv
    xs, spread, seconds = [mean], [np.concatenate([robot.start_deviation, np.full(9, np.inf)])], []
    for rows in robot.rows():
        start = time.process_time()
        now = horizon.update(rows)
        seconds.append(time.process_time() - start)
        xs.append(np.concatenate([now.x.q, now.x.v, np.zeros(3), now.offsets["imu"]]))
        deviation = np.sqrt(np.diag(now.covariance))
        spread.append(np.concatenate([deviation[: 2 * NV], np.full(3, np.inf), deviation[2 * NV :]]))
    return np.array(xs), np.array(spread), float(np.median(seconds))


def rms(error: np.ndarray, part: slice) -> float:
    return float(np.sqrt(np.mean(error[SETTLED:, part] ** 2)))


def draw(walk, xs: np.ndarray, spread: np.ndarray, path: pathlib.Path) -> None:
    """Roll, pitch and velocity: truth, estimate with two deviations, inertial unit alone."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from trajopt.models.descriptions import roll_pitch_yaw

    t, blind = walk.dt * np.arange(len(xs)), walk.dead_reckoning()
    angles = {key: 1e3 * roll_pitch_yaw(value[:, 3:7]) for key, value in (("truth", walk.truth), ("xs", xs), ("blind", blind))}
    figure, axes = plt.subplots(2, 3, figsize=(12, 5.2), layout="constrained", sharex=True)
    for k, name in enumerate(("roll, mrad", "pitch, mrad", "yaw, mrad")):
        _panel(axes[0, k], t, *(angles[key][:, k] for key in ("truth", "xs", "blind")), 1e3 * spread[:, 3 + k], name)
    for k, name in enumerate(("forward, m/s", "left, m/s", "up, m/s")):
        values = [a[:, 19 + k] for a in (walk.truth, xs, blind)]
        _panel(axes[1, k], t, *values, spread[:, 18 + k], name)
        axes[1, k].set_xlabel("time, s")
    axes[0, 0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _panel(axis, t, truth, found, blind, spread, name) -> None:
    axis.fill_between(t, found - 2 * spread, found + 2 * spread, alpha=0.25, color="C0", lw=0)
    axis.plot(t, blind, color="C1", lw=1.0, label="inertial unit alone")
    axis.plot(t, found, color="C0", lw=1.4, label="moving horizon, two deviations")
    axis.plot(t, truth, color="black", lw=0.9, ls="--", label="truth")
    low, high = truth.min(), truth.max()
    room = 0.6 * (high - low)
    axis.set(title=name, ylim=(low - room, high + room))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--window", type=float, default=0.1, help="s")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--picture", type=pathlib.Path, default=pathlib.Path("docs/images/go1-state-estimation.png"))
    options = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", True)
    from trajopt.estimation import examples

    for seed in range(options.seeds):
        robot = examples.walking_robot(options.steps, seed=seed)
        walk = robot.walk
        xs, spread, seconds = track(robot, options.window)
        known = walk.truth[0].copy()
        known[-6:] = 0.0
        errors = [walk.errors(states) for states in (xs, walk.dead_reckoning(), walk.dead_reckoning(known))]
        within = np.abs(errors[0]) < 2 * spread
        print(
            f"\nseed {seed}: {1e3 * seconds:.2f} ms of processor time an update (median), {1 / seconds:.0f} updates a second"
        )
        print("| rms | moving horizon | within 2 deviations | inertial unit, from the prior | from the true state |")
        print("|---|---|---|---|---|")
        for name, (part, unit) in PARTS.items():
            cells = [f"{unit * rms(error, part):.3g}" for error in errors]
            print(f"| {name} | {cells[0]} | {100 * within[SETTLED:, part].mean():.0f} % | {cells[1]} | {cells[2]} |")
        if seed == 0:
            draw(walk, xs, spread, options.picture)


if __name__ == "__main__":
    main()
