"""MuJoCo's actuators as motors, tau = gear * u, which is all that `Model.actuation` holds.

- Motors (fixed gain, no bias, no activation dynamics) on joints and on fixed tendons are kept as they are: the column
  is gain times gear, the limits those of ctrlrange, forcerange and the joint's actuatorfrcrange together.
- Servos and other laws (position, velocity, damper, filtered, muscle, ...) on joints and fixed tendons become torque
  motors: u is then the actuator's force, limited by forcerange. One warning names them.
- Transmissions whose lever arms change with the configuration (sites, slider cranks, spatial tendons, bodies, ball and
  free joints in their parent's frame) cannot be written as a constant matrix: such actuators are left out, with a
  warning.
"""

from __future__ import annotations

import mujoco
import numpy as np

from trajopt.models.builder import ModelBuilder
from trajopt.models.descriptions import ActuatorDescription

_TRN = mujoco.mjtTrn


def add_actuators(model: mujoco.MjModel, joint_names: list[str], builder: ModelBuilder) -> None:
    """Translate every actuator of `model` into the builder. See the module docstring for what becomes of which."""
    joints = {joint.name: joint for body in builder.bodies.values() for joint in body.joints}
    servos, dropped = [], []
    for a in range(len(model.actuator_gear)):
        name = model.actuator(a).name or _own_name(model, a, joint_names)
        gears = _gears(model, a, joint_names, joints)
        if gears is None:
            dropped.append(f"'{name}' ({_TRN(int(model.actuator_trntype[a])).name.removeprefix('mjTRN_').lower()})")
            continue
        reflected = float(getattr(model, "actuator_armature", np.zeros(a + 1))[a])
        if reflected and len(gears) == 1:
            (joint, gear), *_ = gears.items()
            if len(gear) == 1:
                joints[joint].armature += reflected * float(gear[0]) ** 2
        lower, upper = -np.inf, np.inf
        if model.actuator_forcelimited[a]:
            lower, upper = map(float, model.actuator_forcerange[a])
        if _is_motor(model, a):
            gain = float(model.actuator_gainprm[a, 0])
            if gain:
                lower, upper = sorted((lower / gain, upper / gain))
            gears = {joint: gain * gear for joint, gear in gears.items()}
            if model.actuator_ctrllimited[a]:
                low, high = map(float, model.actuator_ctrlrange[a])
                lower, upper = max(lower, low), min(upper, high)
        else:
            servos.append(name)
        lower, upper = _joint_force_limit(gears, joints, lower, upper)
        builder.actuators.append(ActuatorDescription(name, gears, lower, upper))
    if servos:
        builder.warn(
            "actuators that are not plain motors are taken as motors whose control is their force, within their "
            f"forcerange: {', '.join(repr(name) for name in servos)}"
        )
    if dropped:
        builder.warn(
            "actuators whose transmission is not a constant matrix are left out: "
            + ", ".join(dropped)
            + ("" if builder.actuators else "; with none left, every joint gets a motor of its own")
        )


def _own_name(model: mujoco.MjModel, a: int, joint_names: list[str]) -> str:
    """A name for an unnamed actuator: its joint's, unless that would not be unique."""
    target = int(model.actuator_trnid[a, 0])
    if int(model.actuator_trntype[a]) == _TRN.mjTRN_JOINT:
        others = [b for b in range(len(model.actuator_gear)) if b != a]
        shared = any(np.array_equal(model.actuator_trnid[b], model.actuator_trnid[a]) for b in others)
        if not shared and all(model.actuator(b).name != joint_names[target] for b in others):
            return joint_names[target]
    return f"actuator{a}"


def _is_motor(model: mujoco.MjModel, a: int) -> bool:
    return (
        int(model.actuator_gaintype[a]) == mujoco.mjtGain.mjGAIN_FIXED
        and int(model.actuator_biastype[a]) == mujoco.mjtBias.mjBIAS_NONE
        and int(model.actuator_dyntype[a]) == mujoco.mjtDyn.mjDYN_NONE
    )


def _gears(model: mujoco.MjModel, a: int, joint_names: list[str], joints: dict) -> dict[str, np.ndarray] | None:
    """Constant lever arms by joint, or None."""
    if int(getattr(model, "actuator_outnum", np.ones(a + 1))[a]) != 1:
        return None
    kind, target = int(model.actuator_trntype[a]), int(model.actuator_trnid[a, 0])
    gear = np.array(model.actuator_gear[a])
    if kind in (_TRN.mjTRN_JOINT, _TRN.mjTRN_JOINTINPARENT):
        joint = joints[joint_names[target]]
        if kind == _TRN.mjTRN_JOINTINPARENT and joint.nv > 1:
            return None
        return {joint.name: gear[: joint.nv]}
    if kind == _TRN.mjTRN_TENDON:
        wraps = range(int(model.tendon_adr[target]), int(model.tendon_adr[target]) + int(model.tendon_num[target]))
        if any(int(model.wrap_type[w]) != mujoco.mjtWrap.mjWRAP_JOINT for w in wraps):
            return None
        arms: dict[str, np.ndarray] = {}
        for w in wraps:
            name = joint_names[int(model.wrap_objid[w])]
            arms[name] = arms.get(name, np.zeros(1)) + gear[0] * float(model.wrap_prm[w])
        return arms
    return None


def _joint_force_limit(gears: dict, joints: dict, lower: float, upper: float) -> tuple[float, float]:
    """Tighten control limits by the largest force of the joint that a motor drives alone."""
    for name, gear in gears.items():
        effort = joints[name].effort
        if len(gears) == 1 and len(gear) == 1 and np.isfinite(effort) and gear[0]:
            bound = effort / abs(float(gear[0]))
            lower, upper = max(lower, -bound), min(upper, bound)
    return lower, upper
