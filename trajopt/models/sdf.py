"""SDF reader (versions 1.5 and later), a subset: one or several models, nested ones included.

Links with inertia and collisions, joints revolute, continuous, prismatic, ball, fixed and universal (two revolute
joints NAME_axis1 and NAME_axis2), poses with `relative_to`, frames with `attached_to`, axes with `expressed_in`, mimic
joints, friction and restitution of surfaces, gravity, <include> of models that are found locally.

- A link that no joint carries floats freely, unless its model is static.
- As the format says: links of one model do not collide unless it sets self_collide; a link without <inertial> has mass
  1 kg and unit inertia (with a warning).
- With several models in the file, names read MODEL::LINK.
- Plugins, sensors, visuals, height maps and polylines are left out, the latter two with a warning.
"""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from trajopt.dynamics.model import ShapeType
from trajopt.errors import ModelError
from trajopt.models.builder import ModelBuilder
from trajopt.models.descriptions import (
    DEFAULT_FRICTION,
    BodyDescription,
    FrameDescription,
    JointDescription,
    Mimic,
    ShapeDescription,
    perpendicular_axes,
)
from trajopt.models.meshes import resolve_uri
from trajopt.models.sdf_frames import (
    Scope,
    compose,
    invert,
    is_true,
    own_pose,
    text_number,
    text_numbers,
)
from trajopt.models.urdf import read_mesh, unit_axis
from trajopt.models.xml import fail, parse_xml, read_file, required, where

_KINDS = {
    "revolute": "revolute",
    "continuous": "revolute",
    "prismatic": "prismatic",
    "ball": "ball",
    "fixed": "",
    "universal": "revolute",
}
_UNBOUNDED = 1e16  # the format's own default limit


def read_sdf(
    root: Element, name: str, source: str, path: Path | None = None, package_dirs: tuple[str, ...] = ()
) -> ModelBuilder:
    """A builder filled from an SDF document. Raises `ModelError` naming file, line, element and reason."""
    worlds = root.findall("world")
    holder = worlds[0] if worlds else root
    builder = ModelBuilder(name, source, format_leaves_collisions_open=True)
    if len(worlds) > 1:
        builder.warn(f"the file has {len(worlds)} worlds; the first is read")
    _expand_includes(holder, builder, path, package_dirs, 0)
    models = holder.findall("model")
    if not models:
        fail(holder, source, "there is no <model>")
    builder.name = (holder.get("name") if worlds else models[0].get("name")) or name
    if worlds:
        builder.gravity = text_numbers(holder, "gravity", 3, source, builder.gravity)
    for model in models:
        own_name = required(model, "name", source)
        prefix = "" if len(models) == 1 else f"{own_name}::"
        _read_model(Scope(model, prefix, (np.eye(3), np.zeros(3)), source), builder, path, package_dirs)
    builder.warn_missing_meshes()
    return builder


def _expand_includes(holder: Element, builder: ModelBuilder, path: Path | None, package_dirs, depth: int) -> None:
    """Put the models of <include> elements in their place."""
    if depth > 20:
        fail(holder, builder.source, "models include each other more than 20 levels deep, probably in a loop")
    for include in holder.findall("include"):
        uri = (include.findtext("uri") or "").strip()
        folder = path.parent if path else None
        file = resolve_uri(uri, folder, package_dirs) or resolve_uri(f"{uri}/model.sdf", folder, package_dirs)
        if file is None:
            fail(include, builder.source, f"the included model '{uri}' is not found; name its folder in package_dirs")
        included = parse_xml(read_file(file), str(file)).find("model")
        if included is None:
            fail(include, builder.source, f"'{file}' has no <model>")
        included = copy.copy(included)
        included.set("name", (include.findtext("name") or included.get("name") or "").strip())
        for tag in ("pose", "static"):
            override = include.find(tag)
            if override is not None:
                for old in included.findall(tag):
                    included.remove(old)
                included.append(override)
        _expand_includes(included, builder, file, package_dirs, depth + 1)
        holder.remove(include)
        holder.append(included)
    for model in holder.findall("model"):
        _expand_includes(model, builder, path, package_dirs, depth + 1)


