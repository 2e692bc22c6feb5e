"""`trajopt gallery`: run problems of the library one after the other and leave all their pictures on one page."""

import argparse
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

from rich.console import Console

from trajopt import problems
from trajopt.cli.progress import say
from trajopt.errors import TrajoptError
from trajopt.occupied import occupying
from trajopt.problems import registry
from trajopt.viz import recording, viewer
from trajopt.viz.gallery import Entry, pictures, write_page

PAGE = "index.html"
_GRACE_S = 180.0  # for the certificate and the pictures of a run that was ended
_RUN = "import sys; from trajopt.cli import main; sys.exit(main())"


def last_words(args: argparse.Namespace) -> str:
    """What a gallery leaves behind when it is ended from outside."""
    return f"finished runs are in {args.out}: the same command goes on from there"


def command(args: argparse.Namespace, terminated: Callable[[], bool]) -> int:
    """Run the command; returns 0 when every run left a result. Raises `UnknownNameError` for a name that is no problem."""
    console = Console()
    chosen = {name: registry.entry(name) for name in args.problems or problems.names()}
    if args.viewer:
        viewer.check_extra()
    with occupying(args.out):
        return _shown(args, console, chosen)


def _shown(args: argparse.Namespace, console: Console, chosen: Mapping[str, registry.Entry]) -> int:
    """The exit status, after the runs and the page."""
    entries: list[Entry] = []
    for name, problem in chosen.items():
        folder = args.out / name
        done = (folder / "summary.json").exists() and not args.again
        failure = "" if done else _run(name, folder, args.time_limit, args.max_iterations)
        if args.viewer and not failure:
            failure = _view(folder)
        entries.append(Entry(name, problem.summary, folder, failure))
        how = failure or ("found there" if done else "done")
        say(console, f"{name}: {how}, {len(pictures(folder))} pictures")
        write_page(entries, args.out / PAGE, title="Problems of the library")  # what there is, if the next one does not end
    say(console, f"written: {args.out / PAGE}")
    return 1 if any(item.failure for item in entries) else 0


def _run(name: str, folder: pathlib.Path, limit: float, max_iterations: int | None) -> str:
    """Run a problem in a process of its own, whose memory ends with it; why there is no result, "" where there is one.

    After `limit` seconds it is asked, as by Ctrl-C, to end with its best point and to draw that, unless it is drawing already.
    """
    command = [sys.executable, "-c", _RUN, "run", name, "--animation", "--out", str(folder)]
    command += [] if max_iterations is None else ["--max-iterations", str(max_iterations)]
    folder.mkdir(parents=True, exist_ok=True)
    summary = folder / "summary.json"
    before = _identity(summary)
    with (folder / "run.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process:
        try:
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                if _identity(summary) == before:
                    process.send_signal(signal.SIGINT)
                process.wait(_GRACE_S)
        except BaseException as error:
            process.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    if _identity(summary) != before:
        return ""
    lines = [line.strip() for line in (folder / "run.log").read_text(errors="replace").splitlines() if line.strip()]
    return f"ended with status {process.returncode}: {lines[-1] if lines else 'nothing was said'}"


def _identity(summary: pathlib.Path) -> tuple[int, int] | None:
    """Which file a summary is, and when it was written; None where there is none."""
    try:
        status = summary.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _view(folder: pathlib.Path) -> str:
    """Write the motion as a page of the viewer; a run without a motion has none."""
    try:
        viewer.export([recording.read_run(folder)], folder / "viewer.html")
    except TrajoptError as error:
        if "no motion" not in str(error):
            return f"no page of the viewer: {error}"
    return ""
