"""The text of token ids, in which numbers are found."""

from typing import NamedTuple

from ntl_jax.numbers.token_kinds import WORD_START
from ntl_jax.tokenization.digits import BYTE, DigitTokenizer

DIGITS = "0123456789"
_OPAQUE = "\ufffc"  # represents bytes and special tokens: not a digit or letter


class NumberCounts(NamedTuple):
    """Counts of the numbers in a row of ids.

    Attributes:
        numbers: numbers written in number tokens.
        malformed: those of them that encoding never produces.
        plain: runs of plain digit tokens: numbers without number tokens.
    """

    numbers: int
    malformed: int
    plain: int


class Pieces:
    """The text of every token, and the ids of the tokens that numbers are written with.

    Args:
        base: the tokenizer, with digits as single tokens.
        characters: those that must each be a token.

    Raises:
        ValueError: one of them is not.
    """

    def __init__(self, base: DigitTokenizer, characters: str = DIGITS) -> None:
        vocab, added = base.get_vocab(), base.added_tokens()
        missing = [character for character in characters if character not in vocab]
        if missing:
            raise ValueError(
                f"the tokenizer has no token for {' '.join(missing)}; use one whose "
                f"vocabulary contains each of {characters!r}"
            )
        self.end = max(vocab.values()) + 1
        self.ids = {character: vocab[character] for character in characters}
        self.space = next((vocab[m] for m in WORD_START if m in vocab), None)
        self._digit_ids = {vocab[digit] for digit in DIGITS if digit in vocab}
        self._texts = [_OPAQUE] * self.end
        for piece, token_id in vocab.items():
            if token_id not in added and piece and not BYTE.fullmatch(piece):
                for mark in WORD_START:
                    piece = piece.replace(mark, " ")
                self._texts[token_id] = piece

    def text(self, token_id: int) -> str:
        """The text of a token; one opaque character for ids beyond the vocabulary."""
        return self._texts[token_id] if 0 <= token_id < self.end else _OPAQUE

    def join(self, ids: list[int]) -> tuple[str, dict[int, int]]:
        """The text of a row, and the token that begins at a position of it.

        Both as (text, {position: index}); the end of the text maps to `len(ids)`.
        """
        parts = [self.text(token_id) for token_id in ids]
        starts, position = {}, 0
        for index, part in enumerate(parts):
            starts[position] = index
            position += len(part)
        return "".join(parts), starts | {position: len(ids)}

    def spell(self, number: str) -> list[int]:
        """The ids of a number's characters."""
        return [self.ids[character] for character in number]

    def separator(self) -> list[int]:
        """The ids between two adjacent numbers: a space, where it is a token."""
        return [] if self.space is None else [self.space]

    def digit_runs(self, ids) -> int:
        """The number of runs of plain digit tokens."""
        is_digit = [int(token_id) in self._digit_ids for token_id in ids]
        return sum(
            here and not before
            for before, here in zip([False, *is_digit], is_digit, strict=False)
        )
