r"""go1-state-estimation: where is the base of a trotting Go1, how is it turned and how fast is it, from its own sensors alone?

Joint encoders (angles and rates), a gyroscope and an accelerometer are read every `dt`; nothing measures position or velocity of
the base. The model of the motion is the step with hard contact: feet that stick tell how the base moves.

    x = (q, v, a, b_w, b_a)     configuration, velocity; acceleration of the base over the last step; biases of the inertial unit
    x_{k+1} = f(x_k, u_k, w_k)  the step under the commanded torques u and the disturbance w: a wrench on the base and errors of
                                the torques, of unit variance in units of `DISTURBANCE`; a = (v_{k+1} - v_k) / dt; biases stay
    y = (joint angles, joint rates, w + b_w, R^T (a - g) + b_a) + noise of the deviations `NOISE`

w is the angular velocity in the base's frame and R its orientation. a is a mean over a step, impacts included, and belongs to the
state because the accelerometer measures what happened since the last reading.

The recording is simulated with this model: the robot stands for `STANDING`, then trots after a joint-space reference, tracked by
a spring and damper in each joint; disturbance, biases, noise and the error of the prior mean are drawn from one seed. Contact
with a flat floor says nothing about x, y and yaw: they are counted from the first reading, where the prior has them exactly, and
drift.

The height of the prior mean is that at which the highest foot touches. Feet that are believed in the air are worse than feet in
the floor: hard contact at a distance has no derivative, so that nothing would pull them down, while the step pushes out what
penetrates.

`estimation.examples.walking_robot` makes sensors and a recording of it, which `estimation.MovingHorizon` follows. The registered
problem estimates the whole recording at once: what a moving horizon as long as the recording does at its end.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from trajopt.dynamics.collision.narrowphase import collide
from trajopt.dynamics.contact.laws import RigidContact
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion
from trajopt.dynamics.system import State, System
from trajopt.errors import OptionError
from trajopt.models.registry import load_model
from trajopt.problems.library.contact_inverse_dynamics import GO1_FEET, GO1_STAND
from trajopt.problems.library.static_pose import candidates
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.parts import Certificate, Defaults, Display, Observations
from trajopt.problems.ranges import Count, Real, ranged
from trajopt.problems.trajectory import Trajectory

NQ, NV, NJ = 19, 18, 12
NX, N = NQ + NV + 9, 2 * NV + 9  # with acceleration and biases; in tangent coordinates
NY = 2 * NJ + 6
# Deviations of encoders (rad), their rates (rad/s), gyroscope (rad/s), accelerometer (m/s^2).
NOISE = np.repeat([1e-3, 0.05, 5e-3, 0.3], [NJ, NJ, 3, 3])
# Wrench on the base (N, N m) and errors of the torques (N m), each constant over a step.
DISTURBANCE = np.repeat([4.0, 0.8, 0.3], [3, 3, NJ])
DISTURBED = tuple(f"{kind} {axis} of the base" for kind in ("force", "moment") for axis in "xyz")
BIAS = np.repeat([0.02, 0.1], 3)  # deviations of the biases: rad/s, m/s^2
# Of the prior on the first state, in tangent coordinates: x, y, z, roll, pitch, yaw, joints; velocities; acceleration; biases.
PRIOR = np.concatenate(
    [[1e-4, 1e-4, 0.01, 0.02, 0.02, 1e-4], np.full(NJ, 0.01), [0.1] * 6, np.full(NJ, 0.2), [1.0] * 3, BIAS]
)
SHOWN = (1, 2, NJ + 1, NJ + 2, *range(2 * NJ, NY))  # readings drawn one by one: thigh and calf of a leg, the inertial unit
FREQUENCY, SWEEP, LIFT = 2.5, 0.2, (0.25, 0.5)  # Hz; rad of the thighs, and of thigh and calf in the swing
STIFFNESS, DAMPING = 100.0, 2.0  # N m/rad, N m s/rad
STANDING = 0.08  # s, before the trot begins
ACCURACY = {"roll_pitch_error": 0.01, "speed_error": 0.05}  # rad, m/s, root mean squares to which the base is asked for


def trot(t: Float[Array, ""]) -> Float[Array, "12"]:
    """Joint angles of the reference, FR and RL half a period before FL and RR; growing from the stand within 0.2 s."""
    t = jnp.maximum(t - STANDING, 0.0)
    phase = 2 * np.pi * FREQUENCY * t + jnp.array([0.0, np.pi, np.pi, 0.0], t.dtype)
    grown = jnp.minimum(t / 0.2, 1.0)
    swing = jnp.maximum(jnp.sin(phase), 0.0) ** 2
    thigh = 0.9 + grown * (SWEEP * jnp.cos(phase) + LIFT[0] * swing)
    return jnp.stack([jnp.zeros_like(thigh), thigh, -1.8 - grown * LIFT[1] * swing], 1).reshape(-1)


def retract(model: Any, x: Float[Array, " nx"], dx: Float[Array, " n"]) -> Float[Array, " nx"]:
    """x (+) dx."""
    return jnp.concatenate([integrate(model, x[:NQ], dx[:NV]), x[NQ:] + dx[NV:]])


def local(model: Any, x0: Float[Array, " nx"], x1: Float[Array, " nx"]) -> Float[Array, " n"]:
    """x1 (-) x0."""
    return jnp.concatenate([difference(model, x0[:NQ], x1[:NQ]), x1[NQ:] - x0[NQ:]])


def step(system: System, x: Float[Array, " nx"], u: Float[Array, " nu"], w: Float[Array, " nw"]) -> Float[Array, " nx"]:
    """f(x, u, w) of the module's docstring."""
    v = x[NQ : NQ + NV]
    after, _ = system.step(State(x[:NQ], v), u, force=jnp.asarray(DISTURBANCE, x.dtype) * w)
    acceleration = (after.v[:3] - v[:3]) / system.dt
    return jnp.concatenate([after.q, after.v, acceleration, x[NQ + NV + 3 :]])


