r"""go1-climb: Go1 gets onto a box of 15 cm from standing before it, and stands there.

    minimise    sum_t dt 1/2 (|w_u u|^2 + |w_v v|^2 + |w (q - q_ref(t))|^2 + |s|^2) + 1/2 |apex|^2
                + 1/2 (|W (q_T - q_goal)|^2 + |W_v v_T|^2)

over torques within their limits. q_ref goes from standing before the box to standing on it at an even pace, its height without a
weight; apex asks for the trunk `APEX` above the middle of the two after `APEX_AT` of the time, s are the velocities in the last
`STANDS` seconds. Which foot leaves the ground when, and where it comes down, is not said.
"""

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.system import System
from trajopt.models.registry import load_model
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import at_rest, on_dofs, sample_then_polish, task, via
from trajopt.problems.library.go1_jump import leg_targets
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults
from trajopt.problems.ranges import Count, Real, ranged
from trajopt.problems.residuals import Control, Height, Posture, Velocity

EDGE, HEIGHT = 0.35, 0.15  # m: of the model's box, from where the robot stands
APEX, APEX_AT = 0.15, 0.4  # m, share of the time
STANDS = 0.3  # s at the end, in which it is to stand
SOLE = 0.023  # m: radius of a foot
FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
SPREAD = 0.04, 0.15  # m, rad: of a start that is drawn, the distance, and how far legs are bent more or less
PLACE, TURN = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]), np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])  # of the trunk's coordinates


@ranged(beyond=Real(0.2, 0.6, "m"), duration=Real(0.5, 4.0, "s"), dt=Real(2e-3, 0.02, "s"), seed=Count(0, 2**31 - 1))
def go1_climb(beyond: float = 0.3, duration: float = 1.2, dt: float = 0.01, seed: int = 0) -> OptimalControlProblem:
    """The trunk `beyond`, m, behind the edge after `duration`, s, with steps of `dt`, s.

    seed: 0 from the usual stance, else from legs bent more or less, up to 4 cm nearer or farther.
    """
    system = System(load_model("go1-climb"), dt, RigidContact(max_contacts=12), implicit_damping=True)
    model, share = system.model, np.sqrt(dt)
    steps = round(duration / dt)
    home = np.asarray(model.keyframes["home"])
    start = random_start(seed) if seed else home
    goal = home + np.concatenate([[EDGE + beyond, 0.0, HEIGHT], np.zeros(16)])
    way = home + np.linspace(0.0, 1.0, steps + 1)[:, None] * (goal - home)
    above = (home + goal) / 2 + APEX * (np.arange(19) == 2)
    late = (np.arange(steps + 1) * dt > duration - STANDS)[:, None]
    top = via(steps, {round(APEX_AT * steps): on_dofs(model, (5.0, 0.0, 20.0, 0.0, 0.0, 0.0), 0.0)})
    running = task(
        Control(weight=0.02 * share), Velocity(weight=share * on_dofs(model, (0.1,) * 6, 0.05)),
        Posture(reference=way, weight=share * on_dofs(model, (3.0, 3.0, 0.0, 3.0, 3.0, 3.0), 0.5), name="way"),
        Posture(reference=above, weight=top, name="apex"),
        Velocity(weight=share * late * on_dofs(model, (3.0,) * 6, 0.3), name="standing"),
    )  # fmt: skip
    final = task(
        Posture(reference=goal, weight=on_dofs(model, (60.0, 60.0, 60.0, 30.0, 30.0, 30.0), 5.0)),
        Velocity(weight=on_dofs(model, (5.0,) * 6, 0.3)), *soles(60.0),
    )  # fmt: skip
    return OptimalControlProblem(
        "go1-climb", system, steps, at_rest(model, start), stage_residual=running, terminal_residual=final,
        goals=standing_there(goal),
        defaults=Defaults("Hybrid", sample_then_polish(
            leg_targets(duration), 48, 24, 1e-2, 200, patience=6, improvement=0.1, attempts=5, polish_patience=10
        )),
    )  # fmt: skip


def standing_there(goal: Float[np.ndarray, " 19"]) -> dict[str, Goal]:
    """The trunk at its place and upright, the feet on the box, next to no velocity."""
    return {
        "trunk position": Goal(Posture(("root",), reference=goal, weight=PLACE), 0.05, "m"),
        "trunk rotation": Goal(Posture(("root",), reference=goal, weight=TURN), 0.1, "rad"),
        "feet": Goal(task(*soles()), 0.02, "m"),
        "speed": Goal(Velocity(("root",), weight=PLACE), 0.2, "m/s"),
    }


def soles(weight: float = 1.0) -> list[Height]:
    """Of each foot, its height above where it stands on the box."""
    return [Height(foot, reference=HEIGHT + SOLE, weight=weight, name=foot) for foot in FEET]


def random_start(seed: int) -> Float[np.ndarray, " 19"]:
    """Nearer or farther, thighs and calves bent so that the feet stay below the hips."""
    generator = np.random.default_rng(seed)
    x, bend = generator.uniform(-1.0, 1.0, 2) * SPREAD
    home = np.asarray(load_model("go1-climb").keyframes["home"])
    legs = np.tile([0.0, 0.9 + bend, -1.8 - 2 * bend], 4)
    return np.concatenate([[x, 0.0, 0.023 + 2 * 0.213 * np.cos(0.9 + bend)], home[3:7], legs])
