"""Results on disk, one by one: a file of JSON lines, and a folder for each solution.

A sweep writes every result as it comes, so that whatever ends it leaves all that was finished; a second one reads them first and
goes on with what is missing. A solution's folder is written under another name and renamed, and the line that names it follows:
what a line promises is there. The last line of a file whose writer was killed may be cut short; it is dropped.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from typing import Any

from trajopt.solvers.loop.solution import Solution


class Records:
    """Rows, dictionaries that JSON can hold, by key, in a file of JSON lines; a later line replaces an earlier one of its key."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path, self.rows = pathlib.Path(path), dict[str, dict[str, Any]]()
        if self.path.exists():
            content = self.path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                os.truncate(self.path, len(whole))
            for line in whole.splitlines():
                entry = json.loads(line)
                self.rows[entry["key"]] = entry["row"]

    def get(self, key: str) -> dict[str, Any] | None:
        """The row of `key`, None where there is none."""
        return self.rows.get(key)

    def put(self, key: str, row: dict[str, Any]) -> None:
        """Keep a row, in the file before this returns."""
        self.rows[key] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as stream:
            stream.write(json.dumps({"key": key, "row": row}) + "\n")


class Results:
    """Solutions by key in a folder: `results.jsonl` says which, `solutions/KEY` holds what `Solution.save` writes."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = pathlib.Path(folder)
        self.records = Records(self.folder / "results.jsonl")

    def get(self, key: str) -> Solution | None:
        """The solution of `key`, None where there is none."""
        return None if self.records.get(key) is None else Solution.load(self._place(key))

    def put(self, key: str, solution: Solution, row: dict[str, Any]) -> None:
        """Keep a solution, with a row about it, on disk before this returns."""
        place = self._place(key)
        part = place.with_name(f"{key}.part")
        for old in (part, place):
            if old.exists():
                shutil.rmtree(old)
        os.replace(solution.save(part), place)
        self.records.put(key, row)

    def clear(self) -> None:
        """Forget everything."""
        self.records.path.unlink(missing_ok=True)
        self.records.rows.clear()
        shutil.rmtree(self.folder / "solutions", ignore_errors=True)

    def _place(self, key: str) -> pathlib.Path:
        return self.folder / "solutions" / key
