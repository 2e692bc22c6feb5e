"""Two runs into one folder: the second one is told who has it, and a killed run leaves neither its lock nor what it had begun."""

import contextlib
import json
import os
import signal
import socket
import threading

import pytest
from learning_cases import slider
from least_squares_cases import rosenbrock
from processes import ENDLESS_RUN, python, until_it_goes_on

from trajopt import problems, solvers
from trajopt.cli import main
from trajopt.errors import OptionError
from trajopt.learning import PPO, train
from trajopt.occupied import LOCK, occupying
from trajopt.solvers import solve_tasks
from trajopt.solvers.loop.solution import Solution

HOLDING = """
import sys, time
from trajopt.occupied import occupying
with occupying(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def toy(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    problems.register("toy", lambda: rosenbrock(tolerance=1e-9), "a bent valley")
    yield "toy"
    problems.unregister("toy")


@contextlib.contextmanager
def held(folder):
    """A process that has the folder."""
    with python(HOLDING, str(folder)) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == "held"
        yield process


def test_a_second_run_is_told_who_has_the_folder_and_a_killed_one_has_nothing(toy, tmp_path, capsys):
    folder = tmp_path / "out"
    commands = {
        "run": ["run", "toy", "--quiet", "--out", str(folder)],
        "compare": ["compare", "toy", "--solvers", "GaussNewton", "--out", str(folder)],
        "train": ["train", "cartpole-swingup", "--out", str(folder)],
    }
    with held(folder) as process:
        for command in commands.values():
            assert main(command) == 2
            err = capsys.readouterr().err
            assert f"another run writes into '{folder}' (process {process.pid} on {socket.gethostname()}, since 20" in err
            assert "wait until it has ended, or give another folder (--out)" in err
        with pytest.raises(OptionError, match=f"process {process.pid}"):
            solve_tasks([solvers.Task(rosenbrock(), solvers.GaussNewton())], folder=folder)
        assert set(os.listdir(folder)) == {LOCK}
        # What a run leaves that is killed while it writes.
        (folder / ".part-0123456789ab-animation.gif").write_bytes(b"GIF89a")
        (folder / ".part-0123456789ab-together").mkdir()
        (folder / ".part-0123456789ab-together" / "summary.json").write_text("{")
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (folder / LOCK).exists()
    assert main(commands["run"]) == 0
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
    assert Solution.load(folder).success


def test_a_termination_signal_ends_a_run_without_pictures_and_the_one_beside_it_is_refused(toy, tmp_path, capsys):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "animation.gif").write_bytes(b"of an earlier run")
    with python(ENDLESS_RUN, str(folder)) as process:
        until_it_goes_on(folder / "checkpoint.npz", process)
        assert main(["run", "toy", "--out", str(folder), "--resume"]) == 2
        assert f"process {process.pid} on" in capsys.readouterr().err
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in err, err
    assert "no pictures are drawn after a termination signal" in out
    loaded = Solution.load(folder)
    assert loaded.cost < loaded.initial_cost and json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    assert set(os.listdir(folder)) == {"checkpoint.npz", "solution.npz", "summary.json"}


def test_blocks_nest_in_one_thread_and_exclude_the_others(tmp_path):
    seen = []

    def other():
        try:
            with occupying(tmp_path):
                seen.append("had it")
        except OptionError as error:
            seen.append(str(error))

    with occupying(tmp_path):
        with occupying(f"{tmp_path}/./"):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(seen) == 1 and f"process {os.getpid()} on" in seen[0]
    other()
    assert seen[1] == "had it" and not os.listdir(tmp_path)


def test_a_training_refuses_a_folder_that_another_one_has(tmp_path):
    with held(tmp_path), pytest.raises(OptionError, match="another run writes into"):
        train(slider(), PPO(environments=4, length=4, minibatches=2), samples=16, folder=tmp_path)
