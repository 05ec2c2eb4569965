"""The losses against values that torch once gave, for machines without torch."""

import pathlib

import chex
import numpy as np
import pytest

from tests.parity.loss_cases import LOSSES, TOLERANCE, golden_cases, ours

PATH = pathlib.Path(__file__).parents[1] / "golden" / "losses.npz"
CASES = golden_cases()


@pytest.fixture(scope="module")
def golden():
    with np.load(PATH) as arrays:
        return dict(arrays)


def flat(case, results):
    return {
        f"{case}/{reduction}/{name}": array
        for reduction, pair in results.items()
        for name, array in zip(("value", "gradient"), pair, strict=True)
    }


def assert_golden(golden, actual):
    expected = {name: golden[name] for name in actual}
    chex.assert_trees_all_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_file_holds_the_cases_and_no_others(golden):
    assert {name.split("/")[0] for name in golden} == {str(case) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_golden(case, golden):
    assert_golden(golden, flat(case, ours(case, *case.batch())))


@pytest.mark.parametrize("loss", [*LOSSES, "ce"])
def test_a_slightly_warmer_softmax_is_seen(loss, golden):
    case = next(case for case in CASES if case.loss == loss)
    logits, labels, weights = case.batch()
    with pytest.raises(AssertionError):
        assert_golden(golden, flat(case, ours(case, logits * 0.999, labels, weights)))
