"""What a killed writer leaves, at each of its calls of the system.

Within `calls`, files that are opened for writing in a folder, and the functions of `os` that change it, call a function before
each change, and between the two halves of each write. SIGKILL takes nothing back that the system was given: what the folder holds
at that moment is what a process killed there leaves. So a test may look at the folder in place of killing a process; slow tests
do kill one.
"""

import builtins
import contextlib
import io
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

CHANGES = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "truncate")


@contextlib.contextmanager
def calls(folder: pathlib.Path, before: Callable[[str], Any]) -> Iterator[None]:
    """Within the block `before(what)` is called at each change of a folder; what: the change and the name that it is about."""
    opened, place = builtins.open, str(folder.resolve())

    def within(path: Any) -> bool:
        return os.path.abspath(path) == place or os.path.abspath(path).startswith(place + os.sep)

    class Halves(io.FileIO):
        def write(self, data: Any) -> int:
            content = bytes(data)
            middle = len(content) // 2
            super().write(content[:middle])
            before(f"write {self.name}")
            rest = content[middle:]
            while rest:
                rest = rest[super().write(rest) :]
            return len(content)

    def opening(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        if not isinstance(file, str | os.PathLike) or not within(file) or not set(mode) & set("wxa+"):
            return opened(file, mode, buffering, encoding, errors, newline, closefd, opener)
        before(f"open {file}")
        raw = Halves(os.fspath(file), mode.replace("b", "").replace("t", ""))
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline)

    def changing(name: str) -> Callable[..., Any]:
        function = getattr(os, name)

        def change(path, *arguments, **options):
            path_of = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
            if within(path_of):
                before(f"{name} {path_of}")
            return function(path, *arguments, **options)

        return change

    with contextlib.ExitStack() as stack:
        for owner in (builtins, io):
            stack.enter_context(mock.patch.object(owner, "open", opening))
        for name in CHANGES:
            stack.enter_context(mock.patch.object(os, name, changing(name)))
        yield


@contextlib.contextmanager
def snapshots(folder: pathlib.Path, copies: pathlib.Path) -> Iterator[list[pathlib.Path]]:
    """Copies of a folder as it is at each change, and at the end, into a folder elsewhere; the list grows within the block."""
    found: list[pathlib.Path] = []

    def copy(what: str) -> None:
        target = copies / str(len(found))
        shutil.copytree(folder, target)
        found.append(target)

    with calls(folder, copy):
        yield found
    copy("the end")
