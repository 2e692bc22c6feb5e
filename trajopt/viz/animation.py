"""Animation of a motion: the model's collision shapes over a floor, drawn off-screen, written as GIF (and MP4).

Shapes become polygons once, in their own frames; a frame of the animation places, shades and paints them. Bodies
without shapes are shown by lines between the joints. Needs neither a display nor a graphics driver.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from trajopt.dynamics.model import WORLD, Model, ShapeType
from trajopt.viz.painting import Camera, Canvas
from trajopt.viz.plots import COLOURS
from trajopt.viz.shapes3d import placements, polygons, shape_vertices

MOST_FRAMES = 100
FRAMES_PER_S = 30
SHORTEST_S = 2.0  # shorter motions are slowed down to this
_LIGHT = np.array([0.35, -0.45, 0.82])
_AZIMUTH, _ELEVATION = -60.0, 18.0  # degrees, of the eye
_PALETTE_FRAMES = 6
_WHITE = 247  # Pillow looks up colours to within eight levels: lighter greys would take the background's place
TURN_FRAMES = 36  # of the camera's tour around a motion of one or two states


class _Scene:
    """The polygons of a model, ready to be placed: vertices padded to four, with their shape and colour."""

    def __init__(self, model: Model) -> None:
        top = model.topology
        self.model = model
        faces, shape_of, colours = [], [], []
        moving = sorted({shape.node for shape in top.shapes if shape.node != WORLD})
        for index, shape in enumerate(top.shapes):
            mesh = shape_vertices(model, index)
            colour = "#c9c5bd" if shape.node == WORLD else COLOURS[moving.index(shape.node) % 6]
            for face in polygons(shape.kind, np.asarray(model.shape_size)[index], mesh):
                faces.append(face[[0, 1, 2, len(face) - 1]])
                shape_of.append(index)
                colours.append([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
        self.faces = np.array(faces).reshape(-1, 4, 3)
        self.shape_of = np.array(shape_of, int)
        self.colours = np.array(colours).reshape(-1, 3)
        self.node = np.array([shape.node for shape in top.shapes], int)
        solid = np.asarray(model.mass) > 0  # the others are inner nodes of a joint with several degrees of freedom
        self.bones = np.array([(p, i) for i, p in enumerate(top.parents) if p >= 0 and solid[p]], int).reshape(-1, 2)
        self.limbs = np.array([i for i, s in enumerate(top.shapes) if s.node != WORLD], int)
        planes = [i for i, s in enumerate(top.shapes) if s.kind == ShapeType.PLANE and s.node == WORLD]
        self.floor = float(np.asarray(model.shape_position)[planes[0], 2]) if planes else None

    def place(self, rotation: np.ndarray, position: np.ndarray) -> np.ndarray:
        """World vertices (faces, 4, 3) for node placements (n, 3, 3), (n, 3)."""
        model = self.model
        rotation = np.concatenate([rotation, np.eye(3)[None]])[self.node]
        position = np.concatenate([position, np.zeros((1, 3))])[self.node]
        R = rotation @ np.asarray(model.shape_rotation)
        p = np.einsum("sij,sj->si", rotation, np.asarray(model.shape_position)) + position
        return np.einsum("fij,fkj->fki", R[self.shape_of], self.faces) + p[self.shape_of][:, None]

    def skeleton(self, rotation: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Lines (k, 2, 3) between joints and from joints to the centres of their shapes."""
        node = self.node[self.limbs]
        offset = np.asarray(self.model.shape_position)[self.limbs]
        centres = np.einsum("sij,sj->si", rotation[node], offset) + position[node]
        return np.concatenate([position[self.bones], np.stack([position[node], centres], axis=1)])

    def shaded(self, normals: np.ndarray) -> np.ndarray:
        """Face colours under a fixed light."""
        light = normals @ (_LIGHT / np.linalg.norm(_LIGHT))
        return np.clip(self.colours * (0.74 + 0.26 * light[:, None]) + 0.06 * np.maximum(light, 0)[:, None], 0, 1)


def animate(
    model: Model,
    motion: Mapping[str, Any],
    path: str | os.PathLike,
    *,
    most_frames: int = MOST_FRAMES,
    pixels: int = 480,
) -> pathlib.Path:
    """Write the motion as an animated GIF to `path`, and as .mp4 beside it where ffmpeg is installed.

    `motion` holds q (T+1, nq) and, for the speed, t (T+1,) in seconds; at most `most_frames` states are drawn, and at most
    `FRAMES_PER_S` for each second of the animation. A motion of one or two states is shown from all sides instead. Returns
    the path of the GIF.
    """
    path = pathlib.Path(path)
    q = np.asarray(motion["q"], float)
    t = np.asarray(motion.get("t", np.arange(len(q))), float)
    turning = len(q) <= 2
    duration = 6.0 if turning else max(float(t[-1] - t[0]), SHORTEST_S)
    shown = min(most_frames, int(np.ceil(FRAMES_PER_S * duration)))
    keep = np.full(TURN_FRAMES, len(q) - 1) if turning else subsample(len(q), shown)
    scene = _Scene(model)
    rotation, position = placements(model, q[keep])
    vertices = [scene.place(R, p) for R, p in zip(rotation, position)]
    skeletons = [scene.skeleton(R, p) for R, p in zip(rotation, position)]
    images = _render(scene, vertices, skeletons, t[keep], turning, pixels)
    _write_gif(images, path, duration)
    if shutil.which("ffmpeg"):
        _write_mp4(images, path.with_suffix(".mp4"), duration)
    return path


