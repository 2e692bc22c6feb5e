"""Compiled programs: one for each function, structure of the subject and shape, whoever asks for it."""

import dataclasses
import enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations

from trajopt import load_model, problems
from trajopt.dynamics import NoContact, System
from trajopt.dynamics.effort import known_options
from trajopt.problems import Display, LeastSquaresProblem, OptimalControlProblem, Trajectory, programs
from trajopt.problems import residuals as r


@programs.subject("factor")
@dataclasses.dataclass(frozen=True)
class Scale:
    factor: float
    power: int = 1

    def times(self, x):
        return self.factor * x**self.power


def test_a_program_is_compiled_once_for_each_structure_shape_and_type():
    x = np.arange(1.0, 4.0)
    value, seconds = programs.run(Scale.times, Scale(2.0), x)
    np.testing.assert_array_equal(value, 2 * x)
    assert seconds > 0
    with compilations() as count:
        for factor in (2.0, 3.0):  # a number of the subject is an argument
            value, seconds = programs.run(Scale.times, Scale(factor), x)
            np.testing.assert_array_equal(value, factor * x)
            assert seconds == 0
        program, seconds = programs.compiled(Scale.times, Scale(3.0), x)
        np.testing.assert_array_equal(program(2 * x), 6 * x)
        assert seconds == 0
    assert count.programs == 0
    for subject, given in ((Scale(2.0, 2), x), (Scale(2.0), jnp.ones(5)), (Scale(np.float32(2.0)), x.astype(np.float32))):
        value, seconds = programs.run(Scale.times, subject, given)
        np.testing.assert_array_equal(value, 2 * np.asarray(given) ** subject.power)
        assert seconds > 0


def test_a_subject_that_is_no_pytree_is_part_of_the_key():
    def times(factor, x):
        return factor * x

    assert [programs.run(times, factor, jnp.ones(2))[0][0] for factor in (2, 3, 2)] == [2.0, 3.0, 2.0]


def reach(x0, weight=1e-2, gravity=9.81, upper=5.0, report=None):
    """A problem made anew: nothing of it but its residuals' kinds is the same object."""
    model = load_model("cart-pole").replace(gravity=jnp.array([0.0, 0.0, -gravity]))
    return OptimalControlProblem(
        "reach", System(model, 0.05, NoContact()), 7, np.full(4, x0), u0=0.1, control_upper=upper,
        stage_residual=r.Control(weight=weight), terminal_residual=r.Posture(reference=[0.1, 0.0]),
        display=Display(report=report),
    )  # fmt: skip


def test_problems_that_differ_in_numbers_share_programs():
    """Initial state, weights, numbers of the model and bounds are arguments, also of a problem that is made anew."""
    first = reach(0.1).compile()
    motion = first.rollout(first.problem.x0, first.problem.u0, first.problem.parameters)
    first.cost(motion), first.residuals(motion)
    assert first.compile_time_s > 0
    other = reach(0.2, 0.1, 5.0, 0.05, report=lambda motion: "what is shown is no part of a program").compile()
    with compilations() as count:
        moved = other.rollout(other.problem.x0, other.problem.u0, other.problem.parameters)
        cost, violation = other.cost(moved), other.residuals(moved)["bound_violation"]
    assert count.programs == 0 and other.compile_time_s == 0
    xs = np.asarray(other.problem.system.rollout(other.problem.as_state(other.problem.x0), other.problem.u0)[0].q)
    np.testing.assert_allclose(moved.xs[1:, :2], xs[-7:], atol=1e-12)
    np.testing.assert_allclose(cost, 0.5 * 7 * (0.1 * 0.05) ** 2 + 0.5 * np.sum((moved.xs[-1, :2] - [0.1, 0.0]) ** 2))
    assert violation == 0 and (other.problem.u0 == 0.05).all()
    with compilations() as count:
        reach(0.1, upper=np.inf).compile().residuals(motion)  # which bounds there are is structure
    assert count.programs > 0


