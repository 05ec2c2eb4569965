"""xVal's task: question and answer in one text, with masked numbers."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from ntl_jax.numbers.grammar import Exact, Number, find_numbers
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.tokenization import XvalTokenizer, mask_at_random, mask_last_number
from ntl_jax.tokenization.masked_numbers import MaskedBatch, MaskedRow
from ntl_jax.tokenization.xval import NumberedIds
from train.data.files import DataError, RowError
from train.data.rows import Row, named_answer
from train.data.transforms import Batch, Ragged, TokenizedDataset, round_up

_ROWS_AT_ONCE = 10_000


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedDataset(TokenizedDataset):
    """N questions, each followed by its answer, in which tokens are masked.

    Args:
        sources: ids of the rows, each number as [NUM], end-of-sequence last.
        targets: ids of the answers, their numbers in digits.
        values: f32, the number at each [NUM] of the sources, 1 elsewhere.
        num_id: the id of [NUM].
        mask_id: the id of the mask token.
        rate: the fraction of tokens that training masks at random; None masks only the
            answer's number, as evaluation does.
        scale: applied to numbers that the model reads or predicts.
    """

    values: Ragged
    num_id: int
    mask_id: int
    rate: float | None
    scale: ValueScale

    @functools.cached_property
    def length(self) -> int:
        """T, the padded length of a row [tokens]."""
        return round_up(self.sources.longest())

    @property
    def shape(self) -> tuple[int, ...]:
        """The padded length of a row [tokens]."""
        return (self.length,)

    def lengths(self) -> np.ndarray:
        """Tokens of each row, [N, 1]."""
        return np.diff(self.sources.offsets)[:, None]

    def numbers(self) -> np.ndarray:
        """Every number of the rows, f32, unscaled."""
        return self.values.values[self.sources.values == self.num_id]

    def count_tokens(self, batch: Batch) -> int:
        """The number of tokens in a batch without padding."""
        return int(batch["attention_mask"].sum())

    def batch(self, rows: np.ndarray, lengths: Sequence[int] | None = None) -> Batch:
        """The rows [B] as a padded batch, with the answer's number masked.

        Args:
            rows: their indices.
            lengths: T, at least that of these rows; None: that of all rows.

        Returns:
            ``input_ids`` i32, ``input_values`` f32, ``attention_mask`` bool, ``labels``
            i32 (-100 where nothing is masked) and ``label_values`` f32, all [B, T].
        """
        ids, values, mask = self._padded(rows, lengths)
        hidden = [
            mask_last_number(
                NumberedIds(*row), num_id=self.num_id, mask_id=self.mask_id
            )
            for row in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        return self._as_batch(_stacked(hidden), mask)

    def train_batch(
        self,
        rows: np.ndarray,
        places: np.ndarray,
        *,
        seed: int,
        lengths: Sequence[int] | None = None,
    ) -> Batch:
        """As `batch`; with a rate, random tokens are masked instead.

        Args:
            rows: their indices.
            places: i64 [B], the place of each in the stream of training rows; the mask
                is a function of place and seed.
            seed: any non-negative integer.
            lengths: as for `batch`.
        """
        if self.rate is None:
            return self.batch(rows, lengths)
        ids, values, mask = self._padded(rows, lengths)
        hidden = [
            mask_at_random(
                ids[row : row + 1],
                values[row : row + 1],
                mask[row : row + 1],
                rate=self.rate,
                mask_id=self.mask_id,
                rng=np.random.default_rng([seed, place]),
            )
            for row, place in enumerate(places.tolist())
        ]
        columns = zip(*hidden, strict=True)
        return self._as_batch(MaskedBatch(*map(np.concatenate, columns)), mask)

    def _padded(self, rows: np.ndarray, lengths: Sequence[int] | None):
        (length,) = lengths or self.shape
        ids, mask = self.sources.pad(rows, length, self.pad_token_id)
        values, _ = self.values.pad(rows, length, 1)
        return ids, values.astype(np.float32), mask

    def _as_batch(self, hidden: MaskedBatch, mask: np.ndarray) -> Batch:
        return {
            "input_ids": hidden.ids,
            "input_values": self._scaled(hidden.ids, hidden.values),
            "attention_mask": mask,
            "labels": hidden.labels,
            "label_values": self._scaled(hidden.labels, hidden.label_values),
        }

    def _scaled(self, ids: np.ndarray, values: np.ndarray) -> np.ndarray:
        scaled = np.where(ids == self.num_id, self.scale.apply(values), 1.0)
        return scaled.astype(np.float32)


def mask_rows(
    rows: Sequence[Row],
    tokenizer: XvalTokenizer,
    *,
    max_source_length: int,
    max_target_length: int,
    rate: float | None = None,
) -> MaskedDataset:
    """Tokenises every row once, with unscaled numbers (scale "none").

    An answer that is a fraction is first written as a decimal, so that it is one
    number. Long questions are truncated at the end, long answers at the beginning, as
    their last number is the one to predict.

    Args:
        rows: N rows, at least one.
        tokenizer: its base encodes every text.
        max_source_length: the most tokens of a question.
        max_target_length: the most tokens of an answer.
        rate: see `MaskedDataset`.

    Raises:
        DataError: no rows; or an answer without a number, or whose last number is
            beyond the range of float32.
    """
    if not len(rows):
        raise DataError("no rows to tokenise: check the files")
    num_id = tokenizer.num_id
    ids: list[np.ndarray] = []
    values: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    cut = [0, 0]
    encoded = enumerate(_encoded(rows, tokenizer), start=1)
    for place, (number, question, answer, plain) in encoded:
        _check_answer(rows, place, number, answer, num_id)
        cut[0] += len(question.ids) - 1 > max_source_length
        cut[1] += len(answer.ids) > max_target_length
        asked = [column[:-1][:max_source_length] for column in question]
        answered = [column[-max_target_length:] for column in answer]
        if num_id not in answered[0]:
            raise RowError(
                f"the number of row {place}'s answer stands more than "
                f"{max_target_length} tokens before its end: raise "
                "--data.max-target-length"
            )
        ids.append(np.array(asked[0] + answered[0], np.int32))
        values.append(np.array(asked[1] + answered[1], np.float32))
        targets.append(np.array(plain, np.int32))
    sources, answers = _ragged(ids), _ragged(targets)
    return MaskedDataset(
        sources=sources,
        targets=answers,
        pad_token_id=tokenizer.pad_token_id,
        source_length=round_up(sources.longest()),
        target_length=round_up(answers.longest()),
        truncated_sources=cut[0],
        truncated_targets=cut[1],
        values=_ragged(values),
        num_id=num_id,
        mask_id=tokenizer.mask_id,
        rate=rate,
        scale=ValueScale("none"),
    )


def question_row(question: str, tokenizer: XvalTokenizer) -> MaskedRow:
    """A question followed by a mask in the place of its answer."""
    asked, answer = tokenizer.encode_numbers_batch([question, " 0"])
    row = NumberedIds(asked.ids[:-1] + answer.ids, asked.values[:-1] + answer.values)
    return mask_last_number(row, num_id=tokenizer.num_id, mask_id=tokenizer.mask_id)


def _encoded(
    rows: Sequence[Row], tokenizer: XvalTokenizer
) -> Iterator[tuple[Number | None, NumberedIds, NumberedIds, list[int]]]:
    """Each row's last number, question, answer, and the answer's ids in digits.

    Question and answer are encoded separately: in "Add 7 to 5 -3" the sign would be
    lost.
    """
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        chunk = rows[start : start + _ROWS_AT_ONCE]
        answers = [row["answer"] for row in chunk]
        found = [find_numbers(answer, fractions=True) for answer in answers]
        numbers = [found_in[-1] if found_in else None for found_in in found]
        written = [
            " " + _in_decimals(answer, number)
            for answer, number in zip(answers, numbers, strict=True)
        ]
        yield from zip(
            numbers,
            tokenizer.encode_numbers_batch([row["question"] for row in chunk]),
            tokenizer.encode_numbers_batch(written),
            tokenizer.base.encode_batch(answers),
            strict=True,
        )


def _in_decimals(answer: str, last: Number | None) -> str:
    """The answer, with its last number as a decimal if it is a fraction: -3/4 is -0.75,
    the sign stays before the number."""
    if last is None or not isinstance(last.value, Fraction):
        return answer
    size = np.format_float_positional(abs(_float(last.value)), trim="-")
    return answer[: last.start] + size + answer[last.end :]


def _check_answer(
    rows: Sequence[Row],
    place: int,
    last: Number | None,
    answer: NumberedIds,
    num_id: int,
) -> None:
    if last is None:
        raise RowError(
            f"{named_answer(rows, place)} holds no number, which a Numformer is asked "
            "for: leave the row out, or set --head lm"
        )
    read = [v for i, v in zip(answer.ids, answer.values, strict=True) if i == num_id]
    number = _float(last.value)
    with np.errstate(over="ignore"):
        kept = np.float32(read[-1]) if read else None
        wanted = np.float32(number)
    if kept == wanted:
        return
    if kept == -wanted:
        raise RowError(
            f"{named_answer(rows, place)} ends with the number {number:g}, but no '-' "
            "stands right before its digits: write it there, or set --head lm"
        )
    raise RowError(
        f"{named_answer(rows, place)} ends with a number that float32 does not hold in "
        "full: leave the row out, or set --head lm"
    )


def _float(number: Exact) -> float:
    try:
        return float(number)
    except OverflowError:  # of fractions; decimals give infinity
        return float("inf") if number > 0 else float("-inf")


def _ragged(parts: Sequence[np.ndarray]) -> Ragged:
    return Ragged.from_sizes(np.concatenate(parts), [len(part) for part in parts])


def _stacked(rows: Sequence[MaskedRow]) -> MaskedBatch:
    ids, values, labels, label_values = zip(*rows, strict=True)
    return MaskedBatch(
        np.array(ids, np.int32),
        np.array(values, np.float32),
        np.array(labels, np.int32),
        np.array(label_values, np.float32),
    )
