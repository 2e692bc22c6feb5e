"""Recordings as a scene of viser: nodes made once, poses and arrows changed as the motion goes on.

Every recording has a frame of its own in the scene, `/<number>`, and below it one for each body, `/<number>/<node>`, whose
poses are all that changes along a motion, with the contact forces (arrows), the names and the time.
"""

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial.transform import Rotation

from trajopt.dynamics.model import WORLD, Model, ShapeType
from trajopt.errors import OptionError
from trajopt.viz.animation import SHORTEST_S, subsample
from trajopt.viz.plots import COLOURS
from trajopt.viz.recording import Recording
from trajopt.viz.rendering.camera import VERTICAL_ANGLE, framing, round_number
from trajopt.viz.rendering.scene import FIXED, FORCE, Scene, is_floor, rgb
from trajopt.viz.shapes3d import is_round, placements

_AROUND = 32  # facets of round shapes
_BOX_FRAMES = 50  # moments at which the extent of the shapes is looked at
_WEAKEST = 0.01  # contact forces below this share of the drawing's unit are not drawn
_LONGEST = 1.0  # arrows end at this share of the scene's radius
_ASPECT = (0.7, 0.7)  # height over width that everything fits in
_FROM_THE_SIDE, _ALONG_THE_ROW, _ELEVATION = -56.0, -37.0, 22.0  # degrees: azimuths and elevation of the camera


@dataclasses.dataclass(frozen=True, eq=False)
class _Actor:
    """A recording on the stage: what was computed of it once, and the handles of what moves."""

    recording: Recording
    rotation: Float[np.ndarray, "k n 3 3"]
    position: Float[np.ndarray, "k n 3"]
    root: Any
    bodies: dict[int, Any]
    arrows: Any
    label: Any
    label_height: float


