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

What simulators write into URDF files beside the format: <gazebo> elements, and <contact> of links.
"""

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
from trajopt.models.inertias import Inertial, symmetric
from trajopt.models.limits import BODIES, refuse
from trajopt.models.massless import hold_massless_joints
from trajopt.models.mesh_files import MeshFiles
from trajopt.models.messages import listed
from trajopt.models.xml import bound, fail, number, numbers, parse_numbers, required, required_child, warn_mended
from trajopt.names import closest


def gazebo_frictions(root: Element) -> dict[str, float]:
    """Friction by link, from `<gazebo reference="LINK"><mu1>`."""
    frictions = {}
    for element in root.findall("gazebo"):
        mu, link = element.find("mu1"), element.get("reference")
        if link and mu is not None:
            frictions[link] = float(parse_numbers(mu.text or mu.get("value") or "", 1, mu, "mu1")[0])
            if frictions[link] < 0:
                fail(mu, f"mu1 is {frictions[link]}; expected 0 or more")
    return frictions


def read_contact(link: Element, friction: float, builder: ModelBuilder) -> tuple[float, float]:
    """Friction and restitution in the <contact> of a link, `friction` and 0 where it gives none; a warning for the rest."""
    restitution = 0.0
    for element in (element for contact in link.findall("contact") for element in contact):
        if element.tag == "lateral_friction":
            friction = number(element, "value")
            if friction < 0:
                fail(element, f"attribute 'value' is {friction}; expected 0 or more")
        elif element.tag == "restitution":
            restitution = number(element, "value")
            if not 0 <= restitution <= 1:
                fail(element, f"attribute 'value' is {restitution}; expected 0 to 1")
        elif element.tag not in ("rolling_friction", "spinning_friction") or number(element, "value", 0.0):
            builder.warn("it is not supported; it is left out", at=element)
    return friction, restitution


def warn_of_extensions(root: Element, builder: ModelBuilder) -> None:
    """What simulators would add to the physics and is left out here."""
    for element in root.findall("gazebo"):
        link = f"link '{element.get('reference')}'"
        if (element.findtext("turnGravityOff") or "").strip().lower() in ("1", "true"):
            builder.warn(f"<turnGravityOff> of {link} is left out; gravity acts on it", at=element)
        if element.find("collision") is not None:
            builder.warn(f"<collision> of {link} is not supported; it is left out", at=element)
        first, second = ((element.findtext(tag) or "").strip() for tag in ("mu1", "mu2"))
        if first and second and first != second:
            directions = f"friction of {link} that differs with the direction (mu1 {first}, mu2 {second})"
            builder.warn(f"{directions} is not supported; mu1 is taken", at=element)


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
    links = _unique(root.findall("link"))
    joints = _unique(root.findall("joint"))
    if not links:
        fail(root, "the robot has no <link>; expected a URDF, not a part of one")
    if len(links) > BODIES:
        refuse(source, len(links), BODIES, "links", "leave out what does not matter, or fuse fixed links")
    by_child, meshes = _check_tree(links, joints), MeshFiles(builder, path, package_dirs)
    frictions = gazebo_frictions(root)
    (base,) = (name for name in links if name not in by_child)
    for link_name in [base, *by_child]:  # in the order of the joints in the file
        body = _read_link(links[link_name], builder, frictions, meshes)
        element = by_child.get(link_name)
        if element is not None:
            body.parent = required(required_child(element, "parent"), "link")
            body.rotation, body.position = read_origin(element)
            joint = _read_joint(element, joints, builder)
            if joint is not None:
                body.joints.append(joint)
        builder.add_body(body)
    hold_massless_joints(builder)
    warn_of_extensions(root, builder)
    meshes.warn_missing()
    return builder


def read_origin(element: Element) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
    """Rotation and position of the <origin> child, the identity if there is none."""
    origin = element.find("origin")
    if origin is None:
        return np.eye(3), np.zeros(3)
    return rpy_to_matrix(numbers(origin, "rpy", 3, [0, 0, 0])), numbers(origin, "xyz", 3, [0, 0, 0])


def _unique(elements: list[Element]) -> dict[str, Element]:
    by_name: dict[str, Element] = {}
    for element in elements:
        name = required(element, "name")
        if name in by_name:
            first = getattr(by_name[name], "sourceline", "?")
            fail(element, f"the name is used twice, first in line {first}; names of {element.tag}s are unique")
        by_name[name] = element
    return by_name


def _check_tree(links: dict[str, Element], joints: dict[str, Element]) -> dict[str, Element]:
    """The joint above every link but the root; `ModelError` unless the links form one tree."""
    by_child: dict[str, Element] = {}
    parent_of: dict[str, str] = {}
    for joint in joints.values():
        parent, child = (required(required_child(joint, end), "link") for end in ("parent", "child"))
        for end, other in {"parent": parent, "child": child}.items():
            if other not in links:
                fail(joint, f"the {end} link '{other}' does not exist{closest(other, links)}")
        if child in by_child:
            fail(
                joint,
                f"link '{child}' has two parents: joint '{by_child[child].get('name')}' already carries it; closed loops are not "
                "supported, remove one of the two joints",
            )
        if child == parent:
            fail(joint, f"link '{child}' is its own parent")
        by_child[child], parent_of[child] = joint, parent
    reached: set[str] = set()  # links from which the way up has been followed
    for start in parent_of:
        trail: dict[str, None] = {}
        link = start
        while link in parent_of and link not in reached and link not in trail:
            trail[link] = None
            link = parent_of[link]
        if link in trail:
            above = list(trail)
            loop = [*above[above.index(link) :], link]
            fail(by_child[link], f"the joints form a loop: {' -> '.join(reversed(loop))}")
        reached |= set(trail)
    roots = [name for name in links if name not in by_child]
    if len(roots) > 1:
        names = listed([repr(root) for root in roots], 5)
        fail(links[roots[1]], f"the robot has {len(roots)} root links ({names}); expected one: connect them by joints")
    return by_child


def _read_link(link: Element, builder: ModelBuilder, frictions: dict[str, float], meshes: MeshFiles) -> BodyDescription:
    body = BodyDescription(required(link, "name"))
    inertial = link.find("inertial")
    if inertial is not None:
        body.mass, body.com, body.inertia = _read_inertial(inertial, builder)
    friction, restitution = read_contact(link, frictions.get(body.name, DEFAULT_FRICTION), builder)
    for k, collision in enumerate(link.findall("collision")):
        shape = _read_collision(collision, f"{body.name}_collision{k}", builder, meshes)
        if shape is not None:
            shape.friction, shape.restitution = friction, restitution
            body.shapes.append(shape)
    if link.find("collision") is None:
        body.shapes += _read_visuals(link, body.name, builder, meshes)
    return body


def _read_visuals(link: Element, name: str, builder: ModelBuilder, meshes: MeshFiles) -> list[ShapeDescription]:
    """Primitive visuals as shapes that collide with nothing; those that cannot be read are dropped with a warning."""
    shapes = []
    for k, visual in enumerate(link.findall("visual")):
        if not any(visual.find(f"geometry/{tag}") is not None for tag in _PRIMITIVES):
            continue
        try:
            shape = _read_collision(visual, f"{name}_visual{k}", builder, meshes)
        except ModelError as error:
            builder.warn(f"{error}; it is for display only and dropped")
            continue
        if shape is not None and shape.kind is not ShapeType.POINTS:
            shape.contype = shape.conaffinity = 0
            shapes.append(shape)
    return shapes


def _read_inertial(inertial: Element, builder: ModelBuilder) -> Inertial:
    rotation, com = read_origin(inertial)
    mass_element = inertial.find("mass")
    if mass_element is None:
        builder.warn("there is no <mass>; the link is taken as massless", at=inertial)
        return 0.0, com, np.zeros((3, 3))
    mass, element = _not_negative(mass_element, "value", None), inertial.find("inertia")
    tensor = np.zeros((3, 3)) if element is None else symmetric(lambda i, j: number(element, f"i{'xyz'[i]}{'xyz'[j]}", 0.0))
    return mass, com, rotation @ tensor @ rotation.T


def _read_collision(collision: Element, name: str, builder: ModelBuilder, meshes: MeshFiles) -> ShapeDescription | None:
    rotation, position = read_origin(collision)
    geometry = required_child(collision, "geometry")
    if not len(geometry):
        fail(geometry, "no shape inside; expected <box>, <sphere>, <cylinder>, <capsule> or <mesh>")
    element = geometry[0]
    vertices, dimensions = None, np.zeros(0)
    if element.tag == "box":
        kind, dimensions = ShapeType.BOX, numbers(element, "size", 3) / 2
    elif element.tag == "sphere":
        kind, dimensions = ShapeType.SPHERE, numbers(element, "radius", 1)
        if dimensions[0] == 0:
            kind, dimensions, vertices = ShapeType.POINTS, np.zeros(0), np.zeros((1, 3))
    elif element.tag in ("cylinder", "capsule"):
        kind = ShapeType.CYLINDER if element.tag == "cylinder" else ShapeType.CAPSULE
        dimensions = np.array([number(element, "radius"), number(element, "length") / 2])
    elif element.tag == "mesh":
        kind = ShapeType.MESH
        vertices = meshes.hull(required(element, "filename"), _mesh_scale(element, builder), element)
        if vertices is None:
            return None
    else:
        builder.warn("this geometry is not supported; it is dropped", at=element)
        return None
    if np.any(dimensions < 0):
        fail(element, f"its dimensions are {dimensions.tolist()}; expected positive numbers")
    if np.any(dimensions == 0):
        builder.warn("the shape has no volume; it is dropped", at=element)
        return None
    size = np.pad(dimensions, (0, 3 - len(dimensions)))
    return ShapeDescription(collision.get("name") or name, kind, size, rotation, position, vertices)


def _mesh_scale(element: Element, builder: ModelBuilder) -> Float[np.ndarray, "3"]:
    """Three factors; one stands for all three, of more than three the first three count, with a warning."""
    words = element.get("scale", "1 1 1").split()
    if len(words) in (1, 4):
        builder.warn(f"attribute 'scale' has {len(words)} numbers; expected 3", at=element)
        words = (3 * words)[:3]
    return parse_numbers(" ".join(words), 3, element, "attribute 'scale'")


def _read_joint(element: Element, known: dict[str, Element], builder: ModelBuilder) -> JointDescription | None:
    """The joint, or None if it is fixed."""
    name, kind = required(element, "name"), required(element, "type")
    if kind not in _KINDS:
        fail(element, f"the joint type is '{kind}'; expected one of {', '.join(_KINDS)}")
    if kind == "fixed":
        return None
    joint = JointDescription(name, _KINDS[kind], np.array([1.0, 0.0, 0.0]))
    axis, dynamics, mimic = element.find("axis"), element.find("dynamics"), element.find("mimic")
    if axis is not None and joint.kind not in ("free", "ball"):
        joint.axis = unit_axis(numbers(axis, "xyz", 3, [1, 0, 0]), axis)
    if dynamics is not None:
        joint.damping, joint.frictionloss = _not_negative(dynamics, "damping"), _not_negative(dynamics, "friction")
    if kind in ("revolute", "prismatic", "continuous"):
        _read_limit(element, kind, joint, builder)
    else:
        _read_other_limit(element, joint, builder)
    if mimic is not None:
        multiplier, offset = number(mimic, "multiplier", 1.0), number(mimic, "offset", 0.0)
        leader = required(mimic, "joint")
        if leader in known:
            joint.mimic = Mimic(leader, multiplier, offset)
        else:
            missing = f"it mimics the joint '{leader}', which does not exist{closest(leader, known)}"
            builder.warn(f"{missing}; it moves on its own", at=element)
    return joint


def unit_axis(axis: Float[np.ndarray, "3"], element: Element) -> Float[np.ndarray, "3"]:
    """The axis, normalised; `ModelError` if it is zero."""
    norm = float(np.linalg.norm(axis))
    if norm < 1e-9:
        fail(element, f"the joint axis is {axis.tolist()}; expected a vector that is not zero")
    return axis if abs(norm - 1) < 1e-15 else axis / norm


def _not_negative(element: Element, attribute: str, default: float | None = 0.0) -> float:
    value = number(element, attribute, default)
    if value < 0:
        fail(element, f"attribute '{attribute}' is {value}; expected 0 or more")
    return value


def _read_other_limit(element: Element, joint: JointDescription, builder: ModelBuilder) -> None:
    """The effort of spherical joints; ranges of joints with several coordinates are not supported."""
    limit = element.find("limit")
    if limit is None:
        return
    if joint.kind == "ball":
        joint.effort = _not_negative(limit, "effort") or np.inf
    if any(limit.get(name) is not None for name in ("lower", "upper", "twist")):
        kind = {"ball": "spherical", "free": "floating"}.get(joint.kind, joint.kind)
        builder.warn(f"the range of a {kind} joint is not supported; it is unlimited", at=element)


def _read_limit(element: Element, kind: str, joint: JointDescription, builder: ModelBuilder) -> None:
    limit = element.find("limit")
    if limit is None:
        if kind != "continuous":
            builder.warn(f"a {kind} joint without <limit> counts as unlimited", at=element)
        return
    effort, lower, upper = (
        bound(limit.get(key), 0.0, limit, f"attribute '{key}'") for key in ("effort", "lower", "upper")
    )
    if effort < 0:
        fail(limit, f"attribute 'effort' is {effort}; expected 0 or more")
    joint.effort = effort or np.inf
    if kind == "continuous":
        return
    if limit.get("lower") is None and limit.get("upper") is None:
        builder.warn("its <limit> has neither lower nor upper; it counts as unlimited", at=element)
    elif lower > upper:
        builder.warn(f"the lower limit {lower:g} is above the upper limit {upper:g}; it counts as unlimited", at=limit)
    else:
        joint.lower, joint.upper = lower, upper
