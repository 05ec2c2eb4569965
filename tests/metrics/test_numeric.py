"""Numeric metrics against scipy, hand-made cases, and hopeless predictions."""

import json
import math
import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from scipy import stats

from ntl_jax.metrics import numeric_metrics, rounded_accuracy


def test_hand_made_case():
    scores = numeric_metrics(
        ["It is 3", "4.0", "five", "-10", "1,000"], ["3", "4", "7", "10", "1000.0"]
    )
    assert scores["n"] == 5
    assert scores["number_accuracy"] == 3 / 5
    assert scores["number_accuracy_se"] == pytest.approx(math.sqrt(0.6 * 0.4 / 5))
    assert scores["unparsable_rate"] == pytest.approx(1 / 5)
    # Errors of the four pairs that can be read: 0, 0, 20, 0.
    assert scores["mae"] == 5.0
    assert scores["mae_se"] == pytest.approx(np.std([0, 0, 20, 0], ddof=1) / 2)
    assert scores["rmse"] == 10.0
    assert scores["median_ae"] == 0.0
    assert scores["log_mae"] == pytest.approx(2 * math.log10(11) / 4)
    # As the farthest label of 3, 4, 7, 10 and 1000, "five" is 993 off.
    assert scores["mae_penalised"] == pytest.approx((20 + 993) / 5)
    assert scores["rmse_penalised"] == pytest.approx(math.sqrt((400 + 993**2) / 5))
    assert scores["median_ae_penalised"] == 0.0
    assert scores["log_mae_penalised"] == pytest.approx(
        (2 * math.log10(11) + math.log10(1001) - math.log10(8)) / 5
    )
    assert scores["constant_accuracy"] == 1 / 5
    assert scores["constant_mae"] == pytest.approx((4 + 3 + 0 + 3 + 993) / 5)
    assert scores["constant_rmse"] == pytest.approx(np.std([3, 4, 7, 10, 1000]))


@hypothesis.given(
    st.lists(
        st.tuples(st.integers(-999, 999), st.integers(-999, 999)),
        min_size=3,
        max_size=30,
    )
)
def test_regression_scores_agree_with_scipy(pairs):
    p, y = np.array(pairs, np.float64).T
    hypothesis.assume(np.ptp(p) > 0 and np.ptp(y) > 0)
    scores = numeric_metrics([f"{a}" for a, _ in pairs], [f"{b}" for _, b in pairs])
    expected = {
        "pearson": stats.pearsonr(p, y).statistic,
        "spearman": stats.spearmanr(p, y).statistic,
        "mae": np.abs(p - y).mean(),
        "mae_se": stats.sem(np.abs(p - y)),
        "rmse": np.sqrt(((p - y) ** 2).mean()),
        "median_ae": np.median(np.abs(p - y)),
        "r2": 1 - ((p - y) ** 2).sum() / ((y - y.mean()) ** 2).sum(),
        "number_accuracy": (p == y).mean(),
        "number_accuracy_1e-2": np.isclose(p, y, rtol=1e-2, atol=1e-9).mean(),
        "number_accuracy_1e-1": np.isclose(p, y, rtol=1e-1, atol=1e-9).mean(),
    }
    a, b = (np.sign(x) * np.log10(np.abs(x) + 1) for x in (p, y))
    expected |= {
        "log_mae": np.abs(a - b).mean(),
        "log_mae_se": stats.sem(np.abs(a - b)),
        "log_rmse": np.sqrt(((a - b) ** 2).mean()),
        "log_median_ae": np.median(np.abs(a - b)),
        "log_r2": 1 - ((a - b) ** 2).sum() / ((b - b.mean()) ** 2).sum(),
    }
    penalised = ("mae", "rmse", "r2", "log_mae", "log_r2")  # all can be read
    expected |= {f"{name}_penalised": expected[name] for name in penalised}
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name


