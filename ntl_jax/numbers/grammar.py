"""The grammar of numbers in text, for data clean-up, labels and predictions.

A number is an ASCII decimal (``12``, ``12.5``, ``.5``), with commas between groups of
three digits (``1,234,567``) and an exponent (``1.2e-5``, up to four digits). A sign
belongs to it only where it cannot be an operator: not after a digit, a letter or a
closing bracket. A currency sign may stand between the two (``-$5``). Ordinals
(``2nd``) are not quantities. Digits of other scripts do not count, as they are not
number tokens.

>>> [str(number.value) for number in find_numbers("62-8 = 54, or -1,000.5 (2nd try)")]
['62', '8', '54', '-1000.5']

Fractions are read on request, as in labels and predictions. The number losses see the
two numbers that a fraction is written with.

>>> [str(number.value) for number in find_numbers("-3/4 or 2 1/2", fractions=True)]
['-3/4', '5/2']

Values are exact, whatever their size, so ``==`` between them is equality of numbers:
0.50, 5e-1 and 1/2 are equal, 0.1 and the float nearest to it are not.
"""

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from typing import Literal, NamedTuple

Mode = Literal["grammar", "paper"]
Exact = Decimal | Fraction
"""The value of a number: a decimal, or a fraction if fractions are read."""

_GROUPED = r"[1-9][0-9]{0,2}(?:,[0-9]{3}(?![0-9]))++"
_WHOLE = rf"(?>{_GROUPED}|[0-9]++)"
_MAGNITUDE = re.compile(
    rf"(?<![0-9])(?:{_WHOLE}(?>\.[0-9]++)?|(?<![\w.])\.[0-9]++)"
    r"(?>[eE][+-]?[0-9]{1,4}(?![\w.]?[0-9]))?(?![0-9])"
)
_SPACED = re.compile(r"(?<![\d.,])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![\d,]|-[A-Za-z])")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b", re.IGNORECASE)
_SIGN = re.compile(r"([+\-\u2212])(\s*)[$€£]?\Z")
_OPERAND_END = re.compile(r"[0-9)\]}%]\Z")
_DIGITS = re.compile(r"[0-9,]+\Z")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")  # one-character fractions
# The research code's pattern: the last match, spaces dropped, is the number.
_PAPER = re.compile(r"[+-]?\s*\d+(\.\d+)?")


class Number(NamedTuple):
    """A number and its position: ``text[start:end]`` is the number without its sign."""

    value: Exact
    start: int
    end: int


def find_numbers(
    text: str, *, mode: Mode = "grammar", fractions: bool = False
) -> list[Number]:
    """All numbers in a text, from left to right, with exact values.

    Args:
        text: any text.
        mode: ``"grammar"``, as above, or ``"paper"``: every match of
            ``[+-]?\\s*\\d+(\\.\\d+)?``. The latter reads 62-8 as 62 and -8, 1,000 as 1
            and 0, and .5 as 5; for tables that must agree with the paper's.
        fractions: read whole numbers around a slash (``3/4``), one-character fractions
            and mixed numbers (``2 1/2``) as one number, a `Fraction`. Spaces around
            the slash (a division), further slashes (a date) and a denominator of 0
            leave two numbers. The mode ``"paper"`` reads no fractions.

    Returns:
        The numbers; an empty list if there are none.

    Raises:
        ValueError: for an unknown mode.

    Source: *Regress, Don't Guess* (ICML 2025), its evaluation code, for
    ``mode="paper"``. Answers as fractions: Saxton et al. (2019).
    """
    if mode == "paper":
        return [
            Number(Decimal("".join(match[0].split())), *match.span())
            for match in _PAPER.finditer(text)
        ]
    if mode != "grammar":
        raise ValueError(f"mode must be 'grammar' or 'paper', got {mode!r}")
    numbers = []
    for match in _MAGNITUDE.finditer(text):
        start, end = match.span()
        if _ORDINAL.match(text, end):
            continue
        value = Decimal(match[0].replace(",", ""))
        if _is_negative(text, start):
            value = value.copy_negate()  # unary minus would round
        numbers.append(Number(value, start, end))
    return _with_fractions(text, numbers) if fractions else numbers


