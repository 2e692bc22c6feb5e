"""Tasks of a receding horizon, by name: what `trajopt mpc TASK` runs. `task(name)` makes one.

Each is a problem over a short horizon with residuals by name, the model file of the plant, a period, the solver that suits it,
and what may be changed while it runs.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trajopt.control.mujoco_plant import MujocoPlant
from trajopt.control.plants import Plant, SystemPlant
from trajopt.control.receding_horizon import RecedingHorizon
from trajopt.dynamics.contact.laws import NoContact, RigidContact
from trajopt.dynamics.system import State, System
from trajopt.errors import OptionError, UnknownNameError
from trajopt.models.registry import bundled_file, load_model
from trajopt.names import closest
from trajopt.problems import guesses, registry
from trajopt.problems import residuals as r
from trajopt.problems.library.behaviours import at_rest
from trajopt.problems.library.behaviours import task as terms
from trajopt.problems.library.in_hand_rotation import JOINTS, strokes
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.solvers.registry import get

PLANTS = ("mujoco", "system")
SCALES = (0.1, 10.0)  # of a weight's slider


@dataclasses.dataclass(frozen=True)
class Slider:
    """An entry of a residual's reference that may be changed while it runs.

    Attributes:
        name: what the viewer calls it.
        term: name of the residual.
        place: index of the entry in the residual's reference.
        least, largest: range of the slider.
        unit: of the values.
    """

    name: str
    term: str
    place: int
    least: float
    largest: float
    unit: str


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of a receding horizon.

    Attributes:
        summary: one line about it.
        model: the bundled model, of the problem and of MuJoCo.
        problem: makes the problem.
        period (s): between measurements.
        tick (s): of the plant.
        solver: name of the solver that suits it.
        options: of the solver.
        sliders: what may be changed while it runs.
        pushed: body that a push acts on.
        force (N): of a push of 0.1 s.
    """

    summary: str
    model: str
    problem: Callable[[], OptimalControlProblem]
    period: float
    tick: float
    solver: str
    options: Mapping[str, Any]
    sliders: tuple[Slider, ...]
    pushed: str
    force: float

    def plant(self, kind: str, problem: OptimalControlProblem) -> Plant:
        """The plant: "mujoco", or "system", a `System` with rigid contact. Raises `OptionError`."""
        if kind not in PLANTS:
            raise OptionError(f"plant is '{kind}'; expected one of {', '.join(PLANTS)}")
        if kind == "mujoco":
            return MujocoPlant.from_file(bundled_file(self.model), self.tick)
        assert problem.system is not None
        return SystemPlant(dataclasses.replace(problem.system, dt=self.tick))

    def horizon(self, *, solver: str | None = None, plant: str = "mujoco", **options: Any) -> RecedingHorizon:
        """The receding horizon: with another solver by name, plant, and options of `RecedingHorizon`."""
        problem = self.problem()
        chosen = get(self.solver, **self.options) if solver is None else get(solver)
        settings = {"period": self.period, "delay": self.period} | options
        return RecedingHorizon(problem, chosen, self.plant(plant, problem), **settings)


def push_box() -> OptimalControlProblem:
    """A finger pushes a box to a pose, from wherever it is."""
    dt, share = 0.02, np.sqrt(0.02)
    system = System(load_model("push-box"), dt, RigidContact(), implicit_damping=True)
    goal = np.array([0.15, 0.1, 0.5, 0.0, 0.0])
    pose, end = np.array([3.0, 3.0, 1.0, 0.0, 0.0]), np.array([30.0, 30.0, 10.0, 0.0, 0.0])

    def away(x: State, u: Any, t: Any) -> Any:
        return x.q[3:] - x.q[:2]

    stage = terms(
        r.Posture(reference=goal, weight=share * pose, name="box"), r.Velocity(weight=0.05 * share), r.Control(weight=0.05 *
        share), r.Function(away, weight=0.3 * share, name="finger to box"),
    )  # fmt: skip
    final = terms(r.Posture(reference=goal, weight=end, name="box"), r.Velocity(weight=0.3))
    start = at_rest(system.model, np.array([0.0, 0.0, 0.0, -0.15, 0.0]))
    return OptimalControlProblem("push-box", system, 50, start, u0=np.zeros(2), stage_residual=stage, terminal_residual=final)


