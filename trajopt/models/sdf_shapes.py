"""Collision shapes and inertias of SDF links."""

from xml.etree.ElementTree import Element

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import ShapeType
from trajopt.errors import ModelError
from trajopt.models.builder import ModelBuilder
from trajopt.models.descriptions import DEFAULT_FRICTION, BodyDescription, ShapeDescription, frame_along
from trajopt.models.inertias import Inertial, joined, solid, symmetric
from trajopt.models.limits import short
from trajopt.models.mesh_files import MeshFiles
from trajopt.models.sdf_frames import Scope, is_true, own_pose, text_number, text_numbers
from trajopt.models.urdf import unit_axis
from trajopt.models.xml import fail, required

CONE_SIDES = 32  # of the hull that takes a cone's place: 0.5 % of the radius inside it
WATER = 1000.0  # kg/m^3, the format's default density
ALL_BITS = 0xFFFF  # the format's default collide_bitmask
PRIORITY = "{trajopt}priority"  # a whole number, in an element of this package's own
_FRICTIONS = (("friction/ode/mu", "friction/ode/mu2"), ("friction/bullet/friction", "friction/bullet/friction2"))
_LEFT_OUT = (  # in a <surface>
    ("friction/torsional/coefficient", "torsional friction"),
    ("friction/bullet/rolling_friction", "rolling friction"),
    ("friction/ode/slip1", "slip"),
    ("friction/ode/slip2", "slip"),
)
_ROUND = {  # kind, and the format's default radius (m)
    "cylinder": (ShapeType.CYLINDER, 1.0),
    "capsule": (ShapeType.CAPSULE, 0.5),
    "cone": (ShapeType.MESH, 0.5),
}


class LinkReader:
    """Reads the links of a file; what is left out becomes a warning of the builder."""

    def __init__(self, builder: ModelBuilder, meshes: MeshFiles):
        self.builder, self.meshes = builder, meshes

    def read(self, full: str, link: Element, part: Scope) -> BodyDescription:
        """A link without joints and placement. `ModelError` naming file, line, element and reason."""
        body, solids = BodyDescription(full), []
        inertial = link.find("inertial")
        for collision in link.findall("collision"):
            shape = self._collision(collision, full, part, str(link.get("name")))
            if shape is not None:
                body.shapes.append(shape)
                solids.append((shape, _density(collision, inertial)))
        if inertial is None:
            self.builder.warn("no <inertial>; the format's default of 1 kg and unit inertia is taken", at=link)
            body.mass, body.inertia = 1.0, np.eye(3)
        elif inertial.get("auto", "").strip().lower() in ("1", "true"):
            body.mass, body.com, body.inertia = _automatic(inertial, full, solids)
        else:
            self._leave_out(inertial, "fluid_added_mass", inertial.find("fluid_added_mass") is not None)
            body.mass, body.com, body.inertia = _inertial(inertial)
        for tag in ("kinematic", "enable_wind"):
            self._leave_out(link, tag, is_true(link, tag))
        self._leave_out(link, "velocity_decay", link.find("velocity_decay") is not None)
        return body

    def _leave_out(self, element: Element, what: str, present: bool) -> None:
        if present:
            self.builder.warn(f"<{what}> is not supported; it is left out", at=element)

    def _collision(self, collision: Element, full: str, part: Scope, link: str) -> ShapeDescription | None:
        rotation, position = part.pose_in_link(collision, link)
        geometry = collision.find("geometry")
        if geometry is None or not len(geometry):
            fail(collision, "no shape inside <geometry>")
        element = geometry[0]
        kind, size, vertices = self._geometry(element)
        if kind is None:
            return None
        if kind is ShapeType.PLANE:
            normal = unit_axis(text_numbers(element, "normal", 3, [0, 0, 1]), element)
            rotation = rotation @ frame_along(normal)
        name = f"{full}::{required(collision, 'name')}"
        shape = ShapeDescription(name, kind, size, rotation, position, vertices, contype=ALL_BITS, conaffinity=ALL_BITS)
        surface = collision.find("surface")
        if surface is not None:
            self._surface(surface, collision, shape)
        return shape

    def _geometry(self, element: Element) -> tuple[ShapeType | None, np.ndarray, np.ndarray | None]:
        """Kind (None: dropped, with a warning), size, vertices. Dimensions that are left out are the format's defaults."""
        tag = element.tag
        if tag == "mesh":
            uri, scale = (element.findtext("uri") or "").strip(), text_numbers(element, "scale", 3, [1, 1, 1])
            vertices = self.meshes.hull(uri, scale, element)
            return (None if vertices is None else ShapeType.MESH), np.zeros(3), vertices
        if tag == "plane":
            return ShapeType.PLANE, np.zeros(3), None
        if tag == "box":
            kind, dimensions = ShapeType.BOX, text_numbers(element, "size", 3, [1, 1, 1]) / 2
        elif tag == "sphere":
            kind, dimensions = ShapeType.SPHERE, text_numbers(element, "radius", 1, [1])
        elif tag == "ellipsoid":
            kind, dimensions = ShapeType.ELLIPSOID, text_numbers(element, "radii", 3, [1, 1, 1])
        elif tag in _ROUND:
            kind, radius = _ROUND[tag]
            dimensions = np.array([text_number(element, "radius", radius), text_number(element, "length", 1.0) / 2])
        else:
            if tag != "empty":
                self.builder.warn("this geometry is not supported; it is dropped", at=element)
            return None, np.zeros(3), None
        if np.any(dimensions <= 0):
            fail(element, "its dimensions must be positive")
        if tag == "cone":
            return kind, np.zeros(3), _cone(*dimensions)
        return kind, np.pad(dimensions, (0, 3 - len(dimensions))), None

    def _surface(self, surface: Element, collision: Element, shape: ShapeDescription) -> None:
        """Friction, restitution, priority and collision bits; a warning for what is not supported."""
        self._friction(surface, shape)
        shape.restitution = _coefficient(surface, "bounce/restitution_coefficient", 0.0)
        if surface.find(PRIORITY) is not None:
            shape.priority = int(text_number(surface, PRIORITY))
        bits = surface.findtext("contact/collide_bitmask")
        if bits is not None:
            try:
                mask = int(bits.strip(), 0)
            except ValueError:
                fail(surface, f"<collide_bitmask> is '{short(bits)}'; expected a whole number")
            shape.contype = shape.conaffinity = mask & ALL_BITS
        if is_true(surface, "contact/collide_without_contact"):
            self.builder.warn("it collides without contact; it has no contact pairs", at=collision)
            shape.contype = shape.conaffinity = 0
        for tag, what in _LEFT_OUT:
            if text_number(surface, tag, 0.0) != 0.0:
                self.builder.warn(f"<{tag.replace('/', '><')}>, {what}, is not supported; it is left out", at=collision)

    def _friction(self, surface: Element, shape: ShapeDescription) -> None:
        """Sliding friction: ODE's, else Bullet's, else 1; one coefficient for all directions."""
        given = [pair for pair in _FRICTIONS if surface.find(pair[0]) is not None]
        first, second = given[0] if given else _FRICTIONS[0]
        shape.friction = _coefficient(surface, first, DEFAULT_FRICTION)
        others = [tag for tag, _ in given[1:]] + [second]
        for tag in others:
            other = _coefficient(surface, tag, shape.friction)
            if other != shape.friction:
                reason = "friction that differs with the direction" if tag == second else "friction given twice"
                both = f"<{first}> {shape.friction:g}, <{tag}> {other:g}"
                self.builder.warn(f"{reason} ({both}) is not supported; the first is taken", at=surface)


