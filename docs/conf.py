"""Configuration of the documentation site (Sphinx): `make docs-site` builds it into site/, without network.

Pages are plain Markdown. The navigation stands here instead of in them, so that they also read well in a checkout; a page
that is not named below is filed under "More", a page of docs/problems/ under "Problems".
"""

from __future__ import annotations

import fnmatch
import inspect
import os
import re
from typing import Any

import trajopt

os.environ.setdefault("JAX_PLATFORMS", "cpu")

NAVIGATION = {
    "Get started": ("getting-started", "tutorial", "bring-your-own", "coming-from", "command-line", "pictures", "viewer"),
    "Concepts": (
        "conventions", "models", "rigid-body-dynamics", "collision", "contact-semantics", "boxed-lcp", "smoothed-contact",
        "compliant-contact-and-integrators", "gradients", "derivative-accuracy", "jacobian-tables", "performance",
    ),
    "Problems and solvers": (
        "choosing-a-solver", "solvers", "tasks", "optimal-control", "receding-horizon", "multiple-shooting", "sampling",
        "policies", "estimation", "sweeps", "sweeps-slurm", "sweeps-mpi",
    ),
    "Problems": ("problems/*",),
    "Evidence": ("validation/*", "library-table", "solver-comparison"),
    "Reference": (
        "api/trajopt", "api/dynamics", "api/algorithms", "api/models", "api/problems", "api/solvers", "api/control",
        "api/learning", "api/viz", "api/errors",
    ),
    "Extending": (
        "architecture", "extending/problem", "extending/shape-pair", "extending/law", "extending/gradient-mode",
        "extending/solver", "glossary",
    ),
    "Help": ("troubleshooting",),
}  # fmt: skip
INDEX = "index"

project = "trajopt"
author = "the trajopt authors"
version = release = trajopt.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["images", "_static"]
suppress_warnings: list[str] = []
nitpicky = False  # names in signatures need not have an entry of their own; links between pages are always checked

myst_heading_anchors = 4
myst_links_external_new_tab = False
highlight_language = "text"  # of indented blocks: shell commands, formulas

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False

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
    left = [name for name in names if name != INDEX]
    found: dict[str, list[str]] = {}
    for title, patterns in NAVIGATION.items():
        found[title] = []
        for pattern in patterns:
            matching = [name for name in left if fnmatch.fnmatchcase(name, pattern)]
            found[title] += matching
            left = [name for name in left if name not in matching]
    found["More"] = left
    return {title: names for title, names in found.items() if names}


def add_navigation(app: Any, name: str, source: list[str]) -> None:
    """Append the tables of contents of all pages that were found to the index page."""
    if name == INDEX:
        for title, names in navigation(sorted(app.env.found_docs)).items():
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(names) + "\n```\n"


CODE = re.compile(r"``[^`]+``|`[^`]+`")
MARKUP = re.compile(r"[\\*|_]")


def as_text(line: str) -> str:
    """A line of a docstring in reStructuredText: backticks are code, all other signs stand for themselves."""
    parts, end = [], 0
    for match in CODE.finditer(line):
        parts += [MARKUP.sub(r"\\\g<0>", line[end : match.start()]), f"``{match.group().strip('`')}``\\ "]
        end = match.end()
    return "".join([*parts, MARKUP.sub(r"\\\g<0>", line[end:])])


def plain_docstrings(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with code in backticks; lines indented by four are shown as they stand."""
    made: list[str] = []
    kind, previous = "text", "text"
    for row in lines:
        if row.strip():
            if row.startswith("    "):
                kind = "code"
            elif row.startswith(("- ", "* ")):
                kind = "item"
            elif not (row.startswith("  ") and kind == "item"):
                kind = "text"
        if kind == "code":
            made += ["", "::", "", row] if previous != "code" else [row]
        elif kind == "item":
            start = 2 if row.startswith(("- ", "* ")) else 0
            made += [""] * (previous != "item") + [
                row[:start] + as_text(row[start:]) if start else "  " + as_text(row.strip())
            ]
        else:
            made += [""] * (previous != "text") + [as_text(row.strip())]
        previous = kind
    lines[:] = [*made, ""]


def short_types(app: Any, what: str, name: str, value: Any, options: Any, arguments: str, returned: str) -> Any:
    """Arrays are called Array in signatures, not by the module they come from."""
    names = r"(jaxlib\._jax|jax|numpy|jaxtyping)\.(?=(Array|ndarray|Float|Int|Bool)\b)"
    return tuple(part and re.sub(names, "", part) for part in (arguments, returned))


def skip_inherited_noise(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leave out members without a docstring of the project's own."""
    if inspect.isfunction(value) and not (value.__module__ or "").startswith("trajopt"):
        return True
    return None


def setup(app: Any) -> None:
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", plain_docstrings)
    app.connect("autodoc-process-signature", short_types)
    app.connect("autodoc-skip-member", skip_inherited_noise)
