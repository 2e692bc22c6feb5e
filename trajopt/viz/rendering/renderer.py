"""A depth buffer in NumPy: exact hidden surfaces, smooth light on round shapes, a chequered ground and shadows on it.

Triangles become fragments, one for each pixel inside them; of the fragments of a pixel the nearest is seen. Needs neither a
display nor a graphics driver.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from trajopt.models.descriptions import perpendicular_axes
from trajopt.viz.rendering.camera import Camera
from trajopt.viz.rendering.scene import FORCE, LIGHT, Pose, Scene, rgb
from trajopt.viz.shapes3d import is_round

FINER = 2  # pixels of the buffer for one of the picture, in each direction: edges are averaged
_MOST_FRAGMENTS = 3_000_000  # in one go
_AMBIENT, _DIFFUSE, _SHADOW = 0.6, 0.42, 0.80
_TILES = (rgb("#efeeeb"), rgb("#e2e0db"))
_FACETS = 10  # of an arrow's shaft
_SHAFT = 0.008


@dataclasses.dataclass(frozen=True, eq=False)
class _Mesh:
    """Triangles of the scene in the frames of their parts, with the normals of their corners."""

    corners: Float[np.ndarray, "f 3 3"]
    normals: Float[np.ndarray, "f 3 3"]
    part: Int[np.ndarray, " f"]
    colour: Float[np.ndarray, "f 3"]
    fixed: Bool[np.ndarray, " f"]


class Renderer:
    """Draws a scene, for pictures of one size."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._ground: tuple | None = None  # of the camera that was used last
        corners, normals, owner, colour, fixed = [np.zeros((0, 3, 3))], [np.zeros((0, 3, 3))], [], [], []
        for k, part in enumerate(scene.parts):
            faces = part.points[part.triangles]
            flat = np.cross(faces[:, 1] - faces[:, 0], faces[:, 2] - faces[:, 0])
            each = np.repeat(_unit(flat)[:, None], 3, axis=1)
            if is_round(part.kind):
                at_vertices = np.zeros_like(part.points)
                for j in range(3):
                    np.add.at(at_vertices, part.triangles[:, j], flat)
                each = _unit(at_vertices)[part.triangles]
            corners.append(faces)
            normals.append(each)
            owner += [k] * len(faces)
            colour += [part.colour] * len(faces)
            fixed += [part.fixed] * len(faces)
        self.mesh = _Mesh(
            np.concatenate(corners), np.concatenate(normals), np.array(owner, int),
            np.array(colour).reshape(-1, 3), np.array(fixed, bool),
        )  # fmt: skip

    def draw(self, pose: Pose, camera: Camera) -> UInt8[np.ndarray, "h w 3"]:
        """The picture of the scene at a pose, (height, width, 3)."""
        fine = dataclasses.replace(camera, width=FINER * camera.width, height=FINER * camera.height)
        mesh = self.mesh
        R, p = pose.rotation[mesh.part], pose.position[mesh.part]
        corners = np.einsum("fij,fkj->fki", R, mesh.corners) + p[:, None]
        normals = np.einsum("fij,fkj->fki", R, mesh.normals)
        colours, fixed = mesh.colour, mesh.fixed
        arrows = _arrows(pose.arrows, _SHAFT * camera.view)
        if len(arrows):
            across = _unit(np.cross(arrows[:, 1] - arrows[:, 0], arrows[:, 2] - arrows[:, 0]))
            corners, normals = np.concatenate([corners, arrows]), np.concatenate([normals, np.repeat(across[:, None], 3, 1)])
            colours = np.concatenate([colours, np.tile(rgb(FORCE), (len(arrows), 1))])
            fixed = np.concatenate([fixed, np.ones(len(arrows), bool)])  # arrows throw no shadow
        image = np.ones((fine.height, fine.width, 3))
        depth = np.full((fine.height, fine.width), np.inf)
        if self.scene.ground is not None:
            self._draw_ground(image, depth, fine, corners[~fixed])
        _draw_triangles(image, depth, fine, corners, normals, colours)
        every = range(FINER)
        small = sum(image[i::FINER, j::FINER] for i in every for j in every) / FINER**2
        return np.round(255 * np.clip(small, 0, 1)).astype(np.uint8)

    def _draw_ground(self, image: np.ndarray, depth: np.ndarray, camera: Camera, moving: np.ndarray) -> None:
        """The chequered ground and the shadows of what moves."""
        height = self.scene.ground
        assert height is not None
        if self._ground is None or self._ground[0] != _identity(camera):
            self._ground = _identity(camera), *_ground(camera, height)
        image[...], depth[...] = self._ground[1:]
        lit = np.cross(moving[:, 1] - moving[:, 0], moving[:, 2] - moving[:, 0]) @ LIGHT > 0  # the others' shadows are the same
        flat = moving[lit & (moving[..., 2] > height - 1e-9).all(1)]
        if not len(flat):
            return
        flat = flat - ((flat[..., 2:] - height) / LIGHT[2]) * LIGHT
        places, depths = camera.project(flat)
        shade = np.zeros(depth.size, bool)
        for chosen in _chunks(places):
            _, pixels, _ = _fragments(places[chosen], camera, cull=False)
            shade[pixels] = True
        shade &= np.isfinite(depth.reshape(-1))
        image.reshape(-1, 3)[shade] *= _SHADOW


