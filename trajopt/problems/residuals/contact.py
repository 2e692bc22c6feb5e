"""Residuals of contact: impulse, share of the friction cone, slip, centre of pressure of a shape; clearance and distance.

Impulse, friction share and centre of pressure are those of the step from the state, in all contacts of the shape; clearance,
distance and slip are of the state alone.
"""

import abc
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.collision.narrowphase import Contacts, pair_groups
from trajopt.dynamics.contact.rows import signed_mask
from trajopt.dynamics.model import Model
from trajopt.dynamics.rigid_body.kinematics import point_columns, relative_motion, to_user_dofs
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System
from trajopt.errors import OptionError, UnknownNameError
from trajopt.names import closest
from trajopt.problems.residuals.activations import Activation
from trajopt.problems.residuals.base import STATIC, Residual, StepOutcome

PRESSING = 1e-9  # N s: a normal impulse below it is none; rounding of a step's impulses is 1e-12


def shape_index(model: Model, name: str) -> int:
    """Index of a shape that is in a contact pair. Raises `UnknownNameError`."""
    top = model.topology
    able = {top.shapes[i].name: i for pair in top.pairs for i in pair}
    if name not in able:
        raise UnknownNameError(
            f"model '{model.name}' has no shape '{name}' that may touch another{closest(name, able)}"
        )
    return able[name]


def pairs_of(model: Model, shape: str, other: str = "") -> Bool[np.ndarray, " pairs"]:
    """Which contact pairs are those of a shape, with any other or with one."""
    first = shape_index(model, shape)
    wanted = {first} if not other else {first, shape_index(model, other)}
    return np.array([wanted <= set(pair) for pair in model.topology.pairs], bool)


def candidates_of(model: Model, pairs: Bool[np.ndarray, " pairs"]) -> tuple[int, ...]:
    """The contact candidates, in the order of `collide`, of some pairs."""
    owners = [p for group in pair_groups(model.topology) for p in group.pairs for _ in range(group.candidates(model))]
    return tuple(i for i, pair in enumerate(owners) if pairs[pair])


@dataclasses.dataclass(frozen=True)
class _OfShape(Residual):
    """A residual of a collision shape.

    Options:
        shape: name of the collision shape.
    """

    shape: str = dataclasses.field(default="", metadata=STATIC, kw_only=False)

    def subject(self) -> tuple[str, ...]:
        return (self.shape,)

    def check(self, system: System) -> None:
        shape_index(system.model, self.shape)
        if self.needs_step and not system.contact.acts:
            raise OptionError(f"the System's contact law is {system.contact.name}, under which nothing touches")

    def sign(self, step: StepOutcome) -> Float[Array, " nc"]:
        """For each contact of the step: 1 where the shape's body is body 1, on which the impulse acts, -1 where it is body 2, 0
        where the contact is none of the shape's."""
        model, contacts = step.model, step.contacts
        top = model.topology
        node = top.shapes[shape_index(model, self.shape)].node
        node = top.n_nodes if node < 0 else node
        dtype = contacts.impulse.dtype
        side = (contacts.node1 == node).astype(dtype) - (contacts.node2 == node).astype(dtype)
        return side * jnp.asarray(pairs_of(model, self.shape), dtype)[contacts.pair]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContactImpulse(_OfShape):
    """Sum of the impulses on a shape during the step minus the reference (3,), N s, world axes. Divided by dt it is a force."""

    needs_step = True
    size = 3

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "3"]
    ) -> Float[Array, "3"]:
        world = rotate_each(step.contacts.frame, step.contacts.impulse)
        return (self.sign(step)[:, None] * world).sum(0) - reference


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FrictionShare(_OfShape):
    """Share of the friction cone that a shape's contacts use together, $sum |f_t| / sum mu f_n$, minus the reference (1,).

    0 where nothing presses; 1: at the boundary. Its slope is taken as zero where there is no tangential impulse at all.
    """

    needs_step = True

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "1"]
    ) -> Float[Array, "1"]:
        mine, impulse = jnp.abs(self.sign(step)), step.contacts.impulse
        square = (impulse[:, :2] ** 2).sum(1)
        some = square > 0
        tangential = jnp.where(some, jnp.sqrt(jnp.where(some, square, 1.0)), 0.0)
        bound = (mine * step.contacts.friction * impulse[:, 2]).sum()
        pressing = bound > PRESSING
        share = jnp.where(pressing, (mine * tangential).sum() / jnp.where(pressing, bound, 1.0), 0.0)
        return share[None] - reference


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CentreOfPressure(_OfShape):
    """Mean of a shape's contact points, weighted by normal impulses, minus the reference (3,), m; 0 where nothing presses."""

    needs_step = True
    size = 3

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "3"]
    ) -> Float[Array, "3"]:
        normal = jnp.abs(self.sign(step)) * step.contacts.impulse[:, 2]
        total = normal.sum()
        pressing = total > PRESSING
        mean = (normal[:, None] * step.contacts.point).sum(0) / jnp.where(pressing, total, 1.0)
        return jnp.where(pressing, mean - reference, 0.0)


