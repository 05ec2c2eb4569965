"""Rows of text to arrays of token ids, and these to padded batches."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ntl_jax.tokenization.hugging_face import Tokenizer
from train.data.files import DataError, RowError
from train.data.rows import Row
from train.data.token_cache import Arrays, cached

IGNORE_INDEX = -100
_ROWS_AT_ONCE = 8192  # bounds the memory of Python lists
_ARRAYS = ("sources", "source_offsets", "targets", "target_offsets", "truncated")
_MULTIPLE = 8  # lengths are rounded up to it: few shapes, and aligned ones

Batch = dict[str, np.ndarray]
Length = TypeVar("Length", int, np.ndarray)


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Concatenated rows of different lengths: row i is values[offsets[i]:offsets[i+1]].

    Args:
        values: [total], integers.
        offsets: i64[N + 1], from 0 to total.
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_sizes(cls, values: np.ndarray, sizes: Sequence[int]) -> "Ragged":
        """Concatenated values, and the length of each row."""
        ends = np.cumsum(sizes, dtype=np.int64)
        return cls(values, np.concatenate([[0], ends]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Lengths of these rows [B]."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """The values of these rows [B], concatenated."""
        sizes = self.sizes(rows)
        gaps = self.offsets[rows] - (np.cumsum(sizes) - sizes)
        return self.values[np.arange(sizes.sum()) + np.repeat(gaps, sizes)]

    def longest(self) -> int:
        """Length of the longest row."""
        return int(np.diff(self.offsets).max())

    def pad(self, rows: np.ndarray, length: int, fill: int) -> tuple:
        """Rows [B] padded to i32[B, length], and the mask of real values, bool."""
        starts = self.offsets[rows]
        sizes = self.offsets[rows + 1] - starts
        columns = np.arange(length)
        mask = columns < sizes[:, None]  # [B, length]
        positions = np.minimum(starts[:, None] + columns, len(self.values) - 1)
        return np.where(mask, self.values[positions], np.int32(fill)), mask


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedDataset:
    """N questions and answers as token ids, in host memory.

    Args:
        sources: ids of the questions, end-of-sequence last.
        targets: ids of the answers, end-of-sequence last.
        pad_token_id: what questions are padded with.
        source_length: S, the padded length of questions [tokens].
        target_length: T, the padded length of answers [tokens].
        truncated_sources: number of truncated questions.
        truncated_targets: number of truncated answers.
    """

    sources: Ragged
    targets: Ragged
    pad_token_id: int
    source_length: int
    target_length: int
    truncated_sources: int
    truncated_targets: int

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def shape(self) -> tuple[int, ...]:
        """The padded lengths of a row's question and answer [tokens]."""
        return self.source_length, self.target_length

    def lengths(self) -> np.ndarray:
        """Tokens of each row's question and answer, [N, 2]."""
        sides = (self.sources, self.targets)
        return np.stack([np.diff(side.offsets) for side in sides], axis=1)

    def eval_batch(self, rows: np.ndarray) -> Batch:
        """The rows [B] as `batch`, with the prompts of generation."""
        return self.batch(rows)

    def count_tokens(self, batch: Batch) -> int:
        """The number of tokens in a batch without padding."""
        answers = int((batch["labels"] != IGNORE_INDEX).sum())
        return int(batch["attention_mask"].sum()) + answers

    def batch(self, rows: np.ndarray, lengths: Sequence[int] | None = None) -> Batch:
        """The rows [B] as a padded batch.

        Args:
            rows: their indices.
            lengths: S and T, at least those of these rows; None: those of all rows.

        Returns:
            ``input_ids`` i32[B, S], ``attention_mask`` bool[B, S], and ``labels``
            i32[B, T] with -100 after the end-of-sequence token.
        """
        source, target = lengths or self.shape
        input_ids, mask = self.sources.pad(rows, source, self.pad_token_id)
        labels, _ = self.targets.pad(rows, target, IGNORE_INDEX)
        return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}


