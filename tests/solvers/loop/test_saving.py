"""A result on disk is whole, the old one or the new one, wherever the process that saves it is killed; damage is named."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from kills import calls, snapshots

from trajopt import files
from trajopt.errors import OptionError
from trajopt.result import Status
from trajopt.solvers.loop.checkpoint import Checkpoint, write_checkpoint
from trajopt.solvers.loop.solution import Solution, amend_summary

TESTS = pathlib.Path(__file__).resolve().parents[2]


def solution(cost: float, *, motion: bool = True, log: str = "") -> Solution:
    """A result in which every file holds its cost."""
    return Solution(
        problem="toy", solver="GaussNewton", gradient="implicit", contact="none", status=Status.solved, success=True,
        message="solved", x=np.full(300, cost), cost=cost, initial_cost=10.0, residuals={"residual": float("inf")},
        trace={"cost": np.array([10.0, cost])}, iterations=1, evaluations=2, compile_time_s=0.1, wall_time_s=0.2, seed=0,
        trajectory={"t": np.arange(2.0), "q": np.full((2, 400), cost)} if motion else {}, log=log,
    )  # fmt: skip


def costs(found: Solution) -> set[float]:
    """The cost, as every file of a result tells it."""
    told = {found.cost, *found.x.tolist(), float(found.trace["cost"][-1])}
    told |= set(found.trajectory["q"].ravel().tolist()) if found.trajectory else set()
    return told | ({float(found.log)} if found.log else set())


OLD_AND_NEW = [
    (solution(1.0, log="1"), solution(2.0, log="2")),
    (solution(1.0, log="1"), solution(2.0, motion=False)),  # files of the old one go
    (solution(1.0, motion=False), solution(2.0, log="2")),  # files come
]


@pytest.mark.parametrize(("old", "new"), OLD_AND_NEW)
def test_wherever_saving_is_killed_the_old_or_the_new_result_is_whole(old, new, tmp_path):
    folder = tmp_path / "out"
    old.save(folder)
    with snapshots(folder, tmp_path / "copies") as found:
        new.save(folder)
    assert len(found) > 15
    seen = []
    for copy in found:
        loaded = Solution.load(copy)
        assert costs(loaded) in ({1.0}, {2.0})
        expected = old if loaded.cost == 1.0 else new
        assert set(loaded.trajectory) == set(expected.trajectory) and loaded.log == expected.log
        seen.append(loaded.cost)
        # The next writer ends what the killed one began.
        files.tidy(copy)
        assert costs(Solution.load(copy)) == {loaded.cost}
        assert all(name in ("summary.json", "solution.npz", "trajectory.npz", "solver.log") for name in os.listdir(copy))
        assert json.loads((copy / "summary.json").read_text())["cost"] == loaded.cost
    assert seen == sorted(seen) and set(seen) == {1.0, 2.0}
    third = solution(3.0)
    for copy in found[::6]:
        assert costs(Solution.load(third.save(copy))) == {3.0} and not (copy / files.MOVING).exists()


def test_the_first_result_of_a_folder_is_there_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with snapshots(folder, tmp_path / "copies") as found:
        solution(2.0).save(folder)
    seen = []
    for copy in found:
        try:
            seen.append(Solution.load(copy).cost)
        except OptionError as error:
            assert "holds no finished run" in str(error)
            seen.append(0.0)
    assert seen == sorted(seen) and set(seen) == {0.0, 2.0}


def test_wherever_amending_is_killed_the_summary_is_whole(tmp_path):
    folder = solution(1.0).save(tmp_path / "out", {"settings": {"mass": 2.0}})
    with snapshots(folder, tmp_path / "copies") as found:
        amend_summary(folder, {"wall_clock_s": {"total": 1.0}})
    totals = []
    for copy in found:
        summary = json.loads((copy / "summary.json").read_text())
        assert summary["settings"] == {"mass": 2.0} and costs(Solution.load(copy)) == {1.0}
        totals.append("wall_clock_s" in summary)
    assert totals == sorted(totals) and set(totals) == {False, True}


def checkpoint(value: float) -> tuple[tuple[np.ndarray, ...], dict[str, str], dict[str, float]]:
    return (np.full(2000, value), np.array(value)), {"problem": "toy"}, {"iteration": value}


def test_wherever_a_checkpoint_is_killed_the_old_or_the_new_one_is_whole(tmp_path):
    path = tmp_path / "out" / "checkpoint.npz"
    write_checkpoint(path, *checkpoint(1.0))
    with snapshots(path.parent, tmp_path / "copies") as found:
        write_checkpoint(path, *checkpoint(2.0))
    values = []
    for copy in found:
        loaded = Checkpoint(copy / path.name)
        state = loaded.restore(checkpoint(0.0)[0])
        assert set(state[0].tolist()) == {float(state[1])} == {float(loaded.progress["iteration"])}
        values.append(float(state[1]))
        files.tidy(copy)
        assert os.listdir(copy) == [path.name]
    assert values == sorted(values) and set(values) == {1.0, 2.0}


def test_files_are_on_the_disk_before_they_take_their_places(tmp_path):
    """What a machine leaves that loses its power is what was synchronised: every file before it is renamed, and the folders."""
    folder = tmp_path / "out"
    solution(1.0).save(folder)
    events: list[list[str]] = []
    with calls(folder, lambda what: events.append(what.split(" ", 1))):
        solution(2.0, log="2").save(folder)
        write_checkpoint(folder / "checkpoint.npz", *checkpoint(1.0))
    synchronised = set()
    for kind, name in events:
        if kind == "write":
            synchronised.discard(name)
        elif kind == "fsync":
            synchronised.add(name)
        elif kind in ("rename", "replace") and files.MOVING not in name:
            inside = {other for kind, other in events if kind in ("open", "mkdir") and other.startswith(name)}
            assert inside and inside <= synchronised
    assert str(folder.resolve()) in synchronised


KILLED = """
import os, pathlib, signal, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from kills import calls
from solvers.loop.test_saving import checkpoint, solution
from trajopt.solvers.loop.checkpoint import write_checkpoint

