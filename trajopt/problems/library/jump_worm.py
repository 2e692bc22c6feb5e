"""jump-worm (Nimble VII-D): a cube that carries a chain of three links is to be as high as possible at a given time.

The worm is dropped: its chain meets the floor after about 0.17 s, has to push off and to bring the cube up before the end.
The guess folds the lower links for a moment shortly after the landing, which makes a hop.

Nimble's statement has no moderate optimum: links that spin ever faster throw the cube ever higher, at rates that the time step
does not resolve, and most torques do not matter. Here the joints' rates are bounded, and torques cost a little.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.energy import kinetic_energy, potential_energy
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model
from trajopt.problems import programs
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import short_of
from trajopt.problems.library.replay import replay
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Certificate, Defaults, Display
from trajopt.problems.ranges import Count, Real, ranged
from trajopt.problems.residuals import Control
from trajopt.problems.trajectory import Trajectory

CONTACTS = 8  # at once: a flat side of a box has four
PUSH = (-10.0, -45.0, -50.0)  # N m
PUSHING = (0.19, 0.27)  # s
RATE = 20.0  # rad/s
EFFORT = 1.0  # cost of a torque at its limit for two steps
TORQUE = 100.0  # N m, the limit
ROOT = 2  # coordinates of the cube, before those of the joints
FINER = 4  # of the certificate's replay
LIMITS = {"replay_error": 0.05, "energy_from_nothing": 0.0}
HEIGHT = 0.40  # m, the least of the end
REPEATED = 0.05  # m, to which one rollout of the torques repeats the height


def push(times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T 3"]:
    """The guess: torques `PUSH` during `PUSHING`, else none."""
    during = (times >= PUSHING[0]) & (times < PUSHING[1])
    return during[:, None] * np.array(PUSH)


def loss(x: State) -> Float[Array, ""]:
    """-100 z |z|."""
    return -100.0 * x.q[1] * jnp.abs(x.q[1])


@ranged(steps=Count(1, 10_000), dt=Real(1e-5, 1e-2, "s"), rate=Real(1e-3, 1e6, "rad/s"), effort=Real(0.0, 1e3))
def jump_worm(steps: int = 400, dt: float = 1e-3, rate: float = RATE, effort: float = EFFORT) -> OptimalControlProblem:
    """Torques within +-100 N m for the highest root (the cube) after `steps` steps, joints at most `rate` (rad/s) fast.

    Loss: -100 z |z|, z the root's height in m, and `effort` / 2 (torque / 100 N m)^2 for each torque of each step.
    """
    system = System(load_model("jump-worm"), dt, RigidContact(max_contacts=CONTACTS))
    fastest = np.full(2 * system.nv, np.inf)
    fastest[system.nq + ROOT :] = rate

    def certificate(motion: Trajectory) -> dict[str, float]:
        return examine(system, motion)

    def report(motion: Trajectory) -> str:
        return f"height of the root at the end {float(motion.xs[-1][1]):.4f} m"

    return OptimalControlProblem(
        "jump-worm", system, steps, system.initial_state("home"), u0=push(dt * np.arange(steps)), terminal_cost=loss,
        stage_residual=Control(weight=math.sqrt(effort) / TORQUE), state_lower=-fastest, state_upper=fastest,
        goals={"height": Goal(Partial(short_of, 1, HEIGHT + REPEATED), REPEATED, "m")},
        display=Display(report=report),
        certificate=Certificate(certificate, LIMITS),
        defaults=Defaults("MultipleShooting", {
            "interval": 5, "hessian": "differenced", "gauss_newton_iterations": 120, "damping": 0.02, "max_iterations": 400,
            "ipopt_options": {"mu_init": 1e-2},
        }),
    )  # fmt: skip


def examine(system: System, motion: Trajectory) -> dict[str, float]:
    """The named quantities of a jump; LIMITS bounds those that make it one.

    final_height, m; replay_height, m, after the same torques at a quarter of the time step, and replay_error, its difference as
    a share; energy_gained and work of the actuators, J, and energy_from_nothing, J, what the first exceeds the second by; fastest
    joint, rad/s.
    """
    model, nq = system.model, system.nq
    q, v, us = (np.asarray(a) for a in (motion.xs[:, :nq], motion.xs[:, nq:], motion.us))
    fine = System(model, system.dt / FINER, system.contact)
    states, _ = replay(fine, State(jnp.asarray(q[0]), jnp.asarray(v[0])), jnp.asarray(np.repeat(us, FINER, 0)))
    height, again = float(q[-1, 1]), float(states.q[-1, 1])
    first, last = np.asarray(programs.run(_energies, None, model, q[[0, -1]], v[[0, -1]], effort=Effort.QUICK)[0])
    gained = float(last - first)
    work = float(np.sum((us @ np.asarray(model.actuation).T) * np.diff(q, axis=0)))
    return {
        "final_height": height,
        "replay_height": again,
        "replay_error": abs(again - height) / max(abs(height), 1e-3),
        "energy_gained": gained,
        "work": work,
        "energy_from_nothing": max(gained - work, 0.0),
        "fastest_joint": float(np.abs(v[:, ROOT:]).max()),
    }


def _energies(subject: None, model: Model, q: Float[Array, "k nq"], v: Float[Array, "k nv"]) -> Float[Array, " k"]:
    """Kinetic and potential energy of states, J."""
    return jax.vmap(lambda q, v: kinetic_energy(model, q, v) + potential_energy(model, q))(q, v)
