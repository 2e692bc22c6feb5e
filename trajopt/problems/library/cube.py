r"""A cube thrown along the floor: which initial velocity, or which initial impulse, brings it to a given final pose?

A cube of side 0.2 m and 1 kg lies on the floor (friction 0.4) at distance zero; 300 steps of 1 ms. The unknown theta is its
initial velocity v_0 or the impulse p of a 6-D force p / dt in the first step (force in world axes, moment about the centre
in body axes: the generalised force dual to v). The target is the final pose of the rollout of a known theta*, so that the
best residual is zero (Simple, section IV-B, eq. 14):

    r(theta) = q_T(theta) (-) q_T(theta*),  position difference in m and rotation vector in rad, 6 rows.

The Jacobian is the product of the steps' exact derivatives, D_{t+1} = A_t D_t + B_t C_t with A, B of `System.linearize`,
in the same sweep as the states.

Initial velocity: the cube slides with all four corners throughout and theta* = (3, 1, 0; 0, 0, 2) is found from
(2, 0, 0; 0, 0, 0). The Jacobian has rank 3: small vertical velocities and tilts only change the floor's impulse and by it
the friction. Steps of least norm, in units in which these components are small, keep the cube on the floor.

Initial impulse: theta* makes the cube hop, tumble and slide. Every impact that ends in sliding pins a direction of the
motion, so that q_T(theta) is a patchwork of smooth pieces of rank 4 to 6, and Gauss-Newton on the six unknowns stops at
the first seam. The *lifted* formulation removes the seams while the cube is far off and brings them back at the end. Start
and target are raised above the floor by the same height l, an unknown of the problem beside p:

    l(s) = l_0 (exp(s) - epsilon)                      x = (p, s), s = 0 at the start
    rows   q_T(p, l) (-) (q* raised by l),   w_l l,   w_p l / (|l| + l_1) moment(p) / (0.1 N m s)

Far above the floor the throw is ballistic and Gauss-Newton solves it in a few steps; the last rows, which vanish with l,
make it the gentlest spin that fits. Each further step divides l by e, since l is exponential in s, down to epsilon l_0,
from where it goes to zero like Newton's method, and the impacts enter one after the other. A zero of all rows is a zero
of r on the floor. The throw found is *a* solution, in general not theta*, which is not determined by its final pose.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from trajopt.dynamics import linear_algebra
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.configuration import difference
from trajopt.dynamics.rigid_body.lie import right_jacobian
from trajopt.dynamics.system import RigidContact, State, System
from trajopt.errors import OptionError
from trajopt.models import load_model
from trajopt.problems import programs
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.library.replay import contact_quantities, recorded, replay
from trajopt.problems.parts import Certificate, Display
from trajopt.problems.ranges import Choice, Count, Real, ranged

VELOCITY_TRUTH = (3.0, 1.0, 0.0, 0.0, 0.0, 2.0)
VELOCITY_GUESS = (2.0, 0.0, 0.0, 0.0, 0.0, 0.0)
IMPULSE_TRUTH = (3.0, 1.0, 1.0, 0.03, -0.1, 0.02)
GUESSES = 10
FORMULATIONS = ("lifted", "direct")
# Below g dt = 0.01 m/s at the corners the cube stays on the floor: the size of vertical velocity and of tilting.
_VELOCITY_SCALE = (1.0, 1.0, 0.01, 0.1, 0.1, 1.0)
_IMPULSE_SCALE = (1.0, 1.0, 1.0, 0.1, 0.1, 0.1)

# Of the lifted formulation: l_0 and l_1 in m, w_l in 1/m; the others are pure numbers.
_LIFT_START, _LIFT_EPSILON, _LIFT_WEIGHT = 10.0, 1e-7, 100.0
_EFFORT_LIFT, _EFFORT_WEIGHT = 0.3, 100.0


@programs.subject("system")
@dataclasses.dataclass(frozen=True, eq=False)
class Throw:
    """The cube, where it starts and how long it moves: final pose and its derivative as functions of the throw."""

    system: System
    steps: int

    @property
    def rest(self) -> Float[Array, "7"]:
        """The cube lying on the floor at the origin, unturned."""
        return self.system.model.q_default

    def controls(self, first: Float[Array, "6"]) -> Float[Array, "T 6"]:
        """Forces on the cube, zero after the first step."""
        return jnp.zeros((self.steps, 6), first.dtype).at[0].set(first)

    def final_pose(self, q: Float[Array, "7"], v: Float[Array, "6"], force: Float[Array, "6"]) -> Float[Array, "7"]:
        """q_T from the state (q, v) under `force` in the first step."""
        return self.system.rollout(State(q, v), self.controls(force))[0].q[-1]

    def sensitivity(
        self,
        q: Float[Array, "7"],
        v: Float[Array, "6"],
        force: Float[Array, "6"],
        by_state: Float[Array, "12 n"],
        by_force: Float[Array, "6 n"],
    ) -> tuple[Float[Array, "7"], Float[Array, "6 n"]]:
        """q_T and its tangent derivative in n variables, given those of the initial state and of the force."""

        def step(carry, u):
            x, D, C = carry
            linear = self.system.linearize(x, u)
            return (linear.x_next, linear.A @ D + linear.B @ C, jnp.zeros_like(C)), None

        (x, D, _), _ = jax.lax.scan(step, (State(q, v), by_state, by_force), self.controls(force))
        return x.q, D[:6]

    def error(self, q: Float[Array, "7"], target: Float[Array, "7"]) -> Float[Array, "6"]:
        """q (-) target: position difference in world axes, m, and rotation vector, rad."""
        return difference(self.system.model, target, q)


def error_slope(error: Float[Array, "6"]) -> Float[Array, "6 6"]:
    """Derivative of `Throw.error` in tangent coordinates of q, at the error's value."""
    return jnp.eye(6, dtype=error.dtype).at[3:, 3:].set(linear_algebra.inverse(right_jacobian(error[3:])))


