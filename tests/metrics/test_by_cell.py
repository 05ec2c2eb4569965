"""Percentage errors of a grid of tasks, against loops and hand-made cases."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ntl_jax.metrics import mean_over_cells, operand_digits, read_pairs, scores_by_cell


def test_hand_made_grid():
    questions = ["12*5=", "30*2=", "40*2=", "7*7=", "0*3="]
    cells = [operand_digits(question) for question in questions]
    assert cells == [(2, 1), (2, 1), (2, 1), (1, 1), (1, 1)]
    pairs = read_pairs(["60", "66", "?", "490", "1"], ["60", "60", "80", "49", "0"])
    scores = scores_by_cell(pairs, cells)
    assert list(scores) == [(2, 1), (1, 1)]
    large, small = scores.values()
    assert large == (3, 1 / 3, pytest.approx(1 / 3), 5.0, 5.0, pytest.approx(110 / 3))
    # 0 times 3: no percentage, but an answer that is right or wrong.
    assert small == (2, 0.0, 0.0, 900.0, 900.0, 900.0)
    assert mean_over_cells(scores) == 452.5
    assert mean_over_cells(scores, [(2, 1)]) == 5.0
    assert mean_over_cells(scores, name="number_accuracy") == pytest.approx(1 / 6)


def test_the_median_does_not_follow_one_answer_of_a_wrong_length():
    labels = ["100"] * 9
    scores = scores_by_cell(read_pairs(["101"] * 8 + ["100000"], labels), ["a"] * 9)[
        "a"
    ]
    assert scores.mape > 1e4 and scores.mape_median == 1.0


def test_a_cell_without_a_score_is_none_and_so_is_the_mean():
    scores = scores_by_cell(read_pairs(["?", "1"], ["5", "1"]), ["a", "b"])
    assert scores["a"].mape is None and scores["a"].mape_penalised == 100.0
    assert mean_over_cells(scores) is None
    assert mean_over_cells(scores, ["b"]) == 0.0
    assert mean_over_cells(scores, name="mape_penalised") == 50.0
    zero = scores_by_cell(read_pairs(["1"], ["0"]), ["a"])["a"]
    assert zero[3:] == (None, None, None)


@hypothesis.given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(-50, 50)),
            st.integers(-50, 50),
            st.sampled_from("abc"),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_agrees_with_a_loop(rows):
    guesses = ["?" if guess is None else str(guess) for guess, _, _ in rows]
    pairs = read_pairs(guesses, [str(label) for _, label, _ in rows])
    cells = [cell for *_, cell in rows]
    for cell, found in scores_by_cell(pairs, cells).items():
        inside = [(guess, label) for guess, label, c in rows if c == cell]
        errors = [
            None if guess is None else 100 * abs(guess - label) / abs(label)
            for guess, label in inside
            if label
        ]
        read = [error for error in errors if error is not None]
        assert found.n == len(inside)
        assert found.number_accuracy == np.mean([p == y for p, y in inside])
        if read:
            assert found.mape == pytest.approx(np.mean(read))
            assert found.mape_median == pytest.approx(np.median(read))
        if errors:
            filled = [100.0 if error is None else error for error in errors]
            assert found.mape_penalised == pytest.approx(np.mean(filled))


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("123 * 45", (3, 2)),
        ("What is 1,234 times -5?", (4, 1)),
        ("007 * 0", (1, 1)),
        ("0.0 * 30.0", (1, 2)),
        ("1.5 * 10", (2,)),
        ("1e400 * 2", (401, 1)),
        ("nothing", ()),
    ],
)
def test_digits_of_operands(question, expected):
    assert operand_digits(question) == expected


def test_errors_name_the_numbers():
    pairs = read_pairs(["1"], ["1"])
    with pytest.raises(ValueError, match="2 cells for 1 pairs"):
        scores_by_cell(pairs, ["a", "b"])
    scores = scores_by_cell(pairs, ["a"])
    with pytest.raises(ValueError, match=r"cells \['b'\] are not among \['a'\]"):
        mean_over_cells(scores, ["a", "b"])
    with pytest.raises(ValueError, match="not among"):
        mean_over_cells(scores, [])


def test_paper_compat_has_percentages_of_what_it_reads():
    pairs = read_pairs(["-1,050", "?", "7"], ["1,00", "5", "0"], paper_compat=True)
    assert pairs.percentage.tolist() == [0.0, 0.0, 0.0]  # the label is read as 00
    pairs = read_pairs(["95", "1e-05 20000000000"], ["-100", "5"], paper_compat=True)
    assert pairs.percentage.tolist() == pytest.approx([195.0, 100 * (1e10 - 5) / 5])


def test_huge_numbers_have_finite_percentages():
    pairs = read_pairs(["2e400", "1e9999", "1"], ["1e400", "1", "1e400"])
    found = scores_by_cell(pairs, ["a", "b", "c"])
    assert found["a"].mape == 100.0
    assert found["b"].mape == 1e102  # as far as clipped errors reach, in percent
    assert found["c"].mape == 100.0
