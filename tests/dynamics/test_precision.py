"""Products of matrices are asked for in the precision of their entries, wherever a step or its derivatives are traced."""

import jax
import jax.numpy as jnp
import pytest
from jax.extend import core

from trajopt.dynamics import RigidContact, State, System, forward_dynamics, rnea_derivatives
from trajopt.models import load_model

HIGHEST = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)


def products(jaxpr):
    """The products of matrices of a program, those of its inner programs included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if isinstance(inner, core.ClosedJaxpr):
                yield from products(inner.jaxpr)
            elif isinstance(inner, core.Jaxpr):
                yield from products(inner)


def less_precise(function, *args) -> list[str]:
    found = list(products(jax.make_jaxpr(function)(*args).jaxpr))
    assert found, "the program has no product of matrices: nothing is checked"
    return [str(equation.source_info.traceback) for equation in found if equation.params["precision"] != HIGHEST]


@pytest.fixture(scope="module")
def hopper():
    return System(load_model("hopper"), 1e-3, RigidContact(), backend="jax")


def step_of(system):
    u = jnp.zeros(system.nu)
    return lambda q, v: system.step(State(q, v), u)[0].v


@pytest.mark.parametrize("of", ["itself", "batch", "reverse", "batch of forward", "forward of jit"])
def test_every_product_of_a_step_is_precise(hopper, of):
    step, x = step_of(hopper), hopper.initial_state()
    many = (jnp.stack([x.q] * 3), jnp.stack([x.v] * 3))
    function, args = {
        "itself": (step, (x.q, x.v)),
        "batch": (jax.vmap(step), many),
        "reverse": (jax.jacrev(step, (0, 1)), (x.q, x.v)),
        "batch of forward": (jax.vmap(jax.jacfwd(step)), many),
        "forward of jit": (jax.jacfwd(jax.jit(step)), (x.q, x.v)),
    }[of]
    assert not less_precise(function, *args)


def test_every_product_of_a_batch_of_linearisations_is_precise(hopper):
    x, u = hopper.initial_state(), jnp.zeros((3, hopper.nu))
    many = jax.tree.map(lambda a: jnp.stack([a] * 3), (x.q, x.v))
    assert not less_precise(jax.vmap(lambda q, v, u: hopper.linearize(State(q, v), u).A), *many, u)


def test_functions_of_rigid_bodies_are_precise(hopper):
    model, x = hopper.model, hopper.initial_state()
    assert not less_precise(lambda q, v: forward_dynamics(model, q, v, v), x.q, x.v)
    assert not less_precise(lambda q, v: rnea_derivatives(model, q, v, v), x.q, x.v)
