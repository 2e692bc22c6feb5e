"""Objects that tests send to other processes, and what is asked of them there."""

import jax
import jax.numpy as jnp
import numpy as np

from trajopt import control, dynamics, load_model, models, problems, solvers
from trajopt.dynamics import State, System
from trajopt.estimation import Encoder, MovingHorizon
from trajopt.learning.gymnasium_environments import GymnasiumEnvironment, GymnasiumVector
from trajopt.problems import OptimalControlProblem

DT = 0.05


def effort(x, u, t):
    return 0.1 * jnp.concatenate([x.q, x.v, u])


def upright(x):
    return jnp.concatenate([x.q, x.v])


def start(system: System) -> State:
    return system.initial_state("home" if "home" in system.model.keyframes else None)


def cart_pole() -> System:
    return System(load_model("cart-pole"), DT, dynamics.NoContact())


def ocp() -> OptimalControlProblem:
    return OptimalControlProblem(
        "upright", cart_pole(), 6, np.array([0.0, 0.1, 0.0, 0.0]), u0=np.zeros((6, 1)), stage_residual=effort,
        terminal_residual=upright,
    )  # fmt: skip


def estimator() -> MovingHorizon:
    return MovingHorizon(cart_pole(), Encoder("q"), 4 * DT)


MADE = {
    "free system": cart_pole,
    "system with contact": lambda: System(load_model("go1"), 1e-3),
    "problem": ocp,
    "library problem": lambda: problems.get("go1-stand"),
    "plant": lambda: control.SystemPlant(cart_pole()),
    "MuJoCo's plant": lambda: control.MujocoPlant.from_file(models.bundled_file("cart-pole"), DT),
    "receding horizon": lambda: control.RecedingHorizon(
        ocp(), solvers.iLQR(curvature="none"), cart_pole(), DT, max_iterations=2, time_budget=60.0  # by no clock
    ),
    "estimator": estimator,
    "environment": lambda: GymnasiumEnvironment("cartpole-swingup", duration=1.0),
    "environments": lambda: GymnasiumVector("cartpole-swingup", 2, duration=1.0),
}


def result(thing) -> np.ndarray:
    """What it does next: equal things give equal numbers."""
    if isinstance(thing, System):
        x, u = start(thing), 0.1 * np.ones(thing.nu)
        found = thing.linearize(x, u)
        return np.concatenate([thing.step(x, u)[0].v, found.A.ravel(), found.B.ravel()])
    if isinstance(thing, OptimalControlProblem):
        return np.asarray(solvers.solve(thing, solvers.iLQR(), max_iterations=2).us)
    if isinstance(thing, problems.LeastSquaresProblem):
        return np.asarray(thing.residual(thing.x0))
    if isinstance(thing, control.SystemPlant | control.MujocoPlant):
        thing.step(0.1 * np.ones(thing.nu), {})
        return thing.state
    if isinstance(thing, control.RecedingHorizon):
        return np.asarray(thing.run(2 * DT).us)
    if isinstance(thing, MovingHorizon):
        return np.asarray(thing.update({"q": np.array([0.3, 0.1])}).x.q)
    observation, *_ = thing.step(np.zeros(thing.action_space.shape))
    return np.asarray(observation)


def used(thing):
    """The same after it has computed what is kept."""
    if isinstance(thing, GymnasiumEnvironment | GymnasiumVector):
        thing.reset(seed=3)
    result(thing)
    if isinstance(thing, System):
        thing.step(start(thing), np.zeros(thing.nu))  # the second call takes a shorter way
    return thing


def results(things: dict) -> dict[str, np.ndarray]:
    jax.config.update("jax_enable_x64", True)
    return {name: result(thing) for name, thing in things.items()}
