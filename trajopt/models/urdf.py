"""URDF reader.

Reads links (inertial, collision), joints (revolute, continuous, prismatic, fixed, floating, planar, spherical) with limits,
effort, dynamics and mimic. Transmissions, safety controllers and simulator extensions are ignored, but for the
friction in `<contact><lateral_friction value="..."/></contact>` of a link or `<gazebo reference="LINK"><mu1>` (else 1), and the
`<restitution>` in `<contact>` (else 0).
Visuals are ignored too, but for the primitives of links without collision elements: shapes without contact pairs.

- The tree is fixed to the world at its root link unless the file or the caller says otherwise.
- Coordinates follow the order of the joints *in the file*, depth first, as in MuJoCo; Pinocchio sorts the children of a
  link by joint name instead.
- Velocity limits are not part of `Model`. An effort of 0, the customary "not known", counts as unlimited.
- Links that fixed joints join are one body; links next to each other in the tree do not collide.
- Mesh files that are missing or unreadable are dropped with a warning; hulls take the place of meshes.
- As in other readers: a limit whose lower end is above the upper one is none; joints that move no mass are held
  (`trajopt.models.massless`); XML that is not well-formed is mended where the meaning is clear, each with a warning.
- A sphere of radius 0 is a contact point. A mimic of a joint that does not exist is a warning and an ordinary joint.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import ShapeType
from trajopt.errors import ModelError
from trajopt.models.builder import ModelBuilder
from trajopt.models.descriptions import (
    DEFAULT_FRICTION,
    BodyDescription,
    JointDescription,
    Mimic,
    ShapeDescription,
    rpy_to_matrix,
)
from trajopt.models.limits import BODIES, refuse
from trajopt.models.massless import hold_massless_joints
from trajopt.models.meshes import convex_hull, load_triangles, load_vertices, resolve_uri
from trajopt.models.urdf_extensions import gazebo_frictions, read_contact, warn_of_extensions
from trajopt.models.xml import bound, fail, number, numbers, parse_numbers, required, required_child, warn_mended, where
from trajopt.names import closest

_KINDS = {
    "revolute": "revolute",
    "continuous": "revolute",
    "prismatic": "prismatic",
    "floating": "free",
    "spherical": "ball",
    "ball": "ball",
    "planar": "planar",
    "fixed": "",
}
_PRIMITIVES = ("box", "sphere", "cylinder", "capsule")


def read_urdf(
    root: Element, name: str, source: str, path: Path | None = None, package_dirs: tuple[str, ...] = ()
) -> ModelBuilder:
    """A builder filled from a URDF document. Raises `ModelError` naming file, line, element and reason."""
    builder = ModelBuilder(root.get("name") or name, source, format_leaves_collisions_open=True)
    warn_mended(root, builder.warn)
    links = _unique(root.findall("link"), source)
    joints = _unique(root.findall("joint"), source)
    if not links:
        fail(root, source, "the robot has no <link>; expected a URDF, not a part of one")
    if len(links) > BODIES:
        refuse(source, len(links), BODIES, "links", "leave out what does not matter, or fuse fixed links")
    by_child = _check_tree(links, joints, source)
    frictions = gazebo_frictions(root, source)
    for link_name in _file_order(links, by_child):
        body = _read_link(links[link_name], builder, frictions, path, package_dirs)
        element = by_child.get(link_name)
        if element is not None:
            body.parent = required(required_child(element, "parent", source), "link", source)
            body.rotation, body.position = read_origin(element, source)
            joint = _read_joint(element, joints, builder)
            if joint is not None:
                body.joints.append(joint)
        builder.add_body(body)
    hold_massless_joints(builder)
    warn_of_extensions(root, builder)
    builder.warn_missing_meshes()
    return builder


def read_origin(element: Element, source: str) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
    """Rotation and position of the <origin> child, the identity if there is none."""
    origin = element.find("origin")
    if origin is None:
        return np.eye(3), np.zeros(3)
    return rpy_to_matrix(numbers(origin, "rpy", 3, source, [0, 0, 0])), numbers(origin, "xyz", 3, source, [0, 0, 0])


def _unique(elements: list[Element], source: str) -> dict[str, Element]:
    found: dict[str, Element] = {}
    for element in elements:
        name = required(element, "name", source)
        if name in found:
            first = getattr(found[name], "sourceline", "?")
            fail(element, source, f"the name is used twice, first in line {first}; names of {element.tag}s are unique")
        found[name] = element
    return found


def _check_tree(links: dict[str, Element], joints: dict[str, Element], source: str) -> dict[str, Element]:
    """The joint above every link but the root; `ModelError` unless the links form one tree."""
    by_child: dict[str, Element] = {}
    parent_of: dict[str, str] = {}
    for joint in joints.values():
        ends = {}
        for end in ("parent", "child"):
            ends[end] = required(required_child(joint, end, source), "link", source)
            if ends[end] not in links:
                fail(joint, source, f"the {end} link '{ends[end]}' does not exist{closest(ends[end], links)}")
        child = ends["child"]
        if child in by_child:
            other = by_child[child].get("name")
            fail(
                joint,
                source,
                f"link '{child}' has two parents: joint '{other}' already carries it; closed loops are not supported, "
                "remove one of the two joints",
            )
        if child == ends["parent"]:
            fail(joint, source, f"link '{child}' is its own parent")
        by_child[child] = joint
        parent_of[child] = ends["parent"]
    reached: set[str] = set()  # links from which the way up has been followed
    for start in parent_of:
        trail: dict[str, None] = {}
        link = start
        while link in parent_of and link not in reached and link not in trail:
            trail[link] = None
            link = parent_of[link]
        if link in trail:
            names = list(trail)
            loop = [*names[names.index(link) :], link]
            fail(by_child[link], source, f"the joints form a loop: {' -> '.join(reversed(loop))}")
        reached |= set(trail)
    roots = [name for name in links if name not in by_child]
    if len(roots) > 1:
        fail(
            links[roots[1]],
            source,
            f"the robot has {len(roots)} root links ({', '.join(repr(r) for r in roots[:5])}); expected one: connect "
            "them by joints",
        )
    return by_child


def _file_order(links: dict[str, Element], by_child: dict[str, Element]) -> list[str]:
    """The root link, then the children in the order of their joints in the file."""
    (root,) = (name for name in links if name not in by_child)
    return [root, *by_child]


def _read_link(
    link: Element, builder: ModelBuilder, frictions: dict[str, float], path: Path | None, package_dirs: tuple[str, ...]
) -> BodyDescription:
    source = builder.source
    body = BodyDescription(required(link, "name", source))
    inertial = link.find("inertial")
    if inertial is not None:
        body.mass, body.com, body.inertia = _read_inertial(inertial, body.name, builder)
    friction, restitution = read_contact(link, frictions.get(body.name, DEFAULT_FRICTION), builder)
    for k, collision in enumerate(link.findall("collision")):
        shape = _read_collision(collision, f"{body.name}_collision{k}", builder, path, package_dirs)
        if shape is not None:
            shape.friction, shape.restitution = friction, restitution
            body.shapes.append(shape)
    if link.find("collision") is None:
        body.shapes += _read_visuals(link, body.name, builder)
    return body


def _read_visuals(link: Element, name: str, builder: ModelBuilder) -> list[ShapeDescription]:
    """Primitive visuals as shapes that collide with nothing; those that cannot be read are dropped with a warning."""
    shapes = []
    for k, visual in enumerate(link.findall("visual")):
        if not any(visual.find(f"geometry/{tag}") is not None for tag in _PRIMITIVES):
            continue
        try:
            shape = _read_collision(visual, f"{name}_visual{k}", builder, None, ())
        except ModelError as error:
            builder.warn(f"{error}; it is for display only and dropped")
            continue
        if shape is not None and shape.kind is not ShapeType.POINTS:
            shape.contype = shape.conaffinity = 0
            shapes.append(shape)
    return shapes


def _read_inertial(inertial: Element, link: str, builder: ModelBuilder) -> tuple[float, np.ndarray, np.ndarray]:
    source = builder.source
    rotation, com = read_origin(inertial, source)
    mass_element = inertial.find("mass")
    if mass_element is None:
        builder.warn(f"{where(inertial, source)} of link '{link}' has no <mass>; the link is taken as massless")
        return 0.0, com, np.zeros((3, 3))
    mass = number(mass_element, "value", source)
    if mass < 0:
        fail(mass_element, source, f"mass is {mass}; expected 0 or more")
    tensor = np.zeros((3, 3))
    element = inertial.find("inertia")
    if element is not None:
        for (i, a), (j, b) in itertools.combinations_with_replacement(enumerate("xyz"), 2):
            tensor[i, j] = tensor[j, i] = number(element, f"i{a}{b}", source, 0.0)
    return mass, com, rotation @ tensor @ rotation.T


def _read_collision(
    collision: Element, name: str, builder: ModelBuilder, path: Path | None, package_dirs: tuple[str, ...]
) -> ShapeDescription | None:
    source = builder.source
    rotation, position = read_origin(collision, source)
    geometry = required_child(collision, "geometry", source)
    if not len(geometry):
        fail(geometry, source, "no shape inside; expected <box>, <sphere>, <cylinder>, <capsule> or <mesh>")
    element = geometry[0]
    vertices, size = None, np.zeros(3)
    if element.tag == "box":
        kind, size = ShapeType.BOX, _positive(numbers(element, "size", 3, source), element, source) / 2
    elif element.tag == "sphere":
        kind, size[0] = ShapeType.SPHERE, _positive(number(element, "radius", source), element, source)
        if size[0] == 0:
            kind, vertices = ShapeType.POINTS, np.zeros((1, 3))
    elif element.tag in ("cylinder", "capsule"):
        kind = ShapeType.CYLINDER if element.tag == "cylinder" else ShapeType.CAPSULE
        size[0] = _positive(number(element, "radius", source), element, source)
        size[1] = _positive(number(element, "length", source), element, source) / 2
    elif element.tag == "mesh":
        kind = ShapeType.MESH
        scale = _mesh_scale(element, builder)
        vertices = read_mesh(required(element, "filename", source), scale, element, builder, path, package_dirs)
        if vertices is None:
            return None
    else:
        builder.warn(f"{where(element, source)}: this geometry is not supported; it is dropped")
        return None
    extents = {ShapeType.BOX: 3, ShapeType.CYLINDER: 2, ShapeType.CAPSULE: 2}.get(kind, 0)
    if np.any(size[:extents] == 0):
        builder.warn(f"{where(element, source)}: the shape has no volume; it is dropped")
        return None
    return ShapeDescription(collision.get("name") or name, kind, size, rotation, position, vertices)


def _mesh_scale(element: Element, builder: ModelBuilder) -> np.ndarray:
    """Three factors; one stands for all three, of more than three the first three count, with a warning."""
    words = element.get("scale", "1 1 1").split()
    if len(words) in (1, 4):
        builder.warn(f"{where(element, builder.source)}: attribute 'scale' has {len(words)} numbers; expected 3")
        words = (3 * words)[:3]
    return parse_numbers(" ".join(words), 3, element, builder.source, "attribute 'scale'")


def _positive(values, element: Element, source: str):
    if np.any(np.asarray(values) < 0):
        fail(element, source, f"its dimensions are {np.asarray(values).tolist()}; expected positive numbers")
    return values


def read_mesh(
    uri: str,
    scale: Float[np.ndarray, "3"],
    element: Element,
    builder: ModelBuilder,
    path: Path | None,
    package_dirs: Sequence[str],
) -> Float[np.ndarray, "k 3"] | None:
    """Vertices (m) of the hull of a mesh named in a URDF or SDF, or None, with a warning, when it is missing or unreadable."""
    file = resolve_uri(uri, path.parent if path else None, package_dirs)
    line = getattr(element, "sourceline", "?")
    if file is None:
        builder.missing_meshes.append(f"'{uri}' (line {line})")
        return None
    key = (str(file), tuple(scale))
    if key not in builder.hulls:
        builder.hulls[key] = None
        try:
            vertices, triangles = load_vertices(file) * scale, load_triangles(file)
        except ModelError as error:
            builder.warn(f"line {line}: {error}; its geometry is dropped")
        else:
            triangles = None if triangles is None else triangles * scale
            try:
                builder.hulls[key] = convex_hull(vertices, str(file), builder.warn, triangles)
            except ModelError as error:
                builder.warn(f"line {line}: {error}; it is dropped")
    return builder.hulls[key]


def _read_joint(element: Element, known: dict[str, Element], builder: ModelBuilder) -> JointDescription | None:
    """The joint, or None if it is fixed."""
    source = builder.source
    name = required(element, "name", source)
    kind = required(element, "type", source)
    if kind not in _KINDS:
        fail(element, source, f"the joint type is '{kind}'; expected one of {', '.join(_KINDS)}")
    if kind == "fixed":
        return None
    joint = JointDescription(name, _KINDS[kind], np.array([1.0, 0.0, 0.0]))
    axis = element.find("axis")
    if axis is not None and joint.kind not in ("free", "ball"):
        joint.axis = unit_axis(numbers(axis, "xyz", 3, source, [1, 0, 0]), axis, source)
    dynamics = element.find("dynamics")
    if dynamics is not None:
        joint.damping = _not_negative(dynamics, "damping", source)
        joint.frictionloss = _not_negative(dynamics, "friction", source)
    if kind in ("revolute", "prismatic", "continuous"):
        _read_limit(element, kind, joint, builder)
    else:
        _read_other_limit(element, joint, builder)
    mimic = element.find("mimic")
    if mimic is not None:
        multiplier, offset = number(mimic, "multiplier", source, 1.0), number(mimic, "offset", source, 0.0)
        leader = required(mimic, "joint", source)
        if leader in known:
            joint.mimic = Mimic(leader, multiplier, offset)
        else:
            builder.warn(
                f"{where(element, source)}: it mimics the joint '{leader}', which does not exist"
                f"{closest(leader, known)}; it moves on its own"
            )
    return joint


def unit_axis(axis: Float[np.ndarray, "3"], element: Element, source: str) -> Float[np.ndarray, "3"]:
    """The axis, normalised; `ModelError` if it is zero."""
    norm = float(np.linalg.norm(axis))
    if norm < 1e-9:
        fail(element, source, f"the joint axis is {axis.tolist()}; expected a vector that is not zero")
    return axis if abs(norm - 1) < 1e-15 else axis / norm


def _not_negative(element: Element, attribute: str, source: str) -> float:
    value = number(element, attribute, source, 0.0)
    if value < 0:
        fail(element, source, f"attribute '{attribute}' is {value}; expected 0 or more")
    return value


def _read_other_limit(element: Element, joint: JointDescription, builder: ModelBuilder) -> None:
    """The effort of spherical joints; ranges of joints with several coordinates are not supported."""
    limit = element.find("limit")
    if limit is None:
        return
    if joint.kind == "ball":
        joint.effort = _not_negative(limit, "effort", builder.source) or np.inf
    if any(limit.get(name) is not None for name in ("lower", "upper", "twist")):
        kind = {"ball": "spherical", "free": "floating"}.get(joint.kind, joint.kind)
        builder.warn(f"{where(element, builder.source)}: the range of a {kind} joint is not supported; it is unlimited")


def _read_limit(element: Element, kind: str, joint: JointDescription, builder: ModelBuilder) -> None:
    source = builder.source
    limit = element.find("limit")
    if limit is None:
        if kind != "continuous":
            builder.warn(f"{where(element, source)}: a {kind} joint without <limit> counts as unlimited")
        return
    effort = _bound(limit, "effort", source)
    if effort < 0:
        fail(limit, source, f"attribute 'effort' is {effort}; expected 0 or more")
    joint.effort = effort or np.inf
    if kind == "continuous":
        return
    if limit.get("lower") is None and limit.get("upper") is None:
        builder.warn(f"{where(element, source)}: its <limit> has neither lower nor upper; it counts as unlimited")
        return
    lower, upper = _bound(limit, "lower", source), _bound(limit, "upper", source)
    if lower > upper:
        builder.warn(
            f"{where(limit, source)} of joint '{joint.name}': the lower limit {lower:g} is above the upper limit {upper:g}; it "
            "counts as unlimited"
        )
        return
    joint.lower, joint.upper = lower, upper


def _bound(limit: Element, attribute: str, source: str) -> float:
    """A limit, 0 where it is not given."""
    return bound(limit.get(attribute), 0.0, limit, source, f"attribute '{attribute}'")
