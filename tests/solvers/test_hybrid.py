"""Hybrid: the hand-over rule, one trace, the polishing solver's certificate, resuming in both phases."""

import numpy as np
import pytest
from control_cases import double_integrator

from trajopt.errors import OptionError
from trajopt.problems import Certificate, OptimalControlProblem
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


def searches_of(solution):
    """How often the sampling solver began: drawing takes more evaluations than an iteration of the gradient solver."""
    drawn = np.diff(solution.trace["evaluations"]) >= 64
    return int(np.sum(np.diff(np.concatenate([[False], drawn]).astype(int)) == 1))


def test_searches_again_where_the_gradient_solver_gave_up():
    """A gradient solver that may do one iteration leaves the first two searches; the last one has what is left of the run's."""
    polisher = iLQR(max_iterations=1)
    once = solve(REACH, Hybrid(SAMPLER, polisher, generations=4))
    thrice = solve(REACH, Hybrid(SAMPLER, polisher, generations=4, attempts=3))
    assert once.success and searches_of(once) == 1 and "search" not in once.message
    assert thrice.success and searches_of(thrice) == 3 and "in search 3" in thrice.message
    cost = thrice.trace["cost"]
    np.testing.assert_array_equal(cost[:6], once.trace["cost"][:6])  # the first search is the one that is made alone
    assert not np.isin(cost[8:11], cost[1:5]).any()  # the second one draws anew


def test_the_best_of_the_searches_is_returned():
    """Searches that all end without a solution: the point is the best of them, and its status is no success."""
    weak = double_integrator(10, control_lower=-3.9, control_upper=3.9)
    few = Hybrid(SAMPLER, iLQR(max_penalty=1e3), generations=5, attempts=2)
    solution = solve(weak, few)
    assert not solution.success and searches_of(solution) == 2
    assert solution.violation == pytest.approx(solution.trace["violation"].min())


def test_what_the_certificate_refuses_is_searched_for_again():
    """From the ridge between the wells draws decide which one is found; the certificate refuses the cheaper one."""
    problem = OptimalControlProblem(
        "ridge", lambda x, u, t: x + u, 5, np.zeros(1), u0=np.zeros(1), control_lower=-1.0, control_upper=1.0,
        stage_cost=lambda x, u, t: 1e-3 * u[0] ** 2, terminal_cost=lambda x: (x[0] ** 2 - 1.0) ** 2 + 0.05 * x[0],
        certificate=Certificate(lambda motion: {"left": float(max(-np.asarray(motion.xs)[-1, 0], 0.0))}, {"left": 0.0}),
    )  # fmt: skip
    few = {"sampler": CEM(population=4), "polisher": iLQR(), "generations": 1}
    searches = []
    for seed in range(4):
        solution = solve(problem, Hybrid(**few, attempts=12), seed=seed)
        assert solution.success and solution.xs[-1, 0] > 0.9 and solution.cost > 0.04
        searches.append(solution.message.count("in search"))
        alone = solve(problem, Hybrid(**few), seed=seed)
        assert alone.success == (not searches[-1]) and alone.success == (alone.xs[-1, 0] > 0)
    assert 0 < sum(searches) < 4


def test_bad_options_are_refused():
    for make, match in (
        (lambda: Hybrid(sampler=iLQR()), "sampler is iLQR.*expected CEM"),
        (lambda: Hybrid(polisher=CEM()), "polisher is CEM.*expected one of iLQR"),
        (lambda: Hybrid(patience=0), "patience is 0; it must be at least 1"),
        (lambda: Hybrid(polish_patience=0), "polish_patience is 0; it must be at least 1"),
        (lambda: Hybrid(improvement=1.0), "improvement is 1.0"),
    ):
        with pytest.raises(OptionError, match=match):
            make()
    assert get("hybrid", patience=3) == Hybrid(patience=3)
