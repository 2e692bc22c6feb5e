r"""Physical parameters from a noisy recording of a motion with contact: friction, inertia, link lengths.

A `Recording` is a known experiment: a system whose motion depends on unknowns x, among them physical parameters and what is not
known of the initial state, under known controls. Configurations are measured at `samples` times, evenly spread up to the end,
with independent Gaussian errors of known deviations sigma in tangent coordinates (a motion-capture system):

    y_k = q(t_k; x*) (+) e_k,   e_k ~ N(0, diag(sigma^2))        r_k(x) = (q(t_k; x) (-) y_k) / sigma

so that the residual has unit variance, the least-squares estimate is that of maximum likelihood and (J^T J)^-1 its covariance.
J comes by forward mode through the rollout, every contact step by its implicit derivative. Truth, noise and its seed are fixed:
the recordings are simulated with the model that explains them.

- friction-identification: a cube sliding and turning on the floor; unknown friction and initial velocity in the plane.
- inertia-identification: a box handled by a known wrench, dragged, tilted, lifted and turned; unknown mass, centre of mass and
  inertia, in the parametrisation of `problems.inertia`.
- link-length-identification: a hopper standing on its foot and moving under known torques; unknown lengths of thigh and shank.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import difference, integrate
from trajopt.dynamics.system import RigidContact, State, System
from trajopt.errors import OptionError
from trajopt.models import load_model
from trajopt.problems import programs
from trajopt.problems.inertia import LABELS, from_log_cholesky, to_log_cholesky
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.library.cube import with_forces
from trajopt.problems.library.replay import contact_quantities, recorded
from trajopt.problems.parts import Certificate, Defaults, Display, Observations
from trajopt.problems.ranges import Count, ranged

TOLERANCE = 1e-8  # of the estimate: the rounding of hundreds of contact solves is above Gauss-Newton's default


@programs.subject("system", "us", "truth", "guess", "deviations", "accuracy", "scale", "lower")
@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """An experiment whose unknowns are to be found.

    system; us: known controls (T, nu); enter: (system, x) -> (the system under x, its initial state); truth, guess: of x;
    labels: its entries; deviations: of the measurement errors in tangent coordinates of q, (nv,); accuracy: to which x is asked
    for, (n,) or a number; scale: typical sizes of x; plane: two of these coordinates that are a place, for the picture of the
    data.
    """

    name: str
    system: System
    us: Float[Array, "T nu"]
    enter: Callable[[System, Array], tuple[System, State]]
    truth: Float[np.ndarray, " n"]
    guess: Float[np.ndarray, " n"]
    labels: tuple[str, ...]
    deviations: Float[np.ndarray, " nv"]
    accuracy: Any
    scale: Any = 1.0
    lower: Any = None
    plane: tuple[int, int] = (0, 1)

    def motion(self, x: Float[Array, " n"]) -> tuple[State, Any]:
        """(states at every step, what happened) for the unknowns x."""
        system, start = self.enter(self.system, x)
        return system.rollout(start, self.us)

    def steps(self, samples: int) -> Int[np.ndarray, " samples"]:
        """Steps at which configurations are measured; those of n samples are among those of 2 n."""
        T = self.us.shape[0]
        if samples < 1 or T % samples:
            raise OptionError(f"problem '{self.name}': setting samples is {samples}; it must divide the {T} steps")
        return np.arange(1, samples + 1) * (T // samples)

    def configurations(self, x: Float[Array, " n"], samples: int) -> Float[Array, "k nq"]:
        """q at the times of the measurements."""
        return self.motion(x)[0].q[self.steps(samples)]

    def measured(self, samples: int, seed: int) -> Float[Array, "k nq"]:
        """The recording: the true configurations with errors drawn from `seed`."""
        q = self.configurations(jnp.asarray(self.truth), samples)
        noise = np.random.default_rng(seed).normal(size=(samples, self.system.nv)) * self.deviations
        return jax.vmap(lambda q, e: integrate(self.system.model, q, e))(q, jnp.asarray(noise, q.dtype))

    def residual(self, x: Float[Array, " n"], measured: Float[Array, "k nq"]) -> Float[Array, " m"]:
        """Measurement errors under x, in deviations."""
        q = self.configurations(x, measured.shape[0])
        error = jax.vmap(lambda y, q: difference(self.system.model, y, q))(measured, q)
        return (error / jnp.asarray(self.deviations, error.dtype)).reshape(-1)

    def misfit(self, measured: Float[Array, "k nq"], x: Float[Array, " n"]) -> Float[Array, " m"]:
        """`residual` of a recording that is given."""
        return self.residual(x, measured)

    def problem(self, samples: int, seed: int, report: Callable[[Array], str] | None = None) -> LeastSquaresProblem:
        """The estimation problem of one recording."""
        measured = self.measured(samples, seed)
        dt = float(self.system.dt)

        def certificate(x) -> Mapping[str, Any]:
            error = np.abs((np.asarray(x) - self.truth) / self.accuracy).max()
            return contact_quantities(self.motion(x)[1]) | {"estimate_error": float(error)}

        def trajectory(x) -> dict[str, np.ndarray]:
            return recorded(self.system, *self.motion(x), self.us)

        place = jax.vmap(lambda q: difference(self.system.model, self.system.model.q_default, q))
        observations = Observations(
            dt * self.steps(samples), np.asarray(place(measured)), self.deviations, *channels(self.system.model),
            predicted=lambda x: np.asarray(predicted(jnp.asarray(x))), plane=self.plane,
        )  # fmt: skip
        predicted = jax.jit(lambda x: place(self.configurations(x, samples)))

        return LeastSquaresProblem(
            self.name, Partial(Recording.misfit, self, measured), jnp.asarray(self.guess), scale=self.scale, lower=self.lower,
            labels=self.labels, truth=self.truth,
            meta={"contact": type(self.system.contact).__name__},
            certificate=Certificate(
                certificate, {"contact_residual": 1e-6, "dropped_contacts": 0.0, "estimate_error": 1.0},
                goals={"estimate_error": ""},
            ),
            display=Display(motion=trajectory, report=report, observations=observations, model=self.system.model),
            defaults=Defaults(options={"tolerance": TOLERANCE}),
        )  # fmt: skip


def channels(model: Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and units of the measured coordinates, (nv,): those of the tangent space at the model's default configuration."""
    names, units = list[str](), list[str]()
    for joint in model.topology.joints:
        if joint.kind == "free":
            names += ["x", "y", "z", "turn about x", "turn about y", "turn about z"]
            units += ["m"] * 3 + ["rad"] * 3
        else:
            names.append(joint.name.removesuffix("_joint"))
            units.append("m" if joint.kind == "prismatic" else "rad")
    return tuple(names), tuple(units)


