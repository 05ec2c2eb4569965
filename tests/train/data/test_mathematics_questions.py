"""Generated mathematics questions: right, worded as the dataset's, and held out."""

import ast
import itertools
import math
import re
from decimal import Decimal
from fractions import Fraction
from random import Random

import pytest

from tests.train.data.helpers import evaluated, wrong_answers
from train.data import DataError
from train.data.algebra_questions import random_expression
from train.data.files import find_file
from train.data.mathematics import EXTRAPOLATION_MODULES, MODULES, read_mathematics
from train.data.mathematics_questions import (
    FOLDERS,
    GENERATED_EXTRAPOLATION_MODULES,
    GENERATED_MODULES,
    generated_rows,
)

ROWS = 120
NUMBER = r"-?\d+(?:\.\d+)?"
PLACES = ["units", "tens", "hundreds"]
PLACES += [
    ten + thousands
    for thousands in ("thousands", "millions", "billions")
    for ten in ("", "ten ", "hundred ")
]
POWERS = ["ten", "one hundred", "one thousand", "ten thousand", "one hundred thousand"]
POWERS += ["one million"]
COUNTS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
FILES = [(folder, module) for folder in FOLDERS[:-1] for module in GENERATED_MODULES]
FILES += [("extrapolate", module) for module in GENERATED_EXTRAPOLATION_MODULES]


def rows_of(folder, module, n=ROWS, seed=0):
    return list(generated_rows(folder, module, seed=seed)[:n])


def numbers(question):
    return [Fraction(text) for text in re.findall(NUMBER, question)]


def add_or_sub(question):
    a, b = numbers(question)
    if re.search("difference|distance", question):
        return abs(a - b)
    if re.search("Subtract|less than", question):
        return b - a
    if re.search(" - |minus|take away", question):
        return a - b
    assert re.search(r"\+|plus|Add|ogether|Sum|Total", question)
    return a + b


def place_value(question):
    place, number = re.fullmatch(
        r"What is the (.*) digit of (\d+)\?", question
    ).groups()
    return int(number) // 10 ** PLACES.index(place) % 10


def rounded(question):
    number = Fraction(re.search(NUMBER, question)[0])
    to = re.search(r" to (.*?)[.?]$", question)[1]
    if to.startswith("the nearest"):
        word = to.removeprefix("the nearest ")
        unit = Fraction(10 ** (POWERS.index(word) + 1) if word in POWERS else int(word))
    else:
        word = to.split()[0]
        unit = Fraction(1, 10 ** (COUNTS.index(word) if word in COUNTS else int(word)))
    size = math.floor(abs(number) / unit + Fraction(1, 2)) * unit
    return size if number > 0 else -size


def product(question):
    a, b = numbers(question)
    return a * b


def remainder(question):
    p, q = numbers(question)
    return p % q


def next_term(question):
    """What continues the table of differences, the last of which do not change."""
    rows = [numbers(question)]
    while len(set(rows[-1])) > 1:
        rows.append([b - a for a, b in itertools.pairwise(rows[-1])])
    assert len(rows[-1]) > 1
    return sum(row[-1] for row in rows)


def solution(question):
    """Of one or two linear equations, by their values at a few points."""
    text, asked = re.fullmatch(r"Solve (.*) for (\w)\.", question).groups()
    unknown = sorted(set(re.findall(r"[a-z]", text)))
    assert asked in unknown

    def off(equation, **at):
        value = dict.fromkeys(unknown, 0) | at
        sides = re.sub("[a-z]", lambda letter: f"({value[letter[0]]})", equation)
        left, right = sides.split(" = ")
        return value_of(left) - value_of(right)

    rows = []
    for equation in text.split(", "):
        at_zero = off(equation)
        slopes = [off(equation, **{letter: 1}) - at_zero for letter in unknown]
        rows.append([*slopes, -at_zero])
    if len(rows) == 1:
        ((slope, constant),) = rows
        return constant / slope
    (a, b, p), (c, d, q) = rows
    along, across = p * d - b * q, a * q - p * c
    return (along if asked == unknown[0] else across) / (a * d - b * c)


def value_of(text):
    return evaluated(ast.parse(text.strip(), mode="eval"))


def spelt_out(question):
    """A composed question with the value in the place of its letter."""
    letter, _, text, asked = re.fullmatch(
        r"Let (\w) (be|=) (.*?)\. ([A-Z].*)", question
    ).groups()
    value = value_of(text)
    decimal = f"{Decimal(value.numerator) / value.denominator:f}"
    assert Fraction(decimal) == value and re.search(rf"\b{letter}\b", asked)
    return re.sub(rf"\b{letter}\b", decimal, asked)


