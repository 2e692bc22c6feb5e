"""Numbers per coordinate: limits, armature, springs, actuation, mimic joints, default and named configurations.

A mimic joint, q_m = a q_s + b, hides its coordinate. Its own terms act on the joint it follows, with the factors that
keep energy and dissipated power: armature and damping a^2, a spring of stiffness a^2 k at rest at (r - b) / a, Coulomb
friction |a|; its limits become limits of q_s. These factors are fixed on load.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt.errors import ModelError
from trajopt.models.descriptions import ActuatorDescription, CouplingDescription, JointDescription
from trajopt.names import closest

_TERMS = ("armature", "damping", "frictionloss", "stiffness")


@dataclasses.dataclass
class Coordinates:
    """What `assemble_coordinates` finds. `mimics`: (name, tree DoF, user DoF followed)."""

    user_joints: list[tuple[JointDescription, int, int]]
    mimics: list[tuple[str, int, int]]
    leaves: dict
    actuators: tuple[str, ...]
    limited: tuple[int, ...]
    friction_dofs: tuple[int, ...]


def assemble_coordinates(
    joints: list[JointDescription],
    tree_dofs: dict[str, int],
    actuators: list[ActuatorDescription],
    couplings: list[CouplingDescription],
    keyframes: dict[str, dict[str, Float[np.ndarray, " k"]]],
    source: str,
    warn: Callable[[str], None],
) -> Coordinates:
    """Lay out the user's coordinates for `joints` (in the order of the nodes) and fill every leaf along them.

    `tree_dofs`: first tree DoF of every joint. Raises `ModelError` for broken mimic joints and actuators.
    """
    by_name = {joint.name: joint for joint in joints}
    followed = {joint.name: _resolve_mimic(joint, by_name, source) for joint in joints if joint.mimic}
    user_joints, nq, nv = [], 0, 0
    for joint in joints:
        if joint.name not in followed:
            user_joints.append((joint, nq, nv))
            nq, nv = nq + joint.nq, nv + joint.nv
    v_start = {joint.name: v for joint, _, v in user_joints}

    leaves: dict[str, Any] = {name: np.zeros(nv) for name in (*_TERMS, "spring_reference")}
    leaves |= {"lower": np.full(nv, -np.inf), "upper": np.full(nv, np.inf)}
    effort = np.full(nv, np.inf)
    for joint, _, v in user_joints:
        own = slice(v, v + joint.nv)
        for term in _TERMS:
            leaves[term][own] = getattr(joint, term)
        effort[own] = joint.effort
        if joint.nq == 1:
            leaves["spring_reference"][v] = joint.spring_reference
            leaves["lower"][v], leaves["upper"][v] = joint.lower, joint.upper
    for name, (leader, a, b) in followed.items():
        _fold_mimic(by_name[name], leaves, v_start[leader], a, b, warn)
    columns = {joint.name: (v, joint.nv, 1.0) for joint, _, v in user_joints}
    columns |= {name: (v_start[leader], 1, a) for name, (leader, a, _) in followed.items()}
    offsets = {name: b for name, (_, _, b) in followed.items()}
    if actuators:
        leaves |= _force_laws(actuators, _joint_force_ranges(joints, v_start, nv, warn), offsets)
    actuators = actuators or _identity_actuators(user_joints, effort)
    leaves |= _actuation(actuators, columns, nv, source) | _couplings(couplings, columns, offsets, nv)

    q_default = np.zeros(nq)
    for joint, q, _ in user_joints:
        q_default[q : q + joint.nq] = _default(joint)
    leaves |= {
        "mimic_multiplier": np.array([a for _, a, _ in followed.values()], float),
        "mimic_offset": np.array([b for _, _, b in followed.values()], float),
        "q_default": q_default,
        "keyframes": {name: _configuration(key, q_default, user_joints) for name, key in keyframes.items()},
    }
    return Coordinates(
        user_joints,
        [(name, tree_dofs[name], v_start[leader]) for name, (leader, _, _) in followed.items()],
        leaves,
        tuple(actuator.name for actuator in actuators),
        tuple(int(i) for i in np.flatnonzero(np.isfinite(leaves["lower"]) | np.isfinite(leaves["upper"]))),
        tuple(int(i) for i in np.flatnonzero(leaves["frictionloss"] > 0)),
    )


def _resolve_mimic(joint: JointDescription, by_name: dict, source: str) -> tuple[str, float, float]:
    """The joint that is followed in the end (mimics of mimics are chained), multiplier and offset."""
    a, b, seen, current = 1.0, 0.0, {joint.name: None}, joint
    while current.mimic:
        leader = current.mimic.source
        if leader not in by_name:
            raise ModelError(
                f"{source}: mimic joint '{current.name}' follows the unknown joint '{leader}'{closest(leader, by_name)}"
            )
        if leader in seen:
            raise ModelError(f"{source}: mimic joints follow each other in a loop: {' -> '.join([*seen, leader])}")
        for end in (current, by_name[leader]):
            if end.nq != 1:
                raise ModelError(
                    f"{source}: mimic joint '{current.name}' and '{leader}' must both be revolute or prismatic; "
                    f"'{end.name}' is {end.kind}"
                )
        b += a * current.mimic.offset
        a *= current.mimic.multiplier
        seen[leader] = None
        current = by_name[leader]
    return current.name, a, b


def _fold_mimic(joint: JointDescription, leaves: dict, v: int, a: float, b: float, warn: Callable[[str], None]) -> None:
    """Add the terms of a mimic joint, q = a q_s + b, to those of the DoF `v` it follows."""
    leaves["armature"][v] += a * a * joint.armature
    leaves["damping"][v] += a * a * joint.damping
    leaves["frictionloss"][v] += abs(a) * joint.frictionloss
    k = a * a * joint.stiffness
    if k > 0:
        total = leaves["stiffness"][v] + k
        rest = (joint.spring_reference - b) / a
        leaves["spring_reference"][v] = (leaves["stiffness"][v] * leaves["spring_reference"][v] + k * rest) / total
        leaves["stiffness"][v] = total
    if a == 0:
        return
    lower, upper = sorted(((joint.lower - b) / a, (joint.upper - b) / a))
    lower, upper = max(lower, leaves["lower"][v]), min(upper, leaves["upper"][v])
    if lower <= upper:
        leaves["lower"][v], leaves["upper"][v] = lower, upper
    else:
        warn(f"the limits of mimic joint '{joint.name}' leave its leader no range; they are ignored")


def _identity_actuators(user_joints, effort: np.ndarray) -> list[ActuatorDescription]:
    """One motor per DoF of every joint that is not free, within the joint's effort."""
    motors = []
    for joint, _, v in user_joints:
        if joint.kind == "free":
            continue
        for k in range(joint.nv):
            name = joint.name if joint.nv == 1 else f"{joint.name}:{'xyz'[k]}"
            motors.append(ActuatorDescription(name, {joint.name: np.eye(joint.nv)[k]}, -effort[v + k], effort[v + k]))
    return motors


