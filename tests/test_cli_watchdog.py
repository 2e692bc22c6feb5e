"""Ctrl-C and termination signals to commands whose main thread is stuck in a compiled program."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from processes import python, until, until_it_goes_on

from trajopt.cli.watchdog import BURST_S, PATIENCE_S
from trajopt.solvers.loop.checkpoint import Checkpoint

# A problem whose compiled residual never returns once the file "hang" is there; it then writes the file "stuck".
STUCK = """
import ctypes, pathlib, sys
import jax, jax.numpy as jnp, numpy as np
from trajopt import problems
from trajopt.cli import main

folder = pathlib.Path(sys.argv[1])

def wait(x):
    if (folder / "hang").exists():
        mutex, lock = ctypes.create_string_buffer(128), ctypes.CDLL(None).pthread_mutex_lock
        lock(mutex)
        (folder / "stuck").touch()
        lock(mutex)  # in C, without Python's lock: no handler of Python's runs in this thread any more
    return x

def factory():
    def residual(x):
        kept = jax.lax.stop_gradient(x)
        zero = jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), kept, vmap_method="sequential") - kept
        return jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]]) + zero
    return problems.LeastSquaresProblem("stuck", residual, np.array([-1.2, 1.0]), defaults=problems.Defaults("GradientDescent"))

problems.register("stuck", factory, "never ends")
sys.exit(main(sys.argv[2:]))
"""


def stop(process: subprocess.Popen, signals: tuple[int, ...], pause: float) -> tuple[str, float]:
    """Send the signals with pauses between; (standard error, seconds from the last one to the end)."""
    for k, number in enumerate(signals):
        if k:
            time.sleep(pause)
        assert process.poll() is None
        os.kill(process.pid, number)
    start = time.monotonic()
    _, err = process.communicate(timeout=60)
    return err, time.monotonic() - start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_run_that_is_stuck_and_the_checkpoint_resumes(number, tmp_path):
    run = ("run", "stuck", "--max-iterations", "1000000", "--out", str(tmp_path))
    checkpoint = tmp_path / "checkpoint.npz"
    with python(STUCK, str(tmp_path), *run) as process:
        until_it_goes_on(checkpoint, process)
        (tmp_path / "hang").touch()
        until((tmp_path / "stuck").exists, process)
        err, seconds = stop(process, (number, number), BURST_S + 1.0)
    assert process.returncode == 1
    assert seconds < PATIENCE_S + 10  # 10 s: other processes may have the cores
    assert f"the last checkpoint is {checkpoint}: go on with --resume" in err and "Traceback" not in err
    found = Checkpoint(checkpoint)
    found.check({"problem": "stuck", "solver": "GradientDescent", "gradient": "implicit"})
    iterations = int(found.progress["iteration"])
    assert iterations > 0 and np.isfinite(found.progress["trace"]).all()

    (tmp_path / "hang").unlink()
    again = ("run", "stuck", "--max-iterations", "1", "--out", str(tmp_path), "--resume")
    with python(STUCK, str(tmp_path), *again) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1 and "Traceback" not in err, err
    assert int(Checkpoint(checkpoint).progress["iteration"]) == iterations + 1


def test_the_two_signals_of_timeout_count_once_and_a_hint_says_what_to_do(tmp_path):
    with python(STUCK, str(tmp_path), "run", "stuck", "--out", str(tmp_path)) as process:
        until((tmp_path / "checkpoint.npz").exists, process)
        (tmp_path / "hang").touch()
        until((tmp_path / "stuck").exists, process)
        for number in (signal.SIGTERM, signal.SIGTERM):
            os.kill(process.pid, number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2 * PATIENCE_S)
        err, _ = stop(process, (signal.SIGTERM,), 0.0)
    assert process.returncode == 1
    assert "a second Ctrl-C or termination signal ends the run now" in err


def test_a_run_stuck_before_its_first_point_says_that_there_is_none(tmp_path):
    """Also beside the checkpoint of an earlier run."""
    (tmp_path / "hang").touch()
    (tmp_path / "checkpoint.npz").write_bytes(b"of an earlier run")
    os.utime(tmp_path / "checkpoint.npz", (1, 1))
    with python(STUCK, str(tmp_path), "run", "stuck", "--out", str(tmp_path)) as process:
        until((tmp_path / "stuck").exists, process)
        err, _ = stop(process, (signal.SIGTERM, signal.SIGTERM), BURST_S + 0.5)
    assert process.returncode == 1 and "there was no point to save yet" in err


def test_compare_that_is_stuck_ends_too(tmp_path):
    (tmp_path / "hang").touch()
    command = ("compare", "stuck", "--solvers", "GradientDescent", "--out", str(tmp_path))
    with python(STUCK, str(tmp_path), *command) as process:
        until((tmp_path / "stuck").exists, process)
        err, _ = stop(process, (signal.SIGINT, signal.SIGINT), BURST_S + 0.5)
    assert process.returncode == 1 and "the same command goes on" in err


def test_a_second_signal_interrupts_a_main_thread_that_answers(tmp_path):
    """While the command cleans up after the first one, as its own handler would."""
    code = """
