"""The backend of a `System`: one contract over the compiled core and the JAX implementation."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native.cases import DT, MATRIX, VELOCITY, draw, needs_core, relative

from trajopt import load_model, native
from trajopt.dynamics import BoxedLCP, CompliantContact, SmoothedContact, State, System
from trajopt.errors import DerivativeError, OptionError


@functools.lru_cache
def systems(name: str, **options) -> tuple[System, System]:
    """(compiled core, JAX)."""
    model = load_model(name)
    return tuple(System(model, DT, backend=backend, **options) for backend in ("native", "jax"))


def states(name: str, count: int, seed: int = 0):
    """(x, u) in contact on the way of short rollouts."""
    for q, v, u in itertools.islice(draw(systems(name)[1], seed), count):
        yield State(jnp.asarray(q), jnp.asarray(v)), jnp.asarray(u)


# -- the choice --------------------------------------------------------------------------------------------------------


def test_an_unknown_backend_is_answered_by_the_closest_name():
    with pytest.raises(OptionError, match="backend is 'nativ'; did you mean 'native'"):
        System(load_model("cube"), DT, backend="nativ")


def test_a_core_that_is_not_built_is_said_once_with_what_it_costs(monkeypatch, tmp_path):
    monkeypatch.delenv("TRAJOPT_BACKEND", raising=False)
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native, "processor_flags", lambda: frozenset(native.INSTRUCTION_SETS["avx512"]))
    model = load_model("cube")
    with pytest.warns(UserWarning, match="times slower") as said:
        systems = [System(model, DT), System(model, 2 * DT)]
    assert len(said) == 1 and native.REBUILD in str(said[0].message)
    assert [system.resolved_backend for system in systems] == ["jax", "jax"]


def test_the_variable_decides_for_auto_and_an_argument_beats_it(monkeypatch):
    model = load_model("cube")
    monkeypatch.setenv("TRAJOPT_BACKEND", "jax")
    auto = System(model, DT)
    assert (auto.backend, auto.resolved_backend) == ("auto", "jax")
    monkeypatch.setenv("TRAJOPT_BACKEND", "fast")
    with pytest.raises(OptionError, match="TRAJOPT_BACKEND is 'fast'"):
        System(model, DT)
    assert System(model, DT, backend="jax").resolved_backend == "jax"


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"contact": BoxedLCP()}, "BoxedLCP"),
        ({"contact": CompliantContact(), "integrator": "euler"}, "CompliantContact"),
        ({"contact": CompliantContact(), "integrator": "rk4"}, "CompliantContact"),
        ({"contact": SmoothedContact(sweeps=10)}, "sweeps=10"),
    ],
)
@needs_core
def test_what_the_core_does_not_cover_falls_back_and_says_why(monkeypatch, options, reason):
    monkeypatch.delenv("TRAJOPT_BACKEND", raising=False)
    model = load_model("cube")
    system = System(model, DT, **options)
    assert system.resolved_backend == "jax" and reason in system.backend_reason
    with pytest.raises(OptionError, match="backend is 'native', but .*use backend='auto' or 'jax'"):
        System(model, DT, backend="native", **options)


# -- the same function -------------------------------------------------------------------------------------------------


@needs_core
def test_forward_and_reverse_mode_are_those_of_jax():
    core, reference = systems("hopper")
    x, u = next(states("hopper", 1))
    w = jnp.asarray(np.random.default_rng(0).normal(size=core.nv))

    def loss(system, x, u, scale):
        model = system.model.replace(mass=scale * system.model.mass)
        after, info = System(model, DT, backend=system.backend).step(x, u)
        return w @ after.v + 1e-2 * (w @ after.q[: core.nv]) + 1e-3 * jnp.sum(info.impulse)

    one, other = (jax.grad(functools.partial(loss, s), (0, 1, 2))(x, u, jnp.asarray(1.0)) for s in (core, reference))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert relative(a, b) < 1e-7
    tangent = jax.tree.map(jnp.ones_like, (x, u))
    slopes = [jax.jvp(lambda x, u, s=s: s.step(x, u)[0].v, (x, u), tangent)[1] for s in (core, reference)]
    assert relative(*slopes) < MATRIX


@needs_core
@pytest.mark.parametrize("gradient", ["smoothed", "finite-difference", "complementarity-aware", "randomized"])
def test_other_gradient_modes_take_the_same_steps(gradient):
    model = load_model("cube")
    x, u = next(states("cube", 1))
    core, reference = (System(model, DT, gradient=gradient, backend=backend) for backend in ("native", "jax"))
    assert relative(core.step(x, u)[0].v, reference.step(x, u)[0].v) < VELOCITY

    w = jnp.asarray(np.random.default_rng(0).normal(size=core.nv))

    def slope(system):
        return jax.grad(lambda v: w @ system.step(State(x.q, v), u)[0].v)(x.v)

    if gradient == "complementarity-aware":
        with pytest.raises(DerivativeError):
            core.linearize(x, u)
    # Differences amplify what steps differ by, 1e-10, by one over their step, 6e-6. A held cube has no slope at all.
    one, other = slope(core), slope(reference)
    assert np.abs(one - other).max() < 1e-4 * max(1.0, np.abs(other).max())
