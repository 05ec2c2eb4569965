"""Figures known of the paper's datasets. No text of them is shown."""

import gzip
import json
import re

import pytest

from ntl_jax.metrics import (
    error_rates,
    numeric_metrics,
    read_labels,
    read_pairs,
    text_metrics,
    trivial_baselines,
)


@pytest.fixture(scope="module")
def jokes(data_dir):
    """The scores of the test set of rJokes, as text."""
    path = data_dir / "rjokes" / "test.tsv.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    return [line.split("\t", 1)[0] for line in lines if line]


def test_constant_answers_on_rjokes(jokes):
    assert len(jokes) == 43246
    baselines = trivial_baselines(jokes)
    assert baselines["mean"].scores["rmse"] == pytest.approx(1.829, abs=5e-4)
    assert baselines["mode"].answer == 0.0
    assert baselines["mode"].scores["number_accuracy"] == pytest.approx(
        0.3455, abs=5e-5
    )
    always_two = numeric_metrics(["2"] * len(jokes), jokes)
    assert always_two["rmse"] == pytest.approx(1.869, abs=5e-4)
    assert always_two["constant_rmse"] == baselines["mean"].scores["rmse"]
    other = numeric_metrics(["1"] * len(jokes), jokes)
    assert other["rmse"] != pytest.approx(1.869, abs=5e-4), "any answer would do"


def test_a_silent_model_on_rjokes_looks_good_in_nothing_penalised(jokes):
    predictions = [y if row % 10 == 0 else "" for row, y in enumerate(jokes)]
    scores = numeric_metrics(predictions, jokes)
    assert (scores["mae"], scores["unparsable_rate"]) == (0.0, pytest.approx(0.9, 1e-4))
    assert scores["mae_penalised"] > 5 * scores["constant_mae"]


def test_labels_of_gsm8k(data_dir):
    path = data_dir / "gsm8k" / "test.jsonl"
    if not path.exists():
        pytest.skip(f"no {path}")
    answers = [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    labels = read_labels(answers)
    finals = [answer.rsplit("#### ", 1)[1].replace(",", "") for answer in answers]
    assert [str(int(label)) for label in labels] == finals
    assert len(labels) == 1319 and sum(label < 0 for label in labels) == 2
    assert all(label == int(label) for label in labels)
    rates = error_rates(read_pairs(answers, answers))
    assert {name: rate.n for name, rate in rates.items()} == {
        "all": 1319,
        "ends_in_0": 476,
        "ends_in_9": 45,
        "power_of_ten": 54,
        "power_of_ten_or_1": 69,
    }
    # The paper's code reads 1,000 as 0: its labels are others.
    compat = read_labels(answers, paper_compat=True)
    assert sum(a != b for a, b in zip(labels, compat, strict=True)) > 10


@pytest.mark.parametrize(
    ("name", "rows", "empty", "digit_share"),
    [("train", 5131, 23, 0.044), ("val", 953, 3, 0.036)],
)
def test_answers_of_multirc(data_dir, name, rows, empty, digit_share):
    path = data_dir / "multirc" / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    questions = [
        question
        for line in lines
        for question in json.loads(line)["passage"]["questions"]
    ]
    answers = [
        " | ".join(a["text"] for a in question["answers"] if a["label"] == 1)
        for question in questions
    ]
    assert len(answers) == rows
    silence = text_metrics([""] * rows, answers)
    assert silence["sequence_accuracy"] == empty / rows
    assert silence["bleu"] == silence["rouge1"] == 0.0
    perfect = text_metrics(answers, answers)
    assert perfect["bleu"] == pytest.approx(100.0)
    assert perfect["rouge1"] == pytest.approx(1 - empty / rows, abs=2e-3)
    tokens = re.findall(r"\d|[^\W\d]+|[^\w\s]", " ".join(answers))
    share = sum(token.isdigit() for token in tokens) / len(tokens)
    assert share == pytest.approx(digit_share, abs=1e-3)
