"""One page with all pictures of finished runs: HTML beside their folders, which needs neither a server nor a network."""

import dataclasses
import html
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from trajopt import files
from trajopt.names import counted

# The order of the pictures of a run; others follow by name.
ORDER = (
    "animation.gif", "trajectory.png", "joints.png", "contacts.png", "costs.png", "estimation.png", "uncertainty.png",
    "convergence.png",
)  # fmt: skip
_PICTURES = (".png", ".gif")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin: 2.5rem 0 0.2rem; border-top: 1px solid #ddd; padding-top: 1.2rem }
p { margin: 0.2rem 0 0.8rem } .solved { color: #27743a } .other { color: #a4471b }
nav { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 0.8rem; margin: 1rem 0 }
nav a { text-decoration: none; color: inherit; font-size: 0.85rem; text-align: center; overflow-wrap: anywhere }
nav img { width: 100%; height: 7rem; object-fit: contain }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1rem; align-items: start }
.pictures img { width: 100% } figure { margin: 0 } figcaption { font-size: 0.85rem; color: #555 }
pre { background: #f6f5f2; padding: 0.6rem; overflow-x: auto; font-size: 0.85rem }
"""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A run on the page.

    Options:
        name: of the run.
        about: a line about it.
        folder: where its files are.
        failure: why it has no result, where it has none.
    """

    name: str
    about: str
    folder: pathlib.Path
    failure: str = ""


def pictures(folder: str | os.PathLike) -> list[str]:
    """Names of the pictures in a run's folder, in the order in which they are shown."""
    place = pathlib.Path(folder)
    names = [name for name in files.visible(place) if name.endswith(_PICTURES)] if place.is_dir() else []
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def write_page(entries: Sequence[Entry], path: str | os.PathLike, *, title: str = "Gallery") -> pathlib.Path:
    """Write a page with every picture of every entry; links are relative to the page. Returns its path."""
    page = pathlib.Path(path)
    parts = [
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title>", f"<style>{_STYLE}</style>", "</head>", "<body>",
        f"<h1>{html.escape(title)}</h1>", "<nav>",
    ]  # fmt: skip
    for entry in entries:
        first = next(iter(pictures(entry.folder)), "")
        image = f'<img src="{_link(page, entry.folder / first)}" alt="" loading="lazy">' if first else ""
        parts.append(f'<a href="#{html.escape(entry.name)}">{image}<br>{html.escape(entry.name)}</a>')
    parts.append("</nav>")
    for entry in entries:
        parts += _section(page, entry)
    parts += ["</body>", "</html>"]
    files.write_text(page, "\n".join(parts) + "\n")
    return page


def _section(page: pathlib.Path, entry: Entry) -> list[str]:
    name = html.escape(entry.name)
    parts = [f'<h2 id="{name}">{name}</h2>', f"<p>{html.escape(entry.about)}</p>", _outcome(entry)]
    more = [f'<a href="{_link(page, entry.folder / file)}">{words}</a>' for file, words in
            (("viewer.html", "in the viewer"), ("animation.mp4", "as a video")) if (entry.folder / file).exists()]  # fmt: skip
    if more:
        parts.append(f"<p>{', '.join(more)}</p>")
    parts.append('<div class="pictures">')
    for file in pictures(entry.folder):
        link = _link(page, entry.folder / file)
        image = f'<img src="{link}" alt="{name}: {pathlib.Path(file).stem}" loading="lazy">'
        parts.append(f'<figure><a href="{link}">{image}</a><figcaption>{file}</figcaption></figure>')
    return [*parts, "</div>"]


def _outcome(entry: Entry) -> str:
    """How the run ended, in a line."""
    if entry.failure:
        return f'<p class="other">no result: {html.escape(entry.failure)}</p>'
    summary = _summary(entry.folder)
    if not summary:
        return '<p class="other">not run</p>'
    cost, violation = summary.get("cost"), summary.get("constraint_violation")
    parts = [str(summary.get("status", "")).replace("_", " "), f"by {summary.get('solver')}"]
    parts += [f"goals {'met' if met else 'not met'}"] if (met := summary.get("goals_met")) is not None else []
    parts += [f"cost {cost:.4g}"] if isinstance(cost, int | float) else []
    parts += [f"violation {violation:.1e}"] if isinstance(violation, int | float) and violation > 0 else []
    parts.append(f"{counted(summary.get('iterations', 0), 'iteration')} in {summary.get('wall_time_s', 0.0):.2f} s")
    kind = "solved" if summary.get("success") else "other"
    return f'<p class="{kind}">{html.escape(", ".join(parts))}</p>'


def _summary(folder: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        return {}


def _link(page: pathlib.Path, file: pathlib.Path) -> str:
    return html.escape(pathlib.Path(os.path.relpath(file, page.parent)).as_posix())
