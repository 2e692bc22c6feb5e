"""`trajopt train`: what it writes, how it answers bad input."""

import json

import pytest

from trajopt.cli import main
from trajopt.learning import tasks


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """The slider as a task."""
    options = {"environments": 4, "length": 4, "hidden": (4,), "critic_hidden": (4,), "minibatches": 2, "epochs": 1}
    monkeypatch.setitem(tasks.TASKS, "slider", tasks.Task("learning_cases:slider", "Slider-v0", "", "a toy", {"PPO": options}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_training_writes_its_files_and_goes_on(toy, capsys):
    command = ["train", "slider", "--samples", "48", "--seed", "2", "--out", "out"]
    assert main(command) in (0, 1)
    assert {path.name for path in (toy / "out").iterdir()} == {
        "animation.gif", "checkpoint.npz", "curve.csv", "curve.jsonl", "policy.npz", "summary.json", "trajectory.npz",
    }  # fmt: skip
    summary = json.loads((toy / "out" / "summary.json").read_text())
    assert summary["task"] == "slider" and summary["samples"] == 48 and summary["seed"] == 2
    text = capsys.readouterr().out
    assert "slider: PPO" in text and "success" in text and "the task is" in text
    assert main([*command, "--resume", "--quiet"]) in (0, 1)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["train", "cartpole"], "did you mean 'cartpole-swingup'"),
        (["train", "hopper", "--algorithm", "SHACK"], "did you mean 'SHAC'"),
        (["train", "cartpole-swingup", "--algorithm", "SHAC", "--gradient", "smooth"], "did you mean 'smoothed'"),
        (["train", "cartpole-swingup", "--gradient", "smoothed"], "--gradient is for --algorithm SHAC"),
        (["train", "cartpole-swingup", "--algorithm", "SHAC", "--kappa", "100", "300"], "smooths nothing"),
        (["train", "quadruped-walk", "--set", "contact=softer"], "did you mean 'soft'"),
        (["train", "hopper", "--set", "sped=2"], "task 'hopper' has no setting 'sped'; did you mean 'speed'"),
        (["train", "cartpole-swingup", "--resume", "--out", "nowhere"], "there is no checkpoint"),
    ],
)
def test_bad_input(command, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    assert text in capsys.readouterr().err


def test_tasks_are_listed(capsys):
    assert main(["list", "tasks"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in tasks.TASKS)
