"""The command line: what it prints, what it writes, its exit status, and how it answers bad input."""

import csv
import json
import logging
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest
from processes import ENDLESS_RUN, python, until_it_goes_on

from trajopt import native, problems
from trajopt.cli import main
from trajopt.models import load_model
from trajopt.problems import Display, LeastSquaresProblem
from trajopt.viz import plots

SUMMARY = {
    "problem",
    "solver",
    "gradient",
    "contact",
    "status",
    "success",
    "cost",
    "initial_cost",
    "iterations",
    "evaluations",
    "compile_time_s",
    "wall_time_s",
    "constraint_violation",
    "seed",
    "versions",
}


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A small problem with a motion of the cube model: reach a point by choosing a constant velocity."""
    monkeypatch.chdir(tmp_path)
    model = load_model("cube")

    def factory(*, distance: float = 1.0, reachable: bool = True, steps: int = 4):
        def residual(x):
            offset = 0.0 if reachable else 1.0
            return jnp.stack([x[0] ** 2 - distance, jnp.exp(x[1]) - 1.0, 0.0 * x[0] + offset])

        def trajectory(x):
            t = np.linspace(0.0, 0.1 * steps, steps + 1)
            q = np.tile(np.asarray(model.q_default), (steps + 1, 1))
            q[:, 0] += np.asarray(x)[0] * t
            v = np.zeros((steps + 1, model.nv))
            return {"t": t, "q": q, "v": v, "u": np.zeros((steps, model.nu)), "impulse": np.ones((steps, 2, 3))}

        return LeastSquaresProblem(
            "toy",
            residual,
            np.array([3.0, 0.5]),
            tolerance=1e-9,
            meta={"contact": "RigidContact"},
            display=Display(motion=trajectory, model=model, report=lambda x: f"velocity {x[0]:.3f} m/s"),
        )

    problems.register("toy", factory, "reach a point")
    yield tmp_path
    problems.unregister("toy")


def test_run_writes_everything_and_returns_zero(toy, capsys):
    assert main(["run", "toy", "--seed", "4", "--set", "distance=4", "--animation"]) == 0
    folder = toy / "runs" / "toy"
    names = {path.name for path in folder.iterdir()}
    assert {
        "summary.json",
        "trajectory.npz",
        "convergence.png",
        "trajectory.png",
        "animation.gif",
        "checkpoint.npz",
    } <= names
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary) >= SUMMARY
    assert summary["status"] == "solved" and summary["success"] is True and summary["seed"] == 4
    assert summary["contact"] == "RigidContact" and summary["solver"] == "GaussNewton"
    assert summary["residuals"]["residual"] <= 1e-9
    with np.load(folder / "trajectory.npz") as data:
        assert set(data) == {"t", "q", "v", "u", "impulse"}
        assert data["q"][-1, 0] - data["q"][0, 0] == pytest.approx(2.0 * 0.4, rel=1e-9)
    out = capsys.readouterr().out
    assert "iteration" in out and "step size" in out and "solved" in out and "velocity 2.000 m/s" in out


def test_an_animation_is_drawn_when_it_is_asked_for(toy):
    assert main(["run", "toy", "--quiet"]) == 0
    folder = toy / "runs" / "toy"
    assert (folder / "trajectory.png").exists() and not (folder / "animation.gif").exists()
    assert "animation" not in json.loads((folder / "summary.json").read_text())["wall_clock_s"]


def test_a_run_says_where_its_wall_time_went(toy, capsys):
    assert main(["run", "toy", "--animation"]) == 0
    spent = json.loads((toy / "runs/toy/summary.json").read_text())["wall_clock_s"]
    parts = {key: value for key, value in spent.items() if key != "total"}
    assert list(parts) == ["import", "load", "solve", "certificate", "plots", "animation", "compile", "other"]
    assert all(value >= 0 for value in parts.values())
    assert sum(parts.values()) == pytest.approx(spent["total"], rel=0.02)
    assert min(parts[key] for key in ("solve", "plots", "animation", "compile")) > 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("wall time ") and all(f" {key} " in last for key in parts)


def test_a_picture_that_fails_loses_neither_the_results_nor_the_exit_status(toy, capsys, monkeypatch):
    def fail(*arguments, **options):
        raise IndexError("list index out of range")

    for name in ("trajectory", "comparison"):
        monkeypatch.setattr(plots, name, fail)
    (toy / "runs" / "toy").mkdir(parents=True)
    (toy / "runs" / "toy" / "trajectory.png").write_bytes(b"of an earlier run")
    assert main(["run", "toy", "--animation"]) == 0
    folder = toy / "runs" / "toy"
    assert json.loads((folder / "summary.json").read_text())["status"] == "solved"
    assert (folder / "animation.gif").exists() and not (folder / "trajectory.png").exists()
    captured = capsys.readouterr()
    assert captured.err == "trajopt: warning: trajectory.png could not be drawn: IndexError: list index out of range\n"
    assert "animation.gif" in captured.out and "trajectory.png" not in captured.out
    assert main(["compare", "toy", "--solvers", "GaussNewton", "--out", "table"]) == 0
    assert "compare.png could not be drawn" in capsys.readouterr().err
    assert (toy / "table" / "compare.json").exists()


def test_a_run_that_misses_the_tolerance_returns_one(toy, capsys):
    assert main(["run", "toy", "--set", "reachable=False", "--out", "missed"]) == 1
    summary = json.loads((toy / "missed" / "summary.json").read_text())
    assert summary["success"] is False and summary["status"] == "stalled"
    assert "residual is 1, allowed 1e-09" in capsys.readouterr().out


def test_quiet_prints_nothing(toy, capsys):
    assert main(["run", "toy", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""


def test_verbose_logs_every_iteration_and_what_is_compiled(toy, caplog):
    level = logging.getLogger("trajopt").level
    try:
        assert main(["run", "toy", "--quiet", "--verbose"]) == 0
    finally:
        logging.getLogger("trajopt").setLevel(level)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("trajopt")]
    iterations = json.loads((toy / "runs/toy/summary.json").read_text())["iterations"]
    assert sum(text.startswith("iteration ") for text in said) == iterations + 1
    assert said[0].startswith("toy: GaussNewton, ") and any(text.startswith("toy: solved") for text in said)


def test_resume_goes_on_from_the_checkpoint(toy):
    assert main(["run", "toy", "--quiet", "--max-iterations", "2"]) == 1
    first = json.loads((toy / "runs/toy/summary.json").read_text())
    assert main(["run", "toy", "--quiet", "--resume"]) == 0
    second = json.loads((toy / "runs/toy/summary.json").read_text())
    assert first["status"] == "max_iterations" and first["iterations"] == 2 < second["iterations"]
    assert second["initial_cost"] == first["initial_cost"]


def test_compare_writes_a_table_and_a_plot(toy, capsys):
    solvers_ = "GaussNewton,gradient-descent"
    command = ["compare", "toy", "--solvers", solvers_, "--gradients", "implicit,finite-difference", "--seeds", "2"]
    assert main([*command, "--budget", "5", "--out", "table"]) == 0
    assert (toy / "table" / "compare.png").stat().st_size > 10_000
    with open(toy / "table" / "compare.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 2, "neither solver is random: each runs once, whatever the number of seeds"
    assert {row["gradient"] for row in rows} == {"implicit", "finite-difference"}
    document = json.loads((toy / "table" / "compare.json").read_text())
    assert [float(row["cost"]) for row in rows] == [run["cost"] for run in document["runs"]]
    assert all(len(run["trace"]["cost"]) == run["iterations"] + 1 for run in document["runs"])
    assert "GradientDescent" in capsys.readouterr().out
    demo = runpy.run_path(str(pathlib.Path(__file__).parent.parent / "benchmarks" / "demo.py"), run_name="demo")
    table = demo["rows"](toy / "table")
    assert len(table) == 4 and all(len(row) == len(demo["COLUMNS"]) for row in table)


def test_compare_returns_one_when_nothing_solves_the_problem(toy):
    assert main(["compare", "toy", "--solvers", "GaussNewton", "--set", "reachable=False"]) == 1


def test_list(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("problems:", "go1-stand", "solvers:", "GaussNewton", "models:", "cube"))
    assert next(line for line in out.splitlines() if line.split()[:1] == ["catapult"]).split()[1] == "MultipleShooting"
    assert main(["list", "solvers"]) == 0
    assert "GaussNewton" in capsys.readouterr().out.split()


def test_info(capsys):
    assert main(["info", "cart-pole"]) == 0
    out = capsys.readouterr().out
    assert "2 DoF" in out and "Joints" in out


def test_info_says_what_takes_the_steps(capsys, monkeypatch):
    monkeypatch.setenv("TRAJOPT_BACKEND", "jax")
    assert main(["info", "cart-pole"]) == 0
    assert "Steps at default settings: by JAX (TRAJOPT_BACKEND asks for it)" in capsys.readouterr().out
    monkeypatch.setenv("TRAJOPT_BACKEND", "auto")
    assert main(["info", "cart-pole"]) == 0
    expected = "by the compiled core" if native.available() else native.reason()
    assert expected in capsys.readouterr().out


def test_info_of_a_problem_and_of_what_is_both(capsys):
    assert main(["info", "cartpole-swingup"]) == 0
    out = capsys.readouterr().out
    assert "integral of u^2" in out and "MultipleShooting" in out and "Joints" not in out
    assert "  steps     100           a whole number, 1 to 10000\n" in out
    assert main(["info", "hopper"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("hopper: a hopper moves") and "0.001 to 20 m/s" in out and "Joints" in out


@pytest.mark.check
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["run", "go1-stnd"], "did you mean 'go1-stand'"),
        (["run", "toy", "--solver", "GausNewton"], "'GaussNewton'"),
        (["run", "toy", "--gradient", "finite-diff"], "'finite-difference'"),
        (["run", "toy", "--set", "distanc=2"], "'distance'"),
        (["run", "toy", "--set", "distance"], "KEY=VALUE"),
        (["run", "toy", "--set", "distance=far"], "expected float"),
        (["run", "toy", "--contact", "BoxedLCP"], "offers no choice of contact model; it uses RigidContact"),
        (["run", "toy", "--resume"], "there is no checkpoint"),
        (["run", "toy", "--out", "taken"], "taken"),
        (["compare", "toy", "--solvers", ","], "--solvers names nothing"),
        (["compare", "toy", "--solvers", "GaussNewton", "--gradients", "implicite"], "'implicit'"),
        (["run", "toy", "--solver", ""], "there is no solver ''"),
        (["run", "toy", "--gradient", ""], "gradient mode ''"),
        (["info", "go11"], "'go1'"),
        (["info", "go1-stnd"], "'go1-stand'"),
        (["info", "~no-such-user/go1.xml"], "there is no such user"),
        (["info", "nowhere.xml"], "nowhere.xml"),
    ],
)
def test_bad_input_is_answered_in_one_line_with_status_two(toy, capsys, command, expected):
    (toy / "taken").write_text("a file")
    assert main(command) == 2
    captured = capsys.readouterr()
    assert expected in captured.err and captured.err.startswith("trajopt: error: ")
    assert captured.err.count("\n") == 1


@pytest.mark.check
@pytest.mark.parametrize(
    "command",
    [
        [],
        ["rum"],
        ["list", "robots"],
        ["run"],
        ["run", "toy", "--seed", "-1"],
        ["run", "toy", "--max-iterations", "few"],
        ["compare", "toy"],
        ["compare", "toy", "--solvers", "GaussNewton", "--budget", "nan"],
    ],
)
def test_unusable_arguments_exit_with_status_two(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main(command)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_an_interrupted_run_writes_its_best_point(signals, tmp_path):
    """By Ctrl-C, and by `timeout`, whose signal comes twice: the second must not end the saving that the first began."""
    with python(ENDLESS_RUN, str(tmp_path)) as process:
        until_it_goes_on(tmp_path / "checkpoint.npz", process)
        for number in signals:
            os.kill(process.pid, number)
            time.sleep(0.05)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in err, err
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "interrupted" and summary["cost"] < summary["initial_cost"]
    assert "interrupted by the user" in out


def test_importing_the_command_line_is_light():
    code = "import sys, trajopt.cli; print([m for m in ('jax', 'matplotlib', 'mujoco') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_python_runs_the_package_as_the_command():
    done = subprocess.run([sys.executable, "-m", "trajopt", "run", "no-such-problem"], capture_output=True, text=True)
    assert done.returncode == 2 and "no problem 'no-such-problem'" in done.stderr