ANSWERS = {
    "algebra__linear_1d": solution,
    "algebra__linear_2d": solution,
    "algebra__sequence_next_term": next_term,
    "arithmetic__add_or_sub": add_or_sub,
    "arithmetic__mul": product,
    "numbers__div_remainder": remainder,
    "numbers__place_value": place_value,
    "numbers__round_number": rounded,
}


@pytest.mark.parametrize(("folder", "module"), FILES)
def test_answers_are_right(folder, module):
    rows = rows_of(folder, module)
    answer = ANSWERS.get(re.sub("_(big|composed)$", "", module))
    if answer is None:
        assert wrong_answers(rows) == []
        return
    for row in rows:
        question = row["question"]
        plain = spelt_out(question) if module.endswith("composed") else question
        assert answer(plain) == Fraction(row["answer"]), row
        assert re.fullmatch(NUMBER, row["answer"]), row
        assert not re.search(r"\.\d*0$|^-0$", row["answer"]), row


@pytest.mark.parametrize(
    "module", [*GENERATED_MODULES, *GENERATED_EXTRAPOLATION_MODULES]
)
def test_the_wording_is_the_datasets(data_dir, module):
    """With every number alike, no generated question is new to the files."""
    is_big = module in GENERATED_EXTRAPOLATION_MODULES
    folders = FOLDERS[-1:] if is_big else FOLDERS[:-1]
    known, made = set(), set()
    for folder in folders:
        path = find_file(data_dir / "mathematics_dataset" / folder, f"{module}.txt")
        known |= {wording(row["question"]) for row in read_mathematics(path)[:5000]}
        made |= {wording(row["question"]) for row in rows_of(folder, module)}
    assert made <= known


def wording(question):
    """Every number, letter and expression of them as one mark."""
    marked = re.sub(r"\b[a-z]\b|\d+(\.\d+)?", "#", question)
    return re.sub(r"[-(]*#[-+*/(), =#]*(?<=[#)])", "#", marked)


@pytest.mark.parametrize("module", GENERATED_MODULES)
def test_interpolation_shows_no_question_of_training(module):
    held_out = {row["question"] for row in rows_of("interpolate", module, 500)}
    for folder in FOLDERS[:3]:
        assert not held_out & {row["question"] for row in rows_of(folder, module, 1000)}


@pytest.mark.parametrize("module", GENERATED_MODULES)
def test_harder_folders_ask_more(module):
    def size(folder):
        rows = rows_of(folder, module, 200)
        return sum(len(row["question"]) for row in rows) / len(rows)

    easy, medium, hard = map(size, FOLDERS[:3])
    assert easy < medium < hard
    for beyond in GENERATED_EXTRAPOLATION_MODULES:
        if beyond.startswith(module):
            rows = rows_of("extrapolate", beyond, 200)
            assert sum(len(row["question"]) for row in rows) / 200 > hard


def test_modules_are_the_papers():
    assert set(GENERATED_EXTRAPOLATION_MODULES) == set(EXTRAPOLATION_MODULES)
    assert GENERATED_MODULES == MODULES
    rows = generated_rows("train-easy", GENERATED_MODULES[0], seed=0)
    assert len(rows) == 666_666 and rows[-1] == rows[666_665]
    assert len(generated_rows("interpolate", GENERATED_MODULES[0], seed=0)) == 10_000
    with pytest.raises(DataError, match="mul_big' is not generated for train-easy"):
        generated_rows("train-easy", "arithmetic__mul_big", seed=0)


def test_a_seed_fixes_rows_for_ever():
    sums = "arithmetic__add_sub_multiple"
    assert rows_of("train-easy", sums, 2) == rows_of("train-easy", sums, 9)[:2]
    assert rows_of("train-easy", sums) != rows_of("train-easy", sums, seed=1)
    assert rows_of("train-hard", sums, 1) == [
        {"question": "Calculate 9 - 22 + -3 + 13 + -1 + 11.", "answer": "7"}
    ]


def test_expressions_have_their_value_and_their_terms():
    rng = Random(0)
    rows = []
    for terms in range(1, 9):
        for operators in ("+-", "*/", "+-*/"):
            value = Fraction(rng.randint(-50, 50))
            text = random_expression(rng, value, terms, 12, operators).text()
            rows.append({"question": text, "answer": str(value)})
            assert len(re.findall(r"\d+", text)) >= terms
    assert wrong_answers(rows) == []
