"""What the text of a token says about numbers."""

import dataclasses

import numpy as np
import pytest

from ntl_jax import NumberVocab
from ntl_jax.numbers.token_kinds import TokenKind, bare, ids_of_kind, kind_of, kinds_of


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        (".", TokenKind.POINT),
        ("▁.", TokenKind.POINT | TokenKind.WORD_START),
        (",", TokenKind.COMMA),
        ("-", TokenKind.MINUS),
        ("Ġ-", TokenKind.MINUS | TokenKind.WORD_START),
        ("\u2212", TokenKind.MINUS),
        ("5", TokenKind.OPERAND),
        (" 12", TokenKind.OPERAND | TokenKind.WORD_START),
        ("x)", TokenKind.OPERAND),
        ("%", TokenKind.OPERAND),
        ("▁is", TokenKind.LETTER | TokenKind.WORD_START),
        ("▁", TokenKind.BLANK | TokenKind.WORD_START),
        ("...", TokenKind(0)),
        ("", TokenKind(0)),
        ("=", TokenKind(0)),
    ],
)
def test_kinds(token, kind):
    assert kind_of(token) == kind


def test_kinds_of_a_vocabulary():
    kinds = kinds_of({"-": 3, ".": 1, "▁.": 0}, 5)
    assert kinds.dtype == np.uint8 and kinds.tolist() == [9, 1, 0, 4, 0]
    assert ids_of_kind(kinds, TokenKind.POINT).tolist() == [0, 1]
    assert bare("▁▁5") == "▁5" and bare("5▁") == "5▁"


def test_a_vocabulary_holds_its_kinds_and_differs_by_them():
    dash, plus = (
        NumberVocab.from_mapping({"7": 0, sign: 1}, vocab_size=3) for sign in "-+"
    )
    assert dash.minus_ids.tolist() == [1] and plus.minus_ids.tolist() == []
    assert dash != plus and hash(dash) != hash(plus)
    same = dataclasses.replace(dash, kinds=dash.kinds.copy())
    assert same == dash and hash(same) == hash(dash)
    assert not dash.kinds.flags.writeable
