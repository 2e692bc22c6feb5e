r"""falling-mass (Smoothed, Fig. 3): an inelastic mass is dropped and may hit the ground; how do its final height and velocity
depend on where it was dropped?

1 kg, released at rest at the height h, 50 steps of 10 ms (Moreau's scheme, as in the source). Dropped from below
h* = g T^2 / 2 = 1.226 m it ends on the ground. Height is that of the lowest point: zero where the mass touches.

| contact | final height over h | its derivative |
|---|---|---|
| hard, `gap="detect"` | sawtooth: the mass stays where it was when it was found inside the ground | 1 on every tooth |
| hard, `gap="speculative"` | 0, then h - h* | 0, then 1: blind from below h* |
| hard, mean over perturbed h | smooth | the mean of derivatives stays 1: it does not see the jumps between the teeth |
| smoothed | smooth | smooth, and that of the curve |

The source gives no numbers; mass, time, step, sharpness and perturbation are ours. The sharpness of 20 / m blurs the floor over
the 5 cm that the mass moves in one step when it arrives: much sharper smoothing would leave the sawtooth.

The problem to solve: which h makes the mass end at a height above the ground, starting from an h too low to tell.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from trajopt.dynamics.contact.laws import ContactLaw, RigidContact, SmoothedContact
from trajopt.dynamics.system import State, System
from trajopt.errors import OptionError
from trajopt.models.registry import load_model_from_string
from trajopt.names import closest
from trajopt.problems import programs
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.library.replay import recorded
from trajopt.problems.parts import Certificate, Display
from trajopt.problems.ranges import Choice, Count, Real, ranged

KAPPA = 20.0  # 1/m
DEVIATION = 0.05  # m, of the perturbed heights
_BATCH = 256
CONTACTS = ("smoothed", "detect", "speculative")
_MODEL = """<mujoco model="falling-mass"><worldbody>
  <geom name="floor" type="plane" size="2 2 1" contype="0" conaffinity="1"/>
  <body name="mass" pos="0 0 0.05"><joint name="height" type="slide" axis="0 0 1"/>
    <geom name="mass" type="sphere" size="0.05" mass="1" contype="1" conaffinity="0"/></body>
</worldbody></mujoco>"""


@dataclasses.dataclass(frozen=True)
class Curves:
    """Final height (m) and velocity (m/s) over the heights of release, and their derivatives by these."""

    height: Float[np.ndarray, " k"]
    velocity: Float[np.ndarray, " k"]
    height_slope: Float[np.ndarray, " k"]
    velocity_slope: Float[np.ndarray, " k"]


def falling_system(contact: str = "smoothed", kappa: float = KAPPA, dt: float = 1e-2) -> System:
    """The mass over the floor under `contact`, one of `CONTACTS`. Raises `OptionError`."""
    if contact not in CONTACTS:
        raise OptionError(f"contact is '{contact}'{closest(str(contact), CONTACTS)}")
    # Neither pushes the mass out of the floor: what happens after an impact is not the subject.
    law: ContactLaw = SmoothedContact(erp=0.0, max_contacts=1)
    if contact != "smoothed":
        law = RigidContact(gap=contact, erp=0.0, max_contacts=1)
    return System(load_model_from_string(_MODEL), dt, law, integrator="moreau", kappa=kappa)


def final_state(system: System, height: Float[Array, ""], steps: int) -> Float[Array, "2"]:
    """(height, velocity) after `steps` steps from rest at `height`."""

    def step(x: State, _):
        return system.step(x, jnp.zeros(1, height.dtype))[0], None

    start = State(height[None], jnp.zeros(1, height.dtype))
    x, _ = jax.lax.scan(step, start, None, length=steps)
    return jnp.concatenate([x.q, x.v])


@programs.subject("system", "target")
@dataclasses.dataclass(frozen=True)
class Drop:
    """The mass is dropped for so many steps, and is to end at the height `target`, m."""

    system: System
    target: float
    steps: int

    def miss(self, x: Float[Array, "1"]) -> Float[Array, "1"]:
        """By how much it ends above the target, released at x, m."""
        return final_state(self.system, x[0], self.steps)[:1] - self.target


@functools.partial(jax.jit, static_argnums=2)
def _batch(system: System, heights, steps: int):
    one = jnp.ones((), heights.dtype)
    return jax.vmap(lambda h: jax.jvp(lambda h: final_state(system, h, steps), (h,), (one,)))(heights)


def _finals(system: System, heights: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(k, 2) final states and their derivatives, in batches of one size, so that one program does for all."""
    heights = np.asarray(heights, float)
    padded = np.pad(heights, (0, -len(heights) % _BATCH), mode="edge").reshape(-1, _BATCH)
    parts = [[np.asarray(a) for a in _batch(system, jnp.asarray(part), steps)] for part in padded]
    value, slope = (np.concatenate(part)[: len(heights)] for part in zip(*parts, strict=True))
    return value, slope


