"""Names and units of what a motion consists of: coordinates, controls, limbs of the robot."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import JointSpec, Model

LINEAR = {"free": 3, "planar": 2, "prismatic": 1}  # leading velocities of a joint that are in m/s


@dataclasses.dataclass(frozen=True)
class Limb:
    """Joints with one degree of freedom that follow each other without a branch: a leg, an arm.

    labels: of the joints, without what all of them have in common.
    """

    name: str
    joints: tuple[JointSpec, ...]
    labels: tuple[str, ...]


def coordinate_names(model: Model) -> tuple[list[str], list[str], list[str]]:
    """Names of all coordinates q, velocities v and controls u of a model; of ball joints, the components."""
    q_names, v_names = [""] * model.nq, [""] * model.nv
    linear, quaternion = ["x", "y", "z"], ["qw", "qx", "qy", "qz"]
    parts = {
        "free": (linear + quaternion, ["vx", "vy", "vz", "ωx", "ωy", "ωz"]),
        "ball": (quaternion, ["ωx", "ωy", "ωz"]),
        "planar": (["x", "y", "angle"], ["vx", "vy", "ω"]),
    }
    for joint in model.topology.joints:
        of_q, of_v = parts.get(joint.kind, ([""], [""]))
        for k in range(joint.nq):
            q_names[joint.q_start + k] = f"{joint.name} {of_q[k]}".strip()
        for k in range(joint.nv):
            v_names[joint.v_start + k] = f"{joint.name} {of_v[k]}".strip()
    return q_names, v_names, list(model.topology.actuators)


def actuator_units(model: Model) -> list[str]:
    """Unit of each control of a model, (nu,): "N m" or "N" where it is the torque or force of what it drives, "" where a gear
    makes it a share of one, a servo takes something else, or where it drives both kinds."""
    turning = np.zeros(model.nv, bool)
    for joint in model.topology.joints:
        turning[joint.v_start + LINEAR.get(joint.kind, 0) : joint.v_start + joint.nv] = True
    units = []
    gain = np.asarray(model.actuator_gain)
    for k, column in enumerate(np.asarray(model.actuation).T):
        if len(gain) and tuple(gain[k]) != (1.0, 0.0, 0.0):  # a servo, whose control is no force
            units.append("")
            continue
        driven = column != 0
        of_torque = turning[driven].tolist()
        direct = len(set(of_torque)) == 1 and bool((np.abs(column[driven]) == 1).all())
        units.append(("N m" if of_torque[0] else "N") if direct else "")
    return units


def control_labels(
    count: int, model: Model | None = None, names: Sequence[str] = (), units: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Names and units of the `count` controls of a motion, "" for a unit that is not known.

    The problem's own `names` and `units` come first; without them the actuators of a model that has as many; else the controls
    have numbers. Names of another count than the controls are left aside.
    """
    if len(names) == count:
        return list(names), list(units) if len(units) == count else [""] * count
    if model is not None and model.nu == count:
        return list(model.topology.actuators), actuator_units(model)
    return [f"u {k}" for k in range(count)], [""] * count


def limbs(model: Model) -> list[Limb]:
    """The model's joints of one degree of freedom, in its order, cut where the tree branches and where motors begin."""
    top = model.topology
    driven = np.asarray(model.actuation).reshape(model.nv, -1).any(axis=1).reshape(-1)
    children = np.bincount([parent for parent in top.parents if parent >= 0], minlength=top.n_nodes)
    chains: list[list[JointSpec]] = []
    ends: dict[int, int] = {}  # last node of a chain -> the chain
    moved = {node for joint in top.joints for node in joint.nodes}
    for joint in top.joints:
        if joint.nv != 1:
            continue
        parent = top.parents[joint.nodes[0]]
        while parent >= 0 and parent not in ends and children[parent] == 1 and parent not in moved:
            parent = top.parents[parent]
        chain = ends.get(parent) if parent >= 0 and children[parent] == 1 else None
        if chain is not None and driven[chains[chain][-1].v_start] != driven[joint.v_start]:
            chain = None
        if chain is None:
            chain = len(chains)
            chains.append([])
        chains[chain].append(joint)
        ends[joint.nodes[-1]] = chain
    return _named(chains)


def _named(chains: Sequence[Sequence[JointSpec]]) -> list[Limb]:
    """Limbs with the words their joints begin with as names, which are made to differ."""
    plain = [[joint.name.removesuffix("_joint") for joint in chain] for chain in chains]
    prefixes = [_common(names) for names in plain]
    named = []
    for chain, names, prefix in zip(chains, plain, prefixes, strict=True):
        labels = [name.removeprefix(prefix).strip("_") or name for name in names]
        title = prefix.strip("_")
        if len(chain) == 1:
            title, labels = names[0], [names[0]]
        elif not title or prefixes.count(prefix) > 1:
            title = f"{title} {labels[0]} … {labels[-1]}".strip().replace("_", " ")
        named.append(Limb(title, tuple(chain), tuple(labels)))
    return named


def _common(names: Sequence[str]) -> str:
    """The words, ended by underscores, that all names begin with."""
    shared = os.path.commonprefix([*names])
    return shared[: shared.rfind("_") + 1] if len(names) > 1 else ""


def driven_joint(model: Model) -> dict[str, int]:
    """The velocity that each actuator of one joint drives, by the actuator's name."""
    dofs = {}
    for name, column in zip(model.topology.actuators, np.asarray(model.actuation).T, strict=True):
        driven = np.flatnonzero(column)
        if len(driven) == 1:
            dofs[name] = int(driven[0])
    return dofs


def of_model(motion: Mapping[str, Float[np.ndarray, "..."]], model: Model | None) -> bool:
    """Whether the coordinates of the motion are those of the model, so that its names are theirs."""
    if model is None:
        return False
    sizes = {"q": model.nq, "v": model.nv}
    return all(motion[key].shape[1] == size for key, size in sizes.items() if key in motion)


def shape_name(model: Model, index: int) -> str:
    """What a contact of this shape is called: the shape, or the link that carries it, where the shape has no name of its own."""
    shape = model.topology.shapes[index]
    names = [other.name for other in model.topology.shapes]
    generic = not shape.name or names.count(shape.name) > 1 or shape.name.lower().startswith(("geom", "shape", "collision"))
    if generic and shape.node >= 0:
        return model.topology.node_names[shape.node]
    return shape.name or "the ground"


def pair_name(model: Model, pair: int) -> str:
    """What touches: the shape that moves where the other is the fixed world, else both."""
    one, two = model.topology.pairs[pair]
    moving = [index for index in (one, two) if model.topology.shapes[index].node >= 0]
    return " – ".join(shape_name(model, index) for index in moving or (one, two))
