"""Generated questions in the wording of the mathematics dataset, without its files.

The wording and the kinds of numbers are the dataset's; the distribution is not: a model
trained on these is no substitute for one trained on release v1.0. (DeepMind's own
generator does not run on current NumPy or SymPy.) Composed modules first name one
number of another module's question; the dataset also has longer chains.
"""

import hashlib
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from random import Random

from train.data.algebra_questions import (
    Pair,
    definition,
    letters,
    linear_1d,
    linear_2d,
    plain,
    random_expression,
    sequence_next_term,
)
from train.data.files import DataError
from train.data.rows import ComputedRows, Row

Range = tuple[float, float]

_THIRDS: dict[str, Range] = {
    "train-easy": (0.0, 1 / 3),
    "train-medium": (1 / 3, 2 / 3),
    "train-hard": (2 / 3, 1.0),
    "interpolate": (0.0, 1.0),
    "extrapolate": (0.0, 1.0),
}
FOLDERS = tuple(_THIRDS)
TRAIN_FILE_ROWS = 666_666  # of release v1.0
TEST_FILE_ROWS = 10_000
_HELD_OUT = 10  # one question in 10 is held out for evaluation by interpolation
_LONGEST = 160  # characters of a question, by the dataset's definition
_EXACT = Context(prec=100)
_WHOLE = re.compile(r"\d+")
_SIGNED = re.compile(r"-?\d+(?:\.\d+)?")


def generated_rows(folder: str, module: str, *, seed: int) -> ComputedRows:
    """A file of the dataset, whose rows are generated when they are read.

    A tenth of all questions, chosen by a hash of their text, occurs only in the folder
    ``interpolate`` and in no training folder.

    Args:
        folder: ``train-easy``, ``train-medium``, ``train-hard``, ``interpolate`` or
            ``extrapolate``.
        module: a name like ``arithmetic__mul``; ``extrapolate`` has its own.
        seed: equal seeds give equal rows.

    Returns:
        As many rows as a file of release v1.0: 666,666 for training, else 10,000.

    Raises:
        DataError: unknown folder, or a module that the folder does not have or that is
            not generated.

    Source: Saxton et al., *Analysing Mathematical Reasoning Abilities of Neural
    Models* (2019), whose questions these are like.
    """
    if folder not in FOLDERS:
        raise DataError(f"no folder {folder!r}; take one of {', '.join(FOLDERS)}")
    modules = _EXTRAPOLATION if folder == "extrapolate" else _MODULES
    if module not in modules:
        raise DataError(
            f"the module {module!r} is not generated for {folder}; take one of "
            f"{', '.join(modules)}, or the files of release v1.0"
        )
    make, (low, high) = modules[module]
    start, stop = (low + share * (high - low) for share in _THIRDS[folder])

    def row(number: int) -> Row:
        rng = Random(f"{seed}/{folder}/{module}/{number}")
        while True:
            question, answer = make(rng, rng.uniform(start, stop))
            if len(question) <= _LONGEST and _belongs(question, folder):
                return {"question": question, "answer": answer}

    is_training = folder.startswith("train")
    return ComputedRows(TRAIN_FILE_ROWS if is_training else TEST_FILE_ROWS, row)


def _belongs(question: str, folder: str) -> bool:
    if folder == "extrapolate":
        return True
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    is_held_out = int.from_bytes(digest, "big") % _HELD_OUT == 0
    return is_held_out == (folder == "interpolate")


def _add_or_sub(rng: Random, digits: float) -> Pair:
    a, b = _two_decimals(rng, digits)
    template, sign = rng.choice(_SUMS)
    if template.startswith(_DISTANCE):
        value = _EXACT.abs(_EXACT.subtract(a, b))
    else:
        value = _EXACT.add(a, b) if sign > 0 else _EXACT.subtract(a, b)
    return template.format(a=plain(a), b=plain(b)), plain(value)


def _mul(rng: Random, digits: float) -> Pair:
    a, b = _two_decimals(rng, digits)
    template = rng.choice(_PRODUCTS)
    return template.format(a=plain(a), b=plain(b)), plain(_EXACT.multiply(a, b))


