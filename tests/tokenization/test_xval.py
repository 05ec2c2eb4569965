"""Numbers as [NUM] and a value, over the built-in tokenizer and T5's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_jax.numbers.grammar import find_numbers
from ntl_jax.tokenization import (
    DigitTokenizer,
    NumberCounts,
    XvalTokenizer,
    builtin_tokenizer,
    load_tokenizer,
)
from tests.tokenization.test_regression_transformer import ODD_TEXTS

BUILTIN = XvalTokenizer(builtin_tokenizer())


@pytest.fixture(scope="module")
def t5(data_dir):
    return XvalTokenizer(load_tokenizer(str(data_dir / "tokenizers" / "t5")))


def numbers(text, tokenizer=BUILTIN):
    ids, values = tokenizer.encode_numbers(text)
    assert len(ids) == len(values)
    assert ids[-1] == tokenizer.eos_token_id
    is_number = [token_id == tokenizer.num_id for token_id in ids]
    assert all(v == 1.0 for v, n in zip(values, is_number, strict=True) if not n)
    return [v for v, n in zip(values, is_number, strict=True) if n]


@pytest.mark.parametrize(
    ("text", "values", "decoded"),
    [
        ("-15.67", [-15.67], "-15.67"),
        ("62-8 = 54", [62, 8, 54], "62-8 = 54"),
        ("x=-3, +4", [-3, 4], "x=-3, +4"),
        ("costs -$5 (-7)", [5, -7], "costs -$5 (-7)"),
        ("is \u22125", [5], "is \u22125"),  # a minus in bytes, no token
        ("is - 5", [5], "is - 5"),
        ("1,234,567 or 1,23", [1234567, 1, 23], "1234567 or 1,23"),
        ("1e5, 2.5E-3", [100000, 0.0025], "100000, 0.0025"),
        ("007 1.50 .5", [7, 1.5, 0.5], "7 1.5 0.5"),
        ("2nd of 3", [3], "2nd of 3"),
        ("[NUM] 4 \u00ac", [4], "[NUM] 4 \u00ac"),
        ("-0", [0], "-0"),
        ("", [], ""),
    ],
)
def test_values_and_texts(text, values, decoded):
    assert numbers(text) == values
    ids, found = BUILTIN.encode_numbers(text)
    assert BUILTIN.decode_numbers(ids, found) == decoded


def test_t5_keeps_its_spaces_and_signs(t5):
    assert t5.num_id == 32100
    assert len(t5) == 32101
    assert t5.mask_id == t5.get_vocab()["<extra_id_0>"] == 32099
    assert len(BUILTIN) == BUILTIN.mask_id + 1 == 514
    assert BUILTIN.get_vocab()["[MASK]"] == 513
    assert BUILTIN.get_vocab()["[NUM]"] == 512
    text = "Let x = -12.5 and (7.25), 1,000."
    ids, values = t5.encode_numbers(text)
    assert numbers(text, t5) == [-12.5, 7.25, 1000]
    assert t5.decode_numbers(ids, values) == "Let x = -12.5 and (7.25), 1000."


@pytest.mark.parametrize(
    "text", ["1e39", "9" * 40, "1e-39", "1e9999", "0." + "0" * 40 + "1", "1e-9999"]
)
def test_what_is_no_float32_stays_plain(text):
    assert numbers(text) == []
    ids, values = BUILTIN.encode_numbers(text)
    assert BUILTIN.decode_numbers(ids, values) == text
    assert BUILTIN.counts(ids, values).plain >= 1


@settings(deadline=None, max_examples=150)
@given(st.text() | st.text(alphabet="0123456789.,-+e ", max_size=40))
def test_any_text_keeps_what_is_no_number(text):
    """Replaced by the same letter on both sides, numbers leave the same text."""
    ids, values = BUILTIN.encode_numbers(text)
    plain = DigitTokenizer(builtin_tokenizer())
    x = plain.get_vocab()["x"]
    masked = plain.decode([x if i == BUILTIN.num_id else i for i in ids])
    expected, end = "", 0
    found = list(zip(find_numbers(text.replace("\u2581", " ")), strict=True))
    kept = [n for (n,) in found if n.value == 0 or 1.2e-38 < abs(n.value) < 3.4e38]
    text = text.replace("\u2581", " ")
    values = [v for v, i in zip(values, ids, strict=True) if i == BUILTIN.num_id]
    assert len(kept) == len(values)
    for number, value in zip(kept, values, strict=True):
        before = text[end : number.start]
        if value < 0 or str(value).startswith("-"):
            assert before[-1] in "-\u2212"
            before = before[:-1]
        expected += before + "x"
        end = number.end
        assert abs(value) == abs(float(number.value))
    assert masked == expected + text[end:]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(width=32, allow_subnormal=False).filter(np.isfinite)))
def test_float32_values_come_back_exactly(values):
    ids = [BUILTIN.num_id, BUILTIN.get_vocab()[";"]] * len(values)
    row = np.ravel([(value, 1.0) for value in values]).astype(np.float32)
    text = BUILTIN.decode_numbers(ids, row)
    back = np.array(numbers(text), np.float32)
    assert np.array_equal(back, np.array(values, np.float32))


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_texts_stay_as_they_are_from_the_second_time_on(text, t5):
    for tokenizer in (BUILTIN, t5):
        encoded = tokenizer.encode_numbers(text)
        once = tokenizer.decode_numbers(encoded.ids, encoded.values)
        encoded = tokenizer.encode_numbers(once)
        again = tokenizer.decode_numbers(encoded.ids, encoded.values)
        assert again.strip() == once.strip()  # T5 may begin with a space, or not


def test_what_a_model_may_write_is_read_and_counted():
    num, plus = BUILTIN.num_id, BUILTIN.get_vocab()["+"]
    seven = BUILTIN.get_vocab()["7"]
    values = np.array([1.5, -2.0, 1.0, np.nan, 1.0, np.inf], np.float32)
    ids = np.array([num, num, plus, num, seven, num], np.int32)
    assert BUILTIN.decode_numbers(ids, values) == "1.5 -2+7"
    assert BUILTIN.counts(ids, values) == NumberCounts(4, 2, 1)
    assert BUILTIN.decode(ids) == "+7"
    with pytest.raises(ValueError, match="zip"):
        BUILTIN.decode_numbers(ids, values[:2])


def test_a_base_without_a_minus_is_refused():
    class NoMinus(DigitTokenizer):
        def get_vocab(self):
            vocab = super().get_vocab()
            return {token: i for token, i in vocab.items() if token != "-"}

    with pytest.raises(ValueError, match="no token for -"):
        XvalTokenizer(NoMinus(builtin_tokenizer()))
