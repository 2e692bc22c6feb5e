"""The gallery of the documentation has every problem of the library, with a picture."""

import pathlib

import pytest

from trajopt import problems

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.check
def test_every_problem_stands_in_the_gallery_with_its_picture():
    page = (DOCS / "problems" / "index.md").read_text()
    missing = [name for name in problems.names() if f"[![{name}](../images/problems/{name}.png)]" not in page]
    assert not missing, "add them to docs/problems/index.md; python scripts/thumbnails.py NAME draws the picture"
