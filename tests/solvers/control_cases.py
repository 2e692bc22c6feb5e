"""Optimal control problems with known optima, shared by the tests of the solvers that take them.

Controls are held constant over each interval and the dynamics are integrated by one step of RK4 per interval. Reference
optima are computed with CasADi and IPOPT on the same transcription. Functions of equal numbers are the same object, so that what
is compiled for one test serves the others.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from trajopt import dynamics
from trajopt.models import load_model_from_string
from trajopt.problems import OptimalControlProblem
from trajopt.problems.library.behaviours import damped_system


@functools.cache
def rk4(f: Callable, dt: float) -> Callable:
    """One step of the classical Runge-Kutta method for x' = f(x, u), as dynamics (x, u, t) -> x_next."""

    def step(x, u, t):
        k1 = f(x, u)
        k2 = f(x + 0.5 * dt * k1, u)
        k3 = f(x + 0.5 * dt * k2, u)
        k4 = f(x + dt * k3, u)
        return x + (dt / 6.0) * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    return step


@functools.cache
def effort(dt: float) -> Callable:
    """Residual whose cost is |u|^2 dt."""
    return lambda x, u, t: math.sqrt(2.0 * dt) * u


@functools.cache
def mass(dt: float) -> Callable:
    return lambda x, u, t: jnp.stack([x[0] + dt * x[1] + 0.5 * dt**2 * u[0], x[1] + dt * u[0]])


@functools.cache
def away_from(*target: float) -> Callable:
    return lambda x: x - jnp.array(target)


def double_integrator(steps: int = 100, **changes) -> OptimalControlProblem:
    """Unit distance in unit time from rest to rest with least effort, force constant over each interval, integrated exactly.

    With controls free in time the optimum is 12; with `steps` intervals it is 12 / (1 - 1 / steps^2).
    """
    dt = 1.0 / steps
    options = {
        "u0": np.zeros(1),
        "dt": dt,
        "stage_residual": effort(dt),
        "terminal_equality": away_from(1.0, 0.0),
    }
    return OptimalControlProblem("double-integrator", mass(dt), steps, np.zeros(2), **options | changes)


def cart_pole_rate(x, u):
    """Cart 1 kg, pole 0.3 kg at 0.5 m; x = (position, angle from hanging, rates). Kelly 2017, eqs. 6.1, 6.2."""
    m1, m2, length, g = 1.0, 0.3, 0.5, 9.81
    sin, cos, w, force = jnp.sin(x[1]), jnp.cos(x[1]), x[3], u[0]
    reduced = m1 + m2 * sin**2
    a1 = (length * m2 * sin * w**2 + force + m2 * g * cos * sin) / reduced
    a2 = -(length * m2 * cos * sin * w**2 + force * cos + (m1 + m2) * g * sin) / (length * reduced)
    return jnp.stack([x[2], x[3], a1, a2])


def cart_pole(steps: int = 100, **changes) -> OptimalControlProblem:
    """Swing-up of Kelly, An introduction to trajectory optimization, 2017, section 6: 1 m in 2 s, least force squared."""
    dt, target = 2.0 / steps, np.array([1.0, np.pi, 0.0, 0.0])
    options = {
        "u0": np.zeros(1),
        "xs0": np.linspace(np.zeros(4), target, steps + 1),
        "dt": dt,
        "stage_residual": effort(dt),
        "terminal_equality": away_from(*target),
        "control_lower": -20.0,
        "control_upper": 20.0,
        "state_lower": np.array([-2.0, -np.inf, -np.inf, -np.inf]),
        "state_upper": np.array([2.0, np.inf, np.inf, np.inf]),
    }
    return OptimalControlProblem("cart-pole", rk4(cart_pole_rate, dt), steps, np.zeros(4), **options | changes)


def pendulum_rate(x, u):
    return jnp.stack([x[1], u[0] - 0.1 * x[1] - 9.81 * jnp.sin(x[0])])


@functools.cache
def damped_effort(dt: float) -> Callable:
    return lambda x, u, t: math.sqrt(dt) * jnp.concatenate([0.1 * x[1:], 0.3 * u])


