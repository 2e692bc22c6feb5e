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
    frame_along,
)
from trajopt.models.limits import BODIES, refuse
from trajopt.models.massless import hold_massless_joints
from trajopt.models.mesh_files import MeshFiles
from trajopt.models.messages import listed
from trajopt.models.sdf_frames import Pose, Scope, compose, invert, is_true, text_number, text_numbers
from trajopt.models.sdf_include import expand_includes
from trajopt.models.sdf_shapes import LinkReader
from trajopt.models.urdf import unit_axis
from trajopt.models.xml import bound, fail, required, required_child, warn_mended

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
    expand_includes(holder, path, package_dirs)
    models = holder.findall("model")
    if not models:
        fail(holder, "there is no <model>")
    builder.name = (holder.get("name") if worlds else models[0].get("name")) or name
    if worlds:
        builder.gravity = text_numbers(holder, "gravity", 3, builder.gravity)
    for model in models:
        required(model, "name")
    meshes = MeshFiles(builder, path, package_dirs)
    _read_scene(Scope(holder), LinkReader(builder, meshes))
    hold_massless_joints(builder)
    meshes.warn_missing()
    return builder


def _read_scene(scene: Scope, reader: LinkReader) -> None:
    """Add the bodies, joints and frames of a world to the builder."""
    builder = reader.builder
    elements: dict[str, tuple[Element, Scope, Scope]] = {}  # links with their model and the outermost one around it
    for model in scene.nested.values():
        own = {
            part.prefix + str(link.get("name")): (link, part, model)
            for part in model.scopes()
            for link in part.entries_of("link")
        }
        if not own:
            fail(model.element, "the model has no <link>")
        elements |= own
        if len(elements) > BODIES:
            refuse(builder.source, len(elements), BODIES, "links", "leave some models out")
        if not is_true(model.element, "self_collide"):
            builder.self_excludes |= {frozenset(pair) for pair in itertools.combinations(own, 2)}
    poses = {full: compose(part.world_pose, part.resolve(str(e.get("name")))) for full, (e, part, _) in elements.items()}
    carried, loops = _carried(scene)
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


def _carried(scene: Scope) -> tuple[dict[str, tuple[Element, Scope, str | None]], list[Loop]]:
    """The joint above every link that one carries, the model or world that holds the joint, and the parent link; and the
    joints of links that another joint carries already, which close loops."""
    carried: dict[str, tuple[Element, Scope, str | None]] = {}
    loops: list[Loop] = []
    for part in scene.scopes():
        for joint in part.entries_of("joint"):
            parent, child = (part.attached_link(_end(joint, end), joint) for end in ("parent", "child"))
            if child is None:
                fail(joint, "its child is the world; make the world the parent")
            if child in carried:
                loops.append((joint, part, parent, child))
                continue
            carried[child] = (joint, part, parent)
    return carried, loops


def _close(loop: Loop, poses: dict[str, Pose], builder: ModelBuilder) -> None:
    """Add the closure that a joint between two links of one loop is: the child's frame tied to the parent's, as they lie."""
    joint, scope, parent, child = loop
    name, kind = required(joint, "name"), required(joint, "type")
    if kind not in _CLOSURES:
        fail(
            joint,
            f"the joint closes a loop, since another one already carries link '{child}', and its type is '{kind}'; expected "
            f"one of {', '.join(_CLOSURES)}: make it one of these, or exchange the two joints",
        )
    rotation, position = compose(scope.world_pose, scope.resolve(name))
    if _CLOSURES[kind] in ("hinge", "slide"):
        axis = required_child(joint, "axis")
        direction = _axis_in_world(axis, scope, rotation)
        rotation = frame_along(direction)
        if any(axis.find(tag) is not None for tag in ("limit", "dynamics", "mimic")):
            builder.warn(f"limits, dynamics and mimic of joint '{name}', which closes a loop, are left out")
    frame = rotation, position
    ends = [compose(invert(poses[link]), frame) if link is not None else frame for link in (child, parent)]
    builder.closures.append(ClosureDescription(scope.prefix + name, _CLOSURES[kind], child, parent, ends[0], ends[1]))


