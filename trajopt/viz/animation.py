"""Animation of a motion: the model's shapes with depth, light and contact forces, written as GIF and MP4.

`rendering` draws each frame. The time and how much slower than real time it passes are written into the picture.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image, ImageDraw, ImageFont

from trajopt import files
from trajopt.dynamics.model import Model
from trajopt.viz.plots.contacts import NEGLIGIBLE, weight_of
from trajopt.viz.recording import contact_forces
from trajopt.viz.rendering.camera import Camera, framing, round_number
from trajopt.viz.rendering.renderer import Renderer
from trajopt.viz.rendering.scene import Pose, Scene
from trajopt.viz.shapes3d import placements

MOST_FRAMES = 90
FRAMES_PER_S = 30
SHORTEST_S = 3.0  # shorter motions are slowed down to this
TURN_FRAMES = 36  # of the camera's tour around a motion of one or two states
_TURN_S = 6.0
_VIEW, _SIDE_VIEW = (-60.0, 18.0), (-80.0, 10.0)  # azimuth and elevation of the eye, degrees; of planar motions
_PLANAR = 0.02  # share of the largest movement below which nothing moves across
_ASPECT = (0.45, 1.0)  # height over width of a picture
_TRAVEL = 2.5  # movements of more than so many body lengths are followed by the camera
_ARROW, _LONGEST, _WEAKEST = 0.35, 0.6, 0.01  # of the view: usual force, longest arrow, shortest one drawn
_HIDDEN = (190, 20, 40, 90)  # red, green, blue and opacity of the part of an arrow that a body hides
_PALETTE_FRAMES = 6
_WHITE = 247  # Pillow looks up colours to within eight levels: lighter greys would take the background's place


@dataclasses.dataclass(frozen=True, eq=False)
class _Film:
    """What is shown: a pose and a camera for every frame, the words in the picture, and how long it plays, s."""

    poses: Sequence[Pose]
    cameras: Sequence[Camera]
    words: Sequence[tuple[str, str, str]]
    duration: float


def animate(
    model: Model,
    motion: Mapping[str, Any],
    path: str | os.PathLike,
    *,
    most_frames: int = MOST_FRAMES,
    pixels: int = 480,
) -> pathlib.Path:
    """Write the motion as an animated GIF to `path`, and as .mp4 beside it where ffmpeg or imageio-ffmpeg is installed.

    `motion` holds q (T+1, nq), for the speed t (T+1,) in seconds, and for arrows of contact forces impulse (T, contacts, 3), N s;
    at most `most_frames` states are drawn, and at most `FRAMES_PER_S` for each second of the animation. A motion of one or two
    states is shown from all sides instead. pixels: width of the picture. Returns the path
    of the GIF.
    """
    path, scene = pathlib.Path(path), Scene(model)
    film = _film(scene, {key: np.asarray(value, float) for key, value in motion.items()}, most_frames, pixels)
    renderer = Renderer(scene)
    images = [
        _labelled(_with_hidden_arrows(renderer.draw(pose, camera), pose, camera), words)
        for pose, camera, words in zip(film.poses, film.cameras, film.words, strict=True)
    ]
    _write_gif(images, path, film.duration)
    encoder = ffmpeg()
    if encoder is not None:
        _write_mp4(images, path.with_suffix(".mp4"), film.duration, encoder)
    return path


def ffmpeg() -> str | None:
    """The encoder: ffmpeg of the system, else that of the package imageio-ffmpeg, else None."""
    installed = shutil.which("ffmpeg")
    if installed is not None:
        return installed
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        return None


def subsample(count: int, most: int) -> Int[np.ndarray, " k"]:
    """Indices of at most `most` of `count` states, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, max(most, 2))).round().astype(int))


def speed(duration: float, motion: float) -> str:
    """How a motion of `motion` s that plays for `duration` s compares with real time, in words."""
    if motion <= 0:
        return ""
    factor = duration / motion
    if 0.95 < factor < 1.05:
        return "real time"
    return f"{factor:.2g}x slower" if factor > 1 else f"{1 / factor:.2g}x faster"


