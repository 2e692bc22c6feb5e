"""The dropped robots start where the page says, held by their servos, and MuJoCo is given the same fall."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import dropped_peer
import dropped_scenes

# A trunk with two legs: one hinge begins beyond its limit, the legs' feet overlap, the file has neither ground nor free base.
LEGS = """<mujoco model="legs"><compiler angle="radian" autolimits="true"/><worldbody><body name="trunk" pos="0 0 1">
  <geom name="trunk" type="box" size="0.2 0.2 0.05"/>
  <body name="left" pos="0 0.03 -0.1"><joint name="left" axis="0 1 0" range="0.2 1"/>
    <geom name="left" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.04"/></body>
  <body name="right" pos="0 -0.03 -0.1"><joint name="right" axis="0 1 0" range="-1 1"/>
    <geom name="right" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.04"/></body>
</body></worldbody><actuator><position joint="left" kp="10"/><position joint="right" kp="20"/></actuator></mujoco>"""


@pytest.fixture
def legs(tmp_path):
    (tmp_path / "legs.xml").write_text(LEGS)
    return tmp_path, *dropped_scenes.load(dropped_scenes.Robot("legs", "", "legs.xml"), tmp_path)


def test_starts_are_within_limits_apart_and_above_the_ground(legs):
    _, model, q, notes = legs
    assert (model.nq, model.nv) == (9, 8) and q[7:].tolist() == [0.2, 0.0]
    assert notes[0] == "beyond limits: left -0.2"
    assert notes[1] == "overlapping shapes left out besides: left - right"
    assert min(dropped_scenes.lowest_points(model, q).values()) == pytest.approx(dropped_scenes.GAP, abs=1e-12)
    names = [{model.topology.shapes[k].name for k in pair} for pair in model.topology.pairs]
    assert {"left", "right"} not in names and len(names) == len(model.pair_friction) == 3


def test_peer_falls_from_the_same_height(legs):
    folder, model, q, _ = legs
    u = dropped_scenes.holding_control(model, q)
    start, height, _ = dropped_peer.peer_fall(folder / "legs.xml", folder, model, q, u, 0.05)
    assert start - height == pytest.approx(9.81 * 0.05**2 / 2, rel=0.02)  # free fall of 12 mm, steps of 0.5 ms
