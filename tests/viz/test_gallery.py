"""The gallery: every picture of every run is on the page, and a run without a result says why."""

import html.parser
import json
import sys

import numpy as np
import pytest
from PIL import Image

from trajopt.cli import main
from trajopt.viz.gallery import Entry, pictures, write_page


class Links(html.parser.HTMLParser):
    """Sources of images and targets of links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images, self.targets = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "img":
            self.images.append(values["src"])
        if tag == "a":
            self.targets.append(values["href"])


@pytest.fixture
def runs(tmp_path):
    for name, files in (("a-run", ("convergence.png", "animation.gif", "own.png")), ("b-run", ("convergence.png",))):
        (tmp_path / name).mkdir()
        for file in files:
            Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / name / file)
        summary = {"status": "solved", "success": True, "solver": "iLQR", "cost": 1.5, "iterations": 3, "wall_time_s": 0.2}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_every_picture_is_on_the_page(runs):
    entries = [Entry("a-run", "a <b> thing", runs / "a-run"), Entry("b-run", "", runs / "b-run"),
               Entry("c-run", "", runs / "c-run", "ended with status -9")]  # fmt: skip
    text = write_page(entries, runs / "index.html").read_text()
    links = Links(text)
    assert pictures(runs / "a-run") == ["animation.gif", "convergence.png", "own.png"]
    every = [f"{run}/{file}" for run in ("a-run", "b-run") for file in pictures(runs / run)]
    assert set(links.images) == set(every) and all((runs / source).exists() for source in links.images)
    assert {target for target in links.targets if target.startswith("#")} == {"#a-run", "#b-run", "#c-run"}
    assert "a &lt;b&gt; thing" in text and "solved, by iLQR, cost 1.5, 3 iterations" in text
    assert "no result: ended with status -9" in text and "width=device-width" in text


def test_finished_runs_are_not_solved_again(runs, capsys):
    (runs / "a-run").rename(runs / "go1-stand")
    assert main(["gallery", "go1-stand", "--out", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "go1-stand: found there, 3 pictures" in out and (runs / "index.html").exists()
    assert main(["gallery", "go1-stnd", "--out", str(runs)]) == 2


def test_a_run_that_is_drawing_when_its_time_is_up_goes_on(tmp_path, monkeypatch):
    """The stand-in for Python saves its result at once, and the picture two seconds later."""
    stand_in = tmp_path / "python"
    draw = f"{sys.executable} -c \"from PIL import Image; Image.new('RGB', (4, 4)).save('$out/convergence.png')\""
    stand_in.write_text(f'#!/bin/sh\nfor out; do :; done\necho "{{}}" > "$out/summary.json"\nsleep 2\n{draw}\n')
    stand_in.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(stand_in))
        assert main(["gallery", "go1-stand", "--out", str(tmp_path), "--time-limit", "1"]) == 0
    assert pictures(tmp_path / "go1-stand") == ["convergence.png"]


@pytest.mark.slow
def test_a_problem_is_run_and_drawn(tmp_path):
    assert main(["gallery", "go1-stand", "--out", str(tmp_path)]) == 0
    assert {"animation.gif", "contacts.png", "trajectory.png"} <= set(pictures(tmp_path / "go1-stand"))