import pathlib, sys, time
from trajopt.cli.watchdog import heeding_signals

with heeding_signals(lambda: "ended from outside"):
    try:
        pathlib.Path(sys.argv[1], "ready").touch()
        time.sleep(60)
    except KeyboardInterrupt:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            sys.exit(7)
"""
    with python(code, str(tmp_path)) as process:
        until(pathlib.Path(tmp_path, "ready").exists, process)
        err, seconds = stop(process, (signal.SIGTERM, signal.SIGTERM), BURST_S + 1.0)
    assert process.returncode == 7 and not err and seconds < PATIENCE_S


DROPPED = """
import gc, os, signal, sys, time
from trajopt.cli.watchdog import heeding_signals

class Dropping:
    def __del__(self):
        os.kill(os.getpid(), signal.{number})
        time.sleep(0.1)

def collected(phase, info):
    if phase == "start":
        os.kill(os.getpid(), signal.{number})
        time.sleep(0.6)

with heeding_signals(lambda: "ended from outside"):
    try:
        if {finaliser}:
            Dropping()
        else:
            gc.callbacks.append(collected)
            gc.collect()
        time.sleep(60)
    except KeyboardInterrupt:
        gc.callbacks.clear()
        if not {finaliser}:
            time.sleep(4)  # a signal that counted twice ends the process meanwhile
        sys.exit(7)
"""


@pytest.mark.parametrize(("number", "finaliser"), [("SIGINT", False), ("SIGINT", True), ("SIGTERM", True)])
def test_an_interrupt_that_python_drops_is_raised_once_more(number, finaliser):
    """In a finaliser, and in a callback of the garbage collector, where it takes longer than a burst."""
    with python(DROPPED.format(number=number, finaliser=finaliser)) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 7 and not err


def test_what_else_python_drops_is_still_told():
    """By hooks that were there before, which are there again afterwards."""
    from trajopt.cli.watchdog import heeding_signals
    from trajopt.solvers.loop.base import end_signals

    class Dropping:
        def __del__(self):
            raise ValueError("told")

    for heeded in (heeding_signals(lambda: ""), end_signals()):
        told: list[type] = []
        before, sys.unraisablehook = sys.unraisablehook, lambda dropped, told=told: told.append(dropped.exc_type)
        try:
            hook = sys.unraisablehook
            with heeded:
                Dropping()
            assert told == [ValueError] and sys.unraisablehook is hook
        finally:
            sys.unraisablehook = before


def test_signals_are_as_before_after_the_command():
    from trajopt.cli.watchdog import heeding_signals

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with heeding_signals(lambda: ""):
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1
