"""One row after the other gives what the batch gives."""

import jax
import numpy as np
import pytest

from trajopt import native, problems
from trajopt.solvers.subproblems.batching import each


@pytest.mark.parametrize("backend", ["jax", "native"])
def test_with_contact_rows_are_worked_on_in_turn(backend, monkeypatch):
    """In JAX by a loop of the program, in the compiled core by that of its handler."""
    if backend == "native" and not native.available():
        pytest.skip(native.reason())
    monkeypatch.setenv("TRAJOPT_BACKEND", backend)
    problem = problems.get("drone-takeoff", steps=4)
    xs = np.array([[0.8, 0.0], [0.7999, -0.1], [2.0, 1.0]])
    step = lambda x, u: problem.step(x, u, 0.0, np.zeros(0))  # noqa: E731
    us = np.array([[0.0], [2.0], [1.0]])
    assert (backend == "jax") == ("scan" in str(jax.make_jaxpr(lambda xs, us: each(problem, step, xs, us))(xs, us)))
    # In free flight v+ = v + dt (u / m - g), m = 0.1 kg; at rest on the floor v+ = 0.
    after = np.asarray(each(problem, step, xs, us))
    np.testing.assert_allclose(after[2, 1], 1.0 + 1e-3 * (1.0 / 0.1 - 9.81), rtol=1e-12)
    np.testing.assert_allclose(after[0], [0.8, 0.0], atol=1e-9)
    np.testing.assert_allclose(after, jax.vmap(step)(xs, us), atol=1e-12)


def test_without_contact_they_are_one_batch():
    problem = problems.get("cartpole-swingup", steps=4)
    text = str(jax.make_jaxpr(lambda a: each(problem, lambda x: 2.0 * x, a))(np.ones((3, 2))))
    assert "scan" not in text
