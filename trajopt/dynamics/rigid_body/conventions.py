"""Conversions from and to the conventions of other tools.

Here q and v are MuJoCo's `qpos` and `qvel`. Pinocchio stores quaternions x y z w, the velocity of a free joint in the
base frame, a planar joint as (x, y, cos, sin) with its velocity in the moving frame, and an unbounded revolute joint
as (cos, sin). The JaxSim thesis (section 2.3 and chapter 7) writes the velocity of a floating base in one of three
representations, W for the world and B for the base:

- "mixed", B[W]: velocity of the base's origin, angular velocity; world axes;
- "body", B: the same two vectors in the axes of the base;
- "inertial", W: velocity of the point of the base that is at the world's origin, angular velocity; world axes.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.model import JointSpec, Model
from trajopt.dynamics.precision import in_full_precision
from trajopt.dynamics.rigid_body.configuration import check_vector
from trajopt.dynamics.rigid_body.lie import rotation_from_quaternion
from trajopt.dynamics.rigid_body.spatial import cross, rotate
from trajopt.errors import ModelError, OptionError, ShapeError, UnknownNameError
from trajopt.names import closest

REPRESENTATIONS = ("mixed", "body", "inertial")


@in_full_precision
def from_pinocchio(
    model: Model,
    q: Float[Array, " nq_pin"],
    v: Float[Array, " nv"],
    *,
    joint_names: Sequence[str] | None = None,
    continuous: Sequence[str] = (),
) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
    """(q, v) of this package from Pinocchio's.

    `joint_names` is the order of the joints in Pinocchio's vectors (`list(pin_model.names)[1:]`; default: the model's
    own order). `continuous` names the revolute joints that Pinocchio stores as (cos, sin).
    """
    order = _order(model, joint_names)
    sizes = [_pinocchio_nq(model, joint, continuous) for joint in order]
    q, v = check_vector("q", q, sum(sizes)), check_vector("v", v, model.nv)
    parts_q, parts_v, i, k = {}, {}, 0, 0
    for joint, size in zip(order, sizes, strict=True):
        parts_q[joint.name], parts_v[joint.name] = _joint_from_pinocchio(joint, q[i : i + size], v[k : k + joint.nv])
        i, k = i + size, k + joint.nv
    joints = model.topology.joints
    return jnp.concatenate([parts_q[j.name] for j in joints]), jnp.concatenate([parts_v[j.name] for j in joints])


@in_full_precision
def to_pinocchio(
    model: Model,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    *,
    joint_names: Sequence[str] | None = None,
    continuous: Sequence[str] = (),
) -> tuple[Float[Array, " nq_pin"], Float[Array, " nv"]]:
    """Inverse of `from_pinocchio`."""
    q, v = check_vector("q", q, model.nq), check_vector("v", v, model.nv)
    parts_q, parts_v = [], []
    for joint in _order(model, joint_names):
        size = _pinocchio_nq(model, joint, continuous)
        part_q, part_v = q[joint.q_start : joint.q_start + joint.nq], v[joint.v_start : joint.v_start + joint.nv]
        part_q, part_v = _joint_to_pinocchio(joint, part_q, part_v, size)
        parts_q.append(part_q)
        parts_v.append(part_v)
    return jnp.concatenate(parts_q), jnp.concatenate(parts_v)


@in_full_precision
def base_velocity(
    model: Model, q: Float[Array, " nq"], v: Float[Array, " nv"], representation: str = "mixed"
) -> Float[Array, "6"]:
    """[linear; angular] velocity of the floating base in one of the JaxSim thesis's representations."""
    q, v = check_vector("q", q, model.nq), check_vector("v", v, model.nv)
    base = _free_base(model)
    rotation, position = _base_pose(base, q)
    linear, spin = v[base.v_start : base.v_start + 3], v[base.v_start + 3 : base.v_start + 6]
    _check_representation(representation)
    if representation == "body":
        return jnp.concatenate([rotate(rotation.T, linear), spin])
    angular = rotate(rotation, spin)
    if representation == "inertial":
        linear = linear + cross(position, angular)
    return jnp.concatenate([linear, angular])


@in_full_precision
def from_base_velocity(
    model: Model,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    velocity: Float[Array, "6"],
    representation: str = "mixed",
) -> Float[Array, " nv"]:
    """v with the entries of its floating base replaced by `velocity`, given in `representation`."""
    q, v = check_vector("q", q, model.nq), check_vector("v", v, model.nv)
    velocity = check_vector("velocity", velocity, 6)
    base = _free_base(model)
    rotation, position = _base_pose(base, q)
    linear, angular = velocity[:3], velocity[3:]
    _check_representation(representation)
    if representation == "body":
        linear, spin = rotate(rotation, linear), angular
    else:
        spin = rotate(rotation.T, angular)
        if representation == "inertial":
            linear = linear - cross(position, angular)
    start = base.v_start
    return jnp.concatenate([v[:start], linear, spin, v[start + 6 :]])