def sliding_cube(steps: int = 200, dt: float = 2e-3) -> Recording:
    """The bundled cube, pushed along the floor; x = (friction, v_x, v_y, angular velocity about z)."""
    system = System(load_model("cube"), dt, RigidContact(max_contacts=4))
    return Recording(
        "friction-identification", system, jnp.zeros((steps, 0)), _pushed, np.array([0.35, 2.0, 0.7, 3.0]),
        np.array([0.6, 1.5, 0.0, 2.0]), ("friction", "v_x, m/s", "v_y, m/s", "w_z, rad/s"),
        np.array([2e-3] * 3 + [5e-3] * 3), np.array([0.02, 0.05, 0.05, 0.05]), lower=np.array([0.0, -np.inf, -np.inf, -np.inf]),
    )  # fmt: skip


def _pushed(system: System, x: Float[Array, "4"]) -> tuple[System, State]:
    changed = system.model.replace(pair_friction=jnp.full_like(system.model.pair_friction, 1.0) * x[0])
    zero = jnp.zeros((), x.dtype)
    v = jnp.stack([x[1], x[2], zero, zero, zero, x[3]])
    return dataclasses.replace(system, model=changed), State(changed.q_default, v)


@ranged(samples=Count(1, 200), seed=Count())
def friction_identification(samples: int = 100, seed: int = 1) -> LeastSquaresProblem:
    """Friction between a sliding cube and the floor from `samples` noisy poses.

    Raises `OptionError` unless `samples` divides 200.
    """
    return sliding_cube().problem(samples, seed)


def handled_box(steps: int = 100, dt: float = 2e-3) -> Recording:
    """The bundled cube with another mass distribution under a known wrench; x = theta of `problems.inertia`.

    The wrench (force on the body's origin in world axes, moment in body axes) is what a spring and damper towards a moving pose
    gave on the true box: dragged along the floor for 0.08 s, tilted off it and turned in the air until 0.2 s.
    """
    system = System(with_forces(load_model("cube")), dt, RigidContact(max_contacts=4))
    truth = to_log_cholesky(*BOX)
    true_system, start = _with_box(system, jnp.asarray(truth))
    us = _handling(true_system, start, steps, dt)
    guess = to_log_cholesky(1.1, np.zeros(3), np.eye(3) * 1.1 * 0.04 / 6)
    return Recording(
        "inertia-identification", system, us, _with_box, truth, guess, LABELS, np.array([3e-4] * 3 + [1e-3] * 3), 0.2, scale=0.1
    )


def _with_box(system: System, x: Float[Array, "10"]) -> tuple[System, State]:
    mass, com, inertia = from_log_cholesky(x)
    model, body = system.model, system.model.topology.n_nodes - 1
    changed = model.replace(
        mass=jnp.asarray(model.mass).at[body].set(mass),
        com=jnp.asarray(model.com).at[body].set(com),
        inertia=jnp.asarray(model.inertia).at[body].set(inertia),
    )
    return dataclasses.replace(system, model=changed), State(model.q_default, jnp.zeros(6, x.dtype))


