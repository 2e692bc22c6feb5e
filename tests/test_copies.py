"""What is pickled and copied, before and after it has been used; processes that are forked."""

import concurrent.futures
import copy
import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pytest
import sent

gymnasium = pytest.importorskip("gymnasium")


@pytest.fixture(scope="module")
def used():
    return {name: sent.used(make()) for name, make in sent.MADE.items()}


@pytest.mark.parametrize("name", sent.MADE)
def test_a_copy_does_what_the_original_does(name, used):
    thing = used[name]
    copies = [copy.deepcopy(thing), pickle.loads(pickle.dumps(thing)), pickle.loads(pickle.dumps(copy.deepcopy(thing)))]
    expected = sent.result(copies.pop())
    for other in copies:
        assert other is not thing
        np.testing.assert_array_equal(sent.result(other), expected)


def test_other_processes_find_the_same(used, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    things = {name: pickle.loads(pickle.dumps(thing)) for name, thing in used.items()}
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(sent.results, things).result(timeout=600)
    for name, expected in sent.results(things).items():
        # Programs are optimised as this process's flags say (conftest.py), not as the other's.
        np.testing.assert_allclose(found[name], expected, rtol=1e-9, atol=1e-9, err_msg=name)


FORKED = """
import multiprocessing, warnings
warnings.simplefilter("ignore")
import jax
jax.config.update("jax_enable_x64", True)
import numpy as np
from trajopt import dynamics, load_model, problems, solvers
from trajopt.errors import ForkError
from trajopt.learning.gymnasium_environments import GymnasiumEnvironment

def system():
    return dynamics.System(load_model("cart-pole"), 0.05, dynamics.NoContact())

def calls(made, environment, problem):
    x, u = made.initial_state(), np.zeros(1)
    many = jax.tree.map(lambda a: np.stack([a, a]), x)
    return {
        "step": lambda: made.step(x, u), "linearize": lambda: made.linearize(x, u),
        "rollout": lambda: made.rollout(x, np.zeros((3, 1))),
        "vmap": lambda: jax.vmap(made.step)(many, np.zeros((2, 1))), "new": system,
        "environment": lambda: environment.step(np.zeros(1)), "solve": lambda: solvers.solve(problem, solvers.GaussNewton()),
    }

def asked(pipe, called):
    found = {}
    for name, call in called.items():
        try:
            call()
        except ForkError as error:
            found[name] = str(error)
    pipe.send(found)

def in_a_fork(function, *arguments):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=function, args=(there, *arguments))
    process.start()
    assert here.poll(120), "the process hangs"
    found = here.recv()
    process.join()
    return found

def alone(pipe):
    made = system()
    pipe.send(float(made.step(made.initial_state(), np.ones(1))[0].v[0]))

before = in_a_fork(alone)  # nothing has computed yet: a fork may
made, environment = system(), GymnasiumEnvironment("cartpole-swingup")
assert float(made.step(made.initial_state(), np.ones(1))[0].v[0]) == before
environment.reset(seed=0)
called = calls(made, environment, problems.get("falling-mass"))
for name, call in called.items():
    if name != "solve":
        call()
found = in_a_fork(asked, called)
assert set(found) == set(called), set(called) - set(found)
assert all("spawn" in message for message in found.values()), found
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
def test_a_fork_after_use_is_refused_and_names_spawn():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


ASYNC = """
import sys, warnings
warnings.simplefilter("ignore")
import gymnasium, numpy as np
if __name__ == "__main__":
    vector = gymnasium.make_vec("trajopt.learning:trajopt/CartpoleSwingup-v0", num_envs=2, vectorization_mode="async",
                                vector_kwargs={"context": sys.argv[1]})
    vector.reset(seed=0)
    observations, rewards, *_ = vector.step(np.zeros((2, 1)))
    assert np.isfinite(observations).all() and rewards.shape == (2,)
    vector.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_gymnasium_steps_environments_in_processes(context, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    (tmp_path / "steps.py").write_text(ASYNC)
    done = subprocess.run([sys.executable, tmp_path / "steps.py", context], capture_output=True, text=True, timeout=600)
    assert (done.returncode == 0) == (context == "spawn"), done.stderr
    if context == "fork":
        assert "ForkError" in done.stderr and "vector_kwargs={'context': 'spawn'}" in done.stderr
