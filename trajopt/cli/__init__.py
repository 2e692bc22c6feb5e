"""The command line: `trajopt list`, `info`, `run`, `compare`, `train`, `gallery`, `view`.

Exit status: 0 solved, 1 ran without reaching the tolerance, 2 bad input.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Sequence

import trajopt
from trajopt import walltime
from trajopt.cli.model_options import add_model_options
from trajopt.cli.watchdog import heeding_signals
from trajopt.errors import TrajoptError

_VERBOSE = "log every iteration, and every program compiled, with the time, to the standard error"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return the exit status."""
    own = argv is None  # the process is this command's own; its time counts from its start, otherwise from the call
    if own:
        gc.set_threshold(50_000)  # importing and tracing make many objects and little garbage
    clock = walltime.WallTime(walltime.process_start() if own else time.perf_counter(), "import")
    args = _parser().parse_args(argv)
    if getattr(args, "verbose", False):
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
        logging.getLogger("trajopt").setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(), walltime.keeping(clock):
            warnings.showwarning = _show_warning
            with walltime.part("import"):
                _configure()
            return args.command(args)
    except BrokenPipeError:
        return 1
    except TrajoptError as error:
        print(f"trajopt: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"trajopt: error: {error.filename or 'file'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("trajopt: interrupted before there was a point to save", file=sys.stderr)
        return 1
    finally:
        if own:
            gc.freeze()  # spares the interpreter's last collection, half a second of looking at what ends with the process


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trajopt",
        description="Trajectory optimization with hard contact and implicit derivatives.",
        epilog="Exit status: 0 solved, 1 ran without reaching the tolerance, 2 bad input.",
    )
    parser.add_argument("--version", action="version", version=f"trajopt {trajopt.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    add = commands.add_parser("list", help="problems, solvers, models and tasks there are")
    add.add_argument("what", nargs="?", choices=("problems", "solvers", "models", "tasks"), help="default: all four")
    add.set_defaults(command=_list)

    add = commands.add_parser("info", help="what a model consists of, or what a problem asks and which settings it has")
    add.add_argument(
        "name", metavar="MODEL|PROBLEM",
        help="bundled name, or path of a .urdf, .xml (MJCF) or .sdf file; or a name from `trajopt list problems`",
    )  # fmt: skip
    add_model_options(add)
    add.set_defaults(command=_info)

    add = commands.add_parser("run", help="solve a problem and write its results to a directory")
    add.add_argument("problem", metavar="PROBLEM", help="a name from `trajopt list problems`")
    add.add_argument("--solver", metavar="NAME", help="default: the one that suits the problem")
    add.add_argument("--gradient", metavar="MODE", help="default: the one that suits the problem")
    add.add_argument("--contact", metavar="MODEL", help="contact model, where the problem offers a choice")
    add.add_argument("--seed", metavar="N", type=_natural, default=0, help="seed of whatever is random; default 0")
    add.add_argument("--max-iterations", metavar="N", type=_natural, help="default: the solver's own")
    add.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="settings", help="change a setting"
    )
    add.add_argument("--out", metavar="DIR", type=pathlib.Path, help="default: runs/PROBLEM")
    add.add_argument("--resume", action="store_true", help="go on from the checkpoint in DIR")
    add.add_argument("--quiet", action="store_true", help="print nothing but errors")
    add.add_argument("--verbose", action="store_true", help=_VERBOSE)
    add.set_defaults(command=_run)

    _add_compare(commands.add_parser("compare", help="solve a problem with several solvers and gradient modes"))

    _add_train(commands.add_parser("train", help="train a policy on a task of the learning layer"))

    _add_gallery(commands.add_parser("gallery", help="solve problems of the library and show all pictures on one page"))

    add = commands.add_parser("view", help="show finished runs in the web browser, or write them to an HTML file")
    add.add_argument("folders", metavar="DIR", nargs="+", type=pathlib.Path, help="what `trajopt run` or `trajopt train` wrote")
    add.add_argument("--port", metavar="N", type=_port, default=8080, help="first port to try; default 8080")
    add.add_argument("--export", metavar="FILE.html", type=pathlib.Path, help="write one self-contained file instead")
    add.add_argument("--overlay", action="store_true", help="several runs at the same place, translucent")
    add.add_argument("--model", metavar="MODEL", help="what to draw, for runs of problems that are not in the library")
    add.add_argument("--no-browser", action="store_true", help="print the address and open nothing")
    add_model_options(add)
    add.set_defaults(command=_view)
    return parser


def _add_compare(add: argparse.ArgumentParser) -> None:
    add.add_argument("problem", metavar="PROBLEM")
    add.add_argument("--solvers", metavar="A,B,C", required=True)
    add.add_argument("--gradients", metavar="M1,M2", help="default: the one that suits the problem")
    add.add_argument("--seeds", metavar="N", type=_positive, default=1, help="repeat with seeds 0 to N - 1; default 1")
    add.add_argument("--budget", metavar="SECONDS", type=_seconds, help="solving time allowed to each run")
    add.add_argument("--max-iterations", metavar="N", type=_natural, help="of each run; default: the solver's own")
    add.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="settings")
    add.add_argument("--out", metavar="DIR", type=pathlib.Path, help="default: runs/compare-PROBLEM")
    add.add_argument(
        "--workers", metavar="N|tcp://HOST:PORT",
        help="processes of this machine, or a dask scheduler; default: one run after the other",
    )  # fmt: skip
    add.add_argument("--again", action="store_true", help="solve anew what is already in DIR")
    add.add_argument("--verbose", action="store_true", help=_VERBOSE)
    add.set_defaults(command=_compare)


