r"""arm-obstacle: a UR5 brings its tool to a place behind a ball and touches it nowhere.

    minimise    sum_t dt 1/2 (|w_u u|^2 + |w_v v|^2) + 1/2 (|W (p_T - p_goal)|^2 + |W_v v_T|^2)
    subject to  every capsule of the arm at least `distance` from the ball, |v_t| <= `rate`, torques within their limits

p is the place of the tool. The straight way between the first posture and one that reaches the goal meets the ball; on which
side the arm goes around it is not said.
"""

import dataclasses

import jax
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.laws import NoContact
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import frame_placement, kinematics
from trajopt.dynamics.system import System
from trajopt.models.registry import load_model
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import at_rest, task
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.ranges import Count, Real, ranged
from trajopt.problems.residuals import Control, Distance, FramePosition, Velocity

ARM = ("upper_arm", "forearm", "wrist_1", "wrist_2", "wrist_3")  # the shoulder is out of the ball's reach
ARC = 1e-3  # m: by how much the arm is nearer on its way from one state to the next
NEAREST = (0.06, 0.03)  # m: of the arm from the ball, in the postures drawn and along one way around it
TURN = np.array([1.2, 0.5, 0.5, 0.5, 0.5, 0.5])  # rad: largest turn of each joint, of the pan at least half of it
DETOUR = 0.6  # rad: how far the way around leads aside
SHARE, PACE = 0.85, 2.0  # of 2 rad/s that the way around takes, in so many s
TIMES = np.linspace(0.0, 1.0, 41)
SMOOTH = TIMES**3 * (10 - 15 * TIMES + 6 * TIMES**2)  # from rest to rest with the least jerk


@dataclasses.dataclass(frozen=True)
class Draw:
    """The first posture (6,), the ball's middle and the goal of the tool, m."""

    start: Float[np.ndarray, " 6"]
    ball: Float[np.ndarray, " 3"]
    place: Float[np.ndarray, " 3"]


@ranged(
    distance=Real(0.0, 0.025, "m"), rate=Real(1.5, 10.0, "rad/s"), duration=Real(2.0, 20.0, "s"), dt=Real(5e-3, 0.05, "s"),
    seed=Count(0, 2**31 - 1),
)  # fmt: skip
def arm_obstacle(
    distance: float = 0.02, rate: float = 2.0, duration: float = 2.0, dt: float = 0.02, seed: int = 0
) -> OptimalControlProblem:
    """The tool at its goal after `duration`, s, in steps of `dt`, s, never nearer than `distance`, m, joints at most at `rate`.

    seed: of the draw of first posture, ball and goal. Each draw has a way around the ball that keeps distance and rates.
    """
    model = load_model("arm-obstacle")
    drawn = draw(model, seed)
    model = with_ball(model, drawn.ball)
    system = System(model, dt, NoContact())
    steps, share = round(duration / dt), np.sqrt(dt)
    rates = np.concatenate([np.full(6, np.inf), np.full(6, rate)])
    clearances = [Distance(link, other="obstacle").at_least(distance + ARC) for link in ARM]
    tool = FramePosition("tool", reference=drawn.place)

    return OptimalControlProblem(
        "arm-obstacle", system, steps, at_rest(model, drawn.start), state_lower=-rates, state_upper=rates,
        stage_residual=task(Control(weight=5e-3 * share), Velocity(weight=0.3 * share)),
        terminal_residual=task(dataclasses.replace(tool, weight=100.0), Velocity(weight=3.0)),
        inequality=task(*clearances), terminal_inequality=task(*clearances),
        goals={"tool position": Goal(tool, 5e-3, "m"), "speed": Goal(Velocity(), 0.1, "rad/s")},
    )  # fmt: skip


def with_ball(model: Model, ball: Float[np.ndarray, " 3"]) -> Model:
    """The model with the middle of its ball elsewhere."""
    index = [shape.name for shape in model.topology.shapes].index("obstacle")
    positions = np.array(model.shape_position)
    positions[index] = ball
    return model.replace(shape_position=positions)


def draw(model: Model, seed: int) -> Draw:
    """A first posture, a last one turned about the base, and a ball near the arm's tool half way between the two.

    Kept is a draw whose two postures are clear of the ball, whose straight way in joint angles meets it, and for which one that
    leads aside, driven with the least jerk in `PACE`, s, keeps `NEAREST` and `SHARE` of 2 rad/s.
    """
    generator, home = np.random.default_rng(seed), np.asarray(model.keyframes["home"])
    straight, bump = (SMOOTH[:, None], 4 * (SMOOTH * (1 - SMOOTH))[:, None])
    while True:
        turn = generator.uniform(-1.0, 1.0, 6) * TURN
        start = home + generator.uniform(-0.3, 0.3, 6)
        aside = generator.uniform(-1.0, 1.0, 6) * DETOUR
        if abs(turn[0]) < TURN[0] / 2:
            continue
        direct = start + straight * turn
        around = direct + bump * aside
        ball = np.asarray(tool(model, direct[len(direct) // 2])) + generator.uniform(-0.05, 0.05, 3)
        ways = np.asarray(nearest(with_ball(model, ball), np.stack([direct, around])))
        fastest = np.abs(np.diff(around, axis=0)).max() / (PACE / (len(around) - 1))
        if ways[0].min() < 0 and ways[0][[0, -1]].min() > NEAREST[0] and ways[1].min() > NEAREST[1] and fastest < SHARE * 2.0:
            return Draw(start, ball, np.asarray(tool(model, direct[-1])))


@jax.jit
def tool(model: Model, q: Float[Array, " 6"]) -> Float[Array, "3"]:
    """Place of the tool, m."""
    return frame_placement(model, q, "tool")[1]


@jax.jit
def nearest(model: Model, qs: Float[Array, "k T 6"]) -> Float[Array, "k T"]:
    """Distance of the arm from the ball."""
    return jax.vmap(jax.vmap(lambda q: collide(model, kinematics(model, q)).distance.min()))(qs)
