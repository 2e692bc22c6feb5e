"""What every model has to satisfy: finite numbers, and mass where joints move bodies."""

import dataclasses

import numpy as np

from trajopt.dynamics.model import NODE_NV, Model
from trajopt.errors import ModelError

_MAY_BE_INFINITE = ("lower", "upper", "control_lower", "control_upper", "actuator_range", "joint_force_range")


def validate_model(model: Model, source: str = "") -> None:
    """Raise `ModelError` unless the shapes fit, all numbers are finite and the bodies that carry joints have mass.

    NumPy only, meant to run once, on load.
    """
    top = model.topology
    where = f"{source}: " if source else f"model '{top.name}': "
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if not isinstance(value, np.ndarray):
            continue
        bad = (
            np.isnan(value)
            if field.name in _MAY_BE_INFINITE
            else ~np.isfinite(value)
        )
        if bad.any():
            index = tuple(int(k) for k in np.argwhere(bad)[0])
            raise ModelError(
                f"{where}{field.name}[{', '.join(map(str, index))}] is {value[index]}; every number must be finite"
            )
    if np.any(model.mass < 0):
        i = int(np.argmax(model.mass < 0))
        raise ModelError(f"{where}body '{top.node_names[i]}' has negative mass {model.mass[i]}")
    subtree = top.node_mask.T @ model.mass
    for i in range(top.n_nodes):
        own = slice(top.v_starts[i], top.v_starts[i] + NODE_NV[top.node_types[i]])
        inertial = subtree[i] > 0 or (top.node_mask.T @ np.trace(model.inertia, axis1=1, axis2=2))[i] > 0
        user = np.isin(top.user_dofs, np.arange(own.start, own.stop))
        if not inertial and not (user.any() and np.all(model.armature[user] > 0)):
            raise ModelError(
                f"{where}body '{top.node_names[i]}' is moved by a joint but neither it nor its descendants have mass; "
                "give it an inertial element or make the joint fixed"
            )
