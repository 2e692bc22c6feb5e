"""SDF reader (versions 1.5 and later): one or several models in a world or alone, nested and included ones.

Links with inertia (given or automatic) and collisions; joints revolute, continuous, prismatic, ball, fixed,
universal and revolute2 (two revolute joints NAME_axis1 and NAME_axis2), of models and of the world; poses with
`relative_to` (`frame` in 1.5 and 1.6) and
placement frames; frames with `attached_to`, axes with `expressed_in`; mimic joints; friction, restitution and collision bits of
surfaces; gravity; <include>, merged or not (`trajopt.models.sdf_include`).

- A link that no joint carries floats freely, unless its model is static.
- As the format says: links of one model do not collide unless it sets self_collide; a link without <inertial> has mass
  1 kg and unit inertia (with a warning); dimensions of shapes that are left out are 1 m.
- A link that two joints carry is moved by the first; the second closes a loop (revolute, continuous, prismatic, ball, fixed).
- With several models in the file, names read MODEL::LINK.
- Left out with a warning: height maps and polylines, <gravity>false of single links, added mass of fluids, wind, velocity decay,
  torsional and directional friction. Plugins, sensors, visuals are left out in silence. Joints screw and gearbox are refused.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from trajopt.models.builder import ModelBuilder
from trajopt.models.descriptions import (
    ClosureDescription,
    FrameDescription,
    JointDescription,
    Mimic,
    perpendicular_axes,
)
from trajopt.models.limits import BODIES, refuse
from trajopt.models.massless import hold_massless_joints
from trajopt.models.messages import listed
from trajopt.models.sdf_frames import Pose, Scope, compose, invert, is_true, text_number, text_numbers
from trajopt.models.sdf_include import expand_includes
from trajopt.models.sdf_shapes import LinkReader
from trajopt.models.urdf import unit_axis
from trajopt.models.xml import bound, fail, required, warn_mended

_KINDS = {
    "revolute": "revolute",
    "continuous": "revolute",
    "prismatic": "prismatic",
    "ball": "ball",
    "fixed": "",
    "universal": "revolute",
    "revolute2": "revolute",
}
# What a joint becomes whose child link another joint carries already.
_CLOSURES = {"revolute": "hinge", "continuous": "hinge", "prismatic": "slide", "ball": "connect", "fixed": "weld"}
_TWO_AXES = ("universal", "revolute2")


def read_sdf(
    root: Element, name: str, source: str, path: Path | None = None, package_dirs: tuple[str, ...] = ()
) -> ModelBuilder:
    """A builder filled from an SDF document. Raises `ModelError` naming file, line, element and reason."""
    worlds = root.findall("world")
    holder = worlds[0] if worlds else root
    builder = ModelBuilder(name, source, format_leaves_collisions_open=True)
    warn_mended(root, builder.warn)
    if len(worlds) > 1:
        builder.warn(f"the file has {len(worlds)} worlds; the first is read")
    expand_includes(holder, source, path, package_dirs)
    models = holder.findall("model")
    if not models:
        fail(holder, source, "there is no <model>")
    builder.name = (holder.get("name") if worlds else models[0].get("name")) or name
    if worlds:
        builder.gravity = text_numbers(holder, "gravity", 3, source, builder.gravity)
    for model in models:
        required(model, "name", source)
    _read_scene(Scope(holder, "", source), LinkReader(builder, path, package_dirs))
    hold_massless_joints(builder)
    builder.warn_missing_meshes()
    return builder


def _read_scene(scene: Scope, reader: LinkReader) -> None:
    """Add the bodies, joints and frames of a world to the builder."""
    builder, source = reader.builder, reader.source
    elements: dict[str, tuple[Element, Scope, Scope]] = {}  # links with their model and the outermost one around it
    for model in scene.nested.values():
        own = {
            part.prefix + str(link.get("name")): (link, part, model) for part in model.scopes() for link in part.links()
        }
        if not own:
            fail(model.element, source, "the model has no <link>")
        elements |= own
        if len(elements) > BODIES:
            refuse(source, len(elements), BODIES, "links", "leave some models out")
        if not is_true(model.element, "self_collide"):
            builder.self_excludes |= {frozenset(pair) for pair in itertools.combinations(own, 2)}
    poses = {
        full: compose(part.world_pose, part.resolve(str(link.get("name"))))
        for full, (link, part, _) in elements.items()
    }
    carried, loops = _carried(scene, source)
    weightless = []
    for full in [full for full in elements if full not in carried] + list(carried):
        link, part, model = elements[full]
        body = reader.read(full, link, part)
        body.robot = model.name
        body.rotation, body.position = poses[full]
        if full in carried:
            joint, joint_scope, body.parent = carried[full]
            if body.parent is not None:
                body.rotation, body.position = compose(invert(poses[body.parent]), poses[full])
            if not part.static:
                body.joints = _read_joint(joint, joint_scope, poses[full], builder)
        elif not part.static:
            body.joints = [JointDescription(f"{full}_free", "free")]
        if not part.static and not is_true(link, "gravity", True):
            weightless.append(full)
        builder.add_body(body)
    for loop in loops:
        _close(loop, poses, builder)
    _without_gravity(weightless, [full for full, (_, part, _) in elements.items() if not part.static], builder)
    _add_frames(scene, builder, poses)


Loop = tuple[Element, Scope, str | None, str]  # joint, the model or world that holds it, parent link, child link


def _carried(scene: Scope, source: str) -> tuple[dict[str, tuple[Element, Scope, str | None]], list[Loop]]:
    """The joint above every link that one carries, the model or world that holds the joint, and the parent link; and the
    joints of links that another joint carries already, which close loops."""
    carried: dict[str, tuple[Element, Scope, str | None]] = {}
    loops: list[Loop] = []
    for part in scene.scopes():
        for joint in part.joints():
            parent, child = (part.attached_link(_end(joint, end, source), joint) for end in ("parent", "child"))
            if child is None:
                fail(joint, source, "its child is the world; make the world the parent")
            if child in carried:
                loops.append((joint, part, parent, child))
                continue
            carried[child] = (joint, part, parent)
    return carried, loops


def _close(loop: Loop, poses: dict[str, Pose], builder: ModelBuilder) -> None:
    """Add the closure that a joint between two links of one loop is: the child's frame tied to the parent's, as they lie."""
    joint, scope, parent, child = loop
    source = builder.source
    name, kind = required(joint, "name", source), required(joint, "type", source)
    if kind not in _CLOSURES:
        fail(
            joint,
            source,
            f"the joint closes a loop, since another one already carries link '{child}', and its type is '{kind}'; expected "
            f"one of {', '.join(_CLOSURES)}: make it one of these, or exchange the two joints",
        )
    rotation, position = compose(scope.world_pose, scope.resolve(name))
    axis = joint.find("axis")
    if _CLOSURES[kind] in ("hinge", "slide"):
        if axis is None:
            fail(joint, source, "child element <axis> is missing")
        direction = _axis_in_world(axis, scope, rotation, source)
        rotation = np.stack([*perpendicular_axes(direction), direction], 1)
        if axis.find("limit") is not None or axis.find("dynamics") is not None or axis.find("mimic") is not None:
            builder.warn(f"limits, dynamics and mimic of joint '{name}', which closes a loop, are left out")
    frame = rotation, position
    ends = [compose(invert(poses[link]), frame) if link is not None else frame for link in (child, parent)]
    builder.closures.append(ClosureDescription(scope.prefix + name, _CLOSURES[kind], child, parent, ends[0], ends[1]))


def _without_gravity(weightless: list[str], moving: list[str], builder: ModelBuilder) -> None:
    """Links with <gravity>false: no gravity for the model if all have it, else a warning."""
    if weightless and len(weightless) == len(moving):
        builder.gravity = np.zeros(3)
    elif weightless:
        builder.warn(
            f"<gravity>false</gravity> of single links is not supported, gravity acts on them: {listed(weightless)}"
        )


def _add_frames(scene: Scope, builder: ModelBuilder, poses: dict[str, Pose]) -> None:
    for part in scene.scopes():
        for frame in (entry for entry in part.entries.values() if entry.tag == "frame"):
            name = str(frame.get("name"))
            pose, carrier = compose(part.world_pose, part.resolve(name)), part.attached_link(name, frame)
            rotation, position = compose(invert(poses[carrier]), pose) if carrier else pose
            frames = builder.bodies[carrier].frames if carrier else builder.world_frames
            frames.append(FrameDescription(part.prefix + name, rotation, position))


def _end(joint: Element, end: str, source: str) -> str:
    name = (joint.findtext(end) or "").strip()
    if not name:
        fail(joint, source, f"child element <{end}> is missing or empty")
    return name


def _read_joint(joint: Element, scope: Scope, child_pose, builder: ModelBuilder) -> list[JointDescription]:
    """The joints between the child link and its parent, none if fixed; axes and anchor in the child link's frame."""
    source = builder.source
    name, kind = required(joint, "name", source), required(joint, "type", source)
    if kind not in _KINDS:
        known = "is not supported" if kind in ("screw", "gearbox") else "is unknown"
        fail(joint, source, f"the joint type '{kind}' {known}; expected one of {', '.join(_KINDS)}")
    if kind == "fixed":
        return []
    joint_pose = compose(scope.world_pose, scope.resolve(name))
    anchor = compose(invert(child_pose), joint_pose)[1]
    if kind == "ball":
        return [JointDescription(scope.prefix + name, "ball", anchor=anchor)]
    found: list[JointDescription] = []
    for tag in ("axis", "axis2") if kind in _TWO_AXES else ("axis",):
        axis = joint.find(tag)
        if axis is None:
            fail(joint, source, f"child element <{tag}> is missing")
        own_name = scope.prefix + name + (f"_axis{len(found) + 1}" if kind in _TWO_AXES else "")
        description = JointDescription(own_name, _KINDS[kind], anchor=anchor)
        description.axis = child_pose[0].T @ _axis_in_world(axis, scope, joint_pose[0], source)
        _read_axis(axis, kind, scope, description, source)
        found.append(description)
    return found


