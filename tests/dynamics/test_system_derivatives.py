"""The derivatives of a step against Ridders extrapolation: state, control and parameters, forward and reverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import Estimate, compare, ridders

from dynamics.contact import scenes
from dynamics.system_cases import bouncing_case, cube_case, forest_case, robot_case, slider_case
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.system import State
from trajopt.result import Status

QUICK = {
    **{f"cube {k}": (lambda k=k: cube_case(k)) for k in ("standing", "sliding", "landing", "edge", "flight")},
    **{
        f"sliders {k}": (lambda k=k: slider_case(k))
        for k in ("limit closing", "limit penetrated", "limit passed far", "dry friction slipping", "dry friction holding")
    },
    **{f"forest {k}": (lambda k=k: forest_case(k)) for k in ("touching", "limit")},
    "go1 standing": lambda: robot_case("go1", "standing"),
}
SLOW = {
    "cube bouncing": bouncing_case,
    **{
        f"{n} {k}": (lambda n=n, k=k: robot_case(n, k))
        for n in ("h1", "atlas")
        for k in ("standing", "sliding", "landing", "flight")
    },
    **{f"go1 {k}": (lambda k=k: robot_case("go1", k)) for k in ("landing", "sliding", "flight")},
}
CASES = {**QUICK, **SLOW}
NAMES = [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]

# Steps of the differences: below the distances (1e-4 m) and speeds at which the modes of the states above change.
STEP_Q, STEP_V, STEP_U = 2e-5, 1e-4, 1e-2


def columns_of(sys, count=24):
    """All directions, or `count` of them at random for a large robot."""
    n = 2 * sys.nv + sys.nu
    return np.arange(n) if n <= 48 else np.sort(np.random.default_rng(0).choice(n, count, replace=False))


@pytest.mark.parametrize("name", NAMES)
def test_linearize_against_ridders(name):
    """A and B to 1e-6 relative, in tangent coordinates."""
    sys, x, u = CASES[name]()
    jac = scenes.judged_slopes(sys, x, u, (STEP_Q, STEP_V, 0, STEP_U), columns=columns_of(sys), label=name)
    y, info = sys.step(x, u)
    np.testing.assert_allclose(jac.x_next.v, y.v, atol=1e-9)
    assert info.status == jac.info.status == Status.solved


@pytest.mark.parametrize("law", [{"erp": 1.0, "damping": 0.3}, {"gap": "detect", "erp": 0.0}, {"erp": 0.0}])
@pytest.mark.parametrize("kind", ["standing", "sliding", "edge"])
def test_linearize_under_other_laws(law, kind):
    sys, x = scenes.system("cube", **law), scenes.cube_state(kind)
    scenes.judged_slopes(sys, x, np.zeros(0), (STEP_Q, STEP_V, 0, 0), label=kind)


@jax.jit
def _both_modes(sys, q, v, u, reference, z, w):
    """(derivative of the next state along z, against w) in tangent coordinates, by forward and by reverse mode."""
    n = sys.nv

    def f(z):
        y, _ = sys.step(State(integrate(sys.model, q, z[:n]), v + z[n : 2 * n]), u + z[2 * n :])
        return jnp.concatenate([difference(sys.model, reference, y.q), y.v])

    zero = jnp.zeros_like(z)
    return jax.jvp(f, (zero,), (z,))[1], jax.vjp(f, zero)[1](w)[0]


FOREST = pytest.param("forest touching", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["cube sliding", FOREST, "sliders limit closing", "cube bouncing"])
def test_forward_and_reverse_mode_agree_with_linearize(name):
    """JVP along, and VJP against, random directions: w^T [A B] z in three ways, and grad of a scalar."""
    sys, x, u = CASES[name]()
    jac = sys.linearize(x, u)
    matrix = np.hstack([jac.A, jac.B])
    q, v, u = jnp.asarray(x.q), jnp.asarray(x.v), jnp.asarray(u)
    rng = np.random.default_rng(1)
    for _ in range(3):
        z, w = rng.normal(size=matrix.shape[1]), rng.normal(size=2 * sys.nv)
        forward, backward = _both_modes(sys, q, v, u, jac.x_next.q, jnp.asarray(z), jnp.asarray(w))
        scale = np.abs(matrix).max()
        # Redundant contacts: rounding times the inverse of the regularisation, see `ridders.compare`.
        np.testing.assert_allclose(forward, matrix @ z, atol=1e-10 * scale)
        np.testing.assert_allclose(backward, w @ matrix, atol=1e-10 * scale)


@pytest.mark.slow
def test_gradient_through_a_rollout():
    """Reverse mode through 25 steps of a sliding, then still sliding cube against differences of the rollout."""
    sys, x, _ = cube_case("sliding")
    weights = np.random.default_rng(2).normal(size=7)

    @jax.jit
    def loss(v):
        xs, _ = sys.rollout(State(jnp.asarray(x.q), v), jnp.zeros((25, 0)))
        return jnp.asarray(weights) @ xs.q[-1]

    gradient = jax.jit(jax.grad(loss))(jnp.asarray(x.v))
    estimates = [ridders(lambda s, e=e: np.asarray(loss(jnp.asarray(x.v + s * e))), 1e-3) for e in np.eye(6)[[0, 1, 5]]]
    for got, estimate in zip(np.asarray(gradient)[[0, 1, 5]], estimates, strict=True):
        assert abs(got - estimate.value) < 1e-6 * np.abs(gradient).max() + 10 * estimate.error
        assert estimate.error < 1e-7 * np.abs(gradient).max()


PARAMETERS = {
    "cube sliding": (
        "mass",
        "com",
        "inertia",
        "pair_friction",
        "shape_size",
        "shape_position",
        "placement_position",
        "gravity",
    ),
    "cube bouncing": (
        "mass",
        "com",
        "inertia",
        "pair_friction",
        "pair_restitution",
        "pair_impact_friction",
        "shape_size",
        "gravity",
    ),
    "forest touching": (
        "mass",
        "com",
        "inertia",
        "pair_friction",
        "shape_size",
        "placement_position",
        "armature",
        "damping",
        "stiffness",
        "frictionloss",
        "gravity",
    ),
    "sliders dry friction slipping": ("mass", "frictionloss", "damping", "armature"),
}


HALF_STEPS = {
    "gravity": 1e-2, "stiffness": 1e-1, "damping": 1e-2, "frictionloss": 1e-2, "inertia": 1e-5, "shape_size": 1e-5,
    "shape_position": 1e-5, "placement_position": 1e-5,
}  # fmt: skip


@pytest.mark.parametrize("case", [FOREST if case == "forest touching" else case for case in PARAMETERS])
def test_parameter_derivatives_against_ridders(case):
    """d x+/d parameters along two random directions each (symmetric for the inertia), to 1e-6 relative."""
    sys, x, u = CASES[case]()
    jac = sys.linearize(x, u, parameters=PARAMETERS[case])
    rng = np.random.default_rng(5)
    for name in PARAMETERS[case]:
        leaf = np.asarray(getattr(sys.model, name))
        slope, after = np.asarray(jac.parameters[name]), scenes.tangent_step(sys, x, u, name)
        assert slope.shape == (2 * sys.nv, *leaf.shape)
        values, errors, got = [], [], []
        for _ in range(2):
            direction = rng.normal(size=leaf.shape)
            if name == "inertia":
                direction = direction + np.swapaxes(direction, -1, -2)
            estimate = ridders(lambda s, d=direction, f=after: f(s * d), HALF_STEPS.get(name, 1e-4))
            values.append(estimate.value), errors.append(estimate.error)
            got.append(slope.reshape(2 * sys.nv, -1) @ direction.ravel())
        compare(
            np.stack(got, 1),
            Estimate(np.stack(values, 1), np.stack(errors, 1)),
            label=f"{case}: {name}",
            untrusted=0.15,  # entries that are zero but for rounding cannot be judged
        )