def thrown_cube(dt: float = 1e-3, steps: int = 300) -> Throw:
    """The bundled cube with a force on each of its six DoF as controls. Raises `OptionError` for a count below one."""
    if steps < 1:
        raise OptionError(f"steps is {steps}; it must be at least 1")
    return Throw(System(with_forces(load_model("cube")), dt, contact=RigidContact(max_contacts=4)), steps)


def with_forces(model: Model) -> Model:
    """The cube with its generalised force as control, without limits."""
    names = tuple(f"{kind}_{axis}" for kind in ("force", "moment") for axis in "xyz")
    return model.replace(
        topology=dataclasses.replace(model.topology, actuators=names),
        actuation=np.eye(6),
        control_lower=np.full(6, -np.inf),
        control_upper=np.full(6, np.inf),
    )


def impulse_guesses(count: int = GUESSES, seed: int = 0) -> Float[np.ndarray, "count 6"]:
    """Initial guesses of the impulse: the truth times a factor in [0.3, 2], turned by up to 30 degrees about a random axis.

    Force and moment are turned together. Factor, axis and angle are uniform, drawn in this order for each guess.
    """
    truth, random = np.array(IMPULSE_TRUTH), np.random.default_rng(seed)
    guesses = []
    for _ in range(count):
        factor = random.uniform(0.3, 2.0)
        axis = random.normal(size=3)
        axis /= np.linalg.norm(axis)
        angle = np.deg2rad(30.0) * random.uniform()
        cross = np.cross(np.eye(3), -axis)
        turn = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
        guesses.append(factor * np.concatenate([turn @ truth[:3], turn @ truth[3:]]))
    return np.array(guesses)


_DT, _STEPS = Real(1e-5, 1e-2, "s"), Count(1, 10_000)


