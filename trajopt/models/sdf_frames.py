"""Names and frames of an SDF model: poses relative to other frames, nested models, `attached_to`.

A `Scope` is one <model>. `resolve(name)` is the pose of a link, joint, frame or nested model in the model's frame,
`attached_link(name)` the link it moves with. Names in nested models are written NESTED::NAME.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
from jaxtyping import Float

from trajopt.models.descriptions import quaternion_to_matrix, rpy_to_matrix
from trajopt.models.limits import CHAIN, short
from trajopt.models.xml import fail, parse_numbers, required
from trajopt.names import closest

Pose = tuple[np.ndarray, np.ndarray]
IDENTITY: Pose = (np.eye(3), np.zeros(3))


def compose(a: Pose, b: Pose) -> Pose:
    return a[0] @ b[0], a[1] + a[0] @ b[1]


def invert(a: Pose) -> Pose:
    return a[0].T, -a[0].T @ a[1]


def text_numbers(
    element: Element, tag: str, count: int, default: Sequence[float] | Float[np.ndarray, " count"] | None = None
) -> Float[np.ndarray, " count"]:
    """The finite numbers in the text of a child element."""
    child = element.find(tag)
    if child is None:
        if default is None:
            fail(element, f"child element <{tag}> is missing")
        return np.array(default, float)
    return parse_numbers(child.text or "", count, child, "its text")


def text_number(element: Element, tag: str, default: float | None = None) -> float:
    return float(text_numbers(element, tag, 1, None if default is None else [default])[0])


def is_true(element: Element, tag: str, default: bool = False) -> bool:
    text = element.findtext(tag)
    return default if text is None else text.strip().lower() in ("1", "true")


def own_pose(element: Element) -> Pose:
    """The numbers of the <pose> child, whatever frame they refer to."""
    pose = element.find("pose")
    if pose is None or not (pose.text or "").strip():
        return IDENTITY
    if pose.get("rotation_format") == "matrix":  # written by `trajopt.models.sdf_include`, not part of the format
        values = parse_numbers(pose.text or "", 12, pose, "the pose")
        return values[:9].reshape(3, 3), values[9:]
    if pose.get("rotation_format") == "quat_xyzw":
        values = parse_numbers(pose.text or "", 7, pose, "the pose")
        if np.linalg.norm(values[3:]) < 1e-9:
            fail(pose, "the pose has a zero quaternion")
        return quaternion_to_matrix(values[[6, 3, 4, 5]]), values[:3]
    values = parse_numbers(pose.text or "", 6, pose, "the pose")
    angles = np.deg2rad(values[3:]) if pose.get("degrees", "").strip().lower() in ("1", "true") else values[3:]
    return rpy_to_matrix(angles), values[:3]


class Scope:
    """One <model>, or the <world> that holds models: links, joints, frames and nested models by name.

    `prefix` goes before its names. `world_pose`: of its frame.
    """

    def __init__(self, element: Element, prefix: str = "", parent: Scope | None = None):
        self.element, self.prefix, self.parent = element, prefix, parent
        self.is_world = element.tag != "model"
        self.static: bool = is_true(element, "static") or (parent is not None and parent.static)
        self.entries: dict[str, Element] = {}
        self._poses: dict[str, Pose] = {}
        self._open: set[str] = set()  # names that `resolve` is at
        for tag in ("link", "joint", "frame", "model"):
            for child in element.findall(tag):
                name = required(child, "name")
                if name in self.entries:
                    line = getattr(self.entries[name], "sourceline", "?")
                    fail(child, f"the name is used twice in this {element.tag}, first in line {line}")
                self.entries[name] = child
        models = [name for name, child in self.entries.items() if child.tag == "model"]
        alone = self.is_world and len(models) == 1
        self.nested = {
            name: Scope(self.entries[name], prefix if alone else f"{prefix}{name}::", self) for name in models
        }

    @functools.cached_property
    def local_pose(self) -> Pose:
        """Pose of this model's frame in the frame of what holds it."""
        if self.is_world:
            return IDENTITY
        return own_pose(self.element) if self.parent is None else self.parent.resolve(self.name)

    @functools.cached_property
    def world_pose(self) -> Pose:
        return self.local_pose if self.parent is None else compose(self.parent.world_pose, self.local_pose)

    @property
    def name(self) -> str:
        return str(self.element.get("name"))

    def pose_in_link(self, part: Element, link: str) -> Pose:
        """Pose of a part of a link, a collision say, in the link's frame."""
        relative_to = _relative_to(part)
        if not relative_to:
            return own_pose(part)
        return compose(invert(self.resolve(link)), compose(self.resolve(relative_to), own_pose(part)))

    def scopes(self) -> list[Scope]:
        """This world or model and the nested ones."""
        return [self] + [inner for scope in self.nested.values() for inner in scope.scopes()]

    def entries_of(self, tag: str) -> list[Element]:
        """Its links, joints or frames."""
        return [entry for entry in self.entries.values() if entry.tag == tag]

    def resolve(self, name: str, trail: tuple[str, ...] = ()) -> Pose:
        """Pose of a named frame in this model's frame; `ModelError` for unknown names and circular definitions."""
        if name in ("", "__model__"):
            return IDENTITY
        if name == "world":
            return invert(self.world_pose)
        if name in self._poses:
            return self._poses[name]
        if name in trail:
            fail(self.entries[name], f"poses refer to each other in a loop: {' -> '.join([*trail, name])}")
        if name in self._open or len(self._open) > CHAIN:
            reason = "in a loop through several models" if name in self._open else f"more than {CHAIN} frames deep"
            fail(self.element, f"poses refer to each other {reason}, at '{short(name)}'")
        self._open.add(name)
        self._poses[name] = self._resolved(name, trail)
        self._open.discard(name)
        return self._poses[name]

    def _resolved(self, name: str, trail: tuple[str, ...]) -> Pose:
        """`resolve` of a name that is not the model's own frame nor the world."""
        if name not in self.entries:
            outer, _, inner = name.partition("::")
            if inner and outer in self.nested:
                return compose(self.nested[outer].local_pose, self.nested[outer].resolve(inner))
            fail(self.element, f"there is no frame '{short(name)}'{closest(name, self.entries)}")
        entry = self.entries[name]
        relative_to = _relative_to(entry)
        if not relative_to and entry.tag == "joint":
            relative_to = (entry.findtext("child") or "").strip()
        if not relative_to and entry.tag == "frame":
            relative_to = entry.get("attached_to", "")
        pose = compose(self.resolve(relative_to, (*trail, name)), own_pose(entry))
        placed = entry.get("placement_frame", "") if entry.tag == "model" else ""
        return compose(pose, invert(self.nested[name].resolve(placed))) if placed else pose

    def attached_link(self, name: str, where: Element, trail: tuple[str, ...] = ()) -> str | None:
        """Full name of the link that `name` moves with; None for the world."""
        if name == "world":
            return None
        if name in trail:
            fail(where, f"frames are attached to each other in a loop: {' -> '.join([*trail, name])}")
        if len(trail) > CHAIN:
            fail(where, f"frames are attached to each other more than {CHAIN} deep, at '{short(name)}'")
        outer, _, inner = name.partition("::")
        if inner and outer in self.nested:
            return self.nested[outer].attached_link(inner, where)
        if name in self.nested:
            return self.nested[name].attached_link("__model__", where)
        if name == "" and self.is_world:
            return None
        if name in ("", "__model__"):
            canonical = self.element.get("canonical_link")
            if canonical:
                return self.attached_link(canonical, where, (*trail, name))
            for link in self.entries_of("link"):
                return self.prefix + str(link.get("name"))
            for scope in self.nested.values():
                return scope.attached_link("__model__", where)
            fail(self.element, "the model has no <link>")
        entry = self.entries.get(name)
        if entry is None:
            fail(where, f"there is no link or frame '{name}'{closest(name, self.entries)}")
        if entry.tag == "link":
            return self.prefix + name
        if entry.tag == "joint":
            return self.attached_link((entry.findtext("child") or "").strip(), where, (*trail, name))
        return self.attached_link(entry.get("attached_to", ""), where, (*trail, name))


def _relative_to(element: Element) -> str:
    """The frame that an element's pose refers to, "" for the default; versions 1.5 and 1.6 call it `frame`."""
    pose = element.find("pose")
    return "" if pose is None else (pose.get("relative_to") or pose.get("frame") or "").strip()
