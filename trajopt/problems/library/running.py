r"""half-cheetah and hopper: run forward over a horizon, with little effort and without falling.

    minimise  dt sum_t 1/2 r(x_t, u_t)^2 + 5 dt 1/2 r(x_T, 0)^2
    r = [w_f (v_x - speed), w_p pitch, w_h (z - z_0), w_v (other rates), w_l l(q_j), w_u u]

over u in [-1, 1] (shares of the torque limits) from rest: v_x is the velocity of the torso, z its height, l(q_j) how far a
joint's angle is inside a margin before its limit. Neither a gait nor a contact is prescribed.

At rest the gradient knows of feet that stick and nothing of stepping. So the guess is a rhythm, u = bias + amplitude
sin(2 pi f t + phase) joint by joint, which moves somehow; solvers that keep to the dynamics start from where it leads.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import frame_placement
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model
from trajopt.problems import programs
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import gaps, general_quantities, judged, short_of
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults, Display
from trajopt.problems.ranges import Count, Range, Real, ranged
from trajopt.problems.residuals import Posture
from trajopt.problems.trajectory import Trajectory

ROOT = 3  # x, z, pitch
MARGIN = 0.1  # rad, before a joint limit
RAMP = 0.2  # s, in which a rhythm begins
FINAL = 5.0  # steps that the last state counts for
SHARE = 0.75  # of the distance at the asked speed, from standing, that makes a motion a run; the guesses reach 0.6


@dataclasses.dataclass(frozen=True)
class Rhythm:
    """Controls bias + amplitude sin(2 pi frequency t + phase), one entry for each motor; frequency in Hz."""

    frequency: float
    amplitude: tuple[float, ...]
    phase: tuple[float, ...]
    bias: tuple[float, ...]

    def controls(self, steps: int, dt: float) -> Float[np.ndarray, "T nu"]:
        """The controls of each step, growing from zero within RAMP and cut at -1 and 1."""
        t = dt * np.arange(steps)[:, None]
        swing = np.asarray(self.amplitude) * np.sin(2 * np.pi * self.frequency * t + np.asarray(self.phase))
        return np.clip(np.asarray(self.bias) + np.minimum(t / RAMP, 1.0) * swing, -1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Weights:
    """w_f (s/m), w_p (1/rad), w_h (1/m), w_v (s/rad, s/m), w_l, w_u of the module's docstring."""

    forward: float
    pitch: float
    height: float
    rate: float
    limit: float
    effort: float


WEIGHTS = {
    "half-cheetah": Weights(forward=1.0, pitch=0.5, height=0.0, rate=0.02, limit=1.0, effort=0.3),
    "hopper": Weights(forward=1.0, pitch=2.0, height=1.5, rate=0.02, limit=1.0, effort=0.3),
}
# From a cross-entropy search over rhythms for the distance of a motion that stays upright, rounded to two digits.
RHYTHMS = {
    "half-cheetah": Rhythm(
        2.44,
        (0.71, -0.09, -0.1, -0.72, 0.6, 0.16),
        (0.48, -0.38, -1.37, -2.51, 0.75, 0.55),
        (0.05, 0.1, -0.24, -0.32, 0.2, -0.01),
    ),
    "hopper": Rhythm(2.48, (-0.19, -0.07, -0.2), (-1.31, -1.53, -0.61), (0.1, 0.01, 0.07)),
}


_RANGES: dict[str, Range] = {"speed": Real(1e-3, 20.0, "m/s"), "steps": Count(1, 10_000), "dt": Real(1e-4, 0.05, "s")}


@ranged(**_RANGES)
def half_cheetah(speed: float = 1.9, steps: int = 150, dt: float = 0.01) -> OptimalControlProblem:
    """The half-cheetah runs at about `speed`, m/s, for `steps` steps of `dt` s, from standing."""
    return _runner("half-cheetah", speed, steps, dt, upright=0.5, lowest=0.3)


@ranged(**_RANGES)
def hopper(speed: float = 1.0, steps: int = 100, dt: float = 0.01) -> OptimalControlProblem:
    """The hopper moves at about `speed`, m/s, for `steps` steps of `dt` s, from standing."""
    return _runner("hopper", speed, steps, dt, upright=0.2, lowest=0.7)


@programs.subject("speed", "height", "lower", "upper", "dt")
@dataclasses.dataclass(frozen=True)
class Run:
    """The residuals of the module's docstring; height: $z_0$, m; lower, upper: limits of the joints, rad."""

    weights: Weights
    speed: Any
    height: Any
    lower: Any
    upper: Any
    dt: Any

    def posture(self, x: State) -> Float[Array, " k"]:
        weights, q = self.weights, x.q[ROOT:]
        near = (jnp.maximum(MARGIN - (q - self.lower), 0.0) + jnp.maximum(MARGIN - (self.upper - q), 0.0)) / MARGIN
        rows = [weights.forward * (x.v[:1] - self.speed), weights.pitch * x.q[2:3]]
        rows += [weights.height * (x.q[1:2] - self.height), weights.rate * x.v[2:]]
        return jnp.concatenate([*rows, weights.limit * near])

    def stage(self, x: State, u: Float[Array, " nu"], t: Float[Array, ""]) -> Float[Array, " k"]:
        return jnp.sqrt(self.dt) * jnp.concatenate([self.posture(x), self.weights.effort * u])

    def final(self, x: State) -> Float[Array, " k"]:
        return jnp.sqrt(FINAL * self.dt) * self.posture(x)