BOX = (1.3, np.array([0.02, -0.015, 0.01]), np.array([[9e-3, 5e-4, -3e-4], [5e-4, 7e-3, 4e-4], [-3e-4, 4e-4, 1.1e-2]]))


def _handling(system: System, start: State, steps: int, dt: float) -> Float[Array, "T 6"]:
    """Wrenches of a spring and damper that moves the box as `handled_box` says."""
    times = jnp.asarray(dt * np.arange(steps))
    rest = start.q

    def wrench(x: State, t):
        lifted = jnp.clip((t - 0.08) / 0.04, 0.0, 1.0)
        place = jnp.stack([0.6 * t, 0.02 * jnp.sin(30.0 * t), 0.05 * lifted])
        turn = lifted * jnp.stack([0.25 * jnp.sin(40.0 * t), 0.25 * jnp.cos(35.0 * t), 0.3 * jnp.sin(30.0 * t)])
        wanted = integrate(system.model, rest, jnp.concatenate([place, turn]))
        error = difference(system.model, x.q, wanted)
        stiffness, damping = jnp.array([800.0] * 3 + [12.0] * 3), jnp.array([40.0] * 3 + [0.3] * 3)
        held = lifted[None] * BOX[0] * 9.81
        return stiffness * error - damping * x.v + jnp.concatenate([jnp.zeros(2), held, jnp.zeros(3)])

    def body(x, t):
        u = wrench(x, t)
        return system.step(x, u)[0], u

    return jax.jit(lambda x: jax.lax.scan(body, x, times)[1])(start)


@ranged(samples=Count(1, 100), seed=Count())
def inertia_identification(samples: int = 100, seed: int = 0) -> LeastSquaresProblem:
    """Mass, centre of mass and inertia of a handled box from `samples` noisy poses and the wrench on it.

    Raises `OptionError` unless `samples` divides 100.
    """

    def report(x) -> str:
        mass, com, inertia = (np.asarray(value) for value in from_log_cholesky(x))
        show = lambda value: np.array2string(np.asarray(value), precision=5)  # noqa: E731
        return "\n".join(
            [
                f"mass            {mass:.5f} kg  (truth {BOX[0]})",
                f"centre of mass  {show(com)} m  (truth {show(BOX[1])})",
                f"moments         {show(np.linalg.eigvalsh(inertia))} kg m^2  (truth {show(np.linalg.eigvalsh(BOX[2]))})",
            ]
        )

    return handled_box().problem(samples, seed, report)


def standing_hopper(steps: int = 200, dt: float = 2e-3) -> Recording:
    """The bundled hopper on its foot, moving its joints under known torques; x = (length of thigh, of shank)."""
    loaded = load_model("hopper")
    system = System(loaded, dt, RigidContact(max_contacts=4, max_limits=3))
    t = dt * np.arange(steps)[:, None]
    us = jnp.asarray(
        np.array([0.03, 0.06, 0.0]) * np.sin(np.array([15.0, 12.0, 0.0]) * t) + np.array([0.0, 0.06, -0.03])
    )
    return Recording(
        "link-length-identification", system, us, _standing, np.array([0.47, 0.485]), np.array([0.45, 0.5]),
        ("thigh, m", "shank, m"), np.array([2e-3, 2e-3, 3e-3, 2e-3, 2e-3, 2e-3]), 5e-3, scale=0.1,
    )  # fmt: skip


SOLE = 0.06  # radius of the hopper's foot, m
PITCH, HIP, BEND = -0.6, -0.35, -0.7  # rad, of the hopper's stance
THIGH, SHANK = PITCH - HIP, PITCH - HIP - BEND  # angles to the vertical; the foot lies flat
STANCE = (0.0, 0.2 * np.cos(PITCH) + SOLE, PITCH, HIP, BEND, SHANK)


def _standing(system: System, x: Float[Array, "2"]) -> tuple[System, State]:
    names = system.model.topology.node_names
    knee, ankle = names.index("leg"), names.index("foot")
    placement = jnp.asarray(system.model.placement_position).at[knee, 2].set(-x[0]).at[ankle, 2].set(-x[1])
    q = jnp.asarray(STANCE, x.dtype).at[1].add(x[0] * np.cos(THIGH) + x[1] * np.cos(SHANK))
    changed = system.model.replace(placement_position=placement)
    return dataclasses.replace(system, model=changed), State(q, jnp.zeros(6, x.dtype))


@ranged(samples=Count(1, 200), seed=Count())
def link_length_identification(samples: int = 100, seed: int = 5) -> LeastSquaresProblem:
    """Lengths of a standing hopper's thigh and shank from `samples` noisy configurations.

    Raises `OptionError` unless `samples` divides 200.
    """
    return standing_hopper().problem(samples, seed)
