"""The paper's parts of the mathematics set: files, counts, splits, right answers."""

import collections

import pytest

from tests.train.data.helpers import wrong_answers
from train.config import DataConfig
from train.data import DataError, load_splits
from train.data.files import find_file
from train.data.mathematics import (
    EXTRAPOLATION_MODULES,
    MODULES,
    SUBSETS,
    read_mathematics,
)
from train.data.mathematics_questions import FOLDERS, TEST_FILE_ROWS, TRAIN_FILE_ROWS

TRAIN_FOLDERS = FOLDERS[:3]
SUMS = "arithmetic__add_sub_multiple"


def modules_of(folder):
    return EXTRAPOLATION_MODULES if folder == "extrapolate" else MODULES


def test_the_papers_counts_follow_from_the_release():
    paper, files = SUBSETS["paper"], len(MODULES) * len(TRAIN_FOLDERS)
    held_out = paper.held_out(TRAIN_FILE_ROWS)
    assert (files * (TRAIN_FILE_ROWS - held_out), files * held_out) == (
        25_986_948,
        13_026,
    )
    assert len(MODULES) * TEST_FILE_ROWS == 130_000
    assert len(EXTRAPOLATION_MODULES) * TEST_FILE_ROWS == 70_000


@pytest.mark.parametrize("folder", FOLDERS)
def test_release_files_have_the_release_rows(data_dir, folder):
    sizes = collections.Counter(
        len(read_mathematics(find_file(root(data_dir) / folder, f"{module}.txt")))
        for module in modules_of(folder)
    )
    expected = TRAIN_FILE_ROWS if folder.startswith("train") else TEST_FILE_ROWS
    assert sizes.total() == len(modules_of(folder)), "a file is missing"
    if expected not in sizes:
        pytest.skip(f"the files of {folder} have {list(sizes)} rows: not release v1.0")
    assert list(sizes) == [expected]


def root(data_dir):
    return data_dir / "mathematics_dataset"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder like the release's, 2,000 rows a training file, 20 a test file."""
    folder = tmp_path_factory.mktemp("small")
    for split in FOLDERS:
        (folder / split).mkdir()
        n = 2000 if split.startswith("train") else 20
        for module in modules_of(split):
            lines = [f"{split} {module} {row}?\n{row}\n" for row in range(n)]
            (folder / split / f"{module}.txt").write_text("".join(lines))
    return folder


def sizes_of(splits):
    sizes = {name: len(rows) for name, rows in splits.evaluation.items()}
    return len(splits.train), sizes


def test_the_papers_subset(small):
    data = DataConfig(name="mathematics", subset="paper", raw_dir=str(small))
    splits = load_splits(data)
    assert sizes_of(splits) == (
        39 * 1999,
        {"validation": 39, "interpolation": 13 * 20, "extrapolation": 7 * 20},
    )
    every = [row["question"] for row in splits.train]
    every += [row["question"] for row in splits.evaluation["validation"]]
    assert len(set(every)) == 39 * 2000
    folders = {tuple(question.split()[:2]) for question in every}
    assert folders == {(split, module) for split in TRAIN_FOLDERS for module in MODULES}


def test_a_seed_chooses_the_validation_rows_file_by_file(small):
    def validation(**changes):
        data = DataConfig(
            name="mathematics", subset="paper", raw_dir=str(small), **changes
        )
        rows = load_splits(data).evaluation["validation"]
        return {tuple(row["question"].split()[:2]): row["answer"] for row in rows}

    first = validation()
    assert first == validation()
    assert len(set(first.values())) > 30
    assert sum(validation(seed=1)[file] == row for file, row in first.items()) < 3
    easy = validation(train_size=5)
    assert easy == first


def test_the_arithmetic_subset_of_smaller_files(data_dir):
    """1,000 rows of each of three files are held out, whatever their size."""
    data = DataConfig(name="mathematics", subset="arithmetic", raw_dir=str(data_dir))
    path = find_file(root(data_dir) / "train-easy", f"{SUMS}.txt")
    rows = len(read_mathematics(path))
    if rows == TRAIN_FILE_ROWS:
        pytest.skip("the files are release v1.0's")
    with pytest.raises(
        DataError, match=f"has {rows} rows, 34333 are needed: .* --data.train-size"
    ):
        load_splits(data)
    splits = load_splits(DataConfig(**vars(data) | {"train_size": 6_000}))
    assert sizes_of(splits)[0] == 6_000
    assert len(splits.evaluation["validation"]) == 3_000
    train = {row["question"] for row in splits.train}
    held_out = collections.Counter(
        row["question"] in train for row in splits.evaluation["validation"]
    )
    assert held_out[True] < 200  # short questions occur more than once in the files


def test_the_arithmetic_subset_of_files_as_long_as_the_release():
    data = DataConfig(name="mathematics", subset="arithmetic", generate=True)
    assert sizes_of(load_splits(data)) == (
        99_999,
        {"validation": 3_000, "interpolation": 10_000, "extrapolation": 10_000},
    )


def test_the_papers_subset_of_files_as_long_as_the_release():
    """The shuffles of 26 million places."""
    data = DataConfig(name="mathematics", subset="paper", generate=True)
    assert sizes_of(load_splits(data)) == (
        25_986_948,
        {"validation": 13_026, "interpolation": 130_000, "extrapolation": 70_000},
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"subset": "paper", "modules": ("a__b",)}, "leave out --data.modules, or"),
        ({"subset": "paper", "difficulties": ("train-easy",)}, "its own difficulties"),
        ({"generate": True, "modules": ("a__b",)}, "a__b' is not generated for train"),
        ({"name": "gsm8k", "subset": "paper"}, "--data.subset is for mathematics, not"),
        (
            {"name": "gsm8k", "generate": True},
            "--data.generate is for mathematics, not",
        ),
        (
            {"generate": True, "difficulties": ("hard",)},
            "no folder 'hard'; take one of",
        ),
    ],
)
def test_contradictions_name_themselves(fields, message):
    with pytest.raises(DataError, match=message):
        load_splits(DataConfig(**{"name": "mathematics"} | fields))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_sum_in_the_files_is_right(data_dir, folder):
    module = SUMS + "_longer" * (folder == "extrapolate")
    rows = list(read_mathematics(find_file(root(data_dir) / folder, f"{module}.txt")))
    assert len(rows) >= 5000
    rows = rows[:5000]
    assert wrong_answers(rows) == []
    altered = rows[7] | {"answer": str(int(rows[7]["answer"]) + 1)}
    assert wrong_answers([*rows[:3], altered]) == [altered]
