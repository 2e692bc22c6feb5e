"""Many solves: the product, what is kept and resumed, failures reported, the same answers here and in other processes."""

import csv
import json
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.cli import main
from trajopt.errors import OptionError, UnknownNameError
from trajopt.problems import Certificate, LeastSquaresProblem
from trajopt.solvers import Processes, Task, solve_many, solve_tasks
from trajopt.solvers.loop.fingerprint import fingerprint
from trajopt.solvers.loop.solution import Solution
from trajopt.solvers.sweeps import WorkerDiedError, grid
from trajopt.solvers.sweeps.many import Results

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # other processes do not import the tests

SOLVER = solvers.GaussNewton()


def rosenbrock(*, valley: float = 10.0, name: str = "rosenbrock") -> LeastSquaresProblem:
    return LeastSquaresProblem(
        name, lambda x: jnp.stack([1.0 - x[0], valley * (x[1] - x[0] ** 2)]), jnp.array([-1.2, 1.0]), tolerance=1e-9
    )


@pytest.fixture
def toy():
    problems.register("valley", rosenbrock, "a bent valley")
    yield "valley"
    problems.unregister("valley")


def numbers(found):
    return [(o.solution.x.tobytes(), o.solution.cost, o.solution.iterations, o.task.title) for o in found]


def test_fingerprints_are_of_numbers_options_and_code():
    assert fingerprint(rosenbrock()) == fingerprint(rosenbrock()) != fingerprint(rosenbrock(valley=9.0))
    assert fingerprint(np.array([1.0])) != fingerprint(np.array([1.0 + 2e-16])) != fingerprint(np.array([1]))
    assert fingerprint(lambda x: x + 1) != fingerprint(lambda x: x + 2)
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1}) != fingerprint({"a": 1, "b": [3]})
    assert fingerprint(solvers.GaussNewton()) != fingerprint(solvers.GaussNewton(max_iterations=3))


@pytest.mark.slow
def test_fingerprints_are_the_same_in_every_process():
    code = "from trajopt import problems; from trajopt.solvers.loop.fingerprint import fingerprint as f\n"
    code += "print(f(problems.get('cartpole-swingup')))"
    # Other processes order sets and hash words otherwise.
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True
        ).stdout
        for seed in "12"
    }
    assert len(seen) == 1 and len(seen.pop().strip()) == 20


def test_the_product_of_a_sweep_and_what_it_refuses(toy):
    tasks = grid(
        toy, ["GaussNewton", SOLVER], settings={"valley": [1.0, 5.0]}, seeds=range(2), starts=[None, np.zeros(2)]
    )
    assert len(tasks) == 2 * 2 * 2 * 2 and tasks[-1].problem.settings == {"valley": 5.0}
    assert tasks[1].title == "GaussNewton, seed 0, valley=1.0 start 1"
    with pytest.raises(UnknownNameError, match="no setting 'valey'.*'valley'"):
        grid(toy, SOLVER, settings={"valey": [1.0]})
    with pytest.raises(OptionError, match="settings belong to problems of the library; 'rosenbrock'"):
        grid(rosenbrock(), SOLVER, settings={"valley": [1.0]})
    with pytest.raises(OptionError, match="MPPI solves an OptimalControlProblem"):
        grid(toy, "MPPI")
    with pytest.raises(OptionError, match="tasks 0 and 1 are the same"):
        solve_tasks([Task(rosenbrock(), SOLVER), Task(rosenbrock(), SOLVER)])


def test_a_second_run_goes_on(toy, tmp_path):
    """After three results; through other threads, whose tasks are pickled, the numbers are those of this one."""
    starts = [np.array([0.2 * k, -0.1]) for k in range(6)]
    sweep = {"problems": toy, "solvers": SOLVER, "starts": starts, "folder": tmp_path / "out"}
    first = solve_many(**sweep, progress=lambda outcome: outcome.finished == 3)
    assert [outcome.index for outcome in first] == [0, 1, 2] and not any(outcome.kept for outcome in first)
    seen = []
    with ThreadPoolExecutor(2) as executor:
        second = solve_many(**sweep, executor=executor, progress=seen.append)
    assert [outcome.kept for outcome in second] == [True] * 3 + [False] * 3 and len(seen) == 6
    assert sorted(outcome.finished for outcome in seen) == [1, 2, 3, 4, 5, 6] and "(kept)" in str(seen[0])
    assert numbers(second) == numbers(solve_many(toy, SOLVER, starts=starts))
    place, key = tmp_path / "out" / "solutions", second[0].task.key()
    assert len(list(place.iterdir())) == 6 and Solution.load(place / key).cost == second[0].solution.cost
    summary = json.loads((place / key / "summary.json").read_text())
    assert summary["task"] == second[0].task.title and summary["attempts"] == 1
    Results(tmp_path / "out").clear()
    assert Results(tmp_path / "out").get(key) is None


