"""Which labels of a row make up one number, and what each digit's place in it is."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from ntl_jax.losses.checks import check_is_array, check_segments, check_vocab
from ntl_jax.losses.row_scans import (
    at_or_after,
    at_or_before,
    count_since,
    nearest_marks,
    row_index,
    running_count,
    shift,
)
from ntl_jax.losses.targets import clip_labels, label_is
from ntl_jax.numbers.token_kinds import TokenKind
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes

Points = Literal["never", "one", "between", "always"]

# Flags that Kind leaves free, for what the policy of a vocabulary decides.
_NUMBER, _ZERO = 128, 256


class NumberSpans(NamedTuple):
    """The numbers in rows of labels. A run is one number: the positions that spell it.

    Where a position belongs to no run, ``run`` is T, and ``start`` and ``end`` are its
    own position. ``head``, ``length``, ``left``, ``right``, ``place`` and ``exponent``
    mean something at digits only.

    Attributes:
        digit: bool[*B, T], where the label is a number token and is not ignored.
        inside: bool[*B, T], a digit, or a point or comma that joins digits.
        first: bool[*B, T], the first digit of each run.
        head: i32[*B, T], the position of the first digit of the run.
        run: i32[*B, T], which run of the row, from 0.
        start: i32[*B, T], the first position of the run, maybe a leading point.
        end: i32[*B, T], the last position of the run.
        length: i32[*B, T], how many digits the run has.
        left: i32[*B, T], how many digits of the run stand to the left of this one.
        right: i32[*B, T], how many stand to its right.
        place: i32[*B, T], the power of ten of the digit: 0 for units, 1 for tens, -1
            for the first decimal. A run without a point ends in its units; of several
            points the first counts.
        exponent: i32[*B, T], the distance in positions to the units before the first
            point: as ``place``, but the point takes -1, the first decimal -2, and any
            further point a step of its own.
        leads: bool[*B, T], the run begins with a point.
        negative: bool[*B, T], a minus sign stands before the run.
    """

    digit: Bool[Array, "*B T"]
    inside: Bool[Array, "*B T"]
    first: Bool[Array, "*B T"]
    head: Int32[Array, "*B T"]
    run: Int32[Array, "*B T"]
    start: Int32[Array, "*B T"]
    end: Int32[Array, "*B T"]
    length: Int32[Array, "*B T"]
    left: Int32[Array, "*B T"]
    right: Int32[Array, "*B T"]
    place: Int32[Array, "*B T"]
    exponent: Int32[Array, "*B T"]
    leads: Bool[Array, "*B T"]
    negative: Bool[Array, "*B T"]


@on_auto_axes(labels=0)
def number_spans(
    labels: Int[Array, "*B T"],
    vocab: NumberVocab,
    *,
    points: Points = "one",
    commas: bool = False,
    segment_ids: Int[Array, "*B T"] | None = None,
    ignore_index: int = -100,
) -> NumberSpans:
    """Finds the numbers of each row from its labels alone.

    Number tokens that follow one another make a run. An ignored label, the border of a
    segment and a token with a word-start mark end it.

    Args:
        labels: token ids [*B, T]; a row is the last axis.
        vocab: the number tokens, and which tokens are points, commas and signs.
        points: which decimal points join digits into one run. "never"; "one", the first
            of ``12.34`` and of ``.5``, so that ``1.2.3`` is 1.2 and 3; "between", any
            with a digit on both sides, so that ``1.2.3`` is one run; "always", wherever
            a point stands, so that ``12.`` and ``..5`` are runs too.
        commas: whether a comma joins where one to three digits stand before it and
            exactly three after it.
        segment_ids: which of several packed texts a position is of [*B, T].
        ignore_index: the label that counts nothing.

    Returns:
        NumberSpans over [*B, T].

    Raises:
        ValueError: for unknown points, a label without a row axis, or segment_ids of
            another shape.

    >>> tokens = {str(d): d for d in range(10)} | {".": 10, "a": 11}
    >>> vocab = NumberVocab.from_mapping(tokens, vocab_size=12)
    >>> spans = number_spans(jnp.array([1, 2, 10, 3, 4, 11, 7]), vocab)
    >>> spans.run.tolist(), spans.place[jnp.array([0, 1, 3, 4, 6])].tolist()
    ([0, 0, 0, 0, 0, 7, 1], [1, 0, -1, -2, 0])
    """
    _check(labels, vocab, points, segment_ids)
    kinds = _label_kinds(labels, vocab, ignore_index)
    linked = _linked(kinds, segment_ids)
    digit = (kinds & _NUMBER) != 0
    point, behind = _joining_points(kinds, digit, linked, points)
    inside = digit | point
    if commas:
        inside |= _joining_commas(kinds, digit, point, linked)
    follows = inside & shift(inside, 1) & linked  # goes on the run of t - 1
    t = row_index(labels)
    # What is true at the start of a run comes along with its position.
    sign = _negative(kinds, linked, segment_ids).astype(jnp.int32)
    noted = 4 * t + 2 * point.astype(jnp.int32) + sign
    noted, coming = nearest_marks(jnp.where(follows, -1, noted))
    start, leads, negative = noted >> 2, (noted & 2) != 0, (noted & 1) != 0
    end = jnp.minimum(coming >> 2, labels.shape[-1]) - 1
    if commas or points in ("between", "always"):
        left, length, dot, place = _counts(digit, point, start, end, follows)
    else:
        left, length, dot, place = _positions(point, behind, start, end)
    if points == "always":  # a run may begin with several points
        first = digit & (left == 0)
        head = at_or_before(first, t)
    else:
        head = start + leads.astype(jnp.int32)
        first = digit & (head == t)
    index = running_count(inside & ~follows) - 1
    return NumberSpans(
        digit=digit,
        inside=inside,
        first=first,
        head=head,
        run=jnp.where(inside, index, labels.shape[-1]),
        start=start,
        end=end,
        length=length,
        left=left,
        right=length - left - 1,
        place=place,
        exponent=dot - 1 - t,
        leads=inside & leads,
        negative=inside & negative,
    )


def _positions(
    point: Bool[Array, "*B T"],
    behind: Bool[Array, "*B T"],
    start: Int32[Array, "*B T"],
    end: Int32[Array, "*B T"],
) -> tuple[Int32[Array, "*B T"], ...]:
    """(left, length, first point, place) where all of a run are digits but one point.

    From positions alone: nothing is counted.
    """
    t = row_index(start)
    coming = jnp.minimum(at_or_after(point, t), end + 1)
    dot = jnp.where(behind, at_or_before(point, t), coming)
    left = t - start - behind.astype(jnp.int32)
    length = end - start + 1 - (dot <= end).astype(jnp.int32)
    return left, length, dot, dot - t - (~behind).astype(jnp.int32)


def _counts(
    digit: Bool[Array, "*B T"],
    point: Bool[Array, "*B T"],
    start: Int32[Array, "*B T"],
    end: Int32[Array, "*B T"],
    follows: Bool[Array, "*B T"],
) -> tuple[Int32[Array, "*B T"], ...]:
    """(left, length, first point, place) of any run.

    A run without a point has it after its end.
    """
    t = row_index(point)
    count = running_count(digit)  # digits up to here
    of_run = at_or_after(t == end, count)
    before_run = at_or_before(~follows, count - digit.astype(jnp.int32))
    point &= shift(at_or_before(point, t), 1, fill=-1) < start  # the first of its run
    passed = at_or_before(point, t)
    behind = passed >= start
    coming = jnp.minimum(at_or_after(point, t), end + 1)
    whole = jnp.where(
        behind,
        at_or_before(point, count),
        at_or_after(point | (t == end), count),
    )
    dot = jnp.where(behind, passed, coming)
    return count - before_run - 1, of_run - before_run, dot, whole - count


def _check(
    labels: Array, vocab: NumberVocab, points: str, segment_ids: Array | None
) -> None:
    if points not in ("never", "one", "between", "always"):
        raise ValueError(
            f"points must be 'never', 'one', 'between' or 'always', not {points!r}."
        )
    check_is_array("labels", labels)
    if labels.ndim == 0:
        raise ValueError("labels need a row axis: their shape is (), a single token.")
    check_vocab(vocab)
    check_segments(segment_ids, labels)


def _label_kinds(
    labels: Int[Array, "*B T"], vocab: NumberVocab, ignore_index: int
) -> Int32[Array, "*B T"]:
    """The flags of each label, 0 where it is ignored."""
    table = vocab.kinds.astype(np.int32)
    table[vocab.token_ids] |= np.where(vocab.values == 0, _NUMBER | _ZERO, _NUMBER)
    ids = clip_labels(labels, vocab.vocab_size, ignore_index=ignore_index)
    kinds = jnp.asarray(table)[ids]
    return jnp.where(label_is(labels, ignore_index), 0, kinds)


def _linked(
    kinds: Int32[Array, "*B T"], segment_ids: Int[Array, "*B T"] | None
) -> Bool[Array, "*B T"]:
    """Whether a position may go on the number of the position before it."""
    linked = (kinds & TokenKind.WORD_START) == 0
    if segment_ids is not None:
        linked &= segment_ids == shift(segment_ids, 1)
    return linked


def _joining_points(
    kinds: Int32[Array, "*B T"],
    digit: Bool[Array, "*B T"],
    linked: Bool[Array, "*B T"],
    points: Points,
) -> tuple[Bool[Array, "*B T"], Bool[Array, "*B T"]]:
    """The points that are part of a number, and the digits that come after one.

    The latter for points "one" and "never" only.
    """
    point = (kinds & TokenKind.POINT) != 0
    nowhere = jnp.zeros_like(point)
    if points == "always":
        return point, nowhere
    if points == "never":
        return nowhere, nowhere
    before_digit = shift(digit & linked, -1)
    joins = point & shift(digit, 1) & linked & before_digit
    if points == "between":
        return joins, nowhere
    # A point that begins a number follows no digit, point or letter of its word.
    after_word = (shift(kinds, 1) & (_NUMBER | TokenKind.POINT | TokenKind.LETTER)) != 0
    joins |= point & before_digit & ~(after_word & linked)
    # In a chain of digits and points the first of every two points is a decimal point.
    chain = digit | joins
    begins = ~(chain & shift(chain, 1) & linked)
    odd = count_since(begins, joins) % 2 == 1
    return joins & odd, odd


def _joining_commas(
    kinds: Int32[Array, "*B T"],
    digit: Bool[Array, "*B T"],
    point: Bool[Array, "*B T"],
    linked: Bool[Array, "*B T"],
) -> Bool[Array, "*B T"]:
    """The commas that one to three digits precede and exactly three follow."""
    comma = ((kinds & TokenKind.COMMA) != 0) & linked
    inner = digit & linked
    after = [shift(inner, -k) for k in (1, 2, 3, 4)]
    three_after = after[0] & after[1] & after[2] & ~after[3]
    one, two, three = (shift(digit, k) for k in (1, 2, 3))
    four = shift(inner, 1) & shift(inner, 2) & shift(inner, 3) & shift(digit, 4)
    # Before the digits there may be no point.
    bars = shift(point, 2) | (two & (shift(point, 3) | (three & shift(point, 4))))
    commas = comma & one & three_after & ~four & ~bars
    # No zero may come first of all: such groups join only what a comma joined before.
    zero = digit & ((kinds & _ZERO) != 0) & ~(shift(digit, 1) & linked)
    zeros = shift(zero, 1) | (two & (shift(zero, 2) | (three & shift(zero, 3))))
    chain = digit | commas
    begins = ~(chain & shift(chain, 1) & linked)
    return commas & (count_since(begins, commas & ~zeros) > 0)


def _negative(
    kinds: Int32[Array, "*B T"],
    linked: Bool[Array, "*B T"],
    segment_ids: Int[Array, "*B T"] | None,
) -> Bool[Array, "*B T"]:
    """Whether the position before is a minus that is a sign and no operator."""
    seen = shift(kinds, 1)
    earlier = shift(kinds, 2)
    if segment_ids is not None:
        seen = jnp.where(segment_ids == shift(segment_ids, 1), seen, 0)
        earlier = jnp.where(segment_ids == shift(segment_ids, 2), earlier, 0)
    blank = (seen & TokenKind.BLANK) != 0
    operand = (jnp.where(blank, earlier, seen) & (TokenKind.OPERAND | _NUMBER)) != 0
    hyphen = ((seen & TokenKind.LETTER) != 0) & ((kinds & TokenKind.WORD_START) == 0)
    sign = ((kinds & TokenKind.MINUS) != 0) & ~operand & ~hyphen
    return shift(sign, 1) & linked
