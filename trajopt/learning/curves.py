"""The log of a training: one row an update, as CSV and as JSON lines."""

from __future__ import annotations

import csv
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

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
        with open(self.folder / "curve.csv", "w", newline="") as file:
            table = csv.DictWriter(file, self.columns)
            table.writeheader()
            table.writerows(self.rows)
        (self.folder / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def add(self, row: Mapping[str, Any]) -> Row:
        """One more row; it is returned as it was written."""
        kept: Row = {name: _number(row.get(name)) for name in self.columns}
        self.rows.append(kept)
        if self.folder is not None:
            with open(self.folder / "curve.csv", "a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(kept)
            with open(self.folder / "curve.jsonl", "a") as file:
                file.write(json.dumps(kept) + "\n")
        return kept


def _number(value: Any) -> float | int | None:
    if value is None or isinstance(value, int):
        return value
    return float(value) if math.isfinite(float(value)) else None
