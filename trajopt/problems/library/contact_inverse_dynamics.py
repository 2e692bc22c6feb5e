r"""Contact inverse dynamics: the joint torques that keep a robot still in a static pose, through its contacts.

Over one step dt from rest at the pose q, with the free base unactuated,

    minimise 1/2 |r(u)|^2,   r(u) = v+(q, 0, u) / dt,   u within the torque limits                    (Simple, eq. 15)

where v+ is the velocity after the step, itself the solution of the contact problem: u = 0 lets the robot fall, and the
solver has to find torques under which every support sticks. r is an acceleration, m/s^2 and rad/s^2. The derivative is
implicit: rows of B of `System.linearize`, from the same call as v+.

The torques are not unique where legs can push against each other through the floor. Steps of least norm, in the metric of
the torque limits, pick a solution of small torques. The poses were found by `static_pose.solve_static_pose` and are stored
to the last digit; `static_pose.certify` proves that static equilibrium is possible in them.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model, ShapeSpec, ShapeType
from trajopt.dynamics.precision import Threshold
from trajopt.dynamics.state import StepInfo
from trajopt.dynamics.system import RigidContact, State, System
from trajopt.errors import OptionError
from trajopt.models import load_model
from trajopt.models.inertias import joined
from trajopt.problems import programs
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.library.static_pose import PoseCertificate, certify
from trajopt.problems.parts import Certificate, Display
from trajopt.problems.ranges import Real, ranged

TOLERANCE = Threshold(1e-6, 1e-5)  # of |v+| / dt
GO1_FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
GO1_HANDS = GO1_FEET[:2]
H1_PUSHUP = ("left_hand", "right_hand", "left_toe_right", "right_toe_left")


# Stored results of `solve_static_pose`; their references are in the tests, which solve and certify them again.
GO1_STAND = (
    0.0, 0.0, 0.287805846483303, 1.0, 0.0, 0.0, 0.0, 0.0, 0.9, -1.8, 0.0, 0.9, -1.8, 0.0, 0.9, -1.8, 0.0, 0.9,
    -1.8,
)  # fmt: skip
GO1_HANDSTAND = (
    0.0, 0.0, 0.5489924486063861, 0.799009788857369, 1.9410026153601462e-08, 0.6013180167848808,
    1.4893839932021554e-08, -1.784235420632811e-05, -0.5000464327009548, -1.200056764974907,
    1.80329125997595e-05, -0.5000473370012366, -1.2000572774475824, 2.043008225994556e-06, 1.1999987185179628,
    -1.499999512245395, -2.053931503679937e-06, 1.1999987185179628, -1.499999512245395,
)  # fmt: skip
H1_PUSHUP_POSE = (
    0.0, 0.0, 0.49667128201172844, 0.8099003955357401, -3.453247512908499e-18, 0.5865674294665975,
    -2.2451021705421176e-18, 0.1000248522174491, 2.742610651779423e-05, 0.00019471560822065007,
    9.854476850645411e-05, 2.3708048314612345e-06, -0.1000248522174491, -2.7426106517794017e-05,
    0.0001947156082206485, 9.854476850645332e-05, 2.370804831461215e-06, -4.523155938337964e-19,
    -1.2217235710493255, -4.1918224593982356e-05, -6.380731160360884e-07, 1.550005812127967,
    -1.2217235710493255, 4.1918224593983975e-05, 6.380731160361131e-07, 1.550005812127967,
)  # fmt: skip


def contact_inverse_dynamics(
    name: str, model: Model, q: Float[np.ndarray, " nq"], supports: Sequence[str], *, dt: float = 1e-3
) -> LeastSquaresProblem:
    """The problem of the module's docstring for any robot with a free base and any static pose.

    model: with a free base; q: a static pose (float64); supports: names of the shapes that carry the robot, each touching
    the floor at zero distance; dt in s. The certificate holds the velocity after the step over dt, the use of friction
    cones and torque limits (1: on the boundary) and, as `pose_...`, what `certify` found at the pose.

    Raises `OptionError` when a support does not touch the floor.
    """
    still = StillStep(model, System(model, dt, contact=RigidContact(max_contacts=8)), np.asarray(q), tuple(supports))
    _check_supports(still)
    return LeastSquaresProblem(
        name,
        Partial(StillStep.residual, still),
        jnp.zeros(model.nu),
        jacobian=Partial(StillStep.jacobian, still),
        lower=model.control_lower,
        upper=model.control_upper,
        scale=np.where(np.isfinite(still.limits), still.limits, 1.0),
        tolerance=still.tolerance,
        meta={"contact": "RigidContact"},
        certificate=Certificate(
            still.certificate, still.certificate_tolerances, goals={"velocity_over_dt": "m/s^2, rad/s^2"}
        ),
        display=Display(motion=still.trajectory, report=still.report, model=model),
    )


SUPPORT_DISTANCE = Threshold(1e-9, 1e-6)  # m, of what is a support at all; a coordinate of 1 m in float32 is rounded by 6e-8
LIMITS = {
    "cone_use": Threshold(1.0, 1.0),
    "torque_use": Threshold(1.0, 1.0),
    "contact_residual": Threshold(1e-8, 1e-5),
    "dropped_contacts": Threshold(0.0, 0.0),
    "pose_support_distance": Threshold(1e-12, 1e-6),
    "pose_equilibrium": Threshold(1e-9, 1e-4),
    "pose_use": Threshold(1.0, 1.0),
}


@programs.subject("model", "system", "q")
@dataclasses.dataclass(frozen=True, eq=False)
class StillStep:
    """One step from rest at the pose `q` (nq,), carried by the shapes `supports`, as functions of the torques u (nu,)."""

    model: Model
    system: System
    q: Float[np.ndarray, " nq"]
    supports: tuple[str, ...]

    @property
    def state(self) -> State:
        """At rest in the pose."""
        return State(jnp.asarray(self.q, self.dtype), jnp.zeros(self.model.nv, self.dtype))

    @property
    def dtype(self) -> np.dtype:
        return self.system.model.mass.dtype

    @property
    def tolerance(self) -> float:
        """Of the residual. In float32 the supports of the rounded pose are beside the floor, and a step moves them there."""
        rounded = 0.0 if self.dtype == np.float64 else 2 * self.pose.support_distance / float(self.dt) ** 2
        return max(TOLERANCE.at(self.dtype), rounded)

    @property
    def certificate_tolerances(self) -> dict[str, float]:
        return {"velocity_over_dt": self.tolerance} | {name: limit.at(self.dtype) for name, limit in LIMITS.items()}

    @property
    def dt(self) -> Any:
        return self.system.dt

    @property
    def limits(self) -> Float[np.ndarray, " nu"]:
        """Largest torque in both directions, N m."""
        return np.minimum(np.abs(self.model.control_lower), np.abs(self.model.control_upper))

    @functools.cached_property
    def pose(self) -> PoseCertificate:
        """What makes the pose a static one; computed once."""
        return certify(self.model, self.q, self.supports)

    def residual(self, u: Float[Array, " nu"]) -> Float[Array, " nv"]:
        """v+ / dt, m/s^2 and rad/s^2."""
        x_next, _ = self.system.step(self.state, u)
        return x_next.v / jnp.asarray(self.dt, u.dtype)

    def jacobian(self, u: Float[Array, " nu"]) -> tuple[Float[Array, " nv"], Float[Array, "nv nu"]]:
        """The residual and its derivative, from one linearisation."""
        x_next, _, B = self.system.linearize(self.state, u)
        dt = jnp.asarray(self.dt, u.dtype)
        return x_next.v / dt, B[self.model.nv :] / dt

    def after(self, u: Float[Array, " nu"]) -> tuple[State, StepInfo]:
        """The step under the torques u, taken again outside of what a solver compiles."""
        return programs.run(StillStep._step, self, u, effort=Effort.QUICK)[0]

    def _step(self, u: Float[Array, " nu"]) -> tuple[State, StepInfo]:
        return self.system.step(self.state, u)

    def certificate(self, u: Float[Array, " nu"]) -> Mapping[str, float]:
        """The quantities that `certificate_tolerances` bounds, and all of the pose's."""
        x_next, info = self.after(u)
        impulse, friction = np.asarray(info.contacts.impulse), np.asarray(info.contacts.friction)
        return {
            "velocity_over_dt": float(np.abs(np.asarray(x_next.v)).max() / float(self.dt)),
            "cone_use": cone_use(impulse, friction),
            "torque_use": float((np.abs(np.asarray(u)) / self.limits).max()),
            "contact_residual": float(info.residual),
            "dropped_contacts": float(info.dropped),
        } | self.pose.values()

    def trajectory(self, u: Float[Array, " nu"]) -> dict[str, Float[np.ndarray, "..."]]:
        """The pose, what it becomes, the torques and the impulses of the contacts."""
        (x_next, info), start = self.after(u), self.state
        return {
            "t": np.array([0.0, float(self.dt)]),
            "q": np.stack([start.q, x_next.q]),
            "v": np.stack([start.v, x_next.v]),
            "u": np.asarray(u)[None],
            "impulse": np.asarray(info.contacts.impulse)[None],
        }

    def report(self, u: Float[Array, " nu"]) -> str:
        """Torques, contact forces and the certificate of the pose as lines of text."""
        return _report(self.model, np.asarray(u), self.after(u)[1], float(self.dt), self.pose)


