"""The documentation: every Python example runs, every relative link leads somewhere.

Fenced blocks marked `python` run in the order of their page, in one namespace; `python no-run` marks a sketch. Notes (docs/notes)
are histories: their examples are not run.

The gallery of the documentation has every problem of the library, with a picture.
"""

import importlib
import importlib.util
import inspect
import pathlib
import re
import sys

import pytest

from trajopt import models, problems
from trajopt.dynamics.collision.narrowphase import contact_count

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
LONG = ("3-through-contact", "4-estimate-from-a-recording", "6-train-a-policy")  # notebooks that compile and solve for a minute
PAGES = sorted(
    [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + [*(ROOT / "docs").rglob("*.md"), *NOTEBOOKS]
)
BLOCK = re.compile(r"^```python *\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def examples(text: str) -> list[tuple[int, str]]:
    """(line, code) of every block to run."""
    return [(text[: match.start()].count("\n") + 1, match.group(1)) for match in BLOCK.finditer(text)]


def load_script(path: str):
    """A Python file that is no part of the package."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def text_of(page: pathlib.Path) -> str:
    """A page as Markdown, a notebook too."""
    return load_script("docs/notebooks.py").as_markdown(page.read_text()) if page in NOTEBOOKS else page.read_text()


RUN = [
    pytest.param(page, marks=pytest.mark.slow) if page.stem in LONG else page
    for page in PAGES
    if "notes" not in page.parts and examples(text_of(page))
]


@pytest.mark.parametrize("page", RUN, ids=lambda p: p.stem)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__main__"}
    for line, code in examples(text_of(page)):
        exec(compile("\n" * line + code, str(page), "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_relative_links_lead_somewhere(page):
    targets = [link for link in LINK.findall(text_of(page)) if "://" not in link and not link.startswith("mailto:")]
    missing = [link for link in targets if not (page.parent / link).exists()]
    assert not missing


KINDS = ("sphere", "capsule", "box", "cylinder", "ellipsoid", "convex mesh")
SIZES = {"sphere": "0.1", "capsule": "0.1 0.2", "cylinder": "0.1 0.2", "box": "0.1 0.1 0.1", "ellipsoid": "0.1 0.1 0.2"}


def geom(kind: str) -> str:
    if kind == "plane, ground":
        return '<geom type="plane" size="1 1 1"/>'
    shape = 'type="mesh" mesh="tetrahedron"' if kind == "convex mesh" else f'type="{kind}" size="{SIZES[kind]}"'
    return f"<body><freejoint/><geom {shape}/></body>"


@pytest.mark.parametrize("row", KINDS)
def test_the_table_of_shape_pairs_is_that_of_the_code(row):
    """docs/collision.md names every pair of kinds and its number of contacts."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in
             (ROOT / "docs" / "collision.md").read_text().splitlines() if line.startswith("|")]  # fmt: skip
    head = next(line for line in lines if "plane, ground" in line)
    cells = next(line for line in lines if line[0] == row)
    assert head[1:] == ["plane, ground", *KINDS]
    for column, cell in zip(head[1:], cells[1:], strict=True):
        mesh = '<mesh name="tetrahedron" vertex="0 0 0  0.2 0 0  0 0.2 0  0 0 0.2"/>'
        text = f"<mujoco><asset>{mesh}</asset><worldbody>{geom(row)}{geom(column)}</worldbody></mujoco>"
        model = models.load_model_from_string(text)
        assert len(model.topology.pairs) == 1 and contact_count(model) == int(cell), (row, column)


@pytest.mark.slow
def test_the_lines_of_the_cheat_sheet_run(tmp_path, monkeypatch):
    """Those of its table that leave nothing out, one after the other, of a small robot."""
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    exec("import jax, numpy as np, trajopt\nfrom trajopt import control, dynamics, models, problems, solvers", space)
    text = (ROOT / "docs" / "cheat-sheet.md").read_text().split("| symbol |")[0].replace('"go1"', '"spinner"')
    ran = 0
    for line in re.findall(r"`([^`]*\([^`]*)`", text):
        if "..." in line or "robot" in line or line.startswith("trajopt "):
            continue
        exec(compile(line, "docs/cheat-sheet.md", "exec"), space)
        if line.startswith("system ="):
            exec(CHEAT_SHEET_GIVES, space)
        ran += 1
    assert ran > 15 and space["solution"].us.shape == (20, 2)


CHEAT_SHEET_GIVES = """
x = x0 = system.initial_state("home")
u, us, plant, name = np.zeros(2), np.zeros((20, 2)), system, "p"
states, controls = jax.tree.map(lambda a: np.stack([a, a]), x), np.zeros((2, 2))
residual, guess = lambda x: x - 1.0, np.zeros(2)
problem = problems.OptimalControlProblem(name, system, 20, x0, stage_residual=lambda x, u, t: u)
starts = np.stack([np.concatenate([x0.q, x0.v]), np.concatenate([x0.q + 0.1, x0.v])])
"""


def test_blocks_are_found():
    text = "a\n```python\nx = 1\n```\n```python no-run\ny\n```\n```\nz\n```\n```python\nw\n```\n"
    assert examples(text) == [(2, "x = 1\n"), (11, "w\n")]


REFERENCE = load_script("docs/reference.py")
API_ROWS = [
    (kind, package, name, members)
    for page in sorted((ROOT / "docs" / "api").glob("*.md"))
    for kind, package, rows in REFERENCE.blocks(page.read_text())
    for name, members in rows
]


@pytest.mark.parametrize("package, name, members", [row[1:] for row in API_ROWS if row[0] == "classes"])
def test_every_option_and_method_of_a_class_is_documented(package, name, members):
    cls = getattr(importlib.import_module(package), name)
    _, _, options = REFERENCE.options_of(cls)
    assert [option.name for option in options if not option.meaning] == []
    assert [member for member in members if not inspect.getdoc(inspect.getattr_static(cls, member))] == []


@pytest.mark.parametrize(
    "package", ("dynamics", "models", "problems", "problems.residuals", "solvers", "control", "learning")
)
def test_every_public_name_has_an_entry(package):
    """Classes and functions stand in a block of docs/api; constants and modules are named in its text."""
    module = importlib.import_module(f"trajopt.{package}")
    text = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    names = getattr(module, "__all__", None) or [n for n, value in vars(module).items() if _is_of_package(n, value)]
    shown = {name for _, where, name, _ in API_ROWS if where == module.__name__}
    missing = [name for name in names if name not in shown and (callable(getattr(module, name)) or name not in text)]
    assert len(names) > 4 and missing == []


def _is_of_package(name: str, value: object) -> bool:
    return not name.startswith("_") and str(getattr(value, "__module__", "")).startswith("trajopt.")


def test_options_are_read_from_docstrings():
    text = "One line.\n\nOptions:\n    a (m): first\n        and more.\n    b, c: second.\n\nRaises nothing."
    before, after, entries = REFERENCE.split_docstring(text)
    assert (before, after) == (["One line.", ""], ["", "Raises nothing."])
    assert entries == {"a": ("m", "first and more."), "b": ("", "second."), "c": ("", "second.")}
    with pytest.raises(ValueError, match="expected 'name: meaning'"):
        REFERENCE.split_docstring("Options:\n    no colon here")


DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.check
def test_every_problem_stands_in_the_gallery_with_its_picture():
    page = (DOCS / "problems" / "index.md").read_text()
    missing = [name for name in problems.names() if f"[![{name}](../images/problems/{name}.png)]" not in page]
    assert not missing, "add them to docs/problems/index.md; python scripts/thumbnails.py NAME draws the picture"
