r"""atlas-jump (Nimble VII-D): Atlas jumps from a crouch; at the end its pelvis is at rest at a height that needs flight.

    minimise    dt sum_t 1/2 (|W_u u|^2 + |W_q (q_j - q_crouch)|^2 + |W_v v_j|^2 + |W_l l(q_j)|^2) + 1/2 |r_T(x_T)|^2

over the torques u within their limits, from rest in the crouch. q_j, v_j are the joints' angles and rates, l(q_j) how far an
angle is inside a margin before its limit, and r_T(x_T) asks for the pelvis at the height with no velocity, upright, above where
it started, and for folded legs. Nothing says when the feet leave the ground or that they do.

The guess is a plain jump, and it breaks the dynamics: the pelvis rises with the cube of time until the legs are nearly
straight, then along the parabola that has its apex at the height; legs by inverse kinematics with flat soles, then folding;
torques by inverse dynamics, the wrenches on the feet being those of least norm. Its defects are closed by iLQR in multiple
shooting, which keeps what matters of it: linear models of the right contact modes, on the ground and off it.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.rigid_body.crba import mass_matrix
from trajopt.dynamics.rigid_body.kinematics import centre_of_mass, frame_jacobian, kinematics
from trajopt.dynamics.rigid_body.rnea import inverse_dynamics
from trajopt.dynamics.system import State, System
from trajopt.models.registry import load_model
from trajopt.problems import programs
from trajopt.problems.goals import Goal
from trajopt.problems.library.behaviours import gaps, general_quantities, judged
from trajopt.problems.library.replay import replay
from trajopt.problems.library.static_pose import candidates
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Defaults, Display
from trajopt.problems.ranges import Real, ranged
from trajopt.problems.residuals import Posture
from trajopt.problems.trajectory import Trajectory

# Atlas's left leg in the sagittal plane, m, x forwards and z upwards: hip seen from the pelvis, knee from the hip, ankle from the
# knee, at zero angles; depth of the sole below the ankle. HALF_WIDTH: hip from the middle; SOLE_REACH: from the ankle to the
# farthest corner of the sole.
HIP, THIGH, SHANK = np.array([0.05, -0.066]), np.array([-0.05, -0.374]), np.array([0.0, -0.422])
SOLE, HALF_WIDTH, SOLE_REACH = 0.07645, 0.1115, 0.2003
SOLES = ("l_sole", "r_sole")
FEET = ("l_foot", "r_foot")
SAGITTAL = ("hpy", "kny", "aky")  # hip, knee, ankle

PITCH, KNEE, ANKLE = -0.06, 1.7, -0.85  # of the crouch, rad: trunk (forwards), knees, ankles
ARMS = {"shx": -1.3, "ely": 0.3, "elx": 0.5}  # of the left arm; the right one mirrors shx and elx
STRAIGHT = 0.86  # m, height of the pelvis where the guess leaves the ground
FOLD = 0.25  # rad, by which hips and ankles fold in the guess's flight, knees twice as much
HIGHEST = 1.6  # m
CLEARANCE = 0.05  # m, of both soles at the apex

EFFORT, POSTURE, RATE, LIMIT = 3.0, 0.3, 0.8, 3.0  # W_u (times the share of the limit), W_q, W_v, W_l
MARGIN = 0.1  # rad, before a joint limit


def highest_standing() -> float:
    """No pose with a sole on the floor has the pelvis higher: the sum of the leg's lengths, m (triangle inequality)."""
    hip = float(np.sqrt(HIP @ HIP + HALF_WIDTH**2))
    return hip + float(np.linalg.norm(THIGH)) + float(np.linalg.norm(SHANK)) + SOLE_REACH


