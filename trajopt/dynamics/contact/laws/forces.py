r"""Laws at force level: generalised forces of contacts, joint limits and dry joint friction at one state.

    tau = sum over contacts of (J_1 - J_2)^T f + limits + dry friction

computed from the bodies' velocities and wrenches, without Jacobians. Differentiable in model, q, v and deformation, forward
and reverse.
"""

import abc
import dataclasses
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt.dynamics.collision.narrowphase import Contacts, collide, contact_count
from trajopt.dynamics.contact.laws.base import Law, ModeRequest
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import Kinematics, kinematics, relative_motion, to_user_dofs
from trajopt.dynamics.rigid_body.spatial import cross
from trajopt.errors import ModelError
from trajopt.options import check_options


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PointForces:
    """Forces of a `ForceLaw` on body 1 at k contact points, N, world axes.

    normal (k,) along the normal, not negative; tangent (k, 3); sliding (k,): friction is at the bound of its cone;
    rate (k, 3): time derivative of the tangential deformation, m/s, None for a law without state.
    """

    normal: Float[Array, " k"]
    tangent: Float[Array, "k 3"]
    sliding: Bool[Array, " k"]
    rate: Float[Array, "k 3"] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForceLaw(Law, abc.ABC):
    """Base of the laws at force level: forces are explicit functions of the state, nothing is solved.

    Joint limits are one-sided springs with the dissipation of Hunt and Crossley: a limit passed by d, at the rate $d'$,
    pushes back with $max(0, k d (1 + c d'))$, k and c being stiffness and dissipation, which is continuous. Dry joint friction
    of bound b is smoothed to $-b v / sqrt(v^2 + w^2)$, w being `friction_velocity`. Both are as stiff as their parameters and
    limit the step of an explicit integrator. Coefficients of restitution are not used: the damping says how much bounces.

    Options:
        limit_stiffness (N m/rad): stiffness of joint limits, in N/m for joints that slide.
        limit_dissipation (s/rad): dissipation of joint limits, in s/m for joints that slide.
        friction_velocity (rad/s): velocity over which dry joint friction is smoothed, in m/s for joints that slide.
    """

    limit_stiffness: float = 1e4
    limit_dissipation: float = 1.0
    friction_velocity: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, limit_stiffness="(0, inf)", friction_velocity="(0, inf)", limit_dissipation="[0, inf)")

    def check(self, model: Model) -> None:
        super().check(model)
        if model.topology.constrained:
            raise ModelError(
                f"model '{model.name}' has equality constraints, which {self.name}, a law at force level, does not hold; use "
                "RigidContact(), BoxedLCP(), SmoothedContact() or NoContact()"
            )

    @property
    def not_compiled(self) -> str | None:
        return f"forces of {self.name} are evaluated by JAX"

    def largest_step(self, stability: float) -> float | None:
        return stability / self.relaxation_rate if self.carries_state and self.relaxation_rate > 0 else None

    @property
    def relaxation_rate(self) -> float:
        """Rate, 1/s, at which a contact state that is carried decays: a bound on the step of explicit integration."""
        return 0.0

    def _refused(self, mode: ModeRequest) -> str:
        return (
            f"which {mode.purpose}; {self.name} has forces that are functions of the state, and none of that: use "
            "'implicit', their exact derivative"
        )

    @abc.abstractmethod
    def force(
        self,
        depth: Float[Array, " k"],
        closing: Float[Array, " k"],
        slip: Float[Array, "k 3"],
        deformation: Float[Array, "k 3"] | None,
        friction: Float[Array, " k"],
    ) -> PointForces:
        """Forces at penetration `depth` (m, negative: apart), its rate `closing` (m/s) and tangential velocity `slip` (m/s)
        of body 1 relative to body 2; `deformation` (m): tangential, None for a law without state."""


def gives_forces(law: Law) -> TypeGuard[ForceLaw]:
    """Whether the law is at force level: its forces are functions of the state."""
    return not law.solves_impulses


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Forces:
    """Forces at one state.

    tau (nv,) generalised force of all of them; contact (n, 3) on body 1, N, world axes, of all candidates of the model, and
    rate (n, 3) of their deformation, None without state; candidates: those k of the pairs that were looked at, `point` and
    `friction` theirs; limit (nl,) and dry (nf,) generalised forces of limits (positive: away from the limit) and of dry
    friction (along the coordinate); kept (nc,) indices of the candidates that act, among the k, and places (nc,), among the n;
    dropped: others that penetrate, and dropped_pairs, pairs not looked at that could.
    """

    tau: Float[Array, " nv"]
    candidates: Contacts
    contact: Float[Array, "n 3"]
    rate: Float[Array, "n 3"] | None
    point: PointForces
    friction: Float[Array, " k"]
    limit: Float[Array, " nl"]
    dry: Float[Array, " nf"]
    kept: Int[Array, " nc"]
    places: Int[Array, " nc"]
    dropped: Int[Array, ""]
    dropped_pairs: Int[Array, ""]


