"""Products by cell: sizes, what is held out, and what a seed fixes."""

import collections

import pytest

from train.config import DataConfig
from train.data import DataError, load_splits
from train.data.arithmetic import cells, multiplication_test, multiplication_train


def operands(row):
    return tuple(row["question"].removesuffix("=").split("*"))


def test_a_test_cell_holds_five_hundred_or_a_fifth():
    sizes = {cell: len(multiplication_test(cell, seed=0)) for cell in cells(6)}
    assert sizes[1, 1] == 81 // 5 and sizes[1, 2] == sizes[2, 1] == 810 // 5
    assert {size for cell, size in sizes.items() if sum(cell) > 3} == {500}


@pytest.mark.parametrize("cell", [(1, 1), (1, 3), (2, 2), (5, 6)])
def test_rows_are_different_products_of_their_cell(cell):
    rows = multiplication_test(cell, seed=3)
    for row in rows:
        a, b = operands(row)
        assert (len(a), len(b)) == cell and a[0] != "0" and b[0] != "0"
        assert int(a) * int(b) == int(row["answer"])
    assert len({operands(row) for row in rows}) == len(rows)


def test_training_never_shows_a_test_row_and_fills_cells_alike():
    rows = multiplication_train(20_000, digits=2, seed=1)
    shown = collections.Counter(operands(row) for row in rows)
    for cell in cells(2):
        held_out = {operands(row) for row in multiplication_test(cell, seed=1)}
        assert not held_out & shown.keys()
        assert not {pair[::-1] for pair in held_out} & shown.keys()
        size = sum(n for (a, b), n in shown.items() if (len(a), len(b)) == cell)
        assert abs(size - 5_000) < 300
    # All that is not held out in either order occurs, in the smallest cell.
    held_out = {operands(row) for row in multiplication_test((1, 1), seed=1)}
    held_out |= {pair[::-1] for pair in held_out}
    assert 16 < len(held_out) <= 32
    small = {pair for pair in shown if tuple(map(len, pair)) == (1, 1)}
    assert len(small) == 81 - len(held_out)


def test_a_seed_fixes_the_rows():
    def train(seed):
        return list(multiplication_train(50, digits=3, seed=seed))

    assert train(5) == train(5) != train(6)
    first, second = (list(multiplication_test((3, 3), seed=seed)) for seed in (0, 1))
    assert first != second


def test_splits_by_config():
    data = DataConfig(name="multiplication", train_size=300, digits=2)
    splits = load_splits(data)
    assert len(splits.train) == 300
    assert len(splits.evaluation["interpolation"]) == 16 + 162 + 162 + 500
    beyond = splits.evaluation["extrapolation"]
    assert {max(map(len, operands(row))) for row in beyond} == {3}
    few = load_splits(
        DataConfig(name="multiplication", train_size=9, digits=2, eval_size=40)
    )
    assert {len(rows) for rows in few.evaluation.values()} == {40}
    lengths = {tuple(map(len, operands(r))) for r in few.evaluation["interpolation"]}
    assert lengths == set(cells(2))


def test_bad_sizes_name_themselves():
    with pytest.raises(DataError, match=r"must be in 1..9, got 0"):
        multiplication_train(1, digits=0, seed=0)
    with pytest.raises(DataError, match=r"must be in 1..9, got 10"):
        multiplication_test((1, 10), seed=0)
    with pytest.raises(DataError, match="must not be negative, got -1"):
        multiplication_train(-1, digits=1, seed=0)
