"""Steps and Jacobians of the core at extreme states end within a stated number of iterations, with an honest status."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from native.cases import needs_core
from trajopt.dynamics.system import State, System
from trajopt.models import load_model
from trajopt.result import Status

pytestmark = needs_core

MOST_ITERATIONS = 2500  # docs/contact-semantics.md, "When it fails": 2,000, and the attempt that is under way
MODELS = ("hopper", "half-cheetah", "go1", "h1")


def extreme_states(model, count: int, seed: int):
    """(q, v, dt): positions up to 1e6, velocities up to 1e7, dt from 1e-9 to 10 s; every twentieth of 1e100 or 1e150."""
    rng = np.random.default_rng(seed)
    home = np.asarray(model.keyframes.get("home", model.q_default), float)
    far = 10.0 ** rng.uniform(-4, np.where(rng.random(count) < 0.5, 0, 6))
    fast = 10.0 ** rng.uniform(-4, np.where(rng.random(count) < 0.5, 1, 7))
    q = home + far[:, None] * rng.normal(size=(count, len(home)))
    v = fast[:, None] * rng.normal(size=(count, model.nv))
    q[19::40] *= 1e100
    v[39::40] *= 1e150
    return q, v, 10.0 ** rng.uniform(-9, 1, count)


def linearized(model, count: int, seed: int):
    """(iterations, status, whether A and B are finite) of `count` states."""
    system = System(model, 1e-3, backend="native")

    def one(q, v, dt):
        y = System(system.model, dt, backend="native").linearize(State(q, v), jnp.zeros(system.nu))
        finite = jnp.isfinite(y.A).all() & jnp.isfinite(y.B).all()
        return y.info.iterations, y.info.status, finite

    return jax.jit(jax.vmap(one))(*extreme_states(model, count, seed))


def check(name: str, count: int, seed: int) -> int:
    """The largest number of iterations."""
    iterations, status, finite = linearized(load_model(name), count, seed)
    assert int(iterations.max()) <= MOST_ITERATIONS
    non_finite = np.asarray(status == Status.non_finite)
    assert np.all(non_finite | np.asarray(finite)), "a Jacobian with NaN has another status than non_finite"
    return int(iterations.max())


@pytest.mark.parametrize("name", MODELS[:3])
@pytest.mark.filterwarnings("ignore::trajopt.dynamics.DampingWarning")
def test_extreme_states_end(name):
    check(name, 40, 0)