def _actuation(actuators: list[ActuatorDescription], columns: dict, nv: int, source: str) -> dict:
    matrix = np.zeros((nv, len(actuators)))
    seen = set()
    for j, actuator in enumerate(actuators):
        if actuator.name in seen:
            raise ModelError(f"{source}: two actuators are called '{actuator.name}'; names must be unique")
        seen.add(actuator.name)
        for name, gear in actuator.gears.items():
            if name not in columns:
                raise ModelError(
                    f"{source}: actuator '{actuator.name}' drives the unknown joint '{name}'{closest(name, columns)}"
                )
            v, count, factor = columns[name]
            matrix[v : v + count, j] += factor * np.asarray(gear, float)
    return {
        "actuation": matrix,
        "control_lower": np.array([actuator.lower for actuator in actuators], float),
        "control_upper": np.array([actuator.upper for actuator in actuators], float),
    }


def _couplings(couplings: list[CouplingDescription], columns: dict, offsets: dict[str, float], nv: int) -> dict:
    """Arms, references and polynomials of coupled coordinates; a joint that follows another stands for a multiple of it."""
    arms, reference = np.zeros((len(couplings), 2, nv)), np.zeros((len(couplings), 2))
    for i, coupling in enumerate(couplings):
        reference[i] = coupling.reference
        for side, joints in enumerate((coupling.left, coupling.right)):
            for name, factor in joints.items():
                v, _, multiplier = columns[name]
                arms[i, side, v] += factor * multiplier
                reference[i, side] -= factor * offsets.get(name, 0.0)
    return {
        "coupling_arms": arms,
        "coupling_reference": reference,
        "coupling_polynomial": np.array([c.polynomial for c in couplings], float).reshape(-1, 5),
    }


def _joint_force_ranges(
    joints: list[JointDescription], v_start: dict[str, int], nv: int, warn: Callable[[str], None]
) -> Float[np.ndarray, "nv 2"]:
    """What all actuators together may do to each DoF."""
    ranges = np.full((nv, 2), (-np.inf, np.inf))
    for joint in joints:
        if joint.name in v_start:
            ranges[v_start[joint.name] : v_start[joint.name] + joint.nv] = joint.force_range
        elif np.isfinite(joint.force_range).any():
            warn(f"the force range of joint '{joint.name}', which follows another, is left out")
    return ranges


def _force_laws(
    actuators: list[ActuatorDescription], ranges: Float[np.ndarray, "nv 2"], offsets: dict[str, float]
) -> dict:
    """Gain, bias and force range of every actuator and the force range of every DoF; nothing where all are plain motors.

    offsets: of joints that follow others, by which lengths are longer.
    """
    if not np.isfinite(ranges).any() and all(actuator.plain for actuator in actuators):
        return {}
    gain, bias = (np.array([getattr(actuator, name) for actuator in actuators]) for name in ("gain", "bias"))
    for j, actuator in enumerate(actuators):
        longer = sum(float(gear[0]) * offsets.get(name, 0.0) for name, gear in actuator.gears.items())
        for law in (gain, bias):
            law[j, 0] += law[j, 1] * longer
    return {
        "actuator_gain": gain,
        "actuator_bias": bias,
        "actuator_range": np.array([actuator.force for actuator in actuators], float),
        "joint_force_range": ranges,
    }


def _default(joint: JointDescription) -> np.ndarray:
    if joint.initial is not None:
        return np.asarray(joint.initial, float)
    if joint.kind == "ball":
        return np.array([1.0, 0.0, 0.0, 0.0])
    if joint.kind == "free":
        return np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    return np.zeros(3) if joint.kind == "planar" else np.array([joint.reference])


def _configuration(key: dict[str, np.ndarray], q_default: np.ndarray, user_joints) -> np.ndarray:
    q = q_default.copy()
    for joint, start, _ in user_joints:
        if joint.name in key:
            q[start : start + joint.nq] = key[joint.name]
    return q