def _film(scene: Scene, motion: Mapping[str, np.ndarray], most_frames: int, pixels: int) -> _Film:
    q = motion["q"]
    t = motion.get("t", np.arange(len(q), dtype=float))
    turning = len(q) <= 2
    moving_s = float(t[-1] - t[0])
    duration = _TURN_S if turning else max(moving_s, SHORTEST_S)
    shown = min(most_frames, int(np.ceil(FRAMES_PER_S * duration)))
    keep = np.full(TURN_FRAMES, 0) if turning else subsample(len(q), shown)
    rotation, position = placements(scene.model, q[keep])
    none = np.zeros((0, 2, 3))
    poses = [scene.pose(R, p, none) for R, p in zip(rotation, position)]
    cameras = _cameras(scene, poses, turning, pixels)
    arrows, scale = _arrows(scene.model, t, q, motion.get("impulse"), keep, cameras[0])
    poses = [dataclasses.replace(pose, arrows=lines) for pose, lines in zip(poses, arrows, strict=True)]
    below = f"arrows: contact forces, {scale:.3g} N per metre" if scale > 0 else ""
    pace = "" if turning else speed(duration, moving_s)
    words = [("" if turning else f"t = {t[k]:.3f} s", pace, below) for k in keep]
    return _Film(poses, cameras, words, duration)


def _cameras(scene: Scene, poses: Sequence[Pose], turning: bool, pixels: int) -> list[Camera]:
    """A camera for every frame: one that sees the whole motion, or follows it where it goes far; turning: all round."""
    outlines = [scene.outline(pose) for pose in poses]
    if not any(len(outline) for outline in outlines):
        outlines = [np.array([[-0.5, -0.5, 0.0], [0.5, 0.5, 1.0]]) for _ in poses]
    everything = np.concatenate(outlines)
    if scene.ground is not None and everything[:, 2].min() - scene.ground < 2 * float(np.ptp(everything, axis=0).max()):
        for k, outline in enumerate(outlines):  # the shadow is seen too
            outlines[k] = np.concatenate([outline, np.column_stack([outline[:, :2], np.full(len(outline), scene.ground)])])
        everything = np.concatenate(outlines)
    if turning:
        return _round_about(everything, len(poses), pixels)
    middles = np.array([(outline.min(0) + outline.max(0)) / 2 for outline in outlines])
    azimuth, elevation = _SIDE_VIEW if _planar(middles) else _VIEW
    body = max(float(np.ptp(outline, axis=0).max()) for outline in outlines)
    if float(np.ptp(middles[:, :2], axis=0).max()) < _TRAVEL * body:
        return [framing(everything, azimuth, elevation, pixels, _ASPECT)] * len(poses)
    path = np.stack([np.convolve(np.pad(column, 7, mode="edge"), np.ones(15) / 15, mode="valid") for column in middles.T], 1)
    path[:, 2] = middles[:, 2].mean()
    near = np.concatenate([outline - centre for outline, centre in zip(outlines, path, strict=True)])
    wide = framing(near * np.array([1.6, 1.6, 1.0]), azimuth, elevation, pixels, _ASPECT)
    return [dataclasses.replace(wide, centre=wide.centre + centre) for centre in path]


