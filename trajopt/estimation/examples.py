"""Systems with recordings of known truth: what identification is tried and judged on.

    example = examples.example("sliding-box")
    fit = estimation.identify(example.system, example.recordings, example.parameters, example.sensors)

- "sliding-box": a box pushed over the floor, its pose from motion capture; unknown friction. Contact without impacts. Its
  recordings ship.
- "arm": a UR5 under torques, with encoders; unknown inertial parameters of five links, delay and gain of the torques.
- "tosses": boxes thrown onto the floor; unknown friction, restitution and centre of mass. Contact with impacts.

`walking_robot` is a legged robot with encoders and an inertial unit, whose state is sought (`MovingHorizon`).

`simulate` makes recordings with known parameters; those that ship have seed 0 (`scripts/example_recordings.py` writes them).
"""

import dataclasses
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.contact import RigidContact
from trajopt.dynamics.rigid_body.configuration import difference
from trajopt.dynamics.rigid_body.rnea import generalised_gravity
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import UnknownNameError
from trajopt.estimation.moments import Moment
from trajopt.estimation.parameters import unknowns
from trajopt.estimation.readers import read
from trajopt.estimation.recording import Recording
from trajopt.estimation.sensors import IMU, Encoder, Input, Pose, Sensor, Velocity
from trajopt.models import load_model
from trajopt.names import closest
from trajopt.problems.library import state_estimation

FOLDER = pathlib.Path(__file__).parent / "recordings"


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """A system as its file describes it, recordings of the true one, what is unknown, and the truth.

    Attributes:
        name: of the example.
        system: as its file describes it.
        recordings: of the true system.
        parameters: names of what is unknown.
        sensors: what the channels measure.
        truth: true values, in the order of the labels of the parameters.
    """

    name: str
    system: System
    recordings: tuple[Recording, ...]
    parameters: tuple[str, ...]
    sensors: tuple[Sensor, ...]
    truth: Float[np.ndarray, " k"]


@dataclasses.dataclass(frozen=True, eq=False)
class _Kind:
    """How recordings of an example are made. perturbed: (rng, coordinates, scales) -> true coordinates; motion: (rng, system,
    constants of the sensors) -> the first state and the controls (T, nu) of one recording; every: steps between samples of
    each channel."""

    system: Callable[[], System]
    parameters: tuple[str, ...]
    sensors: tuple[Sensor, ...]
    perturbed: Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]
    motion: Callable[[np.random.Generator, System, dict], tuple[State, np.ndarray]]
    every: dict[str, int]
    recordings: int


def example(name: str) -> Example:
    """The example with the recordings that ship, or those of seed 0. Raises `UnknownNameError`."""
    kind = _kind(name)
    system = kind.system()
    truth, _, _ = _truth(kind, system, 0)
    recordings = [read(path, name=path.stem.removeprefix(f"{name}-")) for path in sorted(FOLDER.glob(f"{name}-*.npz"))]
    recordings = recordings or list(simulate(name, 0).recordings)
    return Example(name, system, tuple(recordings), kind.parameters, kind.sensors, truth)


def simulate(name: str, seed: int, recordings: int | None = None) -> Example:
    """The example with recordings of random motions of a random true system, with noise. Raises `UnknownNameError`."""
    kind = _kind(name)
    system = kind.system()
    truth, true_system, constants = _truth(kind, system, seed)
    rng = np.random.default_rng([seed, 1])
    made = []
    for k in range(recordings or kind.recordings):
        x0, us = kind.motion(rng, true_system, constants)
        made.append(Recording(f"{k}", _channels(kind, true_system, constants, x0, us, rng)))
    return Example(name, system, tuple(made), kind.parameters, kind.sensors, truth)


def _kind(name: str) -> _Kind:
    if name not in KINDS:
        raise UnknownNameError(f"there is no example '{name}'{closest(name, KINDS)}")
    return KINDS[name]()


def _truth(kind: _Kind, system: System, seed: int) -> tuple[np.ndarray, System, dict]:
    """Reported values, system and sensor constants of the true system."""
    unknown = unknowns(system.model, kind.sensors, kind.parameters)
    theta = jnp.asarray(kind.perturbed(np.random.default_rng([seed, 0]), unknown.start, unknown.scale))
    model, constants = unknown.applied(system.model, theta)
    return np.asarray(unknown.values(theta)), dataclasses.replace(system, model=model), constants


