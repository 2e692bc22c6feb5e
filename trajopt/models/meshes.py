"""Mesh files: where a resource name points, the vertices of a file, their convex hull.

Formats that the package `trimesh` reads, in a process of its own: a small file may stand for any number of points.
"""

import io
import os
import posixpath
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np
from jaxtyping import Float
from scipy.spatial import ConvexHull, QhullError
from scipy.spatial.transform import Rotation

from trajopt.errors import MissingExtraError, ModelError
from trajopt.models.limits import (
    CHILD_BYTES,
    CHILD_SECONDS,
    MESH_BYTES,
    MESH_EXTENT,
    check_file,
    is_regular,
    read_bytes,
    short,
)
from trajopt.models.xml import parse_xml, read_file

TRIMESH = (".ply", ".off", ".glb", ".gltf")
_PROGRAM = """
import io, sys
try:
    import resource
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, ({address_space}, most))
except (ImportError, ValueError, OSError):
    pass  # not every system bounds the address space of a process
import numpy as np
import trimesh
try:
    vertices = np.asarray(trimesh.load(sys.argv[1], force="mesh").vertices, np.float64).reshape(-1, 3)
except MemoryError:
    sys.exit("it asks for more memory than there may be")
except BaseException as error:
    sys.exit(str(error) or type(error).__name__)
if vertices.nbytes > {most}:
    sys.exit(f"it holds {{len(vertices)}} vertices")
out = io.BytesIO()
np.save(out, vertices)
sys.stdout.buffer.write(out.getvalue())
"""


def read_with_trimesh(path: Path) -> Float[np.ndarray, "n 3"]:
    """The vertices of a mesh file. Raises `ModelError` when it cannot be read within the limits of memory and time."""
    try:
        import trimesh  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            f"reading the mesh '{path.name}' needs trimesh; install it with: pip install 'trajopt-contact[mesh]'"
        ) from None
    program = _PROGRAM.format(address_space=CHILD_BYTES, most=4 * MESH_BYTES)
    try:
        child = subprocess.run(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"mesh file '{path}' cannot be read within {CHILD_SECONDS:g} s; convert it to STL") from None
    if child.returncode:
        said = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ModelError(
            f"mesh file '{path}' cannot be read: {short(said) or f'its reader ended with {child.returncode}'}"
        )
    vertices: Float[np.ndarray, "n 3"] = np.load(io.BytesIO(child.stdout), allow_pickle=False)
    return vertices


MAX_HULL_VERTICES = 1000
CONVEX = 0.9  # share of its hull below which a mesh is called not convex
FLATTEST = 1e-6  # thickness over extent below which a mesh counts as flat
_DAE_STEPS = ("matrix", "translate", "rotate", "scale")


