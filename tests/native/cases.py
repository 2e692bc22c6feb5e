"""Steps of the compiled core beside those of the JAX implementation."""

import functools
import itertools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import native
from trajopt.dynamics import State, System
from trajopt.dynamics.compiled import compile_system, pack_parameters
from trajopt.dynamics.compiled_step import core_steps, given_candidates
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.report import PackedStepInfo
from trajopt.solvers.subproblems.riccati import LQProblem

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
from contact_states import draw

needs_core = pytest.mark.skipif(not native.available(), reason=f"no compiled core: {native.reason()}")
DT = 1e-3
# Both solve the same equations to rounding; what the impulses' tolerance (1e-10 of the velocities) leaves is the larger part.
VELOCITY, MATRIX = 1e-9, 1e-8


def two_feet(apart: float) -> str:
    """MJCF of a body that slides along z and pitches, on two feet side by side, under its centre of mass."""
    places = (0.1 - apart / 2, 0.1 + apart / 2)
    feet = "".join(f'<geom type="sphere" size="0.05" pos="{x:.17g} 0 0.05" mass="1" friction="1"/>' for x in places)
    return f"""<mujoco><worldbody><geom name="floor" type="plane" size="0 0 1" friction="1"/>
    <body><joint type="slide" axis="0 0 1"/><joint type="hinge" axis="0 1 0"/>{feet}</body></worldbody></mujoco>"""


def random_lq(seed: int, sizes: tuple[int, int, int], leading: tuple[int, ...] = ()) -> LQProblem:
    """A convex problem of (steps, states, controls), or a batch of them."""
    rng, (T, N, M) = np.random.default_rng(seed), sizes
    W = rng.normal(size=(*leading, T, N + M, N + M))
    H = W @ W.swapaxes(-1, -2) + 0.1 * np.eye(N + M)
    V = rng.normal(size=(*leading, 1, N, N))
    Q = np.concatenate([H[..., :N, :N], V @ V.swapaxes(-1, -2)], -3)

    def normal(*shape): return rng.normal(size=(*leading, *shape))  # fmt: skip

    return jax.tree.map(jnp.asarray, LQProblem(
        A=normal(T, N, N) / np.sqrt(N), B=normal(T, N, M), d=normal(T, N), Q=Q, R=H[..., N:, N:], S=H[..., :N, N:],
        q=normal(T + 1, N), r=normal(T, M),
    ))  # fmt: skip


def called(compiled, model, parameters, q, v, tau, gain=None):
    """What the core returns of a step, with its derivative along `gain`, and the report."""
    given = given_candidates(compiled, StepInputs(compiled.law, model, q, v, tau, jnp.asarray(DT)), slopes=gain is not None)
    y = core_steps(compiled, parameters, q, v, tau, given=given, gain=gain)
    return y, PackedStepInfo(y.head, y.report, given.dropped_pairs, compiled.report_layout)


@functools.partial(jax.jit, static_argnums=0)
def linearized(compiled, model, parameters, q, v, u):
    y, info = called(compiled, model, parameters, q, v, model.actuation @ u, gain=model.actuation)
    return y, y.A, y.B, info


@functools.partial(jax.jit, static_argnums=0)
def stepped(compiled, model, parameters, q, v, u):
    return called(compiled, model, parameters, q, v, model.actuation @ u)


def compiled_of(model, law, integrator="semi-implicit"):
    """(what is static, device model, parameters)."""
    model = model.to_device(jnp.float64)
    compiled = compile_system(model, law, integrator)
    return compiled, model, pack_parameters(compiled, model, DT)


def states(model, law, count, seed):
    """States in contact on the way of short rollouts."""
    return list(itertools.islice(draw(System(model, dt=DT, contact=law, backend="jax"), seed), count))


def relative(a, b) -> float:
    """Largest difference over the largest entry."""
    a, b = np.asarray(a), np.asarray(b)
    return float(np.abs(a - b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), 1e-300))


def check(compiled, model, parameters, system: System, q, v, u) -> None:
    """The core's step and Jacobian are those of the system."""
    q, v, u = (jnp.asarray(a) for a in (q, v, u))
    y, A, B, info = linearized(compiled, model, parameters, q, v, u)
    expected = system.linearize(State(q, v), u)
    assert relative(y.v, expected.x_next.v) < VELOCITY
    assert relative(y.q, expected.x_next.q) < VELOCITY
    assert relative(A, expected.A) < MATRIX
    assert relative(B, expected.B) < MATRIX
    theirs, ours = expected.info.contacts, info.contacts
    for name in ("mode", "tied", "node1", "node2", "pair"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    for name in ("distance", "point", "frame", "friction"):
        assert relative(getattr(ours, name), getattr(theirs, name)) < 1e-12, name
    # Selected impulses are those of least norm in a null space that both find from a matrix known to rounding: to 1e-5.
    # Of redundant contacts that a later stage than Newton solved the contract promises v+, A and B, and a residual.
    if expected.info.degenerate and (expected.info.fallbacks or info.fallbacks):
        assert max(info.residual, expected.info.residual) <= 1e-10
    else:
        assert relative(info.impulse, expected.info.impulse) < (1e-5 if expected.info.degenerate else 1e-7)
    assert bool(info.degenerate) == bool(expected.info.degenerate)
    assert info.status == expected.info.status
