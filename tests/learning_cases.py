"""A small environment for the tests of learning: a mass on a slide is to be brought to the middle."""

import jax.numpy as jnp

from trajopt.dynamics import NoContact, System
from trajopt.learning import Environment, around
from trajopt.models import load_model_from_string
from trajopt.problems import residuals as r

SLIDER = """<mujoco><worldbody><body><joint name="x" type="slide" axis="1 0 0" range="-2 2"/>
<inertial mass="1" pos="0 0 0" diaginertia="1e-3 1e-3 1e-3"/><geom type="sphere" size="0.1" contype="0" conaffinity="0"/></body>
</worldbody><actuator><motor joint="x" ctrlrange="-3 3"/></actuator></mujoco>"""


def slider(**changes) -> Environment:
    """Episodes of eight actions of two steps of 0.05 s each."""
    system = System(load_model_from_string(SLIDER), 0.05, NoContact())
    settings = {
        "reward": r.Posture(weight=2.0) + r.Velocity(weight=0.3) + r.Control(weight=0.1),
        "initial": around(system.model, jnp.zeros(1), position=1.0, velocity=0.5),
        "substeps": 2, "success": lambda xs, steps, drawn: jnp.abs(xs.q[-1, 0]) < 0.3,
    }  # fmt: skip
    return Environment("slider", system, limit=8, **settings | changes)
