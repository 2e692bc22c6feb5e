"""Limits of what the readers accept, so that no file can exhaust memory or time, and reading files within them.

Far above published robots (a few hundred elements, tens of links, meshes of some megabytes). What is larger is refused by name.
"""

import stat
from pathlib import Path
from typing import NoReturn

from trajopt.errors import ModelError

DOCUMENT_BYTES = 32 << 20  # of an XML document
MESH_BYTES = 64 << 20  # of a mesh or height field
ELEMENTS = 100_000  # of an XML document, with everything that it includes, attaches and replicates
DEPTH = 400  # XML elements inside each other
BODIES = 1_000  # links or bodies, moving or not
SHAPES = 2_000
PAIRS = 50_000  # contact pairs
NEAR_PAIRS = 3_000  # pairs of links of one robot whose overlap is computed, about 1 ms each
INCLUDES = 500  # SDF models included, those in others too
LEVELS = 20  # SDF models inside each other
CHAIN = 100  # SDF frames placed relative to each other, joints between them too
SAMPLES = 4_000_000  # heights of a height field
KEYFRAMES = 1_000
LARGEST = 1e50  # of a number; its powers stay finite
UNBOUNDED = 1e16  # from which on a limit of a joint is none, as SDF says; some files write the largest number that there is
MESH_EXTENT = 1e6  # m
CHILD_SECONDS = 20.0  # for a mesh that another package reads, in a process of its own
CHILD_BYTES = 4 << 30  # address space of that process


def refuse(source: str, count: int, most: int, things: str, remedy: str) -> NoReturn:
    """Raise `ModelError` for more than there may be."""
    raise ModelError(f"{source}: {count:,} {things}; at most {most:,} are read, to bound memory and time; {remedy}")


def is_regular(path: Path) -> bool:
    """Whether there is a regular file; False too for names that no file system accepts."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def check_file(path: Path, most: int, what: str) -> None:
    """Raise `ModelError` unless `path` is a regular file of at most `most` bytes. Pipes and devices are not opened."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"cannot read {what} '{short(str(path))}': {reason}") from None
    if stat.S_ISDIR(status.st_mode):
        raise ModelError(f"cannot read {what} '{path}': Is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"cannot read {what} '{path}': it is no regular file but a pipe, socket or device")
    if status.st_size > most:
        raise ModelError(
            f"cannot read {what} '{path}': it has {status.st_size / 2**20:,.0f} MiB; at most {most >> 20} MiB are read, to bound "
            "memory and time; make it smaller, a mesh by decimation"
        )


def read_bytes(path: Path, most: int, what: str) -> bytes:
    """The bytes of a file that `check_file` accepts."""
    check_file(path, most, what)
    try:
        with path.open("rb") as file:
            return file.read(most + 1)[:most]
    except OSError as error:
        raise ModelError(f"cannot read {what} '{path}': {error.strerror or error}") from None


def short(text: str, most: int = 300) -> str:
    """A text for messages: the middle of a long one left out."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 4 :]}"
