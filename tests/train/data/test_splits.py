"""load_splits over generated, raw and JSONL data, and the TensorFlow-free builders."""

import gzip
import subprocess
import sys

import pytest

from tests.train.data.helpers import jsonl, passages
from train.config import DataConfig
from train.data import DataError, load_splits
from train.data.mathematics import read_mathematics
from train.data.official import read_gsm8k


def test_arithmetic_splits():
    splits = load_splits(DataConfig(train_size=300, eval_size=20, max_operand=20))
    assert len(splits.train) == 300
    assert {name: len(rows) for name, rows in splits.evaluation.items()} == {
        "interpolation": 20,
        "extrapolation": 20,
    }
    train = {row["question"] for row in splits.train}
    assert not train & {row["question"] for row in splits.evaluation["interpolation"]}


def test_mathematics_splits(data_dir):
    modules = ("arithmetic__mul", "algebra__linear_1d")
    data = DataConfig(
        name="mathematics",
        raw_dir=str(data_dir),
        modules=modules,
        train_size=600,
        eval_size=10,
    )
    splits = load_splits(data)
    folder = data_dir / "mathematics_dataset"
    expected = [
        row
        for module in modules
        for difficulty in data.difficulties
        for row in read_mathematics(folder / difficulty / f"{module}.txt.gz")[:100]
    ]
    assert list(splits.train) == expected
    read = [
        read_mathematics(folder / "interpolate" / f"{module}.txt.gz")
        for module in modules
    ]
    interpolation = splits.evaluation["interpolation"]
    assert list(interpolation) == [*read[0][:5], *read[1][:5]]
    extrapolation = splits.evaluation["extrapolation"]
    path = folder / "extrapolate" / "arithmetic__add_sub_multiple_longer.txt.gz"
    assert list(extrapolation) == list(read_mathematics(path)[:10])


def test_mathematics_takes_all_rows_from_either_folder(data_dir):
    folder = data_dir / "mathematics_dataset"
    for raw_dir in (data_dir, folder):
        splits = load_splits(DataConfig(name="mathematics", raw_dir=str(raw_dir)))
        assert len(splits.train) == 15_000
        assert {name: len(rows) for name, rows in splits.evaluation.items()} == {
            "interpolation": 5000,
            "extrapolation": 5000,
        }


def test_gsm8k_splits_and_the_papers_share(data_dir, monkeypatch):
    monkeypatch.setenv("NTL_DATA_DIR", str(data_dir))
    splits = load_splits(DataConfig(name="gsm8k"))
    assert len(splits.train) == 7473
    assert splits.evaluation.keys() == {"test"}
    assert list(splits.evaluation["test"]) == read_gsm8k(data_dir / "gsm8k/test.jsonl")

    paper = load_splits(DataConfig(name="gsm8k", validation_fraction=0.15))
    assert len(paper.train) == 6353
    validation = paper.evaluation["validation"]
    assert (len(validation), len(paper.evaluation["test"])) == (1120, 1319)
    both = [row["question"] for row in [*paper.train, *validation]]
    assert sorted(both) == sorted(row["question"] for row in splits.train)
    other = load_splits(DataConfig(name="gsm8k", validation_fraction=0.15, seed=1))
    assert list(other.evaluation["validation"]) != list(validation)


def test_jsonl_splits(tmp_path):
    train_file, train = jsonl(tmp_path / "train.jsonl", 30)
    eval_file, held_out = jsonl(tmp_path / "eval.jsonl", 7)
    splits = load_splits(DataConfig(name="jsonl", train_file=train_file))
    assert (splits.train, splits.evaluation) == (train, {})
    data = DataConfig(
        name="jsonl",
        train_file=train_file,
        eval_file=eval_file,
        train_size=4,
        eval_size=3,
        validation_fraction=0.5,
    )
    splits = load_splits(data)
    assert len(splits.train) == 4
    assert list(splits.evaluation["eval"]) == held_out[:3]
    assert len(splits.evaluation["validation"]) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "gsm9k"}, "no dataset 'gsm9k'; take one of arithmetic"),
        ({"train_size": 0}, "train_size must be at least 1 or None, got 0"),
        ({"name": "jsonl"}, "--data.name jsonl needs --data.train-file"),
        ({"name": "jsonl", "train_file": "/no/t.jsonl"}, "/no/t.jsonl: no such file"),
        ({"name": "gsm8k", "raw_dir": "/no/such"}, "/such'; correct --data.raw-dir"),
        ({"name": "gsm8k", "raw_dir": "."}, r"train\.jsonl: no such file, nor"),
        ({"name": "mathematics", "raw_dir": "."}, r"multiple\.txt: no such file, nor"),
        ({"name": "mathematics", "modules": ()}, "at least one module"),
        (
            {"name": "gsm8k", "train_split": "dev"},
            "--data.train-split is for rjokes, not gsm8k",
        ),
        ({"validation_fraction": 0.1}, "is for gsm8k, jsonl, tsv, not arithmetic"),
        ({"train_file": "t.jsonl"}, "--data.train-file is for jsonl, tsv, not arith"),
        ({"eval_file": "e.tsv", "name": "gsm8k"}, "--data.eval-file is for jsonl, tsv"),
        ({"digits": 3}, "--data.digits is for multiplication, not arithmetic"),
    ],
)
def test_errors_name_the_remedy(options, message):
    with pytest.raises(DataError, match=message):
        load_splits(DataConfig(**options))


