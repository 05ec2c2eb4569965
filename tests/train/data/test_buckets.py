"""Batches of a few lengths: which lengths, and that no row is lost or doubled."""

from typing import Any

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
from train.data import CausalDataset, DataError, make_buckets, pack, train_batches
from train.data.pipeline import GROUPED_STEPS
from train.data.transforms import round_up


def rows_of(batch) -> list[int]:
    return (batch["input_ids"][:, 0] - 1000).tolist()


def padded(rows, buckets, steps: int = 2 * GROUPED_STEPS) -> int:
    batches = take(steps, train_batches(rows, batch_size=8, seed=0, buckets=buckets))
    return sum(batch["input_ids"].size + batch["labels"].size for batch in batches)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 90), st.integers(1, 60)), min_size=1, max_size=90
    ),
    count=st.integers(1, 6),
    seed=st.integers(0, 3),
)
def test_each_batch_is_the_rows_own_in_the_smallest_bucket(sizes, count, seed):
    rows = dataset(sizes)
    buckets = make_buckets(rows.lengths(), count)
    assert 1 <= len(buckets.lengths) <= count
    assert buckets.lengths[-1].tolist() == [
        round_up(int(most)) for most in np.array(sizes).max(axis=0)
    ]
    assert (np.diff(buckets.lengths, axis=0) >= 0).all()
    options: dict[str, Any] = {"batch_size": 3, "seed": seed, "buckets": buckets}
    for batch in take(8, train_batches(rows, **options)):
        shape = (batch["input_ids"].shape[1], batch["labels"].shape[1])
        longest = np.array([sizes[row] for row in rows_of(batch)]).max(axis=0)
        fitting = [tuple(b) for b in buckets.lengths if (b >= longest).all()]
        assert shape == fitting[0]
        own = rows.batch(np.array(rows_of(batch)), shape)
        assert_equal([batch], [own])


def test_rows_are_seen_as_often_as_without_buckets():
    """A group of steps holds the same rows; only their order is another."""
    rows = dataset(some_sizes(150))
    buckets = make_buckets(rows.lengths(), 3)
    options: dict[str, Any] = {"batch_size": 6, "seed": 2}
    plain = take(2 * GROUPED_STEPS, train_batches(rows, **options))
    grouped = take(2 * GROUPED_STEPS, train_batches(rows, **options, buckets=buckets))
    for start in (0, GROUPED_STEPS):
        one, other = (
            [
                r
                for batch in batches[start : start + GROUPED_STEPS]
                for r in rows_of(batch)
            ]
            for batches in (plain, grouped)
        )
        assert sorted(one) == sorted(other) and one != other


@pytest.mark.parametrize("start", [5, GROUPED_STEPS - 1, GROUPED_STEPS + 3])
def test_resume_inside_a_group_equals_the_uninterrupted_stream(start):
    rows = dataset(some_sizes(100))
    buckets = make_buckets(rows.lengths(), 4)
    whole = assert_resumes(rows, start, 4, buckets=buckets)
    assert len({batch["input_ids"].shape for batch in whole}) > 2


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_one_global_batch_of_one_length(processes):
    rows = dataset(some_sizes(100), CausalDataset)
    buckets = make_buckets(rows.lengths(), 4)
    assert_processes_share(rows, processes, 8, buckets=buckets)


@pytest.mark.parametrize("kind", [None, CausalDataset])
def test_more_buckets_leave_less_padding(kind):
    rows = dataset(some_sizes(2000), *([kind] if kind else []))
    tokens = [
        padded(rows, make_buckets(rows.lengths(), count)) for count in (1, 2, 4, 8)
    ]
    assert tokens[0] > tokens[1] > tokens[2] > tokens[3]
    assert tokens[2] < 0.65 * tokens[0]


def test_buckets_of_two_sizes_are_these_sizes():
    rows = dataset([(8, 8)] * 90 + [(64, 32)] * 10)
    assert make_buckets(rows.lengths(), 5).lengths.tolist() == [[8, 8], [64, 32]]


def test_answers_of_one_length_leave_the_order_to_the_questions():
    """A few longer answers do not hide how long the questions are."""
    sizes = [(8 * (1 + n % 8), 3) for n in range(396)] + [(8, 4)] * 4
    rows = dataset(sizes)
    buckets = make_buckets(rows.lengths(), 8)
    assert buckets.lengths.tolist() == [[8 * n, 8] for n in range(1, 9)]
    plain = padded(rows, make_buckets(rows.lengths(), 1))
    assert padded(rows, buckets) < 0.7 * plain


def test_packed_rows_go_into_no_buckets():
    rows = dataset(some_sizes(20))
    with pytest.raises(DataError, match="packed rows have one length already"):
        train_batches(
            pack(rows, seed=0),
            batch_size=2,
            seed=0,
            buckets=make_buckets(rows.lengths(), 2),
        )
