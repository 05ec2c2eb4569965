"""The built-in tokenizer: lossless, digits single, the same tokens for ever."""

import hashlib

import hypothesis
import hypothesis.strategies as st
import pytest

from ntl_jax.tokenization import builtin_tokenizer, load_tokenizer
from train.data.arithmetic import arithmetic_questions

TOKENIZER = builtin_tokenizer()
PRINTABLE = "".join(map(chr, range(32, 127)))


def test_vocabulary_is_what_checkpoints_were_trained_on():
    vocab = TOKENIZER.get_vocab()
    assert len(TOKENIZER) == len(vocab) == 512
    assert sorted(vocab.values()) == list(range(512))
    assert [vocab[token] for token in ("<pad>", "</s>", "<unk>", *"0123456789")] == [
        *range(13)
    ]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id) == (0, 1)
    listing = "\0".join(sorted(vocab, key=vocab.__getitem__))
    digest = hashlib.sha256(listing.encode()).hexdigest()
    assert digest == "09b71015a0c5bbf89ee3922458165bb61998d328b2c03e1b7db17190de39f386"


@hypothesis.given(st.text(alphabet=PRINTABLE))
def test_printable_ascii_round_trips(text):
    ids = TOKENIZER.encode(text)
    assert ids[-1] == TOKENIZER.eos_token_id
    assert 2 not in ids and 1 not in ids[:-1]
    assert TOKENIZER.decode(ids) == text


@hypothesis.given(st.text())
def test_any_text_round_trips_but_for_the_space_mark(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text.replace("\u2581", " ")


@pytest.mark.parametrize("text", ["</s>", "<pad> 1", "<unk>", "<0x41>", " 12", "1 "])
def test_text_that_spells_a_token_is_text(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@hypothesis.given(st.integers(min_value=0))
def test_every_digit_is_a_token(number):
    text = str(number)
    assert TOKENIZER.encode(text) == [3 + int(digit) for digit in text] + [1]


def test_generated_questions_need_no_spelling():
    """Words of the templates are tokens: about one a word, one a digit and mark."""
    rows = arithmetic_questions(500, seed=0, max_operand=99)
    spelt = {
        TOKENIZER.decode([token_id])
        for row in rows
        for token_id in TOKENIZER.encode(row["question"])
        if token_id > 12
    }
    assert not {piece for piece in spelt if len(piece) == 1 and piece.isalpha()}


def test_decode_drops_padding_specials_and_negative_ids():
    assert TOKENIZER.decode([-100, 0, 4, 5, 2, 1, -1, 0]) == "12"


def test_batch_equals_single_and_ends_in_end_of_sequence():
    texts = ["What is 12 plus 30?", "", "é漢"]
    assert TOKENIZER.encode_batch(texts) == [TOKENIZER.encode(text) for text in texts]
    assert TOKENIZER.encode("") == [1]


def test_load_by_name_is_the_same_tokenizer():
    assert load_tokenizer("builtin").get_vocab() == TOKENIZER.get_vocab()
