"""What the text of a token says about numbers."""

import dataclasses

import numpy as np
import pytest

from ntl_jax import NumberVocab
from ntl_jax.numbers.token_kinds import Kind, bare, ids_of_kind, kind_of, kinds_of


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        (".", Kind.POINT),
        ("▁.", Kind.POINT | Kind.WORD_START),
        (",", Kind.COMMA),
        ("-", Kind.MINUS),
        ("Ġ-", Kind.MINUS | Kind.WORD_START),
        ("\u2212", Kind.MINUS),
        ("5", Kind.OPERAND),
        (" 12", Kind.OPERAND | Kind.WORD_START),
        ("x)", Kind.OPERAND),
        ("%", Kind.OPERAND),
        ("▁is", Kind.LETTER | Kind.WORD_START),
        ("▁", Kind.BLANK | Kind.WORD_START),
        ("...", Kind(0)),
        ("", Kind(0)),
        ("=", Kind(0)),
    ],
)
def test_kinds(token, kind):
    assert kind_of(token) == kind


def test_kinds_of_a_vocabulary():
    kinds = kinds_of({"-": 3, ".": 1, "▁.": 0}, 5)
    assert kinds.dtype == np.uint8 and kinds.tolist() == [9, 1, 0, 4, 0]
    assert ids_of_kind(kinds, Kind.POINT).tolist() == [0, 1]
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
