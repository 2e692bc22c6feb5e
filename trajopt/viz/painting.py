"""Pictures of polygons and lines in space: a camera, and a canvas that is painted from far to near.

A canvas is a Pillow image, `FINER` times as large as the picture in each direction; averaging it makes edges smooth. Needs
neither a display nor a graphics driver.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw, ImageFont

FINER = 2  # pixels of the canvas for one of the picture, in each direction
_DISTANCE, _SHARE = 15.0, 0.43  # of the eye in radii of what is seen; of the picture's side that one radius takes
_NEAREST = 0.05  # share of the eye's distance at which what comes nearer is drawn


@dataclasses.dataclass(frozen=True)
class Camera:
    """Looks at `centre` (3,), m, from `azimuth` and `elevation`, degrees; a ball of `radius` m fits into the square picture,
    which is `pixels` wide."""

    centre: Float[np.ndarray, "3"]
    radius: float
    azimuth: float
    elevation: float
    pixels: int

    @functools.cached_property
    def axes(self) -> Float[np.ndarray, "3 3"]:
        """Rows: to the right, upwards, and towards the eye."""
        a, e = np.deg2rad(self.azimuth), np.deg2rad(self.elevation)
        towards = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
        right = np.array([-np.sin(a), np.cos(a), 0.0])
        return np.stack([right, np.cross(towards, right), towards])

    @property
    def distance(self) -> float:
        """From the eye to the centre, m."""
        return _DISTANCE * self.radius

    @property
    def eye(self) -> Float[np.ndarray, "3"]:
        return self.centre + self.distance * self.axes[2]

    def project(
        self, points: Float[np.ndarray, "*points 3"]
    ) -> tuple[Float[np.ndarray, "*points 2"], Float[np.ndarray, "*points"]]:
        """Columns and rows of the picture, from its upper left corner, and distances along the camera's axis, m."""
        seen = (points - self.centre) @ self.axes.T
        depth = np.maximum(self.distance - seen[..., 2], _NEAREST * self.distance)
        size = _SHARE * self.pixels * _DISTANCE / depth[..., None]
        return 0.5 * self.pixels + seen[..., :2] * np.array([1.0, -1.0]) * size, depth

    def faces_it(self, faces: Float[np.ndarray, "f 4 3"], normals: Float[np.ndarray, "f 3"]) -> Bool[np.ndarray, " f"]:
        """Whether the outer side of each face is seen."""
        return np.einsum("fi,fi->f", self.eye - faces.mean(1), normals) > 0


class Canvas:
    """One picture in the making. Colours (3,) are shares of red, green and blue, or names that Pillow knows."""

    def __init__(self, camera: Camera, background: str = "white") -> None:
        self.camera = camera
        side = FINER * camera.pixels
        self._image = Image.new("RGB", (side, side), background)
        self._draw = ImageDraw.Draw(self._image)

    def polygons(self, corners: Float[np.ndarray, "f k 3"], colours: str | Float[np.ndarray, "f 3"]) -> None:
        """Fill polygons, those farthest from the eye first."""
        if not len(corners):
            return
        places, depth = self.camera.project(corners)
        order = np.argsort(-depth.mean(1), kind="stable")
        flat = np.round(FINER * places[order]).reshape(len(corners), -1).tolist()
        fills: list[Any] = [colours] * len(flat)
        if not isinstance(colours, str):
            fills = [tuple(row) for row in np.round(255 * colours[order]).astype(int).tolist()]
        for outline, fill in zip(flat, fills, strict=True):
            self._draw.polygon(outline, fill=fill)

    def lines(self, ends: Float[np.ndarray, "n 2 3"], colour: str, width: float) -> None:
        """Straight lines, `width` pixels of the picture wide."""
        if not len(ends):
            return
        places, _ = self.camera.project(ends)
        for line in np.round(FINER * places).reshape(len(ends), 4).tolist():
            self._draw.line(line, fill=colour, width=max(round(FINER * width), 1))

    def picture(self, label: str = "") -> UInt8[np.ndarray, "h w 3"]:
        """The picture, with `label` in its upper left corner."""
        image = self._image.reduce(FINER)
        if label:
            side = image.size[0]
            ImageDraw.Draw(image).text(
                (0.03 * side, 0.025 * side), label, fill="#303030", font=_font(round(0.03 * side))
            )
        return np.asarray(image)


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own; without FreeType it has one size only."""
    try:
        return ImageFont.load_default(max(size, 8))
    except (ImportError, TypeError):
        return ImageFont.load_default()
