"""Robots of the package example-robot-data, as their files are: for `backend_agreement.py` and `bench_published.py`."""

import importlib.metadata
import pathlib

from dropped_scenes import Robot, load

from trajopt import load_model
from trajopt.dynamics.model import Model

PUBLISHED = {
    "A1": "a1_description/urdf/a1.urdf",
    "ANYmal B": "anymal_b_simple_description/robots/anymal.urdf",
    "Bolt": "bolt_description/robots/bolt.urdf",
    "G1": "g1_description/urdf/g1_29dof_rev_1_0.urdf",
    "Go2": "go2_description/urdf/go2.urdf",
    "HyQ": "hyq_description/robots/hyq_no_sensors.urdf",
    "Panda published": "panda_description/urdf/panda.urdf",
    "Solo12": "solo_description/robots/solo12.urdf",
    "Talos": "talos_data/robots/talos_reduced.urdf",
    "UR5 published": "ur_description/urdf/ur5_gripper.urdf",
}
# Robots whose shapes are boxes, cylinders and spheres alone.
PRIMITIVE = {
    "Allegro": "allegro_hand_description/urdf/allegro_right_hand.urdf",
    "B1": "b1_description/urdf/b1.urdf",
    "Go1 published": "go1_description/urdf/go1.urdf",
    "Laikago": "laikago_description/urdf/laikago.urdf",
    "Panda of spheres": "panda_description/urdf/panda_collision.urdf",
    "quadruped": "quadruped_description/urdf/quadruped.urdf",
    "Romeo": "romeo_description/urdf/romeo_laas_small.urdf",
}


def folder() -> pathlib.Path:
    """Where the package keeps its robots."""
    package = importlib.metadata.distribution("example-robot-data")
    return pathlib.Path(str(package.locate_file("cmeel.prefix/share/example-robot-data/robots")))


def model_of(name: str) -> Model:
    """A bundled model, or a published one with a free base and a ground where it has none; overlapping pairs are left out."""
    files = PUBLISHED | PRIMITIVE
    if name not in files:
        return load_model(name)
    return load(Robot(name, "", files[name]), folder(), packages=folder())[0]