def curves(system: System, heights: Float[np.ndarray, " k"], steps: int = 50) -> Curves:
    """What the mass released at rest from `heights` does in `steps` steps, and its derivatives in the system's mode."""
    value, slope = _finals(system, heights, steps)
    return Curves(value[:, 0], value[:, 1], slope[:, 0], slope[:, 1])


def perturbed_curves(
    system: System, heights: Float[np.ndarray, " k"], steps: int = 50, deviation: float = DEVIATION, samples: int = 200,
    seed: int = 0,
) -> tuple[Curves, Curves]:  # fmt: skip
    """Means over normally distributed heights of release: with the mean of derivatives, and with the derivative of the mean.

    The latter is the zeroth-order estimate E[f(h + w) w] / deviation^2 from pairs of w of opposite sign.
    """
    w = deviation * np.random.default_rng(seed).normal(size=samples)
    w = np.concatenate([w, -w])
    heights = np.asarray(heights, float)
    value, slope = _finals(system, (heights[:, None] + w).ravel(), steps)
    value, slope = value.reshape(len(heights), -1, 2), slope.reshape(len(heights), -1, 2)
    mean = value.mean(1).T
    fit = np.einsum("ksi,s->ik", value, w) / (w @ w)
    return Curves(*mean, *slope.mean(1).T), Curves(*mean, *fit)


@ranged(
    contact=Choice(CONTACTS), target=Real(0.0, 100.0, "m"), start=Real(0.0, 100.0, "m"), kappa=Real(1e-3, 1e6, "1/m"),
    dt=Real(1e-5, 0.1, "s"), steps=Count(1, 10_000),
)  # fmt: skip
def falling_mass(
    contact: str = "smoothed", target: float = 0.5, start: float = 1.1, kappa: float = KAPPA, dt: float = 1e-2, steps: int = 50
) -> LeastSquaresProblem:  # fmt: skip
    """Height of release at which the mass ends `target` above the ground, m; from `start` it falls to the ground.

    contact: "smoothed" finds the way, "speculative" has no gradient there, "detect" a misleading one. Raises `OptionError`.
    """
    system = falling_system(contact, kappa, dt)
    judge = falling_system("speculative", kappa, dt)

    def certificate(x) -> Mapping[str, Any]:
        y = curves(judge, np.asarray(x), steps)
        return {"height_error": float(abs(y.height[0] - target))}

    def trajectory(x) -> dict[str, np.ndarray]:
        us = jnp.zeros((steps, 1))
        return recorded(system, *system.rollout(State(jnp.asarray(x), jnp.zeros(1)), us), us)

    def report(x) -> str:
        y = curves(system, np.asarray(x), steps)
        return (
            f"released at {float(x[0]):.6f} m; ends at {y.height[0]:.6f} m with {y.velocity[0]:.6f} m/s; "
            f"d(final height)/d(release) = {y.height_slope[0]:.4f}"
        )

    return LeastSquaresProblem(
        "falling-mass", Partial(Drop.miss, Drop(system, target, steps)), jnp.array([float(start)]), tolerance=1e-9,
        meta={"contact": type(system.contact).__name__},
        certificate=Certificate(certificate, {"height_error": 1e-3}, goals={"height_error": "m"}),
        display=Display(motion=trajectory, report=report, model=system.model),
    )  # fmt: skip
