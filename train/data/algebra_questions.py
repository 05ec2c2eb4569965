"""Equations, sequences and named numbers, as the mathematics dataset has them."""

import re
import string
from decimal import Context, Decimal
from fractions import Fraction
from random import Random

from train.data.expressions import random_expression

Pair = tuple[str, str]

_LETTERS = [letter for letter in string.ascii_lowercase if letter != "e"]
_EXACT = Context(prec=100)
_NEXT = (
    "What is next in {}?",
    "What is the next term in {}?",
    "What comes next: {}?",
)


def linear_1d(rng: Random, digits: float) -> Pair:
    """An equation of one unknown with a whole solution."""
    (letter,) = letters(rng, 1)
    solution = _within(rng, digits / 2)
    coefficient = _other_than_zero(rng, digits)
    equation = _equation(rng, {letter: coefficient}, coefficient * solution, digits)
    return f"Solve {equation} for {letter}.", str(solution)


def linear_2d(rng: Random, digits: float) -> Pair:
    """Two equations of two unknowns, of which one is asked for."""
    pair = letters(rng, 2)
    solution = {letter: _within(rng, digits / 2) for letter in pair}
    while True:
        system = [
            {letter: _other_than_zero(rng, digits / 2) for letter in pair}
            for _ in range(2)
        ]
        (a, b), (c, d) = (row.values() for row in system)
        if a * d != b * c:
            break
    equations = [
        _equation(rng, row, sum(row[v] * solution[v] for v in pair), digits / 2)
        for row in system
    ]
    asked = rng.choice(pair)
    return f"Solve {', '.join(equations)} for {asked}.", str(solution[asked])


def sequence_next_term(rng: Random, digits: float) -> Pair:
    """The values of a polynomial at 1, 2, ..., as many as name it, and one more."""
    degree = rng.randint(1, 3)
    coefficients = [_within(rng, digits / (1 + power)) for power in range(degree)]
    coefficients.append(_other_than_zero(rng, digits / (1 + degree)))
    n = rng.randint(degree + 2, 8)
    terms = [
        sum(c * x**power for power, c in enumerate(coefficients))
        for x in range(1, n + 2)
    ]
    *shown, following = map(str, terms)
    return rng.choice(_NEXT).format(", ".join(shown)), following


def definition(rng: Random, letter: str, value: Decimal) -> str:
    """A sentence that gives a number its name."""
    if value == value.to_integral_value() and rng.random() < 0.5:
        whole = Fraction(int(value))
        operators = rng.choice(("+-", "*/", "+-*/"))
        text = random_expression(rng, whole, rng.randint(3, 5), 12, operators).text()
        return f"Let {letter} be {text}."
    size = len(value.as_tuple().digits)
    first = Decimal(_within(rng, size)).scaleb(rng.choice((0, _exponent(value))))
    if rng.random() < 0.5:
        return (
            f"Let {letter} = {plain(first)} + {plain(_EXACT.subtract(value, first))}."
        )
    return f"Let {letter} = {plain(first)} - {plain(_EXACT.subtract(first, value))}."


def plain(number: Decimal) -> str:
    """Without exponent, zeros at the end of a fraction, and minus before zero."""
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def letters(rng: Random, n: int, taken: str = "") -> list[str]:
    """So many different letters that a text does not hold as words."""
    words = re.findall(r"\b[a-z]\b", taken)
    return rng.sample([letter for letter in _LETTERS if letter not in words], n)


def _exponent(value: Decimal) -> int:
    return int(value.as_tuple().exponent)


def _within(rng: Random, digits: float) -> int:
    most = int(10 ** max(1.0, digits))
    return rng.randint(-most, most)


def _other_than_zero(rng: Random, digits: float) -> int:
    return rng.choice((-1, 1)) * rng.randint(1, int(10 ** max(0.5, digits)))


def _equation(
    rng: Random, coefficients: dict[str, int], constant: int, digits: float
) -> str:
    """The sum of the coefficients times their letters is the constant; in pieces, and
    some of them on the other side."""
    sides: tuple[list[str], list[str]] = ([], [])
    pieces = [
        (piece, letter)
        for letter, value in {**coefficients, "": -constant}.items()
        for piece in _pieces(rng, value, digits)
    ]
    rng.shuffle(pieces)
    for piece, letter in pieces:
        right = rng.random() < 0.5
        sides[right].append(_term(-piece if right else piece, letter))
    return " = ".join(_sum(side) for side in sides)


def _pieces(rng: Random, value: int, digits: float) -> list[int]:
    """Numbers other than zero that add up to a value."""
    cuts = [_within(rng, digits) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    return [piece for piece in (*cuts, value - sum(cuts)) if piece]


def _term(value: int, letter: str) -> str:
    if not letter:
        return str(value)
    sign = "-" if value < 0 else ""
    return sign + letter if abs(value) == 1 else f"{value}*{letter}"


def _sum(terms: list[str]) -> str:
    text = " + ".join(terms) or "0"
    return text.replace("+ -", "- ")