def readings(system: System, x: Float[Array, " nx"]) -> Float[Array, " ny"]:
    """What the sensors show at x without noise."""
    rotation = rotation_from_quaternion(x[3:7])
    acceleration, gyro_bias, bias = x[NQ + NV : NX - 6], x[NX - 6 : NX - 3], x[NX - 3 :]
    force = rotation.T @ (acceleration - system.model.gravity) + bias
    return jnp.concatenate([x[7:NQ], x[NQ + 6 : NQ + NV], x[NQ + 3 : NQ + 6] + gyro_bias, force])


@dataclasses.dataclass(frozen=True, eq=False)
class Walk:
    """A recording: the true states (T+1, nx), commanded torques (T, 12), measurements (T+1, ny), and the prior mean (nx,)."""

    system: System
    truth: Float[np.ndarray, "k nx"]
    us: Float[np.ndarray, "T nu"]
    measurements: Float[np.ndarray, "k ny"]
    mean: Float[np.ndarray, " nx"]

    @property
    def dt(self) -> float:
        return float(self.system.dt)

    def errors(self, xs: Float[np.ndarray, "k nx"]) -> Float[np.ndarray, "k n"]:
        """estimate (-) truth of the first states of the recording, in tangent coordinates."""
        each = jax.vmap(lambda a, b: local(self.system.model, a, b))
        return np.asarray(each(jnp.asarray(self.truth[: len(xs)]), jnp.asarray(xs)))

    def dead_reckoning(self, start: Float[np.ndarray, " nx"] | None = None) -> Float[np.ndarray, "k nx"]:
        """States from the inertial unit alone: its readings integrated from `start` (default the prior mean), joints as read."""
        mean = jnp.asarray(self.mean if start is None else start)
        model, dt = self.system.model, self.dt

        def body(x, y):
            bias_w, bias_a = x[NX - 6 : NX - 3], x[NX - 3 :]
            rotation, omega = rotation_from_quaternion(x[3:7]), y[2 * NJ : 2 * NJ + 3] - bias_w
            # The accelerometer's reading is the mean over the step that ends here, at the orientation of its end.
            moved = integrate(model, x[:NQ], jnp.concatenate([jnp.zeros(3), dt * omega, jnp.zeros(NJ)]))
            rotation = rotation_from_quaternion(moved[3:7])
            acceleration = rotation @ (y[2 * NJ + 3 :] - bias_a) + model.gravity
            v = x[NQ : NQ + 3] + dt * acceleration
            q = jnp.concatenate([x[:3] + dt * v, moved[3:7], y[:NJ]])
            x = jnp.concatenate([q, v, omega, y[NJ : 2 * NJ], acceleration, x[NX - 6 :]])
            return x, x

        xs = jax.lax.scan(body, mean, jnp.asarray(self.measurements[1:]))[1]
        return np.concatenate([np.asarray(mean)[None], np.asarray(xs)])


