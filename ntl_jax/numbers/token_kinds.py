"""Flags of a token's text that tell where a number begins and ends."""

import enum
from collections.abc import Mapping

import numpy as np
from jaxtyping import UInt8

WORD_START = ("\u2581", "\u0120", " ")  # SentencePiece's mark, byte-level BPE's, none
_MINUS = ("-", "\u2212")  # hyphen-minus and the mathematical minus sign
_CLOSING = tuple("0123456789)]}%")


class TokenKind(enum.IntFlag):
    """Flags of a token.

    Attributes:
        POINT: a decimal point.
        COMMA: a comma, which may stand between groups of three digits.
        MINUS: a minus sign.
        WORD_START: it begins a word, so it never continues the number before it.
        OPERAND: it ends as an operand does, in a digit, a closing bracket or a percent
            sign, so that a minus after it subtracts.
        LETTER: it ends in a letter, so that a minus right after it is a hyphen.
        BLANK: it is only a word-start mark.
    """

    POINT = 1
    COMMA = 2
    MINUS = 4
    WORD_START = 8
    OPERAND = 16
    LETTER = 32
    BLANK = 64


def bare(token: str) -> str:
    """The token without one leading word-start mark."""
    return token[1:] if token.startswith(WORD_START) else token


def kind_of(token: str) -> TokenKind:
    """The flags of one token.

    >>> kind_of("▁-"), kind_of("5")
    (<TokenKind.MINUS|WORD_START: 12>, <TokenKind.OPERAND: 16>)
    """
    text = bare(token)
    flags = {
        TokenKind.POINT: text == ".",
        TokenKind.COMMA: text == ",",
        TokenKind.MINUS: text in _MINUS,
        TokenKind.WORD_START: text != token,
        TokenKind.OPERAND: text.endswith(_CLOSING),
        TokenKind.LETTER: text[-1:].isalpha(),
        TokenKind.BLANK: token != "" and text == "",
    }
    return TokenKind(sum(flag for flag, holds in flags.items() if holds))


def kinds_of(mapping: Mapping[str, int], vocab_size: int) -> UInt8[np.ndarray, "V"]:
    """The flags of every id of a vocabulary, 0 for ids without a token.

    Args:
        mapping: every token and its id.
        vocab_size: V.

    Returns:
        u8[V], sums of `TokenKind`.
    """
    kinds = np.zeros(vocab_size, np.uint8)
    for token, token_id in mapping.items():
        kinds[token_id] |= kind_of(token)
    return kinds


def ids_of_kind(kinds: UInt8[np.ndarray, "V"], kind: TokenKind) -> np.ndarray:
    """The ids that have a flag, ascending, i32."""
    return np.flatnonzero(kinds & kind).astype(np.int32)
