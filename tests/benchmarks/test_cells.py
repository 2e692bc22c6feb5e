"""The runs behind the tables of the benchmarks: what becomes of a solve, a refusal, a crash, a stop; and the pages."""

import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt.problems import LeastSquaresProblem, OptimalControlProblem

FOLDER = pathlib.Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path.insert(0, str(FOLDER))

import cells  # noqa: E402
import library_table  # noqa: E402
from cells import Cell  # noqa: E402

# What stands in for the process of a cell: it answers the first cell and then does what the name of the second says.
WORKER = """
import json, sys, time
first, second = json.loads(sys.argv[1])
with open(sys.argv[2], "a") as report:
    report.write(json.dumps({"cell": 0, "row": {"status": "solved", "message": "solved: so"}}) + "\\n")
    report.write(json.dumps({"cell": 1, "stage": "solving", "cost": 2.5, "iterations": 3}) + "\\n")
if second["solver"] == "crash":
    raise ValueError("no such thing")
import resource
resource.setrlimit(resource.RLIMIT_CPU, (1, resource.getrlimit(resource.RLIMIT_CPU)[1]))
while True:
    pass
"""


def fit() -> LeastSquaresProblem:
    return LeastSquaresProblem("fit", lambda x: jnp.stack([x[0] - 1.0, x[0] * x[1]]), jnp.ones(2), tolerance=1e-9)


def reach() -> OptimalControlProblem:
    return OptimalControlProblem(
        "reach", lambda x, u, t: x + u, 2, x0=np.zeros(1), u0=np.zeros(1), stage_residual=lambda x, u, t: u,
        terminal_residual=lambda x: x - 1.0, control_lower=-4.0, control_upper=4.0,
    )  # fmt: skip


def test_a_run_becomes_a_row():
    told = []
    row = cells.attempt(fit(), Cell("fit", "GaussNewton"), lambda **values: told.append(values))
    assert row["status"] == "solved" and row["success"] and row["violation"] < 1e-9 and row["iterations"] > 0
    assert told[0] == {"stage": "compiling"}
    row = cells.attempt(reach(), Cell("reach", "iLQR", seed=1, perturbation=0.1, trace=True), lambda **values: None)
    np.testing.assert_allclose(row["cost"], 1 / 6, rtol=1e-9)  # u = 1/3 twice: 1/2 (2/9 + 1/9)
    assert len(row["trace"]["cost"]) == row["iterations"] + 1
    noise = cells.perturbed(reach(), 0.1, 1).us
    assert 0.0 < np.abs(noise).max() < 4 * 0.1 * 4.0 and cells.perturbed(reach(), 0.1, 0) is None
    np.testing.assert_allclose(row["initial_cost"], 0.5 * (noise**2).sum() + 0.5 * (noise.sum() - 1) ** 2)


@pytest.mark.parametrize(
    "second, status, message",
    [("crash", "error", "ValueError: no such thing"), ("loop", "hard limit", "stopped after 1 s while solving")],
)
def test_a_process_that_breaks_or_does_not_end_leaves_a_row(tmp_path, monkeypatch, second, status, message):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(cells, "__file__", str(worker))
    pair = [Cell("p", "first"), Cell("p", second)]
    (_, one), (cell, two) = cells.run(pair, 1.0)
    assert one["status"] == "solved" and cell is pair[1]
    assert (two["status"], two["message"], two["cost"], two["iterations"]) == (status, message, 2.5, 3)


@pytest.mark.slow
def test_the_command_runs_a_problem_of_the_library_in_a_process(tmp_path, monkeypatch):
    options = ["--problems", "falling-mass", "--solvers", "GaussNewton,CEM", "--budget", "5"]
    places = ["--cache", str(tmp_path / "rows"), "--page", str(tmp_path / "page.md")]
    library_table.main([*options, *places])
    text = (tmp_path / "page.md").read_text()
    assert "| **GaussNewton** | solved |" in text and "CEM (takes optimal control only)" in text
    library_table.main(["--page-only", *options[4:], *places])
    assert "| **GaussNewton** | solved |" in (tmp_path / "page.md").read_text()


def test_a_row_that_was_cut_short_is_dropped_and_the_next_one_is_whole(tmp_path):
    path, (one, two, three) = tmp_path / "deep" / "rows.jsonl", (Cell("p", name, {}, 0, 1.0) for name in "abc")
    first = cells.Cache(path)
    first.put(one, {"x": 1})
    first.put(one, {"x": 2})
    with path.open("a") as stream:
        stream.write('{"key": "b", "ro')
    second = cells.Cache(path)
    assert second.get(one) == {"x": 2} and second.get(two) is None
    second.put(three, {"x": 3})
    assert [cells.Cache(path).get(cell) for cell in (one, two, three)] == [{"x": 2}, None, {"x": 3}]
