"""Hybrid: the hand-over rule, one trace, the polishing solver's certificate, resuming in both phases."""

from __future__ import annotations

import numpy as np
import pytest
from control_cases import double_integrator

from trajopt.errors import OptionError
from trajopt.problems import OptimalControlProblem
from trajopt.result import status_name
from trajopt.solvers import CEM, Hybrid, get, iLQR, solve

REACH = double_integrator(20, control_lower=-8.0, control_upper=8.0)
SAMPLER = CEM(population=64)


def two_wells():
    """(x^2 - 1)^2 + 0.6 x at the end of five steps from x = 1.2: gradients end near 1, the lower minimum is near -1."""
    return OptimalControlProblem(
        "two-wells", lambda x, u, t: x + u, 5, np.array([1.2]), u0=np.zeros(1), control_lower=-1.0, control_upper=1.0,
        stage_cost=lambda x, u, t: 1e-3 * u[0] ** 2, terminal_cost=lambda x: (x[0] ** 2 - 1.0) ** 2 + 0.6 * x[0],
    )  # fmt: skip


def test_escapes_and_polishes():
    problem = two_wells()
    trapped = solve(problem, iLQR())
    solution = solve(problem, Hybrid(SAMPLER, iLQR()))
    assert trapped.success and trapped.xs[-1, 0] > 0.8
    assert solution.success and solution.xs[-1, 0] < -0.9 and solution.solver == "Hybrid"
    # Stationary: d/dx of the terminal cost at x = 1.2 + 5 u equals the slope -2e-3 u of the effort of one step.
    x = solution.xs[-1, 0]
    np.testing.assert_allclose(4 * x * (x * x - 1) + 0.6, -2e-3 * (x - 1.2) / 5, atol=1e-6)
    assert solution.residuals["stationarity"] < 1e-6 and "spread" not in solution.residuals
    trace = solution.trace
    assert trace["iteration"].tolist() == list(range(solution.iterations + 1))
    assert np.all(np.diff(trace["evaluations"]) > 0) and np.all(np.diff(trace["time"]) >= 0)


def test_the_rule_hands_over():
    """After `generations`; or after `patience` generations without an improvement by the share asked for."""
    solution = solve(REACH, Hybrid(SAMPLER, iLQR(), generations=4))
    spread = solution.trace["gradient_norm"]
    assert solution.success and solution.cost == pytest.approx(
        12 / (1 - 1 / 400), rel=1e-5
    )  # 1e-6 m times the multiplier 24
    drawn = np.diff(solution.trace["evaluations"]) == 66  # mean, best and 64 draws; an iteration of iLQR takes fewer
    assert drawn.tolist() == [True] * 4 + [False] * (len(drawn) - 4) and np.all(spread[:5] > 0)
    impatient = solve(REACH, Hybrid(SAMPLER, iLQR(), patience=1, improvement=0.99))
    drawn = np.diff(impatient.trace["evaluations"]) == 66
    assert impatient.success and drawn.sum() < 30


@pytest.mark.parametrize("at", [2, 6])
def test_interrupted_in_either_phase_and_resumed(at, tmp_path):
    def interrupt(row):
        if row["iteration"] == at:
            raise KeyboardInterrupt

    path, solver = tmp_path / "checkpoint.npz", Hybrid(SAMPLER, iLQR(), generations=4)
    whole = solve(REACH, solver, seed=2)
    part = solve(REACH, solver, seed=2, callback=interrupt, checkpoint=path)
    assert (status_name(part.status), part.iterations, part.success) == ("interrupted", at, False)
    assert ("ended before the hand-over" in part.message) == (at == 2)
    rest = solve(REACH, solver, seed=2, resume=path)
    np.testing.assert_array_equal(rest.us, whole.us)
    np.testing.assert_array_equal(rest.trace["cost"], whole.trace["cost"])


def test_an_infeasible_problem_is_not_a_success():
    weak = double_integrator(10, control_lower=-3.9, control_upper=3.9)
    solution = solve(weak, Hybrid(SAMPLER, iLQR(max_penalty=1e3), generations=5))
    assert not solution.success and "terminal_equality is 0.0" in solution.message


def test_bad_options_are_refused():
    for make, match in (
        (lambda: Hybrid(sampler=iLQR()), "sampler is iLQR.*expected CEM"),
        (lambda: Hybrid(polisher=CEM()), "polisher is CEM.*expected one of iLQR"),
        (lambda: Hybrid(patience=0), "patience is 0; it must be at least 1"),
        (lambda: Hybrid(improvement=1.0), "improvement is 1.0"),
    ):
        with pytest.raises(OptionError, match=match):
            make()
    assert get("hybrid", patience=3) == Hybrid(patience=3)
