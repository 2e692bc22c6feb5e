"""Terms of one's own beside those of the library, and what is refused about terms and options before anything is compiled."""

import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import load_model
from trajopt.control import RecedingHorizon
from trajopt.dynamics import CompliantContact, GradientOptions, NoContact, RigidContact, System
from trajopt.errors import OptionError, ShapeError
from trajopt.problems import JointTargets, LeastSquaresProblem, OptimalControlProblem
from trajopt.problems import residuals as r
from trajopt.solvers import (
    CEM,
    CMAES,
    DDP,
    LBFGS,
    MPPI,
    GaussNewton,
    GradientDescent,
    Hybrid,
    MultipleShooting,
    SingleShooting,
    StochasticSearch,
    iLQR,
    solve,
)

pytestmark = pytest.mark.check


def cart(stage, **more) -> OptimalControlProblem:
    system = System(load_model("cart-pole"), 0.05, NoContact())
    return OptimalControlProblem("cart", system, 10, system.initial_state(), u0=np.zeros(1), stage_residual=stage, **more)


def leaning(x, u, t):
    return jnp.stack([0.3 * (x.q[1] - 0.2), t * x.v[0]])


def upright(x):
    return 2.0 * (x.q[1:] - 0.2)


def test_own_functions_as_terms():
    """The same cost as a function of all rows; each term has its share, in the report under the function's name."""
    terms = cart(sum([r.Control(weight=0.1), leaning]), terminal_residual=r.Velocity(weight=0.5) + upright)
    plain = cart(
        lambda x, u, t: jnp.concatenate([0.1 * u, leaning(x, u, t)]),
        terminal_residual=lambda x: jnp.concatenate([0.5 * x.v, upright(x)]),
    )
    found, expected = (solve(problem, iLQR()) for problem in (terms, plain))
    assert found.success and abs(found.cost - expected.cost) < 1e-9
    assert set(found.terms) == {"control", "leaning", "terminal velocity", "terminal upright"}
    assert abs(sum(found.terms.values()) - found.cost) < 1e-9 and min(found.terms.values()) > 0


def test_ways_to_add_a_function():
    both = leaning + r.Control()
    assert [term.label for term in both.terms] == ["leaning", "control"]
    assert [term.label for term in (r.Control() + leaning + upright).terms] == ["control", "leaning", "upright"]
    assert [term.label for term in (r.Control() + (lambda x, u, t: u)).terms] == ["control", "lambda"]
    assert [term.label for term in sum([r.Control(), r.Velocity()]).terms] == ["control", "velocity"]
    weighted = r.Function(leaning, weight=2.0, name="lean")
    problem = cart(r.Control() + weighted)
    assert solve(problem.replace(weights={"lean": 0.0}), iLQR()).terms["lean"] == 0.0


def test_what_cannot_be_added():
    with pytest.raises(OptionError, match="3.0 is added to residuals; expected a residual, or a function"):
        r.Control() + 3.0
    with pytest.raises(OptionError, match="two terms 'leaning'; give them names"):
        cart(r.Control() + leaning + leaning)
    with pytest.raises(OptionError, match=r"cannot be called .*term 'tip' returned shape \(\); expected a flat array"):
        cart(r.Control() + r.Function(lambda x, u, t: x.q[1], name="tip"))


def test_a_negative_weight():
    for weight in (-1.0, [0.5, -1.0], np.array([[1.0], [-2.0]])):
        with pytest.raises(OptionError, match="term 'velocity': weight has the negative entry -[12]"):
            cart(r.Control() + r.Velocity(weight=weight))
    problem = cart(r.Control(), inequality=r.Height("pole", weight=2.0, name="low").at_least(-1.0))
    with pytest.raises(OptionError, match="term 'low': weight has the negative entry"):
        problem.replace(weights={"low": -1.0})


def test_another_weight_keeps_the_side_of_an_inequality():
    problem = cart(r.Control(), inequality=r.Velocity(["cart"], name="slow").at_least(0.3))
    other = problem.replace(weights={"slow": 2.0})
    x, u, p = jnp.array([0.0, 0.0, 0.1, 0.0]), jnp.zeros(1), jnp.zeros(0)
    np.testing.assert_allclose(problem.stage("inequality", x, u, 0.0, p), [0.2], atol=1e-12)
    np.testing.assert_allclose(other.stage("inequality", x, u, 0.0, p), [0.4], atol=1e-12)


def test_a_reference_of_some_joints_says_which_entries_count():
    arm = System(load_model("ur5"), 0.02, NoContact())
    with pytest.raises(ShapeError, match=r"expected \(6,\), .*as long as all of q, .* are read: 'elbow_joint' \[2\]"):
        OptimalControlProblem("arm", arm, 2, arm.initial_state(), stage_residual=r.Posture(["elbow_joint"], reference=[0.4]))
    dog = System(load_model("go1"), 1e-3, RigidContact())
    base = dog.model.topology.joints[0].name
    with pytest.raises(ShapeError, match=rf"as long as all of v, .* are read: '{base}' \[0:6\]"):
        OptimalControlProblem("dog", dog, 2, dog.initial_state("home"), stage_residual=r.Velocity([base], reference=np.zeros(2)))


@pytest.mark.parametrize("tolerance", [None, 1.5])
def test_a_fit_without_tolerance_speaks_of_none(tolerance):
    problem = LeastSquaresProblem("mean", lambda x: jnp.stack([x[0] - 1.0, x[0] - 3.0]), np.zeros(1), tolerance=tolerance)
    answer = solve(problem, GaussNewton())
    assert answer.success and abs(answer.x[0] - 2.0) < 1e-6
    assert ("tolerance" in answer.message) == (tolerance is not None)
    if tolerance is None:
        assert answer.message.startswith("solved: the cost can no longer be reduced")


MISSPELT = [
    (iLQR, "max_iter", "max_iterations"), (DDP, "regularisaton", "regularisation"), (GaussNewton, "max_iter", "max_iterations"),
    (LBFGS, "tol", "tolerance"), (GradientDescent, "optimiser", "optimizer"), (SingleShooting, "optimiser", "optimizer"),
    (MultipleShooting, "toleranc", "tolerance"), (CEM, "popultion", "population"), (MPPI, "temprature", "temperature"),
    (CMAES, "population_size", "population"), (StochasticSearch, "sharpnes", "sharpness"), (Hybrid, "sampling", "sampler"),
    (RigidContact, "max_contact", "max_contacts"),
    (CompliantContact, "stifness", "stiffness"), (GradientOptions, "sample", "samples"), (JointTargets, "stiff", "stiffness"),
    (r.Posture, "wieght", "weight"), (r.Saturated, "scal", "scale"), (System, "contct", "contact"),
    (OptimalControlProblem, "control_lowr", "control_lower"), (RecedingHorizon, "perod", "period"),
]  # fmt: skip


@pytest.mark.parametrize("kind, given, meant", MISSPELT, ids=lambda value: getattr(value, "__name__", None))
def test_a_misspelt_option_gets_the_closest_name(kind, given, meant):
    said = f"{kind.__name__} got an unexpected keyword argument '{given}'; did you mean .*'{meant}'"
    with pytest.raises(OptionError, match=said):
        kind(**{given: 3})
