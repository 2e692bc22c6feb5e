"""`trajopt identify` and its report: what a reader looks for is in the file."""

import html.parser
import pathlib

import numpy as np
import pytest

from trajopt import load_model
from trajopt.cli import main
from trajopt.cli.identify import scatter
from trajopt.dynamics import State, System

PENDULUM = """<mujoco model="pendulum"><worldbody><body name="rod"><joint name="hinge" axis="0 1 0" damping="0.05"/>
<inertial pos="0 0 -0.4" mass="1" diaginertia="0.02 0.02 0.01"/></body></worldbody>
<actuator><motor name="motor" joint="hinge"/></actuator></mujoco>"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder: pathlib.Path = tmp_path_factory.mktemp("logs")
    (folder / "pendulum.xml").write_text(PENDULUM)
    system, rng = System(load_model(str(folder / "pendulum.xml")), 0.005), np.random.default_rng(0)
    for run in range(9):
        us = np.repeat(rng.uniform(-3, 3, 8), 10)[:, None]
        states, _ = system.rollout(State(rng.uniform(-1, 1, 1), rng.uniform(-2, 2, 1)), 1.1 * us)
        rows = [f"{0.005 * k:.3f},{states.q[k, 0] + 1e-3 * rng.normal():.6f},{us[k, 0]:.4f}" for k in range(0, 80, 2)]
        (folder / f"run{run}.csv").write_text("\n".join(["t,q,torque", *rows]))
    return folder


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.text, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.text += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text.append(data)


def test_the_command_and_its_report(logs, capsys):
    arguments = [
        str(logs / "pendulum.xml"),
        *(str(logs / f"run{k}.csv") for k in range(8)),
        "--parameters",
        "torque.gain",
    ]
    more = ["--held-out", str(logs / "run8.csv"), "--report", str(logs / "report.html")]
    assert main(["identify", *arguments, *more]) == 0
    said = capsys.readouterr().out
    assert "sensor of channel 'q': Encoder, noise 0.00" in said and "sensor of channel 'torque': Input\n" in said
    assert "torque.gain" in said and "written:" in said
    page = Page()
    page.feed((logs / "report.html").read_text())
    text = " ".join(page.text)
    for wanted in (
        "Identification of pendulum", "What was identified", "torque.gain", "Is the noise as stated?", "Fits", "residual, q: "
        "hinge",
        "Recordings that were held out", "run0",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert page.tags.count("svg") == 6 and "http" not in text  # three recordings, curve and residual of one row each


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--parameters", "gain"], "no parameter 'gain'"),
        (["--parameters", "torque.gain", "--sensor", "q=encodr"], "expected CHANNEL=KIND"),
        (["--parameters", "torque.gain", "--sensor", "q=encoder:x"], "noise is 'x'"),
        (["--parameters", "torque.gain", "--loss", "hubr"], "no loss 'hubr'"),
    ],
)
def test_bad_options(logs, capsys, more, message):
    assert main(["identify", str(logs / "pendulum.xml"), str(logs / "run0.csv"), *more]) == 2
    assert message in capsys.readouterr().err


def test_a_channel_of_unknown_meaning(logs, capsys, tmp_path):
    (tmp_path / "run.csv").write_text("t,height\n0,1\n0.1,2\n")
    assert main(["identify", str(logs / "pendulum.xml"), str(tmp_path / "run.csv"), "--parameters", "damping"]) == 2
    assert "what does channel 'height' measure? Give --sensor height=KIND" in capsys.readouterr().err


def test_rates_of_joints(logs, capsys, tmp_path):
    (tmp_path / "run.csv").write_text("t,q,dq\n" + "\n".join(f"{0.1 * k},{0.1 * k},1" for k in range(9)))
    assert main(["identify", str(logs / "pendulum.xml"), str(tmp_path / "run.csv"), "--parameters", "gain"]) == 2
    said = capsys.readouterr().out
    assert "channel 'q': Encoder, noise" in said and "channel 'dq': Encoder of velocities, noise" in said


def test_noise_from_the_scatter_of_samples():
    t, rng = np.linspace(0, 1, 400), np.random.default_rng(0)
    values = np.sin(3 * t)[:, None] + 0.01 * rng.normal(size=(400, 2))
    assert scatter([values]) == pytest.approx(0.01, rel=0.15)
