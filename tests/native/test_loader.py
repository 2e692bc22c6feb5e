"""The loader of the compiled core: which shared object is used, and what it says where there is none."""

from __future__ import annotations

import platform
import shutil
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

from native.cases import needs_core
from trajopt import load_model, native
from trajopt.dynamics import BoxedLCP, CompliantContact, NoContact, RigidContact, SmoothedContact
from trajopt.dynamics.backend import reason_not_covered
from trajopt.dynamics.compiled import compile_system
from trajopt.errors import OptionError, TrajoptError
from trajopt.native.build import build

BUILT = [isa for isa in native.INSTRUCTION_SETS if (isa == "neon") == (platform.machine() == "aarch64")]  # for this machine


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
@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
def test_the_avx2_object_holds_no_register_of_512_bits():
    def uses(isa: str) -> bool:
        path = native.FOLDER / f"trajopt_native_{isa}.so"
        return b"%zmm" in subprocess.run(["objdump", "-d", path], capture_output=True, check=True).stdout

    assert not uses("avx2") and uses("avx512")


@needs_core
@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm")
@pytest.mark.parametrize("isa", BUILT)
def test_an_object_exports_its_handlers_alone(isa):
    """Functions that both objects hold, of the C++ library too, cannot be taken from the other one's instruction set."""
    command = ["nm", "-D", "--defined-only", native.FOLDER / f"trajopt_native_{isa}.so"]
    lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    names = {line.split()[-1] for line in lines}
    assert names == {*(f"trajopt_{name}" for name in native.HANDLERS), "trajopt_register_topology", "trajopt_sizes"}


def test_a_build_without_a_compiler_names_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(TrajoptError, match="cmake is missing; pip install cmake"):
        build(tmp_path / "tree", 1)
    (tmp_path / "cmake").touch(mode=0o755)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(TrajoptError, match="a C.. compiler is missing"):
        build(tmp_path / "tree", 1)
    (tmp_path / "cmake").write_text("#!/bin/sh\necho no such header\nexit 3\n")
    monkeypatch.setenv("CXX", "some-compiler")
    with pytest.raises(TrajoptError, match="no such header"):
        build(tmp_path / "tree", 1)


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
