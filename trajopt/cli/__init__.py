"""The command line: `trajopt list`, `info`, `run`, `compare`, `train`, `mpc`, `identify`, `view`.

Exit status: 0 solved, 1 ran without reaching the tolerance, 2 bad input.
"""

import argparse
import contextlib
import gc
import importlib
import logging
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import trajopt
from trajopt import walltime
from trajopt.cli.model_options import add_model_options
from trajopt.cli.watchdog import heeding_signals
from trajopt.errors import TrajoptError


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

    add = commands.add_parser("list", help="problems, solvers, models, tasks and tasks of the receding horizon there are")
    add.add_argument("what", nargs="?", choices=("problems", "solvers", "models", "tasks", "mpc"), help="default: all five")
    add.set_defaults(command=_list)

    for add_command in (_add_info, _add_run, _add_compare, _add_train, _add_mpc, _add_identify, _add_view):
        add_command(commands)
    return parser


def _add_info(commands: Any) -> None:
    add = _command(commands, "info", "what a model consists of, or what a problem asks and which settings it has")
    add.add_argument(
        "name", metavar="MODEL|PROBLEM",
        help="bundled name, or path of a .urdf, .xml (MJCF) or .sdf file; or a name from `trajopt list problems`",
    )  # fmt: skip
    add_model_options(add)


def _add_run(commands: Any) -> None:
    add = _command(commands, "run", "solve a problem and write its results to a directory")
    add.add_argument("problem", metavar="PROBLEM", help="a name from `trajopt list problems`")
    add.add_argument("--solver", metavar="NAME", help="default: the one that suits the problem")
    add.add_argument("--gradient", metavar="MODE", help="default: the one that suits the problem")
    add.add_argument("--contact", metavar="MODEL", help="contact model, where the problem offers a choice")
    add.add_argument("--animation", action="store_true", help="draw the motion as animation.gif, too: some seconds")
    _add_out(add, "default: runs/PROBLEM")
    _add_shared(add, "--seed", "--max-iterations", "--set", "--resume", "--quiet", "--verbose")


def _add_compare(commands: Any) -> None:
    add = _command(commands, "compare", "solve a problem with several solvers and gradient modes")
    add.add_argument("problem", metavar="PROBLEM")
    add.add_argument("--solvers", metavar="A,B,C", required=True)
    add.add_argument("--gradients", metavar="M1,M2", help="default: the one that suits the problem")
    add.add_argument("--seeds", metavar="N", type=_positive, default=1, help="repeat with seeds 0 to N - 1; default 1")
    add.add_argument("--budget", metavar="SECONDS", type=_seconds, help="solving time allowed to each run")
    add.add_argument(
        "--workers", metavar="N|tcp://HOST:PORT",
        help="processes of this machine, or a dask scheduler; default: one run after the other",
    )  # fmt: skip
    _add_out(add, "default: runs/compare-PROBLEM")
    _add_shared(add, "--max-iterations", "--set", "--again", "--verbose")


def _add_train(commands: Any) -> None:
    add = _command(commands, "train", "train a policy on a task of the learning layer")
    add.add_argument("task", metavar="TASK", help="a name from `trajopt list tasks`")
    add.add_argument("--algorithm", metavar="NAME", help="PPO or SHAC; default: the one that suits the task")
    add.add_argument("--gradient", metavar="MODE", help="of SHAC; default: the task's own, implicit")
    kappa_help = "of smoothed gradients, 1/m: at the start, at the end"
    add.add_argument("--kappa", metavar="K", type=_sharpness, nargs=2, help=kappa_help)
    add.add_argument("--samples", metavar="N", type=_positive, help="actions to learn from; default: what suits the task")
    _add_out(add, "default: runs/train-TASK")
    _add_shared(add, "--seed", "--set", "--resume", "--quiet")


def _add_mpc(commands: Any) -> None:
    add = _command(commands, "mpc", "run a task of the receding horizon in real time, in the web browser")
    add.add_argument("task", metavar="TASK", help="a name from `trajopt list mpc`")
    add.add_argument("--solver", metavar="NAME", help="default: the one that suits the task")
    add.add_argument("--plant", choices=("mujoco", "system"), default="mujoco", help="what is driven; default MuJoCo")
    add.add_argument("--seconds", metavar="S", type=_seconds, help="end after so long; default: when interrupted")
    add.add_argument("--port", metavar="N", type=_port, default=8080, help="first port to try; default 8080")
    add.add_argument("--no-browser", action="store_true", help="print the address and open nothing")


