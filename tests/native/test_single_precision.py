"""float32 through the compiled core, which computes in float64: the result of float64 at the same numbers, rounded."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dynamics.linkages import THREE

from native.cases import needs_core, random_lq
from trajopt import load_model
from trajopt.dynamics import NoContact, RigidContact, SmoothedContact, State, System
from trajopt.models.registry import load_model_from_string
from trajopt.result import Status
from trajopt.solvers.subproblems.riccati import riccati_native

pytestmark = needs_core
EPS = float(np.finfo(np.float32).eps)
DT = 0.0009765625  # 2^-10 s, a float32
# What float32 rounds besides the results: forces from controls, and the numbers of the law, by eps / 2 each. They reach v+ and
# the matrices with the condition of the step, below 30 here.
ROUNDED = 32 * EPS


def single(tree):
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)


def double(tree):
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), tree)


CASES = {
    "go1": (lambda: load_model("go1"), {}),
    "cube": (lambda: load_model("cube"), {"contact": RigidContact(erp=0.25)}),
    "linkage": (lambda: load_model_from_string(THREE), {}),
    "cart-pole": (lambda: load_model("cart-pole"), {"contact": NoContact(), "integrator": "rk4"}),
    "smoothed": (lambda: load_model("half-cheetah"), {"contact": SmoothedContact()}),
    "moreau": (lambda: load_model("half-cheetah"), {"integrator": "moreau"}),
}
cases = pytest.mark.parametrize("name", CASES)


@functools.lru_cache
def systems(name: str) -> tuple[System, System]:
    """In float32, and in float64 with the same numbers."""
    make, options = CASES[name]
    model = make().to_device(np.float32)
    return tuple(System(m, jnp.asarray(DT, m.mass.dtype), backend="native", **options) for m in (model, double(model)))


def draws(name: str, count: int):
    """(x, u) in float32 near the default configuration, in contact where there is ground."""
    system, rng = systems(name)[0], np.random.default_rng(len(name))
    x = system.initial_state("home" if "home" in system.model.keyframes else None)
    for _ in range(count):
        v, u = (single(rng.normal(size=size)) for size in (system.nv, system.nu))
        yield State(x.q, v), u


def near(found, expected, scale: float | None = None) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == np.float32 and expected.dtype == np.float64
    scale = np.abs(expected).max(initial=1e-30) if scale is None else scale
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDED * scale)


@cases
def test_a_step_and_its_jacobian_are_those_of_float64_rounded(name):
    system, exact = systems(name)
    step, linearize = jax.jit(lambda s, x, u: s.step(x, u)), jax.jit(lambda s, x, u: s.linearize(x, u))
    for x, u in draws(name, 3):
        (y64, info64), found64 = step(exact, double(x), double(u)), linearize(exact, double(x), double(u))
        for y, info in (system.step(x, u), system.step(x, u), step(system, x, u)):  # the second call takes a shorter way
            near(y.q, y64.q), near(y.v, y64.v), near(info.impulse, info64.impulse)
            assert bool(info.status == Status.solved) and info.residual.dtype == np.float32
            assert info.residual <= 1e-10  # the tolerance of float64, in which the core solves
        for found in (system.linearize(x, u), linearize(system, x, u)):
            near(found.A, found64.A), near(found.B, found64.B)


@cases
def test_batches_and_derivatives_are_those_of_float64_rounded(name):
    system, exact = systems(name)
    xs, us = (jax.tree.map(lambda *a: jnp.stack(a), *part) for part in zip(*draws(name, 3), strict=True))

    def height(system, x, u):
        y, _ = system.step(x, u)
        return jnp.sum(y.v) + jnp.sum(y.q)

    for function in map(jax.jit, (jax.vmap(height, (None, 0, 0)), jax.vmap(jax.grad(height, 1), (None, 0, 0)))):
        for found, expected in zip(*map(jax.tree.leaves, (function(system, xs, us), function(exact, double(xs), double(us))))):
            near(found, expected)
    x, u = jax.tree.map(lambda a: a[0], (xs, us))
    for s, args in ((system, (x, u)), (exact, (double(x), double(u)))):
        along = jax.tree.map(jnp.ones_like, args)
        _, forward = jax.jit(lambda s, args, along: jax.jvp(functools.partial(height, s), args, along))(s, args, along)
        slopes = jax.jit(jax.grad(height, (1, 2)))(s, *args)
        backward = sum(float(jnp.sum(a)) for a in jax.tree.leaves(slopes))
        size = sum(float(jnp.sum(jnp.abs(a))) for a in jax.tree.leaves(slopes))
        assert abs(float(forward) - backward) <= (ROUNDED if s is system else 1e-12) * size


@pytest.mark.parametrize("bound", [None, 0.3])
def test_the_recursion_of_riccati(bound):
    lq = single(random_lq(1, (9, 11, 5)))
    box = () if bound is None else (jnp.full((9, 5), -bound, jnp.float32), jnp.full((9, 5), bound, jnp.float32))
    for found, expected in zip(*map(jax.tree.leaves, (riccati_native(lq, *box), riccati_native(double(lq), *double(box))))):
        if found.dtype != bool:
            near(found, expected)
    batch = jax.vmap(riccati_native)(jax.tree.map(lambda a: jnp.stack([a, a]), lq))
    np.testing.assert_array_equal(batch.K[1], riccati_native(lq).K)


# -- JAX's default precision ----------------------------------------------------------------------------------------------------

DEFAULT = """
import warnings
import numpy as np
from trajopt import dynamics, load_model, problems, solvers
with warnings.catch_warnings(record=True) as issued:
    warnings.simplefilter("always")
    systems = [dynamics.System(load_model(name), 1e-3) for name in ("cube", "hopper")]
    for system in systems:
        x = system.initial_state()
        y, info = system.step(x, np.zeros(system.nu))
        found = system.linearize(x, np.zeros(system.nu))
        assert system.resolved_backend == "native" and y.v.dtype == found.A.dtype == np.float32, system.backend_reason
        assert not found.one_sided.any() and int(info.iterations) >= 0
    robot = solvers.solve(problems.get("go1-stand"), solvers.GaussNewton())
    drop = problems.get("falling-mass")
    short = solvers.solve(drop, solvers.GaussNewton(), max_iterations=1)
    interrupted = solvers.solve(drop, solvers.GaussNewton(), callback=lambda row: True)
assert robot.success and "precision" not in robot.message, robot.message
assert robot.residuals["pose_support_distance"] > 1e-9  # what float32 leaves of the pose
assert not short.success and 'precision may be the cause: numbers are float32' in short.message, short.message
assert 'jax.config.update("jax_enable_x64", True)' in short.message
assert not interrupted.success and "precision" not in interrupted.message, interrupted.message
[said] = issued
assert said.category is dynamics.PrecisionWarning and 'jax.config.update("jax_enable_x64", True)' in str(said.message), said
"""


def test_a_program_without_float64_takes_the_core_and_is_told_once():
    """A process of its own: JAX is made for one default precision a process."""
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", DEFAULT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
