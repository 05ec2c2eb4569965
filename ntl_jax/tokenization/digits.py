"""Any fast tokenizer, with numbers split into single digits."""

import os
import re
from collections.abc import Iterable, Sequence

from ntl_jax.tokenization.hugging_face import HuggingFaceTokenizer, from_transformers

_DIGITS = frozenset("0123456789")
BYTE = re.compile("<0x[0-9A-F]{2}>")  # how byte fallback spells a byte


class DigitTokenizer:
    """Splits every piece that holds a digit into its characters.

    T5's ``\u25811800`` becomes ``\u2581 1 8 0 0``. No token is added, so pretrained
    embeddings stay as they are; the model only sees shorter pieces. Special and added
    tokens (``<extra_id_0>``) stay whole, as do bytes (``<0xC3>``) and a piece with a
    character that has no token of its own.

    Args:
        base: a fast tokenizer from `transformers`, or a `HuggingFaceTokenizer`. It is
            not changed.

    Raises:
        TypeError: base is neither.
        ValueError: base lacks a token for a digit, or an end-of-sequence token.

    Example:
        >>> from ntl_jax.tokenization import builtin_tokenizer
        >>> tokenizer = DigitTokenizer(builtin_tokenizer())
        >>> tokenizer.decode(tokenizer.encode("12 + 30"))
        '12 + 30'

    Source: *Regress, Don't Guess* (ICML 2025), its single-digit T5 tokenizer; there,
    digits of every script count, here ASCII's.
    """

    def __init__(self, base) -> None:
        if not isinstance(base, HuggingFaceTokenizer):
            base = from_transformers(base)
        self._base = base
        self.pad_token_id = base.pad_token_id
        self.eos_token_id = base.eos_token_id
        self.unk_token_id = base.unk_token_id
        self._characters = _characters_of(base)

    def encode(self, text: str) -> list[int]:
        """Ids of one text, the end-of-sequence token last."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, the end-of-sequence token last."""
        table = self._characters
        return [
            [character for piece in ids for character in table[piece]]
            for ids in self._base.encode_batch(texts)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; negative ids and special tokens are dropped."""
        return self._base.decode(ids)

    def get_vocab(self) -> dict[str, int]:
        """Every token of the base with its id."""
        return self._base.get_vocab()

    def added_tokens(self) -> dict[int, str]:
        """Ids and text of the special and added tokens."""
        return self._base.added_tokens()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the base tokenizer, unsplit, for `transformers.AutoTokenizer`."""
        self._base.save(folder)

    def __len__(self) -> int:
        return len(self._base)


def _characters_of(base: HuggingFaceTokenizer) -> list[tuple[int, ...]]:
    """For each id, the ids that replace it: those of its characters, or itself."""
    vocab = base.get_vocab()
    missing = sorted(_DIGITS - vocab.keys())
    if missing:
        raise ValueError(
            f"the tokenizer has no token for the digits {', '.join(missing)}; use "
            "one whose vocabulary contains 0 to 9"
        )
    added = base.added_tokens()
    table: list[tuple[int, ...]] = [
        (token_id,) for token_id in range(max(vocab.values()) + 1)
    ]
    for piece, token_id in vocab.items():
        if token_id in added or _DIGITS.isdisjoint(piece) or BYTE.fullmatch(piece):
            continue
        characters = tuple(vocab.get(character, -1) for character in piece)
        if -1 not in characters:
            table[token_id] = characters
    return table