def test_one_changed_prediction_changes_every_score():
    labels = [str(value) for value in (3, 14, 15, 92, 65)]
    right = numeric_metrics(labels, labels)
    wrong = numeric_metrics(["3", "14", "15", "65", "66"], labels)
    for name in ("number_accuracy", "number_accuracy_1e-5", "mae", "rmse", "r2"):
        assert right[name] != wrong[name]
    for name in ("log_mae", "log_r2", "pearson", "spearman", "mae_se"):
        assert right[name] != wrong[name]
    for name in ("pearson", "spearman", "r2"):
        assert right[name] == pytest.approx(1.0, abs=1e-12)


def test_accuracy_is_exact_and_the_papers_is_beside_it():
    scores = numeric_metrics(["1234568"], ["1234567"])
    assert (scores["number_accuracy"], scores["number_accuracy_1e-5"]) == (0.0, 1.0)
    digits = "123456789012345678901234567890"
    assert numeric_metrics([digits], [digits])["number_accuracy"] == 1.0
    assert numeric_metrics([digits[:-1] + "1"], [digits])["number_accuracy"] == 0.0
    # 0.1 + 0.2 in binary is another number than 0.3: decimals are compared.
    assert numeric_metrics(["0.30"], ["0.3"])["number_accuracy"] == 1.0


def test_constant_numbers_have_no_correlation_and_give_no_warning():
    scores = numeric_metrics(["5", "5"], ["7", "7"])
    assert [scores[name] for name in ("r2", "log_r2", "pearson", "spearman")] == [
        None
    ] * 4
    assert scores["mae"] == 2.0
    assert scores["constant_accuracy"] == 1.0
    assert numeric_metrics(["5", "5"], ["7", "8"])["pearson"] is None
    assert numeric_metrics(["5", "5"], ["7", "8"])["r2"] is not None


def test_nothing_to_read_counts_as_wrong_and_leaves_errors_undefined():
    scores = numeric_metrics(["", "none"], ["1", "2"])
    assert scores["number_accuracy"] == scores["number_accuracy_1e-5"] == 0.0
    assert scores["unparsable_rate"] == 1.0
    for name in ("mae", "mae_se", "rmse", "median_ae", "r2", "pearson", "spearman"):
        assert scores[name] is None
    # An unreadable prediction is not a 0.
    assert numeric_metrics(["none"], ["0"])["number_accuracy_1e-5"] == 0.0


@pytest.mark.parametrize("guess", ["9" * 400, "1e9999", "-1e9999", "1e308"])
def test_runaway_numbers_keep_every_score_finite(guess):
    scores = numeric_metrics([guess, "1", "2"], ["5", "1", "3"])
    text = json.dumps(scores, allow_nan=False)
    assert json.loads(text) == scores
    assert scores["number_accuracy"] == pytest.approx(1 / 3)
    assert scores["mae"] > 1e90


def _tolerances(prediction, reference):
    scores = numeric_metrics([prediction], [reference])
    names = ("number_accuracy", *(f"number_accuracy_1e-{k}" for k in (5, 2, 1)))
    return [int(scores[name]) for name in names]


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("100", "100", [1, 1, 1, 1]),
        ("100.001", "100", [0, 1, 1, 1]),
        ("100.0011", "100", [0, 0, 1, 1]),
        ("101", "100", [0, 0, 1, 1]),  # at the bounds, whatever floats say
        ("99", "100", [0, 0, 1, 1]),
        ("1.01", "1", [0, 0, 1, 1]),
        ("0.7", "0.77", [0, 0, 0, 1]),
        ("101.1", "100", [0, 0, 0, 1]),
        ("-110", "-100", [0, 0, 0, 1]),
        ("110.1", "100", [0, 0, 0, 0]),
        ("-100", "100", [0, 0, 0, 0]),
        ("1e-8", "0", [0, 1, 0, 0]),  # the paper's absolute tolerance
        ("0.0", "0", [1, 1, 1, 1]),
        ("2/3", "0.6666667", [0, 1, 1, 1]),
        ("1e300", "1.2e100", [0, 0, 0, 0]),
        ("1.001e300", "1e300", [0, 0, 1, 1]),
        ("1.001e-300", "1e-300", [0, 1, 1, 1]),
        ("none", "0", [0, 0, 0, 0]),
    ],
)
def test_tolerances(prediction, reference, expected):
    assert _tolerances(prediction, reference) == expected