def spinner(speed: float = 1.0, seconds: float = 600.0) -> OptimalControlProblem:
    """A finger turns a disc at a speed, rad/s, by friction, and comes back to stroke again."""
    dt, share = 0.02, np.sqrt(0.02)
    system = System(load_model("spinner"), dt, RigidContact(), implicit_damping=True)
    home = np.array([0.3, 1.5, 0.0])
    turned = home + speed * dt * np.arange(round(seconds / dt))[:, None] * [0.0, 0.0, 1.0]
    weight = np.array([0.3, 0.3, 10.0])
    stage = terms(
        r.Posture(reference=turned, weight=share * weight, name="turn"), r.Velocity(weight=share * np.array([0.1, 0.1, 0.0])),
        r.Control(weight=0.05 * share),
    )  # fmt: skip
    final = r.Posture(reference=turned, weight=weight, name="turn")
    start = at_rest(system.model, home)
    return OptimalControlProblem("spinner", system, 40, start, u0=np.zeros(2), stage_residual=stage, terminal_residual=final)


def hopper_step() -> OptimalControlProblem:
    """The hopper jumps onto a step and stands there."""
    return registry.get("hopper-step").replace(horizon=40)


def two_arm_lift(height: float = 0.3) -> OptimalControlProblem:
    """Two arms lift a ball: the problem of the library over 0.5 s in steps of 40 ms, whose end is on the way too, with both hands
    at the ball."""
    problem = registry.get("two-arm-lift", height=height, dt=0.04)
    way, (place, rest) = problem.stage_residual.terms[0].reference, problem.terminal_residual.terms
    hands = [r.FramePosition(f"{side}_tool", relative_to="ball", weight=5.0) for side in ("left", "right")]
    return problem.replace(horizon=12, terminal_residual=terms(dataclasses.replace(place, reference=way), rest, *hands))


def in_hand_rotation(turn: float = np.pi / 3) -> OptimalControlProblem:
    """A hand turns a ball on its palm about the vertical, over 0.48 s in steps of 40 ms. Fingers grasp it, turn it, let go and
    come back, three times: angles of their joints are references."""
    dt = 0.04
    share = np.sqrt(dt)
    problem = registry.get("in-hand-rotation", dt=dt)
    home = np.asarray(problem.x0)[:23]
    angles, done = strokes(dt)
    postures = np.concatenate([angles, np.tile(home[16:], (len(angles), 1))], 1)
    half = 0.5 * turn * done
    turned = np.stack([np.cos(half), 0 * half, 0 * half, np.sin(half)], 1)
    stage = terms(
        r.FrameOrientation("object", reference=turned, weight=2.0 * share),
        r.FramePosition("object", reference=home[16:19], weight=10.0 * share, name="ball"), r.Velocity(weight=0.1 * share),
        r.Posture(JOINTS, reference=postures, weight=share), r.Control(reference=angles, weight=10.0 * share),
    )  # fmt: skip
    final = terms(
        r.FrameOrientation("object", reference=turned, weight=5.0),
        r.FramePosition("object", reference=home[16:19], weight=30.0, name="ball"),
        r.Velocity(weight=np.concatenate([np.full(16, 0.1), np.full(6, 0.3)])),
    )  # fmt: skip
    return problem.replace(horizon=12, stage_residual=stage, terminal_residual=final)


