"""Blanks for xVal: the last number, or tokens at random."""

import numpy as np
import pytest

from ntl_jax.tokenization import (
    XvalTokenizer,
    builtin_tokenizer,
    mask_at_random,
    mask_last_number,
)

TOKENIZER = XvalTokenizer(builtin_tokenizer())
NUM, MASK = TOKENIZER.num_id, TOKENIZER.mask_id


def masked(text):
    row = TOKENIZER.encode_numbers(text)
    return mask_last_number(row, num_id=NUM, mask_id=MASK)


def test_the_answer_is_hidden_with_its_sign():
    positive, negative = masked("What is 3-8? 5"), masked("What is 3-8? -5")
    assert positive.ids == negative.ids
    assert positive.values == negative.values
    assert positive.ids.count(NUM) == 2
    assert positive.ids.count(MASK) == 1
    place = positive.ids.index(MASK)
    assert positive.labels == [
        NUM if i == place else -100 for i in range(len(positive.ids))
    ]
    assert positive.values[place] == 1.0
    assert (positive.label_values[place], negative.label_values[place]) == (5, -5)
    assert set(negative.label_values) == {1.0, -5.0}


def test_a_row_without_a_number_is_refused():
    with pytest.raises(ValueError, match=r"\[NUM\] \(id 512\)"):
        masked("none")


def batch(rows=400, length=10):
    draw = np.random.default_rng(0)
    ids = draw.integers(3, 99, (rows, length), dtype=np.int32)
    ids[:, ::3] = NUM
    values = np.where(ids == NUM, draw.normal(size=ids.shape), 1).astype(np.float32)
    seen = np.arange(length) < draw.integers(1, length + 1, rows)[:, None]
    return ids, values, seen


def test_tokens_are_hidden_at_the_rate_and_padding_never():
    ids, values, seen = batch()
    got = mask_at_random(
        ids, values, seen, rate=0.3, mask_id=MASK, rng=np.random.default_rng(5)
    )
    hidden = got.ids == MASK
    assert not hidden[~seen].any()
    count = seen.sum()
    assert abs(hidden[seen].mean() - 0.3) < 4 * (0.3 * 0.7 / count) ** 0.5
    assert np.array_equal(got.labels, np.where(hidden, ids, -100))
    assert np.array_equal(got.label_values, np.where(hidden, values, 1))
    assert np.array_equal(got.ids[~hidden], ids[~hidden])
    assert np.array_equal(got.values, np.where(hidden, 1, values))
    assert (got.labels.dtype, got.values.dtype) == (np.int32, np.float32)
    again = mask_at_random(
        ids, values, seen, rate=0.3, mask_id=MASK, rng=np.random.default_rng(5)
    )
    assert all(np.array_equal(a, b) for a, b in zip(got, again, strict=True))


@pytest.mark.parametrize(("rate", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_none_and_all(rate, share):
    ids, values, seen = batch(rows=3)
    rng = np.random.default_rng(0)
    got = mask_at_random(ids, values, seen, rate=rate, mask_id=MASK, rng=rng)
    assert (got.labels[seen] != -100).mean() == share


def test_bad_rates_and_shapes_are_refused():
    ids, values, seen = batch(rows=3)
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"rate is 1\.5.*\[0, 1\]"):
        mask_at_random(ids, values, seen, rate=1.5, mask_id=MASK, rng=rng)
    with pytest.raises(ValueError, match=r"ids \(.*values \(.*attention_mask \("):
        mask_at_random(ids, values[:2], seen, rate=0.5, mask_id=MASK, rng=rng)
