"""One run at a time in a folder: a lock that names its holder. The kernel releases it when the process ends, however it ends."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
from collections.abc import Iterator

from trajopt import files
from trajopt.errors import OptionError

LOCK = ".lock"


@dataclasses.dataclass
class _Holding:
    """A lock of this process: its open file, whether the file system knows locks, the thread that has it, what it says, and how
    many blocks are under way."""

    descriptor: int
    locked: bool
    thread: int
    holder: dict[str, object]
    blocks: int = 1


_holdings: dict[pathlib.Path, _Holding] = {}
_guard = threading.Lock()  # of `_holdings`


@contextlib.contextmanager
def occupying(folder: str | os.PathLike) -> Iterator[None]:
    """Have a folder, made where it is missing, to oneself within the block; what killed writers began in it is ended first.

    Blocks of one thread may be nested. Raises `OptionError`, naming process, host and start of the other run, where another
    process or thread has the folder. A file system without locks gives no protection.
    """
    place = pathlib.Path(os.path.realpath(folder))
    place.mkdir(parents=True, exist_ok=True)
    with _guard:
        holding = _holdings.get(place)
        if holding is None:
            holding = _holdings[place] = _taken(place, folder)
        elif holding.thread != threading.get_ident():
            raise _refusal(folder, holding.holder)
        else:
            holding.blocks += 1
    try:
        if holding.blocks == 1 and holding.locked:  # without locks, another one may be writing
            files.tidy(place)
        yield
    finally:
        with _guard:
            holding.blocks -= 1
            if holding.blocks == 0:
                del _holdings[place]
                with contextlib.suppress(OSError):
                    (place / LOCK).unlink()  # while it is locked: `_taken` looks whether the file is still there
                os.close(holding.descriptor)


def _taken(place: pathlib.Path, folder: str | os.PathLike) -> _Holding:
    """The lock of a folder, taken. Raises `OptionError` where another process has it."""
    path = place / LOCK
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            locked = files.lock_file(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(descriptor, path):  # its holder ended, and took the file away, between opening and locking it
                os.close(descriptor)
                continue
            holder = {"process": os.getpid(), "host": socket.gethostname(), "start": time.strftime("%Y-%m-%d %H:%M:%S %z")}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode(), 0)
            return _Holding(descriptor, locked, threading.get_ident(), holder)
        except BaseException as error:
            said = os.pread(descriptor, 4096, 0) if isinstance(error, BlockingIOError) else b""
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise _refusal(folder, _read(said)) from None
            raise


def _is_at(descriptor: int, path: pathlib.Path) -> bool:
    """Whether an open file is the one that is at `path` now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read(content: bytes) -> dict[str, object]:
    """What a lock says of its holder; nothing while the holder writes it."""
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        return {}


def _refusal(folder: str | os.PathLike, holder: dict[str, object]) -> OptionError:
    who = "process {process} on {host}, since {start}".format(**{"process": "?", "host": "?", "start": "?"} | holder)
    return OptionError(
        f"another run writes into '{os.fspath(folder)}' ({who}); wait until it has ended, or give another folder (--out)"
    )
