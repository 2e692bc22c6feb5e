"""MuJoCo's actuators, f = gain u + bias within the force range and tau = gear * f (`dynamics.rigid_body.actuation`).

- Motors (fixed gain, no bias) on joints and on fixed tendons: the column is gain times gear, the limits of the control those of
  ctrlrange, forcerange and the joint's actuatorfrcrange together; the last two also clip the force.
- Servos (position, velocity, damper, general with affine gain and bias) on hinges, slides and fixed tendons, of free
  and ball joints where the length of the actuator does not enter: their law as it stands, with kp, kv, dampratio and
  inheritrange as MuJoCo compiles them. The limits of the control are those of ctrlrange.
- Actuators with a state of their own (intvelocity, cylinder, muscle, timeconst, delays, ...) and laws that are not
  affine are left out, with a warning that names each and its state.
- Transmissions whose lever arms change with the configuration (sites, slider cranks, spatial tendons, bodies, ball and
  free joints in their parent's frame) cannot be written as a constant matrix: such actuators are left out, with a
  warning.
"""

import mujoco
import numpy as np

from trajopt.models.builder import ModelBuilder
from trajopt.models.descriptions import ActuatorDescription

_TRN = mujoco.mjtTrn
_NONE_OR_FIXED = {"gain": int(mujoco.mjtGain.mjGAIN_FIXED), "bias": int(mujoco.mjtBias.mjBIAS_NONE)}


def add_actuators(model: mujoco.MjModel, joint_names: list[str], builder: ModelBuilder) -> None:
    """Translate every actuator of `model` into the builder. See the module docstring for what becomes of which."""
    joints = {joint.name: joint for body in builder.bodies.values() for joint in body.joints}
    dropped, refused = [], []
    for a in range(len(model.actuator_gear)):
        name = model.actuator(a).name or _own_name(model, a, joint_names)
        gears = _gears(model, a, joint_names, joints)
        if gears is None:
            dropped.append(f"'{name}' ({_TRN(int(model.actuator_trntype[a])).name.removeprefix('mjTRN_').lower()})")
            continue
        reason = _refusal(model, a, gears, joints)
        if reason:
            refused.append(f"'{name}' ({reason})")
            continue
        _add_damping(model, a, name, gears, joints, builder)
        reflected = float(getattr(model, "actuator_armature", np.zeros(a + 1))[a])
        if reflected and len(gears) == 1:
            (joint, gear), *_ = gears.items()
            if len(gear) == 1:
                joints[joint].armature += reflected * float(gear[0]) ** 2
        builder.actuators.append(_described(model, a, name, gears, joints))
    for t in np.flatnonzero(np.asarray(getattr(model, "tendon_actfrclimited", []))):
        builder.warn(f"the actuatorfrcrange of tendon '{model.tendon(int(t)).name}' is left out")
    left = "" if builder.actuators else "; with none left, every joint gets a motor of its own"
    of_law = "with a state of their own, or whose force is no affine function of length and velocity,"
    for kind, names in ((of_law, refused), ("whose transmission is not a constant matrix", dropped)):
        if names:
            builder.warn(f"actuators {kind} are left out: {', '.join(names)}{left}")


def _described(model: mujoco.MjModel, a: int, name: str, gears: dict, joints: dict) -> ActuatorDescription:
    """The law of an actuator that `_refusal` lets pass."""
    force = (-np.inf, np.inf)
    if model.actuator_forcelimited[a]:
        low, high = map(float, model.actuator_forcerange[a])
        force = (low, high)
    lower, upper = -np.inf, np.inf
    if model.actuator_ctrllimited[a]:
        lower, upper = map(float, model.actuator_ctrlrange[a])
    gain, bias = _affine(model, a, "gain"), _affine(model, a, "bias")
    if gain[1:] != (0.0, 0.0) or bias != (0.0, 0.0, 0.0) or not gain[0]:
        return ActuatorDescription(name, gears, lower, upper, gain, bias, force)
    scale = gain[0]
    low, high = sorted((force[0] / scale, force[1] / scale))
    gears = {joint: scale * gear for joint, gear in gears.items()}
    bounds = _joint_force_limit(gears, joints, max(lower, low), min(upper, high))
    return ActuatorDescription(name, gears, *bounds, force=(low, high))


def _affine(model: mujoco.MjModel, a: int, part: str) -> tuple[float, float, float]:
    """Constant, factor of the length and factor of the velocity of "gain" or "bias"."""
    kind, numbers = int(getattr(model, f"actuator_{part}type")[a]), getattr(model, f"actuator_{part}prm")[a]
    count = {_NONE_OR_FIXED[part]: 1 if part == "gain" else 0}.get(kind, 3)
    constant, length, velocity = (float(x) if k < count else 0.0 for k, x in enumerate(numbers[:3]))
    return constant, length, velocity


def _refusal(model: mujoco.MjModel, a: int, gears: dict, joints: dict) -> str:
    """Why the actuator's force is not an affine function of control, length and velocity; empty where it is."""
    dynamics, gain, bias = (int(getattr(model, f"actuator_{part}type")[a]) for part in ("dyn", "gain", "bias"))
    if dynamics != mujoco.mjtDyn.mjDYN_NONE:
        return f"its activation, '{mujoco.mjtDyn(dynamics).name.removeprefix('mjDYN_').lower()}', is a state"
    if float(getattr(model, "actuator_delay", np.zeros(a + 1))[a]) > 0:
        return "its delayed control is a state"
    if gain not in (mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtGain.mjGAIN_AFFINE):
        return f"gain '{mujoco.mjtGain(gain).name.removeprefix('mjGAIN_').lower()}'"
    if bias not in (mujoco.mjtBias.mjBIAS_NONE, mujoco.mjtBias.mjBIAS_AFFINE):
        return f"bias '{mujoco.mjtBias(bias).name.removeprefix('mjBIAS_').lower()}'"
    if int(getattr(model, "actuator_ctrlnum", np.ones(a + 1))[a]) != 1:
        return "several controls"
    balls = [name for name in gears if joints[name].kind == "ball"]
    if balls and (_affine(model, a, "gain")[1] or _affine(model, a, "bias")[1]):
        return f"servo on the angle of ball joint '{balls[0]}'"
    return ""


def _add_damping(model: mujoco.MjModel, a: int, name: str, gears: dict, joints: dict, builder: ModelBuilder) -> None:
    """An actuator's own damping, a passive force against its velocity, as that of the joint that it drives alone."""
    damping = float(np.reshape(getattr(model, "actuator_damping", np.zeros(a + 1))[a], -1)[0])
    if not damping:
        return
    (joint, gear), *others = gears.items()
    if others or len(gear) > 1:
        builder.warn(f"the damping of actuator '{name}', which drives several DoFs, is left out")
        return
    joints[joint].damping += damping * float(gear[0]) ** 2


def _own_name(model: mujoco.MjModel, a: int, joint_names: list[str]) -> str:
    """A name for an unnamed actuator: its joint's, unless that would not be unique."""
    target = int(model.actuator_trnid[a, 0])
    if int(model.actuator_trntype[a]) == _TRN.mjTRN_JOINT:
        others = [b for b in range(len(model.actuator_gear)) if b != a]
        shared = any(np.array_equal(model.actuator_trnid[b], model.actuator_trnid[a]) for b in others)
        if not shared and all(model.actuator(b).name != joint_names[target] for b in others):
            return joint_names[target]
    return f"actuator{a}"


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