def _sums_of_several(rng: Random, terms: float) -> Pair:
    value = Fraction(rng.randint(-100, 100))
    size = 10 ** rng.randint(1, 2)
    return _asked(rng, value, round(terms), size, "+-")


def _products_of_several(rng: Random, terms: float) -> Pair:
    return _asked(rng, Fraction(rng.randint(-400, 400)), round(terms), 40, "*/")


def _mixed(rng: Random, terms: float) -> Pair:
    return _asked(rng, Fraction(rng.randint(-400, 400)), round(terms), 30, "+-*/")


def _asked(rng: Random, value: Fraction, terms: int, size: int, operators: str) -> Pair:
    text = random_expression(rng, value, terms, size, operators).text()
    return rng.choice(_EXPRESSIONS).format(text), str(value)


def _div_remainder(rng: Random, digits: float) -> Pair:
    short = rng.uniform(1, max(1.5, digits / 2))
    q = rng.randint(2, int(10**short))
    p = rng.randint(q, max(q + 1, int(10**digits)))
    ask = rng.choice(
        (
            "What is the remainder when {} is divided by {}?",
            "Calculate the remainder when {} is divided by {}.",
        )
    )
    return ask.format(p, q), str(p % q)


def _place_value(rng: Random, digits: float) -> Pair:
    size = round(digits)
    number = rng.randint(10 ** (size - 1), 10**size - 1)
    place = rng.randrange(size)
    question = f"What is the {_PLACES[place]} digit of {number}?"
    return question, str(number)[-1 - place]


def _round_number(rng: Random, digits: float) -> Pair:
    while True:
        number = _decimal(rng, round(digits))
        places = rng.randint(-6, 7)
        unit = Decimal(1).scaleb(-places)
        value = number.quantize(unit, ROUND_HALF_UP, _EXACT)
        off = abs(_EXACT.subtract(number, value))
        # Skip numbers without a digit left, without rounding, and ties.
        if value and off and 2 * off != unit:
            break
    to = _nearest(rng, -places) if places < 0 else _decimal_places(rng, places)
    ask = rng.choice(("Round {} to {}.", "What is {} rounded to {}?"))
    return ask.format(plain(number), to), plain(value)


def _composed(make: "Make", named: re.Pattern[str]) -> "Make":
    """Another module's question with a letter for one number: the first one if its sign
    is included, else any."""

    def make_composed(rng: Random, difficulty: float) -> Pair:
        question, answer = make(rng, difficulty)
        numbers = list(named.finditer(question))
        number = numbers[0] if named is _SIGNED else rng.choice(numbers)
        (letter,) = letters(rng, 1, taken=question)
        asked = question[: number.start()] + letter + question[number.end() :]
        return f"{definition(rng, letter, Decimal(number[0]))} {asked}", answer

    return make_composed


def _nearest(rng: Random, zeros: int) -> str:
    if rng.random() < 0.5:
        return f"the nearest {10**zeros}"
    return f"the nearest {_POWERS[zeros - 1]}"


def _decimal_places(rng: Random, places: int) -> str:
    count = rng.choice((str(places), _WORDS[places]))
    noun = rng.choice(("decimal place", "dp"))
    return f"{count} {noun}{'' if places == 1 else 's'}"


def _two_decimals(rng: Random, digits: float) -> tuple[Decimal, Decimal]:
    """Two numbers with this many digits in total."""
    total = max(2, round(digits))
    first = rng.randint(1, total - 1)
    return _decimal(rng, first), _decimal(rng, total - first)


def _decimal(rng: Random, digits: int) -> Decimal:
    """An integer, or equally often a number with decimals."""
    magnitude = rng.randint(10 ** (digits - 1), 10**digits - 1)
    sign = rng.choice((-1, 1))
    if rng.random() < 0.5:
        return Decimal(sign * magnitude)
    magnitude += magnitude % 10 == 0
    return Decimal(sign * magnitude).scaleb(-rng.randint(1, digits + 1), _EXACT)


