"""xVal's encoding of text: each number is one token with a value beside it."""

import math
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ntl_jax.numbers.grammar import Number, find_numbers
from ntl_jax.numbers.token_kinds import bare
from ntl_jax.tokenization.digits import DigitTokenizer
from ntl_jax.tokenization.pieces import DIGITS, NumberCounts, Pieces

NUM, MASK = "[NUM]", "[MASK]"
_BLANK = "<extra_id_0>"  # T5's own mask token
_SMALLEST = float(np.finfo(np.float32).tiny)
_TOO_LARGE = (2 - 2.0**-24) * 2.0**127  # rounds to infinity in float32
_MINUS = ("-", "\u2212")


class NumberedIds(NamedTuple):
    """Token ids, and the number at each [NUM], 1.0 elsewhere."""

    ids: list[int]
    values: list[float]


class XvalTokenizer:
    """Reads every number of a text as the token [NUM] with its value beside it.

    Numbers are those of `ntl_jax.numbers.grammar`: with their sign where it belongs to
    them and is a token right before them, with thousands commas and exponents. So
    -15.67 is one [NUM] with the value -15.67. Only the value is kept: 1.50 comes back
    as 1.5 and 1,000 as 1000. Numbers that are not normal in float32 (beyond 3.4e38, or
    as close to 0) stay in plain digits. The text "[NUM]" itself stays text.

    Args:
        base: as for `DigitTokenizer`, or one; it is not changed.

    Raises:
        TypeError: base is not a fast tokenizer.
        ValueError: base has no token for a digit, the point or the minus sign.

    Attributes:
        base: the tokenizer of the rest of a text, which splits numbers into digits.
        num_id: the id of [NUM], which follows the base's.
        mask_id: the id of the mask: the base's <extra_id_0> or, where it has none, one
            more token, [MASK].

    Example:
        >>> from ntl_jax.tokenization import builtin_tokenizer
        >>> tokenizer = XvalTokenizer(builtin_tokenizer())
        >>> ids, values = tokenizer.encode_numbers("x=-1,500.5 (7)")
        >>> values
        [1.0, 1.0, -1500.5, 1.0, 1.0, 7.0, 1.0, 1.0]
        >>> tokenizer.decode_numbers(ids, values)
        'x=-1500.5 (7)'

    Source: Golkar et al. (2023). *Regress, Don't Guess* (ICML 2025) leaves the sign in
    the text, where the model sees the answer's.
    """

    def __init__(self, base) -> None:
        self.base = base if isinstance(base, DigitTokenizer) else DigitTokenizer(base)
        self._pieces = Pieces(self.base, DIGITS + ".-")
        self.pad_token_id = self.base.pad_token_id
        self.eos_token_id = self.base.eos_token_id
        self.unk_token_id = self.base.unk_token_id
        self.num_id = self._pieces.end
        self.mask_id = self.base.get_vocab().get(_BLANK, self.num_id + 1)

    def encode_numbers(self, text: str) -> NumberedIds:
        """Ids and values of one text, the end-of-sequence token last."""
        return self.encode_numbers_batch([text])[0]

    def encode_numbers_batch(self, texts: Sequence[str]) -> list[NumberedIds]:
        """Ids and values of each text, the end-of-sequence token last."""
        return [self._numbered(ids) for ids in self.base.encode_batch(texts)]

    def _numbered(self, ids: list[int]) -> NumberedIds:
        text, starts = self._pieces.join(ids)
        kept: list[int] = []
        values: list[float] = []
        copied = 0
        for number in find_numbers(text):
            first, last = starts.get(number.start), starts.get(number.end)
            magnitude = abs(float(number.value))
            if first is None or last is None or not _is_normal(number, magnitude):
                continue
            kept += ids[copied:first]
            # The minus stays text where something separates it from the digits.
            signed = math.copysign(1, number.value) < 0 and self._drop_minus(kept)
            values += [1.0] * (len(kept) - len(values))
            kept.append(self.num_id)
            values.append(-magnitude if signed else magnitude)
            copied = last
        kept += ids[copied:]
        return NumberedIds(kept, values + [1.0] * (len(kept) - len(values)))

    def _drop_minus(self, ids: list[int]) -> bool:
        """Removes a minus from the end of the ids, but not the space before it."""
        piece = self._pieces.text(ids[-1]) if ids else ""
        if bare(piece) not in _MINUS:
            return False
        del ids[-1]
        ids += self._pieces.separator() if bare(piece) != piece else []
        return True

    def decode_numbers(self, ids: Iterable[int], values: Iterable[float]) -> str:
        """Text of the ids, each [NUM] as its value in plain decimals.

        The digits are the fewest that identify the value in its own type: pass float32
        values as a float32 array. A value that is not finite is left out.
        """
        written: list[int] = []
        after_number = False
        for token_id, value in zip(ids, values, strict=True):
            if token_id != self.num_id:
                written.append(int(token_id))
            elif math.isfinite(value):
                written += self._pieces.separator() if after_number else []
                number = np.format_float_positional(value, trim="-")
                written += self._pieces.spell(number)
            after_number = token_id == self.num_id
        return self.base.decode(written)

    def counts(self, ids: Iterable[int], values: Iterable[float]) -> NumberCounts:
        """The [NUM] in a row, and how many of them have no finite value."""
        ids = [int(token_id) for token_id in ids]
        found = [
            math.isfinite(value)
            for token_id, value in zip(ids, values, strict=True)
            if token_id == self.num_id
        ]
        return NumberCounts(
            len(found), found.count(False), self._pieces.digit_runs(ids)
        )

    def encode(self, text: str) -> list[int]:
        """The ids of `encode_numbers` alone."""
        return self.encode_numbers(text).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of `encode_numbers_batch` alone."""
        return [row.ids for row in self.encode_numbers_batch(texts)]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids without their numbers and masks."""
        return self.base.decode(i for i in ids if i < self.num_id)

    def get_vocab(self) -> dict[str, int]:
        """Every token with its id: the base's, [NUM] and, where it is new, [MASK]."""
        new = [NUM, MASK][: len(self) - self.num_id]
        numbered = enumerate(new, start=self.num_id)
        return self.base.get_vocab() | {token: i for i, token in numbered}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the base tokenizer; [NUM] is added where it is loaded."""
        self.base.save(folder)

    def __len__(self) -> int:
        return max(self.num_id, self.mask_id) + 1


def _is_normal(number: Number, magnitude: float) -> bool:
    """Whether the number is normal in float32, with its full precision."""
    if number.value == 0:
        return True
    return _SMALLEST <= magnitude < _TOO_LARGE