def _closest(
    law: ForceLaw, model: Model, candidates: Contacts
) -> tuple[Bool[Array, " k"] | None, Int[Array, " nc"], Int[Array, ""]]:
    """Which candidates act (None: all), their indices in ascending order, and how many of the others penetrate."""
    count, distance = law.contact_rows(model), jax.lax.stop_gradient(candidates.distance)
    total = distance.shape[0]
    if total <= count:
        return None, jnp.arange(total), jnp.zeros((), int)
    _, index = jax.lax.top_k(-distance, count)
    index = jnp.sort(index)
    acts = jnp.zeros(total, bool).at[index].set(True)
    return acts, index, jnp.sum((distance < 0) & ~acts)


def forces(
    law: ForceLaw,
    model: Model,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    deformation: Float[Array, "n 3"] | None,
) -> Forces:
    """Forces of the law at (q, v, deformation); the candidates beyond the closest `max_contacts` have none."""
    kin = kinematics(model, q)
    contacts = collide(model, kin, law.pair_limit)
    culled, all_deformation = contacts.culled, deformation
    dropped_pairs = jnp.zeros((), int)
    if culled is not None:
        dropped_pairs = jnp.sum(~culled.taken & (culled.bound < 0))
        deformation = None if deformation is None else deformation[culled.candidate]
    acts, kept, dropped = _closest(law, model, contacts)
    depth = -contacts.distance if acts is None else jnp.where(acts, -contacts.distance, -1.0)
    velocity, _ = relative_motion(model, kin, v, contacts.node1, contacts.node2, contacts.point)
    approach = jnp.sum(contacts.normal * velocity, -1)
    slip = velocity - approach[:, None] * contacts.normal
    pair_friction = jnp.asarray(model.pair_friction, q.dtype)
    friction = pair_friction[contacts.pair] if contacts.pair.shape[0] else jnp.zeros(0, q.dtype)
    along = None
    if deformation is not None:
        along = jnp.sum(contacts.normal * deformation, -1)[:, None] * contacts.normal
        deformation = deformation - along
    point = law.force(depth, -approach, slip, deformation, friction)
    if point.rate is not None and along is not None:
        point = dataclasses.replace(point, rate=point.rate - law.relaxation_rate * along)
    contact = point.normal[:, None] * contacts.normal + point.tangent
    joint, limit, dry = _joint_forces(law, model, q, v)
    tau = joint + _generalised(model, kin, contacts, contact)
    rate, places = point.rate, kept
    if culled is not None:
        # The contacts of pairs that were not looked at are apart: without force, and their deformation decays.
        places = culled.candidate[kept]
        contact = jnp.zeros((contact_count(model), 3), q.dtype).at[culled.candidate].set(contact)
        if rate is not None and all_deformation is not None:
            rate = (-law.relaxation_rate * all_deformation).at[culled.candidate].set(rate)
    return Forces(
        tau, contacts, contact, rate, point, friction, limit, dry, kept, places, dropped + dropped_pairs, dropped_pairs
    )


def _generalised(model: Model, kin: Kinematics, contacts: Contacts, force: Float[Array, "k 3"]) -> Float[Array, " nv"]:
    """J^T of the forces on body 1 and their opposites on body 2."""
    mask = jnp.asarray(model.topology.dof_mask, force.dtype)
    origin = jnp.concatenate([kin.origin, jnp.zeros((1, 3), force.dtype)])

    def wrenches(node):
        return mask[node].T @ jnp.concatenate([force, cross(contacts.point - origin[node], force)], -1)

    subtree = wrenches(contacts.node1) - wrenches(contacts.node2)
    return to_user_dofs(model, jnp.sum(kin.S * subtree, -1))


def _joint_forces(law: ForceLaw, model: Model, q, v):
    """(generalised force (nv,), forces of the limits, of dry friction); see `ForceLaw`."""
    top, dtype = model.topology, q.dtype
    tau = jnp.zeros(model.nv, dtype)
    limited = np.array(top.limited if law.limits else (), int)
    value, rate = q[top.scalar_q_of_dof[limited]], v[limited]
    below = jnp.asarray(model.lower, dtype)[limited] - value
    above = value - jnp.asarray(model.upper, dtype)[limited]
    low, high = _limit_force(law, below, -rate), _limit_force(law, above, rate)
    rubbing = np.array(top.friction_dofs if law.joint_friction else (), int)
    speed = v[rubbing]
    bound = jnp.asarray(model.frictionloss, dtype)[rubbing]
    dry = -bound * speed / jnp.sqrt(speed * speed + law.friction_velocity**2)
    return tau.at[limited].add(low - high).at[rubbing].add(dry), low + high, dry


def _limit_force(law: ForceLaw, depth, closing):
    passed = jnp.where(depth > 0, depth, 0.0)  # a side without limit is at infinity
    return law.limit_stiffness * passed * jnp.maximum(1.0 + law.limit_dissipation * closing, 0.0)