class Stage:
    """Recordings in the scene of a viser server: `show(t)` moves everything to a moment, `legend()` describes it.

    times (k,): the moments at which something moves, s. slowdown: seconds of playing for one of the motion, at least 1.
    newtons_per_metre: scale of the force arrows.
    """

    def __init__(self, server: Any, recordings: Sequence[Recording], overlay: bool = False) -> None:
        if not recordings:
            raise OptionError("there is nothing to show: give at least one recording")
        self.server = server
        self.overlay = overlay and len(recordings) > 1
        times = np.unique(np.concatenate([recording.t for recording in recordings]))
        self.times = times[np.append(np.diff(times) > 1e-9 * np.ptp(times), True)]  # equal to rounding: the latest
        if all(len(recording.t) <= 2 for recording in recordings):
            self.times = self.times[:1]  # a pose and the forces of one step
        duration = float(self.times[-1] - self.times[0])
        self.slowdown = max(SHORTEST_S / duration, 1.0) if duration > 0 else 1.0
        self.forces_shown = True
        scenes = [Scene(recording.model, _AROUND) for recording in recordings]
        moving = [placements(recording.model, recording.q) for recording in recordings]
        boxes = [_box(scene, *placed) for scene, placed in zip(scenes, moving)]
        self.offsets = np.zeros((len(recordings), 3))
        if not self.overlay:
            widths = [1.3 * max((high - low)[1], 0.6 * (high - low).max()) for low, high in boxes]
            for k in range(1, len(boxes)):
                self.offsets[k, 1] = self.offsets[k - 1, 1] + 0.5 * (widths[k - 1] + widths[k])
            self.offsets[:, 1] -= [0.5 * (low + high)[1] - 0.5 * (boxes[0][0] + boxes[0][1])[1] for low, high in boxes]
        low = np.min([box[0] + offset for box, offset in zip(boxes, self.offsets)], axis=0)
        high = np.max([box[1] + offset for box, offset in zip(boxes, self.offsets)], axis=0)
        self.centre, self.radius = (low + high) / 2, max(0.5 * float(np.linalg.norm(high - low)), 1e-2)
        self.newtons_per_metre = _force_scale(recordings, self.radius)
        self.actors: list[_Actor] = []
        with server.atomic():
            self._set_scene(low, high)
            shapes = [shape for recording in recordings for shape in recording.model.topology.shapes]
            if not any(shape.kind == ShapeType.PLANE for shape in shapes):  # lines below, to see direction and scale
                self._add_grid("/lines", solid=False, position=(*self.centre[:2], low[2]))
            for k, (scene, recording, placed) in enumerate(zip(scenes, recordings, moving)):
                self.actors.append(self._add(k, scene, recording, *placed, boxes[k][1][2] + 0.06 * self.radius))
        self.now = -np.inf
        self.show(float(self.times[0]))

    def _set_scene(self, low: np.ndarray, high: np.ndarray) -> None:
        """Light, a camera that sees everything between the corners `low` and `high`, and the label of the time."""
        server, scene = self.server, self.server.scene
        scene.set_up_direction("+z")
        scene.add_light_ambient("/light", intensity=0.7)
        top = np.array([self.centre[0], self.centre[1], high[2] + 0.3 * self.radius])
        corners = np.array(np.meshgrid(*zip(low, [*high[:2], top[2] + 0.1 * self.radius]))).reshape(3, -1).T
        view = framing(corners, _ALONG_THE_ROW if self.offsets.any() else _FROM_THE_SIDE, _ELEVATION, 1000, _ASPECT)
        camera = server.initial_camera
        camera.position, camera.look_at, camera.fov = tuple(view.eye), tuple(view.centre), np.deg2rad(VERTICAL_ANGLE)
        camera.near, camera.far = 1e-3 * self.radius, 1e3 * self.radius
        self._time = scene.add_label("/time", "", position=tuple(top), anchor="bottom-center", font_screen_scale=1.2)

    def _add(self, k: int, scene: Scene, recording: Recording, rotation, position, height: float) -> _Actor:
        """Nodes of one recording: a frame for it, one for each body, meshes below these."""
        drawn, several = self.server.scene, len(self.offsets) > 1
        root = drawn.add_frame(f"/{k}", show_axes=False, position=tuple(self.offsets[k]))
        bodies = {n: drawn.add_frame(f"/{k}/{n}", show_axes=False) for n in range(scene.model.topology.n_nodes)}
        own = rgb(COLOURS[k % len(COLOURS)])
        for part in scene.parts:
            drawn.add_mesh_simple(
                f"{_above(k, part.node)}/{part.name}", part.points, part.triangles, wxyz=_quaternion(part.rotation),
                position=tuple(part.position), color=_bytes(own if several and not part.fixed else part.colour),
                opacity=0.55 if self.overlay else None, flat_shading=not is_round(part.kind),
                scale=1 + 2e-3 * k,  # shapes at the same place do not flicker
            )  # fmt: skip
        self._add_planes_and_points(k, scene.model)
        width, arrows, label = 0.012 * self.radius, None, None
        if recording.forces.shape[1]:
            arrows = drawn.add_arrows(
                f"/{k}/forces", np.zeros((1, 2, 3)), _bytes(own if self.overlay else rgb(FORCE)),
                shaft_radius=0.5 * width, head_radius=1.3 * width, head_length=3.5 * width, visible=False,
            )  # fmt: skip
        if several and not self.overlay:
            label = drawn.add_label(f"/{k}/name", recording.name, anchor="bottom-center", font_screen_scale=1.2)
        return _Actor(recording, rotation, position, root, bodies, arrows, label, height)

    def _add_planes_and_points(self, k: int, model: Model) -> None:
        """What has no surface of its own; the floor of the first recording serves all."""
        for index, shape in enumerate(model.topology.shapes):
            rotation, place = np.asarray(model.shape_rotation[index]), np.asarray(model.shape_position[index], float)
            pose = {"wxyz": _quaternion(rotation), "position": tuple(place)}
            name = f"{_above(k, shape.node)}/shape{index}"
            if shape.kind == ShapeType.PLANE and not (k > 0 and is_floor(model, index)):
                if is_floor(model, index):
                    pose["position"] = (0.0, 0.0, float(place[2]))
                self._add_grid(name, solid=True, **pose)
            elif shape.kind == ShapeType.POINTS:
                vertices = np.asarray(model.meshes[shape.mesh], float)
                self.server.scene.add_point_cloud(name, vertices, _bytes(rgb(FIXED)), point_size=0.02 * self.radius, **pose)

    def _add_grid(self, name: str, *, solid: bool, **pose: Any) -> None:
        """Lines with a round spacing, m, on a surface if `solid`."""
        cell = 10.0 ** np.floor(np.log10(self.radius)) / 2
        size = 2 * cell * np.ceil(8 * self.radius / (2 * cell))
        self.server.scene.add_grid(
            name, width=size, height=size, cell_size=cell, section_size=2 * cell, plane_color=(244, 243, 239),
            plane_opacity=0.9 if solid else 0.0, cell_color=(214, 212, 204), section_color=(188, 186, 178),
            shadow_opacity=0.25 if solid else 0.0, fade_distance=12 * self.radius, **pose,
        )  # fmt: skip

    def show(self, moment: float) -> None:
        """Move everything to the time `moment`, s: each recording to its last state that is not later."""
        if moment == self.now:
            return
        self.now = moment
        with self.server.atomic():
            self._time.text = f"t = {moment:.3f} s"
            for actor in self.actors:
                self._pose(actor, actor.recording.at(moment))

    def show_forces(self, shown: bool) -> None:
        """Draw the contact forces, or not."""
        if shown != self.forces_shown:
            self.forces_shown = shown
            moment, self.now = self.now, -np.inf
            self.show(moment)

    def place(self, k: int, rotation: Float[np.ndarray, "n 3 3"], position: Float[np.ndarray, "n 3"]) -> None:
        """Move the bodies of recording k to poses of their nodes, whatever its motion."""
        turns = _quaternion(rotation)
        for n, body in self.actors[k].bodies.items():
            body.wxyz, body.position = turns[n], position[n]

    def _pose(self, actor: _Actor, k: int) -> None:
        self.place(self.actors.index(actor), actor.rotation[k], actor.position[k])
        if actor.label is not None and len(actor.position[k]):
            actor.label.position = (*actor.position[k].mean(axis=0)[:2], actor.label_height)
        if actor.arrows is not None:
            lines = self.force_lines(actor.recording, k)
            if len(lines) and self.forces_shown:
                actor.arrows.points = lines.astype(np.float32)
            actor.arrows.visible = bool(len(lines)) and self.forces_shown

    def force_lines(self, recording: Recording, k: int) -> Float[np.ndarray, "c 2 3"]:
        """Start and end of the arrows at state k, m: forces over `newtons_per_metre`, cut at the scene's radius."""
        points, length = recording.points[k], recording.forces[k] / self.newtons_per_metre
        size = np.linalg.norm(length, axis=-1, keepdims=True)
        most = _LONGEST * self.radius
        drawn = size[:, 0] > _WEAKEST * most
        length = np.where(size > most, length * (most / np.where(size > 0, size, 1.0)), length)
        return np.stack([points, points + length], axis=1)[drawn]

    def legend(self, recorded: bool = False) -> str:
        """Colours, names, captions and the scale of forces, as HTML; of a recording also how much it is slowed down."""
        rows = []
        for k, actor in enumerate(self.actors):
            square = f'<span style="color:{COLOURS[k % len(COLOURS)]}">&#9632;</span> ' if len(self.actors) > 1 else ""
            name, caption = html.escape(actor.recording.name), html.escape(actor.recording.caption)
            rows.append(f"<div>{square}<b>{name}</b><br/>{caption}</div>")
        if any(actor.arrows is not None for actor in self.actors):
            scale = f"1 m of arrow is {self.newtons_per_metre:g} N, cut at {_LONGEST * self.radius:.2g} m"
            rows.append(f"<div>contact forces: {scale}</div>")
        if recorded and self.slowdown > 1:
            rows.append(f"<div>played {self.slowdown:.3g} times slower than it happens</div>")
        return "".join(rows)