def _axis_in_world(axis: Element, scope: Scope, joint_rotation: np.ndarray, source: str) -> np.ndarray:
    direction = unit_axis(text_numbers(axis, "xyz", 3, source, [0, 0, 1]), axis, source)
    xyz = axis.find("xyz")
    frame = xyz.get("expressed_in", "") if xyz is not None else ""
    if frame:
        return scope.world_pose[0] @ scope.resolve(frame)[0] @ direction
    if is_true(axis, "use_parent_model_frame"):
        return scope.world_pose[0] @ direction
    return joint_rotation @ direction


def _read_axis(axis: Element, kind: str, scope: Scope, joint: JointDescription, source: str) -> None:
    limit, dynamics, mimic = axis.find("limit"), axis.find("dynamics"), axis.find("mimic")
    if limit is not None:
        if kind != "continuous":
            joint.lower, joint.upper = _bound(limit, "lower", -np.inf, source), _bound(limit, "upper", np.inf, source)
        if joint.lower > joint.upper:
            fail(limit, source, f"the lower limit {joint.lower} is above the upper limit {joint.upper}")
        effort = _bound(limit, "effort", np.inf, source)
        joint.effort = np.inf if effort < 0 else effort
    if dynamics is not None:
        joint.damping = text_number(dynamics, "damping", source, 0.0)
        joint.frictionloss = text_number(dynamics, "friction", source, 0.0)
        joint.stiffness = text_number(dynamics, "spring_stiffness", source, 0.0)
        joint.spring_reference = text_number(dynamics, "spring_reference", source, 0.0)
        if min(joint.damping, joint.frictionloss, joint.stiffness) < 0:
            fail(dynamics, source, "damping, friction and spring stiffness must not be negative")
    if mimic is not None:
        multiplier = text_number(mimic, "multiplier", source, 1.0)
        offset = text_number(mimic, "offset", source, 0.0)
        reference = text_number(mimic, "reference", source, 0.0)
        leader = scope.prefix + required(mimic, "joint", source)
        joint.mimic = Mimic(leader, multiplier, offset - multiplier * reference)


def _bound(element: Element, tag: str, default: float, source: str) -> float:
    """The limit in a child element."""
    return bound(element.findtext(tag), default, element, source, f"<{tag}>")