def _read_model(scope: Scope, builder: ModelBuilder, path: Path | None, package_dirs: tuple[str, ...]) -> None:
    source = builder.source
    poses = {}  # of links, in the world
    elements: dict[str, tuple[Element, Scope]] = {}
    for part in scope.scopes():
        for link in part.links():
            full = part.prefix + str(link.get("name"))
            poses[full] = compose(part.world_pose, part.resolve(str(link.get("name"))))
            elements[full] = (link, part)
    if not elements:
        fail(scope.element, source, "the model has no <link>")
    carried: dict[str, tuple[Element, Scope, str | None]] = {}
    for part in scope.scopes():
        for joint in part.joints():
            parent, child = (part.attached_link(_end(joint, end, source), joint) for end in ("parent", "child"))
            if child is None:
                fail(joint, source, "its child is the world; make the world the parent")
            if child in carried:
                other = carried[child][0].get("name")
                fail(
                    joint,
                    source,
                    f"link '{child}' has two parents: joint '{other}' already carries it; closed loops are not "
                    "supported, remove one of the two joints",
                )
            carried[child] = (joint, part, parent)
    order = [full for full in elements if full not in carried] + list(carried)
    for full in order:
        link, part = elements[full]
        body = _read_link(full, link, builder, path, package_dirs)
        body.robot = str(scope.element.get("name"))
        body.rotation, body.position = poses[full]
        if full in carried:
            joint, joint_scope, body.parent = carried[full]
            if body.parent is not None:
                body.rotation, body.position = compose(invert(poses[body.parent]), poses[full])
            if not part.static:
                body.joints = _read_joint(joint, joint_scope, poses[full], builder)
        elif not part.static:
            body.joints = [JointDescription(f"{full}_free", "free")]
        builder.add_body(body)
    for part in scope.scopes():
        for frame in (entry for entry in part.entries.values() if entry.tag == "frame"):
            name = str(frame.get("name"))
            pose, carrier = compose(part.world_pose, part.resolve(name)), part.attached_link(name, frame)
            rotation, position = compose(invert(poses[carrier]), pose) if carrier else pose
            frames = builder.bodies[carrier].frames if carrier else builder.world_frames
            frames.append(FrameDescription(part.prefix + name, rotation, position))
    if not is_true(scope.element, "self_collide"):
        builder.self_excludes |= {frozenset(pair) for pair in itertools.combinations(elements, 2)}


def _end(joint: Element, end: str, source: str) -> str:
    name = (joint.findtext(end) or "").strip()
    if not name:
        fail(joint, source, f"child element <{end}> is missing or empty")
    return name


def _read_link(
    full: str, link: Element, builder: ModelBuilder, path: Path | None, package_dirs: tuple[str, ...]
) -> BodyDescription:
    source = builder.source
    body = BodyDescription(full)
    inertial = link.find("inertial")
    if inertial is None:
        builder.warn(f"{where(link, source)}: no <inertial>; the format's default of 1 kg and unit inertia is taken")
        body.mass, body.inertia = 1.0, np.eye(3)
    else:
        rotation, body.com = own_pose(inertial, source)
        body.mass = text_number(inertial, "mass", source, 1.0)
        if body.mass < 0:
            fail(inertial, source, f"mass is {body.mass}; expected 0 or more")
        tensor = np.eye(3)
        element = inertial.find("inertia")
        if element is not None:
            for (i, a), (j, b) in itertools.combinations_with_replacement(enumerate("xyz"), 2):
                tensor[i, j] = tensor[j, i] = text_number(element, f"i{a}{b}", source, float(i == j))
        body.inertia = rotation @ tensor @ rotation.T
    for collision in link.findall("collision"):
        shape = _read_collision(collision, full, builder, path, package_dirs)
        if shape is not None:
            body.shapes.append(shape)
    return body


