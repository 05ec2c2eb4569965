"""docs/datasets.md: every dataset, no flag that is not one, the right damaged lines."""

import dataclasses
import pathlib
import re
import typing

from tests.train.test_data_gsm8k import DAMAGED, SPACED, ZEROS
from train.config import DataConfig

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "datasets.md").read_text()


def test_the_table_names_every_dataset():
    named = set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", PAGE, re.MULTILINE))
    names = typing.get_args(typing.get_type_hints(DataConfig)["name"])
    assert {name for pair in named for name in pair if name} == set(names)


def test_every_flag_is_one():
    flags = {flag.replace("-", "_") for flag in re.findall(r"--data\.([\w-]+)", PAGE)}
    assert flags <= {field.name for field in dataclasses.fields(DataConfig)}
    assert {"paper_form", "bad_rows", "subset", "generate"} <= flags


def test_damaged_lines_are_those_that_the_tests_found():
    rows = re.findall(
        r"\| (\d+) \| ([\d., ]+) \| ([\d., ]+) (?=\|)", PAGE.partition("| line |")[2]
    )
    listed = {
        int(line): list(zip(wrong.split(", "), right.split(", "), strict=True))
        for line, wrong, right in rows
    }
    assert listed == DAMAGED
    counts = f"{len(DAMAGED)} (below), extra zeros in {len(ZEROS)} "
    assert counts in PAGE.replace("\n", " ").replace("  ", " ")
    assert str(SPACED)[1:-1] in PAGE