def convex_hull(
    vertices: Float[np.ndarray, "n 3"],
    name: str,
    warn: Callable[[str], None],
    triangles: Float[np.ndarray, "t 3 3"] | None = None,
) -> Float[np.ndarray, "m 3"] | None:
    """The extreme points of `vertices`, at most `MAX_HULL_VERTICES`; None, with a warning, if there are none.

    A larger hull is thinned out to the points that are extreme in evenly spread directions, and `warn` says by how much the
    hull shrank. It says too how much of its hull the surface `triangles` encloses, where it is closed and that is less than
    `CONVEX`. Raises `ModelError` for points that span no volume.
    """
    points = np.unique(np.asarray(vertices, float).reshape(-1, 3), axis=0)
    if not len(points) or not np.isfinite(points).all():
        warn(f"mesh '{name}' has {'non-finite' if len(points) else 'no'} vertices; its geometry is dropped")
        return None
    extent = np.ptp(points, axis=0)
    if np.abs(points).max() > MESH_EXTENT:
        raise ModelError(
            f"mesh '{name}' reaches {np.abs(points).max():.3g} m from its origin; check its scale and its units"
        )
    thickness = np.linalg.svd(points - points.mean(0), compute_uv=False)[-1] / np.sqrt(len(points))
    if len(points) < 4 or thickness < FLATTEST * extent.max():
        reason = f"only {len(points)} distinct vertices" if len(points) < 4 else "all its vertices in one plane"
        raise ModelError(
            f"mesh '{name}' spans no volume: it has {reason} (extent {extent[0]:.3g} x {extent[1]:.3g} x {extent[2]:.3g} m); "
            "check its scale, or use a thin box or a plane instead"
        )
    hull = _hull(points, name)
    points = points[hull.vertices]
    volume = None if triangles is None or not len(triangles) else _enclosed_volume(triangles)
    if volume is not None and volume < CONVEX * hull.volume:
        warn(
            f"mesh '{name}' is not convex: it fills {100 * volume / hull.volume:.0f} % of its convex hull, which takes its "
            "place; where that matters, give convex parts as separate collision shapes (the tool coacd splits meshes)"
        )
    if len(points) <= MAX_HULL_VERTICES:
        return points
    chosen = np.zeros(0, int)
    for count in (1, 2, 4, 8):
        chunks = np.array_split(_directions(count * MAX_HULL_VERTICES), 8 * count)
        more = np.unique(np.concatenate([np.argmax(chunk @ points.T, axis=1) for chunk in chunks]))
        if len(more) > MAX_HULL_VERTICES:
            break
        chosen = more
    kept = points[chosen]
    facets = _hull(kept, name).equations
    shrink = float((points @ facets[:, :3].T + facets[:, 3]).max())
    warn(
        f"the convex hull of mesh '{name}' has {len(points)} vertices, more than {MAX_HULL_VERTICES}; {len(kept)} are "
        f"kept, which moves its surface inwards by at most {shrink:.2g} m"
    )
    return kept


def _hull(points: Float[np.ndarray, "n 3"], name: str) -> ConvexHull:
    """The convex hull; `ModelError` where rounding leaves none."""
    try:
        return ConvexHull(points)
    except QhullError:
        extent = np.ptp(points, axis=0)
        raise ModelError(
            f"mesh '{name}' has no convex hull: its volume is lost in rounding (extent {extent[0]:.3g} x {extent[1]:.3g} x "
            f"{extent[2]:.3g} m); check its scale, or use a thin box or a plane instead"
        ) from None


def _enclosed_volume(triangles: Float[np.ndarray, "t 3 3"]) -> float | None:
    """Volume inside a surface, None if it has a border."""
    _, index = np.unique(triangles.reshape(-1, 3), axis=0, return_inverse=True)
    corners = index.reshape(-1, 3)
    corners = corners[(corners != np.roll(corners, 1, axis=1)).all(axis=1)]
    tail, head = corners.ravel(), np.roll(corners, -1, axis=1).ravel()
    size = index.max() + 1
    if not np.array_equal(np.sort(tail * size + head), np.sort(head * size + tail)):
        return None
    return abs(float(np.linalg.det(triangles - triangles.mean((0, 1))).sum())) / 6


def hull_triangles(vertices: Float[np.ndarray, "n 3"], name: str = "") -> tuple[tuple[int, int, int], ...]:
    """Triangles of the convex hull as indices of `vertices`, wound outwards."""
    hull = _hull(vertices, name)
    a, b, c = (vertices[hull.simplices[:, k]] for k in range(3))
    outward = np.sum(np.cross(b - a, c - a) * hull.equations[:, :3], axis=1) > 0
    triangles = np.where(outward[:, None], hull.simplices, hull.simplices[:, [0, 2, 1]])
    return tuple((int(i), int(j), int(k)) for i, j, k in triangles)


def _directions(count: int) -> Float[np.ndarray, "n 3"]:
    """Unit vectors spread evenly over the sphere (Fibonacci lattice)."""
    k = np.arange(count) + 0.5
    z = 1 - 2 * k / count
    angle = np.pi * (1 + np.sqrt(5)) * k
    radius = np.sqrt(1 - z * z)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), z], axis=1)


