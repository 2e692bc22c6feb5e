"""A generation shared among processes: the same scores and iterates, to the last bit, for any number of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from control_cases import double_integrator
from jax.experimental import multihost_utils

from trajopt.errors import OptionError
from trajopt.solvers import CEM, CMAES, Hybrid, iLQR, solve
from trajopt.solvers.sampling.parametrisation import make_space
from trajopt.solvers.sampling.processes import score_over_processes
from trajopt.solvers.sampling.rollouts import score
from trajopt.solvers.subproblems.augmented_lagrangian import Constraints

REACH = double_integrator(20, control_lower=-8.0, control_upper=8.0)


class Together:
    """So many threads in the place of processes: JAX's two collectives between them."""

    def __init__(self, count: int, monkeypatch) -> None:
        self.count, self.barrier, self.place = count, threading.Barrier(count, timeout=60.0), threading.local()
        self.table = [None] * count
        monkeypatch.setattr(jax, "process_count", lambda: count)
        monkeypatch.setattr(jax, "process_index", lambda: self.place.index)
        monkeypatch.setattr(multihost_utils, "process_allgather", lambda words: np.stack(self.exchange(words)))
        monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", self.broadcast)

    def exchange(self, value):
        self.table[self.place.index] = value
        self.barrier.wait()
        found = list(self.table)
        self.barrier.wait()
        return found

    def broadcast(self, words, is_source):
        return next(value for value, source in self.exchange((words, is_source)) if source)

    def run(self, function):
        found = [None] * self.count

        def act(index):
            self.place.index = index
            try:
                found[index] = function(index)
            except Exception as error:
                found[index] = error

        threads = [threading.Thread(target=act, args=(k,)) for k in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@pytest.mark.parametrize("count", [2, 7])
def test_scores_do_not_depend_on_the_number_of_processes(count, monkeypatch):
    """19 candidates in batches of four, for two processes and for more than there are batches."""
    space = make_space(REACH, REACH.x0)
    y = np.random.default_rng(0).normal(size=(19, space.size))
    multipliers = Constraints(REACH).initial(3.0)
    alone, plain = (rate(REACH.compile(), space, y, multipliers, 4) for rate in (score_over_processes, score))
    together = Together(count, monkeypatch)
    found = together.run(lambda index: score_over_processes(REACH.compile(), space, y, multipliers, 4))
    for scores in [plain, *found]:
        for key in ("merit", "cost", "violation", "arrival"):
            assert getattr(scores, key).tobytes() == getattr(alone, key).tobytes(), key
        assert (scores.best, scores.bad_step, scores.rated) == (alone.best, alone.bad_step, 19)
        assert [a.tobytes() for a in jax.tree.leaves((scores.motion, scores.rows))] == [
            a.tobytes() for a in jax.tree.leaves((alone.motion, alone.rows))
        ]


@pytest.mark.parametrize("make", [CEM, CMAES])
def test_iterates_do_not_depend_on_the_number_of_processes(make, monkeypatch):
    solver = make(population=20, over_processes=True, chunk=4)
    alone = solve(REACH, solver, max_iterations=8, seed=2)
    found = Together(2, monkeypatch).run(lambda index: solve(REACH, solver, max_iterations=8, seed=2))
    for solution in found:
        for key in ("cost", "violation", "gradient_norm", "evaluations"):
            assert solution.trace[key].tobytes() == alone.trace[key].tobytes(), key
        assert solution.us.tobytes() == alone.us.tobytes() and solution.residuals == alone.residuals


def test_processes_that_differ_or_count_seconds_are_refused(monkeypatch):
    solver = CEM(population=20, over_processes=True, chunk=4)
    together = Together(2, monkeypatch)
    for error in together.run(lambda index: solve(REACH, solver, max_iterations=2, seed=index)):
        assert isinstance(error, OptionError) and "process 1 differs from process 0" in str(error)
    for sharing in (solver, Hybrid(solver, iLQR())):
        for error in together.run(lambda index, solver=sharing: solve(REACH, solver, time_budget=1.0)):
            assert isinstance(error, OptionError) and "give max_iterations in place of time_budget" in str(error)


PROCESS = """
import json, sys, jax
jax.config.update("jax_enable_x64", True)
count, index, port = map(int, sys.argv[1:])
if count > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
from trajopt import problems, solvers
problem = problems.get("catapult", steps=50)
assert problem.system.resolved_backend == "native"
out = []
for make in (solvers.CEM, solvers.CMAES):
    solution = solvers.solve(problem, make(population=30, knots=5, over_processes=True), max_iterations=4, seed=1)
    out.append([solution.trace[key].tobytes().hex() for key in ("cost", "gradient_norm")] + [solution.us.tobytes().hex()])
print(json.dumps(out))
"""


@pytest.mark.slow
def test_two_processes_of_jax_distributed_give_the_iterates_of_one():
    def run(count):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        started = [
            subprocess.Popen(
                [sys.executable, "-c", PROCESS, str(count), str(k), port], stdout=subprocess.PIPE, text=True
            )
            for k in range(count)
        ]
        return [json.loads(process.communicate(timeout=600)[0].strip().splitlines()[-1]) for process in started]

    (alone,), (first, second) = run(1), run(2)
    assert first == alone and second == alone
