"""The loader of the compiled core: which shared object is used, and what it says where there is none."""

import shutil

import jax.numpy as jnp
import pytest

from native.cases import needs_core
from trajopt import load_model, native
from trajopt.dynamics import BoxedLCP, CompliantContact, NoContact, RigidContact, SmoothedContact
from trajopt.dynamics.backend import reason_not_covered
from trajopt.errors import TrajoptError


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


def copy_of_sources(folder):
    for path in (*native.SOURCES.glob("*.h"), *native.SOURCES.glob("*.cc")):
        shutil.copy(path, folder)
    return folder


@needs_core
def test_a_core_built_from_other_sources_is_refused(monkeypatch, tmp_path):
    """It might step by other rules, or read arrays that are laid out otherwise: it counts as one that is not built."""
    edited = copy_of_sources(tmp_path) / "newton.h"
    edited.write_text(edited.read_text() + "constexpr int MORE = 1;\n")
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    assert not native.available() and native.missing()
    assert "other sources" in native.reason() and native.REBUILD in native.reason()
    with pytest.raises(TrajoptError, match="other sources"):
        native.instruction_set()


@needs_core
@pytest.mark.parametrize("change", ["comment", "layout", "none", "absent"])
def test_sources_that_say_the_same_are_no_reason_to_build(monkeypatch, tmp_path, change):
    """Comments and white space do not count; a wheel without sources has nothing to compare."""
    if change != "absent":
        header = copy_of_sources(tmp_path) / "newton.h"
        code = header.read_text()
        header.write_text({"comment": "// Another remark.\n" + code, "layout": code.replace("\n", "\n\n "), "none": code}[change])
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    assert native.available() and native.reason() == ""


@needs_core
def test_what_is_not_covered_is_said():
    model = load_model("cube")
    for dtype in (jnp.float64, jnp.float32):
        assert reason_not_covered(model.to_device(dtype), RigidContact(), "semi-implicit") is None
    for integrator in ("moreau", "euler", "rk4"):
        assert reason_not_covered(model, NoContact(), integrator) is None
    for law, integrator, dtype, word in (
        (BoxedLCP(), "semi-implicit", jnp.float64, "BoxedLCP"),
        (CompliantContact(), "semi-implicit", jnp.float64, "CompliantContact"),
        (SmoothedContact(sweeps=10), "semi-implicit", jnp.float64, "sweeps=10"),
        (RigidContact(), "rk4", jnp.float64, "rk4"),
        (RigidContact(), "semi-implicit", jnp.float16, "float16"),
    ):
        assert word in reason_not_covered(model.to_device(dtype), law, integrator)
