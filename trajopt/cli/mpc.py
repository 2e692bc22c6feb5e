"""`trajopt mpc`: a task of the receding horizon, in real time in the web browser."""

import argparse
from collections.abc import Callable

from trajopt.control.tasks import task
from trajopt.viz import live, viewer


def command(args: argparse.Namespace, terminated: Callable[[], bool]) -> int:
    """Run the command; returns the exit status."""
    chosen = task(args.task)
    viewer.check_extra()
    drive = live.show(
        chosen, solver=args.solver, plant=args.plant, port=args.port, browser=not args.no_browser, seconds=args.seconds
    )
    summary = drive.recording(0.0).summary()
    if len(drive.solves):
        late, median = summary["late_share"], 1e3 * summary["latency_median"]
        print(f"{drive.time:.1f} s, {len(drive.solves)} solves, {median:.1f} ms at the median, {late:.0%} late")
    return 0
