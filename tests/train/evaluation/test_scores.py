"""Scores of answers, put together from the metrics: which rows count, and as what."""

import json

import numpy as np
import pytest
from scipy import stats

from ntl_jax.metrics import (
    mean_over_cells,
    operand_digits,
    read_pairs,
    scores_by_cell,
    text_metrics,
)
from train.config import EvalConfig
from train.evaluation.scores import (
    Answers,
    answer_metrics,
    answer_tables,
    score_intervals,
)

PRODUCTS = ["3*4=", "12*5=", "7*8=", "30*3=", "9*9="]
RIGHT = ["12", "60", "56", "90", "81"]
WRITTEN = ["12", "63", "?", "81", "81"]


def answers(predictions, references, questions=None):
    questions = questions or ["?"] * len(references)
    rows = [
        {"question": question, "answer": answer}
        for question, answer in zip(questions, references, strict=True)
    ]
    ids = [[[ord(c) for c in text] for text in t] for t in (predictions, references)]
    return Answers(rows, predictions, *ids)


def test_rows_without_a_number_are_of_the_text_metrics_alone():
    mixed = answers(["4 apples", "a pear", "5"], ["3 apples", "two pears", "5"])
    metrics = answer_metrics(mixed, EvalConfig())
    assert (metrics["n"], metrics["mae"], metrics["number_accuracy"]) == (2, 0.5, 0.5)
    expected = text_metrics(mixed.predictions, mixed.references)
    assert metrics | expected == metrics and expected["rouge1"] > 0
    hits = 7 + 0 + 1  # characters of "3 apples", "two pears" and "5"
    assert metrics["token_accuracy"] == pytest.approx(hits / 18)


def test_long_numbers_are_rounded_exactly():
    """In float64 the first two pairs are equal."""
    written = ["12345678901234567891", "-" + "9" * 400, "2.004", "1.005", "0.1"]
    right = ["12345678901234567892", "-1" + "0" * 400, "2", "0.995", "9"]
    metrics = answer_metrics(answers(written, right), EvalConfig())
    assert metrics["rounded_accuracy"] == 2 / 5


def test_words_alone_have_no_number_metrics():
    words = answers(["yes", "no"], ["yes", "yes"])
    metrics = answer_metrics(words, EvalConfig())
    assert "number_accuracy" not in metrics and metrics["sequence_accuracy"] == 0.5
    assert answer_tables(words.rows, words.predictions) == {}


def test_operand_lengths_make_cells():
    products = answers(WRITTEN, RIGHT, PRODUCTS)
    metrics = answer_metrics(products, EvalConfig())
    pairs = read_pairs(WRITTEN, RIGHT)
    cells = scores_by_cell(pairs, [operand_digits(q) for q in PRODUCTS])
    for name in ("mape", "mape_median", "mape_penalised"):
        assert metrics[name] == mean_over_cells(cells, name=name)
    assert metrics["mape"] == pytest.approx((0 + (5 + 10) / 2) / 2)  # 1x1 and 2x1
    tables = answer_tables(products.rows, products.predictions)
    assert list(tables["cells"]) == ["1x1", "2x1"]
    assert tables["cells"]["2x1"]["mape"] == pytest.approx(7.5)
    three = answers(WRITTEN, RIGHT, ["1*2*3=", *PRODUCTS[1:]])
    assert "mape" not in answer_metrics(three, EvalConfig())
    assert answer_tables(three.rows, three.predictions)["cells"] == {}


def test_the_tables_are_json_and_of_these_answers():
    products = answers(WRITTEN, RIGHT, PRODUCTS)
    tables = answer_tables(products.rows, products.predictions)
    assert json.loads(json.dumps(tables)) == tables
    assert tables["error_rates"]["ends_in_0"]["n"] == 2
    assert tables["error_rates"]["ends_in_0"]["over"]["value"] == 0.5
    assert tables["digit_accuracy"]["1"]["n"] == 5
    assert tables["digit_accuracy"]["1"]["accuracy"]["value"] == 3 / 5
    assert tables["error_histograms"]["unparsable"][6] == 1
    assert tables["baselines"]["median"]["answer"] == 60.0
    assert tables["baselines"]["mean"]["scores"]["rmse"] == pytest.approx(
        np.std([12, 60, 56, 90, 81])
    )


def test_intervals_hold_their_score_and_are_scipys():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 100, 200)
    guesses = [
        "?" if silent else str(label + error)
        for label, error, silent in zip(
            labels, rng.integers(-3, 4, 200), rng.random(200) < 0.1, strict=True
        )
    ]
    pairs = read_pairs(guesses, list(map(str, labels)))
    bounds = score_intervals(pairs)
    exact = stats.binomtest(int(pairs.exact.sum()), 200)
    low, high = exact.proportion_ci(method="wilson")
    np.testing.assert_allclose(bounds["number_accuracy"], (low, high), rtol=1e-9)
    sizes = np.abs(pairs.error[pairs.parsed])
    expected = stats.bootstrap(
        (sizes,), np.mean, method="percentile", n_resamples=2000, rng=1
    ).confidence_interval
    np.testing.assert_allclose(bounds["mae"], expected, atol=0.03)
    assert bounds["mae_penalised"][0] > bounds["mae"][1], "silence costs"
    silent = score_intervals(read_pairs(["?", "?"], ["1", "2"]))
    assert silent["mae"] is None and silent["unparsable_rate"][1] == 1.0


def test_the_papers_numbers():
    # Two answers of three tokens, the digit wrong in both: 0.667 is the truth.
    short = Answers(
        [{"question": "", "answer": "4"}] * 2,
        ["3", "3"],
        [[5, 3, 1]] * 2,
        [[5, 4, 1]] * 2,
    )
    metrics = answer_metrics(short, EvalConfig())
    assert metrics["token_accuracy"] == pytest.approx(2 / 3)
    paper = answer_metrics(short, EvalConfig(paper_compat=True))
    assert paper["token_accuracy"] == pytest.approx(0.923, abs=5e-4)
    cases = answers(["62-8", "1234568", "20000000000"], ["8", "1234567", "20000000000"])
    ours = answer_metrics(cases, EvalConfig())
    paper = answer_metrics(cases, EvalConfig(paper_compat=True))
    assert ours["number_accuracy"] == pytest.approx(2 / 3)  # 8, and the last
    assert paper["number_accuracy"] == pytest.approx(1 / 3)  # the one within 1e-5
    assert paper["mae"] == pytest.approx((16 + 1 + 1e10) / 3)
    tables = answer_tables(cases.rows, cases.predictions, paper_compat=True)
    low, high = tables["intervals"]["number_accuracy"]
    assert low < 1 / 3 < high