def subsample(count: int, most: int) -> Int[np.ndarray, " k"]:
    return np.unique(np.linspace(0, count - 1, min(count, max(most, 2))).round().astype(int))


def _bounds(scene: _Scene, vertices: list[np.ndarray], skeletons: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """Centre and radius of the view: everything that moves, over all frames."""
    moving = scene.node[scene.shape_of] != WORLD if len(scene.shape_of) else np.zeros(0, bool)
    points = [part.reshape(-1, 3) for part in (*(v[moving] for v in vertices), *skeletons)]
    everything = np.concatenate(points)
    low, high = everything.min(0), everything.max(0)
    if scene.floor is not None:
        low[2] = min(low[2], scene.floor)
    return (low + high) / 2, max(0.45 * float(np.linalg.norm(high - low)), 1e-3)


def _render(
    scene: _Scene,
    vertices: list[np.ndarray],
    skeletons: list[np.ndarray],
    t: np.ndarray,
    turning: bool,
    pixels: int,
) -> list[UInt8[np.ndarray, "h w 3"]]:
    """RGB images (pixels, pixels, 3), one a frame; in the order of painting floor, shadow, lines between joints, fixed and
    moving shapes."""
    centre, radius = _bounds(scene, vertices, skeletons)
    moving = scene.node[scene.shape_of] != WORLD
    grid = None if scene.floor is None else _grid(centre, 1.1 * radius, scene.floor)
    images = []
    for k, world in enumerate(vertices):
        azimuth = _AZIMUTH + (360 * k / len(vertices) if turning else 0)
        camera = Camera(centre, 1.1 * radius, azimuth, _ELEVATION, pixels)
        canvas = Canvas(camera)
        if grid is not None and scene.floor is not None:
            square, lines = grid
            canvas.polygons(square, "#f1f0ec")
            canvas.lines(lines, "#d2d0c8", 0.7)
            canvas.polygons(_shadow(world[moving], scene.floor), "#bdbbb4")
        canvas.lines(skeletons[k], "#404040", 2.5)
        normals = _normals(world)
        seen = camera.faces_it(world, normals)
        colours = scene.shaded(normals)
        # By mean distance alone, large faces of the ground would hide feet on it.
        for chosen in (seen & ~moving, seen & moving):
            canvas.polygons(world[chosen], colours[chosen])
        images.append(canvas.picture("" if turning else f"t = {t[k]:.3f} s"))
    return images


def _grid(centre: np.ndarray, reach: float, height: float) -> tuple[np.ndarray, np.ndarray]:
    """The floor as a square (1, 4, 3) and lines (n, 2, 3) on it, with a round spacing, m."""
    spacing = 10.0 ** np.floor(np.log10(reach))
    spacing *= 0.5 if reach / spacing < 2.5 else 1.0
    low = np.floor((centre[:2] - 1.6 * reach) / spacing) * spacing
    high = np.ceil((centre[:2] + 1.6 * reach) / spacing) * spacing
    corners = [(low[0], low[1]), (high[0], low[1]), (high[0], high[1]), (low[0], high[1])]
    square = np.array([[(x, y, height) for x, y in corners]])
    along_y = [[(x, low[1], height), (x, high[1], height)] for x in np.arange(low[0], high[0] + 0.5 * spacing, spacing)]
    along_x = [[(low[0], y, height), (high[0], y, height)] for y in np.arange(low[1], high[1] + 0.5 * spacing, spacing)]
    return square, np.array(along_y + along_x)


def _normals(faces: np.ndarray) -> np.ndarray:
    """Outward unit normals of faces (f, 4, 3), zero where a face has no area."""
    normal = np.cross(faces[:, 2] - faces[:, 0], faces[:, 3] - faces[:, 1])
    length = np.linalg.norm(normal, axis=-1, keepdims=True)
    return normal / np.where(length > 0, length, 1.0)


def _shadow(vertices: np.ndarray, height: float) -> np.ndarray:
    """Faces projected on the floor along the light."""
    drop = (vertices[..., 2:] - height) / _LIGHT[2]
    flat = vertices - drop * _LIGHT
    flat[..., 2] = height
    return flat


def _write_gif(images: list[UInt8[np.ndarray, "h w 3"]], path: pathlib.Path, duration: float) -> None:
    palette = _palette(images)
    frames = [Image.fromarray(image).quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    each = max(int(round(1000 * duration / len(frames))), 20)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=each, loop=0, optimize=False)


def _palette(images: list[UInt8[np.ndarray, "h w 3"]]) -> Image.Image:
    """One palette for all frames, from a few of them: to look for colours takes ten times as long as to use them."""
    few = images[:: max(len(images) // _PALETTE_FRAMES, 1)]
    sample = Image.fromarray(np.concatenate([image[::2, ::2] for image in few]))
    palette = sample.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    colours = np.array(palette.getpalette(), np.uint8).reshape(-1, 3)
    colours[(colours >= _WHITE).all(1)] = 255
    palette.putpalette(colours.tobytes())
    return palette


def _write_mp4(images: list[UInt8[np.ndarray, "h w 3"]], path: pathlib.Path, duration: float) -> None:
    """Hand the frames to ffmpeg; when it cannot encode them, there is no MP4."""
    height, width = images[0].shape[:2]
    command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    command += ["-r", f"{len(images) / duration:.4f}", "-i", "-", "-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2"]
    command += ["-pix_fmt", "yuv420p", str(path)]
    done = subprocess.run(command, input=b"".join(image.tobytes() for image in images), capture_output=True)
    if done.returncode != 0 and path.exists():
        path.unlink()
