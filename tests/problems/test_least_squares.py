"""The least-squares problem: validation, gradient modes, priors, and the library's registry."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajopt import problems
from trajopt.dynamics.gradients.differences import central_differences, ridders
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.problems import LeastSquaresProblem, Prior


def smooth(x):
    return jnp.stack([jnp.sin(3 * x[0]) * x[1], jnp.exp(x[1]), x[0] * x[1] ** 3])


def smooth_jacobian(x):
    return np.array(
        [
            [3 * np.cos(3 * x[0]) * x[1], np.sin(3 * x[0])],
            [0.0, np.exp(x[1])],
            [x[1] ** 3, 3 * x[0] * x[1] ** 2],
        ]
    )


X = np.array([0.7, -0.4])


@pytest.mark.parametrize(
    ("gradient", "error"),
    # Central differences with h = eps^(1/3) err by about eps^(2/3) = 4e-11 times third derivatives of order 27;
    # Ridders' extrapolation from h = 1e-2 reaches rounding over h, 1e-13.
    [("implicit", 1e-15), ("finite-difference", 1e-9), ("ridders", 1e-12)],
)
def test_jacobians_against_the_closed_form(gradient, error):
    oracle = LeastSquaresProblem("smooth", smooth, X).compile(gradient)
    r, J = oracle.linearize(X)
    np.testing.assert_allclose(r, smooth(jnp.asarray(X)), rtol=1e-15)
    np.testing.assert_allclose(J, smooth_jacobian(X), rtol=0, atol=error)
    assert oracle.compile_time_s > 0


def test_any_field_of_a_problem_can_be_replaced():
    problem = LeastSquaresProblem("sum", lambda x: x, np.zeros(2), scale=2.0, lower=-1.0)
    for field in dataclasses.fields(problem):
        if field.init and field.name not in ("_", "arguments"):
            assert dataclasses.replace(problem, **{field.name: getattr(problem, field.name)}).dimension == 2
    longer = dataclasses.replace(problem, x0=np.ones(3))
    assert longer.dimension == 3 and longer.scale.tolist() == [2.0] * 3 and longer.lower.tolist() == [-1.0] * 3
    assert dataclasses.replace(longer, upper=[2.0] * 3).upper.tolist() == [2.0] * 3
    curved = dataclasses.replace(problem, lower=None, integrate=lambda x, dx: x + dx)
    assert curved.integrate is not None and not curved.bounded


def test_reverse_mode_is_used_for_many_variables_and_agrees():
    A = np.random.default_rng(0).normal(size=(2, 30))
    problem = LeastSquaresProblem("wide", lambda x: jnp.asarray(A) @ jnp.sin(x), np.zeros(30))
    x = np.linspace(-1, 1, 30)
    np.testing.assert_allclose(problem.compile().linearize(x)[1], A * np.cos(x), rtol=1e-13)


def test_difference_quotients_converge_at_their_order():
    """Halving the step of a central difference quarters its error."""
    x = jnp.asarray(X)
    f = lambda d: smooth(x + d)  # noqa: E731
    errors = [np.abs(central_differences(f, jnp.full(2, h)) - smooth_jacobian(X)).max() for h in (2e-2, 1e-2)]
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=1e-2)
    # A large first step loses nothing: extrapolation in powers of h^2 reaches rounding over h, 1e-14.
    assert np.abs(ridders(f, jnp.full(2, 0.2)) - smooth_jacobian(X)).max() < 3e-14


def test_a_given_jacobian_is_used_and_its_shape_checked():
    given = LeastSquaresProblem("given", smooth, X, jacobian=lambda x: (smooth(x), jnp.full((3, 2), 7.0)))
    assert np.all(given.compile().linearize(X)[1] == 7.0)
    wrong = LeastSquaresProblem("wrong", smooth, X, jacobian=lambda x: (smooth(x), jnp.ones((2, 3))))
    with pytest.raises(ShapeError, match=r"jacobian\(x\) returned shapes \(3,\) and \(2, 3\); expected \(m,\) and"):
        wrong.compile()


@pytest.mark.parametrize("given", [False, True])
def test_a_prior_adds_its_rows(given):
    covariance = np.array([[2.0, 0.3], [0.3, 0.5]])
    mean = np.array([0.1, 0.2])
    jacobian = (lambda x: (smooth(x), jax.jacfwd(smooth)(x))) if given else None
    problem = LeastSquaresProblem("prior", smooth, X, jacobian=jacobian, prior=Prior(mean, covariance=covariance))
    r, J = problem.compile().linearize(X)
    assert r.shape == (5,) and J.shape == (5, 2)
    expected = (X - mean) @ np.linalg.solve(covariance, X - mean)
    assert r[3:] @ r[3:] == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(J[3:].T @ J[3:], np.linalg.inv(covariance), rtol=1e-12)


def angle_problem(**options):
    """Points of the circle as angles in the tangent, stored as (cos, sin)."""

    def integrate(x, d):
        return jnp.stack([x[0] * jnp.cos(d[0]) - x[1] * jnp.sin(d[0]), x[1] * jnp.cos(d[0]) + x[0] * jnp.sin(d[0])])

    def difference(a, b):
        return jnp.arctan2(a[0] * b[1] - a[1] * b[0], a[0] * b[0] + a[1] * b[1])[None]

    return LeastSquaresProblem(
        "circle",
        lambda x: x[1:],
        np.array([1.0, 0.0]),
        integrate=integrate,
        difference=difference,
        tangent_size=1,
        **options,
    )


@pytest.mark.parametrize("gradient", problems.least_squares.GRADIENTS)
def test_tangent_coordinates(gradient):
    prior = Prior(np.array([0.0, 1.0]), sqrt_information=np.array([[2.0]]))
    oracle = angle_problem(prior=prior).compile(gradient)
    angle = 0.3
    x = np.array([np.cos(angle), np.sin(angle)])
    r, J = oracle.linearize(x)
    np.testing.assert_allclose(r, [np.sin(angle), 2 * (angle - np.pi / 2)], rtol=1e-14)
    np.testing.assert_allclose(J, [[np.cos(angle)], [2.0]], atol=1e-9)
    np.testing.assert_allclose(oracle.move(x, np.array([0.2])), [np.cos(0.5), np.sin(0.5)], rtol=1e-14)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"x0": np.zeros((2, 2))}, ShapeError, r"x0 has shape \(2, 2\)"),
        ({"x0": np.array([0.0, np.inf])}, NonFiniteError, r"x0\[1\] is inf; it must be finite"),
        ({"lower": np.zeros(3)}, ShapeError, r"lower has shape \(3,\); expected \(2,\)"),
        ({"lower": [0.0, np.nan]}, NonFiniteError, r"lower\[1\] is nan"),
        ({"lower": 1.0, "upper": 0.0}, OptionError, r"lower\[0\] = 1.0 is above upper\[0\] = 0.0"),
        ({"upper": 0.5}, OptionError, r"x0\[0\] = 0.7 is outside its bounds \[-inf, 0.5\]"),
        ({"scale": [1.0, 0.0]}, OptionError, r"scale\[1\] is 0.0; it must be positive"),
        ({"tolerance": -1.0}, OptionError, "tolerance is -1.0"),
        ({"tangent_size": 1}, OptionError, "give `integrate`"),
        ({"residual": lambda x: x[0]}, ShapeError, r"residual\(x\) returned .*expected a flat array"),
        ({"prior": Prior(np.zeros(2))}, OptionError, "either covariance or sqrt_information"),
        ({"prior": Prior(np.zeros(2), covariance=-np.eye(2))}, OptionError, "must be positive definite"),
        ({"prior": Prior(np.zeros(3), covariance=np.eye(2))}, ShapeError, r"prior.mean has shape \(3,\)"),
        ({"prior": Prior(np.zeros(2), sqrt_information=np.eye(3))}, ShapeError, r"prior weight has shape \(3, 3\)"),
        ({"integrate": lambda x, d: x + d, "lower": 0.0}, OptionError, "bounds need plain addition"),
        (
            {"integrate": lambda x, d: x + d, "prior": Prior(np.zeros(2), covariance=np.eye(2))},
            OptionError,
            "needs `difference`",
        ),
    ],
)
def test_what_is_wrong_is_named(options, error, match):
    arguments = {"residual": smooth, "x0": X} | options
    with pytest.raises(error, match=match) as caught:
        LeastSquaresProblem("bad", **arguments)
    assert "problem 'bad'" in str(caught.value) or "prior" in str(caught.value)


def test_unknown_gradient_modes_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'implicit'"):
        LeastSquaresProblem("smooth", smooth, X).compile("implicite")


@pytest.fixture
def toy():
    """A registered problem with settings of several kinds."""

    def factory(*, mass: float = 1.0, steps: int = 3, pose: str = "stand", offset: tuple = (0.0, 0.0), on: bool = True):
        return LeastSquaresProblem("toy", lambda x: mass * x, np.ones(steps), meta={"pose": pose, "on": str(on)})

    problems.register("toy", factory, "a test")
    yield "toy"
    problems.unregister("toy")


def test_only_registered_problems_can_be_taken_out(toy):
    with pytest.raises(OptionError, match="'go1-stand' belongs to the library"):
        problems.unregister("go1-stand")
    with pytest.raises(UnknownNameError, match="there is no problem 'toyy'; did you mean 'toy'"):
        problems.unregister("toyy")


def test_settings_reach_the_factory(toy):
    assert "toy" in problems.names()
    assert problems.get(toy).x0.size == 3
    values = problems.parse_settings(toy, ["mass=2", "steps=5", "pose=hand stand", "offset=(1, 2)", "on=false"])
    assert values == {"mass": 2.0, "steps": 5, "pose": "hand stand", "offset": (1, 2), "on": False}
    assert isinstance(values["mass"], float)
    assert problems.get(toy, **values).meta == {"pose": "hand stand", "on": "False"}


@pytest.mark.parametrize(
    ("assignment", "error", "match"),
    [
        ("masss=2", UnknownNameError, "did you mean 'mass'"),
        ("mass", OptionError, "expected KEY=VALUE"),
        ("mass=heavy", OptionError, "'mass' of problem 'toy' is 'heavy'; expected float, such as 1.0"),
        ("steps=2.5", OptionError, "expected int"),
        ("steps=True", OptionError, "expected int"),
        ("on=3", OptionError, "expected bool"),
    ],
)
def test_bad_settings_are_named(toy, assignment, error, match):
    with pytest.raises(error, match=match):
        problems.parse_settings(toy, [assignment])


def test_unknown_problems_and_settings(toy):
    with pytest.raises(UnknownNameError, match="there is no problem 'go1-stnd'; did you mean 'go1-stand'"):
        problems.get("go1-stnd")
    with pytest.raises(UnknownNameError, match="no setting 'masss'"):
        problems.get(toy, masss=1)
    with pytest.raises(OptionError, match="already registered"):
        problems.register(toy, lambda: None, "again")


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..", ".hidden", "", "a\\b", "a\nb", "x" * 101, "-x", 3])
def test_a_name_that_leads_out_of_the_folder_of_runs_is_refused(name):
    with pytest.raises(OptionError, match="the name of the problem is .*a folder of this name"):
        problems.register(name, lambda: None, "elsewhere")
    assert name not in problems.names()
