"""The losses against values that torch once gave, for machines without torch."""

import pathlib

import chex
import numpy as np
import pytest

from tests.parity.jax_losses import ours
from tests.parity.loss_cases import AXES, HALF_ULP, TOLERANCE, quick_cases

PATH = pathlib.Path(__file__).parents[1] / "golden" / "losses.npz"
CASES = quick_cases()


@pytest.fixture(scope="module")
def golden():
    with np.load(PATH) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def results():
    """Our side of the cases, compiled as one program."""
    return dict(zip(CASES, ours(CASES), strict=True))


def assert_golden(golden, case, actual):
    rtol = TOLERANCE if case.dtype == "float32" else HALF_ULP
    for name, array, tolerance in zip(
        ("value", "gradient"), actual, (TOLERANCE, rtol), strict=True
    ):
        array = array.astype(np.float32)
        expected = golden[f"{case}/{name}"]
        chex.assert_trees_all_close(array, expected, rtol=tolerance, atol=TOLERANCE)


def test_the_file_holds_the_cases_and_no_others(golden):
    assert {name.split("/")[0] for name in golden} == {str(case) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_golden(case, golden, results):
    assert_golden(golden, case, results[case])


def test_a_slightly_warmer_softmax_is_seen(golden):
    losses = [*AXES["loss"], "ce", "ce+was"]
    cases = [next(case for case in CASES if case.loss == loss) for loss in losses]
    for case, actual in zip(cases, ours(cases, warmth=0.99), strict=True):
        with pytest.raises(AssertionError):
            assert_golden(golden, case, actual)