def test_what_is_damaged_on_disk_is_solved_again(toy, tmp_path):
    """A result, a file of another result, one without its summary."""
    sweep = {"problems": toy, "solvers": SOLVER, "starts": [np.array([0.2 * k, -0.1]) for k in range(4)], "folder": tmp_path}
    first = solve_many(**sweep)
    places = [tmp_path / "solutions" / outcome.task.key() for outcome in first]
    content = (places[0] / "solution.npz").read_bytes()
    (places[0] / "solution.npz").write_bytes(content[: len(content) // 2])
    (places[1] / "solution.npz").write_bytes((places[2] / "solution.npz").read_bytes())
    (places[3] / "summary.json").unlink()
    with pytest.warns(UserWarning) as told:
        second = solve_many(**sweep)
    said = " ".join(str(warning.message) for warning in told)
    assert all(words in said for words in ("holds no finished run", "damaged, or no NumPy archive", "mixes files of several"))
    assert [outcome.kept for outcome in second] == [False, False, True, False] and numbers(second) == numbers(first)
    assert all(outcome.kept for outcome in solve_many(**sweep))


def test_a_failure_is_reported_and_tried_again_by_the_next_run(tmp_path):
    certificate = Certificate(lambda x: {}["missing"])
    broken = LeastSquaresProblem("broken", lambda x: x, jnp.ones(1), certificate=certificate)
    for _ in range(2):
        outcome, fine = solve_tasks([Task(broken, SOLVER), Task(rosenbrock(), SOLVER)], folder=tmp_path)
        assert outcome.solution is None and outcome.attempts == 2 and outcome.error == "KeyError: 'missing'"
        assert "failed, at the second attempt: KeyError" in str(outcome) and fine.solution.success
    assert fine.kept


def test_a_worker_that_is_killed_costs_its_task_a_second_attempt(tmp_path):
    """Two processes; one is killed when the first result is there. All results come, once each, and are those of this process."""
    tasks = [Task(rosenbrock(), SOLVER, seed=seed) for seed in range(6)]
    killed = []

    def kill(outcome):
        if not killed:
            killed.append(multiprocessing.active_children()[0])
            killed[0].kill()

    with Processes(2) as executor:
        own, other = executor.submit(os.getpid), executor.submit(time.sleep, 0.5)
        assert own.result() != os.getpid() and other.result() is None
        found = solve_tasks(tasks, executor=executor, folder=tmp_path, progress=kill)
        assert numbers(found) == numbers(solve_tasks(tasks))
        assert len(list((tmp_path / "solutions").iterdir())) == 6 and killed
        with pytest.raises(WorkerDiedError, match="its worker (ended with status 3|died)"):
            executor.submit(os._exit, 3).result()
        assert executor.submit(os.getpid).result() not in (os.getpid(), killed[0].pid)


def table(folder):
    with open(folder / "compare.csv", newline="") as stream:
        return [{k: v for k, v in row.items() if not k.endswith("time_s")} for row in csv.DictReader(stream)]


def test_compare_goes_on_where_it_stopped(toy, tmp_path, capsys):
    command = ["compare", toy, "--solvers", "GaussNewton", "--seeds", "2", "--out", str(tmp_path)]
    assert main([*command, "--max-iterations", "2"]) == 1
    assert all(row["iterations"] == "2" for row in table(tmp_path))
    assert main(command) == 0
    assert "(kept)" not in capsys.readouterr().out
    first = table(tmp_path)
    assert main(command) == 0 and table(tmp_path) == first
    assert capsys.readouterr().out.count("(kept)") == 1  # it is not random: one run, whatever the number of seeds
    assert main([*command, "--again"]) == 0
    assert "(kept)" not in capsys.readouterr().out
    assert main([*command, "--workers", "none"]) == 2


@pytest.mark.slow
def test_compare_is_the_same_serially_with_processes_and_through_dask(tmp_path):
    command = ["falling-mass", "--solvers", "GaussNewton,LBFGS", "--seeds", "2", "--max-iterations", "5"]
    from distributed import LocalCluster

    with LocalCluster(2, threads_per_worker=1, dashboard_address=None, processes=True) as cluster:
        for k, workers in enumerate(([], ["--workers", "2"], ["--workers", cluster.scheduler_address])):
            assert main(["compare", *command, *workers, "--out", str(tmp_path / str(k))]) == 0
    first = table(tmp_path / "0")
    assert len(first) == 2 and table(tmp_path / "1") == first and table(tmp_path / "2") == first
