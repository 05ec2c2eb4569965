"""Token ids seen as the text that numbers are looked for in."""

from typing import NamedTuple

from ntl_jax.numbers.token_kinds import WORD_START
from ntl_jax.tokenization.digits import BYTE, DigitTokenizer

DIGITS = "0123456789"
_OPAQUE = "\ufffc"  # stands for bytes and special tokens: no digit, no letter


class NumberCounts(NamedTuple):
    """What a row of ids holds.

    Attributes:
        numbers: numbers written in number tokens.
        malformed: those of them that no text is encoded as.
        plain: runs of plain digit tokens: numbers that have no number tokens.
    """

    numbers: int
    malformed: int
    plain: int


class Pieces:
    """The text of every token, and the ids of the tokens that numbers are written with.

    Args:
        base: the tokenizer, whose digits are single tokens.
        characters: what must be a token of its own.

    Raises:
        ValueError: a character is not.
    """

    def __init__(self, base: DigitTokenizer, characters: str = DIGITS) -> None:
        vocab, added = base.get_vocab(), base.added_tokens()
        missing = [character for character in characters if character not in vocab]
        if missing:
            raise ValueError(
                f"the tokenizer has no token for {' '.join(missing)}; take one whose "
                f"vocabulary holds each of {characters!r}"
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
        """The text of one token; of ids beyond the vocabulary, one opaque character."""
        return self._texts[token_id] if 0 <= token_id < self.end else _OPAQUE

    def join(self, ids: list[int]) -> tuple[str, dict[int, int]]:
        """The text of a row, and which token begins at a place: {place: index}.

        The end of the text is the place of token `len(ids)`.
        """
        parts = [self.text(token_id) for token_id in ids]
        starts, place = {}, 0
        for index, part in enumerate(parts):
            starts[place] = index
            place += len(part)
        return "".join(parts), starts | {place: len(ids)}

    def written(self, number: str) -> list[int]:
        """The ids that spell a number out."""
        return [self.ids[character] for character in number]

    def apart(self) -> list[int]:
        """The ids that keep two numbers apart: a space, where it is a token."""
        return [] if self.space is None else [self.space]

    def digit_runs(self, ids) -> int:
        """How many runs of plain digit tokens there are."""
        is_digit = [int(token_id) in self._digit_ids for token_id in ids]
        return sum(
            here and not before
            for before, here in zip([False, *is_digit], is_digit, strict=False)
        )
