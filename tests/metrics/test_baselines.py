"""Answers that do not look at the question, by hand and against NumPy."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ntl_jax.metrics import numeric_metrics, trivial_baselines


def test_hand_made_case():
    baselines = trivial_baselines(["0", "0", "0", "10", "2"])
    answers = {name: baseline.answer for name, baseline in baselines.items()}
    assert answers == {"mean": 2.4, "median": 0.0, "mode": 0.0}
    assert baselines["mode"].scores["number_accuracy"] == 0.6
    assert baselines["mean"].scores["number_accuracy"] == 0.0
    assert baselines["median"].scores["mae"] == 12 / 5
    assert baselines["mean"].scores["r2"] == pytest.approx(0.0)
    assert baselines["mean"].scores["pearson"] is None


def test_answers_may_come_from_the_training_set():
    baselines = trivial_baselines(["1", "2"], train_references=["5", "5", "6", "8"])
    answers = [baseline.answer for baseline in baselines.values()]
    assert answers == [6.0, 5.5, 5.0]
    assert baselines["mode"].scores["mae"] == 3.5
    assert baselines["mode"].scores["number_accuracy"] == 0.0


def test_of_equally_common_labels_the_smallest():
    assert trivial_baselines(["7", "3", "3", "7", "9"])["mode"].answer == 3.0


@hypothesis.given(st.lists(st.integers(-999, 999), min_size=1, max_size=30))
def test_agree_with_numpy_and_no_constant_beats_them(labels):
    references = [str(label) for label in labels]
    baselines = trivial_baselines(references)
    y = np.array(labels, np.float64)
    mean, median, mode = (baselines[name] for name in ("mean", "median", "mode"))
    assert mean.answer == pytest.approx(y.mean(), abs=1e-12)
    assert median.answer == np.median(y)
    assert mean.scores["rmse"] == pytest.approx(y.std(), abs=1e-9)
    assert median.scores["mae"] == pytest.approx(np.abs(y - np.median(y)).mean())
    assert mode.scores["number_accuracy"] == max(map(labels.count, labels)) / len(y)
    shared = numeric_metrics(references, references)
    for constant, score in (
        (shared["constant_rmse"], mean.scores["rmse"]),
        (shared["constant_mae"], median.scores["mae"]),
        (shared["constant_accuracy"], mode.scores["number_accuracy"]),
    ):
        assert constant == pytest.approx(score, abs=1e-9)
    for other in (min(labels), max(labels), 0):
        scores = numeric_metrics([str(other)] * len(labels), references)
        assert scores["rmse"] >= mean.scores["rmse"] - 1e-9
        assert scores["mae"] >= median.scores["mae"] - 1e-9
        assert scores["number_accuracy"] <= mode.scores["number_accuracy"]


def test_large_numbers_and_the_papers_reading():
    baselines = trivial_baselines(["1e30", "1" + "0" * 29 + "2"])
    assert baselines["mean"].scores["mae"] == 1.0  # float64 would say 0
    assert trivial_baselines(["1,000"])["mode"].answer == 1000.0
    assert trivial_baselines(["1,000"], paper_compat=True)["mode"].answer == 0.0


def test_nothing_to_learn_from_is_named():
    with pytest.raises(ValueError, match="0 references, 0 to take"):
        trivial_baselines([])
    with pytest.raises(ValueError, match="1 references, 0 to take"):
        trivial_baselines(["1"], train_references=[])
    with pytest.raises(ValueError, match="reference 1 contains no number"):
        trivial_baselines(["1"], train_references=["1", "one"])