def _above(k: int, node: int) -> str:
    """The name of what carries a shape of recording k."""
    return f"/{k}" if node == WORLD else f"/{k}/{node}"


def _bytes(colour: Float[np.ndarray, "3"]) -> tuple[int, ...]:
    return tuple(int(round(255 * share)) for share in colour)


def _quaternion(rotation: Float[np.ndarray, "*n 3 3"]) -> Float[np.ndarray, "*n 4"]:
    """w x y z."""
    if not rotation.size:
        return np.zeros((*rotation.shape[:-2], 4))
    return Rotation.from_matrix(np.asarray(rotation, float)).as_quat(scalar_first=True)


def _box(scene: Scene, rotation, position) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the box around everything, over the whole motion, and around the floor's height."""
    few = subsample(len(position), _BOX_FRAMES)
    poses = [scene.pose(rotation[k], position[k], np.zeros((0, 2, 3))) for k in few]
    points = np.concatenate([position.reshape(-1, 3), scene.outline(poses[0], fixed=True), *map(scene.outline, poses)])
    if not len(points):
        return np.full(3, -0.5), np.full(3, 0.5)
    low, high = points.min(0), points.max(0)
    low[2] = min(low[2], np.inf if scene.ground is None else scene.ground)
    return low, high


def _force_scale(recordings: Sequence[Recording], radius: float) -> float:
    """N per metre of arrow, a round number: the ninetieth percentile of all forces takes about 0.4 of the scene's radius."""
    sizes = np.concatenate([np.linalg.norm(recording.forces, axis=-1).ravel() for recording in recordings])
    sizes = sizes[sizes > 1e-9 * sizes.max(initial=0.0)]
    return round_number(float(np.percentile(sizes, 90)) / (0.4 * radius)) if len(sizes) else 1.0
