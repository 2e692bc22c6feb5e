"""Published robots: those of the package example-robot-data."""

import importlib.metadata
import pathlib


def robots_folder() -> pathlib.Path:
    """Where the package keeps its robots."""
    package = importlib.metadata.distribution("example-robot-data")
    return pathlib.Path(str(package.locate_file("cmeel.prefix/share/example-robot-data/robots")))


def robot_file(robot: str) -> pathlib.Path:
    """Where it keeps a robot's file, such as "a1_description/urdf/a1.urdf"."""
    return robots_folder() / robot
