"""No file hangs or crashes its reader, or ends in another library's error: structures made by hand, mutations of good files."""

import collections
import warnings

import numpy as np
import pytest
from hostile_files import OBJ, load, outcomes, write
from hostile_structures import lay_out, structures

from trajopt import models
from trajopt.errors import ModelError
from trajopt.models.builder import ModelWarning
from trajopt.models.meshes import find_package, load_triangles, load_vertices, resolve_uri

STRUCTURES = structures()


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_made_by_hand(tmp_path, name):
    files, message = STRUCTURES[name]
    path = lay_out(tmp_path, files)
    if message is not None:
        with pytest.raises(ModelError, match=message) as caught:
            models.load_model(path)
        assert len(str(caught.value)) < 10_000
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        models.load_model(path)


@pytest.mark.parametrize("start", range(0, 150, 50))
def test_mutated_files(tmp_path, start):
    results = {seed: load(write(tmp_path, seed)) for seed in range(start, start + 50)}
    assert {seed: result for seed, result in results.items() if result not in ("loaded", "refused")} == {}
    counts = collections.Counter(results.values())
    assert counts["loaded"] > 5 and counts["refused"] > 5  # the mutations are neither too small nor too large


@pytest.mark.slow
def test_many_mutated_files_in_child_processes():
    results = outcomes(range(20_000, 22_000))
    assert {seed: result for seed, result in results.items() if result not in ("loaded", "refused")} == {}


def test_faces_beyond_every_integer(tmp_path):
    (tmp_path / "m.obj").write_text(OBJ + f"f 1 2 {10**30}\n")
    assert len(load_vertices(tmp_path / "m.obj")) == 4 and load_triangles(tmp_path / "m.obj") is None


def test_names_do_not_leave_their_package(tmp_path):
    inside = tmp_path / "ws" / "robot" / "meshes"
    inside.mkdir(parents=True)
    for path in (inside / "a.stl", tmp_path / "ws" / "b.stl", tmp_path / "c.stl"):
        path.write_text("solid")
    search = [tmp_path / "ws"]
    assert resolve_uri("package://robot/meshes/a.stl", None, search) is not None
    assert resolve_uri("model://robot/meshes/../meshes/a.stl", None, search) is not None
    for name in ("package://robot/../b.stl", "package://../c.stl", "model://robot/meshes/../../b.stl", "package://./b.stl"):
        assert resolve_uri(name, None, search) is None, name
        assert resolve_uri(name, inside, search) is None, name
    assert find_package("robot", None, search) == tmp_path / "ws" / "robot"
    assert find_package("../ws", None, search) is None and find_package("..", inside, search) is None


def test_a_pipe_as_srdf_is_not_opened(tmp_path):
    lay_out(tmp_path, {"r.srdf": None})
    with pytest.raises(ModelError, match="it is no regular file but a pipe"):
        models.load_model("go1", srdf=tmp_path / "r.srdf")
    with pytest.raises(ModelError, match="cannot read model file"):
        models.load_model("go1", srdf="s" * 5000)


def test_numbers_that_no_power_survives():
    text = '<robot name="r"><link name="l"><inertial><mass value="1e200"/></inertial></link></robot>'
    with pytest.raises(ModelError, match=r"<mass>: attribute 'value' is '1e200'; no number may be above 1e\+50"):
        models.load_model_from_string(text)


def test_the_same_pairs_whatever_their_number():
    """Pairs found by rows are those of the rule for two shapes: a tree, fixed and moving neighbours, and a free ball."""
    text = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/><body name="fixed"><geom name="a" size="1"/>
      <body name="arm"><joint/><geom name="b" size="1"/><body name="hand"><joint/><geom name="c" size="1"/><geom name="d" size="1"
      contype="2" conaffinity="4"/></body></body></body><body><freejoint/><geom name="e" size="1" contype="4"/></body>
      </worldbody></mujoco>"""
    model = models.load_model_from_string(text)
    names = [shape.name for shape in model.topology.shapes]
    pairs = {frozenset((names[i], names[j])) for i, j in model.topology.pairs}
    assert pairs == {frozenset(p) for p in ("be", "ae", "ce", "ac", "ab", "de")} | {frozenset(("floor", x)) for x in "bce"}
    assert np.all(model.pair_friction == 1)
