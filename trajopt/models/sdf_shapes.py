"""Collision shapes and inertias of SDF links."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from trajopt.dynamics.model import ShapeType
from trajopt.errors import ModelError
from trajopt.models.builder import ModelBuilder
from trajopt.models.descriptions import DEFAULT_FRICTION, BodyDescription, ShapeDescription, perpendicular_axes
from trajopt.models.inertias import Inertial, joined, solid
from trajopt.models.limits import short
from trajopt.models.sdf_frames import Scope, is_true, own_pose, text_number, text_numbers
from trajopt.models.sdf_include import file_of
from trajopt.models.urdf import read_mesh, unit_axis
from trajopt.models.xml import fail, required, where

CONE_SIDES = 32  # of the hull that takes a cone's place: 0.5 % of the radius inside it
WATER = 1000.0  # kg/m^3, the format's default density
ALL_BITS = 0xFFFF  # the format's default collide_bitmask
PRIORITY = "{trajopt}priority"  # a whole number, in an element of this package's own
_FRICTIONS = (("friction/ode/mu", "friction/ode/mu2"), ("friction/bullet/friction", "friction/bullet/friction2"))
_LEFT_OUT = (  # in a <surface>: element, its default, what it is
    ("friction/torsional/coefficient", 0.0, "torsional friction"),
    ("friction/bullet/rolling_friction", 0.0, "rolling friction"),
    ("friction/ode/slip1", 0.0, "slip"),
    ("friction/ode/slip2", 0.0, "slip"),
)


class LinkReader:
    """Reads the links of a file: where meshes are found, and what is warned of."""

    def __init__(self, builder: ModelBuilder, path: Path | None, package_dirs: Sequence[str]):
        self.builder, self.source, self.path, self.package_dirs = builder, builder.source, path, package_dirs

    def read(self, full: str, link: Element, part: Scope) -> BodyDescription:
        """A link without joints and placement. `ModelError` naming file, line, element and reason."""
        body, solids = BodyDescription(full), []
        inertial = link.find("inertial")
        for collision in link.findall("collision"):
            shape = self._collision(collision, full, part, str(link.get("name")))
            if shape is not None:
                body.shapes.append(shape)
                solids.append((shape, self._density(collision, inertial)))
        if inertial is None:
            self.builder.warn(
                f"{where(link, self.source)}: no <inertial>; the format's default of 1 kg and unit inertia is taken"
            )
            body.mass, body.inertia = 1.0, np.eye(3)
        elif inertial.get("auto", "").strip().lower() in ("1", "true"):
            body.mass, body.com, body.inertia = self._automatic(inertial, full, solids)
        else:
            body.mass, body.com, body.inertia = self._inertial(inertial)
        for tag, default in (("kinematic", False), ("enable_wind", False)):
            if is_true(link, tag, default):
                self.builder.warn(f"{where(link, self.source)}: <{tag}> is not supported; it is left out")
        if link.find("velocity_decay") is not None:
            self.builder.warn(f"{where(link, self.source)}: <velocity_decay> is not supported; it is left out")
        return body

    def _density(self, collision: Element, inertial: Element | None) -> float:
        default = WATER if inertial is None else text_number(inertial, "density", self.source, WATER)
        density = text_number(collision, "density", self.source, default)
        if density <= 0:
            fail(collision, self.source, f"its density is {density}; expected a positive number")
        return density

    def _automatic(
        self, inertial: Element, full: str, solids: list[tuple[ShapeDescription, float]]
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """The inertia of the link's shapes, each of its density."""
        parts: list[Inertial] = []
        for shape, density in solids:
            try:
                mass, com, inertia = solid(shape.kind, shape.size, shape.vertices, density)
            except ModelError as error:
                fail(inertial, self.source, f"link '{full}': {error}")
            r = shape.rotation
            parts.append((mass, shape.position + r @ com, r @ inertia @ r.T))
        if not parts:
            fail(inertial, self.source, f"link '{full}' has automatic inertia, but no collision shape to take it from")
        return joined(parts)

    def _inertial(self, inertial: Element) -> tuple[float, np.ndarray, np.ndarray]:
        rotation, com = own_pose(inertial, self.source)
        mass = text_number(inertial, "mass", self.source, 1.0)
        if mass < 0:
            fail(inertial, self.source, f"mass is {mass}; expected 0 or more")
        if inertial.find("fluid_added_mass") is not None:
            self.builder.warn(f"{where(inertial, self.source)}: <fluid_added_mass> is not supported; it is left out")
        tensor = np.eye(3)
        element = inertial.find("inertia")
        if element is not None:
            for (i, a), (j, b) in itertools.combinations_with_replacement(enumerate("xyz"), 2):
                tensor[i, j] = tensor[j, i] = text_number(element, f"i{a}{b}", self.source, float(i == j))
        return mass, com, rotation @ tensor @ rotation.T

    def _collision(self, collision: Element, full: str, part: Scope, link: str) -> ShapeDescription | None:
        rotation, position = part.pose_in_link(collision, link)
        geometry = collision.find("geometry")
        if geometry is None or not len(geometry):
            fail(collision, self.source, f"no shape inside <geometry> (link '{full}')")
        element = geometry[0]
        kind, size, vertices = self._geometry(element, full)
        if kind is None:
            return None
        if kind is ShapeType.PLANE:
            normal = unit_axis(text_numbers(element, "normal", 3, self.source, [0, 0, 1]), element, self.source)
            rotation = rotation @ np.stack([*perpendicular_axes(normal), normal], axis=1)
        name = f"{full}::{required(collision, 'name', self.source)}"
        shape = ShapeDescription(name, kind, size, rotation, position, vertices, contype=ALL_BITS, conaffinity=ALL_BITS)
        self._surface(collision, shape)
        return shape

    def _geometry(self, element: Element, full: str) -> tuple[ShapeType | None, np.ndarray, np.ndarray | None]:
        """Kind (None: dropped, with a warning), size, vertices. Dimensions that are left out are the format's defaults."""
        source, size, vertices = self.source, np.zeros(3), None
        kind: ShapeType | None = None
        if element.tag == "plane":
            return ShapeType.PLANE, size, None
        if element.tag == "box":
            kind, size = ShapeType.BOX, text_numbers(element, "size", 3, source, [1, 1, 1]) / 2
        elif element.tag == "sphere":
            kind, size[0] = ShapeType.SPHERE, text_number(element, "radius", source, 1.0)
        elif element.tag in ("cylinder", "capsule", "cone"):
            kind = {"cylinder": ShapeType.CYLINDER, "capsule": ShapeType.CAPSULE, "cone": ShapeType.MESH}[element.tag]
            size[0] = text_number(element, "radius", source, 1.0 if element.tag == "cylinder" else 0.5)
            size[1] = text_number(element, "length", source, 1.0) / 2
        elif element.tag == "ellipsoid":
            kind, size = ShapeType.ELLIPSOID, text_numbers(element, "radii", 3, source, [1, 1, 1])
        elif element.tag == "mesh":
            scale = text_numbers(element, "scale", 3, source, [1, 1, 1])
            uri = (element.findtext("uri") or "").strip()
            vertices = read_mesh(uri, scale, element, self.builder, file_of(element, self.path), self.package_dirs)
            return (None if vertices is None else ShapeType.MESH), size, vertices
        else:
            if element.tag != "empty":
                self.builder.warn(
                    f"{where(element, source)} of link '{full}': this geometry is not supported; it is dropped"
                )
            return None, size, None
        used = 1 if element.tag == "sphere" else 2 if element.tag in ("cylinder", "capsule", "cone") else 3
        if np.any(size[:used] <= 0):
            fail(element, source, f"its dimensions must be positive (link '{full}')")
        if element.tag == "cone":
            angle = 2 * np.pi * np.arange(CONE_SIDES) / CONE_SIDES
            rim = np.stack([size[0] * np.cos(angle), size[0] * np.sin(angle), np.full(CONE_SIDES, -size[1])], axis=1)
            vertices, size = np.concatenate([rim, [[0.0, 0.0, size[1]]]]), np.zeros(3)
        return kind, size, vertices

    def _surface(self, collision: Element, shape: ShapeDescription) -> None:
        """Friction, restitution, priority and collision bits; a warning for what is not supported."""
        surface = collision.find("surface")
        if surface is None:
            return
        self._friction(surface, shape)
        shape.restitution = self._coefficient(surface, "bounce/restitution_coefficient", 0.0)
        if surface.find(PRIORITY) is not None:
            shape.priority = int(text_number(surface, PRIORITY, self.source))
        bits = surface.findtext("contact/collide_bitmask")
        if bits is not None:
            try:
                mask = int(bits.strip(), 0)
            except ValueError:
                fail(surface, self.source, f"<collide_bitmask> is '{short(bits)}'; expected a whole number")
            shape.contype = shape.conaffinity = mask & ALL_BITS
        if is_true(surface, "contact/collide_without_contact"):
            self.builder.warn(f"{where(collision, self.source)}: it collides without contact; it has no contact pairs")
            shape.contype = shape.conaffinity = 0
        for tag, default, what in _LEFT_OUT:
            if text_number(surface, tag, self.source, default) != default:
                path = tag.replace("/", "><")
                self.builder.warn(
                    f"{where(collision, self.source)}: <{path}>, {what}, is not supported; it is left out"
                )

    def _friction(self, surface: Element, shape: ShapeDescription) -> None:
        """Sliding friction: ODE's, else Bullet's, else 1; one coefficient for all directions."""
        place = where(surface, self.source) + f" of '{shape.name}'"
        given = [pair for pair in _FRICTIONS if surface.find(pair[0]) is not None]
        first, second = given[0] if given else _FRICTIONS[0]
        shape.friction = self._coefficient(surface, first, DEFAULT_FRICTION)
        for tag, _ in given[1:]:
            other = self._coefficient(surface, tag, shape.friction)
            if other != shape.friction:
                self.builder.warn(
                    f"{place}: <{first}> is {shape.friction:g} and <{tag}> is {other:g}; the first is taken"
                )
        across = self._coefficient(surface, second, shape.friction)
        if across != shape.friction:
            self.builder.warn(
                f"{place}: friction that differs with the direction ({first.rpartition('/')[2]} {shape.friction:g}, "
                f"{second.rpartition('/')[2]} {across:g}) is not supported; {first.rpartition('/')[2]} is taken"
            )

    def _coefficient(self, surface: Element, tag: str, default: float) -> float:
        value = text_number(surface, tag, self.source, default)
        if value < 0:
            fail(surface, self.source, f"<{tag}> is {value}; expected 0 or more")
        return value
