"""Joints that move no mass: published files have them for grippers, sensors and tools whose masses nobody measured.

Their acceleration is not determined by any force. Pinocchio reads such files, and fails when it divides; here the
joints are held at their default, with a warning, as long as something else in the file moves mass.
"""

import numpy as np

from trajopt.errors import ModelError
from trajopt.models.builder import ModelBuilder
from trajopt.models.messages import listed


def hold_massless_joints(builder: ModelBuilder) -> None:
    """Turn joints below which there is no mass into fixed ones. `ModelError` if no joint of the file moves mass."""
    children: dict[str | None, list[str]] = {}
    for body in builder.bodies.values():
        children.setdefault(body.parent, []).append(body.name)
    massive: dict[str, bool] = {}
    order = list(children.get(None, []))
    for name in order:
        order += children.get(name, [])
    for name in reversed(order):
        body = builder.bodies[name]
        own = body.mass > 0 or bool(np.trace(body.inertia) > 0)
        massive[name] = own or any(massive[child] for child in children.get(name, []))
    moving = [body for name in order if (body := builder.bodies[name]).joints]
    held = [body for body in moving if not massive[body.name]]
    led = {joint.mimic.source for body in moving if massive[body.name] for joint in body.joints if joint.mimic}
    held = [body for body in held if not any(joint.name in led for joint in body.joints)]
    if not held:
        return
    if len(held) == len(moving):
        raise ModelError(
            f"{builder.source}: body '{held[0].name}' is moved by a joint but neither it nor its descendants have mass, as all "
            "others that joints move; give them inertial elements with a mass or make the joints fixed"
        )
    names = [f"'{joint.name}'" for body in held for joint in body.joints]
    builder.warn(
        f"{len(names)} joint{'s move' if len(names) > 1 else ' moves'} no mass and {'are' if len(names) > 1 else 'is'} taken as "
        f"fixed: {listed(names)}; give the links below an inertial element"
    )
    for body in held:
        body.joints = []
