"""What is to be seen: the shapes of a model with a colour for each body, where they are, and arrows of contact forces."""

import dataclasses

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import WORLD, Model, ShapeType
from trajopt.models.descriptions import frame_along
from trajopt.viz.plots.axes import COLOURS
from trajopt.viz.plots.labels import limbs
from trajopt.viz.shapes3d import shape_vertices, surface

LIGHT = np.array([0.35, -0.45, 0.82]) / np.linalg.norm([0.35, -0.45, 0.82])  # towards it
TRUNK, FIXED, LOAD, FORCE = "#66727f", "#b9b4a8", "#b8962e", "#c8202f"
_PALEST = 0.45  # share of white of the last body of a limb
_LOADS = ("payload",)  # shapes that are carried, not part of the robot
_THICK = 0.012  # of the lines that stand for bodies without shapes, as a share of the model's extent


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A shape to be drawn: its kind and size (`ShapeType`), its surface as triangles in its own frame, its colour, and its place
    (rotation and position, m) on the body of node `node`.

    mesh: whether the surface itself is meant, not the primitive.
    """

    name: str
    kind: ShapeType
    size: Float[np.ndarray, "3"]
    points: Float[np.ndarray, "v 3"]
    triangles: np.ndarray
    colour: Float[np.ndarray, "3"]
    node: int
    rotation: Float[np.ndarray, "3 3"]
    position: Float[np.ndarray, "3"]

    @property
    def fixed(self) -> bool:
        return self.node == WORLD

    @property
    def mesh(self) -> bool:
        return self.kind in (ShapeType.MESH, ShapeType.HEIGHTFIELD)


@dataclasses.dataclass(frozen=True, eq=False)
class Pose:
    """Where the parts are at one moment: rotation (p, 3, 3), position (p, 3), m; arrows (a, 2, 3): start and end, m."""

    rotation: Float[np.ndarray, "p 3 3"]
    position: Float[np.ndarray, "p 3"]
    arrows: Float[np.ndarray, "a 2 3"]


class Scene:
    """The parts of a model, round ones with `around` facets about their axes. ground: height of the floor (m), or None."""

    def __init__(self, model: Model, around: int = 18) -> None:
        top = model.topology
        self.model, self.around = model, around
        colours = body_colours(model)
        self.parts: list[Part] = []
        self.ground: float | None = None
        sizes, rotations = np.asarray(model.shape_size, float), np.asarray(model.shape_rotation, float)
        places = np.asarray(model.shape_position, float)
        for index, shape in enumerate(top.shapes):
            if is_floor(model, index):
                self.ground = max(float(places[index, 2]), -np.inf if self.ground is None else self.ground)
                continue
            colour = LOAD if shape.name in _LOADS else FIXED if shape.node == WORLD else colours[shape.node]
            vertices, place = shape_vertices(model, index), (rotations[index], places[index])
            self._add(f"shape{index}", shape.kind, sizes[index], vertices, colour, shape.node, *place)
        self._add_bones(colours)
        self._node = np.array([part.node for part in self.parts], int)
        self._rotation = np.array([part.rotation for part in self.parts]).reshape(-1, 3, 3)
        self._position = np.array([part.position for part in self.parts]).reshape(-1, 3)

    def _add(self, name, kind, size, vertices, colour, node, rotation, position) -> None:
        points, triangles = surface(kind, size, vertices, around=self.around, along=2 * (self.around // 4))
        if len(triangles):
            self.parts.append(Part(name, kind, size, points, triangles, rgb(colour), node, rotation, position))

    def _add_bones(self, colours: dict[int, str]) -> None:
        """A rod from a joint to the next, where a body has no shape."""
        model, top = self.model, self.model.topology
        shown = {part.node for part in self.parts}
        offsets = np.asarray(model.placement_position, float)
        lengths = np.linalg.norm(offsets, axis=1)
        radius = _THICK * max(float(lengths.sum()), 1e-3)
        for child, parent in enumerate(top.parents):
            if parent < 0 or parent in shown or lengths[child] < 1e-9:
                continue
            size, turned = np.array([radius, lengths[child] / 2, 0.0]), frame_along(offsets[child] / lengths[child])
            self._add(f"to{child}", ShapeType.CAPSULE, size, None, colours[parent], parent, turned, offsets[child] / 2)

    def pose(
        self, rotation: Float[np.ndarray, "n 3 3"], position: Float[np.ndarray, "n 3"], arrows: Float[np.ndarray, "a 2 3"]
    ) -> Pose:
        """Placements of the parts for those of the model's nodes."""
        R = np.concatenate([rotation, np.eye(3)[None]])[self._node]
        p = np.concatenate([position, np.zeros((1, 3))])[self._node]
        return Pose(R @ self._rotation, np.einsum("sij,sj->si", R, self._position) + p, arrows)

    def outline(self, pose: Pose, fixed: bool = False) -> Float[np.ndarray, "k 3"]:
        """Corners of boxes around the parts that move, or around the fixed ones, in the world."""
        corners = [np.zeros((0, 3))]
        for k, part in enumerate(self.parts):
            if part.fixed == fixed:
                low, high = part.points.min(0), part.points.max(0)
                box = np.array(np.meshgrid(*zip(low, high))).reshape(3, -1).T
                corners.append(box @ pose.rotation[k].T + pose.position[k])
        return np.concatenate(corners)


def is_floor(model: Model, index: int) -> bool:
    """Whether a shape is a level plane of the world."""
    shape = model.topology.shapes[index]
    return shape.kind == ShapeType.PLANE and shape.node == WORLD and bool(model.shape_rotation[index, 2, 2] > 1 - 1e-9)


def body_colours(model: Model) -> dict[int, str]:
    """A colour for every node: a hue for each limb, paler towards its end, grey for the trunk, the first hue for a lone body."""
    top, colours = model.topology, dict[int, str]()
    chains = [limb for limb in limbs(model) if limb.joints]
    for k, limb in enumerate(chains):
        nodes = [joint.nodes[-1] for joint in limb.joints]
        for j, node in enumerate(nodes):
            colours[node] = _paler(COLOURS[k % (len(COLOURS) - 1)], _PALEST * j / max(len(nodes) - 1, 1))
    rest = [node for node in range(top.n_nodes) if node not in colours]
    lone = [node for node in rest if not any(parent == node for parent in top.parents)]
    for node in rest:
        colours[node] = COLOURS[lone.index(node) % len(COLOURS)] if node in lone else TRUNK
    return colours


def rgb(colour: str) -> Float[np.ndarray, "3"]:
    """Shares of red, green and blue of "#rrggbb"."""
    return np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])


def _paler(colour: str, white: float) -> str:
    mixed = np.round(255 * ((1 - white) * rgb(colour) + white)).astype(int)
    return "#" + "".join(f"{value:02x}" for value in mixed)