@ranged(
    height=Real(
        highest_standing() + CLEARANCE, HIGHEST, "m", why=f"poses with a foot {CLEARANCE} m from the ground reach what is below"
    ),
    wait=Real(0.0, 10.0, "s"),
    dt=Real(1e-4, 0.05, "s"),
)
def atlas_jump(height: float = 1.2, wait: float = 0.1, dt: float = 5e-3) -> OptimalControlProblem:
    """The pelvis at rest at `height`, m, at the end: the apex. Standing upright it is at 0.93 m.

    wait: s, for which the guess stays in the crouch. The horizon is that of the guess, in steps of `dt`, s: 0.57 s.
    Raises `OptionError` for a height that could be reached with a foot on the ground, or is out of all reach.
    """
    model = load_model("atlas")
    # 5 ms are large for the damping of the wrists.
    system = System(model, dt, RigidContact(max_contacts=8, erp=1.0), implicit_damping=True)
    start = crouch(model)
    xs, us = guess(model, start, height, wait, dt)
    lower, upper, torque = (np.asarray(a) for a in (model.lower[6:], model.upper[6:], model.control_upper))
    above = start + (height - start[2]) * (np.arange(len(start)) == 2)
    jump = Jump(start[7:], lower, upper, torque, np.array([start[0], start[1], height]), dt)

    def certificate(motion: Trajectory) -> dict[str, float]:
        return examine(system, motion, height)

    return OptimalControlProblem(
        "atlas-jump", system, len(us), State(jnp.asarray(start), jnp.zeros(model.nv)), u0=us, xs0=xs,
        stage_residual=Partial(Jump.stage, jump), terminal_residual=Partial(Jump.apex, jump), tolerance=1e-9,
        goals={"apex": Goal(Posture(("root",), reference=above, weight=(0, 0, 1, 0, 0, 0)), LIMITS["apex_error"], "m")},
        certificate=judged(certificate, LIMITS, ("apex_error",)),
        display=Display(report=lambda motion: _report(system, motion)),
        defaults=Defaults("iLQR", {"shooting": "multiple", "tolerance": 1e-4, "max_iterations": 200}),
    )  # fmt: skip


@programs.subject("joints", "lower", "upper", "torque", "top", "dt")
@dataclasses.dataclass(frozen=True)
class Jump:
    """The residuals of the module's docstring; joints: their angles in the crouch, lower, upper: their limits, rad; torque: the
    largest, N m; top: the pelvis at the apex, m."""

    joints: Any
    lower: Any
    upper: Any
    torque: Any
    top: Any
    dt: Any

    def near_limit(self, q: Float[Array, " n"]) -> Float[Array, " n"]:
        inside = jnp.maximum(MARGIN - (q - self.lower), 0.0) + jnp.maximum(MARGIN - (self.upper - q), 0.0)
        return inside / MARGIN

    def stage(self, x: State, u: Float[Array, " nu"], t: Float[Array, ""]) -> Float[Array, " k"]:
        q, v = x.q[7:], x.v[6:]
        rows = [EFFORT * u / self.torque, POSTURE * (q - self.joints), RATE * v, LIMIT * self.near_limit(q)]
        return jnp.sqrt(self.dt) * jnp.concatenate(rows)

    def apex(self, x: State) -> Float[Array, " k"]:
        tilt = 2.0 * jnp.sign(x.q[3]) * x.q[4:7]
        place = x.q[:3] - self.top
        rows = [jnp.array([3.0, 3.0, 100.0]) * place, jnp.array([3.0, 3.0, 30.0]) * x.v[:3], 5.0 * tilt, 2.0 * x.v[3:6]]
        rows += [1.5 * (x.q[7:] - self.joints), 0.1 * x.v[6:], 0.3 * self.near_limit(x.q[7:])]
        return jnp.concatenate(rows)


# --- the crouch and the guess -------------------------------------------------------------------------------------------


def _turned(vector: np.ndarray, pitch: float) -> np.ndarray:
    """A vector (x, z) of a body pitched forwards."""
    return np.array([[np.cos(pitch), np.sin(pitch)], [-np.sin(pitch), np.cos(pitch)]]) @ vector


def crouch(model: Model) -> Float[np.ndarray, " nq"]:
    """Flat soles on the floor, centre of mass above the middle of the soles: Atlas can stand in it (static_pose.certify)."""
    hip = -(PITCH + KNEE + ANKLE)
    q = np.zeros(model.nq)
    q[3:7] = np.cos(PITCH / 2), 0.0, np.sin(PITCH / 2), 0.0
    column = _columns(model)
    for side, sign in (("l", 1.0), ("r", -1.0)):
        for name, angle in zip(SAGITTAL, (hip, KNEE, ANKLE)):
            q[column[f"{side}_leg_{name}"]] = angle
        for name, angle in ARMS.items():
            q[column[f"{side}_arm_{name}"]] = angle if name == "ely" else sign * angle
    q[column["back_bky"]] = 0.1
    q[2] = SOLE - _ankle(hip, KNEE)[1]
    return q


def _columns(model: Model) -> dict[str, int]:
    """Where the angle of an actuated joint is in q: Atlas's motors have their joints' names and order."""
    return {name: 7 + i for i, name in enumerate(model.topology.actuators)}


def _ankle(hip: float, knee: float, pitch: float = PITCH) -> np.ndarray:
    """Ankle seen from the pelvis."""
    return _turned(HIP, pitch) + _turned(THIGH, pitch + hip) + _turned(SHANK, pitch + hip + knee)


