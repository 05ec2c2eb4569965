"""The wrapper of Hugging Face's Rust tokenizers, and the interface that it has."""

import os
from collections.abc import Iterable, Sequence
from typing import Protocol

from tokenizers import Tokenizer as RustTokenizer


class Tokenizer(Protocol):
    """The interface that training and `NumberVocab` need."""

    @property
    def pad_token_id(self) -> int: ...

    @property
    def eos_token_id(self) -> int: ...

    @property
    def unk_token_id(self) -> int | None: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def get_vocab(self) -> dict[str, int]: ...

    def save(self, folder: str | os.PathLike[str]) -> None: ...

    def __len__(self) -> int: ...


class HuggingFaceTokenizer:
    """A Rust tokenizer that ends every text with the end-of-sequence token.

    Args:
        backend: a `tokenizers.Tokenizer`, which is copied, less truncation and padding.
        pad_token_id: id of padding; masks are made from lengths, not from this id.
        eos_token_id: id appended to a text where the backend's template does not.
        unk_token_id: id of text without a token; None where all text has tokens.
    """

    def __init__(
        self,
        backend: RustTokenizer,
        *,
        pad_token_id: int,
        eos_token_id: int,
        unk_token_id: int | None = None,
    ) -> None:
        special_as_text = backend.encode_special_tokens
        self._backend = RustTokenizer.from_str(backend.to_str())
        self._backend.encode_special_tokens = special_as_text  # not serialised
        self._backend.no_truncation()
        self._backend.no_padding()
        self.pad_token_id = pad_token_id
        self.eos_token_id = eos_token_id
        self.unk_token_id = unk_token_id

    def encode(self, text: str) -> list[int]:
        """Ids of one text, the end-of-sequence token last."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, the end-of-sequence token last; in parallel, in Rust."""
        rows = [row.ids for row in self._backend.encode_batch_fast(list(texts))]
        for ids in rows:
            if not ids or ids[-1] != self.eos_token_id:
                ids.append(self.eos_token_id)
        return rows

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; negative ids and special tokens are dropped."""
        kept = [int(token_id) for token_id in ids if token_id >= 0]
        return self._backend.decode(kept, skip_special_tokens=True)

    def get_vocab(self) -> dict[str, int]:
        """Every token, the added ones too, with its id."""
        return self._backend.get_vocab(with_added_tokens=True)

    def added_tokens(self) -> dict[int, str]:
        """Ids and text of the special and added tokens."""
        added = self._backend.get_added_tokens_decoder()
        return {token_id: token.content for token_id, token in added.items()}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes files that `transformers.AutoTokenizer` and `load_tokenizer` read.

        They do not record digit splitting, which is chosen on loading.
        """
        from transformers import PreTrainedTokenizerFast  # slow to import, and optional

        PreTrainedTokenizerFast(
            tokenizer_object=self._backend,
            pad_token=self._backend.id_to_token(self.pad_token_id),
            eos_token=self._backend.id_to_token(self.eos_token_id),
        ).save_pretrained(folder)

    def __len__(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)


def from_transformers(tokenizer) -> HuggingFaceTokenizer:
    """Wraps a fast tokenizer from `transformers`, which is not changed.

    A tokenizer without a padding token (GPT-2) is padded with its end-of-sequence
    token. That is safe because masks and labels are made from lengths, never by
    comparing ids with the padding id.

    Args:
        tokenizer: a `transformers.PreTrainedTokenizerFast` such as T5's or GPT-2's.

    Returns:
        The same vocabulary and ids; every encoded text ends with `eos_token_id`.

    Raises:
        TypeError: the tokenizer has no Rust backend.
        ValueError: the tokenizer has no end-of-sequence token.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, RustTokenizer):
        raise TypeError(
            f"{type(tokenizer).__name__} is not a fast tokenizer; load it with "
            "transformers.AutoTokenizer.from_pretrained(..., use_fast=True)"
        )
    eos = tokenizer.eos_token_id
    if eos is None:
        raise ValueError(
            f"{type(tokenizer).__name__} has no end-of-sequence token, so generation "
            "could not stop; set tokenizer.eos_token first"
        )
    pad, unk = tokenizer.pad_token_id, tokenizer.unk_token_id
    return HuggingFaceTokenizer(
        backend,
        pad_token_id=eos if pad is None else pad,
        eos_token_id=eos,
        # GPT-2 and Granite read bytes, and name another token as the unknown one.
        unk_token_id=None if unk in (eos, pad) else unk,
    )