def load_vertices(path: Path) -> Float[np.ndarray, "n 3"]:
    """The vertices of a mesh file: STL, OBJ, DAE (nodes placed, unit applied, z taken as up); PLY, OFF, GLB, glTF by `trimesh`.

    Raises `ModelError` for a malformed file, one of another format or above `limits.MESH_BYTES`, and `MissingExtraError` for
    the formats of `trimesh` without the extra `mesh`.
    """
    readers = {".stl": _read_stl, ".obj": _read_obj, ".dae": _read_dae} | dict.fromkeys(TRIMESH, read_with_trimesh)
    reader = readers.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(readers)
        raise ModelError(f"mesh file '{path}' has the unknown ending '{short(path.suffix)}'; expected one of {known}")
    check_file(path, MESH_BYTES, "mesh file")
    try:
        vertices = reader(path)
    except (ValueError, IndexError, OverflowError, OSError, struct.error) as error:
        raise ModelError(f"mesh file '{path}' is malformed: {short(str(error))}") from None
    if not len(vertices):
        raise ModelError(f"mesh file '{path}' is malformed: it holds no vertices")
    return vertices


def load_triangles(path: Path) -> Float[np.ndarray, "t 3 3"] | None:
    """The surface of an STL or OBJ file that `load_vertices` accepts; None for other formats and where it makes no sense."""
    if path.suffix.lower() == ".stl":
        return _read_stl(path).reshape(-1, 3, 3)
    if path.suffix.lower() != ".obj":
        return None
    vertices = _read_obj(path)
    lines = (line.split() for line in _text(path).splitlines())
    try:
        faces = [[int(word.split("/")[0]) for word in line[1:]] for line in lines if line[:1] == ["f"]]
        fans = [(face[0], *pair) for face in faces for pair in zip(face[1:-1], face[2:])]
        index = np.array(fans, int).reshape(-1, 3)
        return vertices[np.where(index > 0, index - 1, index)]
    except (ValueError, IndexError, OverflowError):
        return None


def resolve_uri(uri: str, folder: Path | None, package_dirs: Sequence[str | Path] = ()) -> Path | None:
    """The file an URDF or SDF resource name means, or None if there is no such file.

    `package://NAME/REST` and `model://NAME/REST` are looked for as NAME/REST in `package_dirs`, in `folder` and each
    folder above it, then in ROS_PACKAGE_PATH, AMENT_PREFIX_PATH (its share) and GZ_SIM_RESOURCE_PATH; a folder that is
    itself called NAME counts too. Names that leave their package by ".." are not looked for. Plain names are relative to
    `folder`; `file://` is stripped.
    """
    scheme, separator, rest = uri.partition("://")
    rest = rest if scheme == "file" else rest.lstrip("/")
    if not separator:
        scheme, rest = "file", uri
    if scheme == "file":
        path = Path(rest) if folder is None else folder / rest
        return path if is_regular(path) else None
    package, _, inside = posixpath.normpath(rest).partition("/")
    if scheme not in ("package", "model") or package in ("", ".", "..") or rest.partition("/")[0] != package:
        return None
    for place in places(folder, package_dirs):
        if is_regular(place / rest):
            return place / rest
        if place.name == package and is_regular(place / inside):
            return place / inside
    return None


def find_package(name: str, folder: Path | None, package_dirs: Sequence[str | Path] = ()) -> Path | None:
    """The folder of a package, looked for where `resolve_uri` looks; None if there is none."""
    if name in ("", ".", "..") or "/" in name:
        return None
    for place in places(folder, package_dirs):
        if (place / name).is_dir():
            return place / name
        if place.name == name and place.is_dir():
            return place
    return None


