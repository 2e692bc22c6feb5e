"""Likely first mistakes are answered by the argument, what was received and what helps, before anything is compiled."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import control, load_model, solvers
from trajopt.dynamics import NoContact, System
from trajopt.errors import OptionError, ShapeError, UnknownNameError
from trajopt.problems import LeastSquaresProblem, OptimalControlProblem

SYSTEM = System(load_model("cart-pole"), 0.05, NoContact())


def problem(**functions):
    return OptimalControlProblem("p", SYSTEM, 20, SYSTEM.initial_state(), stage_residual=lambda x, u, t: u, **functions)


@pytest.mark.parametrize(
    "mistake, error, words",
    [
        (lambda: solvers.get("ilqrr"), UnknownNameError, "there is no solver 'ilqrr'; did you mean 'iLQR'"),
        (lambda: solvers.solve(SYSTEM), OptionError, "problem is a System; expected an OptimalControlProblem or"),
        (lambda: solvers.solve(problem(), max_iteration=3), OptionError, "'max_iteration'; did you mean 'max_iterations'"),
        (lambda: problem(stage_cost=lambda x, u, t: u), ShapeError, r"stage_cost returned shape \(1,\) of .*expected a scalar"),
        (lambda: problem(terminal_residual=lambda x: x.q[0]), ShapeError, "expected a flat array, such as jnp.stack"),
        (lambda: problem(terminal_residual=lambda x: x[0]), OptionError, "a State has the fields q and v"),
        (lambda: problem(terminal_residual=lambda x: np.sin(x.q)), OptionError, "write it with jax.numpy in place of numpy"),
        (lambda: SYSTEM.step(jnp.zeros(4), jnp.zeros(1)), ShapeError, r"expected a State\(q, v\): State\(x\[:2\], x\[2:\]\)"),
        (lambda: load_model(3), OptionError, "name_or_path is 3; expected a bundled model's name"),
        (lambda: control.MujocoPlant.from_file("none.xml"), OptionError, "path is 'none.xml': no such file"),
        (lambda: LeastSquaresProblem("l", lambda x: x.sum(), np.zeros(2)), ShapeError, r"returned shape \(\) of float64"),
    ],
)  # fmt: skip
def test_a_first_mistake_is_named_with_its_remedy(mistake, error, words):
    with pytest.raises(error, match=words):
        mistake()
