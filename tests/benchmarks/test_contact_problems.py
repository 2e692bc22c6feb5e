"""The contact problems that benchmarks solve are those of steps."""

from __future__ import annotations

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import load_model
from trajopt.dynamics import State, System
from trajopt.dynamics.contact.solve.solve import solve

FOLDER = pathlib.Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path.insert(0, str(FOLDER))

from validation_experiments.contact_problems import of_states  # noqa: E402


@pytest.mark.slow
def test_the_solution_of_a_states_problem_is_the_impulse_of_its_step():
    model = load_model("hopper").to_device()
    system = System(model, 1e-3, backend="jax")
    home = system.initial_state("home")
    q, v = np.stack([home.q] * 2), np.stack([np.zeros(model.nv), np.full(model.nv, -0.1)])
    ncps = of_states(model, 1e-3)(jnp.asarray(q), jnp.asarray(v))
    found = jax.jit(jax.vmap(lambda ncp: solve(ncp).impulse))(ncps)
    for k in range(2):
        info = system.step(State(q[k], v[k]), np.zeros(system.nu))[1]
        np.testing.assert_allclose(found[k], info.impulse, atol=1e-12)
    assert np.abs(found).max() > 0.1
