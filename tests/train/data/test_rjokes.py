"""rJokes: rows, counts, and what an answer without a joke scores."""

import collections

import pytest

from ntl_jax.metrics import trivial_baselines
from train.config import DataConfig
from train.data import DataError, load_splits
from train.data.files import find_file
from train.data.official import read_rjokes

OFFICIAL_ROWS = {"dev": 43_246, "test": 43_246}


def write(folder, **splits):
    for split, scores in splits.items():
        lines = [f"{score}\tjoke {n}\twith a tab" for n, score in enumerate(scores)]
        (folder / f"{split}.tsv").write_text("\n".join(lines))
    return str(folder)


def test_later_splits_than_the_one_to_train_on_are_evaluated(tmp_path):
    raw_dir = write(tmp_path, train=[0, 3, 11], dev=[1, 2], test=[5])
    splits = load_splits(DataConfig(name="rjokes", raw_dir=raw_dir))
    assert splits.train[2] == {"question": "joke 2\twith a tab", "answer": "11"}
    assert len(splits.train) == 3
    assert {name: len(rows) for name, rows in splits.evaluation.items()} == {
        "dev": 2,
        "test": 1,
    }
    data = DataConfig(name="rjokes", raw_dir=raw_dir, train_split="dev")
    splits = load_splits(data)
    assert [row["answer"] for row in splits.train] == ["1", "2"]
    assert splits.evaluation.keys() == {"test"}
    (tmp_path / "train.tsv").unlink()
    assert len(load_splits(data).train) == 2
    with pytest.raises(DataError, match=r"train\.tsv: no such file, nor"):
        load_splits(DataConfig(name="rjokes", raw_dir=raw_dir))


@pytest.fixture(scope="module")
def answers(data_dir):
    return {
        split: [
            row["answer"]
            for row in read_rjokes(find_file(data_dir / "rjokes", f"{split}.tsv"))
        ]
        for split in OFFICIAL_ROWS
    }


def test_official_rows(data_dir, answers):
    assert {split: len(rows) for split, rows in answers.items()} == OFFICIAL_ROWS
    counts = collections.Counter(answers["test"])
    assert counts.keys() == {str(score) for score in range(12)}
    assert (counts["0"], counts["1"], counts["11"]) == (14_942, 10_336, 5)
    path = find_file(data_dir / "rjokes", "test.tsv")
    # Twelve lines hold a further tab, one of them at its end.
    assert sum("\t" in row["question"] for row in read_rjokes(path)) == 11


def test_official_training_rows(data_dir):
    path = data_dir / "rjokes" / "train.tsv.gz"
    if not path.exists():
        pytest.skip("the release's train.tsv.gz is not in NTL_DATA_DIR/rjokes")
    assert 345_000 < len(read_rjokes(path)) < 347_000


def test_a_constant_answer_scores_what_the_paper_reports_of_models(answers):
    baselines = trivial_baselines(answers["test"])
    mean, median = baselines["mean"], baselines["median"]
    assert round(mean.scores["rmse"], 3) == 1.829
    assert round(baselines["mode"].scores["number_accuracy"], 4) == 0.3455
    assert baselines["mode"].answer == 0
    assert median.answer == 1
    # Held out: the mean of dev is as good.
    held_out = trivial_baselines(answers["test"], train_references=answers["dev"])
    assert abs(held_out["mean"].scores["rmse"] - mean.scores["rmse"]) < 0.002