def far_from_upright(x):
    return 10.0 * (x - jnp.array([np.pi, 0.0], x.dtype))


def pendulum(steps: int = 80, torque: float = 4.0, dtype=np.float64, **changes) -> OptimalControlProblem:
    """Swing-up of a 1 kg pendulum of 1 m with a torque below half of what holds it level; terminal cost, no constraint."""
    dt = 4.0 / steps
    options = {
        "u0": 0.1 * np.ones(1),
        "dt": dt,
        "stage_residual": damped_effort(dt),
        "terminal_residual": far_from_upright,
        "control_lower": -torque,
        "control_upper": torque,
    }
    return OptimalControlProblem("pendulum", rk4(pendulum_rate, dt), steps, np.zeros(2, dtype), **options | changes)


def unicycle(steps: int = 50, **changes) -> OptimalControlProblem:
    """Parallel parking: one metre sideways in 5 s, speed below 0.8 m/s, turning rate below 1.5 rad/s, around a pillar."""
    dt = 5.0 / steps

    def rate(x, u):
        return jnp.stack([u[0] * jnp.cos(x[2]), u[0] * jnp.sin(x[2]), u[1]])

    def outside(x, u, t):
        return (0.3**2 - (x[0] - 0.35) ** 2 - (x[1] - 0.7) ** 2)[None]

    options = {
        "u0": np.array([0.1, 0.1]),
        "dt": dt,
        "stage_residual": lambda x, u, t: math.sqrt(2.0 * dt) * jnp.stack([u[0], 0.5 * u[1]]),
        "terminal_equality": lambda x: x,
        "inequality": outside,
        "control_lower": np.array([-0.8, -1.5]),
        "control_upper": np.array([0.8, 1.5]),
    }
    return OptimalControlProblem("unicycle", rk4(rate, dt), steps, np.array([0.0, 1.0, 0.0]), **options | changes)


def van_der_pol(steps: int = 50, **changes) -> OptimalControlProblem:
    """The oscillator x0' = (1 - x1^2) x0 - x1 + u, x1' = x0 over 10 s, |u| <= 1 and x0 >= -0.25; cost |x|^2 + u^2."""
    dt = 10.0 / steps

    def rate(x, u):
        return jnp.stack([(1.0 - x[1] ** 2) * x[0] - x[1] + u[0], x[0]])

    options = {
        "u0": np.zeros(1),
        "dt": dt,
        "stage_residual": lambda x, u, t: math.sqrt(2.0 * dt) * jnp.concatenate([x, u]),
        "control_lower": -1.0,
        "control_upper": 1.0,
        "state_lower": np.array([-0.25, -np.inf]),
    }
    return OptimalControlProblem("van-der-pol", rk4(rate, dt), steps, np.array([0.0, 1.0]), **options | changes)


FLOATING_BOX = """
<mujoco model="{name}">
  <option gravity="0 0 {gravity}"/>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 0.1" friction="0.4" contype="0" conaffinity="1"/>
    <body name="box" pos="0 0 0.1">
      <freejoint name="root"/>
      <geom name="box" type="box" size="0.1 0.1 0.1" mass="1" friction="0.4" contype="1" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator>{motors}</actuator>
</mujoco>
"""


def floating_box(name: str, gravity: float, gears: tuple[str, ...]):
    """A box of 1 kg and 0.2 m on a floor, with motors on its free joint (world-axes force, body-axes torque)."""
    motors = "".join(f'<motor joint="root" gear="{gear}"/>' for gear in gears)
    return load_model_from_string(FLOATING_BOX.format(name=name, gravity=gravity, motors=motors), "mjcf", name)


