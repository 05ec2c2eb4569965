"""Blocks cut out of stored tensors equal the same blocks of the whole parameter."""

import numpy as np
import pytest

from ntl_jax.hf.blocks import read_block
from ntl_jax.hf.mapping import read_params
from ntl_jax.hf.rules import CheckpointError, Rule, Table

DRAW = np.random.default_rng(0)


def tensor(*shape):
    return DRAW.standard_normal(shape, dtype=np.float32)


# A rule, its parameter's shape, and the tensors it is made of.
CASES = {
    "plain": (Rule("p", "a"), (6, 4), {"a": tensor(6, 4)}),
    "transposed layers": (
        Rule("p", "{}", 3, transpose=True),
        (3, 4, 6),
        {str(i): tensor(6, 4) for i in range(3)},
    ),
    "fused": (
        Rule("p", "{}", 2, shape=(4, 18)),
        (2, 4, 3, 6),
        {str(i): tensor(4, 18) for i in range(2)},
    ),
    "experts": (
        Rule("p", "{}", 2, shape=(3, 8, 6)),
        (2, 3, 2, 4, 6),
        {str(i): tensor(3, 8, 6) for i in range(2)},
    ),
    "experts of width 1": (
        Rule("p", "{}", 2, shape=(3, 2, 6)),
        (2, 3, 2, 1, 6),
        {str(i): tensor(3, 2, 6) for i in range(2)},
    ),
    "padded": (Rule("p", "a", rows=7), (12, 4), {"a": tensor(7, 4)}),
    "padded head": (
        Rule("p", "a", rows=7, transpose=True),
        (4, 12),
        {"a": tensor(7, 4)},
    ),
    "new rows": (Rule("p", "a", rows=9), (12, 4), {"a": tensor(5, 4)}),
}


def spans_of(shape, seed):
    draw = np.random.default_rng(seed)
    ends = [sorted(draw.integers(0, size + 1, 2)) for size in shape]
    return tuple(slice(int(low), int(high)) for low, high in ends)


@pytest.mark.parametrize("case", CASES)
def test_any_block_equals_that_of_the_whole(case):
    rule, shape, tensors = CASES[case]
    whole = read_block(rule, tensors.__getitem__, shape, (slice(None),) * len(shape))
    assert whole.shape == shape and whole.dtype == np.float32
    for seed in range(30):
        spans = spans_of(shape, seed)
        block = read_block(rule, tensors.__getitem__, shape, spans)
        np.testing.assert_array_equal(block, whole[spans])


def test_the_whole_is_what_the_rule_says():
    def whole(case):
        rule, shape, tensors = CASES[case]
        every = (slice(None),) * len(shape)
        return read_block(rule, tensors.__getitem__, shape, every), tensors

    got, tensors = whole("transposed layers")
    np.testing.assert_array_equal(got[1], tensors["1"].T)
    got, tensors = whole("fused")
    np.testing.assert_array_equal(got[0, :, 2], tensors["0"][:, 12:])
    got, tensors = whole("experts")
    np.testing.assert_array_equal(got[1, 2, 1], tensors["1"][2, 4:])
    got, tensors = whole("padded head")
    np.testing.assert_array_equal(got[:, :7], tensors["a"].T)
    assert not got[:, 7:].any()
    got, tensors = whole("new rows")
    np.testing.assert_array_equal(got[:5], tensors["a"])
    mean = tensors["a"].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(got[5:9], np.tile(mean, (4, 1)), rtol=1e-6)
    assert not got[9:].any()


class Counted:
    """An array that adds up how many numbers were read from it."""

    def __init__(self, array):
        self.array, self.read = array, 0
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, index):
        found = self.array[index]
        self.read += found.size
        return found


def test_a_block_reads_its_own_numbers_only():
    rule = Rule("p", "{}", 4, transpose=True)
    tensors = {str(i): Counted(tensor(6, 8)) for i in range(4)}
    block = (slice(1, 2), slice(0, 4), slice(3, 6))
    read_block(rule, tensors.__getitem__, (4, 8, 6), block)
    assert [t.read for t in tensors.values()] == [0, 4 * 3, 0, 0]


def test_new_rows_are_refused_unless_asked_for():
    table = Table((Rule("p", "a", rows=9),))
    stored = tensor(5, 4)
    shapes = {"p": np.empty((12, 4))}

    def read(**options):
        return read_params(table, ["a"], lambda _: stored, shapes, **options)["p"]

    with pytest.raises(CheckpointError, match=r"a .*\(5, 4\).*\(9, 4\)"):
        read()
    np.testing.assert_array_equal(read(new_tokens="mean")[:5], stored)
    for wrong in (tensor(10, 4), tensor(5, 3), tensor(0, 4)):
        stored = wrong  # too many rows, other columns, nothing to take a mean of
        with pytest.raises(CheckpointError, match="asks for"):
            read(new_tokens="mean")
