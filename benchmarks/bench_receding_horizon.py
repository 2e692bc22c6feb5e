"""Receding horizon on Go1 with MuJoCo as plant: latency, what stands and walks under pushes, beside MuJoCo's finite differences.

    python benchmarks/bench_receding_horizon.py [--directions 8] [--trials 20] [--peer-seconds 2] [--figure PATH]

One pinned core, float64, 25 knots of 20 ms, one iteration a solve, ticks of 1 ms, a solve every 5 ms whose plan acts 5
ms later. Standing for 10 s under a push of 60 N for 0.1 s from each direction; trotting at +-0.5 m/s with given phases
for 8 s, each trial with a push of 40 to 100 N from a random direction at a random time (seed: its number). A fall: the
trunk's centre below 0.15 m or its vertical axis more than 60 degrees from upright. The peer is the same loop, cost,
passes and plant with `mj_step` in the rollouts and `mjd_transitionFD` (one-sided) for A and B; it is given the same
plant's time whatever its solves take, and, in the last rows, "measured": a plan acts when it is ready.
"""

import argparse
import dataclasses

from measure import banner, begin, markdown
from results import record

PERIOD, TICK = 0.005, 0.001


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of one run: whether it fell, how far and high, and its recording's summary."""

    fell: bool
    lowest: float
    speed: float
    summary: dict


def judged(recording) -> Outcome:
    import numpy as np

    xs = recording.xs
    upright = 1.0 - 2.0 * (xs[:, 4] ** 2 + xs[:, 5] ** 2)
    fell = bool((xs[:, 2] < 0.15).any() or (upright < 0.5).any())
    tail = xs[len(xs) // 8 :, 0]
    speed = float((tail[-1] - tail[0]) / (recording.t[-1] - recording.t[len(xs) // 8]))
    return Outcome(fell, float(np.min(xs[:, 2])), speed, recording.summary())


def times(recordings: list) -> tuple:
    """(solves, latency median and 99th percentile, processor median and 99th percentile, ms, share within the period, %)."""
    import numpy as np

    latency, processor = (np.concatenate([getattr(r, key) for r in recordings]) for key in ("latency", "processor"))
    p50, p99 = np.percentile(1e3 * latency, [50, 99])
    c50, c99 = np.percentile(1e3 * processor, [50, 99])
    within = tuple(100.0 * float(np.mean(a <= PERIOD)) for a in (latency, processor))
    return len(latency), float(p50), float(p99), float(c50), float(c99), *within


HEAD = (
    "task", "derivatives", "solves", "latency, ms", "99 %", "processor, ms", "99 %", "within 5 ms, %", "of the processor's, %",
    "falls", "lowest trunk, m", "speed, m/s",
)  # fmt: skip


class Bench:
    """The systems, plant and rows of a run of the benchmark."""

    def __init__(self) -> None:
        from receding_tasks import peer_system, stand

        from trajopt import control, models

        self.systems = {"implicit": stand().system, "MuJoCo's differences": peer_system()}
        self.plant = control.MujocoPlant.from_file(models.bundled_file("go1"), TICK)
        self.rows: list[tuple] = []
        self.recordings: list = []

    def horizon(self, problem, delay=PERIOD):
        from trajopt import control, solvers

        return control.RecedingHorizon(problem, solvers.iLQR(), self.plant, PERIOD, delay=delay)

    def row(self, task: str, kind: str, recordings: list, walks: bool) -> None:
        found = [judged(recording) for recording in recordings]
        falls = f"{sum(one.fell for one in found)} of {len(found)}"
        speeds = [one.speed for one in found]
        speed = f"{min(speeds):.2f} to {max(speeds):.2f}" if walks else ""
        self.rows.append((task, kind, *times(recordings), falls, min(one.lowest for one in found), speed))
        if kind == "implicit" and len(recordings) > 2:
            name = f"receding-horizon/{task.split()[0].strip(',')}"
            record(f"{name}/median", self.rows[-1][3], "ms")
            record(f"{name}/99-percent", self.rows[-1][4], "ms")
            record(f"{name}/falls", sum(one.fell for one in found), f"of {len(found)}")
        print(markdown(HEAD, self.rows[-1:]), flush=True)

    def stand(self, kind: str, directions: int, seconds: float, delay=PERIOD, label: str = "") -> None:
        import numpy as np
        from receding_tasks import stand

        from trajopt.control import Push

        horizon, recordings = self.horizon(stand(self.systems[kind]), delay), []
        for k in range(directions):
            angle = 2 * np.pi * k / directions
            push = Push("trunk", (60 * np.cos(angle), 60 * np.sin(angle), 0.0), min(1.0, 0.25 * seconds), 0.1)
            recordings.append(horizon.run(seconds, pushes=[push]))
        self.recordings += recordings
        self.row(f"stand, {directions} pushes of 60 N{label}", kind, recordings, False)

    def trot(self, kind: str, trials: int, seconds: float, delay=PERIOD, label: str = "") -> None:
        import numpy as np
        from receding_tasks import trot

        from trajopt.control import Push

        for speed in (0.5, -0.5):
            horizon, recordings = self.horizon(trot(self.systems[kind], speed, seconds), delay), []
            for trial in range(trials // 2):
                rng = np.random.default_rng(1000 * int(speed < 0) + trial)
                angle, force = rng.uniform(0, 2 * np.pi), rng.uniform(40, 100)
                push = Push(
                    "trunk", (force * np.cos(angle), force * np.sin(angle), 0.0), rng.uniform(0.25, 0.6) * seconds, 0.1
                )
                recordings.append(horizon.run(seconds, pushes=[push]))
            self.row(f"trot at {speed:+.1f} m/s{label}", kind, recordings, True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directions", type=int, default=8, help="of the pushes on the standing robot")
    parser.add_argument("--trials", type=int, default=20, help="of the trot, half of them in each direction")
    parser.add_argument("--seconds", type=float, default=1.0, help="scales the lengths of 10 s and 8 s")
    parser.add_argument("--peer-seconds", type=float, default=2.0, help="length of the peer's runs; 0: none")
    parser.add_argument("--figure", help="where to draw latency and cost of the first run")
    arguments = begin(parser)
    print(banner("mujoco"), flush=True)
    bench = Bench()
    if arguments.directions:
        bench.stand("implicit", arguments.directions, 10 * arguments.seconds)
    if arguments.trials:
        bench.trot("implicit", arguments.trials, 8 * arguments.seconds)
    if arguments.peer_seconds:
        for kind in bench.systems:
            bench.stand(kind, 1, arguments.peer_seconds)
        for kind in bench.systems:
            bench.trot(kind, 2, 2 * arguments.peer_seconds, "measured", ", acting when ready")
        spent = bench.systems["MuJoCo's differences"].spent
        print(
            f"seconds inside MuJoCo's own functions: derivatives {spent['derivatives']:.1f}, steps {spent['steps']:.1f}"
        )
    print("\n" + markdown(HEAD, bench.rows))
    print(banner("mujoco"))
    if arguments.figure and bench.recordings:
        from trajopt.viz.receding_horizon import plot_recording

        plot_recording(bench.recordings[0], arguments.figure)


if __name__ == "__main__":
    main()
