"""The timeline of a command: every moment belongs to one part, and compilations to a part of their own."""

import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

from trajopt import walltime

pytestmark = pytest.mark.check


@pytest.fixture
def clock(monkeypatch):
    """A clock of seconds that stands still unless the test moves it: `clock[0] += 1`."""
    now = [100.0]
    monkeypatch.setattr(walltime.time, "perf_counter", lambda: now[0])
    return now


def test_inner_parts_and_compilations_are_taken_out(clock):
    clock[0] = 103.0
    timeline = walltime.WallTime(100.0, "import")
    clock[0] = 104.0  # 1 s of nothing in particular
    with timeline.part("solve"):
        clock[0] = 107.0
        timeline.compiled(1.0)  # a function traced within the tracing of another, which ends later
        clock[0] = 108.0
        timeline.compiled(2.5)
        with timeline.part("certificate"):
            clock[0] = 110.0
            timeline.compiled(0.5)
        clock[0] = 111.0
    with pytest.raises(ValueError), timeline.part("plots"):
        clock[0] = 115.0
        raise ValueError
    with timeline.part("solve"):
        clock[0] = 116.0
    parts = timeline.parts()
    assert list(parts) == ["import", "solve", "certificate", "plots", "compile", "other"]
    expected = {"import": 3.0, "solve": 7.0 - 2.0 - 2.5 + 1.0, "certificate": 1.5, "plots": 4.0, "compile": 3.0, "other": 1.0}
    assert parts == pytest.approx(expected)
    assert timeline.document()["total"] == pytest.approx(16.0)
    assert walltime.sentence(timeline.document()).startswith("wall time 16.00 s: import 3.00, solve 3.50, ")


def test_what_jax_compiles_is_heard_while_a_command_keeps_its_time():
    walltime.listen()
    walltime.listen()  # heard once all the same
    with walltime.keeping(walltime.WallTime(time.perf_counter(), "import")) as timeline, walltime.part("solve"):
        jax.jit(lambda x: jnp.sin(x) + 0.125)(jnp.ones(3)).block_until_ready()
        parts = walltime.spent()
    assert parts["compile"] > 0
    assert all(value >= 0 for value in parts.values())
    assert sum(parts.values()) - parts["total"] == pytest.approx(parts["total"], rel=1e-9)
    before = timeline.parts()["compile"]
    jax.jit(lambda x: jnp.cos(x) + 0.125)(jnp.ones(3)).block_until_ready()  # after the command
    assert timeline.parts()["compile"] == before


AGE = "from trajopt import walltime; import time; print(time.perf_counter() - walltime.process_start())"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_process_began_after_it_was_started(elsewhere):
    """On Linux from /proc, in whole ticks of 10 ms; elsewhere by the processor time, which is no more than the age."""
    lie = "import pathlib; pathlib.Path.read_text = lambda path: 'Darwin'; " if elsewhere else ""
    before = time.perf_counter()
    age = float(subprocess.run([sys.executable, "-c", lie + AGE], capture_output=True, text=True, check=True).stdout)
    assert 0 < age <= time.perf_counter() - before + 0.02
