"""A disk that is full, or fails, ends neither a solve nor a training: what was computed is kept, and writing is tried again."""

import contextlib
import csv
import functools
import json
import os
import warnings

import least_squares_cases
import numpy as np
import pytest
from kills import calls
from learning_cases import slider
from processes import python

from trajopt import solvers
from trajopt.learning import PPO, train
from trajopt.solvers.loop import base
from trajopt.solvers.loop.checkpoint import Checkpoint

rosenbrock = functools.partial(least_squares_cases.rosenbrock, tolerance=1e-9)


class Disk:
    """Full while `full` is set: writes into a folder then fail, as the system has them fail."""

    def __init__(self) -> None:
        self.full, self.refused = False, 0

    def change(self, what: str) -> None:
        if self.full and what.startswith(("write", "mkdir", "fsync")):
            self.refused += 1
            raise OSError(28, "No space left on device")


@pytest.fixture
def disk(tmp_path):
    disk = Disk()
    with calls(tmp_path, disk.change):
        yield disk


@pytest.fixture
def often(monkeypatch):
    """A checkpoint at every iteration."""
    monkeypatch.setattr(base, "CHECKPOINT_INTERVAL_S", 0.0)
    monkeypatch.setattr(base, "RETRY_S", 0.0)


@pytest.mark.parametrize("until", [8, None])
def test_a_full_disk_costs_a_solve_nothing_but_checkpoints(until, disk, often, tmp_path):
    path = tmp_path / "checkpoint.npz"

    def callback(row):
        disk.full = row["iteration"] >= 3 and (until is None or row["iteration"] < until)

    whole = solvers.solve(rosenbrock(), solvers.GaussNewton())
    assert whole.iterations > 9
    with pytest.warns(UserWarning, match=r"checkpoint.npz' could not be written \(No space left on device\); the sol") as told:
        found = solvers.solve(rosenbrock(), solvers.GaussNewton(), checkpoint=path, callback=callback)
    assert disk.refused >= 4 and len(told) >= 4 and str(path) in str(told[0].message)
    disk.full = False
    assert found.success and found.cost == whole.cost and found.iterations == whole.iterations
    np.testing.assert_array_equal(found.x, whole.x)
    kept = int(Checkpoint(path).progress["iteration"])
    assert kept == (3 if until is None else whole.iterations) and os.listdir(tmp_path) == [path.name]
    again = solvers.solve(rosenbrock(), solvers.GaussNewton(), resume=path)
    assert again.success and again.iterations == whole.iterations


def test_a_place_that_cannot_be_written_is_told_before_the_first_iteration(disk, tmp_path):
    disk.full, rows = True, []
    with pytest.raises(OSError, match="No space left on device") as caught:
        solvers.solve(rosenbrock(), solvers.GaussNewton(), checkpoint=tmp_path / "checkpoint.npz", callback=rows.append)
    assert caught.value.filename == str(tmp_path / "checkpoint.npz") and not rows


@pytest.mark.parametrize("until", [4, None])
def test_a_full_disk_costs_a_training_nothing_but_files(until, disk, tmp_path):
    ppo = PPO(environments=4, length=4, hidden=(4,), critic_hidden=(4,), minibatches=2, epochs=1)
    options = {"samples": 6 * ppo.samples, "evaluations": 3, "episodes": 4, "checkpoint_every_s": 0.0}

    def callback(row):
        disk.full = row["update"] >= 2 and (until is None or row["update"] < until)

    with pytest.warns(UserWarning, match=r"could not be written \(No space left on device\); the ") as told:
        found = train(slider(), ppo, folder=tmp_path / "out", callback=callback, **options)
    disk.full = False
    assert len(found.curve) == 6
    for name in ("curve.csv", "checkpoint.npz"):
        assert any(f"'{tmp_path / 'out' / name}' could not" in str(warning.message) for warning in told)
    rows = list(csv.DictReader((tmp_path / "out" / "curve.csv").read_text().splitlines()))
    kept = json.loads(str(Checkpoint(tmp_path / "out" / "checkpoint.npz").progress["rows"]))
    assert (len(rows), len(kept)) == ((2, 1) if until is None else (6, 6))  # the checkpoint of an update follows its row
    assert [int(row["update"]) for row in rows] == list(range(1, len(rows) + 1))


REALLY_FULL = """
import pathlib, resource, signal, sys, threading, time
import numpy as np, jax.numpy as jnp
import jax
from trajopt import problems
from trajopt.cli import main

jax.config.update("jax_enable_compilation_cache", False)  # its files would be cut off as well, for other tests too
folder = pathlib.Path(sys.argv[1])

def factory():
    residual = lambda x: jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])
    return problems.LeastSquaresProblem("toy", residual, np.array([-1.2, 1.0]), defaults=problems.Defaults("GradientDescent"))

def fill():
    while not (folder / "checkpoint.npz").exists():
        time.sleep(0.01)
    if sys.argv[2] == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))  # no file may be longer than 100 bytes

threading.Thread(target=fill, daemon=True).start()
problems.register("toy", factory, "takes a while")
sys.exit(main(["run", "toy", "--max-iterations", sys.argv[3], "--out", sys.argv[1], *sys.argv[4:]]))
"""


def test_a_run_whose_result_finds_no_room_says_how_to_get_it(tmp_path):
    """Of a real limit of the system."""
    with python(REALLY_FULL, str(tmp_path), "full", "300") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and "Traceback" not in err, err
    assert f"warning: '{tmp_path / 'checkpoint.npz'}' could not be written (File too large)" in err
    assert f"the result could not be saved into '{tmp_path}' (File too large); make room" in err and "--resume" in err
    assert os.listdir(tmp_path) == ["checkpoint.npz"]
    with python(REALLY_FULL, str(tmp_path), "empty", "5", "--resume") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1 and not err
    assert {"summary.json", "solution.npz"} <= set(os.listdir(tmp_path))


def test_a_warning_that_is_an_error_ends_the_solve_as_its_owner_wants(disk, often, tmp_path):
    def callback(row):
        disk.full = True

    with warnings.catch_warnings(), contextlib.suppress(UserWarning):
        warnings.simplefilter("error")
        solvers.solve(rosenbrock(), solvers.GaussNewton(), checkpoint=tmp_path / "checkpoint.npz", callback=callback)
        pytest.fail("no warning")