def _runner(name: str, speed: float, steps: int, dt: float, upright: float, lowest: float) -> OptimalControlProblem:
    """upright: the pitch, rad, and lowest: the height of the torso's centre, m, beyond which the runner counts as falling."""
    weights, model = WEIGHTS[name], load_model(name)
    system = System(model, dt, RigidContact(max_contacts=8, erp=1.0))
    home = jnp.asarray(model.keyframes["home"])
    run = Run(weights, speed, home[1], np.asarray(model.lower)[ROOT:], np.asarray(model.upper)[ROOT:], dt)
    return OptimalControlProblem(
        name, system, steps, State(home, jnp.zeros(model.nv)), u0=RHYTHMS[name].controls(steps, dt),
        stage_residual=Partial(Run.stage, run), terminal_residual=Partial(Run.final, run),
        certificate=judged(lambda motion: examine(system, motion, speed, upright, lowest), {
            "height_missing": 0.0, "trunk_contact": 0.0, "torque_use": 1.0, "joint_limit_excess": 1e-6, "penetration": 5e-3,
            "replay_error": 1e-3,
        }),
        goals={
            "distance": Goal(Partial(short_of, 0, speed * steps * dt), (1 - SHARE) * speed * steps * dt, "m"),
            "upright": Goal(Posture(("rooty",), reference=home), upright, "rad", "always"),
        },
        display=Display(report=lambda motion: _report(system, motion)),
        defaults=Defaults("iLQR", {"tolerance": 0.05, "max_iterations": 200}),
    )  # fmt: skip


@jax.jit
def _torso_heights(model: Model, qs: Float[Array, "T nq"]) -> Float[Array, " T"]:
    """Heights of the torso's centre."""
    return jax.vmap(lambda q: frame_placement(model, q, "torso")[1][2])(qs)


def examine(system: System, motion: Trajectory, speed: float, upright: float, lowest: float) -> dict[str, float]:
    """The named quantities of a run, m, m/s, rad and shares.

    distance and mean_speed of the torso; distance_missing to SHARE of the distance at `speed`; largest_pitch and its excess over
    `upright`; torso_height, the least of its centre, and what is missing to `lowest`; trunk_clearance, the least distance of
    torso (and head) to the ground, and trunk_contact, by how much it is negative; and `general_quantities`.
    """
    model, qs = system.model, np.asarray(motion.xs)[:, : system.nq]
    gap = gaps(model, qs)
    duration = len(motion.us) * float(system.dt)
    distance, pitch = float(qs[-1, 0] - qs[0, 0]), float(np.abs(qs[:, 2]).max())
    trunk = float(min(gap[name].min() for name in _trunk(model)))
    height = float(np.asarray(_torso_heights(model, jnp.asarray(qs))).min())
    return {
        "distance": distance,
        "mean_speed": distance / duration,
        "distance_missing": max(SHARE * speed * duration - distance, 0.0),
        "largest_pitch": pitch,
        "pitch_excess": max(pitch - upright, 0.0),
        "torso_height": height,
        "height_missing": max(lowest - height, 0.0),
        "trunk_clearance": trunk,
        "trunk_contact": max(-trunk, 0.0),
        **general_quantities(system, motion, gap, ROOT),
    }


def _trunk(model: Model) -> list[str]:
    """The shapes on the torso that may touch something."""
    top = model.topology
    node, able = top.frames[top.frame_index("torso")].node, {k for pair in top.pairs for k in pair}
    return [shape.name for k, shape in enumerate(top.shapes) if shape.node == node and k in able]


def _report(system: System, motion: Trajectory) -> str:
    """Speed in the last half, effort, and how often each foot is on the ground."""
    model, nq, dt = system.model, system.nq, float(system.dt)
    xs = np.asarray(motion.xs)
    half = len(motion.us) // 2
    late = (xs[-1, 0] - xs[half, 0]) / ((len(motion.us) - half) * dt)
    touching = (np.stack(list(gaps(model, xs[:, :nq]).values())) < 1e-3).any(0)
    return "\n".join([
        f"  speed in the second half {late:.2f} m/s, at the end {xs[-1, nq]:.2f} m/s",
        f"  root mean square of the controls {float(np.sqrt((np.asarray(motion.us) ** 2).mean())):.2f} of the limits",
        f"  on the ground {touching.mean():.0%} of the time, {int(np.sum(np.diff(touching.astype(int)) == 1))} landings",
    ])  # fmt: skip