@in_full_precision
def to_mujoco_contact(
    frame: Float[Array, "*b 3 3"], impulse: Float[Array, "*b 3"]
) -> tuple[Float[Array, "*b 3 3"], Float[Array, "*b 3"]]:
    """A contact as MuJoCo writes it: rows (normal, tangent 1, tangent 2) and components in that order.

    MuJoCo's normal points from geom 1 to geom 2, so its geom 1 is body 2 here and its geom 2 is body 1. Divide the impulse
    by the step to compare with `mj_contactForce`.
    """
    order = np.array([2, 0, 1])
    return jnp.swapaxes(frame, -1, -2)[..., order, :], impulse[..., order]


@in_full_precision
def from_mujoco_contact(
    frame: Float[Array, "*b 3 3"], impulse: Float[Array, "*b 3"]
) -> tuple[Float[Array, "*b 3 3"], Float[Array, "*b 3"]]:
    """Inverse of `to_mujoco_contact`."""
    order = np.array([1, 2, 0])
    return jnp.swapaxes(frame[..., order, :], -1, -2), impulse[..., order]


def _joint_from_pinocchio(joint: JointSpec, q, v):
    if joint.kind == "free":
        quaternion = _wxyz(q[3:])
        return jnp.concatenate([q[:3], quaternion]), jnp.concatenate(
            [rotate(rotation_from_quaternion(quaternion), v[:3]), v[3:]]
        )
    if joint.kind == "ball":
        return _wxyz(q), v
    if joint.kind == "planar":
        c, s = q[2], q[3]
        velocity = jnp.stack([c * v[0] - s * v[1], s * v[0] + c * v[1], v[2]])
        return jnp.stack([q[0], q[1], jnp.arctan2(s, c)]), velocity
    return (jnp.arctan2(q[1], q[0])[None] if q.shape[0] == 2 else q), v


def _joint_to_pinocchio(joint: JointSpec, q, v, size: int):
    if joint.kind == "free":
        rotation = rotation_from_quaternion(q[3:])
        return jnp.concatenate([q[:3], _xyzw(q[3:])]), jnp.concatenate([rotate(rotation.T, v[:3]), v[3:]])
    if joint.kind == "ball":
        return _xyzw(q), v
    if joint.kind == "planar":
        c, s = jnp.cos(q[2]), jnp.sin(q[2])
        return jnp.stack([q[0], q[1], c, s]), jnp.stack([c * v[0] + s * v[1], c * v[1] - s * v[0], v[2]])
    return (jnp.concatenate([jnp.cos(q), jnp.sin(q)]) if size == 2 else q), v


def _wxyz(quaternion):
    return jnp.concatenate([quaternion[3:], quaternion[:3]])


def _xyzw(quaternion):
    return jnp.concatenate([quaternion[1:], quaternion[:1]])


def _pinocchio_nq(model: Model, joint: JointSpec, continuous: Sequence[str]) -> int:
    for name in continuous:
        if model.topology.joint(name).kind != "revolute":
            raise OptionError(
                f"continuous names joint '{name}', which is {model.topology.joint(name).kind}, not revolute"
            )
    if joint.kind == "planar":
        return 4
    return 2 if joint.name in continuous else joint.nq


def _order(model: Model, joint_names: Sequence[str] | None) -> list[JointSpec]:
    joints = model.topology.joints
    if joint_names is None:
        return list(joints)
    known = {joint.name: joint for joint in joints}
    for name in joint_names:
        if name not in known:
            raise UnknownNameError(f"model '{model.name}' has no joint '{name}'{closest(name, known)}")
    if sorted(joint_names) != sorted(known):
        missing = sorted(set(known) - set(joint_names))
        raise ShapeError(
            f"joint_names has {len(joint_names)} names, expected each of {len(known)} once; missing {missing}"
        )
    return [known[name] for name in joint_names]


def _free_base(model: Model) -> JointSpec:
    top = model.topology
    roots = [i for i, parent in enumerate(top.parents) if parent < 0]
    if len(roots) != 1:
        raise ModelError(
            f"model '{top.name}' has {len(roots)} kinematic trees; the velocity of the base is defined for one tree only "
            "(read the entries of v that belong to a joint of your choice instead, see Topology.joint)"
        )
    for joint in top.joints:
        if roots[0] in joint.nodes and joint.kind == "free":
            return joint
    raise ModelError(f"model '{top.name}' has a fixed base; load it with a floating one to speak of its velocity")


def _base_pose(base: JointSpec, q):
    start = base.q_start
    return rotation_from_quaternion(q[start + 3 : start + 7]), q[start : start + 3]


def _check_representation(representation: str) -> None:
    if representation not in REPRESENTATIONS:
        raise OptionError(f"representation is '{representation}', expected one of {', '.join(REPRESENTATIONS)}")