folder, counted = pathlib.Path(sys.argv[2]), 0

def count(what):
    global counted
    counted += 1
    if counted == limit:
        os.kill(os.getpid(), signal.SIGKILL)

for limit in range(1, 10_000):
    place = folder / str(limit)
    solution(1.0, log="1").save(place)
    write_checkpoint(place / "checkpoint.npz", *checkpoint(1.0))
    child = os.fork()
    if child == 0:
        with calls(place, count):
            solution(2.0, motion=False).save(place)
            write_checkpoint(place / "checkpoint.npz", *checkpoint(2.0))
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(limit)
"""


@pytest.mark.slow
def test_processes_that_are_killed_leave_whole_results(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(TESTS), str(tmp_path)], capture_output=True, text=True, check=True
    )
    kills = int(done.stdout) - 1
    assert kills > 20
    for limit in range(1, kills + 1):
        assert costs(Solution.load(tmp_path / str(limit))) in ({1.0}, {2.0})
        assert float(Checkpoint(tmp_path / str(limit) / "checkpoint.npz").progress["iteration"]) in (1.0, 2.0)


@pytest.mark.parametrize("name", ["summary.json", "solution.npz", "trajectory.npz"])
def test_files_of_several_results_are_refused_by_name(name, tmp_path):
    one, other = solution(1.0).save(tmp_path / "one"), solution(2.0).save(tmp_path / "other")
    shutil.copy(other / name, one / name)
    with pytest.raises(OptionError, match=r"mixes files of several results .*summary\.json of .*by their result_id"):
        Solution.load(one)


def test_results_of_before_there_was_an_identity_load_and_do_not_mix(tmp_path):
    folder, newer = solution(1.0).save(tmp_path / "old"), solution(2.0).save(tmp_path / "new")
    for name in ("solution.npz", "trajectory.npz"):
        arrays = files.read_arrays(folder / name, "")
        np.savez(folder / name, **{key: value for key, value in arrays.items() if key != "result_id"})
    summary = json.loads((folder / "summary.json").read_text())
    del summary["result_id"]
    (folder / "summary.json").write_text(json.dumps(summary))
    assert costs(Solution.load(folder)) == {1.0}
    shutil.copy(folder / "solution.npz", newer)
    with pytest.raises(OptionError, match="solution.npz of no"):
        Solution.load(newer)


def damaged(content: bytes) -> list[bytes]:
    """Cut short, empty, with bytes changed here and there, something else."""
    rng = np.random.default_rng(0)
    found = [content[: int(share * len(content))] for share in (0.0, 0.1, 0.5, 0.9, 0.99)] + [b"\x00" * 100, b"PK\x05\x06", b"[]"]
    for _ in range(150):
        changed = np.frombuffer(content, np.uint8).copy()
        start = int(rng.integers(len(content)))
        stretch = changed[start : start + int(rng.integers(1, 40))]
        stretch[:] = rng.integers(0, 256, stretch.size)
        found.append(changed.tobytes())
    return found


@pytest.mark.parametrize("name", ["summary.json", "solution.npz", "trajectory.npz", "checkpoint.npz"])
def test_a_damaged_file_is_named_with_the_remedy(name, tmp_path):
    folder = solution(1.0, log="1").save(tmp_path / "out")
    write_checkpoint(folder / "checkpoint.npz", *checkpoint(1.0))
    content, refused = (folder / name).read_bytes(), 0
    for changed in damaged(content):
        (folder / name).write_bytes(changed)
        try:
            if name == "checkpoint.npz":
                Checkpoint(folder / name).restore(checkpoint(0.0)[0])
            else:
                Solution.load(folder)
        except OptionError as error:
            refused += 1
            assert str(folder) in str(error)
            assert any(remedy in str(error) for remedy in ("run the problem again", "start anew", "other problem settings"))
    assert refused > 50


def test_a_folder_that_cannot_be_written_keeps_what_it_has(tmp_path):
    """The disk is full from each of the writes on."""
    folder, failures, limit = tmp_path / "out", 0, 0
    solution(1.0, log="1").save(folder)

    def full(what: str) -> None:
        nonlocal counted
        counted += what.startswith(("write", "mkdir", "fsync"))
        if counted >= limit and what.startswith(("write", "mkdir", "fsync")):
            raise OSError(28, "No space left on device")

    while True:
        counted, limit = 0, limit + 1
        try:
            with calls(folder, full):
                solution(2.0).save(folder)
        except OSError as error:
            failures += 1
            assert error.filename == str(folder)
        else:
            break
        assert costs(Solution.load(folder)) in ({1.0}, {2.0})
        assert not list(folder.glob(f"{files.TEMPORARY}*"))
    assert failures > 10 and costs(Solution.load(folder)) == {2.0}


def test_killed_writers_of_two_processes_leave_the_later_result(tmp_path):
    """A result that was decided and not moved is not lost when the next one is saved, and not mixed with it."""
    folder = tmp_path / "out"
    solution(1.0, log="1").save(folder)
    with snapshots(folder, tmp_path / "copies") as found:
        solution(2.0, motion=False).save(folder)
    decided = [copy for copy in found if (copy / files.MOVING).exists()]
    assert len(decided) >= 4
    for k, copy in enumerate(decided):
        with snapshots(copy, tmp_path / f"again{k}") as again:
            solution(3.0).save(copy)
        assert {frozenset(costs(Solution.load(state))) for state in again} == {frozenset({2.0}), frozenset({3.0})}