def ur5_reach() -> OptimalControlProblem:
    """The tool of an arm goes to a place, no joint faster than 2 rad/s."""
    system = System(load_model("ur5"), 0.02, NoContact())
    rates = np.concatenate([np.full(6, np.inf), np.full(6, 2.0)])
    place = np.array([0.4, 0.3, 0.5])
    stage = terms(
        r.Control(weight=1e-3), r.Velocity(weight=0.05), r.FramePosition("tool", reference=place, weight=10.0, name="tool")
    )  # fmt: skip
    final = terms(r.Velocity(weight=0.3), r.FramePosition("tool", reference=place, weight=30.0, name="tool"))
    return OptimalControlProblem(
        "ur5-reach", system, 25, system.initial_state("home"), stage_residual=stage, terminal_residual=final, state_lower=-rates,
        state_upper=rates,
    )  # fmt: skip


def go1_stand() -> OptimalControlProblem:
    """Go1 stays where it is, upright, on its feet."""
    system = System(load_model("go1"), 0.02, implicit_damping=True)
    home = at_rest(system.model, np.asarray(system.initial_state("home").q))
    torque, q = guesses.quasi_static(system, home).torque, np.asarray(home.q)
    place = np.concatenate([[5.0, 5.0, 20.0], [5.0, 5.0, 5.0], np.full(12, 1.0)])
    speed = np.concatenate([[1.0, 1.0, 1.0], [0.5, 0.5, 0.5], np.full(12, 0.05)])
    stage = terms(
        r.Posture(reference=q, weight=place, name="stand"), r.Velocity(weight=speed), r.Control(reference=torque, weight=0.02)
    )  # fmt: skip
    final = terms(r.Posture(reference=q, weight=3 * place, name="stand"), r.Velocity(weight=3 * speed))
    return OptimalControlProblem("go1-stand", system, 25, home, u0=torque, stage_residual=stage, terminal_residual=final)


TASKS: dict[str, Task] = {
    "push-box": Task(
        "a finger pushes a box to a pose", "push-box", push_box, 0.02, 0.002, "Hybrid",
        {"sampler": {"solver": "PredictiveSampling", "knots": 8}},
        (Slider("x", "box", 0, -0.3, 0.3, "m"), Slider("y", "box", 1, -0.3, 0.3, "m"), Slider("yaw", "box", 2, -3.0, 3.0, "rad")),
        "box", 5.0,
    ),
    "spinner": Task(
        "a finger turns a disc at 1 rad/s", "spinner", spinner, 0.005, 0.001, "iLQR", {}, (), "spinner", 5.0
    ),
    "hopper-step": Task(
        "the hopper jumps onto a step of 10 cm", "hopper-step", hopper_step, 0.01, 0.001, "iLQR", {}, (), "torso", 30.0
    ),
    "two-arm-lift": Task(
        "two arms lift a ball that neither can hold alone", "two-arms", two_arm_lift, 0.02, 0.001, "iLQR", {"gain_damping": 0.03},
        (), "ball", 5.0,
    ),
    "in-hand-rotation": Task(
        "a hand turns a ball on its palm by 60 degrees, in three strokes", "allegro-ball", in_hand_rotation, 0.02, 0.001, "iLQR",
        {"smoothing": [1e-5], "gain_damping": 20.0}, (), "object", 0.1,
    ),
    "ur5-reach": Task(
        "the tool of an arm goes to a place, joints below 2 rad/s", "ur5", ur5_reach, 0.02, 0.002, "iLQR", {},
        (Slider("x", "tool", 0, 0.2, 0.6, "m"), Slider("y", "tool", 1, -0.4, 0.4, "m"), Slider("z", "tool", 2, 0.2, 0.7, "m")),
        "wrist_2_link", 50.0,
    ),
    "go1-stand": Task(
        "Go1 stands on its feet, whatever pushes it", "go1", go1_stand, 0.005, 0.001, "iLQR", {"smoothing": None},
        (Slider("height", "stand", 2, 0.2, 0.32, "m"), Slider("x", "stand", 0, -0.05, 0.05, "m")), "trunk", 60.0,
    ),
}  # fmt: skip


def task(name: str) -> Task:
    """The task of this name. Raises `UnknownNameError` with the closest names."""
    if name not in TASKS:
        raise UnknownNameError(f"there is no task '{name}' of a receding horizon{closest(name, TASKS)}")
    return TASKS[name]
