"""The log of a training: one row an update, as CSV and as JSON lines."""

import csv
import io
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from trajopt import files

Row = dict[str, float | int | None]


class Curve:
    """Rows, and the files `curve.csv` and `curve.jsonl` of a folder that they are written to as they come; folder None: no files.

    Numbers that are not finite are null, as JSON has none.
    """

    def __init__(self, folder: str | os.PathLike | None, columns: Sequence[str], rows: Sequence[Mapping[str, Any]] = ()) -> None:
        self.columns, self.rows = tuple(columns), [dict(row) for row in rows]
        self.folder = None if folder is None else pathlib.Path(folder)
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write(self.folder)
        self.behind = False  # whether rows are missing from the files

    def _write(self, folder: pathlib.Path) -> None:
        """All rows so far."""
        with files.replacing_together(folder, ("curve.csv", "curve.jsonl")) as part:
            with open(part / "curve.csv", "w", newline="") as file:
                table = csv.DictWriter(file, self.columns)
                table.writeheader()
                table.writerows(self.rows)
            (part / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def _append(self, folder: pathlib.Path, row: Row) -> None:
        """One more line in both files; none of a part of it."""
        line = io.StringIO(newline="")
        csv.DictWriter(line, self.columns).writerow(row)
        for name, text in (("curve.csv", line.getvalue()), ("curve.jsonl", json.dumps(row) + "\n")):
            length = (folder / name).stat().st_size
            try:
                with open(folder / name, "a", newline="") as file:
                    file.write(text)
            except OSError:
                os.truncate(folder / name, length)
                raise

    def add(self, row: Mapping[str, Any]) -> Row:
        """One more row; it is returned as it was written."""
        kept: Row = {name: _number(row.get(name)) for name in self.columns}
        self.rows.append(kept)
        folder = self.folder
        if folder is not None:
            write = (lambda: self._write(folder)) if self.behind else (lambda: self._append(folder, kept))
            self.behind = not files.try_to_write(write, folder / "curve.csv", "the training goes on; the next row tries again")
        return kept


def _number(value: Any) -> float | int | None:
    if value is None or isinstance(value, int):
        return value
    return float(value) if math.isfinite(float(value)) else None