def _identity(camera: Camera) -> tuple:
    return *camera.centre.tolist(), camera.distance, camera.azimuth, camera.elevation, camera.width, camera.height


def _ground(camera: Camera, height: float) -> tuple[Float[np.ndarray, "h w 3"], Float[np.ndarray, "h w"]]:
    """Picture and depth of the empty ground."""
    rows, columns = np.mgrid[0 : camera.height, 0 : camera.width] + 0.5
    rays = camera.rays(columns, rows)
    down = rays[..., 2] < -1e-9
    reach = (height - camera.eye[2]) / np.where(down, rays[..., 2], np.inf)
    seen = down & (reach > 0)
    place = camera.eye[:2] + np.where(seen, reach, 0.0)[..., None] * rays[..., :2]
    odd = (np.floor(place / camera.tile).astype(int).sum(-1) % 2).astype(bool)
    colour = np.where(odd[..., None], _TILES[0], _TILES[1])
    return np.where(seen[..., None], colour, 1.0), np.where(seen, reach, np.inf)


def _draw_triangles(
    image: np.ndarray, depth: np.ndarray, camera: Camera, corners: np.ndarray, normals: np.ndarray, colours: np.ndarray
) -> None:
    """Draw triangles into image and depth, the nearest in front; depth along the camera's axis."""
    places, depths = camera.project(corners)
    flat_image, flat_depth = image.reshape(-1, 3), depth.reshape(-1)
    for chosen in _chunks(places):
        face, pixels, weights = _fragments(places[chosen], camera, cull=True)
        if not len(face):
            continue
        inverse = np.einsum("nk,nk->n", weights, 1.0 / depths[chosen][face])
        near = 1.0 / inverse
        front = near < flat_depth[pixels]
        face, pixels, weights, near = face[front], pixels[front], weights[front], near[front]
        order = np.argsort(-near, kind="stable")
        face, pixels, weights, near = face[order], pixels[order], weights[order], near[order]
        winner = np.full(flat_depth.shape, -1)
        winner[pixels] = np.arange(len(pixels))  # of equal pixels the last one stays: the nearest
        kept = winner[winner >= 0]
        face, pixels, weights, near = face[kept], pixels[kept], weights[kept], near[kept]
        normal = _unit(np.einsum("nk,nki->ni", weights, normals[chosen][face]))
        light = _AMBIENT + _DIFFUSE * np.maximum(normal @ LIGHT, 0.0) + 0.08 * (normal @ camera.axes[2])
        flat_image[pixels] = np.clip(colours[chosen][face] * light[:, None], 0, 1)
        flat_depth[pixels] = near


