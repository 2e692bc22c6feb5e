"""The documentation site: it builds without a warning, and from its index everything can be reached without a network."""

import ast
import functools
import html.parser
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse

import pytest

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
GENERATED = ("genindex", "py-modindex", "search")
# Constants, what the page of trajopt.result has, and modules, whose sections have anchors for what they hold.
NOT_THERE = {"SOLVERS", "GRADIENTS", "Status", "guesses", "residuals"}
INSTALL = "the documentation site needs Sphinx: pip install -e '.[docs]'"


def build(source: pathlib.Path, out: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run Sphinx as `make docs-site` does."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(out / ".doctrees")]
    return subprocess.run([*command, str(source), str(out)], capture_output=True, text=True)


class Page(html.parser.HTMLParser):
    """Anchors of a page, the pages it links to, and the files it loads (pictures, scripts, styles)."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag == "link" and values.get("href"):
            (self.loads if "stylesheet" in values.get("rel", "") else self.links).append(values["href"])
        elif values.get("src"):
            self.loads.append(values["src"])


@pytest.fixture(scope="module")
def sources():
    """Pages there are before the site is built."""
    paths = {path.relative_to(DOCS) for kind in ("md", "ipynb") for path in DOCS.rglob(f"*.{kind}")}
    return {path.with_suffix(".html") for path in paths if path.parts[0] != "notes"}


@pytest.fixture(scope="module")
def site(sources, tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = build(DOCS, out)
    assert "No module named" not in done.stderr, f"{INSTALL}\n{done.stderr}"
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip(), done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site): Page(path) for path in site.rglob("*.html")}


def target(page: pathlib.Path, link: str) -> tuple[pathlib.Path, str]:
    """The file below the site that `link` on `page` means, and its anchor."""
    parts = urllib.parse.urlsplit(link)
    path = pathlib.PurePosixPath(urllib.parse.unquote(parts.path)) if parts.path else pathlib.PurePosixPath(page.name)
    steps: list[str] = []
    for step in (*page.parent.parts, *path.parts):
        steps = steps[:-1] if step == ".." else [*steps, step]
    return pathlib.Path(*steps), urllib.parse.unquote(parts.fragment)


def is_internal(link: str) -> bool:
    return not urllib.parse.urlsplit(link).scheme and not link.startswith("//")


def test_every_link_and_picture_leads_somewhere(site, pages):
    wrong = []
    for name, page in pages.items():
        for link in filter(is_internal, page.links + page.loads):
            path, anchor = target(name, link)
            if not (site / path).is_file():
                wrong.append(f"{name}: {link}")
            elif anchor and path in pages and anchor not in pages[path].anchors:
                wrong.append(f"{name}: no #{anchor} in {path}")
    assert not wrong, "\n".join(wrong)
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert any(load.endswith(".png") for page in pages.values() for load in page.loads)


def test_nothing_is_loaded_over_the_network(site, pages):
    loaded = {load for page in pages.values() for load in page.loads if not is_internal(load)}
    assert not {load for load in loaded if not load.startswith("data:")}
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert len(styles) > 10_000 and "@import" not in styles and "url(http" not in styles and "@font-face" not in styles


def test_every_page_is_reached_from_the_index(sources, pages):
    seen, waiting = set(), [pathlib.Path("index.html")]
    while waiting:
        name = waiting.pop()
        if name in pages and name not in seen:
            seen.add(name)
            # The search page and the indices link to everything and prove nothing.
            waiting += [
                target(name, link)[0] for link in pages[name].links if is_internal(link) and name.stem not in GENERATED
            ]
    assert len(sources) > 25 and sources <= seen, sorted(sources - seen)


@pytest.mark.slow
def test_nothing_is_cut_off_on_a_desk_or_a_phone(site, tmp_path):
    """Every page in Chromium at 1,400 and 390 px: what is wider than the window scrolls by itself."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser, "this test needs a browser: sudo apt-get install chromium"
    names = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.stem not in GENERATED)
    harness = (DOCS.parent / "tests" / "site_widths.html").read_text()
    (site / "widths.html").write_text(harness.replace("= PAGES", f"= {json.dumps(names)}"))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
        command += ["--window-size=1500,1000", "--virtual-time-budget=600000", "--dump-dom"]
        command += [f"http://localhost:{server.server_port}/widths.html"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
        server.shutdown()
    (site / "widths.html").unlink()
    lines = shown.split('<pre id="cut-off">')[1].split("</pre>")[0].splitlines()
    assert lines == [f"opened {len(names)} pages"]


def public_names(module: str) -> set[str]:
    """`__all__` of a subpackage, read and not imported."""
    tree = ast.parse((DOCS.parent / "trajopt" / module / "__init__.py").read_text())
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return {name for names in lists for name in ast.literal_eval(names)}


@pytest.mark.parametrize("module", ["dynamics", "problems", "solvers"])
def test_public_names_are_in_the_reference(pages, module):
    wanted = {f"trajopt.{module}.{name}" for name in public_names(module) - NOT_THERE}
    anchors = {anchor for name, page in pages.items() if name.parts[0] == "api" for anchor in page.anchors}
    assert len(wanted) > 5 and wanted <= anchors, sorted(wanted - anchors)


def test_new_pages_find_their_place_and_broken_links_fail_the_build(tmp_path):
    source, out = tmp_path / "docs", tmp_path / "site"
    (source / "problems").mkdir(parents=True)
    for part in DOCS.glob("*.py"):
        shutil.copy(part, source)
    shutil.copytree(DOCS / "_static", source / "_static")
    (source / "index.md").write_text("# trajopt\n\nRead [this](page.md).\n")
    (source / "problems" / "new.md").write_text("# new-problem\n\n## What\n\nIt asks.\n")
    links = "[a problem](problems/new.md#what), [nothing](missing.md), ![no picture](missing.png)"
    (source / "page.md").write_text(f"# A page that nobody named\n\nSee {links}.\n")
    done = build(source, out)
    assert done.returncode != 0
    assert sorted(re.findall(r"missing\.\w+", done.stderr)) == ["missing.md", "missing.png"], done.stderr
    assert done.stderr.count("WARNING") == 2, done.stderr
    assert {"page.html", "problems/new.html"} <= set(Page(out / "index.html").links)
