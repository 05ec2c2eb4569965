"""Products of numbers of three digits: every pair once, and what is held out."""

import numpy as np
import pytest

from train.config import DataConfig
from train.data import DataError, load_splits
from train.data.arithmetic import three_digit_pairs, three_digit_products

SIZES = {"train": 780_000, "validation": 10_000, "test": 20_000}


@pytest.fixture(scope="module", params=[False, True], ids=["ours", "paper"])
def pairs(request):
    """i64[N, 2] of every set, and whether they are in the paper's form."""
    return three_digit_pairs(seed=3, paper_form=request.param), request.param


def test_every_pair_is_in_one_set(pairs):
    sets, _ = pairs
    assert {name: len(part) for name, part in sets.items()} == SIZES
    both = np.concatenate(list(sets.values()))
    assert both.min() == 100 and both.max() == 999
    assert len(np.unique(both[:, 0] * 1000 + both[:, 1])) == 900**2


def test_what_training_shows_of_the_held_out_products(pairs):
    sets, paper_form = pairs
    key = {name: part @ [1000, 1] for name, part in sets.items()}
    for name in ("validation", "test"):
        a, b = sets[name].T
        in_training = np.isin(b * 1000 + a, key["train"])
        if paper_form:
            assert 0.9 < in_training.mean() < 0.99
        else:
            assert not in_training.any()
        squares = (a == b).mean()
        assert 0.0003 < squares < 0.002  # 1 in 900 of all


def test_the_papers_form_holds_out_the_largest_operands(pairs):
    sets, paper_form = pairs
    ordered = {name: np.sort(part @ [1000, 1]) for name, part in sets.items()}
    last = 999_999
    blocks = {"test": (994_000, 5_000), "validation": (991_000, 3_000)}
    for name, (low, least) in blocks.items():
        held_out = (ordered[name] >= low).sum()
        assert (held_out >= least) == paper_form
    assert (last in ordered["train"]) <= (not paper_form)
    assert (ordered["train"].max() < 991_700) == paper_form


def test_rows_are_the_pairs_in_words(pairs):
    sets, paper_form = pairs
    rows = three_digit_products(seed=3, paper_form=paper_form)
    for name, part in sets.items():
        assert len(rows[name]) == len(part)
        for (a, b), row in zip(part[:200].tolist(), rows[name], strict=False):
            question = f"What is {a} times {b}?"
            assert row == {"question": question, "answer": str(a * b)}


def test_splits_by_config():
    splits = load_splits(DataConfig(name="three_digits", train_size=70, eval_size=9))
    assert len(splits.train) == 70
    assert {name: len(rows) for name, rows in splits.evaluation.items()} == {
        "validation": 9,
        "test": 9,
    }
    first, repeated, other = (
        three_digit_pairs(seed=seed)["test"] for seed in (0, 0, 1)
    )
    assert (first == repeated).all() and (first != other).any()
    with pytest.raises(DataError, match=r"--data\.paper-form is for gsm8k, mul"):
        load_splits(DataConfig(name="arithmetic", paper_form=True))
    with pytest.raises(DataError, match=r"size is 780001, but three_digits has"):
        load_splits(DataConfig(name="three_digits", train_size=780_001))
