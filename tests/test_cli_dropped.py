"""The warning that contacts were left out of a motion: which option it names, and the number that would have fitted."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems
from trajopt.cli import main
from trajopt.cli.run import dropped_warning
from trajopt.dynamics import RigidContact, System
from trajopt.models import load_model_from_string
from trajopt.problems import Certificate, Display, LeastSquaresProblem, OptimalControlProblem
from trajopt.result import Status
from trajopt.solvers.loop.solution import Solution

# Three balls in a row, each overlapping the next two, over the floor on which the first two lie.
BALLS = "".join(
    f'<body pos="{0.05 * k} 0 {0.099 + 0.01 * (k == 2)}"><freejoint/><geom type="sphere" size="0.1" mass="1"/></body>'
    for k in range(3)
)
SCENE = f'<mujoco><worldbody><geom type="plane" size="1 1 1"/>{BALLS}</worldbody></mujoco>'


def resting(law):
    """(problem, solution) of a motion of two states, at each of which the balls overlap."""
    system = System(load_model_from_string(SCENE), 1e-3, contact=law)
    x = np.concatenate([np.asarray(system.model.q_default), np.zeros(18)])
    problem = OptimalControlProblem("balls", system, 2, x, stage_cost=lambda x, u, t: jnp.sum(u**2))
    solution = Solution(
        "balls", "iLQR", "implicit", "RigidContact", Status.solved, True, "", np.zeros(0), 0.0, 0.0, {"dropped_contacts": 1.0},
        {}, 0, 0, 0.0, 0.0, 0, xs=np.stack([x, x, x]), us=np.zeros((2, system.nu)),
    )  # fmt: skip
    return problem, solution


# The balls lie inside of each other, of which their problem warns.
@pytest.mark.filterwarnings("ignore::trajopt.dynamics.start.StartWarning")
@pytest.mark.parametrize(
    ("law", "expected"),
    [
        ({"max_contacts": 2}, r"^2 of 2 steps had up to 3 contacts .* enough would be max_contacts=5 \(now 2\)$"),
        ({"max_contacts": 5, "max_pairs": 1}, r"up to 2 contacts .* enough would be max_pairs=3 \(now 1\)$"),
    ],
)
def test_the_number_named_is_the_smallest_that_fits(law, expected):
    """Five of the six possible contacts of three balls and a floor are closed."""
    problem, solution = resting(RigidContact(**law))
    warning = dropped_warning(problem, solution)
    assert warning is not None and re.search(expected, warning), warning
    name, number = re.findall(r"(max_\w+)=(\d+)", warning)[0]
    for count, dropped in ((int(number), 0), (int(number) - 1, 1)):
        system = System(problem.system.model, 1e-3, contact=RigidContact(**law | {name: count}))
        _, info = system.step(problem.as_state(jnp.asarray(solution.xs[0])), solution.us[0])
        assert int(info.dropped) == dropped


def test_run_prints_it_unless_quiet(request, tmp_path, capsys):
    """Of a problem that reports only a sum: what would suffice."""

    def factory(*, left_out: int = 3):
        return LeastSquaresProblem(
            "toy", lambda x: x - 1.0, np.zeros(1),
            certificate=Certificate(lambda x: {"dropped_contacts": float(left_out)}, {"dropped_contacts": 0.0}),
            display=Display(motion=lambda x: {"t": np.arange(3.0), "u": np.zeros((2, 1)), "impulse": np.zeros((2, 4, 3))}),
        )  # fmt: skip

    problems.register("toy", factory, "an equation")
    request.addfinalizer(lambda: problems.unregister("toy"))
    out = ["--out", str(tmp_path)]
    assert main(["run", "toy", *out]) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(r"trajopt: warning: 3 contacts .* keeps 4 contacts a step: .* 7 is enough .*\n", error), error
    assert main(["run", "toy", *out, "--set", "left_out=0"]) == 0
    assert main(["run", "toy", *out, "--quiet"]) == 1
    assert capsys.readouterr().err == ""