def cone_use(impulse: Float[np.ndarray, "nc 3"], friction: Float[np.ndarray, " nc"]) -> float:
    """Largest |lambda_t| / (mu lambda_n) of the contacts that carry a load; 1 is the boundary of the cone."""
    loaded = carries(impulse)
    tangential = np.hypot(impulse[loaded, 0], impulse[loaded, 1])
    return float((tangential / (friction[loaded] * impulse[loaded, 2])).max(initial=0.0))


def carries(impulse: Float[np.ndarray, "nc 3"]) -> Bool[np.ndarray, " nc"]:
    """Contacts whose normal impulse is more than rounding."""
    return impulse[:, 2] > 1e-12 * max(impulse[:, 2].max(initial=0.0), 1e-12)


def _check_supports(still: StillStep) -> None:
    distance = still.pose.support_distance
    if not distance <= SUPPORT_DISTANCE.at(still.dtype):
        raise OptionError(
            f"model '{still.model.name}': a support is {distance:.2e} m from the floor; solve the static pose first"
        )


def _report(model: Model, u: np.ndarray, info, dt: float, pose: PoseCertificate) -> str:
    top = model.topology
    lines = ["torques [N m] (share of the limit):"]
    for name, value, limit in zip(top.actuators, u, np.asarray(model.control_upper)):
        lines.append(f"  {name:<22} {value:10.4f}  ({abs(value) / limit:.1%})")
    lines.append("contact forces [N], tangential and normal (share of the friction cone):")
    contacts = info.contacts
    for k in np.flatnonzero(carries(np.asarray(contacts.impulse))):
        force = np.asarray(contacts.impulse)[k] / dt
        shape = top.shapes[top.pairs[int(contacts.pair[k])][0]].name
        size = np.hypot(force[0], force[1])
        lines.append(
            f"  {shape:<22} {size:10.4f} {force[2]:10.4f}  ({size / (float(contacts.friction[k]) * force[2]):.1%})"
        )
    lines.append("pose:")
    lines += [
        f"  {key.removeprefix('pose_').replace('_', ' '):<22} {value:10.3e}" for key, value in pose.values().items()
    ]
    return "\n".join(lines)