@ranged(dt=_DT, steps=_STEPS)
def cube_initial_velocity(dt: float = 1e-3, steps: int = 300) -> LeastSquaresProblem:
    """Initial velocity that slides the cube to the final pose of (3, 1, 0; 0, 0, 2), from (2, 0, 0; 0, 0, 0)."""
    throw, none = thrown_cube(dt, steps), jnp.zeros(6)
    target = _final_state(throw, jnp.asarray(VELOCITY_TRUTH), none).q
    return _problem(
        "cube-initial-velocity", throw, target, _missed_by_velocity, _missed_by_velocity_slope, VELOCITY_GUESS, _VELOCITY_SCALE,
        1e-10, lambda v: (v, none),
    )  # fmt: skip


def _missed_by_velocity(throw: Throw, target: Array, v: Array) -> Array:
    return throw.error(throw.final_pose(throw.rest, v, jnp.zeros(6, v.dtype)), target)


def _missed_by_velocity_slope(throw: Throw, target: Array, v: Array) -> tuple[Array, Array]:
    by_state = jnp.concatenate([jnp.zeros((6, 6), v.dtype), jnp.eye(6, dtype=v.dtype)])
    q, D = throw.sensitivity(throw.rest, v, jnp.zeros(6, v.dtype), by_state, jnp.zeros((6, 6), v.dtype))
    error = throw.error(q, target)
    return error, error_slope(error) @ D


@ranged(guess=Count(0, GUESSES - 1), formulation=Choice(FORMULATIONS), dt=_DT, steps=_STEPS)
def cube_initial_impulse(
    guess: int = 0, formulation: str = "lifted", dt: float = 1e-3, steps: int = 300
) -> LeastSquaresProblem:
    """Impulse in the first step that throws the cube to the final pose of (3, 1, 1; 0.03, -0.1, 0.02).

    guess: 0..9, see `impulse_guesses`. formulation: "lifted" (seven unknowns, see the module's docstring) or "direct", the
    six unknowns of the paper, on which Gauss-Newton stalls.
    Raises `OptionError` for a guess or formulation that does not exist.
    """
    throw, still = thrown_cube(dt, steps), jnp.zeros(6)
    step = throw.system.dt
    target = _final_state(throw, still, jnp.asarray(IMPULSE_TRUTH) / step).q
    name, start = "cube-initial-impulse", impulse_guesses()[guess]
    as_throw = lambda x: (still, x[:6] / step)  # noqa: E731
    if formulation == "direct":
        functions = _missed_by_impulse, _missed_by_impulse_slope
        return _problem(name, throw, target, *functions, start, _IMPULSE_SCALE, 1e-8, as_throw)
    start = np.concatenate([start, [0.0]])
    return _problem(
        name, throw, target, _missed_lifted, _missed_lifted_slope, start, (*_IMPULSE_SCALE, 1.0), 1e-8, as_throw
    )


_STILL, _RAISED = np.zeros(6), np.eye(7)[2]


def _missed_by_impulse(throw: Throw, target: Array, p: Array) -> Array:
    return throw.error(throw.final_pose(throw.rest, jnp.asarray(_STILL, p.dtype), p / throw.system.dt), target)


def _missed_by_impulse_slope(throw: Throw, target: Array, p: Array) -> tuple[Array, Array]:
    step, still = throw.system.dt, jnp.asarray(_STILL, p.dtype)
    q, D = throw.sensitivity(throw.rest, still, p / step, jnp.zeros((12, 6)), jnp.eye(6) / step)
    error = throw.error(q, target)
    return error, error_slope(error) @ D


def _missed_lifted(throw: Throw, target: Array, x: Array) -> Array:
    up = lift(x[6]) * jnp.asarray(_RAISED, x.dtype)
    error = throw.error(
        throw.final_pose(throw.rest + up, jnp.asarray(_STILL, x.dtype), x[:6] / throw.system.dt), target + up
    )
    return jnp.concatenate([error, _lift_rows(x)])