_DISTANCE = "What is the di"
_SUMS = (
    ("{a} + {b}", 1),
    ("{a}+{b}", 1),
    ("Work out {a} + {b}.", 1),
    ("What is {a} plus {b}?", 1),
    ("Calculate {a} + {b}.", 1),
    ("Add {a} and {b}.", 1),
    ("Add together {a} and {b}.", 1),
    ("Put together {a} and {b}.", 1),
    ("Sum {a} and {b}.", 1),
    ("Total of {a} and {b}.", 1),
    ("{a} - {b}", -1),
    ("Work out {a} - {b}.", -1),
    ("What is {a} minus {b}?", -1),
    ("What is {a} take away {b}?", -1),
    ("Calculate {a} - {b}.", -1),
    ("Subtract {b} from {a}.", -1),
    ("What is {b} less than {a}?", -1),
    (_DISTANCE + "fference between {a} and {b}?", -1),
    (_DISTANCE + "stance between {a} and {b}?", -1),
)
_PRODUCTS = (
    "{a}*{b}",
    "{a} * {b}",
    "{a} times {b}",
    "Calculate {a}*{b}.",
    "Work out {a} * {b}.",
    "Multiply {a} and {b}.",
    "Product of {a} and {b}.",
    "What is the product of {a} and {b}?",
    "What is {a} times {b}?",
)
_EXPRESSIONS = (
    "{}",
    "What is {}?",
    "Evaluate {}.",
    "Calculate {}.",
    "What is the value of {}?",
)
_ONES = ("", "ten ", "hundred ")
_PLACES = (
    "units",
    "tens",
    "hundreds",
    *(ten + name for name in ("thousands", "millions", "billions") for ten in _ONES),
)
_POWERS = (
    "ten",
    "one hundred",
    "one thousand",
    "ten thousand",
    "one hundred thousand",
    "one million",
)
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven")

Make = Callable[[Random, float], Pair]
# The generator, and its difficulty from the easiest to the hardest: digits or terms.
_MODULES: dict[str, tuple[Make, Range]] = {
    "algebra__linear_1d": (linear_1d, (1, 4)),
    "algebra__linear_1d_composed": (_composed(linear_1d, _WHOLE), (1, 3)),
    "algebra__linear_2d": (linear_2d, (1, 4)),
    "algebra__linear_2d_composed": (_composed(linear_2d, _WHOLE), (1, 3)),
    "algebra__sequence_next_term": (sequence_next_term, (1, 8)),
    "arithmetic__add_or_sub": (_add_or_sub, (2, 17)),
    "arithmetic__add_sub_multiple": (_sums_of_several, (3.5, 7.5)),
    "arithmetic__mul": (_mul, (2, 10)),
    "numbers__div_remainder": (_div_remainder, (2, 9)),
    "numbers__div_remainder_composed": (_composed(_div_remainder, _WHOLE), (2, 6)),
    "numbers__place_value": (_place_value, (2.5, 10.5)),
    "numbers__round_number": (_round_number, (2, 10)),
    "numbers__round_number_composed": (_composed(_round_number, _SIGNED), (2, 8)),
}
_EXTRAPOLATION: dict[str, tuple[Make, Range]] = {
    "arithmetic__add_or_sub_big": (_add_or_sub, (17, 22)),
    "arithmetic__add_sub_multiple_longer": (_sums_of_several, (9.5, 15.5)),
    "arithmetic__mixed_longer": (_mixed, (6.5, 10.5)),
    "arithmetic__mul_big": (_mul, (11, 14)),
    "arithmetic__mul_div_multiple_longer": (_products_of_several, (6.5, 10.5)),
    "numbers__place_value_big": (_place_value, (10.6, 12.4)),
    "numbers__round_number_big": (_round_number, (11, 14)),
}
GENERATED_MODULES = tuple(_MODULES)
GENERATED_EXTRAPOLATION_MODULES = tuple(_EXTRAPOLATION)