def _add_identify(commands: Any) -> None:
    add = _command(commands, "identify", "find parameters of a model from recordings, with intervals and a report")
    add.add_argument("model", metavar="MODEL", help="bundled name, or path of a .urdf, .xml (MJCF) or .sdf file")
    add.add_argument("recordings", metavar="RECORDING", nargs="+", type=pathlib.Path, help="CSV, npz, Parquet, MCAP or ROS bag")
    add.add_argument("--parameters", metavar="A,B", required=True, help="what is unknown: friction,inertia:BODY,imu.gyro_bias")
    add.add_argument("--channels", metavar="MAP.yaml", type=pathlib.Path, help="which columns or topics make which channel")
    add.add_argument(
        "--sensor", metavar="CHANNEL=KIND[:NOISE]", action="append", default=[],
        help="what a channel measures (pose, encoder, rate, velocity, imu, force, contact, input), and its noise; default: by "
        "the channel's name, the noise as the samples scatter",
    )  # fmt: skip
    held_out = "to predict, not to fit"
    add.add_argument("--held-out", metavar="RECORDING", action="append", default=[], type=pathlib.Path, help=held_out)
    add.add_argument("--report", metavar="FILE.html", type=pathlib.Path, help="write what was found, with fits and residuals")
    add.add_argument("--dt", metavar="SECONDS", type=_seconds, help="step of the simulated motions; default: at most 5 ms")
    add.add_argument("--loss", metavar="NAME", default="linear", help="linear (default), huber, cauchy, tukey and others")
    add.add_argument("--loss-by", choices=("sample", "recording"), default="sample", help="what counts as one outlier")
    add.add_argument("--bootstrap", metavar="N", type=_natural, default=0, help="draws of recordings for intervals; default none")
    _add_shared(add, "--seed")
    add_model_options(add)


def _add_view(commands: Any) -> None:
    add = _command(commands, "view", "show finished runs in the web browser, or write them to an HTML file")
    add.add_argument("folders", metavar="DIR", nargs="+", type=pathlib.Path, help="what `trajopt run` or `trajopt train` wrote")
    add.add_argument("--port", metavar="N", type=_port, default=8080, help="first port to try; default 8080")
    add.add_argument("--export", metavar="FILE.html", type=pathlib.Path, help="write one self-contained file instead")
    add.add_argument("--overlay", action="store_true", help="several runs at the same place, translucent")
    add.add_argument("--model", metavar="MODEL", help="what to draw, for runs of problems that are not in the library")
    add.add_argument("--no-browser", action="store_true", help="print the address and open nothing")
    add_model_options(add)


def _command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    """A command that the module `trajopt.cli.NAME` runs, imported then."""
    add = commands.add_parser(name, help=text)
    add.set_defaults(command=_run, module=f"trajopt.cli.{name}")
    return add


def _number(make: Callable[[str], float], expected: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """The type of an option that takes a number; `expected`: what its error asks for."""

    def convert(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = make(text)
            if allowed(value):
                return value
        raise argparse.ArgumentTypeError(f"'{text}' is not {expected}")

    return convert


_natural = _number(int, "a whole number of 0 or more", lambda value: value >= 0)
_positive = _number(int, "a whole number of at least 1", lambda value: value >= 1)
_port = _number(int, "a port, a number from 1 to 65535", lambda value: 1 <= value <= 65535)
_seconds = _number(float, "a positive number of seconds", lambda value: 0 < value < float("inf"))
_sharpness = _number(float, "a sharpness, a positive number of 1/m", lambda value: 0 < value < float("inf"))
_SHARED: dict[str, dict[str, Any]] = {  # options of several commands
    "--seed": {"metavar": "N", "type": _natural, "default": 0, "help": "seed of whatever is random; default 0"},
    "--max-iterations": {"metavar": "N", "type": _natural, "help": "of a run; default: the solver's own"},
    "--set": {"metavar": "KEY=VALUE", "action": "append", "default": [], "dest": "settings", "help": "change a setting"},
    "--resume": {"action": "store_true", "help": "go on from the checkpoint in DIR"},
    "--again": {"action": "store_true", "help": "solve anew what is already in DIR"},
    "--quiet": {"action": "store_true", "help": "print nothing but errors"},
    "--verbose": {
        "action": "store_true",
        "help": "log every iteration, and every program compiled, with the time, to the standard error",
    },
}


def _add_shared(add: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        add.add_argument(name, **_SHARED[name])


def _add_out(add: argparse.ArgumentParser, text: str, default: pathlib.Path | None = None) -> None:
    add.add_argument("--out", metavar="DIR", type=pathlib.Path, default=default, help=text)


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
        width = max(len(item.solver) for item in entries.values())
        rows = [(name, f"{item.solver:<{width}}  {item.summary}") for name, item in entries.items()]
        _block("problems", rows, what is None)
    if what in (None, "solvers"):
        _block("solvers", [(name, entry.summary) for name, entry in solvers.SOLVERS.items()], what is None)
    if what in (None, "models"):
        _block("models", [(name, "") for name in bundled_models()], what is None)
    if what in (None, "tasks"):
        _block("tasks", [(name, task.summary) for name, task in TASKS.items()], what is None)
    if what in (None, "mpc"):
        from trajopt.control.tasks import TASKS as RECEDING

        _block("mpc", [(name, task.summary) for name, task in RECEDING.items()], what is None)
    return 0


def _block(title: str, rows: Sequence[tuple[str, str]], titled: bool) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    if titled:
        print(f"{title}:")
    for name, text in rows:
        print(("  " if titled else "") + f"{name:<{width}}  {text}".rstrip())


def _run(args: argparse.Namespace) -> int:
    """The exit status of a command of a module of its own; an interruption is told in a line that says what is left."""
    with walltime.part("import"):
        module = importlib.import_module(args.module)
    last_words = getattr(module, "last_words", lambda args: "nothing was written")
    args.since = time.time()
    with heeding_signals(lambda: last_words(args)) as terminated:
        try:
            return module.command(args, terminated)
        except KeyboardInterrupt:
            print(f"trajopt: interrupted: {last_words(args)}", file=sys.stderr)
            return 1


__all__ = ["main"]
