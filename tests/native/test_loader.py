"""The loader of the compiled core: which shared object is used, and what it says where there is none."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from native.cases import needs_core
from trajopt import load_model, native
from trajopt.dynamics import BoxedLCP, CompliantContact, NoContact, RigidContact
from trajopt.dynamics.compiled import compile_system, reason_not_covered
from trajopt.errors import OptionError, TrajoptError


@needs_core
def test_the_best_instruction_set_of_the_processor_is_used(monkeypatch):
    monkeypatch.delenv("TRAJOPT_NATIVE_ISA", raising=False)
    assert native.available() and native.reason() == ""
    assert native.instruction_set() in native.INSTRUCTION_SETS


@needs_core
@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
def test_an_instruction_set_can_be_forced(monkeypatch, isa):
    monkeypatch.setenv("TRAJOPT_NATIVE_ISA", isa)
    if native.available():
        assert native.instruction_set() == isa
    else:
        assert isa in native.reason()


def test_a_mistyped_instruction_set_is_named(monkeypatch):
    monkeypatch.setenv("TRAJOPT_NATIVE_ISA", "avx521")
    assert not native.available()
    assert "avx521" in native.reason() and "avx512" in native.reason()
    with pytest.raises(TrajoptError, match="avx521"):
        native.instruction_set()


def test_a_missing_object_names_the_line_that_builds_it(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native, "processor_flags", lambda: frozenset(native.INSTRUCTION_SETS["avx512"]))
    assert not native.available()
    assert native.REBUILD in native.reason()


def test_a_processor_without_the_instructions_is_told_so(monkeypatch):
    monkeypatch.setattr(native, "processor_flags", frozenset)
    assert not native.available()
    assert "processor" in native.reason()


@needs_core
def test_a_broken_table_is_refused_with_its_size():
    with pytest.raises(OptionError, match="3 entries"):
        native.register(np.array([1, 1, 1], np.int64))


@needs_core
def test_equal_content_has_the_same_key():
    keys = {compile_system(load_model(name), RigidContact(), "semi-implicit").key for name in ("cube", "cube", "hopper")}
    assert len(keys) == 2


@needs_core
def test_what_is_not_covered_is_said():
    model = load_model("cube")
    assert reason_not_covered(model, RigidContact(), "semi-implicit", jnp.float64) is None
    assert reason_not_covered(model, NoContact(), "moreau", jnp.float64) is None
    for law, integrator, dtype, word in (
        (BoxedLCP(), "semi-implicit", jnp.float64, "BoxedLCP"),
        (CompliantContact(), "semi-implicit", jnp.float64, "CompliantContact"),
        (RigidContact(solver="admm"), "semi-implicit", jnp.float64, "admm"),
        (NoContact(), "rk4", jnp.float64, "rk4"),
        (RigidContact(), "semi-implicit", jnp.float32, "float32"),
    ):
        assert word in reason_not_covered(model, law, integrator, dtype)
