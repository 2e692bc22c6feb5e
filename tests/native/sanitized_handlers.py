"""The handlers of the compiled core as XLA calls them, to be run with an object that was built for the sanitizers.

    LD_PRELOAD=libasan.so python sanitized_handlers.py FOLDER NAME ...      FOLDER holds trajopt_native_avx2.so

Steps, Jacobians, rollouts and motions under a feedback policy of bundled models from random states, single and in batches, whose
samples have to be the single ones to the last bit: batches of one axis and of two, batches with arguments in common, and a NaN
that stays in its sample. Direct calls have handlers of their own, whose numbers are the same, and which refuse the NaN. The
Riccati recursion, with bounds and without, is given random problems, one that is not convex and one with a NaN among them.
"""

import dataclasses
import os
import pathlib
import sys

os.environ["TRAJOPT_NATIVE_ISA"] = "avx2"

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from trajopt import native  # noqa: E402
from trajopt.dynamics import State, System  # noqa: E402
from trajopt.dynamics.policies import follow_policy  # noqa: E402
from trajopt.errors import NonFiniteError  # noqa: E402
from trajopt.models import load_model  # noqa: E402
from trajopt.solvers.subproblems.riccati import riccati, riccati_native  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from native.cases import random_lq  # noqa: E402
from native.contact_problems import STATUSES, solve_contacts  # noqa: E402

COUNT, STEPS = 6, 5


def same(batch, singles, where: str) -> None:
    """Sample k of every array is the single's array, NaN where that is NaN."""
    for k, single in enumerate(singles):
        for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(single), strict=True):
            np.testing.assert_array_equal(np.asarray(a)[k], np.asarray(b), err_msg=f"{where}, sample {k}")


def check(name: str) -> None:
    model = load_model(name)
    system = System(model, 1e-3, backend="native")
    rng = np.random.default_rng(0)
    home = np.asarray(model.keyframes.get("home", model.q_default), float)
    q = jnp.asarray(home + 0.01 * rng.normal(size=(COUNT, system.nq)))
    v, u = (jnp.asarray(rng.normal(size=(COUNT, n))) for n in (system.nv, system.nu))
    us = jnp.asarray(rng.normal(size=(COUNT, STEPS, system.nu)))
    q = q.at[2, 0].set(jnp.nan)

    def step(q, v, u):
        x, info = system.step(State(q, v), u)
        return x.q, x.v, info.residual

    def linearize(q, v, u):
        result = system.linearize(State(q, v), u)
        return result.x_next.q, result.x_next.v, result.A, result.B

    def impulses(q, v, u):
        result = system.linearize(State(q, v), u, outputs=("impulse",))
        return result.x_next.q, result.x_next.v, jax.tree.leaves(result.outputs["impulse"])

    def rollout(q, v, us):
        xs, info = system.rollout(State(q, v), us)
        return xs.q, xs.v, info.residual

    bar = jnp.tile(jnp.asarray(home), (STEPS, 1)), jnp.zeros((STEPS, system.nv))
    gains = jnp.asarray(3.0 * rng.normal(size=(STEPS, system.nu, 2 * system.nv)))
    limits = jnp.full(system.nu, -6.0), jnp.full(system.nu, 5.0)

    def policy(q, v, us):
        xs, controls, residual = follow_policy(system, State(q, v), *bar, us, gains, *limits)
        return xs.q, xs.v, controls, residual

    programs = (
        ("step", step, u),
        ("linearize", linearize, u),
        ("linearize with impulses", impulses, u),
        ("rollout", rollout, us),
        ("policy", policy, us),
    )
    for label, function, control in programs:
        where, single = f"{name}: {label}", jax.jit(function)
        together = jax.jit(jax.vmap(function))(q, v, control)
        same(together, [single(q[k], v[k], control[k]) for k in range(COUNT)], where)
        finite = np.isfinite(np.asarray(together[1])).reshape(COUNT, -1).all(1)
        np.testing.assert_array_equal(finite, np.arange(COUNT) != 2, err_msg=where)
        shared = jax.jit(jax.vmap(function, (None, 0, None)))(q[0], v, control[0])
        same(shared, [single(q[0], v[k], control[0]) for k in range(COUNT)], f"{where}, q and control shared")
        grid = jax.jit(jax.vmap(jax.vmap(function, (None, 0, None)), (0, None, 0)))(q[:2], v[:3], control[:2])
        for i in range(2):
            one = [x[i] for x in jax.tree.leaves(grid)]
            same(one, [single(q[i], v[k], control[i]) for k in range(3)], f"{where}, grid")
    for _, function, control in programs[:3]:
        check_direct(function, q, v, control, name)
    print(f"handlers avx2 {name}: {', '.join(label for label, *_ in programs)}, direct calls", flush=True)


def check_direct(function, q, v, u, name: str) -> None:
    """Each sample called directly, by the way of the first call and by that of later ones, beside a compiled function."""
    compiled = jax.jit(function)
    for k in (*range(COUNT), *range(COUNT)):
        try:
            direct = function(q[k], v[k], u[k])
        except NonFiniteError:
            assert k == 2, f"{name}: sample {k} is finite"
            continue
        assert k != 2, f"{name}: a NaN was taken"
        same([x[None] for x in jax.tree.leaves(direct)], [compiled(q[k], v[k], u[k])], f"{name}: direct call")


def check_contact_problems() -> None:
    """Random contact problems on plain arrays, one of them with a NaN."""
    rng = np.random.default_rng(0)
    for contacts in (1, 4, 12):
        J = rng.normal(size=(50, 3 * contacts, 9))
        g = rng.normal(size=(50, 3 * contacts))
        g[7, 0] = np.nan
        found = solve_contacts(J @ J.transpose(0, 2, 1), g, np.full((50, contacts), 0.5))
        statuses = np.asarray(found.status)
        assert statuses[7] == STATUSES.index("non_finite"), statuses
        assert np.isfinite(np.delete(np.asarray(found.residual), 7)).all(), statuses
    print("handlers avx2: contact problems", flush=True)


def check_riccati() -> None:
    """Against the recursion in JAX, whose rounding differs; sizes that no vector register divides."""
    recursions = [jax.jit(jax.vmap(function)) for function in (riccati_native, riccati)]
    for sizes in ((1, 1, 1), (9, 11, 5), (20, 36, 12)):
        steps, _, m = sizes
        lq = random_lq(0, sizes, (COUNT,))
        lq = dataclasses.replace(lq, A=lq.A.at[2].set(jnp.nan), R=lq.R.at[3, 0].multiply(-1e6))  # the latter is not convex
        for box in ((), (jnp.full((COUNT, steps, m), -0.1), jnp.full((COUNT, steps, m), 0.2))):
            found, expected = (recursion(lq, *box) for recursion in recursions)
            np.testing.assert_array_equal(found.convex, expected.convex)
            assert found.convex[0] and not found.convex[3], found.convex
            good = np.array([0, 1, 4, 5])
            for one, other in ((found.K, expected.K), (found.k, expected.k)):
                scale = np.abs(np.asarray(other)[good]).max()
                np.testing.assert_allclose(np.asarray(one)[good], np.asarray(other)[good], atol=1e-9 * scale)
    print("handlers avx2: Riccati recursion", flush=True)


if __name__ == "__main__":
    native.FOLDER = pathlib.Path(sys.argv[1]).resolve()
    assert native.instruction_set() == "avx2"
    check_contact_problems()
    check_riccati()
    for argument in sys.argv[2:]:
        check(argument)
