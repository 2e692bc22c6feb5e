"""The tasks that policies are trained on, by name: `environment(name)` makes one; its module is imported then."""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trajopt.errors import UnknownNameError
from trajopt.learning.environment import Environment
from trajopt.names import closest
from trajopt.problems.registry import defaults, parse_assignments


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: where its factory is, its name for gymnasium, the bundled model that it moves, one line about it, and what suits
    it: options of each algorithm by name, the actions to train for, and the algorithm to begin with."""

    factory: str
    gymnasium: str
    model: str
    summary: str
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    samples: Mapping[str, int] = dataclasses.field(default_factory=dict)
    algorithm: str = "PPO"


_HERE = "trajopt.learning.tasks"
RUNNING = {
    "PPO": {"environments": 64, "length": 64, "epochs": 5, "minibatches": 8, "deviation": 0.5},
    "SHAC": {"environments": 32, "length": 32, "actor_rate": 2e-3, "deviation": 0.3},
}
RUNNING_SAMPLES = {"PPO": 5_000_000, "SHAC": 1_000_000}
LEGGED = {
    "PPO": RUNNING["PPO"] | {"hidden": (128, 64, 32), "deviation": 0.4},
    "SHAC": RUNNING["SHAC"] | {"hidden": (128, 64, 32), "length": 24, "deviation": 0.2},
}
LEGGED_SAMPLES = {"PPO": 50_000_000, "SHAC": 5_000_000}
QUADRUPED = {  # Smoothed, Table 6, and `restarts`; learning rates fall by 0.995 and 0.997 in each of 1,000 updates
    "PPO": {"environments": 2048, "length": 24, "epochs": 5, "minibatches": 4, "hidden": (128, 64, 32), "actor_rate": 1e-3,
            "critic_rate": 1e-3, "entropy": 0.0, "largest_norm": 1.0, "divergence": 0.01},
    "SHAC": {"environments": 64, "length": 32, "hidden": (128, 64, 32), "deviation": 0.15, "actor_rate": 2e-3,
             "critic_rate": 2e-3, "decay": "geometric", "final_rate": 0.995**1000, "critic_final_rate": 0.997**1000,
             "restarts": True},
}
VELOCITY = {  # Smoothed, Table 9
    "PPO": LEGGED["PPO"],
    "SHAC": {"environments": 128, "length": 12, "hidden": (128, 64, 32), "deviation": 0.15, "actor_rate": 5e-3,
             "critic_rate": 2e-3, "final_rate": 1e-5 / 5e-3, "critic_final_rate": 1e-5 / 2e-3, "restarts": True},
}
TASKS: dict[str, Task] = {
    "cartpole-swingup": Task(
        f"{_HERE}.cartpole:cartpole_swingup", "CartpoleSwingup-v0", "cart-pole", "a pole on a cart is swung up and held upright",
        {"PPO": {"environments": 64, "length": 128, "epochs": 8, "minibatches": 8, "deviation": 0.4, "entropy": 0.0,
                 "actor_rate": 2e-3, "critic_rate": 2e-3, "final_rate": 0.02},
         "SHAC": {"environments": 8, "length": 32, "actor_rate": 1e-2, "critic_rate": 3e-3, "deviation": 0.2, "hidden": (128, 64),
                  "critic_hidden": (128, 128), "slopes": 0.3, "restarts": True, "memory": 1e4, "warm_up": 0.05}},
        {"PPO": 3_000_000, "SHAC": 120_000},
    ),
    "hopper": Task(
        f"{_HERE}.running:hopper", "Hopper-v0", "hopper", "the one-legged hopper moves forward without falling",
        RUNNING, RUNNING_SAMPLES,
    ),
    "half-cheetah": Task(
        f"{_HERE}.running:half_cheetah", "HalfCheetah-v0", "half-cheetah", "the half-cheetah runs", RUNNING, RUNNING_SAMPLES
    ),
    "go1-velocity": Task(
        f"{_HERE}.velocity:go1_velocity", "Go1Velocity-v0", "go1", "Go1 walks at a commanded velocity", LEGGED, LEGGED_SAMPLES
    ),
    "anymal-velocity": Task(
        f"{_HERE}.velocity:anymal_velocity", "AnymalVelocity-v0", "anymal-c", "ANYmal walks and turns as it is commanded",
        VELOCITY, {"PPO": 50_000_000, "SHAC": 20_000 * 128 * 12}, "SHAC",
    ),
    "humanoid-push": Task(
        f"{_HERE}.humanoid:humanoid_push", "HumanoidPush-v0", "humanoid", "the humanoid stays on its feet when it is pushed",
        LEGGED, LEGGED_SAMPLES,
    ),
    "quadruped-walk": Task(
        f"{_HERE}.quadruped:quadruped_walk", "QuadrupedWalk-v0", "quadruped", "a quadruped with heavy legs walks at 1 m/s",
        QUADRUPED, {"PPO": 1000 * 2048 * 24, "SHAC": 1000 * 64 * 32}, "SHAC",
    ),
}  # fmt: skip


def task(name: str) -> Task:
    """The task of this name. Raises `UnknownNameError` with the closest names."""
    if name not in TASKS:
        raise UnknownNameError(f"there is no task '{name}'{closest(name, TASKS)}")
    return TASKS[name]


def environment(name: str, **settings: Any) -> Environment:
    """The environment of a task; settings: keyword arguments of its factory."""
    return _factory(name)(**settings)


def parse_settings(name: str, assignments: Iterable[str]) -> dict[str, Any]:
    """Settings of a task from "KEY=VALUE" strings. Raises `OptionError` and `UnknownNameError`, as `problems.parse_settings`."""
    return parse_assignments(f"task '{name}'", defaults(_factory(name)), assignments)


def _factory(name: str) -> Callable[..., Environment]:
    module, _, function = task(name).factory.partition(":")
    return getattr(importlib.import_module(module), function)
