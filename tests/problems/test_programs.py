"""Compiled programs: one for each function, subject and shape, whoever asks for it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import load_model
from trajopt.dynamics import NoContact, System
from trajopt.dynamics.effort import Effort, compiled_with
from trajopt.problems import OptimalControlProblem
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.problems.programs import PROGRAMS, Programs


@dataclasses.dataclass(frozen=True)
class Scale:
    factor: float

    def times(self, x):
        return self.factor * x


def test_a_program_is_compiled_once_for_equal_subjects_shapes_and_types():
    programs, x = Programs(), jnp.ones(3)
    value, seconds = programs.run(Scale.times, Scale(2.0), x)
    np.testing.assert_array_equal(value, 2 * np.ones(3))
    assert seconds > 0 and len(programs) == 1
    again, none = programs.run(Scale.times, Scale(2.0), 3 * x)
    np.testing.assert_array_equal(again, 6 * np.ones(3))
    assert none == 0 and len(programs) == 1
    other = programs.run(Scale.times, Scale(3.0), x)[0]  # another subject, another constant in the program
    np.testing.assert_array_equal(other, 3 * np.ones(3))
    assert len(programs) == 2
    assert programs.run(Scale.times, Scale(2.0), jnp.ones(4))[1] > 0  # another shape
    assert programs.run(Scale.times, Scale(2.0), x.astype(np.float32))[0].dtype == np.float32  # another type
    assert len(programs) == 4


def test_a_subject_s_last_program_takes_no_arguments_of_other_types():
    programs, subject, x = Programs(), Scale(2.0), jnp.ones(3)
    for given in (x, 3 * x, jnp.ones(4), x.astype(np.float32), np.ones(3), 1.0, x):
        value = programs.run(Scale.times, subject, given)[0]
        np.testing.assert_array_equal(value, 2 * np.asarray(given))
        assert value.dtype == jnp.asarray(given).dtype
    assert len(programs) == 4  # of 3 and of 4 numbers, in single precision, of a scalar
    assert programs.run(Scale.times, subject, 5 * x)[1] == 0


def test_the_programs_used_last_are_kept():
    programs, x = Programs(kept=2), jnp.ones(1)
    for factor in (1.0, 2.0, 1.0, 3.0):
        programs.run(Scale.times, Scale(factor), x)
    assert len(programs) == 2
    assert programs.run(Scale.times, Scale(1.0), x)[1] == 0
    assert programs.run(Scale.times, Scale(2.0), x)[1] > 0


def test_systems_of_other_models_may_follow_each_other():
    """A `System` is an argument here, a tree of another structure for every model, which JAX would build of placeholders."""
    programs = Programs()
    for name in ("cart-pole", "double-cart-pole", "cart-pole"):
        model = load_model(name)
        assert programs.run(_damping, None, System(model, 1e-3, NoContact()))[0].shape == (model.nv,)
    assert len(programs) == 2


def _damping(subject, system):
    return system.model.damping + system.dt


@pytest.mark.parametrize("gradient", ["implicit", "ridders"])
def test_oracles_of_one_problem_share_their_programs(gradient):
    problem = OptimalControlProblem(
        "sum", lambda x, u, t: x + u, 3, np.zeros(2), u0=np.ones(2), stage_residual=lambda x, u, t: x
    )
    first, second = OptimalControlOracle(problem, gradient), OptimalControlOracle(problem, gradient)
    motion = first.rollout(problem.x0, problem.u0, problem.parameters)
    assert first.compile_time_s > 0
    count = len(PROGRAMS)
    second.rollout(problem.x0, problem.u0, problem.parameters)
    assert second.compile_time_s == 0 and len(PROGRAMS) == count and second.evaluations == 1
    np.testing.assert_array_equal(motion.xs[-1], [3.0, 3.0])


def test_effort_changes_the_program_and_not_its_value():
    programs, x = Programs(), jnp.linspace(-1.0, 1.0, 7)
    values = [programs.run(Scale.times, Scale(2.0), x, effort=effort)[0] for effort in Effort]
    assert len(programs) == len(Effort) == 3
    for value in values:
        np.testing.assert_allclose(value, 2 * x, rtol=1e-15)


def test_options_that_this_xla_does_not_know_are_left_out():
    lowered = jax.jit(lambda x: x + 1.0).lower(1.0)
    assert compiled_with(lowered, {"xla_cpu_of_another_version": True})(1.0) == 2.0


def test_every_effort_holds_options():
    """Of Python 3.11.2, which Debian ships, an enumeration keeps no empty tuple as a value."""
    assert all(isinstance(effort.value, dict) for effort in Effort)
    assert not Effort.FULL.value and Effort.QUICK.value