def _without_gravity(weightless: list[str], moving: list[str], builder: ModelBuilder) -> None:
    """Links with <gravity>false: no gravity for the model if all have it, else a warning."""
    if weightless and len(weightless) == len(moving):
        builder.gravity = np.zeros(3)
    elif weightless:
        builder.warn(f"<gravity>false</gravity> of single links is not supported, gravity acts on them: {listed(weightless)}")


def _add_frames(scene: Scope, builder: ModelBuilder, poses: dict[str, Pose]) -> None:
    for part in scene.scopes():
        for frame in part.entries_of("frame"):
            name = str(frame.get("name"))
            pose, carrier = compose(part.world_pose, part.resolve(name)), part.attached_link(name, frame)
            rotation, position = compose(invert(poses[carrier]), pose) if carrier else pose
            frames = builder.bodies[carrier].frames if carrier else builder.world_frames
            frames.append(FrameDescription(part.prefix + name, rotation, position))


def _end(joint: Element, end: str) -> str:
    name = (joint.findtext(end) or "").strip()
    if not name:
        fail(joint, f"child element <{end}> is missing or empty")
    return name


def _read_joint(joint: Element, scope: Scope, child_pose, builder: ModelBuilder) -> list[JointDescription]:
    """The joints between the child link and its parent, none if fixed; axes and anchor in the child link's frame."""
    name, kind = required(joint, "name"), required(joint, "type")
    if kind not in _KINDS:
        known = "is not supported" if kind in ("screw", "gearbox") else "is unknown"
        fail(joint, f"the joint type '{kind}' {known}; expected one of {', '.join(_KINDS)}")
    if kind == "fixed":
        return []
    joint_pose = compose(scope.world_pose, scope.resolve(name))
    anchor = compose(invert(child_pose), joint_pose)[1]
    if kind == "ball":
        return [JointDescription(scope.prefix + name, "ball", anchor=anchor)]
    joints: list[JointDescription] = []
    tags = ("axis", "axis2") if kind in _TWO_AXES else ("axis",)
    for k, tag in enumerate(tags):
        axis, suffix = required_child(joint, tag), f"_axis{k + 1}" if kind in _TWO_AXES else ""
        description = JointDescription(scope.prefix + name + suffix, _KINDS[kind], anchor=anchor)
        description.axis = child_pose[0].T @ _axis_in_world(axis, scope, joint_pose[0])
        _read_axis(axis, kind, scope, description)
        joints.append(description)
    return joints


def _axis_in_world(axis: Element, scope: Scope, joint_rotation: np.ndarray) -> np.ndarray:
    direction = unit_axis(text_numbers(axis, "xyz", 3, [0, 0, 1]), axis)
    xyz = axis.find("xyz")
    frame = xyz.get("expressed_in", "") if xyz is not None else ""
    if frame:
        return scope.world_pose[0] @ scope.resolve(frame)[0] @ direction
    if is_true(axis, "use_parent_model_frame"):
        return scope.world_pose[0] @ direction
    return joint_rotation @ direction


def _read_axis(axis: Element, kind: str, scope: Scope, joint: JointDescription) -> None:
    limit, dynamics, mimic = axis.find("limit"), axis.find("dynamics"), axis.find("mimic")
    if limit is not None:
        defaults = {"lower": -np.inf, "upper": np.inf, "effort": np.inf}
        lower, upper, effort = (bound(limit.findtext(k), default, limit, f"<{k}>") for k, default in defaults.items())
        if kind != "continuous":
            joint.lower, joint.upper = lower, upper
        if joint.lower > joint.upper:
            fail(limit, f"the lower limit {joint.lower} is above the upper limit {joint.upper}")
        joint.effort = np.inf if effort < 0 else effort
    if dynamics is not None:
        keys = ("damping", "friction", "spring_stiffness", "spring_reference")
        joint.damping, joint.frictionloss, joint.stiffness, joint.spring_reference = (
            text_number(dynamics, key, 0.0) for key in keys
        )
        if min(joint.damping, joint.frictionloss, joint.stiffness) < 0:
            fail(dynamics, "damping, friction and spring stiffness must not be negative")
    if mimic is not None:
        multiplier = text_number(mimic, "multiplier", 1.0)
        offset, reference = text_number(mimic, "offset", 0.0), text_number(mimic, "reference", 0.0)
        leader = scope.prefix + required(mimic, "joint")
        joint.mimic = Mimic(leader, multiplier, offset - multiplier * reference)

