"""Rows in which numbers are hidden, and masks as a function of seed and step."""

import dataclasses
import itertools

import chex
import numpy as np
import pytest

from ntl_jax.numbers.value_scales import ScaleKind, ValueScale
from ntl_jax.tokenization import XvalTokenizer, builtin_tokenizer
from train.data import DataError, make_buckets, train_batches
from train.data.masked import mask_rows, question_row

TOKENIZER = XvalTokenizer(builtin_tokenizer())
NUM, MASK = TOKENIZER.num_id, TOKENIZER.mask_id
PAIRS = [(a, b) for a in range(4) for b in range(5)]
ROWS = [{"question": f"What is {a} plus {b}?", "answer": str(a + b)} for a, b in PAIRS]


def dataset(rows=ROWS, rate=None, scale: ScaleKind = "none", **lengths):
    limits = {"max_source_length": 32, "max_target_length": 8} | lengths
    masked = mask_rows(rows, TOKENIZER, rate=rate, **limits)
    fitted = ValueScale.fit(scale, masked.numbers())
    return dataclasses.replace(masked, scale=fitted)


def first_batches(masked, steps, **options):
    stream = train_batches(masked, batch_size=8, seed=7, **options)
    batches = [next(stream) for _ in range(steps)]
    stream.close()
    return batches


def test_the_answer_alone_is_hidden_and_numbers_are_scaled():
    masked = dataset(scale="minmax5")
    batch = masked.eval_batch(np.array([19, 0]))  # 3 + 4, 0 + 0
    assert (batch["labels"] == NUM).sum(axis=1).tolist() == [1, 1]
    assert (batch["labels"] != -100).sum() == 2
    asked = batch["labels"] == NUM
    assert (batch["input_ids"][asked] == MASK).all()
    assert batch["label_values"][asked].tolist() == [5.0, -5.0]  # of 0 to 7
    read = batch["input_values"][0][batch["input_ids"][0] == NUM]
    np.testing.assert_allclose(read, [(2 * x - 7) / 7 * 5 for x in (3, 4)], rtol=1e-6)
    others = batch["input_ids"] != NUM
    assert (batch["input_values"][others] == 1).all()
    assert not batch["attention_mask"].all()
    plain = [masked.targets[row].tolist() for row in (19, 0)]
    assert plain == TOKENIZER.base.encode_batch(["7", "0"])


def test_random_masks_depend_on_seed_and_step_alone():
    masked = dataset(rate=0.3)
    want = first_batches(masked, 6)
    chex.assert_trees_all_equal(want, first_batches(masked, 6))
    chex.assert_trees_all_equal(want[4:], first_batches(masked, 2, start_step=4))
    parts = [
        first_batches(masked, 6, rows=np.array(rows)) for rows in ([0, 1, 2], [3, 7])
    ]
    for step, batch in enumerate(want):
        for rows, part in zip(([0, 1, 2], [3, 7]), parts, strict=True):
            chex.assert_trees_all_equal(
                {name: array[rows] for name, array in batch.items()}, part[step]
            )
    hidden = [batch["labels"] != -100 for batch in want]
    assert any((a != b).any() for a, b in itertools.pairwise(hidden))
    real = np.concatenate([batch["attention_mask"] for batch in want])
    share = np.concatenate(hidden)[real].mean()
    assert abs(share - 0.3) < 0.1
    assert not np.concatenate(hidden)[~real].any()
    other = first_batches(dataset(rate=0.3), 1)[0]
    stream = train_batches(masked, batch_size=8, seed=8)
    assert (next(stream)["labels"] != other["labels"]).any()
    stream.close()


def test_masks_of_a_row_are_the_same_in_a_bucket():
    rows = ROWS + [
        {"question": "Say " + "a " * 12 + f"{n}", "answer": "1"} for n in "12"
    ]
    masked = dataset(rows, rate=0.3)
    buckets = make_buckets(masked.lengths(), 2)
    batches = first_batches(masked, 8, buckets=buckets)
    assert len({batch["labels"].shape for batch in batches}) == 2
    chex.assert_trees_all_equal(batches, first_batches(masked, 8, buckets=buckets))


def test_evaluation_hides_the_answer_whatever_the_rate():
    everything = np.arange(len(ROWS))
    chex.assert_trees_all_equal(
        dataset(rate=0.9).eval_batch(everything), dataset().eval_batch(everything)
    )


@pytest.mark.parametrize(
    ("answer", "number"),
    [("-3/4", -0.75), ("x = 2 1/2.", 2.5), ("-5", -5.0), ("1,500 in all", 1500.0)],
)
def test_the_last_number_is_asked_for_with_its_sign(answer, number):
    masked = dataset([{"question": "Take 7 from 2", "answer": answer}])
    batch = masked.batch(np.array([0]))
    assert batch["label_values"][batch["labels"] == NUM].tolist() == [number]


def test_long_questions_lose_their_end_and_long_answers_their_beginning():
    row = {"question": "What is 3 plus 4 plus 5?", "answer": "It is, I think, 12"}
    masked = dataset([row], max_source_length=4, max_target_length=6)
    assert (masked.truncated_sources, masked.truncated_targets) == (1, 1)
    batch = masked.batch(np.array([0]))
    assert batch["attention_mask"].sum() == 10
    assert batch["label_values"][batch["labels"] == NUM].tolist() == [12]
    assert masked.numbers().tolist() == [3, 12]
    with pytest.raises(DataError, match=r"more than 2 tokens before its end: raise"):
        dataset(
            [{"question": "a 1", "answer": "12 is what it is"}], max_target_length=2
        )


def test_answers_that_cannot_be_asked_for_are_refused():
    for answer, what in (
        ("none", r"row 2, 'none', holds no number.*--head lm"),
        ("1e99", r"row 2, '1e99', ends with a number that float32"),
        (f"{'9' * 400}/7", r"row 2, '9+\.\.\.9+/7', ends with a number that"),
        ("-$5", r"row 2, '-\$5', ends with the number -5, but no '-' stands right"),
    ):
        rows = [ROWS[0], {"question": "What is 1?", "answer": answer}]
        with pytest.raises(DataError, match=what):
            dataset(rows)
    with pytest.raises(DataError, match="no rows"):
        dataset([])


def test_a_question_ends_as_the_rows_do():
    row = question_row(ROWS[19]["question"], TOKENIZER)
    batch = dataset().batch(np.array([19]))
    length = int(batch["attention_mask"].sum())
    assert row.ids == batch["input_ids"][0, :length].tolist()
    assert row.labels == batch["labels"][0, :length].tolist()