@dataclasses.dataclass(frozen=True)
class _Gaps(_OfShape):
    """Distances of contact candidates, m, negative when penetrating, minus the reference, a number for all."""

    depends_on = "q"

    @abc.abstractmethod
    def pairs(self, model: Model) -> Bool[np.ndarray, " pairs"]:
        """The contact pairs whose distances are meant."""

    def check(self, system: System) -> None:
        shape_index(system.model, self.shape)
        if not candidates_of(system.model, self.pairs(system.model)):
            raise OptionError(
                f"the shapes {' and '.join(self.subject())} are no contact pair of model '{system.model.name}'"
            )

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "1"]
    ) -> Float[Array, " m"]:
        return self._nearby(step).distance - reference

    def slope(self, x: State, step: StepOutcome) -> Float[Array, "m nv"]:
        """Of the Jacobian of the contact points the part along their normals."""
        model, near = step.model, self._nearby(step)
        columns = point_columns(step.kinematics, model.topology, near.point) * near.normal[:, None, :]
        return to_user_dofs(model, signed_mask(model.topology, near, x.q.dtype) * columns.sum(2))

    def _nearby(self, step: StepOutcome) -> Contacts:
        return step.nearby[np.array(candidates_of(step.model, self.pairs(step.model)))]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Clearance(_Gaps):
    """Distances of a shape's contact points to what does not move: ground, scenery."""

    def pairs(self, model: Model) -> Bool[np.ndarray, " pairs"]:
        top = model.topology
        fixed = np.array([any(top.shapes[i].node < 0 for i in pair) for pair in top.pairs], bool)
        return fixed & pairs_of(model, self.shape)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Distance(_Gaps):
    """Distances between two shapes, at the contact points that the pair has.

    Options:
        other: name of the other collision shape.
    """

    other: str = dataclasses.field(default="", metadata=STATIC)

    def subject(self) -> tuple[str, ...]:
        return (self.shape, self.other)

    def pairs(self, model: Model) -> Bool[np.ndarray, " pairs"]:
        shape_index(model, self.other)
        return pairs_of(model, self.shape, self.other)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slip(_OfShape):
    """Velocity of a shape's contact points along the surface that they are near, m/s, world axes, minus the reference (3,).

    The velocity is weighted by exp(-gap / reach), so that only points that touch, or are about to, count. The gap counts as
    zero when penetrating.

    Options:
        reach (m): distance over which the weight falls.
    """

    depends_on = "qv"

    reach: float = dataclasses.field(default=5e-3, kw_only=True, metadata=STATIC)
    activation: Activation | None = dataclasses.field(default=None, kw_only=True)

    size = 3

    def check(self, system: System) -> None:
        super().check(system)
        if not (np.isfinite(self.reach) and self.reach > 0):
            raise OptionError(f"reach is {self.reach}; it must be a positive length in m")

    def error(
        self, x: State, u: Float[Array, " nu"] | None, step: StepOutcome, reference: Float[Array, "3"]
    ) -> Float[Array, " m"]:
        model = step.model
        near = step.nearby[np.array(candidates_of(model, pairs_of(model, self.shape)))]
        velocity, _ = relative_motion(model, step.kinematics, x.v, near.node1, near.node2, near.point)
        along = velocity - near.normal * (near.normal * velocity).sum(1, keepdims=True)
        share = jnp.exp(-jnp.maximum(near.distance, 0.0) / jnp.asarray(self.reach, x.v.dtype))
        return (share[:, None] * (along - reference)).ravel()


def rotate_each(frame: Float[Array, "nc 3 3"], vector: Float[Array, "nc 3"]) -> Float[Array, "nc 3"]:
    """frame @ vector of every contact."""
    return (frame * vector[:, None, :]).sum(2)
