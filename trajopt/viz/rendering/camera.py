"""Where a picture is taken from, and how points in space become points of the picture."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float

VERTICAL_ANGLE = 20.0  # degrees from the lower to the upper edge: nearly parallel rays, so that lengths can be compared
_NEAREST = 0.05  # share of the eye's distance at which what comes nearer is drawn
_MARGIN = 1.08  # of what is seen, around it
_WORDS = 0.05  # share of the width above and below what is seen, for the words in the picture


@dataclasses.dataclass(frozen=True)
class Camera:
    """Looks at `centre` (3,), m, from `azimuth` and `elevation`, degrees, and `distance`, m; width and height: of the picture."""

    centre: Float[np.ndarray, "3"]
    distance: float
    azimuth: float
    elevation: float
    width: int
    height: int

    @functools.cached_property
    def axes(self) -> Float[np.ndarray, "3 3"]:
        """Rows: to the right, upwards, and towards the eye."""
        a, e = np.deg2rad(self.azimuth), np.deg2rad(self.elevation)
        towards = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
        right = np.array([-np.sin(a), np.cos(a), 0.0])
        return np.stack([right, np.cross(towards, right), towards])

    @property
    def eye(self) -> Float[np.ndarray, "3"]:
        return self.centre + self.distance * self.axes[2]

    @property
    def view(self) -> float:
        """Height of what is seen at the centre's distance, m."""
        return 2 * self.distance * float(np.tan(np.deg2rad(VERTICAL_ANGLE) / 2))

    @property
    def tile(self) -> float:
        """Side of the ground's tiles, m: a round number, about a sixth of the view."""
        return round_number(self.view / 6)

    @property
    def focal(self) -> float:
        """Pixels of a length as long as its distance from the eye."""
        return 0.5 * self.height / np.tan(np.deg2rad(VERTICAL_ANGLE) / 2)

    def project(
        self, points: Float[np.ndarray, "*points 3"]
    ) -> tuple[Float[np.ndarray, "*points 2"], Float[np.ndarray, "*points"]]:
        """Columns and rows of the picture, from its upper left corner, and distances along the camera's axis, m."""
        seen = (points - self.centre) @ self.axes.T
        depth = np.maximum(self.distance - seen[..., 2], _NEAREST * self.distance)
        place = seen[..., :2] * np.array([1.0, -1.0]) * (self.focal / depth[..., None])
        return place + 0.5 * np.array([self.width, self.height]), depth

    def rays(self, columns: Float[np.ndarray, "*p"], rows: Float[np.ndarray, "*p"]) -> Float[np.ndarray, "*p 3"]:
        """Directions from the eye through points of the picture, one metre along the camera's axis."""
        x, y = (columns - 0.5 * self.width) / self.focal, (0.5 * self.height - rows) / self.focal
        return x[..., None] * self.axes[0] + y[..., None] * self.axes[1] - self.axes[2]


def round_number(value: float) -> float:
    """1, 2 or 5 times a power of ten, next to `value`."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(power * min((1, 2, 5, 10), key=lambda number: abs(np.log(value / (power * number)))))


def framing(
    points: Float[np.ndarray, "n 3"], azimuth: float, elevation: float, width: int, aspect: tuple[float, float]
) -> Camera:
    """The camera that sees all points as large as they can be, in a picture `width` pixels wide.

    aspect: least and most of its height over its width, which is that of the points in between.
    """
    middle = (points.min(0) + points.max(0)) / 2
    axes = Camera(middle, 1.0, azimuth, elevation, 1, 1).axes
    seen = (points - middle) @ axes.T
    low, high = seen.min(0), seen.max(0)
    centre = middle + 0.5 * (low + high)[:2] @ axes[:2]
    half = np.maximum(0.5 * (high - low)[:2], 1e-3)
    share = float(np.clip(half[1] / half[0] + 2 * _WORDS, *aspect))
    height = 2 * round(0.5 * width * share)
    needed = _MARGIN * max(half[1] / (1 - 2 * _WORDS / share), half[0] * height / width)
    distance = needed / np.tan(np.deg2rad(VERTICAL_ANGLE) / 2) + max(high[2], 0.0)
    return Camera(centre, float(distance), azimuth, elevation, width, int(height))
