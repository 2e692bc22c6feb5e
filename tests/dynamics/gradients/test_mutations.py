"""Each term of the step's derivative is needed: without it, both routes to the Jacobian miss the differences by far.

A capsule with three different moments of inertia spins, and slides over a dome (a fixed sphere) that it penetrates by 0.1 mm:
one contact in which all terms act at once. Both routes, the rule of `implicit` and the closed form of `jacobian`, are traced
with the few functions that hold a term replaced by ones that multiply its derivative by a number: 1 keeps it, 0 removes it.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ridders import Estimate, compare, ridders_jacobian

from dynamics.contact import scenes
from trajopt.dynamics.contact import derivative as law_derivative
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.contact.laws import BoxedLCP, ContactLaw, RigidContact
from trajopt.dynamics.contact.ncp import SLIDING, newton_matrix, projection_jacobian
from trajopt.dynamics.gradients import closed_form as jacobian
from trajopt.dynamics.gradients import implicit
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.models.registry import load_model_from_string

DT = 1e-3
DOME = """<mujoco><worldbody><geom type="sphere" size="1" pos="0 0 -1" friction="0.4"/>
<body><freejoint/><inertial pos="0 0 0" mass="1.5" diaginertia="0.02 0.015 0.008"/>
  <geom type="capsule" size="0.1 0.2" friction="0.4"/></body></worldbody></mujoco>"""
LAWS = {"RigidContact": RigidContact(), "BoxedLCP": BoxedLCP()}
ROUTES = ("rule", "closed form")
POINT, NORMAL, STABILISATION, FRICTION, GYROSCOPIC = range(5)
# Term: its place among the numbers, and the blocks (0: by q, 1: by v, 2: by tau) that are wrong without it.
TERMS = {
    "motion of the contact point": (POINT, (0,)),
    "turning of the normal": (NORMAL, (0,)),
    "Baumgarte term": (STABILISATION, (0,)),
    "friction bound": (FRICTION, (0, 1, 2)),
    "gyroscopic torque": (GYROSCOPIC, (1,)),
}
EVERYTHING = np.ones(len(TERMS))


@functools.cache
def scene():
    """(model, q, v, tau): the axis of the capsule is inclined, its middle above and beside the top of the dome."""
    model = load_model_from_string(DOME).to_device()
    turn = scenes.about([1.0, 2.0, 0.3], 1.2)
    # The point of the axis that touches lies 5 cm from its middle, along the normal n = (0.3, -0.2, ...) of the dome.
    axis = scenes.rotation(turn)[:, 2]
    n = np.array([0.3, -0.2, 1.0])
    n -= (n @ axis) * axis
    n /= np.linalg.norm(n)
    centre = np.array([0.0, 0.0, -1.0]) + (1.1 - 1e-4) * n - 0.05 * axis
    q = np.concatenate([centre, turn])
    v, tau = np.array([0.8, 0.5, -0.4, 9.0, -12.0, 10.0]), np.array([0.3, -0.2, 0.1, 0.05, 0.02, -0.04])
    return model, jnp.asarray(q), jnp.asarray(v), jnp.asarray(tau)


@functools.cache
def differences(law: str):
    """(v+ differentiated by (q, v, tau) by Ridders' extrapolation, the step itself)."""
    model, q, v, tau = scene()
    step = jax.jit(lambda q, v, tau: implicit.velocity_step(StepInputs(LAWS[law], model, q, v, tau, jnp.asarray(DT))))

    def f(z):
        return np.asarray(step(jnp.asarray(scenes.integrate(model, q, z[:6])), v + z[6:12], tau + z[12:]).velocity)

    h = np.r_[np.full(6, 1e-5), np.full(6, 1e-3), np.full(6, 0.3)]
    return ridders_jacobian(f, 18, h), step(q, v, tau)


# -- terms that can be taken away --------------------------------------------------------------------------------------


def kept(weight, value):
    """`value`, its derivative multiplied by `weight`."""
    fixed = jax.lax.stop_gradient(value)
    return fixed + weight * (value - fixed)


def law_solution(keep, ncp, solution, slopes):
    """-dlambda of the law at fixed modes for the slopes of nu, by a dense solve, d(mu f_n) being a part of its own."""
    blocks, diagonal = projection_jacobian(ncp, solution.impulse, solution.velocity, solution.modes)
    P = blocks.at[:, :2, 2].multiply(keep[FRICTION]), diagonal
    K = newton_matrix(ncp, P, ncp.G)
    return jnp.linalg.solve(K, jax.scipy.linalg.block_diag(*P[0]) @ (ncp.rho[:, None] * slopes))


def change_rule(patch, keep) -> None:
    """Make the terms of `implicit.implicit_tangents` removable."""

    def collide(*arguments, original=implicit.collide):
        found = original(*arguments)
        point, normal = kept(keep[POINT], found.point), kept(keep[NORMAL], found.normal)
        return dataclasses.replace(found, point=point, normal=normal)

    def assemble(*arguments, original=implicit.assemble):
        rows = original(*arguments)
        return dataclasses.replace(rows, offset=kept(keep[STABILISATION], rows.offset))

    def inverse_dynamics(model, q, v, a, original=implicit.inverse_dynamics):
        return original(model, q, kept(keep[GYROSCOPIC], v), a)

    def law_tangent(ncp, solution, free, dmu, dbound):
        return -law_solution(keep, ncp, solution, free[:, None])[:, 0]

    for replacement in (collide, assemble, inverse_dynamics):
        patch.setattr(implicit, replacement.__name__, replacement)
    patch.setattr(law_derivative, "law_tangent", law_tangent)


def change_closed_form(patch, keep) -> None:
    """Make the terms of `jacobian.step_jacobian` removable."""

    def contact_geometry(*arguments, original=jacobian.contact_geometry):
        found = original(*arguments)
        return dataclasses.replace(found, d_point=keep[POINT] * found.d_point, d_frames=keep[NORMAL] * found.d_frames)

    def velocity_turning(model, terms, geometry, v, v_plus, by_distance, *rest, original=jacobian.velocity_turning):
        return original(model, terms, geometry, v, v_plus, keep[STABILISATION] * by_distance, *rest)

    def rnea_derivatives_from_terms(*arguments, original=jacobian.rnea_derivatives_from_terms):
        by_q, by_v = original(*arguments)
        return by_q, keep[GYROSCOPIC] * by_v

    def _law_solution(ncp, solution, slopes):
        return law_solution(keep, ncp, solution, slopes)

    for replacement in (contact_geometry, velocity_turning, rnea_derivatives_from_terms, _law_solution):
        patch.setattr(jacobian, replacement.__name__, replacement)


def by_rule(law: ContactLaw, q, v, tau):
    model = scene()[0]
    zero, dt = jnp.zeros(6), jnp.asarray(DT)

    def velocity(z):
        inputs = StepInputs(law, model, integrate(model, q, z[:6]), v + z[6:12], tau + z[12:], dt)
        return implicit.velocity_step(inputs).velocity

    return jax.jacfwd(velocity)(jnp.concatenate([zero, zero, zero]))


def by_closed_form(law: ContactLaw, q, v, tau):
    inputs = StepInputs(law, scene()[0], q, v, tau, jnp.asarray(DT))
    _, found = jacobian.step_jacobian(inputs, null_space=False)
    return jnp.concatenate([found.by_q, found.by_v, found.by_tau], 1)


@functools.cache
def changed(law: str, route: str):
    """keep (5,) -> d v+ / d (q, v, tau), compiled once for all terms."""
    change, method = {"rule": (change_rule, by_rule), "closed form": (change_closed_form, by_closed_form)}[route]

    def derivative(keep):
        with pytest.MonkeyPatch.context() as patch:
            change(patch, keep)
            return method(LAWS[law], *scene()[1:])

    return jax.jit(derivative)


# -- tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
def test_the_state_has_all_terms(law):
    """Differences that can be trusted, one contact that slides under friction and penetrates, with a turning normal."""
    estimate, step = differences(law)
    assert np.asarray(step.solution.modes.cone).tolist() == [SLIDING]
    assert step.rows.distance[0] == pytest.approx(-1e-4, rel=1e-6)
    for k in range(3):
        block = slice(6 * k, 6 * k + 6)
        assert estimate.error[:, block].max() < 1e-8 * np.abs(estimate.value[:, block]).max()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("route", ROUTES)
def test_with_all_terms_it_is_right(law, route):
    estimate, _ = differences(law)
    found = np.asarray(changed(law, route)(EVERYTHING))
    for k in range(3):
        block = slice(6 * k, 6 * k + 6)
        part = Estimate(estimate.value[:, block], estimate.error[:, block])
        compare(found[:, block], part, label=f"{law}, {route}, block {k}")


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("route", [pytest.param("rule", marks=pytest.mark.slow), "closed form"])
def test_with_all_terms_it_is_that_of_the_package(law, route):
    method = by_rule if route == "rule" else by_closed_form
    own = jax.jit(functools.partial(method, LAWS[law]))(*scene()[1:])
    np.testing.assert_allclose(changed(law, route)(EVERYTHING), own, atol=1e-11 * np.abs(own).max())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("term", TERMS)
def test_without_a_term_both_routes_miss_the_differences(law, term):
    """By at least 1e-4 of the largest entry of a block in which the term acts, where the whole derivative agrees to 1e-6; both
    by the same amount, so that nothing but the term was taken away; and blocks in which it does not act stay right."""
    place, wrong = TERMS[term]
    estimate, _ = differences(law)
    keep = EVERYTHING.copy()
    keep[place] = 0.0
    found = {route: np.asarray(changed(law, route)(keep)) for route in ROUTES}
    np.testing.assert_allclose(found["rule"], found["closed form"], atol=1e-10 * np.abs(estimate.value).max())
    for derivative in found.values():
        assert np.isfinite(derivative).all()
        for k in range(3):
            block = slice(6 * k, 6 * k + 6)
            value = estimate.value[:, block]
            missed = np.abs(derivative[:, block] - value).max() / np.abs(value).max()
            assert missed > 1e-4 if k in wrong else missed < 1e-9, f"block {k}: {missed:.1e}"