def last_number(
    text: str, *, mode: Mode = "grammar", fractions: bool = False
) -> Exact | None:
    """The last number in a text, where an answer usually stands, or None.

    >>> last_number("So he earns 2 * $5 = $10.\\n#### 10")
    Decimal('10')
    >>> last_number("The answer is five.") is None
    True
    >>> last_number("x = 3/4", fractions=True) == last_number("x = 0.75")
    True
    """
    numbers = find_numbers(text, mode=mode, fractions=fractions)
    return numbers[-1].value if numbers else None


def clean_numbers(text: str, *, context: str = "") -> str:
    """Rewrites every number in plain digits, and leaves the rest of the text alone.

    Groups of three lose their comma or space, a leading point gets its zero.

    Two numbers separated only by a space (2 132-page books: 2 books) look like one
    (2 132 pages). A hyphenated word after them, or a context in which each group is a
    number by itself, marks them as two.

    >>> clean_numbers("12.5% of $1,000, 1 500 000 and .5")
    '12.5% of $1000, 1500000 and 0.5'
    >>> clean_numbers("He has 2 132 letters.", context="2 * 132 = 264")
    'He has 2 132 letters.'

    Args:
        text: any text.
        context: other text about the same numbers; it may contain the text itself.

    Source: the clean-up of GSM8K in *Regress, Don't Guess* (ICML 2025), applied span
    by span: there, the replacement of one number also hit its copies inside others
    (12.5 became 120.5 where .5 occurred elsewhere).
    """
    if _SPACED.search(text):
        context = _SPACED.sub(";", context)
        alone = {context[n.start : n.end] for n in find_numbers(context)}
        text = _SPACED.sub(lambda match: _joined(match[0], alone), text)
    return _MAGNITUDE.sub(_plain, text)


def _joined(spaced: str, alone: set[str]) -> str:
    groups = spaced.split(" ")
    return spaced if alone.issuperset(groups) else "".join(groups)


def _plain(match: re.Match[str]) -> str:
    digits = match[0].replace(",", "")
    return "0" + digits if digits.startswith(".") else digits


def _with_fractions(text: str, numbers: list[Number]) -> list[Number]:
    """Merges the two numbers of a fraction, and the whole number before it."""
    for match in _VULGAR.finditer(text):
        above, below = unicodedata.normalize("NFKD", match[0]).split("\u2044")
        value = Fraction(int(above), int(below))
        value = -value if _is_negative(text, match.start()) else value
        numbers.append(Number(value, *match.span()))
    numbers = sorted(numbers, key=lambda number: number.start)
    joined: list[Number] = []
    for number in numbers:
        if joined and _is_slashed(text, joined[-1], number):
            above = joined.pop()
            value = Fraction(above.value) / Fraction(number.value)
            number = Number(value, above.start, number.end)
        if joined and _is_mixed(text, joined[-1], number):
            whole = joined.pop()
            sign = -1 if _is_negative(text, whole.start) else 1
            value = Fraction(whole.value) + sign * Fraction(number.value)
            number = Number(value, whole.start, number.end)
        joined.append(number)
    return joined


def _is_slashed(text: str, above: Number, below: Number) -> bool:
    """Whether two adjacent numbers are the numerator and denominator of a fraction."""
    return (
        text[above.end : below.start] == "/"
        and _is_whole(text, above)
        and _is_whole(text, below)
        and below.value != 0
        and text[above.start - 1 : above.start] != "/"
        and text[below.end : below.end + 1] != "/"
    )


def _is_mixed(text: str, whole: Number, part: Number) -> bool:
    """Whether a proper fraction continues the whole number before it."""
    return (
        isinstance(part.value, Fraction)
        and 0 < part.value < 1
        and _is_whole(text, whole)
        and text[whole.end : part.start] in ("", " ")
        and text[whole.start - 1 : whole.start] != "/"
    )


def _is_whole(text: str, number: Number) -> bool:
    """Whether a number is written only with digits and commas between groups."""
    return _DIGITS.match(text[number.start : number.end]) is not None


def _is_negative(text: str, start: int) -> bool:
    """Whether a minus sign before `text[start]` belongs to the number there."""
    before = text[max(0, start - 32) : start]  # the sign is close, texts are long
    sign = _SIGN.search(before)
    if sign is None or sign[1] == "+":
        return False
    before = before[: sign.start()]
    if before[-1:].isalnum():  # x-5
        return False
    before = before.rstrip()
    if _OPERAND_END.search(before) or before[-1:].isnumeric():  # 62 -8, (1) - 8
        return False
    return not (sign[2] and before[-1:].isalpha())  # "is -5", but not "x - 5"
