"""Notebooks as pages: the cells of docs/tutorials/*.ipynb, text and code, without outputs; the tests run them."""

from __future__ import annotations

import json
from typing import Any


def as_markdown(text: str) -> str:
    """A notebook as Markdown: cells of code are fenced as `python`."""
    cells = json.loads(text)["cells"]
    parts = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
    return "\n\n".join(f"```python\n{source}\n```" if code else source for source, code in parts) + "\n"


def setup(app: Any) -> None:
    from myst_parser.parsers.sphinx_ import MystParser

    class NotebookParser(MystParser):
        """Reads a notebook by way of Markdown."""

        supported = ("ipynb",)

        def parse(self, inputstring: str, document: Any) -> None:
            super().parse(as_markdown(inputstring), document)

    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
