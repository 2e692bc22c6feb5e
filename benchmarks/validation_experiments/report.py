"""Where results go: pictures in docs/images, tables between markers in docs/notes/validation.md and the pages of docs/notes."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence

from measure import markdown

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES, IMAGES = ROOT / "docs", ROOT / "docs" / "images"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an experiment found. checks: (what, judged by, largest error, with unit) for docs/notes/validation.md."""

    checks: Sequence[tuple[str, str, str]]


def image(name: str) -> pathlib.Path:
    return IMAGES / f"validation-{name}.png"


def save(figure, name: str) -> None:
    figure.savefig(image(name), dpi=75)
    print(f"wrote {image(name).relative_to(ROOT)}")


def between(page: str, marker: str) -> tuple[pathlib.Path, str, re.Match]:
    """The page, its text, and where the marked part of it stands."""
    places = [folder / f"{page}.md" for folder in (PAGES, PAGES / "notes", PAGES / "notes" / "validation")]
    path = next((place for place in places if place.exists()), places[0])
    text = path.read_text()
    found = re.search(rf"(<!-- {marker} -->\n)(.*?)(\n?<!-- end -->)", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"{path} has no part between <!-- {marker} --> and <!-- end -->: nowhere to write the table")
    return path, text, found


def write_table(page: str, marker: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Replace the table on a page between <!-- MARKER --> and <!-- end --> and print it."""
    write_part(page, marker, markdown(header, rows))


def write_part(page: str, marker: str, part: str) -> None:
    """The same with text of any kind."""
    path, text, found = between(page, marker)
    path.write_text(text[: found.start()] + found[1] + part + "\n<!-- end -->" + text[found.end() :])
    print(f"\n{page}, {marker}:\n{part}", flush=True)


def write_summary(experiment: str, outcome: Outcome) -> None:
    """Replace the rows of one experiment in the summary of docs/notes/validation.md; the rows of others stay."""
    found = between("validation", "summary")[2]
    old = [line.strip("| ").split(" | ") for line in found[2].splitlines()[2:]]
    rows = [row for row in old if row[0] != experiment] + [[experiment, *check] for check in outcome.checks]
    head = ("experiment", "quantity", "judged by", "largest error")
    write_table("validation", "summary", head, sorted(rows, key=lambda row: row[0]))