@pytest.mark.parametrize("name, one, other", [
    ("spinner", {"seed": 1}, {"seed": 2}), ("push-box", {"seed": 1}, {"start": "beside"}), ("push-t", {"seed": 1}, {"yaw": 0.2}),
    ("hopper-step", {"seed": 1}, {"beyond": 0.3}), ("cartpole-swingup", {}, {"distance": 0.8}), ("catapult", {}, {}),
    ("drone-takeoff", {}, {"target": 3.0}), ("half-cheetah", {}, {"speed": 1.5}), ("hopper", {}, {}), ("jump-worm", {}, {}),
    ("atlas-jump", {}, {}), ("go1-state-estimation", {"steps": 5}, {"steps": 5, "seed": 1}), ("go1-stand", {}, {"dt": 2e-3}),
    ("cube-initial-velocity", {"steps": 9}, {"steps": 9}), ("cube-initial-impulse", {"steps": 9}, {"steps": 9, "guess": 1}),
    ("falling-mass", {}, {"target": 0.4}), ("friction-identification", {"samples": 5}, {"samples": 5, "seed": 3}),
    ("link-length-identification", {"samples": 5}, {"samples": 5, "seed": 3}),
])  # fmt: skip
def test_problems_of_the_library_with_other_numbers_share_every_program(name, one, other):
    """What `jax.jit` keys programs by is the same: the structure, and shapes and types of the numbers; that of the goals too."""
    first, second = (problems.get(name, **settings) for settings in (one, other))
    for a, b in ((first, second), (getattr(first, "goals", {}), getattr(second, "goals", {}))):
        assert jax.tree.structure(a) == jax.tree.structure(b)
        assert [(np.shape(x), np.asarray(x).dtype) for x in jax.tree.leaves(a)] == [
            (np.shape(x), np.asarray(x).dtype) for x in jax.tree.leaves(b)
        ]


def test_numbers_bound_by_partial_are_arguments():
    def dynamics(x, u, t):
        return x + u

    def pull(place):
        residual = jax.tree_util.Partial(_away, place)
        return OptimalControlProblem("pull", dynamics, 3, np.zeros(2), u0=np.zeros(2), terminal_residual=residual)

    motion = pull(1.0).initial_point
    assert pull(1.0).compile().cost(motion) == 1.0
    with compilations() as count:
        assert pull(2.0).compile().cost(motion) == 4.0
    assert count.programs == 0


def _away(place, x):
    return x - place


def test_a_problem_is_a_pytree():
    problem = reach(0.1)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, problem)
    np.testing.assert_array_equal(doubled.x0, 2 * problem.x0)
    assert doubled.dynamics.model.mass[0] == 2 * problem.system.model.mass[0] and doubled.horizon == problem.horizon
    assert jax.tree.structure(doubled) == jax.tree.structure(reach(0.3))
    xs, p = np.tile(problem.x0, (8, 1)), problem.parameters
    gradient = jax.jit(jax.grad(lambda problem: problem.cost(Trajectory(xs, problem.u0, p))))
    us = gradient(jax.tree.map(jnp.asarray, problem)).u0
    np.testing.assert_allclose(us, 1e-4 * problem.u0)  # weight^2 u
    fit = LeastSquaresProblem("fit", lambda x, y: x - y, np.ones(2), data=np.arange(2.0))
    assert jax.tree.structure(fit.replace(data=np.ones(2))) == jax.tree.structure(fit)
    assert jax.tree.structure(dataclasses.replace(fit, lower=-5.0)) != jax.tree.structure(fit)  # bounds count by their entries
    np.testing.assert_array_equal(jax.tree.map(lambda y: y + 1, fit).full_residual(fit.x0), [0.0, -1.0])


def test_options_that_this_xla_does_not_know_are_left_out():
    class Other(enum.Enum):
        PARTLY = {"xla_backend_optimization_level": 0, "xla_cpu_of_another_version": True}

    assert known_options(Other.PARTLY) == {"xla_backend_optimization_level": 0}
