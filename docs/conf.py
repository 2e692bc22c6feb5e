"""Configuration of the documentation site (Sphinx): `make docs-site` builds it into site/, without network.

Pages are plain Markdown. The navigation stands here instead of in them, so that they also read well in a checkout; a page
that is not named below is filed under "More", a page of docs/problems/ under "Problems".
"""

from __future__ import annotations

import fnmatch
import os
import re
import sys
from typing import Any

import trajopt

sys.path.insert(0, os.path.dirname(__file__))
import formulas
import mathml
import notebooks
import reference

os.environ.setdefault("JAX_PLATFORMS", "cpu")

NAVIGATION = {
    "Tutorials": ("getting-started", "own-robot", "tutorials/*"),
    "How to": (
        "models", "bring-your-own", "tasks", "contact-tasks", "solvers", "optimal-control", "multiple-shooting", "sampling",
        "batches", "sensitivity", "estimation", "estimation/*", "receding-horizon", "policies", "command-line", "pictures",
        "coming-from", "extending",
    ),
    "Explanation": (
        "contact-guide", "gradient-guide", "rigid-body-dynamics", "collision", "contact-semantics", "contact-laws", "gradients",
        "speed",
    ),
    "Problems": ("problems/index", "problems/*"),
    "Reference": (
        "api/index", "api/dynamics", "api/problems", "api/solvers", "api/control", "api/viz", "api/*", "conventions", "glossary",
        "cheat-sheet", "troubleshooting",
    ),
}  # fmt: skip
INDEX = "index"

project = "trajopt"
author = "the trajopt authors"
version = release = trajopt.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}  # .rst: the pages that `reference` writes
exclude_patterns = ["images", "_static", "notes"]
suppress_warnings: list[str] = []
nitpicky = False  # names in signatures need not have an entry of their own; links between pages are always checked

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_links_external_new_tab = False
smartquotes = False  # quotes in these pages are those of strings
highlight_language = "text"  # of indented blocks: shell commands

autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"trajopt {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
pygments_style = "friendly"


def navigation(names: list[str]) -> dict[str, list[str]]:
    """Section titles and the pages in them, for the pages there are; each is in one section exactly once."""
    left = [name for name in names if name != INDEX and not name.startswith("api/classes/")]
    found: dict[str, list[str]] = {}
    for title, patterns in NAVIGATION.items():
        found[title] = []
        for pattern in patterns:
            matching = [name for name in left if fnmatch.fnmatchcase(name, pattern)]
            found[title] += matching
            left = [name for name in left if name not in matching]
    found["More"] = left
    return {title: names for title, names in found.items() if names}


LINK_TO_NOTE = re.compile(r"\[([^\]]+)\]\((?:\.\./)*notes/([\w./-]+\.md)[^)]*\)")


def name_notes(app: Any, name: str, source: list[str]) -> None:
    """Notes are no pages of the site: a link to one becomes its words and the path of the file in the repository."""
    source[0] = LINK_TO_NOTE.sub(r"\1 (`docs/notes/\2`)", source[0])


def add_navigation(app: Any, name: str, source: list[str]) -> None:
    """Append the tables of contents of all pages that were found to the index page."""
    if name == INDEX:
        for title, names in navigation(sorted(app.env.found_docs)).items():
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(names) + "\n```\n"


def setup(app: Any) -> None:
    app.connect("source-read", name_notes)
    app.connect("source-read", add_navigation)
    reference.setup(app)
    mathml.setup(app)
    notebooks.setup(app)
    formulas.setup(app)
