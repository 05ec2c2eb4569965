"""Digits with their decimal place: the tokens _d_p_ of the Regression Transformer."""

import os
import re
from collections.abc import Iterable, Sequence

from ntl_jax.numbers.place_tokens import (
    LARGEST_PLACE,
    NUMBER_TOKENS,
    SMALLEST_PLACE,
    place_tokens,
)
from ntl_jax.tokenization.digits import DigitTokenizer
from ntl_jax.tokenization.pieces import DIGITS, NumberCounts, Pieces

_NUMBER = re.compile(r"([0-9]+)(?:\.([0-9]+))?")


class RegressionTransformerTokenizer:
    """Writes each digit of a number as one token that names digit and decimal place.

    11.4 becomes ``_1_1_ _1_0_ _4_-1_``: the digits that `DigitTokenizer` gives, renamed
    by their place, without the point. The 320 tokens, places -12 to 19, follow the
    base's ids, places outer and digits inner; text around the numbers keeps its ids,
    spaces and signs too. A number is digits with at most one point between them
    (1,000 is two, 1e5 is two, .5 is the digit 5 after a point). Nothing is rounded or
    lost: leading and trailing zeros have tokens, and a number beyond 20 digits before
    the point or 12 after it stays in plain digits.

    Args:
        base: as for `DigitTokenizer`, or one; it is not changed.

    Raises:
        TypeError: base is not a fast tokenizer.
        ValueError: base has no token for a digit or the point.

    Attributes:
        first_number_id: the id of ``_0_-12_``.

    Example:
        >>> from ntl_jax.tokenization import builtin_tokenizer
        >>> tokenizer = RegressionTransformerTokenizer(builtin_tokenizer())
        >>> names = {i: token for token, i in tokenizer.get_vocab().items()}
        >>> [names[i] for i in tokenizer.encode("-11.4")]
        ['-', '_1_1_', '_1_0_', '_4_-1_', '</s>']
        >>> tokenizer.decode(tokenizer.encode("12 + 007.50"))
        '12 + 007.50'

    Source: Born and Manica (2023); the tokens' order and places as in the code of
    *Regress, Don't Guess* (ICML 2025), which rounds to 12 decimals and drops zeros.
    """

    def __init__(self, base) -> None:
        self._base = base if isinstance(base, DigitTokenizer) else DigitTokenizer(base)
        self._pieces = Pieces(self._base, DIGITS + ".")
        self.pad_token_id = self._base.pad_token_id
        self.eos_token_id = self._base.eos_token_id
        self.unk_token_id = self._base.unk_token_id
        self.first_number_id = self._pieces.end

    def encode(self, text: str) -> list[int]:
        """Ids of one text, the end-of-sequence token last."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, the end-of-sequence token last."""
        return [self._placed(ids) for ids in self._base.encode_batch(texts)]

    def _placed(self, ids: list[int]) -> list[int]:
        text, starts = self._pieces.join(ids)
        placed, copied = [], 0
        for match in _NUMBER.finditer(text):
            whole, decimals = match[1], match[2] or ""
            first, last = starts.get(match.start()), starts.get(match.end())
            fits = len(whole) <= LARGEST_PLACE + 1 and len(decimals) <= -SMALLEST_PLACE
            if first is None or last is None or not fits:
                continue
            placed += ids[copied:first]
            for place, digit in enumerate(whole + decimals):
                placed.append(self._id(int(digit), len(whole) - 1 - place))
            copied = last
        return placed + ids[copied:]

    def _id(self, digit: int, place: int) -> int:
        return self.first_number_id + 10 * (place - SMALLEST_PLACE) + digit

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; negative ids and special tokens are dropped.

        A number continues while the place decreases. Skipped places are zeros, as are
        missing ones down to the units (``_2_2_ _0_0_`` is 200). Two adjacent numbers
        are separated by a space.
        """
        written: list[int] = []
        after_number = False
        for part in self._parts(ids):
            if isinstance(part, int):
                written.append(part)
            else:
                written += self._pieces.separator() if after_number else []
                written += self._pieces.spell(_spelled(part))
            after_number = not isinstance(part, int)
        return self._base.decode(written)

    def _parts(self, ids: Iterable[int]) -> list[int | dict[int, str]]:
        """The ids with each number as one part, {place: digit}, places decreasing."""
        parts: list[int | dict[int, str]] = []
        for token_id in map(int, ids):
            offset = token_id - self.first_number_id
            if not 0 <= offset < NUMBER_TOKENS:
                parts.append(token_id)
                continue
            place, digit = offset // 10 + SMALLEST_PLACE, str(offset % 10)
            last = parts[-1] if parts else None
            if isinstance(last, dict) and place < min(last):
                last[place] = digit
            else:
                parts.append({place: digit})
        return parts

    def counts(self, ids: Iterable[int]) -> NumberCounts:
        """The numbers in a row, and how many of them are malformed.

        A number is malformed if it skips a place, begins after the point or ends before
        the units.

        >>> from ntl_jax.tokenization import builtin_tokenizer
        >>> tokenizer = RegressionTransformerTokenizer(builtin_tokenizer())
        >>> ids = tokenizer.encode("12, 3.4")
        >>> tokenizer.counts(ids)
        NumberCounts(numbers=2, malformed=0, plain=0)
        >>> tokenizer.counts(ids[:1])  # ends at the tens
        NumberCounts(numbers=1, malformed=1, plain=0)
        """
        ids = [int(token_id) for token_id in ids]
        numbers = [part for part in self._parts(ids) if isinstance(part, dict)]
        malformed = [n for n in numbers if len(n) != len(_places(n))]
        return NumberCounts(len(numbers), len(malformed), self._pieces.digit_runs(ids))

    def get_vocab(self) -> dict[str, int]:
        """Every token with its id: the base's and the number tokens."""
        numbers = enumerate(place_tokens(), start=self.first_number_id)
        return self._base.get_vocab() | {token: i for i, token in numbers}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the base tokenizer; the number tokens are added where it is loaded."""
        self._base.save(folder)

    def __len__(self) -> int:
        return self.first_number_id + NUMBER_TOKENS


def _places(number: dict[int, str]) -> range:
    """Every place of the number when written out, from its first to its last."""
    return range(max(*number, 0), min(*number, 0) - 1, -1)


def _spelled(number: dict[int, str]) -> str:
    places = _places(number)
    digits = "".join(number.get(place, "0") for place in places)
    whole = places.start + 1
    return digits if places.stop == -1 else f"{digits[:whole]}.{digits[whole:]}"


def padded_vocab_size(tokens: int, *, multiple: int = 64) -> int:
    """The rows of a model's vocabulary for this many tokens: the next multiple.

    >>> padded_vocab_size(32420)  # T5's 32100 and the 320 number tokens
    32448
    """
    return -(-tokens // multiple) * multiple