def test_more_rows_than_there_are_is_an_error(tmp_path, data_dir):
    train_file, _ = jsonl(tmp_path / "train.jsonl", 3)
    message = "--data.train-size is 4, but jsonl has 3 rows: lower it, or give None"
    with pytest.raises(DataError, match=message):
        load_splits(DataConfig(name="jsonl", train_file=train_file, train_size=4))
    with pytest.raises(DataError, match="is 15001, but mathematics has 15000 rows"):
        load_splits(
            DataConfig(name="mathematics", raw_dir=str(data_dir), train_size=15_001)
        )
    with pytest.raises(DataError, match=r"validation_fraction must be in \[0, 1\)"):
        load_splits(
            DataConfig(name="jsonl", train_file=train_file, validation_fraction=1.0)
        )
    message = r"--data\.validation-fraction 0\.3 of 3 rows is less than one: .* 0\.333"
    with pytest.raises(DataError, match=message):
        load_splits(
            DataConfig(name="jsonl", train_file=train_file, validation_fraction=0.3)
        )


NO_TENSORFLOW = """
import sys
from absl import flags
flags.FLAGS.mark_as_parsed()

raw, out = sys.argv[1:]
from train.data import builders
from train.data.files import find_file
from train.data.mathematics import read_mathematics
from train.data.official import read_gsm8k, read_multirc, read_rjokes

def check(builder, splits):
    builder = builders.prepare(builder)
    assert set(builder.info.splits) == set(splits), builder.info.splits
    for split, expected in splits.items():
        rows = builders.ArrayRecordRows(builder, split)
        assert list(rows) == list(expected), split
        assert rows[-1] == expected[-1] and rows[1:3] == list(expected[1:3])

for paper_form in (False, True):
    options = {"config": builders.form_config(paper_form), "data_dir": out}
    folder = raw + "/gsm8k"
    check(builders.Gsm8k(raw_dir=folder, **options), {
        split: read_gsm8k(find_file(folder, split + ".jsonl"), paper_form=paper_form)
        for split in ("train", "test")
    })
    folder = raw + "/multirc"
    check(builders.MultiRC(raw_dir=folder, **options), {
        split: read_multirc(
            find_file(folder, split + ".jsonl"),
            labelled=split != "test",
            paper_form=paper_form,
        )
        for split in ("train", "val", "test")
    })

folder = raw + "/rjokes"
check(builders.RJokes(raw_dir=folder, data_dir=out), {
    split: read_rjokes(find_file(folder, split + ".tsv"))
    for split in ("train", "dev", "test")
})

module, folder = "arithmetic__mul", raw + "/mathematics_dataset"
config = builders.mathematics_config(module)
check(builders.Mathematics(config=config, raw_dir=folder, data_dir=out), {
    builders.split_name(split): read_mathematics(f"{folder}/{split}/{module}.txt.gz")
    for split in ("train-easy", "train-medium", "train-hard", "interpolate")
})
assert "tensorflow" not in sys.modules
print("the same rows")
"""


def prepared_without_tensorflow(raw, out):
    done = subprocess.run(
        [sys.executable, "-c", NO_TENSORFLOW, str(raw), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip().endswith("the same rows"), done.stderr[-2000:]


@pytest.fixture
def raw(tmp_path):
    """Raw files of every dataset, a few rows each."""
    files = {
        "gsm8k/train.jsonl": ['{"question": "Is 12.5 .5?", "answer": "$1,000"}'] * 5,
        "gsm8k/test.jsonl": ['{"question": "1 000?", "answer": "<<1>>1"}'] * 4,
        "multirc/train.jsonl": [passages([("I", 1), ("you", 0)])] * 2,
        "multirc/val.jsonl": [passages([("I", 0)])],
        "multirc/test.jsonl": [passages([("I", None)])],
        "rjokes/train.tsv": ["3\tone\ttwo", "0\tthree", "11\tfour"],
        "rjokes/dev.tsv": ["1\tfive"] * 3,
        "rjokes/test.tsv": ["2\tsix"] * 3,
    }
    for split in ("train-easy", "train-medium", "train-hard", "interpolate"):
        name = f"mathematics_dataset/{split}/arithmetic__mul.txt"
        files[name] = [f"{split} 2 * 3?", "6"] * 3
    for name, lines in files.items():
        path = tmp_path / "raw" / f"{name}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path / "raw"


def test_builders_need_no_tensorflow_and_give_the_readers_rows(raw, tmp_path):
    prepared_without_tensorflow(raw, tmp_path)


@pytest.mark.slow
def test_builders_give_the_readers_rows_of_the_official_files(data_dir, tmp_path):
    raw = tmp_path / "raw"
    for name in ("gsm8k", "multirc", "mathematics_dataset", "rjokes"):
        (raw / name).mkdir(parents=True)
        for path in (data_dir / name).iterdir():
            (raw / name / path.name).symlink_to(path)
    if not (raw / "rjokes" / "train.tsv.gz").exists():
        (raw / "rjokes" / "train.tsv").write_text("3\tone\n1\ttwo\n")
    prepared_without_tensorflow(raw, tmp_path)