_DT = Real(1e-5, 1e-2, "s")


@ranged(dt=_DT)
def go1_stand(dt: float = 1e-3) -> LeastSquaresProblem:
    """Go1 standing on four feet."""
    return contact_inverse_dynamics("go1-stand", load_model("go1"), np.array(GO1_STAND), GO1_FEET, dt=dt)


@ranged(payload=Real(0.0, 1e3, "kg"), dt=_DT)
def go1_stand_payload(payload: float = 10.0, dt: float = 1e-3) -> LeastSquaresProblem:
    """Go1 standing with a load of `payload` kg on its back."""
    model = with_payload(load_model("go1"), payload)
    problem = contact_inverse_dynamics("go1-stand-payload", model, np.array(GO1_STAND), GO1_FEET, dt=dt)
    shown = showing_payload(model) if payload > 0 else model
    return dataclasses.replace(problem, display=dataclasses.replace(problem.display, model=shown))


@ranged(dt=_DT)
def go1_handstand(dt: float = 1e-3) -> LeastSquaresProblem:
    """Go1 on its two front feet, hind legs up; its centre of mass is above the line of the two contact points."""
    return contact_inverse_dynamics("go1-handstand", load_model("go1"), np.array(GO1_HANDSTAND), GO1_HANDS, dt=dt)