def _missed_lifted_slope(throw: Throw, target: Array, x: Array) -> tuple[Array, Array]:
    step, still, raised = throw.system.dt, jnp.asarray(_STILL, x.dtype), jnp.asarray(_RAISED, x.dtype)
    height, slope = jax.jvp(lift, (x[6],), (jnp.ones_like(x[6]),))
    by_state = jnp.zeros((12, 7)).at[2, 6].set(slope)
    by_force = jnp.concatenate([jnp.eye(6), jnp.zeros((6, 1))], 1) / step
    q, D = throw.sensitivity(throw.rest + height * raised, still, x[:6] / step, by_state, by_force)
    error = throw.error(q, target + height * raised)
    D = D.at[2, 6].add(-slope)  # the target rises with the start
    rows, rows_slope = jax.jacfwd(lambda x: (_lift_rows(x),) * 2, has_aux=True)(x)[::-1]
    return jnp.concatenate([error, rows]), jnp.concatenate([error_slope(error) @ D, rows_slope])


def lift(s: Float[Array, ""]) -> Float[Array, ""]:
    """Height l(s) of start and target above the floor, m."""
    return _LIFT_START * (jnp.exp(s) - _LIFT_EPSILON)


def _lift_rows(x: Float[Array, "7"]) -> Float[Array, "4"]:
    """Rows that drive the lift to zero and, while it lasts, the moment."""
    height = lift(x[6])
    share = height / (jnp.abs(height) + _EFFORT_LIFT)
    return jnp.concatenate([(_LIFT_WEIGHT * height)[None], _EFFORT_WEIGHT * share * x[3:6] / _IMPULSE_SCALE[3]])


def _final_state(throw: Throw, v, force) -> State:
    states, _ = replay(throw.system, State(throw.rest, v), throw.controls(force))
    return jax.tree.map(lambda a: a[-1], states)


def _problem(name, throw: Throw, target, residual, jacobian, x0, scale, tolerance, as_throw) -> LeastSquaresProblem:
    """The least-squares problem with what is reported about it; `as_throw` gives (v_0, force) on the floor at x."""
    T, dt = throw.steps, float(throw.system.dt)

    def rollout(x):
        v, force = as_throw(x)
        us = throw.controls(force)
        return *replay(throw.system, State(throw.rest, v), us), us

    def certificate(x) -> Mapping[str, Any]:
        states, infos, _ = rollout(x)
        error = np.asarray(programs.run(Throw.error, throw, states.q[-1], target, effort=Effort.QUICK)[0])
        return {"final_pose_error": float(np.abs(error).max())} | contact_quantities(infos)

    def trajectory(x) -> dict[str, np.ndarray]:
        return recorded(throw.system, *rollout(x))

    def report(x) -> str:
        states, infos, us = rollout(x)
        modes = np.asarray(infos.contacts.mode)
        changes = int((modes[1:] != modes[:-1]).any(1).sum())
        v, force = (np.asarray(value) for value in as_throw(x))
        return "\n".join(
            [
                f"initial velocity  {np.array2string(v, precision=6)}  m/s, rad/s",
                f"initial impulse   {np.array2string(force * dt, precision=6)}  N s, N m s",
                f"final pose        {np.array2string(np.asarray(states.q[-1]), precision=6)}",
                f"contact modes change in {changes} of {T - 1} steps; a corner touches in {int((modes > 0).any(1).sum())}",
            ]
        )

    return LeastSquaresProblem(
        name, Partial(residual, throw, target), jnp.asarray(x0, float), jacobian=Partial(jacobian, throw, target),
        scale=np.broadcast_to(np.array(scale, float), (len(x0),)),
        tolerance=tolerance,
        meta={"contact": "RigidContact"},
        certificate=Certificate(
            certificate, {"final_pose_error": tolerance, "contact_residual": 1e-8, "dropped_contacts": 0.0},
            goals={"final_pose_error": "m, rad"},
        ),
        display=Display(motion=trajectory, report=report, model=throw.system.model),
    )  # fmt: skip
