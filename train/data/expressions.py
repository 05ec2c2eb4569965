"""Random arithmetic expressions with a given value, and how they are written."""

import dataclasses
from fractions import Fraction
from random import Random

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclasses.dataclass(frozen=True)
class Expression:
    """Two expressions and what joins them, or an integer.

    Args:
        operator: one of ``+ - * /``, or None for an integer.
        left: the first operand, or the integer.
        right: the second operand; None for an integer.
    """

    operator: str | None
    left: "Expression | int"
    right: "Expression | None" = None

    def text(self) -> str:
        """As the mathematics dataset writes it.

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
    """Whether an operand behind an operator stands in brackets; a minus sign after
    ``*`` or ``/`` does too."""
    rank = _PRECEDENCE[operator]
    inner = _PRECEDENCE[right.operator] if right.operator else 3
    same = inner == rank and operator in "-/"
    return inner < rank or same or (rank == 2 and text.startswith("-"))


def random_expression(
    rng: Random, value: Fraction, terms: int, size: int, operators: str
) -> Expression:
    """An expression of so many integers that has a value.

    Args:
        rng: where the choices come from.
        value: whole if operators are ``+-`` alone.
        terms: how many integers; a fraction that is left over takes two.
        size: the integers that are drawn are within -size..size.
        operators: which may occur.
    """
    if terms <= 1:
        if value.denominator == 1:
            return Expression(None, value.numerator)
        sign = rng.choice((-1, 1))
        above, below = sign * value.numerator, sign * value.denominator
        return Expression("/", Expression(None, above), Expression(None, below))
    first = rng.randint(1, terms - 1)
    operator = rng.choice(operators)
    part = Fraction(_other_than_zero(rng, size))
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


def _other_than_zero(rng: Random, size: int) -> int:
    return rng.choice((-1, 1)) * rng.randint(1, size)
