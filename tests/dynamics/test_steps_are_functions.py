"""A step is a function of state and control: where the law has several solutions, nothing that came before decides between them.

Sliding robots have such states, a few in a hundred. Solves that begin at the impulses of the step before, or of a neighbour,
end at other solutions there, whose velocities are 1e-3 to 0.6 off.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native.cases import needs_core

from trajopt import load_model
from trajopt.dynamics import BoxedLCP, RigidContact, State, System
from trajopt.dynamics.policies import follow_policy

BACKENDS = ["jax", pytest.param("native", marks=needs_core)]
DT, STEPS = 5e-3, 40


def system(name: str, backend: str) -> System:
    law = RigidContact(max_contacts=8 if backend == "jax" else None)
    return System(load_model(name), DT, contact=law, backend=backend, implicit_damping=True)


def home(sys: System) -> State:
    return sys.initial_state("home") if "home" in sys.model.keyframes else sys.initial_state()


def sliding_states(sys: System, count: int):
    """(x, u) of a standing robot that is pushed: velocities of 0.01 to 3 rad/s, m/s, the feet 10 um inside the floor."""
    rng, q = np.random.default_rng(0), np.array(home(sys).q)
    for joint in sys.model.topology.joints:
        if joint.kind == "free":
            q[joint.q_start + 2] -= 1e-5
    for _ in range(count):
        v = 10.0 ** rng.uniform(-2, 0.5) * rng.normal(size=sys.nv)
        yield State(jnp.asarray(q), jnp.asarray(v)), jnp.asarray(10 * rng.normal(size=sys.nu))


def motion(sys: System, seed: int):
    """(x0, us) of a robot that stands, moves, and is driven by random torques."""
    rng = np.random.default_rng(seed)
    x0 = State(home(sys).q, jnp.asarray(10.0 ** rng.uniform(-1.5, 0.3) * rng.normal(size=sys.nv)))
    return x0, jnp.asarray(10.0 ** rng.uniform(0, 1.5) * rng.normal(size=(STEPS, sys.nu)))


SLOW = [pytest.param(name, "jax", marks=pytest.mark.slow) for name in ("go1", "atlas", "jump-worm")]


@pytest.mark.parametrize(
    "name, backend",
    [("h1", "jax"), *SLOW, *(pytest.param(n, "native", marks=needs_core) for n in ("h1", "go1", "atlas", "jump-worm"))],
)
def test_a_warm_start_has_no_influence(name, backend):
    """Its own impulses, those of neighbours, nonsense: the step and the Jacobian are those without, to the last bit."""
    sys, rng = system(name, backend), np.random.default_rng(1)
    for x, u in sliding_states(sys, 20):
        alone, info = sys.step(x, u)
        size = np.abs(np.asarray(info.impulse)).max()
        near = State(x.q, x.v + 0.1 * jnp.abs(x.v).max() * rng.normal(size=sys.nv))
        starts = (info.impulse, sys.step(near, u)[1].impulse, size * rng.normal(size=info.impulse.shape))
        for start in starts:
            y, other = sys.step(x, u, warm_start=start)
            np.testing.assert_array_equal(y.v, alone.v)
            np.testing.assert_array_equal(other.impulse, info.impulse)
    np.testing.assert_array_equal(sys.linearize(x, u, warm_start=starts[2]).A, sys.linearize(x, u).A)


@needs_core
@pytest.mark.parametrize("name, seed", [("h1", 23), ("go1", 14), ("atlas", 45), ("jump-worm", 0)])
def test_a_motion_of_the_core_is_its_steps(name, seed):
    """40 steps of robots that slide and stumble under random torques, as iLQR follows them. With solves that begin at the
    impulses of the step before, a step of the first three motions ends at another solution."""
    sys = system(name, "native")
    x0, us = motion(sys, seed)
    still = jnp.tile(x0.q, (STEPS, 1)), jnp.tile(x0.v, (STEPS, 1))
    free = jnp.full(sys.nu, np.inf)
    followed, _, _ = jax.jit(follow_policy)(sys, x0, *still, us, jnp.zeros((STEPS, sys.nu, 2 * sys.nv)), -free, free)
    rolled, _ = sys.rollout(x0, us)
    x = x0
    for k, u in enumerate(us):
        x, _ = sys.step(x, u)
        # The force of the motors is summed up in another order: rounding, which steps in contact let grow.
        np.testing.assert_allclose(followed.v[k], x.v, rtol=0, atol=1e-8)
        np.testing.assert_allclose(rolled.v[k + 1], x.v, rtol=0, atol=1e-8)


def test_a_motion_of_the_jax_implementation_is_its_steps():
    """The first steps of the same motion of H1."""
    sys = system("h1", "jax")
    x, us = motion(sys, 23)
    rolled, _ = sys.rollout(x, us[:12])
    for k, u in enumerate(us[:12]):
        x, _ = sys.step(x, u)
        np.testing.assert_allclose(rolled.v[k + 1], x.v, rtol=0, atol=1e-8)


def test_box_friction_starts_where_it_is_asked_to():
    """From the solution `BoxedLCP` ends after one iteration; rollouts start from zero."""
    sys = System(load_model("h1"), DT, contact=BoxedLCP(max_contacts=8))
    x, u = next(sliding_states(sys, 1))
    y, info = sys.step(x, u)
    _, again = sys.step(x, u, warm_start=info.impulse)
    assert int(again.iterations) <= 1 < int(info.iterations)
    rolled, infos = sys.rollout(x, u[None])
    np.testing.assert_allclose(rolled.v[1], y.v, rtol=0, atol=1e-10)
    assert int(infos.iterations[0]) == int(info.iterations)