def leg_angles(ankle: Float[np.ndarray, "2"], pitch: float = PITCH) -> Float[np.ndarray, "3"]:
    """Hip, knee and ankle angles that bring the ankle to (x, z), seen from the pelvis, with a level sole."""
    reach = ankle - _turned(HIP, pitch)
    thigh, shank, bend = np.linalg.norm(THIGH), np.linalg.norm(SHANK), np.arctan2(-THIGH[0], -THIGH[1])
    inner = np.arccos((reach @ reach - thigh**2 - shank**2) / (2 * thigh * shank))
    line = np.arctan2(-reach[0], -reach[1]) - np.arctan2(shank * np.sin(inner), thigh + shank * np.cos(inner))
    hip, knee = line - bend - pitch, inner + bend
    return np.array([hip, knee, -(pitch + hip + knee)])


def schedule(start: float, height: float) -> tuple[float, float]:
    """Durations of the guess's push and flight, s: z = start + c t^3 up to STRAIGHT, then a parabola up to `height`."""
    speed = np.sqrt(2 * 9.81 * (height - STRAIGHT))
    return 3 * (STRAIGHT - start) / speed, speed / 9.81


def guess(
    model: Model, start: Float[np.ndarray, " nq"], height: float, wait: float, dt: float, stand: float | None = None
) -> tuple[Any, Any]:
    """The plain jump of the module's docstring: states (T+1, nq + nv), torques (T, nu).

    stand: s in the crouch after the landing, which is the way up taken backwards; None: it ends at the apex.
    """
    push, flight = schedule(start[2], height)
    steps = int(np.ceil((wait + push + flight) / dt))
    column = _columns(model)
    at_rest = _ankle(*start[[column["l_leg_hpy"], column["l_leg_kny"]]])
    foot = at_rest + start[[0, 2]]
    q = np.tile(start, (steps + 1, 1))
    for k in range(steps + 1):
        since = k * dt - wait
        q[k, 2], angles = _plain_jump(since, start[2], foot - [start[0], 0.0], push, flight)
        for side in "lr":
            q[k, [column[f"{side}_leg_{name}"] for name in SAGITTAL]] = angles
    standing = np.arange(steps) * dt < wait + push - 0.5 * dt
    if stand is not None:
        rest = round(stand / dt)
        first = round(wait / dt)  # of the push: the way back ends there
        q = np.concatenate([q, q[first:-1][::-1], np.tile(start, (rest, 1))])
        standing = np.concatenate([standing, standing[first:][::-1], np.ones(rest, bool)])
    model = model.to_device()
    turned = np.asarray(jax.vmap(lambda a, b: difference(model, a, b))(jnp.asarray(q[:-1]), jnp.asarray(q[1:])))
    v = np.concatenate([np.zeros((1, model.nv)), turned / dt])
    us = _torques(model, jnp.asarray(q[:-1]), jnp.asarray(v[:-1]), jnp.asarray(np.diff(v, axis=0) / dt), standing)
    return np.concatenate([q, v], 1), np.asarray(us)


def _plain_jump(since: float, start: float, foot: np.ndarray, push: float, flight: float) -> tuple[float, np.ndarray]:
    """Height of the pelvis and angles of a leg at `since` the beginning of the push."""
    if since <= push:
        z = start + (STRAIGHT - start) * np.clip(since / push, 0.0, 1.0) ** 3
        return z, leg_angles(foot - [0.0, z])
    speed, small = 9.81 * flight, 1e-6
    z = STRAIGHT + speed * (since - push) - 0.5 * 9.81 * (since - push) ** 2
    first = leg_angles(foot - [0.0, STRAIGHT])
    rate = (first - leg_angles(foot - [0.0, STRAIGHT - small * speed])) / small
    last = first + FOLD * np.array([-1.0, 2.0, -1.0])
    s = min((since - push) / flight, 1.0)
    share = s * s * (3.0 - 2.0 * s)
    return z, first + share * (last - first) + s * (1.0 - s) ** 2 * flight * rate


@jax.jit
def _torques(model: Model, qs, vs, accelerations, standing) -> Float[Array, "T nu"]:
    """Joint torques of inverse dynamics; what is left by the free base goes to the feet, or, in flight, to its acceleration."""

    def at(q, v, a, grounded):
        tau, M = inverse_dynamics(model, q, v, a), mass_matrix(model, q)
        J = jnp.concatenate([frame_jacobian(model, q, name, "local-world-aligned") for name in FEET])
        wrench = J[:, :6] @ linear_algebra.solve_vector(J[:, :6].T @ J[:, :6], tau[:6])
        moved = linear_algebra.solve_vector(M[:6, :6], tau[:6])
        return jnp.where(grounded, tau - J.T @ wrench, tau - M[:, :6] @ moved)[6:]

    return jax.vmap(at)(qs, vs, accelerations, standing)