@jax.jit
def _simulated(system: System, start: State, disturbance, biases):
    """States (T+1, nx) and torques (T, 12) of the trot."""
    model, dt = system.model, system.dt

    def body(x, inputs):
        k, w = inputs
        wanted, rate = jax.jvp(trot, (k * dt,), (jnp.ones_like(dt),))
        torque = STIFFNESS * (wanted - x[7:NQ]) + DAMPING * (rate - x[NQ + 6 : NQ + NV])
        u = jnp.clip(torque, model.control_lower, model.control_upper)
        return step(system, x, u, w), (x, u)

    x0 = jnp.concatenate([start.q, start.v, jnp.zeros(3, start.q.dtype), biases])
    last, (xs, us) = jax.lax.scan(body, x0, (jnp.arange(len(disturbance)).astype(start.q.dtype), disturbance))
    return jnp.concatenate([xs, last[None]]), us


def walk(steps: int = 150, dt: float = 4e-3, seed: int = 0) -> Walk:
    """The recording of `steps` steps of `dt` s, beginning at rest, its random parts drawn from `seed`. Raises `OptionError`."""
    if steps < 1:
        raise OptionError(f"steps is {steps}; it must be at least 1")
    if not 0 < dt <= 5e-3:
        raise OptionError(f"dt is {dt}; the gait's controller is stable for steps above 0 and up to 5e-3 s")
    # Four feet and, above each, the end of a calf are the closest shapes to the floor.
    # Guesses lie centimetres in the floor, where a bound on the push-out would leave the height without a slope.
    law = RigidContact(max_contacts=8, erp=1.0, limits=False, push_out_speed=None)
    system = System(load_model("go1"), dt, law)
    model, random = system.model, np.random.default_rng(seed)
    biases, off = BIAS * random.normal(size=6), random.normal(size=N)
    disturbance, noise = random.normal(size=(steps, NV)), NOISE * random.normal(size=(steps + 1, NY))
    start = State(jnp.asarray(GO1_STAND), jnp.zeros(NV))
    xs, us = _simulated(system, start, jnp.asarray(disturbance), jnp.asarray(biases))
    ys = np.asarray(jax.vmap(lambda x: readings(system, x))(xs)) + noise
    # The prior mean is off by a draw from the prior, with height by contact and biases and acceleration at zero.
    drawn = np.where((np.arange(N) < 2 * NV) & (np.arange(N) != 2), PRIOR * off, 0.0)
    mean = np.array(retract(model, xs[0], jnp.asarray(drawn)))
    mean[2] -= highest_foot(model, mean[:NQ])
    mean[NQ + NV :] = 0.0
    return Walk(system, np.asarray(xs), np.asarray(us), ys, mean)


