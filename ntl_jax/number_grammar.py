"""The one grammar of numbers in text: for data clean-up, labels and predictions.

A number is an ASCII decimal (``12``, ``12.5``, ``.5``), with commas between groups of
three digits (``1,234,567``) and an exponent (``1.2e-5``) where it has them. A sign
belongs to it only where it cannot be an operator: not after a digit, a letter or a
closing bracket. A currency sign may stand between the two (``-$5``). Ordinals
(``2nd``) are no quantities.

>>> [str(number.value) for number in find_numbers("62-8 = 54, or -1,000.5 (2nd try)")]
['62', '8', '54', '-1000.5']
"""

import re
from decimal import Decimal
from typing import Literal, NamedTuple

Mode = Literal["grammar", "paper"]

_GROUPED = r"[1-9][0-9]{0,2}(?:,[0-9]{3})++(?![0-9])"
_WHOLE = rf"(?>{_GROUPED}|[0-9]++)"
_MAGNITUDE = re.compile(
    rf"(?<![0-9])(?:{_WHOLE}(?>\.[0-9]++)?|(?<![\w.])\.[0-9]++)"
    r"(?>[eE][+-]?[0-9]{1,4}(?![\w.]?[0-9]))?(?![0-9])"
)
_SPACED = re.compile(r"(?<![\d.,])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![\d,]|-[A-Za-z])")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b", re.IGNORECASE)
_SIGN = re.compile(r"([+\-\u2212])(\s*)[$€£]?\Z")
_OPERAND_END = re.compile(r"[0-9)\]}%]\Z")
# The research code's pattern: the last match, spaces dropped, is the number.
_PAPER = re.compile(r"[+-]?\s*\d+(\.\d+)?")


class Number(NamedTuple):
    """A number and where it stands: ``text[start:end]`` is it without its sign."""

    value: Decimal
    start: int
    end: int


def find_numbers(text: str, *, mode: Mode = "grammar") -> list[Number]:
    """All numbers of a text, from left to right, as exact decimals.

    Args:
        text: any text.
        mode: ``"grammar"``, as above, or ``"paper"``: every match of
            ``[+-]?\\s*\\d+(\\.\\d+)?``. The latter reads 62-8 as 62 and -8, 1,000 as 1
            and 0, and .5 as 5; for tables that must agree with the paper's.

    Returns:
        The numbers; empty where there is none.

    Source: *Regress, Don't Guess* (ICML 2025), its evaluation code, for
    ``mode="paper"``.
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
    return numbers


def last_number(text: str, *, mode: Mode = "grammar") -> Decimal | None:
    """The last number of a text, which is where an answer stands, or None.

    >>> last_number("So he earns 2 * $5 = $10.\\n#### 10")
    Decimal('10')
    >>> last_number("The answer is five.") is None
    True
    """
    numbers = find_numbers(text, mode=mode)
    return numbers[-1].value if numbers else None


def clean_numbers(text: str) -> str:
    """Writes every number in plain digits; nothing else of the text changes.

    Groups of three lose their comma or space, a leading point gets its zero. Two
    numbers that only a space divides (2 132-page books: 2 books) are told from one
    (2 132 pages) by a hyphenated word alone.

    >>> clean_numbers("12.5% of $1,000, 1 500 000 and .5")
    '12.5% of $1000, 1500000 and 0.5'

    Source: the clean-up of GSM8K in *Regress, Don't Guess* (ICML 2025), made span by
    span: there, a rule for one number also hit its copies inside others (12.5 became
    120.5 where .5 stood elsewhere).
    """
    text = _SPACED.sub(lambda match: match[0].replace(" ", ""), text)
    return _MAGNITUDE.sub(_plain, text)


def _plain(match: re.Match[str]) -> str:
    digits = match[0].replace(",", "")
    return "0" + digits if digits.startswith(".") else digits


def _is_negative(text: str, start: int) -> bool:
    """Whether a minus sign before `text[start]` belongs to the number there."""
    before = text[max(0, start - 32) : start]  # a sign stands close, texts are long
    sign = _SIGN.search(before)
    if sign is None or sign[1] == "+":
        return False
    before = before[: sign.start()]
    if before[-1:].isalnum():  # x-5
        return False
    before = before.rstrip()
    if _OPERAND_END.search(before):  # 62 -8, (1) - 8
        return False
    return not (sign[2] and before[-1:].isalpha())  # "is -5", but not "x - 5"