# --- what makes a motion a jump -----------------------------------------------------------------------------------------

LIMITS = {
    "apex_error": 5e-3,
    "apex_velocity": 1e-2,
    "clearance_missing": 0.0,
    "torque_use": 1.0,
    "joint_limit_excess": 1e-6,
    "penetration": 2e-3,
    "flight_error": 1e-2,
    "replay_error": 1e-3,
}


@jax.jit
def _shape(model: Model, qs, vs):
    """Distances of all contact candidates (T+1, k); height and velocity of the centre of mass (T+1, 2)."""

    def at(q, v):
        position, velocity = jax.jvp(
            lambda dq: centre_of_mass(model, integrate(model, q, dq)), (jnp.zeros_like(v),), (v,)
        )
        return collide(model, kinematics(model, q)).distance, jnp.stack([position[2], velocity[2]])

    return jax.vmap(at)(qs, vs)


def examine(system: System, motion: Trajectory, height: float) -> dict[str, float]:
    """The named quantities of a jump, m, m/s, s, rad and shares; LIMITS bounds those that make it one.

    apex_height, foot_clearance (lowest point of both soles at the end), torque_margin (of the limits), flight_time, flight_error
    (of the centre of mass's height at the end, against the parabola from its state one step after the take-off); and
    `general_quantities`.
    """
    model, nq = system.model, system.nq
    xs = jnp.asarray(motion.xs)
    qs, vs = xs[:, :nq], xs[:, nq:]
    distance, com = (np.asarray(a) for a in _shape(model, qs, vs))
    soles = distance[:, list(_soles(system))]
    clearance = float(soles[-1].min())
    in_the_air = len(soles) - 1 - _take_off(soles)  # states at the end, none where a sole is on the ground there
    first, left = len(soles) - max(in_the_air, 1), max(in_the_air - 1, 0) * float(system.dt)
    ballistic = com[first, 0] + com[first, 1] * left - 0.5 * 9.81 * left * (left + float(system.dt))
    general = general_quantities(system, motion, gaps(model, np.asarray(qs)), 6)
    return {
        "apex_height": float(qs[-1, 2]),
        "apex_error": abs(float(qs[-1, 2]) - height),
        "apex_velocity": abs(float(vs[-1, 2])),
        "foot_clearance": clearance,
        "clearance_missing": max(CLEARANCE - clearance, 0.0),
        "torque_margin": 1.0 - general["torque_use"],
        "flight_time": in_the_air * float(system.dt),
        "flight_error": abs(float(ballistic - com[-1, 0])),
        **general,
    }


@functools.lru_cache(maxsize=1)
def _sole_candidates(name: str) -> tuple[int, ...]:
    return candidates(load_model(name), SOLES)


def _soles(system: System) -> tuple[int, ...]:
    return _sole_candidates(system.model.name)


def _take_off(soles: np.ndarray) -> int:
    """The last state in which a corner of a sole is within 2 mm of the floor, the first where none is."""
    down = np.flatnonzero(soles.min(1) < 2e-3)
    return int(down[-1]) if len(down) else 0


def _report(system: System, motion: Trajectory) -> str:
    """When it leaves the ground, how hard it pushes, which joints work hardest."""
    model, nq, dt = system.model, system.nq, float(system.dt)
    xs = jnp.asarray(motion.xs)
    distance, com = (np.asarray(a) for a in _shape(model, xs[:, :nq], xs[:, nq:]))
    first = _take_off(distance[:, list(_soles(system))]) + 1
    _, infos = replay(system, State(xs[0, :nq], xs[0, nq:]), jnp.asarray(motion.us))
    push = np.asarray(infos.contacts.impulse)[:, :, 2].sum(1) / dt
    weight = 9.81 * float(np.asarray(model.mass).sum())
    use = np.abs(motion.us) / np.asarray(model.control_upper)
    hardest = np.argsort(use.max(0))[::-1][:4]
    lines = [
        "stays on the ground" if first == len(com)
        else f"leaves the ground at {first * dt:.3f} s, rising at {com[first, 1]:.2f} m/s",
        f"largest force on the ground {push.max():.0f} N, {push.max() / weight:.1f} times the weight",
        f"fastest joint {float(jnp.abs(xs[:, nq + 6 :]).max()):.1f} rad/s",
        "hardest working: " + ", ".join(f"{model.topology.actuators[i]} {use[:, i].max():.0%}" for i in hardest),
    ]
    return "\n".join(f"  {line}" for line in lines)
