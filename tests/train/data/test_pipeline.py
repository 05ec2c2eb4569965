"""Padding, shuffling, resume and process shards of the batches."""

import threading
import time

import numpy as np
import pytest

from ntl_jax.tokenization import builtin_tokenizer
from tests.train.data.helpers import (
    assert_equal,
    assert_processes_share,
    assert_resumes,
    take,
)
from train.data import (
    DataError,
    TokenizedDataset,
    eval_batches,
    tokenize_rows,
    train_batches,
)
from train.data.arithmetic import arithmetic_questions
from train.data.pipeline import shuffled_rows

TOKENIZER = builtin_tokenizer()


def tokenize(rows, **options):
    options = {"max_source_length": 64, "max_target_length": 16} | options
    return tokenize_rows(rows, TOKENIZER, **options)


def numbered(n) -> TokenizedDataset:
    """Rows whose question and answer are their own index."""
    return tokenize([{"question": str(i), "answer": str(i)} for i in range(n)])


def indices(batch):
    """Which rows of `numbered` a batch holds, read from ids and labels alike."""
    questions = [int(TOKENIZER.decode(ids)) for ids in batch["input_ids"]]
    answers = [int(TOKENIZER.decode(ids)) for ids in batch["labels"]]
    assert questions == answers
    return questions


def test_rows_are_padded_masked_and_end_in_end_of_sequence():
    rows = [
        {"question": "Add 1 to 2.", "answer": "3"},
        {"question": "1", "answer": "12345678"},
        {"question": "", "answer": ""},
    ]
    dataset = tokenize(rows)
    assert (dataset.source_length, dataset.target_length) == (8, 16)
    batch = dataset.batch(np.array([2, 0, 1]))
    assert batch["input_ids"].dtype == batch["labels"].dtype == np.int32
    assert batch["attention_mask"].dtype == bool
    for place, row in enumerate((2, 0, 1)):
        for column, ids, fill in (
            ("input_ids", TOKENIZER.encode(rows[row]["question"]), 0),
            ("labels", TOKENIZER.encode(rows[row]["answer"]), -100),
        ):
            got = batch[column][place]
            assert got[: len(ids)].tolist() == ids and ids[-1] == 1
            assert (got[len(ids) :] == fill).all()
        length = len(TOKENIZER.encode(rows[row]["question"]))
        assert batch["attention_mask"][place].tolist() == [True] * length + [False] * (
            8 - length
        )


def test_padding_is_told_by_length_where_padding_is_end_of_sequence():
    """GPT-2's way: the mask must keep the real end-of-sequence token."""

    class Gpt2Like:
        pad_token_id = eos_token_id = 1

        def encode_batch(self, texts):
            return [[5] * len(text) + [1] for text in texts]

    rows = [{"question": "ab", "answer": "a"}]
    dataset = tokenize_rows(rows, Gpt2Like(), max_source_length=9, max_target_length=9)
    batch = dataset.batch(np.array([0]))
    assert batch["input_ids"].tolist() == [[5, 5, 1, 1, 1, 1, 1, 1]]
    assert batch["attention_mask"].sum() == 3
    assert batch["labels"].tolist() == [[5, 1] + [-100] * 6]


def test_truncation_keeps_end_of_sequence_and_is_counted():
    rows = [
        {"question": "1234567", "answer": "12"},
        {"question": "1", "answer": "9876"},
    ]
    dataset = tokenize(rows, max_source_length=4, max_target_length=3)
    assert (dataset.truncated_sources, dataset.truncated_targets) == (1, 1)
    batch = dataset.batch(np.array([0, 1]))
    assert batch["input_ids"][0, :5].tolist() == [4, 5, 6, 1, 0]
    assert batch["labels"][0, :4].tolist() == [4, 5, 1, -100]
    assert batch["labels"][1, :4].tolist() == [12, 11, 1, -100]
    assert tokenize(rows).truncated_sources == tokenize(rows).truncated_targets == 0


def test_many_rows_tokenise_as_one_by_one():
    """More rows than are tokenised at once."""
    rows = arithmetic_questions(20_000, seed=0, max_operand=99)
    dataset = tokenize(rows)
    for row in (0, 8191, 8192, 8193, 16_384, 19_999):
        expected = TOKENIZER.encode(rows[row]["question"])
        assert dataset.sources[row].tolist() == expected
        assert dataset.targets[row].tolist() == TOKENIZER.encode(rows[row]["answer"])


def test_ids_outside_the_vocabulary_are_named():
    rows = [{"question": "1", "answer": "1"}, {"question": "1", "answer": "9"}]
    tokenize(rows, vocab_size=13)
    with pytest.raises(DataError, match=r"answer of row 2 has token id 12, .* 0\.\.11"):
        tokenize(rows, vocab_size=12)


def test_nothing_to_tokenise_and_no_room_are_errors():
    with pytest.raises(DataError, match="no rows to tokenise"):
        tokenize([])
    with pytest.raises(DataError, match="max_target_length must be at least 1, got 0"):
        tokenize([{"question": "1", "answer": "1"}], max_target_length=0)