def channels(model: Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and units of the readings, (ny,) each."""
    joints = [name.removesuffix("_joint") for name in (joint.name for joint in model.topology.joints) if name != "root"]
    names = [*joints, *(f"{name} rate" for name in joints), *(f"gyroscope {axis}" for axis in "xyz")]
    names += [f"accelerometer {axis}" for axis in "xyz"]
    return tuple(names), ("rad",) * NJ + ("rad/s",) * (NJ + 3) + ("m/s²",) * 3


def highest_foot(model: Any, q: Float[np.ndarray, " nq"]) -> float:
    """Height of the highest foot above the floor, m."""
    gaps = collide(model, kinematics(model, jnp.asarray(q))).distance
    return float(gaps[np.array(candidates(model, GO1_FEET))].max())


def _error(system: System, x: Float[Array, " nx"], y: Float[Array, " ny"]) -> Float[Array, " ny"]:
    return (readings(system, x) - y) / jnp.asarray(NOISE, x.dtype)


def _row(system: System, rows: Array, t: Array) -> Array:
    return jnp.asarray(rows)[jnp.clip(jnp.round(t / system.dt).astype(int), 0, len(rows) - 1)]


def _disturbed(system: System, us: Array, x: Array, w: Array, t: Array) -> Array:
    return step(system, x, _row(system, us, t), w)


def _noise(system: System, ys: Array, x: Array, w: Array, t: Array) -> Array:
    return jnp.concatenate([_error(system, x, _row(system, ys, t)), w])


def _last_noise(system: System, ys: Array, x: Array) -> Array:
    return _error(system, x, ys[-1])


def _prior_error(model: Model, mean: Array, x: Array) -> Array:
    return jnp.asarray(1.0 / PRIOR, x.dtype) * local(model, mean, x)


@ranged(
    steps=Count(1, 10_000), dt=Real(1e-4, 5e-3, "s", why="the gait's controller is stable for steps up to 5e-3 s"), seed=Count()
)
def go1_state_estimation(steps: int = 50, dt: float = 4e-3, seed: int = 0) -> OptimalControlProblem:
    """The states of a recording of `steps` steps, all at once; the unknown controls of the problem are the disturbance w.

    Raises `OptionError`.
    """
    seen = walk(steps, dt, seed)
    model, us, ys = seen.system.model, jnp.asarray(seen.us), jnp.asarray(seen.measurements)
    guess = seen.dead_reckoning()

    def certificate(motion: Trajectory) -> dict[str, float]:
        error = seen.errors(np.asarray(motion.xs))
        tilt, speed = np.linalg.norm(error[:, 3:5], axis=1), np.linalg.norm(error[:, NV : NV + 3], axis=1)
        return {"roll_pitch_error": float(np.sqrt(np.mean(tilt**2))), "speed_error": float(np.sqrt(np.mean(speed**2)))}

    def report(motion: Trajectory) -> str:
        errors, blind = certificate(motion), seen.dead_reckoning()
        by = certificate(Trajectory(blind, motion.us, motion.p))
        return "\n".join(
            f"{label:<22} {errors[key]:.4f} {unit}  (inertial unit alone: {by[key]:.4f} {unit})"
            for label, key, unit in (
                ("roll and pitch, rms", "roll_pitch_error", "rad"),
                ("velocity, rms", "speed_error", "m/s"),
            )
        )

    names, units = channels(model)
    predicted = jax.jit(jax.vmap(functools.partial(readings, seen.system)))
    observations = Observations(
        dt * np.arange(steps + 1), seen.measurements, NOISE, names, units,
        predicted=lambda motion: predicted(jnp.asarray(motion.xs)), shown=SHOWN, truth=seen.truth,
    )  # fmt: skip

    return OptimalControlProblem(
        "go1-state-estimation", Partial(_disturbed, seen.system, us), steps, seen.mean,
        u0=np.zeros(NV), xs0=guess, dt=dt, free_initial_state=True,
        stage_residual=Partial(_noise, seen.system, ys), terminal_residual=Partial(_last_noise, seen.system, ys),
        initial_residual=Partial(_prior_error, model, seen.mean),
        integrate=Partial(retract, model), difference=Partial(local, model), tangent_size=N,
        meta={"contact": "RigidContact"},
        certificate=Certificate(certificate, ACCURACY, goals={"roll_pitch_error": "rad", "speed_error": "m/s"}),
        display=Display(
            report=report, observations=observations, model=model,
            motion=lambda motion: {"q": motion.xs[:, :NQ], "v": motion.xs[:, NQ : NQ + NV]},
            control_names=tuple(f"{name} / deviation" for name in (*DISTURBED, *model.topology.actuators)),
        ),
        defaults=Defaults("GaussNewton"),
    )  # fmt: skip
