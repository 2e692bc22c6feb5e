"""Settings of the library's problems: every one has a range, and a value outside is answered by its name."""

import inspect
import math

import numpy as np
import pytest

from trajopt import problems
from trajopt.cli import main
from trajopt.errors import OptionError
from trajopt.problems import registry
from trajopt.problems.ranges import Choice, Count, Real, ranged

NUMERIC = [
    (name, key)
    for name in registry.names()
    for key, default in registry.settings(name).items()
    if isinstance(default, int | float)
]
ODD = (0, -1, math.nan, math.inf, "x")
HUGE = {int: 10**30, float: 1e300}


@pytest.mark.check
@pytest.mark.parametrize("name", registry.names())
def test_every_setting_has_a_range_that_its_default_is_in(name):
    ranges = registry.setting_ranges(name)
    assert set(ranges) == set(registry.settings(name))
    for key, default in registry.settings(name).items():
        assert ranges[key].accept(default) == default


@pytest.mark.parametrize(("name", "key"), NUMERIC)
def test_an_odd_number_works_or_is_refused_by_the_name_of_its_setting(name, key, capsys):
    """In Python and on the command line, where the exit status is 2. What is accepted makes a problem."""
    default = registry.settings(name)[key]
    for value in (*ODD, HUGE[type(default)]):
        try:
            problem = problems.get(name, **{key: value})
        except OptionError as error:
            assert f"problem '{name}': setting {key} is {value!r}; expected " in str(error)
            assert main(["run", name, "--set", f"{key}={value}"]) == 2
            assert key in capsys.readouterr().err
        else:
            assert problem.name == name and math.isfinite(value)


@pytest.mark.parametrize("name", [n for n in registry.names() if "contact" in registry.settings(n)])
def test_the_laws_of_a_problem_that_offers_a_choice_are_named(name):
    with pytest.raises(OptionError, match="setting contact is 'hard'; expected one of smoothed"):
        problems.get(name, contact="hard")


@pytest.mark.check
def test_ranges_in_words_and_normal_forms():
    assert str(Count()) == "a whole number, 0 or more" and str(Count(1, 9)) == "a whole number, 1 to 9"
    assert str(Real(0, 2, "m", inside=True)) == "a number, 0 to 2 m, ends excluded"
    assert str(Choice(("a", "b"))) == "one of a, b"
    assert type(Count().accept(np.int64(3))) is int and type(Real(0, 2).accept(1)) is float
    assert Real(0, 2).accept(np.float32(0.5)) == 0.5 and Real(0, 2).accept(2) == 2
    for allowed, value in ((Count(), True), (Count(), 1.0), (Count(2), 1), (Real(0, 2), False), (Real(0, 2, inside=True), 2)):
        with pytest.raises(ValueError):
            allowed.accept(value)


@pytest.mark.check
def test_a_ranged_factory_keeps_its_signature_and_checks_positions_too():
    @ranged(steps=Count(1, 9), speed=Real(0, 2))
    def go_there(steps: int = 3, speed: float = 1.0):
        return steps, speed

    assert list(inspect.signature(go_there).parameters) == ["steps", "speed"]
    assert go_there() == (3, 1.0) and go_there(4, speed=2) == (4, 2.0)
    with pytest.raises(OptionError, match="problem 'go-there': setting steps is 0; expected .* the default is 3"):
        go_there(0)
    with pytest.raises(OptionError, match="settings and ranges differ in pace, speed"):
        ranged(pace=Count())(lambda speed: speed)
