"""The examples that ship: their recordings are those that are simulated from seed 0, and identification finds what made them."""

import numpy as np
import pytest

from trajopt.errors import UnknownNameError
from trajopt.estimation import examples, identify


@pytest.mark.slow
def test_what_ships_is_what_is_simulated():
    shipped, made = examples.example("sliding-box"), examples.simulate("sliding-box", 0, 2)
    assert len(shipped.recordings) == 10
    for one, other in zip(shipped.recordings[:2], made.recordings):
        assert one.name == other.name
        np.testing.assert_allclose(one["pose"].values, other["pose"].values, atol=1e-8)
    np.testing.assert_allclose(shipped.truth, made.truth)


def test_examples_that_are_not_there():
    with pytest.raises(UnknownNameError, match="no example 'sliding_box'; did you mean 'sliding-box'"):
        examples.example("sliding_box")


@pytest.mark.slow
def test_friction_of_the_sliding_box():
    example = examples.example("sliding-box")
    fit = identify(example.system, example.recordings, example.parameters, example.sensors)
    assert fit.method == "gauss-newton" and fit.reason == "no impact in the predicted motions"
    assert abs(fit.values[0] - example.truth[0]) < 4 * fit.deviations[0] < 0.01


@pytest.mark.slow
def test_first_states_begin_on_their_contacts():
    """Noise puts first poses into the floor or above it; from there recordings end in local minima, and the friction at
    5 deviations from the truth."""
    box = examples.simulate("sliding-box", 9)
    fit = identify(box.system, box.recordings, box.parameters, box.sensors)
    assert max(fit.recording_chi_squared.values()) < 1.7
    assert abs(fit.values[0] - box.truth[0]) < 3 * fit.deviations[0] < 0.005


@pytest.mark.slow
def test_inertial_parameters_of_an_arm():
    """50 inertial parameters, delay and gain of a UR5 that starts 10 % off: fitted to the noise, intervals that hold."""
    example = examples.simulate("arm", 0)
    fit = identify(example.system, example.recordings, example.parameters, example.sensors)
    assert fit.converged and 0.8 < fit.chi_squared["q"] < 1.25
    errors = ((fit.values - example.truth) / fit.deviations)[np.isfinite(fit.deviations)]
    assert errors.size >= 8 and np.mean(np.abs(errors) < 2) > 0.8