def _add_train(add: argparse.ArgumentParser) -> None:
    add.add_argument("task", metavar="TASK", help="a name from `trajopt list tasks`")
    add.add_argument("--algorithm", metavar="NAME", default="PPO", help="PPO (default) or SHAC")
    add.add_argument("--gradient", metavar="MODE", help="of SHAC; default: the task's own, implicit")
    add.add_argument(
        "--kappa", metavar="K", type=_sharpness, nargs=2, help="of smoothed gradients, 1/m: at the start, at the end"
    )
    add.add_argument("--samples", metavar="N", type=_positive, help="actions to learn from; default: what suits the task")
    add.add_argument("--seed", metavar="N", type=_natural, default=0, help="default 0")
    add.add_argument("--out", metavar="DIR", type=pathlib.Path, help="default: runs/train-TASK")
    add.add_argument("--resume", action="store_true", help="go on from the checkpoint in DIR")
    add.add_argument("--quiet", action="store_true", help="print nothing but errors")
    add.set_defaults(command=_train)


def _add_gallery(add: argparse.ArgumentParser) -> None:
    add.add_argument("problems", metavar="PROBLEM", nargs="*", help="default: all of `trajopt list problems`")
    add.add_argument("--out", metavar="DIR", type=pathlib.Path, default=pathlib.Path("gallery"), help="default: gallery")
    add.add_argument(
        "--time-limit", metavar="SECONDS", type=_seconds, default=300.0,
        help="of each run, compiling included; then it ends with its best point; default 300",
    )  # fmt: skip
    add.add_argument("--max-iterations", metavar="N", type=_natural, help="of each run; default: the solver's own")
    add.add_argument("--viewer", action="store_true", help="write the motions as pages of the web viewer, too")
    add.add_argument("--again", action="store_true", help="solve anew what is already in DIR")
    add.set_defaults(command=_gallery)


def _natural(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 0 or more")
    return value


def _positive(text: str) -> int:
    if _natural(text) == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def _port(text: str) -> int:
    if not 1 <= _natural(text) <= 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port, a number from 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number of seconds")
    return value


def _sharpness(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a sharpness, a positive number of 1/m")
    return value


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    print(f"trajopt: warning: {message}", file=sys.stderr)


def _configure() -> None:
    """float64, and compiled functions kept between runs in the user's cache directory, the small ones too: a run has dozens."""
    import jax

    walltime.listen()
    jax.config.update("jax_enable_x64", True)
    if jax.config.values["jax_compilation_cache_dir"] is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(base, "trajopt", "jax"))
    for name, value in (("min_compile_time_secs", 0.0), ("min_entry_size_bytes", -1)):
        if f"JAX_PERSISTENT_CACHE_{name.upper()}" not in os.environ:
            jax.config.update(f"jax_persistent_cache_{name}", value)


def _list(args: argparse.Namespace) -> int:
    from trajopt import problems, solvers
    from trajopt.learning.tasks import TASKS
    from trajopt.models.registry import bundled_models
    from trajopt.problems.registry import entry

    what = args.what
    if what in (None, "problems"):
        entries = {name: entry(name) for name in problems.names()}
        width = max(len(found.solver) for found in entries.values())
        rows = [(name, f"{found.solver:<{width}}  {found.summary}") for name, found in entries.items()]
        _block("problems", rows, what is None)
    if what in (None, "solvers"):
        _block("solvers", [(name, entry.summary) for name, entry in solvers.SOLVERS.items()], what is None)
    if what in (None, "models"):
        _block("models", [(name, "") for name in bundled_models()], what is None)
    if what in (None, "tasks"):
        _block("tasks", [(name, task.summary) for name, task in TASKS.items()], what is None)
    return 0


def _block(title: str, rows: Sequence[tuple[str, str]], titled: bool) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    if titled:
        print(f"{title}:")
    for name, text in rows:
        print(("  " if titled else "") + f"{name:<{width}}  {text}".rstrip())


def _info(args: argparse.Namespace) -> int:
    from trajopt.cli.info import info

    return info(args)


def _run(args: argparse.Namespace) -> int:
    with walltime.part("import"):
        from trajopt.cli.run import last_words, run

    since = time.time()
    return _heeded(lambda: last_words(args, since), lambda terminated: run(args, terminated))


def _train(args: argparse.Namespace) -> int:
    with walltime.part("import"):
        from trajopt.cli.train import last_words, train

    since = time.time()
    return _heeded(lambda: last_words(args, since), lambda terminated: train(args, terminated))


def _heeded(last_words: Callable[[], str], command: Callable[[Callable[[], bool]], int]) -> int:
    """A command's exit status; an interruption that it passes on is told in a line that says what is left."""
    with heeding_signals(last_words) as terminated:
        try:
            return command(terminated)
        except KeyboardInterrupt:
            print(f"trajopt: interrupted: {last_words()}", file=sys.stderr)
            return 1


def _view(args: argparse.Namespace) -> int:
    from trajopt.cli.view import view

    with heeding_signals(lambda: "nothing was written"):
        return view(args)


def _gallery(args: argparse.Namespace) -> int:
    from trajopt.cli.gallery import gallery

    with heeding_signals(lambda: f"finished runs are in {args.out}: the same command goes on from there"):
        return gallery(args)


def _compare(args: argparse.Namespace) -> int:
    from trajopt.cli.compare import compare, last_words

    return _heeded(lambda: last_words(args), lambda terminated: compare(args, terminated))


__all__ = ["main"]