def _channels(
    kind: _Kind, system: System, constants: dict, x0: State, us: np.ndarray, rng: np.random.Generator
) -> dict:
    """What the sensors record of a motion. The controls of a step are the commands of `delay` before, times gain."""
    dt = float(system.dt)
    command = next((s for s in kind.sensors if isinstance(s, Input)), None)
    acting = us
    if command is not None:
        c = constants[command.channel]
        acting = float(c["gain"]) * _delayed(us, float(c["delay"]) / dt)
    states, info = system.rollout(x0, jnp.asarray(acting))
    made = {}
    T = len(us)
    for sensor in kind.sensors:
        if isinstance(sensor, Input):
            made[sensor.channel] = (dt * np.arange(T), us)
            continue
        every = kind.every[sensor.channel]
        k = np.arange(0, T, every)

        def row(k: Array, sensor: Sensor = sensor) -> Array:
            at = Moment(states.q[k], states.v[k], states.q[k + 1], states.v[k + 1], jnp.asarray(0.0), jnp.asarray(dt))
            return sensor.predict(system.model, constants[sensor.channel], at)

        rows = jax.vmap(row)(jnp.asarray(k))
        noise = rng.normal(size=(len(k), len(sensor.labels(system.model)))) * sensor.deviations(system.model)
        made[sensor.channel] = (dt * k, np.asarray(jax.vmap(sensor.offset)(rows, jnp.asarray(noise))))
    return made


def _delayed(us: Float[np.ndarray, "T nu"], steps: float) -> Float[np.ndarray, "T nu"]:
    """Commands held for a step each, the mean over a step that begins `steps` later."""
    whole = int(np.floor(steps))
    share = steps - whole
    first = np.concatenate([np.repeat(us[:1], whole + 1, 0), us])
    return (1 - share) * first[1 : len(us) + 1] + share * first[: len(us)]


def _scattered(size: float) -> Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]:
    return lambda rng, start, scale: start + size * scale * rng.normal(size=start.size)


# --- sliding box ------------------------------------------------------------------------------------------------------


def _sliding_box() -> _Kind:
    def system() -> System:
        return System(load_model("cube"), 2e-3, RigidContact(max_contacts=4))

    def motion(rng: np.random.Generator, system: System, constants: dict) -> tuple[State, np.ndarray]:
        q = np.array(system.model.q_default, float)
        angle, speed = rng.uniform(0, 2 * np.pi), rng.uniform(0.8, 2.0)
        v = np.array([speed * np.cos(angle), speed * np.sin(angle), 0.0, 0.0, 0.0, rng.uniform(-3, 3)])
        return State(jnp.asarray(q), jnp.asarray(v)), np.zeros((150, 0))

    sensors = (Pose("pose", noise=(3e-4, 1e-3)),)
    return _Kind(system, ("friction",), sensors, _scattered(1.0), motion, {"pose": 5}, 10)


# --- arm --------------------------------------------------------------------------------------------------------------

ARM_LINKS = ("upper_arm_link", "forearm_link", "wrist_1_link", "wrist_2_link", "wrist_3_link")


def _arm() -> _Kind:
    def system() -> System:
        return System(load_model("ur5"), 2e-3)

    sensors = (Encoder("q", noise=2e-4), Input("torque"))
    parameters = (*(f"inertial:{link}" for link in ARM_LINKS), "torque.delay", "torque.gain")

    def perturbed(rng: np.random.Generator, start: np.ndarray, scale: np.ndarray) -> np.ndarray:
        theta = start + scale * rng.normal(size=start.size)
        theta[-2] = rng.uniform(1e-3, 6e-3)
        return theta

    def motion(rng: np.random.Generator, system: System, constants: dict) -> tuple[State, np.ndarray]:
        """Random Fourier series about a pose, tracked by springs and dampers, with gravity compensated; the commands act late
        and with the gain of the drives."""
        model, dt, T = system.model, float(system.dt), 1500
        late, gain = float(constants["torque"]["delay"]) / dt, float(constants["torque"]["gain"])
        whole, share = int(late), late - int(late)
        middle = np.array([0.0, -1.2, 1.4, -0.6, 0.8, 0.0]) + rng.uniform(-0.4, 0.4, 6)
        amplitude = rng.uniform(0.05, 0.2, (4, 6)) / np.arange(1, 5)[:, None]
        phase, rate = rng.uniform(0, 2 * np.pi, (4, 6)), 2 * np.pi * np.arange(1, 5)[:, None] * rng.uniform(0.5, 0.8)
        stiffness = jnp.array([400.0, 400.0, 300.0, 60.0, 60.0, 10.0])

        def wanted(t: Array) -> Array:
            return jnp.asarray(middle) + (
                jnp.asarray(amplitude) * jnp.sin(jnp.asarray(rate) * t + jnp.asarray(phase))
            ).sum(0)

        def command(x: State, t: Array) -> Array:
            target, speed = jax.jvp(wanted, (t,), (jnp.ones_like(t),))
            return stiffness * (target - x.q) + 0.05 * stiffness * (speed - x.v) + generalised_gravity(model, x.q)

        def body(carry: tuple[State, Array], t: Array) -> tuple[tuple[State, Array], Array]:
            x, sent = carry
            u = command(x, t)
            sent = jnp.concatenate([u[None], sent[:-1]])
            return (system.step(x, gain * ((1 - share) * sent[whole] + share * sent[whole + 1]))[0], sent), u

        q0, v0 = jax.jvp(wanted, (jnp.zeros(()),), (jnp.ones(()),))
        x0 = State(q0, v0)
        sent = jnp.tile(command(x0, jnp.zeros(())), (whole + 2, 1))
        us = jax.jit(lambda carry: jax.lax.scan(body, carry, dt * jnp.arange(T, dtype=float))[1])((x0, sent))
        return x0, np.asarray(us)

    return _Kind(system, parameters, sensors, perturbed, motion, {"q": 2}, 4)


