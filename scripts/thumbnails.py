"""A small picture of every problem of the library for the gallery of the documentation: its robot where the motion begins.

    python scripts/thumbnails.py [PROBLEM ...]       # into docs/images/problems; all of the library by default

Problems without an initial state, such as a pose to hold, are solved for a few iterations and show where that motion begins.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

import jax
import numpy as np
from PIL import Image

from trajopt import problems, solvers
from trajopt.viz.animation import animate

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "images" / "problems"
WIDTH, HEIGHT, COLOURS = 200, 150, 48


def pose(problem) -> np.ndarray:
    """The configuration that is shown."""
    start, nq = getattr(problem, "x0", None), problem.display.model.nq
    if isinstance(problem, problems.OptimalControlProblem):
        return np.asarray(start, float)[:nq]
    return np.asarray(solvers.solve(problem, max_iterations=3).trajectory["q"])[0]


def draw(name: str) -> None:
    problem = problems.get(name)
    if problem.display.model is None:
        print(f"{name}: no model to draw")
        return
    with tempfile.TemporaryDirectory() as folder:
        film = animate(problem.display.model, {"q": pose(problem)[None]}, pathlib.Path(folder) / "turn.gif", pixels=2 * WIDTH)
        with Image.open(film) as image:
            picture = image.convert("RGB")
    picture.thumbnail((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
    frame = Image.new("RGB", (WIDTH, HEIGHT), "white")
    frame.paste(picture, ((WIDTH - picture.width) // 2, (HEIGHT - picture.height) // 2))
    FOLDER.mkdir(parents=True, exist_ok=True)
    frame.quantize(COLOURS, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)
    print(f"{name}: {(FOLDER / f'{name}.png').stat().st_size / 1e3:.0f} kB", flush=True)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for name in sys.argv[1:] or problems.names():
        draw(name)


if __name__ == "__main__":
    main()
