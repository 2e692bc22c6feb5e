"""Measured figures on README and pages are those of docs/results.json."""

import importlib.util
import json
import pathlib
import re

import pytest

pytestmark = pytest.mark.check

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("results_of_benchmarks", ROOT / "benchmarks" / "results.py")
RESULTS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RESULTS)
FIGURES = json.loads(RESULTS.RESULTS.read_text())
# Pages whose ratios of speed all come from results.json.
TIED = ("README.md", "docs/index.md", "docs/speed.md", "docs/coming-from.md")
RATIO = re.compile(r"\b\d[\d.,]*(?:x\b| times (?:as fast|faster|quicker))")


@pytest.mark.parametrize("page", RESULTS.pages(), ids=lambda path: path.stem)
def test_pages_state_the_figures_that_were_measured(page):
    assert not RESULTS.wrong(page.read_text(), FIGURES), "python benchmarks/results.py pages"


@pytest.mark.parametrize("name", TIED)
def test_no_ratio_of_speed_is_written_by_hand(name):
    text = RESULTS.FIGURE.sub("", (ROOT / name).read_text())
    assert not RATIO.findall(text), "take it from docs/results.json: <!--=KEY-->NUMBER<!--/-->"


@pytest.mark.parametrize("key", sorted(FIGURES))
def test_a_figure_says_where_it_comes_from(key):
    figure = FIGURES[key]
    assert set(figure) == {"value", "unit", "command", "machine", "commit"}
    assert (ROOT / figure["command"].split()[1]).is_file() and all(map(str, figure.values()))


def test_a_figure_that_differs_is_seen_and_filled_in():
    figures = {"a": {"value": 29.62}, "b": {"value": 902_000.0}, "c": {"value": 6e-11}}
    right = "<!--=a-->30<!--/--> <!--=a-->29.6<!--/--> <!--=b-->902,000<!--/--> <!--=c-->6e-11<!--/-->"
    stale = right.replace("29.6", "31.0").replace("902", "901")
    assert RESULTS.wrong(right, figures) == []
    assert RESULTS.wrong(stale, figures) == ["a is 29.6, the page says 31.0", "b is 902,000, the page says 901,000"]
    assert RESULTS.filled(stale, figures) == right
    assert RESULTS.wrong("<!--=d-->1<!--/-->", figures) == ["d is no figure of results.json"]
