"""MuJoCo's equality constraints as constraints that hold exactly (`dynamics.contact.closures`).

- `connect` and `weld`, of bodies or sites: closures, their frames as MuJoCo compiles them;
- `joint`: a linear coupling, y - y_0 = c_0 + c_1 (x - x_0), becomes a mimic joint, which has no error at all; every
  other one, also a second one of the same joint, and `tendon` on fixed tendons: a coupling with its polynomial.

solref, solimp and torquescale, which say how soft MuJoCo's are, have no counterpart. Constraints that are not active at
the start are left out in silence, others (spatial tendons, flexes, distances) with a warning.
"""

from __future__ import annotations

import mujoco
import numpy as np

from trajopt.models.builder import ModelBuilder
from trajopt.models.descriptions import ClosureDescription, CouplingDescription, Mimic, quaternion_to_matrix

_EQ = mujoco.mjtEq
Frame = tuple[np.ndarray, np.ndarray]


def add_equalities(
    model: mujoco.MjModel, body_names: list[str], joint_names: list[str], builder: ModelBuilder
) -> None:
    """Translate every active equality constraint of `model` into the builder. See the module docstring."""
    joints = {joint.name: joint for body in builder.bodies.values() for joint in body.joints}
    for k in range(model.neq):
        if not model.eq_active0[k]:
            continue
        kind = _EQ(int(model.eq_type[k]))
        short = kind.name.removeprefix("mjEQ_").lower()
        name = model.equality(k).name or f"{short}{k}"
        one, two = int(model.eq_obj1id[k]), int(model.eq_obj2id[k])
        data = [float(x) for x in model.eq_data[k]]
        if kind in (_EQ.mjEQ_CONNECT, _EQ.mjEQ_WELD):
            builder.closures.append(_closure(model, body_names, k, name, short))
        elif kind == _EQ.mjEQ_JOINT:
            y, x = joints[joint_names[one]], joints[joint_names[two]] if two >= 0 else None
            if x is not None and y.mimic is None and not any(data[2:5]):
                y.mimic = Mimic(x.name, data[1], y.reference + data[0] - data[1] * x.reference)
                continue
            right = {} if x is None else {x.name: 1.0}
            reference = y.reference, 0.0 if x is None else x.reference
            builder.couplings.append(CouplingDescription(name, {y.name: 1.0}, right, reference, tuple(data[:5])))
        elif kind == _EQ.mjEQ_TENDON and all(_is_fixed(model, t) for t in (one, two) if t >= 0):
            arms = [_arms(model, t, joint_names) if t >= 0 else {} for t in (one, two)]
            lengths = [float(model.tendon_length0[t]) if t >= 0 else 0.0 for t in (one, two)]
            ends = lengths[0], lengths[1]
            builder.couplings.append(CouplingDescription(name, arms[0], arms[1], ends, tuple(data[:5])))
        else:
            label = model.equality(k).name or f"number {k}"
            builder.warn(f"equality constraint '{short}' ({label}) is not supported; it is left out")


def _closure(model: mujoco.MjModel, body_names: list[str], k: int, name: str, kind: str) -> ClosureDescription:
    ids, data = (int(model.eq_obj1id[k]), int(model.eq_obj2id[k])), model.eq_data[k]
    if int(model.eq_objtype[k]) == mujoco.mjtObj.mjOBJ_SITE:
        frames = [(quaternion_to_matrix(model.site_quat[s]), np.array(model.site_pos[s])) for s in ids]
        bodies = [int(model.site_bodyid[s]) for s in ids]
    elif kind == "connect":
        frames, bodies = [(np.eye(3), np.array(data[:3])), (np.eye(3), np.array(data[3:6]))], list(ids)
    else:
        frames = [(quaternion_to_matrix(data[6:10]), np.array(data[3:6])), (np.eye(3), np.array(data[:3]))]
        bodies = list(ids)
    owners = [body_names[b] if b else None for b in bodies]
    return ClosureDescription(name, kind, owners[0], owners[1], frames[0], frames[1])


def _is_fixed(model: mujoco.MjModel, tendon: int) -> bool:
    return all(int(model.wrap_type[w]) == mujoco.mjtWrap.mjWRAP_JOINT for w in _wraps(model, tendon))


def _arms(model: mujoco.MjModel, tendon: int, joint_names: list[str]) -> dict[str, float]:
    """Factor of every joint's coordinate in the length of a fixed tendon."""
    arms: dict[str, float] = {}
    for w in _wraps(model, tendon):
        name = joint_names[int(model.wrap_objid[w])]
        arms[name] = arms.get(name, 0.0) + float(model.wrap_prm[w])
    return arms


def _wraps(model: mujoco.MjModel, tendon: int) -> range:
    first = int(model.tendon_adr[tendon])
    return range(first, first + int(model.tendon_num[tendon]))