def places(folder: Path | None, package_dirs: Sequence[str | Path]) -> list[Path]:
    """The folders in which packages are looked for, in order."""
    places = [Path(place) for place in package_dirs]
    if folder is not None:
        places += [folder, *folder.parents]
    for variable, below in (("ROS_PACKAGE_PATH", ""), ("AMENT_PREFIX_PATH", "share"), ("GZ_SIM_RESOURCE_PATH", "")):
        places += [Path(place) / below for place in os.environ.get(variable, "").split(os.pathsep) if place]
    return places


def _read_stl(path: Path) -> np.ndarray:
    data = read_bytes(path, MESH_BYTES, "mesh file")
    if len(data) >= 84:
        (count,) = struct.unpack_from("<I", data, 80)
        if len(data) == 84 + 50 * count or not data.lstrip().startswith(b"solid"):
            if len(data) < 84 + 50 * count:
                raise ValueError(f"{count} triangles announced, the file ends before")
            facet = np.dtype([("normal", "<f4", 3), ("vertices", "<f4", (3, 3)), ("attribute", "<u2")])
            return np.frombuffer(data, facet, count, 84)["vertices"].reshape(-1, 3).astype(float)
    lines = (line.split() for line in data.decode("ascii", "replace").splitlines())
    return np.array([[float(x) for x in line[1:4]] for line in lines if line[:1] == ["vertex"]]).reshape(-1, 3)


def _read_obj(path: Path) -> np.ndarray:
    lines = (line.split() for line in _text(path).splitlines())
    return np.array([[float(x) for x in line[1:4]] for line in lines if line[:1] == ["v"]]).reshape(-1, 3)


def _text(path: Path) -> str:
    return read_bytes(path, MESH_BYTES, "mesh file").decode(errors="replace")


def _read_dae(path: Path) -> np.ndarray:
    """Vertices of a COLLADA file; the up axis is not applied, as is usual for robot descriptions."""
    root = parse_xml(read_file(path), str(path))
    for element in root.iter():
        element.tag = str(element.tag).rpartition("}")[2]
    unit = root.find("asset/unit")
    scale = float(unit.get("meter", 1.0)) if unit is not None else 1.0
    points: dict[str, np.ndarray] = {}
    for geometry in root.iter("geometry"):
        arrays = []
        for vertices in geometry.iter("vertices"):
            for entry in vertices.iter("input"):
                source = next((s for s in geometry.iter("source") if s.get("id") == entry.get("source", "")[1:]), None)
                if entry.get("semantic") == "POSITION" and source is not None:
                    arrays.append(np.array((source.findtext("float_array") or "").split(), float).reshape(-1, 3))
        points["#" + geometry.get("id", "")] = np.concatenate(arrays) if arrays else np.zeros((0, 3))
    placed: list[np.ndarray] = []
    pending = [(node, np.eye(4)) for scene in root.iter("visual_scene") for node in scene.findall("node")]
    while pending:
        node, transform = pending.pop()
        transform = transform @ _dae_transform(node)
        for instance in node.findall("instance_geometry"):
            own = points.get(instance.get("url", ""), np.zeros((0, 3)))
            placed.append(own @ transform[:3, :3].T + transform[:3, 3])
        pending += [(child, transform) for child in node.findall("node")]
    return scale * np.concatenate(placed or [np.zeros((0, 3)), *points.values()])


def _dae_transform(node: Element) -> np.ndarray:
    total = np.eye(4)
    for element in node:
        step = np.eye(4)
        values = np.array((element.text or "").split(), float) if element.tag in _DAE_STEPS else np.zeros(0)
        if element.tag == "matrix":
            step = values.reshape(4, 4)
        elif element.tag == "translate":
            step[:3, 3] = values
        elif element.tag == "scale":
            step[:3, :3] = np.diag(values)
        elif element.tag == "rotate":
            step[:3, :3] = Rotation.from_rotvec(np.deg2rad(values[3]) * values[:3]).as_matrix()
        total = total @ step
    return total
