"""The number tokens of a vocabulary and their values.

A policy maps a token to its value, or to None. Three have names:

* ``"digits"``: one bare ASCII digit, 0 to 9. The paper's choice; it needs a tokenizer
  that splits numbers into digits.
* ``"numbers"``: an ASCII decimal such as 12 or 0.5 after its word-start mark (U+2581,
  U+0120 or a space) is removed. For tokenizers with multi-digit pieces.
* ``"ntloss"``: whatever Python's ``float`` parses as a finite number, with the mark.
  What the PyTorch package ntloss 0.3.2 uses under ``digit_level=False``.

>>> def table(tokens):
...     for token in tokens:
...         values = (f"{str(read(token)):>9}" for read in POLICIES.values())
...         print(f"{token!r:>8}", *values)
>>> table(["1", "▁1", "Ġ1", " 1", "٣", "1_000", "12", "0.5", "+3", "1e5", "inf", "½"])
     '1'       1.0       1.0       1.0
    '▁1'      None       1.0      None
    'Ġ1'      None       1.0      None
    ' 1'      None       1.0       1.0
     '٣'      None      None       3.0
 '1_000'      None      None    1000.0
    '12'      None      12.0      12.0
   '0.5'      None       0.5       0.5
    '+3'      None      None       3.0
   '1e5'      None      None  100000.0
   'inf'      None      None      None
     '½'      None      None      None
"""

import dataclasses
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float32, Int32, UInt8

from ntl_jax.numbers.token_kinds import TokenKind, bare, ids_of_kind, kinds_of

_DIGIT = re.compile(r"[0-9]")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?|\.[0-9]+")
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # how byte fallback spells a byte
_LARGEST = 1e18  # its square is still a finite float32, so a squared error is too


@runtime_checkable
class Tokenizer(Protocol):
    """The methods that a tokenizer needs; Hugging Face's have both."""

    def get_vocab(self) -> Mapping[str, int]: ...

    def encode(self, text: str) -> Sequence[int]: ...


def _read_digit(token: str) -> float | None:
    return float(token) if _DIGIT.fullmatch(token) else None


def _read_number(token: str) -> float | None:
    return float(bare(token)) if _DECIMAL.fullmatch(bare(token)) else None


def _read_like_ntloss(token: str) -> float | None:
    try:
        value = float(token)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


