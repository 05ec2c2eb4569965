"""Plans of packed rows: nothing lost, split or doubled; and their batches."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.data.helpers import (
    assert_equal,
    assert_processes_share,
    assert_resumes,
    dataset,
    some_sizes,
    take,
)
from train.data import (
    CausalDataset,
    DataError,
    PackedDataset,
    TokenizedDataset,
    pack,
    train_batches,
)
from train.data.packing import first_fit_decreasing, plan_rows
from train.data.transforms import IGNORE_INDEX, round_up


def texts(batch) -> list[list[tuple[int, int, int]]]:
    """(row, question tokens, answer tokens) of each text of each packed row."""
    causal = "target_segment_ids" not in batch
    sides = batch["segment_ids"], batch.get("target_segment_ids", batch["segment_ids"])
    found = []
    for row in range(len(batch["labels"])):
        here = []
        for number in range(1, sides[0][row].max() + 1):
            asked = batch["input_ids"][row][sides[0][row] == number]
            labels = batch["labels"][row][sides[1][row] == number]
            if causal:  # the answer stands behind the question, in both
                assert (asked[labels != IGNORE_INDEX] >= 5000).all()
                asked = asked[labels == IGNORE_INDEX]
                labels = labels[labels != IGNORE_INDEX]
            (index,) = set(asked - 1000)
            assert set(labels - 5000) == {index}
            here.append((int(index), len(asked), len(labels)))
        found.append(here)
    return found


def assert_sound(batch) -> None:
    """Segments stand side by side from the left, numbered from 1, then padding."""
    for name in {"segment_ids", "target_segment_ids"} & batch.keys():
        for row in batch[name]:
            used = row[: np.count_nonzero(row)]
            assert (row[len(used) :] == 0).all()
            assert used[0] == 1 and set(np.diff(used)) <= {0, 1}
    mask = batch["segment_ids"] > 0
    np.testing.assert_array_equal(batch["attention_mask"], mask)
    assert (batch["input_ids"][~mask] == 0).all()
    target = batch.get("target_segment_ids", batch["segment_ids"])
    assert (batch["labels"][target == 0] == IGNORE_INDEX).all()
    assert batch["labels"].dtype == batch["input_ids"].dtype == np.int32


SIZES = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=60
)


@settings(max_examples=60, deadline=None)
@given(
    sizes=SIZES,
    seed=st.integers(0, 9),
    window=st.integers(1, 70),
    extra=st.floats(1, 3),
)
def test_a_plan_holds_every_row_once_and_overfills_none(sizes, seed, window, extra):
    lengths = np.array(sizes)
    capacity = np.ceil(lengths.max(axis=0) * extra).astype(int)
    order = np.random.default_rng(seed).permutation(len(lengths))
    plan = first_fit_decreasing(lengths, capacity, order, window)
    assert sorted(plan.values) == list(range(len(lengths)))
    assert (np.diff(plan.offsets) > 0).all()
    for row in range(len(plan)):
        assert (lengths[plan[row]].sum(axis=0) <= capacity).all()
    # First fit: no row of a window would have had room in an earlier one.
    for start in range(0, len(order), window):
        inside = set(order[start : start + window].tolist())
        rows = [plan[row] for row in range(len(plan)) if plan[row][0] in inside]
        assert set(np.concatenate(rows).tolist()) == inside
        for earlier, later in itertools.combinations(rows, 2):
            room = capacity - lengths[earlier].sum(axis=0)
            assert not (lengths[later] <= room).all(axis=1).any()


@settings(max_examples=40, deadline=None)
@given(
    sizes=SIZES,
    seed=st.integers(0, 5),
    kind=st.sampled_from([TokenizedDataset, CausalDataset]),
    batch_size=st.integers(1, 5),
)
def test_every_row_is_seen_once_an_epoch_and_whole(sizes, seed, kind, batch_size):
    packed = pack(dataset(sizes, kind), seed=seed)
    assert len(packed) <= len(sizes)
    assert all(length % 8 == 0 for length in packed.shape)
    epochs = 2 * batch_size  # ends where a batch does
    steps = epochs * len(packed) // batch_size
    seen = []
    for batch in take(steps, train_batches(packed, batch_size=batch_size, seed=seed)):
        assert_sound(batch)
        assert batch["labels"].shape == (batch_size, packed.shape[-1])
        seen += texts(batch)
    for epoch in range(epochs):
        rows = seen[epoch * len(packed) : (epoch + 1) * len(packed)]
        rows = sorted(text for row in rows for text in row)
        assert rows == [(i, *size) for i, size in enumerate(sizes)]


@pytest.fixture(scope="module", params=[TokenizedDataset, CausalDataset])
def packed(request) -> PackedDataset:
    return pack(dataset(some_sizes(200), request.param), seed=3)


@pytest.mark.parametrize("start", [1, 7, 60])
def test_resume_equals_the_uninterrupted_stream(packed, start):
    assert_resumes(packed, start, 6)


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_one_global_batch(packed, processes):
    assert_processes_share(packed, processes, 8)


def test_seeds_name_different_plans_and_orders():
    rows = dataset(some_sizes(4000))
    one, repeated, other = (pack(rows, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.plan.values, repeated.plan.values)
    groups = [
        {frozenset(p.plan[row].tolist()) for row in range(len(p))} for p in (one, other)
    ]
    assert len(groups[0] & groups[1]) < len(groups[0]) / 10
    first, second = (
        take(4, train_batches(one, batch_size=4, seed=seed)) for seed in (0, 1)
    )
    with pytest.raises(AssertionError):
        assert_equal(first, second)


def test_the_plan_is_fixed_forever():
    """A resumed run may meet a newer NumPy: the plan must not have changed."""
    sizes = [(9, 5), (4, 7), (8, 2), (3, 3), (1, 6), (9, 8), (2, 2), (4, 1), (9, 5)]
    plan = pack(dataset(sizes), seed=0).plan
    assert plan.values.tolist() == [0, 1, 3, 8, 4, 7, 6, 5, 2]
    assert plan.offsets.tolist() == [0, 3, 7, 8, 9]


def test_little_room_is_left():
    sizes = some_sizes(20_000)
    for kind, most in ((TokenizedDataset, 0.15), (CausalDataset, 0.05)):
        packed = pack(dataset(sizes, kind), seed=0)
        room = len(packed) * sum(packed.shape)
        assert 0 < 1 - sizes.sum() / room < most


@settings(max_examples=200, deadline=None)
@given(
    sizes=SIZES
    | st.builds(lambda size, count: [size] * count, SIZES.map(max), st.integers(1, 9)),
    seed=st.integers(0, 3),
    more=st.none() | st.integers(0, 40),
    together=st.booleans(),
)
def test_packing_pads_no_more_than_padding(sizes, seed, more, together):
    lengths = np.array(sizes)
    if together:  # decoder-only
        lengths = lengths.sum(axis=1, keepdims=True)
    padded = round_up(lengths.max(axis=0)).sum()
    length = None if more is None else int(padded) + more
    plan, shape = plan_rows(lengths, seed=seed, length=length)
    assert sorted(plan.values) == list(range(len(sizes)))
    assert len(plan) * sum(shape) <= len(sizes) * padded


def test_rows_that_find_no_partner_are_as_long_as_padded_ones():
    assert plan_rows(np.tile([17, 3], (100, 1)), seed=0)[1] == (24, 8)
    plan, shape = plan_rows(np.tile([40], (100, 1)), seed=0, length=64)
    assert len(plan) == 100 and shape == (40,)


def test_both_sides_fill_up_together():
    """Long questions with short answers: the answers' side is not made for the rest."""
    sizes = np.stack([np.full(100, 30), np.full(100, 3)], axis=1)
    sizes[0] = (32, 16)
    packed = pack(dataset(sizes), seed=0, length=160)
    assert packed.shape == (152, 16)
    assert collections.Counter(np.diff(packed.plan.offsets)).most_common(1)[0][0] == 5


def test_rows_too_short_for_the_longest_are_refused():
    message = (
        r"--data\.packed-length 20, rounded up to 24, .* at least 48, .*--data\.max"
    )
    with pytest.raises(DataError, match=message):
        pack(dataset([(40, 8), (1, 1)]), seed=0, length=20)
