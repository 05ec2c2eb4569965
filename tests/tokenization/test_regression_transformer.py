"""Digits with their places, over the built-in tokenizer and T5's."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ntl_jax import NumberVocab
from ntl_jax.numbers.place_tokens import place_values
from ntl_jax.tokenization import (
    DigitTokenizer,
    NumberCounts,
    RegressionTransformerTokenizer,
    builtin_tokenizer,
    load_tokenizer,
    padded_vocab_size,
    read_place_digit,
)

BUILTIN = RegressionTransformerTokenizer(builtin_tokenizer())
NAMES = {token_id: token for token, token_id in BUILTIN.get_vocab().items()}
ODD_TEXTS = (
    "",
    "7",
    "007",
    "-12.50 + .5",
    "1,234,567.891",
    "6.02e23 or 1E-5",
    "1.2.3..4.",
    "1" * 25,
    "0." + "3" * 13,
    "12345678901234567890.123456789012",
    "\u0663\u0664 \uff11\uff12 \u00bd \u00b2",  # digits of other scripts
    "_1_0_ <0x31> </s> <extra_id_0>",
    " 1  2\n3 ",
)


@pytest.fixture(scope="module")
def t5(data_dir):
    return RegressionTransformerTokenizer(
        load_tokenizer(str(data_dir / "tokenizers" / "t5"))
    )


def tokens(text, tokenizer=BUILTIN):
    names = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    return " ".join(names[token_id] for token_id in tokenizer.encode(text)[:-1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("11.4", "_1_1_ _1_0_ _4_-1_"),
        ("-3", "- _3_0_"),
        ("007", "_0_2_ _0_1_ _7_0_"),
        ("1.50", "_1_0_ _5_-1_ _0_-2_"),
        ("1,000", "_1_0_ , _0_2_ _0_1_ _0_0_"),
        ("1e5", "_1_0_ e _5_0_"),
        ("1.2.3", "_1_0_ _2_-1_ . _3_0_"),
        ("5.", "_5_0_ ."),
        ("", ""),
    ],
)
def test_tokens(text, expected):
    assert tokens(text) == expected


def test_t5_gets_its_tokens_after_its_own(t5):
    assert t5.first_number_id == 32100
    assert len(t5) == 32420
    assert padded_vocab_size(len(t5)) == 32448
    assert padded_vocab_size(64) == 64
    assert t5.get_vocab()["_8_12_"] == 32348
    assert tokens("Add 12.5 to x", t5) == "▁Add ▁ _1_1_ _2_0_ _5_-1_ ▁to ▁ x"


def check_round_trip(tokenizer, plain, text):
    """Decodes as digits do, and every number token stands for its digit's worth."""
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == plain.decode(plain.encode(text))
    counts = tokenizer.counts(ids)
    assert counts.malformed == 0
    assert ids[-1] == tokenizer.eos_token_id
    assert max(ids) < len(tokenizer)


@settings(deadline=None, max_examples=150)
@given(st.text() | st.text(alphabet="0123456789.,-+e ", max_size=40))
@pytest.mark.parametrize("_", [None])
def test_any_text_comes_back(_, text):
    check_round_trip(BUILTIN, DigitTokenizer(builtin_tokenizer()), text)
    assert BUILTIN.decode(BUILTIN.encode(text)) == text.replace("\u2581", " ")


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_texts_come_back(text, t5, data_dir):
    check_round_trip(BUILTIN, DigitTokenizer(builtin_tokenizer()), text)
    check_round_trip(t5, load_tokenizer(str(data_dir / "tokenizers" / "t5")), text)


@settings(deadline=None, max_examples=100)
@given(
    st.from_regex(r"\A[0-9]{1,20}(\.[0-9]{1,12})?\Z"),
    st.sampled_from(["{}", "is {}.", "-{}", "x{}y", "({}), 1"]),
)
@example("00000000000000000001.000000000001", "{}")
@example("10000000000000000000.000000001", "{}")
def test_tokens_add_up_to_the_number(number, template):
    ids = BUILTIN.encode(template.format(number))
    rows = [i - BUILTIN.first_number_id for i in ids if i >= BUILTIN.first_number_id]
    length = len(number.replace(".", ""))
    with localcontext(prec=40):  # 32 digits are more than the usual 28
        total = sum(Decimal(str(place_values()[row])) for row in rows[:length])
    assert total == Decimal(number)
    assert BUILTIN.counts(ids).plain == 0


def test_numbers_without_tokens_stay_plain_digits():
    for text in ("1" * 21, "0." + "1" * 13, "5" * 30 + ".5"):
        ids = BUILTIN.encode(text)
        assert BUILTIN.counts(ids).numbers == 0
        assert BUILTIN.counts(ids).plain == text.count(".") + 1
        assert max(ids) < BUILTIN.first_number_id
        assert BUILTIN.decode(ids) == text


def written(*names):
    return [BUILTIN.get_vocab()[name] for name in names]


@pytest.mark.parametrize(
    ("names", "text", "counts"),
    [
        (("_2_2_", "_0_0_"), "200", (1, 1, 0)),  # jumps over the tens
        (("_1_0_", "_5_-2_"), "1.05", (1, 1, 0)),
        (("_3_1_",), "30", (1, 1, 0)),  # ends before the ones
        (("_5_-1_",), "0.5", (1, 1, 0)),  # begins after the point
        (("_1_1_", "_2_0_", "_3_0_"), "12 3", (2, 0, 0)),
        (("_1_0_", "_1_1_", "_1_0_"), "1 11", (2, 0, 0)),
        (("_1_0_", "-", "_4_0_", "7"), "1-47", (2, 0, 1)),
        (("_1_0_", "</s>"), "1", (1, 0, 0)),
        ((), "", (0, 0, 0)),
    ],
)
def test_what_a_model_may_write_is_read(names, text, counts):
    ids = written(*names)
    assert BUILTIN.decode(ids) == text
    assert BUILTIN.counts(np.array(ids, np.int32)) == NumberCounts(*counts)


def test_ignored_and_unknown_ids_decode_to_nothing():
    ids = BUILTIN.encode("12.5")
    assert BUILTIN.decode([*ids, -100, len(BUILTIN), 10_000]) == "12.5"


def test_number_vocab_covers_the_digits():
    vocab = NumberVocab.from_tokenizer(
        BUILTIN, vocab_size=padded_vocab_size(len(BUILTIN)), policy=read_place_digit
    )
    assert len(vocab) == 320
    assert vocab.coverage(BUILTIN, ["12.5 + 7"]) == 1.0


def test_the_base_is_not_changed_and_saved(tmp_path):
    base = builtin_tokenizer()
    before = base.get_vocab()
    RegressionTransformerTokenizer(base).save(tmp_path)
    assert base.get_vocab() == before
    again = RegressionTransformerTokenizer(load_tokenizer(str(tmp_path)))
    assert again.encode("12.5") == BUILTIN.encode("12.5")