def _read_collision(
    collision: Element, full: str, builder: ModelBuilder, path: Path | None, package_dirs: tuple[str, ...]
) -> ShapeDescription | None:
    source = builder.source
    rotation, position = own_pose(collision, source)
    geometry = collision.find("geometry")
    if geometry is None or not len(geometry):
        fail(collision, source, "no shape inside <geometry>")
    element = geometry[0]
    vertices, size = None, np.zeros(3)
    if element.tag == "plane":
        kind = ShapeType.PLANE
        normal = unit_axis(text_numbers(element, "normal", 3, source, [0, 0, 1]), element, source)
        rotation = rotation @ np.stack([*perpendicular_axes(normal), normal], axis=1)
    elif element.tag == "box":
        kind, size = ShapeType.BOX, text_numbers(element, "size", 3, source) / 2
    elif element.tag == "sphere":
        kind, size[0] = ShapeType.SPHERE, text_number(element, "radius", source)
    elif element.tag in ("cylinder", "capsule"):
        kind = ShapeType.CYLINDER if element.tag == "cylinder" else ShapeType.CAPSULE
        size[:2] = text_number(element, "radius", source), text_number(element, "length", source) / 2
    elif element.tag == "ellipsoid":
        kind, size = ShapeType.ELLIPSOID, text_numbers(element, "radii", 3, source)
    elif element.tag == "mesh":
        kind = ShapeType.MESH
        scale = text_numbers(element, "scale", 3, source, [1, 1, 1])
        uri = (element.findtext("uri") or "").strip()
        vertices = read_mesh(uri, scale, element, builder, path, package_dirs)
        if vertices is None:
            return None
    else:
        if element.tag != "empty":
            builder.warn(f"{where(element, source)}: this geometry is not supported; it is dropped")
        return None
    used = {ShapeType.SPHERE: 1, ShapeType.CYLINDER: 2, ShapeType.CAPSULE: 2, ShapeType.BOX: 3, ShapeType.ELLIPSOID: 3}
    if np.any(size[: used.get(kind, 0)] <= 0):
        fail(element, source, "its dimensions must be positive")
    surface = collision.find("surface")
    friction = _surface(surface, "friction/ode/mu", DEFAULT_FRICTION, source)
    restitution = _surface(surface, "bounce/restitution_coefficient", 0.0, source)
    name = f"{full}::{required(collision, 'name', source)}"
    return ShapeDescription(name, kind, size, rotation, position, vertices, friction, restitution)


def _surface(surface: Element | None, tag: str, default: float, source: str) -> float:
    if surface is None:
        return default
    value = text_number(surface, tag, source, default)
    if value < 0:
        fail(surface, source, f"<{tag}> is {value}; expected 0 or more")
    return value


def _read_joint(joint: Element, scope: Scope, child_pose, builder: ModelBuilder) -> list[JointDescription]:
    """The joints between the child link and its parent, none if fixed; axes and anchor in the child link's frame."""
    source = builder.source
    name, kind = required(joint, "name", source), required(joint, "type", source)
    if kind not in _KINDS:
        fail(joint, source, f"the joint type is '{kind}'; expected one of {', '.join(_KINDS)}")
    if kind == "fixed":
        return []
    joint_pose = compose(scope.world_pose, scope.resolve(name))
    anchor = compose(invert(child_pose), joint_pose)[1]
    if kind == "ball":
        return [JointDescription(scope.prefix + name, "ball", anchor=anchor)]
    found: list[JointDescription] = []
    for tag in ("axis", "axis2") if kind == "universal" else ("axis",):
        axis = joint.find(tag)
        if axis is None:
            fail(joint, source, f"child element <{tag}> is missing")
        own_name = scope.prefix + name + (f"_axis{len(found) + 1}" if kind == "universal" else "")
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
    """A limit; infinite ones may be written out or as 1e16."""
    text = element.findtext(tag)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ModelError(f"{where(element, source)}: <{tag}> is '{text}'; expected a number")
    return math.copysign(math.inf, value) if abs(value) >= _UNBOUNDED else value