@dataclasses.dataclass(frozen=True, eq=False)
class CausalDataset(TokenizedDataset):
    """The same for decoder-only models: each answer follows its question in one row.

    The questions have no end-of-sequence token.
    """

    @functools.cached_property
    def length(self) -> int:
        """L, the padded length of a question with its answer [tokens]."""
        return round_up(int(self.lengths().max()))

    @property
    def shape(self) -> tuple[int, ...]:
        """The padded length of a row [tokens]."""
        return (self.length,)

    def lengths(self) -> np.ndarray:
        """Tokens of each row's question with its answer, [N, 1]."""
        return super().lengths().sum(axis=1, keepdims=True)

    def batch(self, rows: np.ndarray, lengths: Sequence[int] | None = None) -> Batch:
        """The rows [B] as a padded batch.

        Args:
            rows: their indices.
            lengths: L, at least that of these rows; None: that of all rows.

        Returns:
            ``input_ids`` i32[B, L] and ``attention_mask`` bool[B, L] of question and
            answer, and ``labels`` i32[B, L]: the answer's tokens at their positions,
            the end-of-sequence token last, -100 elsewhere.
        """
        (length,) = lengths or self.shape
        asked, is_asked = self.sources.pad(rows, length, self.pad_token_id)
        answers, _ = self.targets.pad(rows, length, IGNORE_INDEX)
        # Each answer moves right by the length of its question.
        columns = np.arange(length) - is_asked.sum(axis=1)[:, None]  # [B, L]
        moved = np.take_along_axis(answers, np.maximum(columns, 0), axis=1)
        labels = np.where(columns >= 0, moved, IGNORE_INDEX).astype(np.int32)
        is_answer = labels != IGNORE_INDEX
        return {
            "input_ids": np.where(is_answer, labels, asked),
            "attention_mask": is_asked | is_answer,
            "labels": labels,
        }

    def eval_batch(self, rows: np.ndarray) -> Batch:
        """Like `batch`, and the questions as prompts.

        Returns:
            also ``prompt_ids`` i32[B, S] and ``prompt_mask`` bool[B, S], padded on the
            left, so that every answer begins at the same position.
        """
        asked, mask = self.sources.pad(rows, self.source_length, self.pad_token_id)
        shift = self.source_length - mask.sum(axis=1)
        places = (np.arange(self.source_length) - shift[:, None]) % self.source_length
        prompts = {
            "prompt_ids": np.take_along_axis(asked, places, axis=1),
            "prompt_mask": np.take_along_axis(mask, places, axis=1),
        }
        return self.batch(rows) | prompts

    def count_tokens(self, batch: Batch) -> int:
        """The number of tokens in a batch without padding."""
        return int(batch["attention_mask"].sum())


