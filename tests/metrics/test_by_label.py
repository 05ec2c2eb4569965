"""Errors by label: hand-made cases, sums that must hold, loops over the texts."""

from collections import Counter

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ntl_jax.metrics import (
    NumberPairs,
    digit_accuracy,
    error_histograms,
    error_rates,
    read_pairs,
    wilson_interval,
)

LABELS = ["0", "1", "9", "10", "19", "20", "100", "-10", "-9", "1e3", "12.9", "1.0"]


def test_types_of_labels():
    rates = error_rates(read_pairs(LABELS, LABELS))
    assert {name: rate.n for name, rate in rates.items()} == {
        "all": 12,
        "ends_in_0": 6,  # 0, 10, 20, 100, -10, 1000
        "ends_in_9": 3,  # 9, 19, -9: 12.9 is not whole
        "power_of_ten": 3,  # 10, 100, 1000
        "power_of_ten_or_1": 5,
    }
    assert all(rate.exact.value == 1.0 for rate in rates.values())


def test_which_way_answers_miss():
    predictions = ["1", "1", "8", "?", "-20", "20", "99.9", "-11", "-8", "1001", "13"]
    rates = error_rates(read_pairs([*predictions, "?"], LABELS))
    counts = {
        name: [round(share.value * rate.n) for share in rate[1:]]
        for name, rate in rates.items()
    }
    assert counts == {  # exact, over, under, unparsable
        "all": [2, 4, 4, 2],
        "ends_in_0": [1, 2, 2, 1],
        "ends_in_9": [0, 1, 2, 0],
        "power_of_ten": [0, 1, 1, 1],
        "power_of_ten_or_1": [1, 1, 1, 2],
    }
    assert rates["all"].over == wilson_interval(4, 12)


def test_no_label_of_a_kind_has_no_rate():
    rates = error_rates(read_pairs(["5"], ["5"]))
    assert rates["ends_in_9"] == (0, None, None, None, None)


def test_own_types_and_confidence():
    pairs = read_pairs(["3", "5"], ["4", "5"])
    rates = error_rates(pairs, types={"even": lambda y: y % 2 == 0}, confidence=0.5)
    assert rates["even"].under == wilson_interval(1, 1, confidence=0.5)
    assert list(rates) == ["all", "even"]


PAIRS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-300, 300), st.decimals(-99, 99, places=1)),
        st.one_of(st.integers(-300, 300), st.decimals(-99, 99, places=1)),
    ),
    min_size=1,
    max_size=30,
)


def _pairs(numbers):
    guesses = ["?" if guess is None else str(guess) for guess, _ in numbers]
    return read_pairs(guesses, [str(label) for _, label in numbers])


@hypothesis.given(PAIRS)
def test_the_four_rates_add_up(numbers):
    for rate in error_rates(_pairs(numbers)).values():
        if rate.n:
            assert sum(share.value for share in rate[1:]) == pytest.approx(1.0)


@hypothesis.given(PAIRS, st.integers(0, 12))
def test_histograms_hold_every_whole_label_once(numbers, limit):
    pairs = _pairs(numbers)
    found = error_histograms(pairs, limit=limit)
    assert found.counts.shape == (10, 2 * limit + 1)
    assert found.centres.tolist() == list(range(-limit, limit + 1))
    expected = Counter()
    for guess, label in numbers:
        if label != int(label):
            continue
        last = int(str(abs(int(label)))[-1])
        bin_ = None
        if guess is not None:
            bin_ = int(np.floor(float(guess - label) + 0.5))
            bin_ = max(-limit - 1, min(bin_, limit + 1))
        expected[last, bin_] += 1
    for last in range(10):
        row = dict(zip(found.centres, found.counts[last], strict=True))
        row |= {-limit - 1: found.below[last], limit + 1: found.above[last]}
        row |= {None: found.unparsable[last]}
        assert row == {bin_: expected[last, bin_] for bin_ in row}


