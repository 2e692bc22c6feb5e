"""The range of an option: its ends, NaN, and the words of the error."""

import numpy as np
import pytest

from trajopt.errors import OptionError
from trajopt.options import check_range


@pytest.mark.parametrize(
    "interval, within, outside, words",
    [
        ("(0, inf)", (1e-300, 5, None), (0.0, -1.0, np.nan), "must be positive"),
        ("[1, inf)", (1, [1.0, 2.0]), (0, [0.5, 2.0]), "must be at least 1"),
        ("(1, 2]", (1.5, 2), (1.0, 2.1, np.inf), "must be above 1 and at most 2"),
        ("[0, 1)", (0, 0.99), (1.0, -0.1), "must be at least 0 and below 1"),
        ("[0, inf)", (0.0,), (np.inf,), "must be at least 0 and finite"),
    ],
)
def test_what_is_in_a_range(interval, within, outside, words):
    for value in within:
        check_range("", "width", value, interval)
    for value in outside:
        with pytest.raises(OptionError, match=f"width is .*; it {words}"):
            check_range("", "width", value, interval)
