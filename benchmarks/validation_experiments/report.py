"""Where results go: pictures in docs/images, tables between markers in the pages of docs/validation."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES, IMAGES = ROOT / "docs" / "validation", ROOT / "docs" / "images"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an experiment found. checks: (what, judged by, largest error, with unit) for the summary on the index page."""

    checks: Sequence[tuple[str, str, str]]


def image(name: str) -> pathlib.Path:
    return IMAGES / f"validation-{name}.png"


def save(figure, name: str) -> None:
    figure.savefig(image(name), dpi=75)
    print(f"wrote {image(name).relative_to(ROOT)}")


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def between(page: str, marker: str) -> tuple[pathlib.Path, str, re.Match]:
    """The page, its text, and where the marked part of it stands."""
    path = PAGES / f"{page}.md"
    text = path.read_text()
    found = re.search(rf"(<!-- {marker} -->\n)(.*?)(\n?<!-- end -->)", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"{path} has no part between <!-- {marker} --> and <!-- end -->: nowhere to write the table")
    return path, text, found


def write_table(page: str, marker: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Replace the part of docs/validation/PAGE.md between <!-- MARKER --> and <!-- end --> and print it."""
    path, text, found = between(page, marker)
    table = markdown(header, rows)
    path.write_text(text[: found.start()] + found[1] + table + "\n<!-- end -->" + text[found.end() :])
    print(f"\n{page}, {marker}:\n{table}", flush=True)


def write_summary(experiment: str, outcome: Outcome) -> None:
    """Replace the rows of one experiment in the summary of the index page; the rows of others stay."""
    path, text, found = between("index", "summary")
    head, rows = "| experiment | quantity | judged by | largest error |\n|---|---|---|---|", {}
    for line in found[2].splitlines()[2:]:
        rows.setdefault(line.split(" | ")[0].removeprefix("| "), []).append(line)
    rows[experiment] = [f"| {experiment} | " + " | ".join(check) + " |" for check in outcome.checks]
    table = "\n".join([head, *(line for name in sorted(rows) for line in rows[name])])
    path.write_text(text[: found.start()] + found[1] + table + "\n<!-- end -->" + text[found.end() :])