def test_bins_of_the_figure():
    predictions = ["9", "9.4", "9.5", "20", "21", "-1", "-2", "?", "1e300"]
    found = error_histograms(read_pairs(predictions, ["9"] * 9))
    row = dict(zip(found.centres.tolist(), found.counts[9].tolist(), strict=True))
    assert {bin_: n for bin_, n in row.items() if n} == {
        0: 2,
        1: 1,
        11: 1,
        -10: 1,
        -11: 1,
    }
    assert (found.below[9], found.above[9], found.unparsable[9]) == (0, 2, 1)
    with pytest.raises(ValueError, match="negative, got -1"):
        error_histograms(read_pairs(["1"], ["1"]), limit=-1)


def _digits(predictions, references, **options):
    scores = digit_accuracy(read_pairs(predictions, references), **options)
    return {place: (s.n, s.accuracy.value) for place, s in scores.items()}


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("347", "347", {2: 1, 1: 1, 0: 1}),
        ("352", "347", {2: 1, 1: 0, 0: 0}),
        ("-347", "347", {2: 1, 1: 1, 0: 1}),  # signs are another matter
        ("47", "347", {2: 0, 1: 1, 0: 1}),  # aligned at the units
        ("3470", "347", {2: 0, 1: 0, 0: 0}),
        ("1347", "347", {2: 1, 1: 1, 0: 1}),
        ("?", "347", {2: 0, 1: 0, 0: 0}),
        ("12.5", "12.50", {1: 1, 0: 1, -1: 1, -2: 1}),
        ("12", "12.34", {1: 1, 0: 1, -1: 0, -2: 0}),
        ("0.05", "0.05", {0: 1, -1: 1, -2: 1}),
        ("0", "0", {0: 1}),
        ("7", "0", {0: 0}),
        ("005", "5", {0: 1}),
        ("12,345", "12345", {4: 1, 3: 1, 2: 1, 1: 1, 0: 1}),
        ("1200", "1.2e3", {3: 1, 2: 1, 1: 1, 0: 1}),
        ("5/4", "1.25", {0: 1, -1: 1, -2: 1}),
        ("370/3", "123.33", {2: 1, 1: 1, 0: 1, -1: 1, -2: 1}),
        ("1.25", "5/4", {}),  # a fraction has no places
    ],
)
def test_digits_by_place(prediction, reference, expected):
    found = _digits([prediction], [reference])
    assert found == {place: (1, float(hit)) for place, hit in expected.items()}


def test_places_may_be_chosen_and_huge_numbers_cost_nothing():
    assert _digits(["12345"], ["12355"], places=range(1, 3)) == {2: (1, 1), 1: (1, 0)}
    assert _digits(["1e9999"], ["1e9999"], places=range(9998, 10001)) == {
        9999: (1, 1.0),
        9998: (1, 1.0),
    }


@hypothesis.given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=9
    )
)
def test_digits_agree_with_a_loop_over_text(numbers):
    expected = {}
    for guess, label in numbers:
        text = str(label)[::-1]
        other = str(guess)[::-1].ljust(len(text), "0")
        for place, digit in enumerate(text):
            expected.setdefault(place, []).append(digit == other[place])
    guesses, labels = zip(*((str(p), str(y)) for p, y in numbers), strict=True)
    found = _digits(guesses, labels)
    assert found == {
        place: (len(hits), pytest.approx(np.mean(hits)))
        for place, hits in expected.items()
    }


def test_an_answer_that_changes_is_seen():
    labels = ("10", "29", "35")
    same = read_pairs(labels, labels)
    other = NumberPairs(same.labels, (*same.guesses[:2], same.labels[0]))
    assert error_rates(same) != error_rates(other)
    assert digit_accuracy(same) != digit_accuracy(other)
    assert (error_histograms(same).counts != error_histograms(other).counts).any()