def _density(collision: Element, inertial: Element | None) -> float:
    default = WATER if inertial is None else text_number(inertial, "density", WATER)
    density = text_number(collision, "density", default)
    if density <= 0:
        fail(collision, f"its density is {density}; expected a positive number")
    return density


def _automatic(inertial: Element, full: str, solids: list[tuple[ShapeDescription, float]]) -> Inertial:
    """The inertia of the link's shapes, each of its density."""
    parts: list[Inertial] = []
    for shape, density in solids:
        try:
            mass, com, inertia = solid(shape.kind, shape.size, shape.vertices, density)
        except ModelError as error:
            fail(inertial, f"link '{full}': {error}")
        r = shape.rotation
        parts.append((mass, shape.position + r @ com, r @ inertia @ r.T))
    if not parts:
        fail(inertial, f"link '{full}' has automatic inertia, but no collision shape to take it from")
    return joined(parts)


def _inertial(inertial: Element) -> Inertial:
    rotation, com = own_pose(inertial)
    mass, element = text_number(inertial, "mass", 1.0), inertial.find("inertia")
    if mass < 0:
        fail(inertial, f"mass is {mass}; expected 0 or more")
    tensor = np.eye(3)
    if element is not None:
        tensor = symmetric(lambda i, j: text_number(element, f"i{'xyz'[i]}{'xyz'[j]}", float(i == j)))
    return mass, com, rotation @ tensor @ rotation.T


def _cone(radius: float, half: float) -> Float[np.ndarray, "k 3"]:
    """Vertices of the hull that takes the cone's place."""
    angle = 2 * np.pi * np.arange(CONE_SIDES) / CONE_SIDES
    rim = np.stack([radius * np.cos(angle), radius * np.sin(angle), np.full(CONE_SIDES, -half)], axis=1)
    return np.concatenate([rim, [[0.0, 0.0, half]]])


def _coefficient(surface: Element, tag: str, default: float) -> float:
    value = text_number(surface, tag, default)
    if value < 0:
        fail(surface, f"<{tag}> is {value}; expected 0 or more")
    return value