def satellite(steps: int = 20, angle: float = 2.5, axis=(1.0, 2.0, -2.0), **changes) -> OptimalControlProblem:
    """Turn a free rigid body by `angle` about `axis` in 1 s from rest to rest, by torques; the base is a quaternion.

    The target is a terminal constraint: the vector part of the quaternion that is left to turn, and the rate.
    """
    model = floating_box("satellite", 0.0, ("0 0 0 1 0 0", "0 0 0 0 1 0", "0 0 0 0 0 1"))
    # Three different principal moments, so that turning couples the axes.
    model = model.replace(inertia=0.0 * model.inertia + np.diag([0.01, 0.02, 0.03]))
    system = dynamics.System(model, dt=1.0 / steps, contact=dynamics.NoContact())
    unit = np.array(axis) / np.linalg.norm(axis)
    goal = np.concatenate([[np.cos(angle / 2)], np.sin(angle / 2) * unit])

    def reached(x):
        w, v = x.q[3], x.q[4:7]
        left = goal[0] * v - w * goal[1:] - jnp.cross(jnp.asarray(goal[1:]), v)
        return jnp.concatenate([left, 0.1 * x.v[3:]])

    options = {"stage_residual": lambda x, u, t: math.sqrt(2.0 / steps) * u, "terminal_equality": reached}
    return OptimalControlProblem("satellite", system, steps, system.initial_state(), **options | changes)


def pushed_box(steps: int = 20, **changes) -> OptimalControlProblem:
    """Push a box 0.2 m along the floor in 0.4 s by a force through its centre, against friction, and leave it at rest."""
    model = floating_box("pushed-box", -9.81, ("1 0 0 0 0 0",))
    system = dynamics.System(model, dt=0.4 / steps, contact=dynamics.RigidContact())
    options = {
        "u0": np.array([6.0]),
        "stage_residual": lambda x, u, t: 0.01 * u,
        "terminal_residual": lambda x: jnp.concatenate([10.0 * (x.q[:1] - 0.2), x.v[:1]]),
    }
    return OptimalControlProblem("pushed-box", system, steps, system.initial_state(), **options | changes)


# Costs by CasADi 3.8.2 and IPOPT (multiple shooting, exact Hessians, tolerance 1e-11) of the cases with their default options.
OPTIMA = {
    "double-integrator": 12.0 / (1.0 - 1e-4),
    "cart-pole": 58.888335988,
    "pendulum": 1.426570446,
    "unicycle": 1.033106761,
    "van-der-pol": 3.730599616,
}

# The cart-pole has a lower optimum, which iLQR and DDP find from zero force; IPOPT confirms it when started there.
SECOND_CART_POLE_OPTIMUM = 58.043405354


@dataclasses.dataclass(frozen=True)
class Answer:
    """A motion that no solver made."""

    xs: np.ndarray
    us: np.ndarray
    x = parameters = covariance = None


def hopper_flight(dt: float, steps: int) -> tuple[OptimalControlProblem, Answer]:
    """(problem, motion) of the hopper turning its leg in the air."""
    system = damped_system("hopper", dt, max_contacts=4)
    q = np.array([0.0, 3.0, 0.1, -0.5, -1.0, 0.3])
    us = 0.05 * np.sin(np.arange(steps)[:, None] * 0.2 + np.arange(3))
    x0 = dynamics.State(q, np.zeros(6))
    problem = OptimalControlProblem("flight", system, steps, x0, u0=us, stage_residual=lambda x, u, t: u)
    motion = problem.rollout(problem.x0, us, problem.parameters)
    return problem, Answer(np.asarray(motion.xs), us)


def dense(x, u, t, p):
    """A map in which everything depends on everything."""
    A = jnp.array([[0.9, 0.3], [-0.2, 0.8]])
    return A @ x + 0.3 * jnp.sin(x[::-1] + u[0] * x + p[0]) + 0.2 * u[0] + 0.1 * p[0] * x**2 + 0.05 * t


def dense_problem(steps: int, **options) -> OptimalControlProblem:
    """`dense`, with a free initial state, a parameter, and terms that depend on all there is."""
    common = {
        "u0": np.full((steps, 1), 0.2),
        "dt": 0.1,
        "stage_residual": lambda x, u, t, p: jnp.concatenate([jnp.sin(x + p[0]), u * x[:1] + t]),
        "equality": lambda x, u, t, p: jnp.sin(x.sum() + u + p),
        "terminal_equality": lambda x, p: jnp.sum(x * x)[None] * p,
        "free_initial_state": True,
        "initial_residual": lambda x, p: jnp.sin(x) * p[0],
        "parameters": [0.7],
    }
    return OptimalControlProblem("everything", dense, steps, np.array([0.3, -0.2]), **common | options)