POLICIES: dict[str, Callable[[str], float | None]] = {
    "digits": _read_digit,
    "numbers": _read_number,
    "ntloss": _read_like_ntloss,
}
Policy = Literal["digits", "numbers", "ntloss"] | Callable[[str], float | None]


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NumberVocab:
    """The number tokens of a model's vocabulary: a static table of NumPy arrays.

    It hashes and compares by content and has no pytree leaves, so it may be closed
    over, passed through ``jit`` and ``vmap``, or named in ``static_argnums``. Build it
    with `from_tokenizer` or `from_mapping`.

    Attributes:
        token_ids: i32[K], the number tokens, ascending.
        values: f32[K], the value of each, in the order of ``token_ids``.
        vocab_size: V, the real columns of the model's logits.
        point_ids: i32[P], tokens that are a decimal point.
        minus_ids: i32[M], tokens that are a minus sign.
        kinds: u8[V], flags that tell where a number begins and ends: sums of
            `ntl_jax.numbers.token_kinds.TokenKind`.
        row: i32[V], the index of a token in ``token_ids``, -1 where it is not a number.
        order: i32[K], the rows sorted by value.
        gaps: f32[K-1], the differences between adjacent sorted values.

    >>> vocab = NumberVocab.from_mapping({"a": 0, "7": 1, "3": 2}, vocab_size=4)
    >>> vocab.values.tolist(), vocab.row.tolist(), vocab.gaps.tolist()
    ([7.0, 3.0], [-1, 0, 1, -1], [4.0])
    """

    token_ids: Int32[np.ndarray, "K"]
    values: Float32[np.ndarray, "K"]
    vocab_size: int
    kinds: UInt8[np.ndarray, "V"]
    point_ids: Int32[np.ndarray, "P"] = dataclasses.field(init=False)
    minus_ids: Int32[np.ndarray, "M"] = dataclasses.field(init=False)
    row: Int32[np.ndarray, "V"] = dataclasses.field(init=False)
    order: Int32[np.ndarray, "K"] = dataclasses.field(init=False)
    gaps: Float32[np.ndarray, "K-1"] = dataclasses.field(init=False)
    _digest: bytes = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        if len(self.token_ids) == self.vocab_size:
            raise ValueError(
                f"all {self.vocab_size} columns are numbers. A language model needs at "
                "least one other token, such as the end of the sequence."
            )
        row = np.full(self.vocab_size, -1, np.int32)
        row[self.token_ids] = np.arange(len(self.token_ids), dtype=np.int32)
        order = np.argsort(self.values, kind="stable").astype(np.int32)
        derived = {"row": row, "order": order, "gaps": np.diff(self.values[order])}
        derived["point_ids"] = ids_of_kind(self.kinds, TokenKind.POINT)
        derived["minus_ids"] = ids_of_kind(self.kinds, TokenKind.MINUS)
        given = ("token_ids", "values", "kinds")
        copies = {name: np.array(getattr(self, name)) for name in given}
        for name, array in (derived | copies).items():
            object.__setattr__(self, name, _frozen(array))
        content = hashlib.sha256(str(self.vocab_size).encode())
        for name in given:
            content.update(name.encode() + getattr(self, name).tobytes())
        object.__setattr__(self, "_digest", content.digest())

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberVocab) and self._digest == other._digest

    def __repr__(self) -> str:
        low, high = self.values.min(), self.values.max()
        return (
            f"NumberVocab({len(self)} numbers from {low:g} to {high:g} "
            f"among {self.vocab_size} tokens)"
        )

    def __len__(self) -> int:
        """K, the number of number tokens."""
        return len(self.token_ids)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Tokenizer, *, vocab_size: int, policy: Policy = "digits"
    ) -> "NumberVocab":
        """Reads the vocabulary of a tokenizer, which is not changed.

        Args:
            tokenizer: anything with ``get_vocab() -> {token: id}``.
            vocab_size: V, the real columns of the model's logits. Often more than
                ``len(tokenizer)``: 32128 and 32100 for T5.
            policy: "digits", "numbers", "ntloss" (see the module), or a function from
                a token to its value, or to None where it is not a number.

        Returns:
            The K number tokens among V.

        Raises:
            TypeError, ValueError: as `from_mapping` does, or if it is not a tokenizer.
        """
        return cls.from_mapping(
            vocab_of(tokenizer), vocab_size=vocab_size, policy=policy
        )

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[str, int],
        *,
        vocab_size: int,
        policy: Policy = "digits",
    ) -> "NumberVocab":
        """Reads a vocabulary given as ``{token: id}``.

        Args:
            mapping: every token and its id.
            vocab_size: V, the real columns of the model's logits.
            policy: as in `from_tokenizer`.

        Returns:
            The K number tokens among V.

        Raises:
            ValueError: for an unknown policy, an id outside [0, V), a vocabulary with
                no number or only numbers, an id with two values, or a value beyond
                1e18.
            TypeError: for a token that is not a string, or an id or vocab_size that is
                not an integer.
        """
        read = _resolve(policy)
        _check_ids(mapping, vocab_size)
        numbers: dict[int, float] = {}
        for token, token_id in mapping.items():
            value = read(token)
            if value is None:
                continue
            if not abs(value) <= _LARGEST:  # NaN and infinity too
                raise ValueError(
                    f"token {token!r} has the value {value}, beyond {_LARGEST:g}, the "
                    "largest whose square fits float32. Use a policy that returns None "
                    "for it."
                )
            if numbers.setdefault(token_id, value) != value:
                raise ValueError(
                    f"id {token_id} has the values {numbers[token_id]} and {value} "
                    f"(token {token!r}). Give every number token its own id."
                )
        if not numbers:
            raise ValueError(
                f"no number among {len(mapping)} tokens under policy {policy!r}. Use a "
                "tokenizer that has digits as tokens, or policy='numbers'."
            )
        ids = sorted(numbers)
        return cls(
            token_ids=np.array(ids, np.int32),
            values=np.array([numbers[i] for i in ids], np.float32),
            vocab_size=vocab_size,
            kinds=kinds_of(mapping, vocab_size),
        )

    def check_columns(self, columns: int) -> None:
        """Raises ValueError if logits have fewer columns than this vocabulary.

        More columns are padding, which the losses mask.
        """
        if columns < self.vocab_size:
            raise ValueError(
                f"logits have {columns} columns but the NumberVocab was built for "
                f"vocab_size={self.vocab_size}. Build it with the number of columns "
                "of the model's logits."
            )

    def coverage(
        self,
        tokenizer: Tokenizer,
        texts: Iterable[str],
        *,
        max_length: int | None = None,
    ) -> float:
        """The share of the digit characters in texts that land on number tokens.

        A low share means that the tokenizer hides numbers from the number losses: T5's
        own pieces such as 12 are not digits, so under "digits" the losses miss most of
        a number.

        Args:
            tokenizer: the tokenizer that makes the labels.
            texts: a sample of the targets.
            max_length: labels are truncated to this many tokens, end-of-sequence
                included, and digits beyond count as missed; None truncates nothing.

        Returns:
            A share in [0, 1] of ASCII digits, over all texts together; 1.0 where the
            texts contain no digit, since none is missed.
        """
        digits_on = {
            token_id: len(_DIGIT.findall(_written(token)))
            for token, token_id in tokenizer.get_vocab().items()
        }
        covered = total = 0
        for text in texts:
            ids = [int(token_id) for token_id in tokenizer.encode(text)]
            labels = ids if max_length is None else ids[: max_length - 1]
            written = len(_DIGIT.findall(text))
            # Normalisation can create digits that are not in the text (2 from ²).
            total += max(written, sum(digits_on.get(i, 0) for i in ids))
            covered += sum(digits_on.get(i, 0) for i in labels if self._is_number(i))
        return covered / total if total else 1.0

    def _is_number(self, token_id: int) -> bool:
        return 0 <= token_id < self.vocab_size and bool(self.row[token_id] >= 0)


