"""Equations, sequences and expressions, as the mathematics dataset has them."""

import dataclasses
import re
import string
from decimal import Context, Decimal
from fractions import Fraction
from random import Random

Pair = tuple[str, str]

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
_LETTERS = [letter for letter in string.ascii_lowercase if letter != "e"]
_EXACT = Context(prec=100)
_NEXT = (
    "What is next in {}?",
    "What is the next term in {}?",
    "What comes next: {}?",
)


def linear_1d(rng: Random, digits: float) -> Pair:
    """An equation in one unknown with an integer solution."""
    (letter,) = letters(rng, 1)
    solution = _within(rng, digits / 2)
    coefficient = _non_zero(rng, digits)
    equation = _equation(rng, {letter: coefficient}, coefficient * solution, digits)
    return f"Solve {equation} for {letter}.", str(solution)


def linear_2d(rng: Random, digits: float) -> Pair:
    """Two equations in two unknowns, and the value of one of them."""
    pair = letters(rng, 2)
    solution = {letter: _within(rng, digits / 2) for letter in pair}
    while True:
        system = [
            {letter: _non_zero(rng, digits / 2) for letter in pair} for _ in range(2)
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
    """The values of a polynomial at 1, 2, ..., enough to determine it, and the next."""
    degree = rng.randint(1, 3)
    coefficients = [_within(rng, digits / (1 + power)) for power in range(degree)]
    coefficients.append(_non_zero(rng, digits / (1 + degree)))
    n = rng.randint(degree + 2, 8)
    terms = [
        sum(c * x**power for power, c in enumerate(coefficients))
        for x in range(1, n + 2)
    ]
    *shown, following = map(str, terms)
    return rng.choice(_NEXT).format(", ".join(shown)), following


def definition(rng: Random, letter: str, value: Decimal) -> str:
    """A sentence that assigns a number to a letter."""
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
    """Without exponent, trailing zeros of decimals, and minus before zero."""
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def letters(rng: Random, n: int, taken: str = "") -> list[str]:
    """n different letters that are not words of a text."""
    words = re.findall(r"\b[a-z]\b", taken)
    return rng.sample([letter for letter in _LETTERS if letter not in words], n)


def _exponent(value: Decimal) -> int:
    return int(value.as_tuple().exponent)


def _within(rng: Random, digits: float) -> int:
    most = int(10 ** max(1.0, digits))
    return rng.randint(-most, most)


def _non_zero(rng: Random, digits: float) -> int:
    return rng.choice((-1, 1)) * rng.randint(1, int(10 ** max(0.5, digits)))


def _equation(
    rng: Random, coefficients: dict[str, int], constant: int, digits: float
) -> str:
    """Coefficients times letters equal the constant; split into terms, some of them on
    the other side."""
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
    """Non-zero numbers that add up to a value."""
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


@dataclasses.dataclass(frozen=True)
class Expression:
    """Two expressions and their operator, or an integer.

    Args:
        operator: one of ``+ - * /``, or None for an integer.
        left: the first operand, or the integer.
        right: the second operand; None for an integer.
    """

    operator: str | None
    left: "Expression | int"
    right: "Expression | None" = None

    def text(self) -> str:
        """In the notation of the mathematics dataset.

        >>> Expression("-", Expression(None, 1), Expression(None, -2)).text()
        '1 - -2'
        """
        if self.operator is None:
            return str(self.left)
        assert isinstance(self.left, Expression) and self.right is not None
        rank = _PRECEDENCE[self.operator]
        left = self.left.text()
        if self.left.operator and _PRECEDENCE[self.left.operator] < rank:
            left = f"({left})"
        right = self.right.text()
        if _needs_brackets(self.operator, self.right, right):
            right = f"({right})"
        space = " " if rank == 1 else ""
        return f"{left}{space}{self.operator}{space}{right}"


def _needs_brackets(operator: str, right: Expression, text: str) -> bool:
    """Whether a right operand needs brackets; a minus after ``*`` or ``/`` does."""
    rank = _PRECEDENCE[operator]
    inner = _PRECEDENCE[right.operator] if right.operator else 3
    same = inner == rank and operator in "-/"
    return inner < rank or same or (rank == 2 and text.startswith("-"))


def random_expression(
    rng: Random, value: Fraction, terms: int, size: int, operators: str
) -> Expression:
    """An expression of `terms` integers with a given value.

    Args:
        rng: source of the choices.
        value: an integer if operators are only ``+-``.
        terms: number of integers; a remaining fraction takes two.
        size: drawn integers are in -size..size.
        operators: those that may occur.
    """
    if terms <= 1:
        if value.denominator == 1:
            return Expression(None, value.numerator)
        sign = rng.choice((-1, 1))
        above, below = sign * value.numerator, sign * value.denominator
        return Expression("/", Expression(None, above), Expression(None, below))
    first = rng.randint(1, terms - 1)
    operator = rng.choice(operators)
    part = Fraction(rng.choice((-1, 1)) * rng.randint(1, size))
    left, right = {
        "+": (part, value - part),
        "-": (part, part - value),
        "*": (part, value / part),
        "/": (value * part, part),
    }[operator]
    if operator in "+*" and rng.random() < 0.5:
        left, right = right, left
    return Expression(
        operator,
        random_expression(rng, left, first, size, operators),
        random_expression(rng, right, terms - first, size, operators),
    )
