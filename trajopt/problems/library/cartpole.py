"""Swing-ups of a pole and of a double pendulum on a cart, from hanging to upright, with the least effort (integral of u^2).

cartpole-swingup is the problem of Kelly, "An introduction to trajectory optimization", SIAM Review 59(4), 2017, section 6:
cart 1 kg, pole 0.3 kg at 0.5 m, distance 1 m, |u| <= 20 N, |x| <= 2 m, 2 s; here with controls that are constant over each of
100 intervals and RK4.

double-cartpole-swingup is the second on which Nimble (Fig. 7) compares DDP with stochastic search; it prints no figures, so these
are this project's own: cart 1 kg, two poles of 0.3 kg at 0.5 m, the same bounds, 3 s, 150 steps, back to where the cart started.
Angles are relative to the parent: (pi, 0) is upright.
"""

import numpy as np

from trajopt.dynamics.contact.laws import NoContact
from trajopt.dynamics.system import System
from trajopt.models.registry import load_model
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import task
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults
from trajopt.problems.ranges import Count, Range, Real, ranged
from trajopt.problems.residuals import Control, Posture, Velocity

TRACK, FORCE = 2.0, 20.0  # m, N


_RANGES: dict[str, Range] = {
    "duration": Real(0.1, 60.0, "s"),
    "steps": Count(1, 10_000),
    "distance": Real(-TRACK, TRACK, "m", inside=True, why=f"the track ends {TRACK} m from the start"),
}


@ranged(**_RANGES)
def cartpole_swingup(duration: float = 2.0, steps: int = 100, distance: float = 1.0) -> OptimalControlProblem:
    """To rest upright `distance` metres away after `duration` seconds; the cost is the integral of u^2, N^2 s."""
    return _swingup("cartpole-swingup", "cart-pole", duration, steps, distance)


@ranged(**_RANGES)
def double_cartpole_swingup(duration: float = 3.0, steps: int = 150, distance: float = 0.0) -> OptimalControlProblem:
    """To rest upright `distance` metres away after `duration` seconds; the cost is the integral of u^2, N^2 s."""
    return _swingup("double-cartpole-swingup", "double-cart-pole", duration, steps, distance)


def _swingup(name: str, model: str, duration: float, steps: int, distance: float) -> OptimalControlProblem:
    loaded = load_model(model)
    system = System(loaded, duration / steps, NoContact(), integrator="rk4")
    target = np.array(loaded.keyframes["upright"])
    target[0] = distance
    rest = np.zeros(system.nv)
    start = np.concatenate([loaded.keyframes["home"], rest])
    # The guess of the states is a straight line: solvers that need not keep to the dynamics start from it.
    share = np.linspace(0.0, 1.0, steps + 1)[:, None]
    guess = (1 - share) * start + share * np.concatenate([target, rest])
    bound = np.full(2 * system.nv, np.inf)
    bound[0] = TRACK
    joints = tuple(joint.name for joint in loaded.topology.joints)
    weight = np.sqrt(2.0 * duration / steps)  # residuals cost half their square

    return OptimalControlProblem(
        name, system, steps, start, xs0=guess, stage_residual=Control(weight=weight),
        terminal_equality=task(Posture(reference=target), Velocity()),
        state_lower=-bound, state_upper=bound, control_lower=-FORCE, control_upper=FORCE,
        goals={
            "cart": Goal(Posture(joints[:1], reference=target), 0.01, "m"),
            "upright": Goal(Posture(joints[1:], reference=target), 0.02, "rad"),
            "at rest": Goal(Velocity(), 0.1, "m/s, rad/s"),
        },
        defaults=Defaults("MultipleShooting"),
    )  # fmt: skip
