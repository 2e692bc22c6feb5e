"""Files that are always whole: they are written beside their place, synchronised, and renamed.

Whoever reads finds the old file or the new one, however the writer ended, and of files that belong together all the old ones or
all the new ones. A writer that is killed leaves nothing but temporary names, which `tidy` removes.

Several files take their places together through a folder. They are written into one with a temporary name; when it is renamed to
`MOVING`, they are the new ones; then they move to their places. Where that is cut short, readers find them in `MOVING`
(`reading_together`), and the next writer moves the rest.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped

from trajopt.errors import OptionError

TEMPORARY = ".part-"  # what the name of a file begins with that is being written
MOVING = ".moving"  # the folder of files that are to take their places
_REMOVED = ".removed"  # ends the name of an empty file in it: there is none of this name any more
_UNSUPPORTED = (errno.EINVAL, errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a temporary name beside `path`, with the same ending; the file written there then takes the name `path`.

    Where the block raises, or writes nothing, what was at `path` stays. An `OSError` names `path`.
    """
    target = pathlib.Path(os.path.realpath(path))  # a link stays a link
    if target.exists() and not target.is_file():  # such as /dev/null
        yield target
        return
    part = _beside(target)
    try:
        yield part
        if part.exists():
            _synchronise(part)
            os.replace(part, target)
            _synchronise(target.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            error.filename = os.fspath(path)
        raise


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file, in UTF-8."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8", newline="")


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, Any], *, compressed: bool = False) -> None:
    """Write a NumPy archive at exactly this path."""
    with replacing(path) as part, open(part, "wb") as stream:
        (np.savez_compressed if compressed else np.savez)(stream, allow_pickle=False, **arrays)


def read_arrays(path: str | os.PathLike, remedy: str) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays of a NumPy archive. Raises `OptionError`, with the remedy, for a damaged one, whatever NumPy raises then."""
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as data:
            return dict(data)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen kinds of errors for damaged bytes
        reason = str(error).strip() or type(error).__name__
        raise OptionError(f"'{os.fspath(path)}' cannot be read: damaged, or no NumPy archive ({reason}); {remedy}") from error


@contextlib.contextmanager
def replacing_together(
    folder: str | os.PathLike, names: Collection[str], *, synchronised: bool = True
) -> Iterator[pathlib.Path]:
    """Yields an empty folder: the files of `names` written there replace those in `folder`, all at once, and what is not written
    is removed from `folder`. Where the block raises, everything in `folder` stays as it was.

    synchronised: whether that also holds where the machine loses its power; it takes some waits for the disk.
    """
    place = pathlib.Path(os.path.realpath(folder))
    place.mkdir(parents=True, exist_ok=True)
    part = _beside(place / "together")
    try:
        part.mkdir()
        yield part
        for name in names:
            if not (part / name).exists():
                (part / (name + _REMOVED)).touch()
        synchronise = _synchronise if synchronised else _leave
        for name in names:
            if (part / name).exists():
                synchronise(part / name)
        synchronise(part)
        with _held(place, fcntl.LOCK_EX):
            _move(place)
            os.rename(part, place / MOVING)
            synchronise(place)
            _move(place)  # not synchronised: where the power fails, the files may be in `MOVING` again, and are found there
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError) and (error.filename is None or str(error.filename).startswith(str(part))):
            error.filename = os.fspath(folder)
        raise


@contextlib.contextmanager
def reading_together(folder: str | os.PathLike) -> Iterator[Callable[[str], pathlib.Path]]:
    """Yields where each file of a folder is, by name, while no writer replaces them."""
    place, moving = pathlib.Path(folder), pathlib.Path(folder) / MOVING

    def path_of(name: str) -> pathlib.Path:
        decided = (moving / name).exists() or (moving / (name + _REMOVED)).exists()
        return moving / name if decided else place / name

    with _held(place, fcntl.LOCK_SH):
        yield path_of


def tidy(folder: str | os.PathLike) -> None:
    """End what killed writers began in a folder, to which nobody writes now: move what was decided, remove temporary names."""
    place = pathlib.Path(folder)
    if not place.is_dir():
        return
    with _held(place, fcntl.LOCK_EX):
        _move(place)
    for path in place.glob(f"{TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def try_to_write(write: Callable[[], Any], path: str | os.PathLike, meanwhile: str) -> bool:
    """Whether `write()` wrote `path`; where the disk is full or fails, a warning says so, and what is done meanwhile."""
    try:
        write()
    except OSError as error:
        warnings.warn(f"'{os.fspath(path)}' could not be written ({error.strerror or error}); {meanwhile}", stacklevel=3)
        return False
    return True


def visible(folder: str | os.PathLike) -> list[str]:
    """Names of the files in a folder, without those that are hidden or temporary, in order."""
    return sorted(path.name for path in pathlib.Path(folder).iterdir() if not path.name.startswith("."))


def lock_file(descriptor: int, kind: int) -> bool:
    """`flock` of an open file; False where the file system has no locks. With LOCK_NB, `BlockingIOError` where it is taken."""
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def _move(place: pathlib.Path) -> None:
    """Move the files that are decided, if there are any, to their places; once more does no harm."""
    moving = place / MOVING
    if not moving.is_dir():
        return
    for path in moving.iterdir():
        if path.name.endswith(_REMOVED):
            (place / path.name.removesuffix(_REMOVED)).unlink(missing_ok=True)
            path.unlink()
        else:
            os.replace(path, place / path.name)
    moving.rmdir()


def _beside(target: pathlib.Path) -> pathlib.Path:
    """A temporary name in the same folder that nobody else has."""
    return target.with_name(f"{TEMPORARY}{uuid.uuid4().hex[:12]}-{target.name}")


def _synchronise(path: pathlib.Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:  # some file systems synchronise no folders
            raise
    finally:
        os.close(descriptor)


def _leave(path: pathlib.Path) -> None:
    """Leave it to the system when a file comes to the disk."""


@contextlib.contextmanager
def _held(place: pathlib.Path, kind: int) -> Iterator[None]:
    """For the moments in which files move: alone among writers (LOCK_EX), or with other readers (LOCK_SH)."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        lock_file(descriptor, kind)
        yield
    finally:
        os.close(descriptor)