@hypothesis.given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(-99, 99)),
            st.integers(-99, 99),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_silence_never_pays_under_the_penalty(pairs):
    """Any answer within the labels' range is at least as good as none."""
    labels = [y for _, y in pairs]
    clipped = [
        None if p is None else min(max(p, min(labels)), max(labels)) for p, _ in pairs
    ]
    silent = numeric_metrics(
        ["?" if p is None else str(p) for p in clipped], [str(y) for y in labels]
    )
    for answer in (min(labels), max(labels), sorted(labels)[len(labels) // 2]):
        spoken = numeric_metrics(
            [str(answer if p is None else p) for p in clipped], [str(y) for y in labels]
        )
        for name in ("mae", "rmse", "median_ae", "log_mae", "log_rmse"):
            name += "_penalised"
            assert spoken[name] <= silent[name] * (1 + 1e-12) + 1e-12, name


def test_silence_pays_without_the_penalty():
    silent = numeric_metrics(["1", "?"], ["1", "9"])
    spoken = numeric_metrics(["1", "8"], ["1", "9"])
    assert silent["mae"] < spoken["mae"] and silent["unparsable_rate"] == 0.5
    assert silent["mae_penalised"] > spoken["mae_penalised"]


def test_the_penalty_may_be_an_answer():
    scores = numeric_metrics(["1", "?"], ["1", "9"], unparsable_as=5.0)
    assert scores["mae_penalised"] == 2.0
    assert scores["log_mae_penalised"] == pytest.approx(
        (math.log10(10) - math.log10(6)) / 2
    )
    assert scores["mae"] == 0.0


def test_everything_unreadable_has_penalised_scores_all_the_same():
    scores = numeric_metrics(["?", "?"], ["1", "9"])
    assert scores["mae"] is None and scores["mae_penalised"] == 8.0
    assert scores["r2"] is None and scores["r2_penalised"] == 1 - 128 / 32


def test_paper_compat_takes_the_tolerance_for_the_accuracy():
    pair = (["1234568"], ["1234567"])
    assert numeric_metrics(*pair)["number_accuracy"] == 0.0
    assert numeric_metrics(*pair, paper_compat=True)["number_accuracy"] == 1.0


def test_paper_compat_clips_the_prediction_alone():
    pair = (["20000000000", "5"], ["20000000000", "5"])
    compat = numeric_metrics(*pair, paper_compat=True)
    assert (compat["number_accuracy"], compat["mae"]) == (0.5, 0.5e10)
    assert compat["clipped_rate"] == 0.5
    ours = numeric_metrics(*pair)
    assert (ours["number_accuracy"], ours["mae"], ours["clipped_rate"]) == (1, 0, 0)


def test_paper_compat_clips_predictions_and_reads_their_way():
    scores = numeric_metrics(["1e-05 99999999999"], ["0"], paper_compat=True)
    assert scores["mae"] == 1e10
    assert numeric_metrics(["62-8"], ["8"])["number_accuracy"] == 1.0
    assert numeric_metrics(["62-8"], ["8"], paper_compat=True)["number_accuracy"] == 0.0


_PAPER_TEXT = st.lists(
    st.one_of(
        st.sampled_from(["is ", "= ", "-", "- ", "+", ",", ".", "e", " ", "x", "$"]),
        st.integers(0, 10**12).map(str),
        st.decimals(0, 100, places=3).map(str),
    ),
    max_size=8,
).map("".join)


def _twin(predictions, references, *, tolerance=1e-5, limit=1e10):
    """The paper's scores, from its description."""

    def read(text):
        found = [m[0] for m in re.finditer(r"[+-]?\s*\d+(\.\d+)?", text)]
        return float(found[-1].replace(" ", "")) if found else float("nan")

    p = np.clip([read(text) for text in predictions], -limit, limit)
    y = np.array([read(text) for text in references])
    some = ~np.isnan(p)
    error = (p - y)[some]
    a, b = (np.sign(x) * np.log10(np.abs(x) + 1) for x in (p[some], y[some]))
    scores = {
        "number_accuracy": np.isclose(p, y, rtol=tolerance, atol=1e-8).mean(),
        "unparsable_rate": (~some).mean(),
    }
    if some.any():
        scores |= {
            "mae": np.abs(error).mean(),
            "rmse": np.sqrt(np.square(error).mean()),
            "median_ae": np.median(np.abs(error)),
            "log_mae": np.abs(a - b).mean(),
        }
    if some.any() and np.ptp(y[some]) > 0:
        spread = np.square(y[some] - y[some].mean()).sum()
        scores["r2"] = 1 - np.square(error).sum() / spread
    return scores


@hypothesis.given(
    st.lists(
        st.tuples(_PAPER_TEXT, st.integers(-(10**12), 10**12)), min_size=1, max_size=9
    )
)
def test_paper_compat_agrees_with_its_description(rows):
    predictions = [text for text, _ in rows]
    references = [f"#### {label}" for _, label in rows]
    scores = numeric_metrics(predictions, references, paper_compat=True)
    for name, value in _twin(predictions, references).items():
        assert scores[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name


def test_the_twin_sees_another_tolerance_and_limit():
    pair = (["99999", "30000000000"], ["100000", "30000000000"])
    scores = numeric_metrics(*pair, paper_compat=True)
    assert scores["number_accuracy"] == _twin(*pair)["number_accuracy"] == 0.5
    assert scores["number_accuracy"] != _twin(*pair, tolerance=1e-6)["number_accuracy"]
    assert scores["mae"] == _twin(*pair)["mae"]
    assert scores["mae"] != _twin(*pair, limit=1e11)["mae"]


def test_baselines_do_not_depend_on_predictions():
    references = ["0", "0", "0", "10", "2"]
    good = numeric_metrics(references, references)
    bad = numeric_metrics(["x"] * 5, references)
    names = [name for name in good if name.startswith("constant_")]
    assert len(names) == 5
    assert [good[name] for name in names] == [bad[name] for name in names]
    assert good["constant_accuracy"] == 0.6
    assert good["constant_accuracy_se"] == pytest.approx(math.sqrt(0.24 / 5))
    assert good["constant_mae"] == pytest.approx(12 / 5)


def test_errors_name_the_row_and_the_numbers():
    with pytest.raises(ValueError, match=r"reference 1 contains no number: 'none'"):
        numeric_metrics(["1", "2"], ["1", "none"])
    with pytest.raises(ValueError, match="1 predictions for 2 references"):
        numeric_metrics(["1"], ["1", "2"])
    with pytest.raises(ValueError, match="0 predictions for 0 references"):
        numeric_metrics([], [])


@pytest.mark.parametrize(
    ("predictions", "targets", "decimals", "share"),
    [
        ([1.0, 2.0], [1.0, 2.0], 2, 1.0),
        ([1.0049, -2.0051], [1.0, -2.0], 2, 0.5),
        ([1.4, 2.6], [1.0, 2.0], 0, 0.5),
        ([0.12], [0.1234], 2, 1.0),
        ([np.inf, -np.inf, np.nan], [1.0, 1.0, 1.0], 2, 0.0),
        ([1e307, 1e16 + 2], [1e307, 1e16], 2, 0.5),
    ],
)
def test_share_that_is_right_once_rounded(predictions, targets, decimals, share):
    got = rounded_accuracy(np.array(predictions), np.array(targets), decimals=decimals)
    assert got == share


def test_numbers_that_cannot_be_rounded_and_compared_are_refused():
    one = np.array([1.0])
    with pytest.raises(ValueError, match=r"\(1,\) and targets \(2,\)"):
        rounded_accuracy(one, np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"\(0,\)"):
        rounded_accuracy(one[:0], one[:0])
    with pytest.raises(ValueError, match="1 targets are not finite"):
        rounded_accuracy(one, np.array([np.nan]))
