"""The documentation: every Python example runs, every relative link leads somewhere.

Fenced blocks marked `python` run in the order of their page, in one namespace; `python no-run` marks a sketch.
"""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted(
    [path for path in (ROOT / "README.md", ROOT / "CHANGELOG.md") if path.exists()] + [*(ROOT / "docs").rglob("*.md")]
)
BLOCK = re.compile(r"^```python *\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def examples(text: str) -> list[tuple[int, str]]:
    """(line, code) of every block to run."""
    return [(text[: match.start()].count("\n") + 1, match.group(1)) for match in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page.read_text())], ids=lambda p: p.stem)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__main__"}
    for line, code in examples(page.read_text()):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_relative_links_lead_somewhere(page):
    targets = [link for link in LINK.findall(page.read_text()) if "://" not in link and not link.startswith("mailto:")]
    missing = [link for link in targets if not (page.parent / link).exists()]
    assert not missing


def test_blocks_are_found():
    text = "a\n```python\nx = 1\n```\n```python no-run\ny\n```\n```\nz\n```\n```python\nw\n```\n"
    assert examples(text) == [(2, "x = 1\n"), (11, "w\n")]
