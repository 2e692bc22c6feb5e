"""Results on disk, one by one: a file of JSON lines, and a folder for each solution.

A sweep writes every result as it comes, so that whatever ends it leaves all that was finished; a second one reads them first and
goes on with what is missing. The line that names a solution follows when all its files are there: what a line promises is there.
The last line of a file whose writer was killed may be cut short; it is dropped. Nothing waits for the disk, which would take
longer than all else about a short task: where the machine loses its power, results of the last seconds may be damaged. What
cannot be read is solved again.
"""

import json
import os
import pathlib
import shutil
import warnings
from typing import Any

from trajopt import files
from trajopt.errors import OptionError
from trajopt.solvers.loop.solution import Solution


class Records:
    """Rows, dictionaries that JSON can hold, by key, in a file of JSON lines; a later line replaces an earlier one of its key."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path, self.rows = pathlib.Path(path), dict[str, dict[str, Any]]()
        if self.path.exists():
            lines = self.path.read_bytes().splitlines(keepends=True)
            read = [self._read(number, line) for number, line in enumerate(lines, 1)]
            if not all(read):
                files.write_text(self.path, "".join(_line(key, row) for key, row in self.rows.items()))

    def _read(self, number: int, line: bytes) -> bool:
        """Whether a line was whole; of a damaged one a warning says so."""
        if not line.endswith(b"\n"):
            return False
        try:
            entry = json.loads(line)
            self.rows[entry["key"]] = entry["row"]
        except (ValueError, KeyError, TypeError):
            warnings.warn(f"line {number} of '{self.path}' is damaged; its task is solved again", stacklevel=4)
            return False
        return True

    def get(self, key: str) -> dict[str, Any] | None:
        """The row of `key`, None where there is none."""
        return self.rows.get(key)

    def put(self, key: str, row: dict[str, Any]) -> None:
        """Keep a row, in the file before this returns."""
        self.rows[key] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as stream:
            stream.write(_line(key, row))


def _line(key: str, row: dict[str, Any]) -> str:
    return json.dumps({"key": key, "row": row}) + "\n"


class Results:
    """Solutions by key in a folder: `results.jsonl` says which, `solutions/KEY` holds what `Solution.save` writes."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = pathlib.Path(folder)
        self.records = Records(self.folder / "results.jsonl")

    def get(self, key: str) -> Solution | None:
        """The solution of `key`, None where there is none; a damaged one is told in a warning."""
        if self.records.get(key) is None:
            return None
        try:
            return Solution.load(self._place(key))
        except OptionError as error:
            warnings.warn(f"a kept result is solved again: {error}", stacklevel=3)
            return None

    def put(self, key: str, solution: Solution, row: dict[str, Any]) -> None:
        """Keep a solution, with a row about it, in the folder before this returns."""
        place = self._place(key)
        files.tidy(place)
        solution.save(place, synchronised=False)
        self.records.put(key, row)

    def clear(self) -> None:
        """Forget everything."""
        self.records.path.unlink(missing_ok=True)
        self.records.rows.clear()
        shutil.rmtree(self.folder / "solutions", ignore_errors=True)

    def _place(self, key: str) -> pathlib.Path:
        return self.folder / "solutions" / key
