"""States of small systems and robots in every contact mode, for the tests of `System`: (system, state, control)."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from dynamics.contact import scenes
from trajopt.dynamics.system import State


def cube_case(kind):
    return scenes.system("cube"), scenes.cube_state(kind), np.zeros(0)


def robot_case(name, kind):
    return (scenes.system(name), *scenes.robot_state(name, kind))


def forest_case(kind):
    """The box on the floor and the arm whose tip touches it, with dry friction at the elbow."""
    sys = scenes.system("forest")
    # The tip's height over the floor is 0.5 - 0.3 cos(a) - 0.25 cos(a + e) - 0.03 for the angles a and e.
    arm = {"touching": (0.6, -0.19), "limit": (-1.502, 0.4)}[kind]
    a = arm[0]
    elbow = np.arccos((0.47 - 0.3 * np.cos(a) + 1e-4) / 0.25) - a if kind == "touching" else arm[1]
    q = np.array([1.0, 0.2, 0.0999, *scenes.about([0, 0, 1], 0.4), a, 0.0, elbow])
    v = np.array([0.5, -0.2, 0, 0, 0, 1.0, 0.1 if kind == "touching" else -0.4, 0.05, -0.3])
    return sys, State(q, v), np.array([0.2, -0.1])


def slider_case(kind):
    sys = scenes.system("sliders")
    x, u = {
        "limit closing": (State(np.array([0.4995, 0.1]), np.array([2.0, 0.5])), np.array([0.3, -0.2])),
        "limit penetrated": (State(np.array([-0.501, 0.1]), np.array([-0.1, 0.5])), np.array([0.3, -0.2])),
        "limit passed far": (State(np.array([-0.51, 0.1]), np.array([-0.1, 0.5])), np.array([0.3, -0.2])),
        "dry friction slipping": (State(np.zeros(2), np.array([0.7, -0.3])), np.array([1.0, 1.0])),
        "dry friction holding": (State(np.zeros(2), np.zeros(2)), np.array([1.0, 0.2])),
    }[kind]
    return sys, x, u


def bouncing_case():
    sys = scenes.system("cube")
    model = sys.model.replace(pair_restitution=jnp.asarray([0.6]))
    return dataclasses.replace(sys, model=model), scenes.cube_state("landing"), np.zeros(0)