def _round_about(points: Float[np.ndarray, "n 3"], count: int, pixels: int) -> list[Camera]:
    """Cameras around all points, at the distance from which they are seen from every side."""
    azimuths = _VIEW[0] + 360.0 * np.arange(count) / count
    widest = [framing(points, azimuth, _VIEW[1], pixels, (0.75, 0.75)) for azimuth in azimuths[:: max(count // 8, 1)]]
    far = max(widest, key=lambda camera: camera.distance)
    middle = (points.min(0) + points.max(0)) / 2
    return [dataclasses.replace(far, centre=middle, azimuth=float(azimuth)) for azimuth in azimuths]


def _planar(middles: Float[np.ndarray, "k 3"]) -> bool:
    """Whether the motion is one in the x-z plane, which is seen best from the side."""
    across, along = float(np.ptp(middles[:, 1])), float(np.ptp(middles[:, [0, 2]], axis=0).max())
    return along > 1e-6 and across < _PLANAR * along


def _arrows(
    model: Model, t: np.ndarray, q: np.ndarray, impulse: np.ndarray | None, keep: np.ndarray, camera: Camera
) -> tuple[list[np.ndarray], float]:
    """(start and end of the arrows (a, 2, 3) of each frame, N per metre of arrow; 0 without forces)."""
    none = [np.zeros((0, 2, 3))] * len(keep)
    if impulse is None or not impulse.size:
        return none, 0.0
    points, forces = contact_forces(model, t, q, impulse)
    size = np.linalg.norm(forces, axis=-1)
    acting = size[size > _WEAKEST * max(float(size.max(initial=0.0)), 1e-300)]
    if not acting.size or acting.max() < NEGLIGIBLE * weight_of(model):
        return none, 0.0
    view = camera.view
    scale = round_number(float(np.percentile(acting, 80)) / (_ARROW * view))
    arrows = []
    for k in keep:
        drawn = size[k] > _WEAKEST * scale * view
        length = np.minimum(size[k][drawn] / scale, _LONGEST * view)
        along = forces[k][drawn] / size[k][drawn][:, None]
        start = points[k][drawn]
        arrows.append(np.stack([start, start + length[:, None] * along], axis=1))
    return arrows, scale


def _with_hidden_arrows(image: UInt8[np.ndarray, "h w 3"], pose: Pose, camera: Camera) -> UInt8[np.ndarray, "h w 3"]:
    """The picture with a thin line along every arrow, so that forces inside a body are seen through it."""
    if not len(pose.arrows):
        return image
    picture = Image.fromarray(image)
    pen, width = ImageDraw.Draw(picture, "RGBA"), max(round(0.006 * camera.width), 2)
    for line in camera.project(pose.arrows)[0]:
        pen.line([tuple(point) for point in line.tolist()], fill=_HIDDEN, width=width)
    return np.asarray(picture)


def _labelled(image: UInt8[np.ndarray, "h w 3"], words: tuple[str, str, str]) -> UInt8[np.ndarray, "h w 3"]:
    """The picture with words in its upper left, upper right and lower left corner."""
    picture = Image.fromarray(image)
    pen, (width, height) = ImageDraw.Draw(picture), picture.size
    large, small = (ImageFont.load_default(max(round(share * width), 8)) for share in (0.032, 0.024))
    for text, place, anchor, font in zip(
        words, ((0.02, 0.02), (0.98, 0.02), (0.02, 0.98)), ("lt", "rt", "lb"), (large, large, small), strict=True
    ):
        if text:
            at = (place[0] * width, place[1] * height if anchor[1] == "t" else height - 0.02 * width)
            pen.text(at, text, fill="#303030", font=font, anchor=anchor)
    return np.asarray(picture)


def _write_gif(images: Sequence[UInt8[np.ndarray, "h w 3"]], path: pathlib.Path, duration: float) -> None:
    colours = palette(images)
    frames = [Image.fromarray(image).quantize(palette=colours, dither=Image.Dither.NONE) for image in images]
    each = max(int(round(1000 * duration / len(frames))), 20)
    with files.replacing(path) as part:
        frames[0].save(part, save_all=True, append_images=frames[1:], duration=each, loop=0, optimize=False)


def palette(images: Sequence[UInt8[np.ndarray, "h w 3"]]) -> Image.Image:
    """One palette for all frames, from a few of them: to look for colours takes ten times as long as to use them.

    Half of it are the extremes, so that no small body loses its colour, half the most frequent, so that the ground is smooth.
    """
    few = images[:: max(len(images) // _PALETTE_FRAMES, 1)]
    sample = Image.fromarray(np.concatenate([image[::2, ::2] for image in few]))
    halves = []
    for method in (Image.Quantize.MAXCOVERAGE, Image.Quantize.MEDIANCUT):
        part = sample.quantize(128, method=method, dither=Image.Dither.NONE)
        halves.append(np.array(part.getpalette(), np.uint8).reshape(-1, 3)[:128])
    colours = np.concatenate(halves)
    colours[(colours >= _WHITE).all(1)] = 255
    part.putpalette(colours.tobytes())
    return part


def _write_mp4(images: Sequence[UInt8[np.ndarray, "h w 3"]], path: pathlib.Path, duration: float, encoder: str) -> None:
    """Hand the frames to ffmpeg; when it cannot encode them, there is no MP4, nor one of another motion."""
    height, width = images[0].shape[:2]
    command = [encoder, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    command += ["-r", f"{len(images) / duration:.4f}", "-i", "-", "-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2"]
    with files.replacing(path) as part:
        command += ["-pix_fmt", "yuv420p", str(part)]
        done = subprocess.run(command, input=b"".join(image.tobytes() for image in images), capture_output=True)
        if done.returncode != 0:
            part.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