def _written(token: str) -> str:
    """The text of a token, which for a byte is not the digits in its name."""
    byte = _BYTE.fullmatch(token)
    return chr(int(byte[1], 16)) if byte else token


def _resolve(policy: Policy) -> Callable[[str], float | None]:
    if callable(policy):
        return policy
    if policy not in POLICIES:
        raise ValueError(
            f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}, or give "
            "a function from a token to its value or None."
        )
    return POLICIES[policy]


def vocab_of(tokenizer: Any) -> Mapping[str, int]:
    """Every token of a tokenizer with its id; TypeError if it is not a tokenizer."""
    if not hasattr(tokenizer, "get_vocab"):
        raise TypeError(
            f"the tokenizer is {tokenizer!r}, which has no get_vocab(): pass one "
            "such as transformers.AutoTokenizer.from_pretrained(...) returns."
        )
    return tokenizer.get_vocab()


def _check_ids(mapping: Mapping[str, int], vocab_size: int) -> None:
    if not isinstance(vocab_size, int | np.integer):
        raise TypeError(
            f"vocab_size is {vocab_size!r}; give the number of columns of the model's "
            "logits, an int."
        )
    for token, token_id in mapping.items():
        if not isinstance(token, str) or not isinstance(token_id, int | np.integer):
            raise TypeError(
                f"the mapping has {token!r}: {token_id!r}; it must map tokens "
                "(str) to ids (int)."
            )
        if not 0 <= token_id < vocab_size:
            raise ValueError(
                f"token {token!r} has id {token_id}, outside the {vocab_size} columns "
                "of vocab_size. Give the number of columns of the model's logits, and "
                "resize the model's embedding if it is smaller than the tokenizer."
            )