def tokenize_rows(
    rows: Sequence[Row],
    tokenizer: Tokenizer,
    *,
    max_source_length: int,
    max_target_length: int,
    vocab_size: int | None = None,
    separator: str | None = None,
    cache: str | None = None,
) -> TokenizedDataset:
    """Tokenises every row once.

    Long texts are truncated at the end, but keep the end-of-sequence token. S and T are
    the longest rows after that, rounded up to a multiple of 8.

    Args:
        rows: N rows, at least one.
        tokenizer: whose `encode_batch` ends each text with end-of-sequence.
        max_source_length: the most tokens of a question.
        max_target_length: the most tokens of an answer.
        vocab_size: the model's number of logit columns; every id must be below it.
        separator: text between question and answer of a decoder-only model; None for an
            encoder-decoder.
        cache: folder that keeps the ids between runs; None keeps none.

    Returns:
        A `CausalDataset` if there is a separator.

    Raises:
        DataError: no rows, a maximum below 1, or an id outside the vocabulary.
    """
    if not len(rows):
        raise DataError("no rows to tokenise: check the files")
    for name, length in (
        ("max_source_length", max_source_length),
        ("max_target_length", max_target_length),
    ):
        if length < 1:
            raise DataError(f"{name} must be at least 1, got {length}")
    causal = separator is not None
    limits = (max_source_length, max_target_length)
    make = functools.partial(_token_ids, rows, tokenizer, limits, separator)
    if cache is None:
        ids = make()
    else:
        settings = {"limits": limits, "separator": separator}
        ids = cached(cache, rows, tokenizer, settings, make, _ARRAYS)
    sources = Ragged(ids["sources"], ids["source_offsets"])
    targets = Ragged(ids["targets"], ids["target_offsets"])
    if causal and (np.diff(sources.offsets) == 0).any():
        row = 1 + int(np.argmin(np.diff(sources.offsets)))
        raise DataError(
            f"the question of row {row} has no token: a decoder-only model needs one "
            "to begin with; remove the row, or set a separator"
        )
    if vocab_size is not None:
        for name, ragged in (("question", sources), ("answer", targets)):
            _check_ids(name, ragged, vocab_size)
    return (CausalDataset if causal else TokenizedDataset)(
        sources=sources,
        targets=targets,
        pad_token_id=tokenizer.pad_token_id,
        source_length=round_up(sources.longest()),
        target_length=round_up(targets.longest()),
        truncated_sources=int(ids["truncated"][0]),
        truncated_targets=int(ids["truncated"][1]),
    )


def _token_ids(
    rows: Sequence[Row],
    tokenizer: Tokenizer,
    limits: tuple[int, int],
    separator: str | None,
) -> Arrays:
    """The ids and row offsets of both columns, and how many rows were truncated."""
    source = _Column(limits[0], ends=separator is None)
    target = _Column(limits[1])
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        chunk = rows[start : start + _ROWS_AT_ONCE]
        source.extend([row["question"] + (separator or "") for row in chunk], tokenizer)
        target.extend([row["answer"] for row in chunk], tokenizer)
    sources, targets = source.ragged(), target.ragged()
    return {
        "sources": sources.values,
        "source_offsets": sources.offsets,
        "targets": targets.values,
        "target_offsets": targets.offsets,
        "truncated": np.array([source.truncated, target.truncated]),
    }


class _Column:
    """Collects the ids of one column of the rows, truncated to a maximum length."""

    def __init__(self, max_length: int, ends: bool = True) -> None:
        self.truncated = 0
        self._ends = ends  # in the end-of-sequence token
        self._max_length = max_length
        self._values: list[np.ndarray] = []
        self._lengths: list[int] = []

    def extend(self, texts: list[str], tokenizer: Tokenizer) -> None:
        encoded = tokenizer.encode_batch(texts)
        end = [tokenizer.eos_token_id] if self._ends else []
        for ids in encoded:
            if not self._ends:
                del ids[-1]
            if len(ids) > self._max_length:
                ids[self._max_length - len(end) :] = end
                self.truncated += 1
        flat = [token_id for ids in encoded for token_id in ids]
        self._values.append(np.array(flat, np.int32))
        self._lengths.extend(map(len, encoded))

    def ragged(self) -> Ragged:
        return Ragged.from_sizes(np.concatenate(self._values), self._lengths)


def _check_ids(name: str, ragged: Ragged, vocab_size: int) -> None:
    low, high = int(ragged.values.min()), int(ragged.values.max())
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        where = int(np.flatnonzero(ragged.values == bad)[0])
        row = int(np.searchsorted(ragged.offsets, where, side="right"))
        raise RowError(
            f"the {name} of row {row} has token id {bad}, outside 0..{vocab_size - 1}: "
            "the model's vocabulary is smaller than the tokenizer's; use the tokenizer "
            "that belongs to the model"
        )


def round_up(length: Length) -> Length:
    """The next multiple of 8, of one length or of an array of them."""
    return -(-length // _MULTIPLE) * _MULTIPLE
