r"""hopper-step: the one-legged hopper jumps from standing onto a step of 10 cm and stands there.

    minimise    sum_t dt 1/2 (|0.3 u|^2 + |w_v v|^2 + |w (q - q_ref(t))|^2) + 1/2 (|apex|^2 + |over|^2)
                + 1/2 (|W (q_T - q_goal)|^2 + |W_v v_T|^2 + |10 (p_T - p_goal)|^2)

over u in [-1, 1]. q_ref goes from standing on the floor to standing on the step at an even pace, its height without a weight;
at half time apex asks for the torso 0.25 m above the middle of the two, over for the ankle 0.1 m above its place on the step,
5 cm before the edge. p is the ankle's place. When the foot leaves the floor and when it lands is not said.
"""

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.system import System
from trajopt.models.registry import load_model
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import at_rest, on_dofs, task, via
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.ranges import Count, Real, ranged
from trajopt.problems.residuals import Control, FramePosition, Height, Posture, Velocity

EDGE, HEIGHT = 0.5, 0.1  # m: of the model's step, from where the hopper stands
APEX = 0.25  # m
SPREAD = 0.05, 0.25  # m, rad: of a start that is drawn, the distance and how far thigh and leg are bent
LINKS, ANKLE = np.array([0.2, 0.45, 0.5]), 0.06  # m: from the torso's centre down to the ankle, the ankle above the floor
OVER = np.array([EDGE - 0.05, 0.0, HEIGHT + ANKLE + 0.1])  # m: the ankle at half time


@ranged(beyond=Real(0.2, 1.0, "m"), duration=Real(0.3, 5.0, "s"), dt=Real(1e-3, 0.05, "s"), seed=Count(0, 2**31 - 1))
def hopper_step(beyond: float = 0.25, duration: float = 1.0, dt: float = 0.01, seed: int = 0) -> OptimalControlProblem:
    """The torso `beyond`, m, behind the edge after `duration`, s, with steps of `dt`, s.

    seed: 0 from standing upright, else from a leg that is bent, up to 5 cm nearer or farther.
    """
    system = System(load_model("hopper-step"), dt, RigidContact(max_contacts=6), implicit_damping=True)
    model, share = system.model, np.sqrt(dt)
    steps = round(duration / dt)
    home = np.asarray(model.keyframes["home"])
    start = random_start(seed) if seed else home
    goal = home + [EDGE + beyond, HEIGHT, 0.0, 0.0, 0.0, 0.0]
    way = home + np.linspace(0.0, 1.0, steps + 1)[:, None] * (goal - home)
    foot = np.array([EDGE + beyond, 0.0, HEIGHT + ANKLE])
    above = np.tile((home + goal) / 2 + [0.0, APEX, 0.0, 0.0, 0.0, 0.0], (steps + 1, 1))
    running = task(
        Control(weight=0.3 * share), Velocity(weight=share * on_dofs(model, (0.1, 0.1, 0.3), 0.05)),
        Posture(reference=way, weight=share * on_dofs(model, (3.0, 0.0, 4.0), 0.5), name="way"),
        Posture(reference=above, weight=via(steps, {steps // 2: on_dofs(model, (5.0, 20.0, 0.0), 0.0)}), name="apex"),
        FramePosition("foot", reference=OVER, weight=via(steps, {steps // 2: np.array([10.0, 0.0, 10.0])}), name="over"),
    )  # fmt: skip
    final = task(
        Posture(reference=goal, weight=on_dofs(model, (60.0, 60.0, 30.0), 3.0)),
        Velocity(weight=on_dofs(model, (5.0, 5.0, 4.0), 1.0)),
        FramePosition("foot", reference=foot, weight=np.array([10.0, 0.0, 10.0])),
    )  # fmt: skip

    return OptimalControlProblem(
        "hopper-step", system, steps, at_rest(model, start), u0=np.zeros((steps, 3)), stage_residual=running,
        terminal_residual=final,
        goals={
            "distance": Goal(Posture(("rootx",), reference=goal), 0.05, "m"),
            "height": Goal(Posture(("rootz",), reference=goal), 0.05, "m"),
            "pitch": Goal(Posture(("rooty",), reference=goal), 0.1, "rad"),
            "speed": Goal(Velocity(("rootx", "rootz")), 0.5, "m/s"),
            "foot": Goal(Height("foot", reference=HEIGHT + ANKLE), 0.02, "m"),
        },
    )  # fmt: skip


def random_start(seed: int) -> Float[np.ndarray, " 6"]:
    """Thigh and leg bent, the foot flat on the floor and, to first order, below the torso, which leans for it."""
    generator = np.random.default_rng(seed)
    x, (thigh, leg) = generator.uniform(-1.0, 1.0) * SPREAD[0], -generator.uniform(0.0, 1.0, 2) * SPREAD[1]
    lean = -(LINKS[1:].sum() * thigh + LINKS[2] * leg) / LINKS.sum()
    angles = np.array([lean, lean + thigh, lean + thigh + leg])
    return np.array([x, np.cos(angles) @ LINKS + ANKLE, -lean, thigh, leg, -angles[-1]])
