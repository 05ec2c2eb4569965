"""Accuracy after rounding."""

import numpy as np
import pytest

from ntl_jax.metrics.rounded import rounded_accuracy


@pytest.mark.parametrize(
    ("predictions", "targets", "decimals", "share"),
    [
        ([1.0, 2.0], [1.0, 2.0], 2, 1.0),
        ([1.0049, -2.0051], [1.0, -2.0], 2, 0.5),
        ([1.4, 2.6], [1.0, 2.0], 0, 0.5),
        ([0.12], [0.1234], 2, 1.0),
        ([np.inf, -np.inf, np.nan], [1.0, 1.0, 1.0], 2, 0.0),
        ([1e307, 1e16 + 2], [1e307, 1e16], 2, 0.5),
    ],
)
def test_share_that_is_right_once_rounded(predictions, targets, decimals, share):
    got = rounded_accuracy(np.array(predictions), np.array(targets), decimals=decimals)
    assert got == share


def test_what_cannot_be_compared_is_refused():
    one = np.array([1.0])
    with pytest.raises(ValueError, match=r"\(1,\) and targets \(2,\)"):
        rounded_accuracy(one, np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="at least 1"):
        rounded_accuracy(one[:0], one[:0])
    with pytest.raises(ValueError, match="1 targets are not finite"):
        rounded_accuracy(one, np.array([np.nan]))
