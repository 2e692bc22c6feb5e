"""Mesh formats that the package `trimesh` reads, in a process of its own: a small file may stand for any number of points."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
from jaxtyping import Float

from trajopt.errors import MissingExtraError, ModelError
from trajopt.models.limits import CHILD_BYTES, CHILD_SECONDS, MESH_BYTES, short

SUFFIXES = (".ply", ".off", ".glb", ".gltf")
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
