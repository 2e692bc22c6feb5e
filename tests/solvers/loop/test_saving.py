"""A result on disk is whole, the old one or the new one, wherever the process that saves it is killed; damage is named."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from kills import snapshots

from trajopt import files
from trajopt.errors import OptionError
from trajopt.result import Status
from trajopt.solvers.loop.checkpoint import Checkpoint, write_checkpoint
from trajopt.solvers.loop.solution import Solution


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


@pytest.mark.parametrize("name", ["summary.json", "solution.npz", "trajectory.npz"])
def test_files_of_several_results_are_refused_by_name(name, tmp_path):
    one, other = solution(1.0).save(tmp_path / "one"), solution(2.0).save(tmp_path / "other")
    shutil.copy(other / name, one / name)
    with pytest.raises(OptionError, match=r"mixes files of several results .*summary\.json of .*by their result_id"):
        Solution.load(one)


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