@ranged(dt=_DT)
def h1_pushup(dt: float = 1e-3) -> LeastSquaresProblem:
    """H1 in the upper position of a push-up: body straight, on the ends of its forearms and the inner edges of its toes.

    The feet are turned outwards by 0.1 rad, so that each foot touches at one point. With both toe points of a foot on the
    floor the smallest torques unload the outer one exactly, and its force lies on the tip of the cone.
    """
    return contact_inverse_dynamics("h1-pushup", load_model("h1"), np.array(H1_PUSHUP_POSE), H1_PUSHUP, dt=dt)


PAYLOAD_SIDE = 0.1  # m


def showing_payload(model: Model, side: float = PAYLOAD_SIDE, trunk: str = "trunk") -> Model:
    """The model with the cube of `with_payload` among its shapes, to be seen: it touches nothing."""
    top, (node, place) = model.topology, _on_trunk(model, side, trunk)
    shape = ShapeSpec("payload", ShapeType.BOX, node)
    return model.replace(
        topology=dataclasses.replace(top, shapes=(*top.shapes, shape)),
        shape_rotation=np.concatenate([np.asarray(model.shape_rotation), np.eye(3)[None]]),
        shape_position=np.concatenate([np.asarray(model.shape_position), place[None]]),
        shape_size=np.concatenate([np.asarray(model.shape_size), np.full((1, 3), side / 2)]),
    )


def with_payload(model: Model, mass: float, side: float = PAYLOAD_SIDE, trunk: str = "trunk") -> Model:
    """Go1 carrying a uniform cube of `mass` kg and `side` m on the middle of the upper face of its trunk.

    The load is rigidly joined: mass, centre of mass and inertia of the trunk become those of both bodies.
    Raises `OptionError` for a negative or non-finite mass.
    """
    if not (np.isfinite(mass) and mass >= 0):
        raise OptionError(f"payload is {mass}; it must be a mass in kg, not negative")
    node, place = _on_trunk(model, side, trunk)
    leaves = {key: np.array(getattr(model, key)) for key in ("mass", "com", "inertia")}
    trunk_alone = tuple(leaf[node] for leaf in leaves.values())
    together = joined([trunk_alone, (mass, place, mass * side**2 / 6 * np.eye(3))])
    for leaf, value in zip(leaves.values(), together, strict=True):
        leaf[node] = value
    return model.replace(**leaves)


def _on_trunk(model: Model, side: float, trunk: str) -> tuple[int, Float[np.ndarray, "3"]]:
    """The trunk's node, and the centre of a cube on the middle of its upper face, m, in the node's frame."""
    top = model.topology
    shape = [s.name for s in top.shapes].index(trunk)
    place = np.asarray(model.shape_position)[shape] + [0.0, 0.0, float(model.shape_size[shape][2]) + side / 2]
    return top.frames[top.frame_index(trunk)].node, place