def _chunks(places: Float[np.ndarray, "f 3 2"]) -> list[np.ndarray]:
    """Indices of the triangles, in parts whose bounding boxes have no more pixels than `_MOST_FRAGMENTS`."""
    if not len(places):
        return []
    size = np.prod(np.ptp(places, axis=1) + 2, axis=-1)
    group = (np.cumsum(size) // _MOST_FRAGMENTS).astype(int)
    return [np.flatnonzero(group == g) for g in np.unique(group)]


def _fragments(
    places: Float[np.ndarray, "f 3 2"], camera: Camera, cull: bool
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Float[np.ndarray, "n 3"]]:
    """(triangle, pixel, barycentric weights in the picture) of every pixel whose middle is inside a triangle.

    cull: only triangles that are wound towards the eye.
    """
    a, b, c = places[:, 0], places[:, 1], places[:, 2]
    area = (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (c[:, 0] - a[:, 0])
    low = np.clip(np.floor(places.min(1)).astype(int), 0, [camera.width, camera.height])
    high = np.clip(np.ceil(places.max(1)).astype(int), 0, [camera.width, camera.height])
    size = np.maximum(high - low, 0)
    count = np.where((area < 0) if cull else (area != 0), size[:, 0] * size[:, 1], 0)  # rows run downwards
    face = np.repeat(np.arange(len(places), dtype=np.int32), count)
    inside_box = np.arange(len(face), dtype=np.int32) - np.repeat((np.cumsum(count) - count).astype(np.int32), count)
    line, column = np.divmod(inside_box, np.maximum(size[:, 0], 1).astype(np.int32)[face])
    x, y = column.astype(float), line.astype(float)
    edges = []  # each weight is affine in the picture: its value in the first pixel of the box, and its slopes
    for start, stop in ((b, c), (c, a)):
        edge, corner = (stop - start) / np.where(area != 0, area, 1.0)[:, None], low + 0.5 - start
        first = edge[:, 0] * corner[:, 1] - edge[:, 1] * corner[:, 0]
        edges.append(first[face] + edge[face, 0] * y - edge[face, 1] * x)
    first, second = edges
    inside = np.flatnonzero((first >= 0) & (second >= 0) & (first + second <= 1))
    face, first, second = face[inside], first[inside], second[inside]
    pixel = (low[face, 1] + line[inside]) * camera.width + low[face, 0] + column[inside]
    return face, pixel, np.stack([first, second, 1 - first - second], 1)


def _arrows(lines: Float[np.ndarray, "a 2 3"], radius: float) -> Float[np.ndarray, "f 3 3"]:
    """Shafts and heads of arrows as triangles."""
    faces = [np.zeros((0, 3, 3))]
    angle = np.linspace(0, 2 * np.pi, _FACETS + 1)
    for start, end in lines:
        length = float(np.linalg.norm(end - start))
        if length < 1e-9:
            continue
        axis = (end - start) / length
        first, second = perpendicular_axes(axis)
        ring = np.cos(angle)[:, None] * first + np.sin(angle)[:, None] * second
        neck = end - min(6 * radius, 0.5 * length) * axis
        low, high, head = start + radius * ring, neck + radius * ring, neck + 2.4 * radius * ring
        faces += [np.stack([low[:-1], low[1:], high[1:]], 1), np.stack([low[:-1], high[1:], high[:-1]], 1)]
        faces += [np.stack([head[:-1], head[1:], np.tile(end, (_FACETS, 1))], 1)]
        faces += [np.stack([head[1:], head[:-1], np.tile(neck, (_FACETS, 1))], 1)]
    return np.concatenate(faces)


def _unit(vectors: Float[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n 3"]:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)
