"""The runs behind the tables of the benchmarks: what becomes of a solve, a refusal, a crash, a stop; and the pages."""

from __future__ import annotations

import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import solvers
from trajopt.problems import Certificate, LeastSquaresProblem, OptimalControlProblem

FOLDER = pathlib.Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path.insert(0, str(FOLDER))

import cells  # noqa: E402
import library_table  # noqa: E402
import solver_comparison  # noqa: E402
from cells import Cache, Cell  # noqa: E402

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


def test_every_solver_has_its_class_of_problem():
    assert set(cells.TAKES) == set(solvers.names())


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


def test_a_refusal_is_no_crash():
    row = cells.attempt(reach(), Cell("reach", "LBFGS"), lambda **values: None)
    assert row["status"] == "does not apply" and "LBFGS solves a LeastSquaresProblem" in row["message"]
    certificate = Certificate(lambda x: {}["missing"])
    broken = LeastSquaresProblem("broken", lambda x: x, jnp.ones(1), certificate=certificate)
    row = cells.attempt(broken, Cell("broken", "GaussNewton"), lambda **values: None)
    assert row["status"] == "error" and row["message"] == "KeyError: 'missing'"


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


def test_the_cache_survives_and_a_later_row_wins(tmp_path):
    cache, cell = Cache(tmp_path / "deep" / "rows.jsonl"), Cell("p", "s", {"knots": 3}, seed=2)
    cache.put(cell, {"status": "error"})
    cache.put(cell, {"status": "solved"})
    again = Cache(cache.path)
    assert again.get(Cell("p", "s", {"knots": 3}, seed=2, trace=True)) == {"status": "solved"}
    assert again.get(Cell("p", "s", {"knots": 4}, seed=2)) is None


def test_the_page_leaves_no_cell_out(tmp_path):
    names = ("iLQR", "DDP", "CEM", "LBFGS", "GaussNewton", "MPPI")
    grid, cache = [Cell("reach", name) for name in names], Cache(tmp_path / "rows")
    ran = {"default": "iLQR", "gradient": "implicit", "compile_time_s": 1.25, "wall_time_s": 0.5, "elapsed_s": 3.0}
    rows = [
        ran | {"status": "solved", "success": True, "message": "solved: so", "cost": 1.0, "violation": 1e-9},
        ran
        | {"status": "time_budget", "success": False, "message": "stopped; the best point so far; off by 2"}
        | {"kind": "optimal control", "cost": 7.0, "violation": 0.25},
        {"status": "error", "message": "ValueError: a | b", "elapsed_s": 1.0},
        {"status": "does not apply", "message": "takes least squares only", "elapsed_s": 0.0},
        {"status": "hard limit", "message": "stopped after 9 s while compiling", "elapsed_s": 9.0},
    ]
    for cell, row in zip(grid, rows):
        cache.put(cell, row)
    page = tmp_path / "page.md"
    page.write_text(f"# Words\n\n{library_table.BEGIN}\nold\n{library_table.END}\n\n## Reading\n")
    library_table.write(page, library_table.page(grid, cache, 10.0, 9.0, "a machine"))
    text = page.read_text()
    assert text.startswith("# Words") and text.rstrip().endswith("## Reading") and "old" not in text
    assert "| reach | **1** | time limit 7 (2.5e-01) | error | - | hard limit | not run |" in text
    assert "| **iLQR** | solved | 1 | 1e-09 |  | 0.5 | 1.25 |  |" in text and "off by 2" in text
    assert "ValueError: a / b" in text and "stopped after 9 s while compiling" in text
    assert "Does not apply: LBFGS (takes least squares only)." in text and "Not run: MPPI." in text


def test_curves_fall_and_quartiles_count_what_never_arrives():
    trace = {"time": [0.0, 1.0, 2.0], "evaluations": [1, 5, 9], "cost": [3.0, None, 1.0], "violation": [0.0, 0.0, 0.5]}
    found = solver_comparison.curve({"trace": trace}, weight=2.0)
    np.testing.assert_array_equal(found["loss"], [3.0, 3.0, 2.0])
    assert solver_comparison.reached(found, 2.5) == (2.0, 9.0)
    assert solver_comparison.reached(found, 1.0) == (np.inf, np.inf)
    assert solver_comparison.quartiles([1.0, 2.0, np.inf, np.inf]) == "2 [1, -]"
    assert solver_comparison.quartiles([np.inf, np.inf]) == "-"
    np.testing.assert_array_equal(solver_comparison._at(found, np.array([-1.0, 0.5, 9.0])), [np.inf, 3.0, 2.0])


@pytest.mark.slow
def test_the_command_runs_a_problem_of_the_library_in_a_process(tmp_path, monkeypatch):
    options = ["--problems", "falling-mass", "--solvers", "GaussNewton,CEM", "--budget", "5"]
    places = ["--cache", str(tmp_path / "rows"), "--page", str(tmp_path / "page.md")]
    library_table.main([*options, *places])
    text = (tmp_path / "page.md").read_text()
    assert "| **GaussNewton** | solved |" in text and "CEM (takes optimal control only)" in text
    library_table.main(["--page-only", *options[4:], *places])
    assert "| **GaussNewton** | solved |" in (tmp_path / "page.md").read_text()