@pytest.mark.parametrize(("n", "batch_size"), [(24, 8), (23, 8), (5, 8), (1, 3)])
def test_every_epoch_holds_every_row_once(n, batch_size):
    epochs = 4
    batches = take(
        -(-epochs * n // batch_size),
        train_batches(numbered(n), batch_size=batch_size, seed=0),
    )
    stream = [index for batch in batches for index in indices(batch)]
    orders = [stream[epoch * n : (epoch + 1) * n] for epoch in range(epochs)]
    for order in orders:
        assert sorted(order) == list(range(n))
    if n > 20:
        assert len({tuple(order) for order in orders}) == epochs
        assert list(range(n)) not in orders


def test_seeds_name_different_orders_and_do_not_overlap():
    places = np.arange(1000)
    orders = [shuffled_rows(places, 100, seed) for seed in (0, 1)]
    epochs = {
        tuple(order[i : i + 100]) for order in orders for i in range(0, 1000, 100)
    }
    assert len(epochs) == 20
    np.testing.assert_array_equal(orders[0], shuffled_rows(places, 100, 0))


@pytest.mark.parametrize("n", [4096, 4097])
def test_few_rows_and_many_are_permuted_differently_every_epoch(n):
    first, second = np.split(shuffled_rows(np.arange(2 * n), n, seed=3), 2)
    for order in (first, second):
        np.testing.assert_array_equal(np.sort(order), np.arange(n))
    assert (first == second).sum() < 10


def test_shuffling_leaves_no_trace_of_the_order():
    rows = shuffled_rows(np.arange(10_000), 10_000, seed=0)
    assert abs(np.corrcoef(rows, np.arange(10_000))[0, 1]) < 0.05
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < 0.05


def test_the_order_is_fixed_forever():
    """A resumed run may meet a newer grain or NumPy: neither may have changed."""
    rows = shuffled_rows(np.arange(12), 10, seed=0)
    assert rows.tolist() == [4, 6, 2, 7, 3, 5, 9, 0, 8, 1, 9, 1]
    rows = shuffled_rows(np.arange(9_998, 10_004), 10_000, seed=0)
    assert rows.tolist() == [516, 4498, 6923, 3272, 1398, 6824]


@pytest.mark.parametrize("start", [0, 1, 7, 40])
def test_resume_equals_the_uninterrupted_stream(start):
    dataset = tokenize(arithmetic_questions(100, seed=0, max_operand=99))
    assert_resumes(dataset, start, 6)


@pytest.mark.parametrize("processes", [1, 2, 3, 6])
def test_processes_share_one_global_batch(processes):
    dataset = tokenize(arithmetic_questions(50, seed=0, max_operand=99))
    assert_processes_share(dataset, processes, 12)


def test_rows_of_a_process_need_not_lie_together():
    dataset = tokenize(arithmetic_questions(50, seed=0, max_operand=99))
    rows = np.asarray([0, 3, 4, 11])
    (whole,) = take(1, train_batches(dataset, batch_size=12, seed=1))
    (part,) = take(1, train_batches(dataset, batch_size=12, seed=1, rows=rows))
    assert_equal([{key: value[rows] for key, value in whole.items()}], [part])


@pytest.mark.parametrize(("n", "batch_size"), [(10, 4), (8, 4), (3, 4), (1, 1)])
def test_evaluation_sees_each_row_once_in_order(n, batch_size):
    batches = list(eval_batches(numbered(n), batch_size=batch_size))
    assert len(batches) == -(-n // batch_size)
    assert {batch["labels"].shape for batch in batches} == {(batch_size, 8)}
    seen = []
    for batch in batches:
        assert batch["weights"].dtype == np.float32
        assert set(batch["weights"].tolist()) <= {0.0, 1.0}
        real = batch["weights"] == 1
        seen += [index for index, r in zip(indices(batch), real, strict=True) if r]
    assert seen == list(range(n))


def test_shapes_do_not_change_and_batches_are_fresh_arrays():
    dataset = tokenize(arithmetic_questions(100, seed=0, max_operand=99))
    first, second = take(2, train_batches(dataset, batch_size=7, seed=0))
    for key in first:
        assert first[key].shape == second[key].shape
        assert not np.shares_memory(first[key], second[key])
        assert first[key].flags.c_contiguous


def test_closing_ends_the_threads():
    before = threading.active_count()
    iterator = train_batches(numbered(5), batch_size=2, seed=0)
    next(iterator)
    iterator.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_wrong_sizes_are_refused_at_the_call():
    dataset = numbered(5)
    with pytest.raises(DataError, match="batch_size must be positive, got 0"):
        eval_batches(dataset, batch_size=0)
    for rows, named in (([1, 6], r"\[6\]"), ([], "none")):
        with pytest.raises(DataError, match=rf"must be in 0\.\.5, got {named}"):
            train_batches(dataset, batch_size=6, seed=0, rows=np.asarray(rows))
    with pytest.raises(DataError, match="must not be negative, got -1 and 0"):
        train_batches(dataset, batch_size=2, seed=0, start_step=-1)