# --- tosses -----------------------------------------------------------------------------------------------------------


def _tosses() -> _Kind:
    def system() -> System:
        model = load_model("cube")
        model = model.replace(pair_restitution=np.full_like(model.pair_restitution, 0.2))
        return System(model, 4e-3, RigidContact(max_contacts=4))

    def motion(rng: np.random.Generator, system: System, constants: dict) -> tuple[State, np.ndarray]:
        q = np.array(system.model.q_default, float)
        q[2] = rng.uniform(0.4, 0.6)
        q[3:] = rng.normal(size=4)
        q[3:] /= np.linalg.norm(q[3:])
        v = np.concatenate([rng.uniform(-1.5, 1.5, 2), [rng.uniform(-0.5, 0.5)], rng.normal(size=3) * 3.0])
        return State(jnp.asarray(q), jnp.asarray(v)), np.zeros((180, 0))

    sensors = (Pose("pose", noise=(1e-3, 5e-3)), Velocity("velocity", noise=(0.02, 0.1)))
    parameters = ("friction", "restitution", "com:cube")
    return _Kind(system, parameters, sensors, _scattered(0.7), motion, {"pose": 2, "velocity": 2}, 24)


KINDS: dict[str, Callable[[], _Kind]] = {
    "sliding-box": _sliding_box, "arm": _arm, "tosses": _tosses,
}  # fmt: skip


# --- walking robot ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Walking:
    """A trotting Go1: what a moving horizon is made with, one recording, and the truth.

    Attributes:
        system, sensors: with the constant errors and the noise of the sensors, and known torques.
        start, start_deviation: the first state as far as it is known, and its deviations.
        disturbance: deviations of generalised forces.
        recording: channels "q", "dq", "imu" and "torque"; a reading belongs to the end of a step, a torque acts over it.
        walk: true states and biases (`problems.library.state_estimation.Walk`).
    """

    system: System
    sensors: tuple[Sensor, ...]
    start: State
    start_deviation: Float[np.ndarray, " n"]
    disturbance: Float[np.ndarray, " nv"]
    recording: Recording
    walk: state_estimation.Walk

    def rows(self) -> list[dict[str, Float[np.ndarray, " w"]]]:
        """What is read and commanded in each step."""
        channels = self.recording.channels
        return [{name: c.values[k] for name, c in channels.items()} for k in range(len(self.walk.us))]

    def errors(self, x: State, offsets: dict[str, Float[np.ndarray, " k"]], step: int) -> Float[np.ndarray, " n"]:
        """estimate (-) truth after a step, (dq, dv, biases)."""
        truth, nq, nv = self.walk.truth[step + 1], self.system.nq, self.system.nv
        dq = difference(self.system.model, jnp.asarray(truth[:nq]), x.q)
        return np.concatenate([dq, np.asarray(x.v) - truth[nq : nq + nv], offsets["imu"] - truth[-6:]])


def walking_robot(steps: int = 150, dt: float = 4e-3, seed: int = 0) -> Walking:
    """The robot and a recording of `steps` steps.

    The system of the estimator pushes penetrations out slowly: a start with feet centimetres in the floor then leads out of it
    and does not fly.
    """
    walk = state_estimation.walk(steps, dt, seed)
    nj, nq, nv, noise = state_estimation.NJ, walk.system.nq, walk.system.nv, state_estimation.NOISE
    bias = tuple(state_estimation.BIAS[[0, 3]])
    sensors = (
        Encoder("q", noise=noise[0]), Encoder("dq", noise=noise[nj], velocity=True),
        IMU("imu", noise=tuple(noise[[-4, -1]]), static_noise=bias), Input("torque"),
    )  # fmt: skip
    t, y = dt * np.arange(1, steps + 1), walk.measurements[1:]
    channels = {"q": (t, y[:, :nj]), "dq": (t, y[:, nj : 2 * nj]), "imu": (t, y[:, 2 * nj :]), "torque": (t - dt, walk.us)}
    start = State(jnp.asarray(walk.mean[:nq]), jnp.asarray(walk.mean[nq : nq + nv]))
    system = dataclasses.replace(walk.system, contact=RigidContact(max_contacts=8, erp=0.02, limits=False, push_out_speed=None))
    return Walking(
        system, sensors, start, state_estimation.PRIOR[: 2 * nv], state_estimation.DISTURBANCE,
        Recording("walk", channels), walk,
    )  # fmt: skip
