"""Tables and figures of a comparison."""

import json

import numpy as np
import pytest

from tests.train.helpers import COMPARED, changed
from train.compare import loss_name, variants
from train.config import ConfigError, LossConfig
from train.report import (
    COLUMNS,
    markdown_table,
    offset_distribution,
    report,
)
from train.writer import read_metrics

SETS = ["interpolation", "extrapolation"]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_has_every_set_loss_and_baseline(compared):
    header, rule, *rows = (compared / "comparison.md").read_text().splitlines()
    assert cells(header) == ["set", "trained with", "n", *COLUMNS.values()]
    assert set(rule) == {"|", "-"}
    losses = ["ce", "ce+0.3was", "best constant"]
    named = [tuple(cells(row)[:2]) for row in rows]
    assert named == [(name, loss) for name in SETS for loss in losses]


def test_the_table_holds_what_the_runs_measured(compared):
    rows = [
        cells(line) for line in (compared / "comparison.md").read_text().split("\n")
    ]
    headings = rows[0]
    for name, loss, *_ in rows[2:-1]:
        run = "ce" if loss == "best constant" else loss.replace("+", "-")
        file = compared / run / "evaluation.json"
        metrics = json.loads(file.read_text())[name]["metrics"]
        row = next(row for row in rows if row[:2] == [name, loss])
        shown = dict(zip(headings, row, strict=True))
        assert shown["n"] == str(metrics["n"])
        if loss == "best constant":
            assert shown["MAE"] == f"{metrics['constant_mae']:.4g}"
            assert shown["accuracy"] == f"{metrics['constant_accuracy']:.4g}"
            assert shown["CE"] == "-"
        else:
            accuracy, error = shown["accuracy"].split(" ± ")
            assert accuracy == f"{metrics['number_accuracy']:.4g}"
            assert error == f"{metrics['number_accuracy_se']:.2g}"
            assert shown["MAE"] == f"{metrics['mae']:.4g}"
            assert shown["NTL-WAS"] == f"{metrics['was']:.4g}"


def test_offsets_of_a_case_by_hand():
    digits = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.9, 0.05, 0.05]])
    counts = np.array([3.0, 1.0, 0.0])  # no label was the third token
    distances, probabilities = offset_distribution(
        digits, counts, np.array([0.0, 1.0, 2.0])
    )
    np.testing.assert_array_equal(distances, [-2, -1, 0, 1, 2])
    expected = [0, 0, 0.75 * 0.5 + 0.25, 0.75 * 0.3, 0.75 * 0.2]
    np.testing.assert_allclose(probabilities, expected, atol=1e-12)


def test_offsets_follow_the_values_not_the_order():
    digits = np.array([[0.6, 0.4], [0.1, 0.9]])
    distances, probabilities = offset_distribution(
        digits, np.array([1.0, 1.0]), np.array([7.0, 2.0])
    )
    np.testing.assert_array_equal(distances, [-5, 0, 5])
    np.testing.assert_allclose(probabilities, [0.2, 0.75, 0.05])


def test_markdown_is_aligned():
    lines = markdown_table([["a", "long name"], ["1234", "x"]]).splitlines()
    assert lines == [
        "| a    | long name |",
        "|------|-----------|",
        "| 1234 | x         |",
    ]


def test_the_figure_is_a_png(compared):
    pytest.importorskip("matplotlib")
    data = (compared / "comparison.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 10_000


def test_without_matplotlib_there_is_the_table_alone(compared, tmp_path, monkeypatch):
    monkeypatch.setattr("train.report.importlib.util.find_spec", lambda _: None)
    text = report({"ce": compared / "ce"}, tmp_path)
    assert "no figure: matplotlib is not installed" in text
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.md"]


def test_unfinished_runs_and_other_sets_are_refused(compared, tmp_path):
    with pytest.raises(ConfigError, match=r"has no evaluation\.json"):
        report({"none": tmp_path}, tmp_path)
    evaluation = json.loads((compared / "ce" / "evaluation.json").read_text())
    del evaluation["extrapolation"]
    (tmp_path / "evaluation.json").write_text(json.dumps(evaluation))
    with pytest.raises(ConfigError, match="different sets"):
        report({"ce": compared / "ce", "less": tmp_path}, tmp_path)


def test_variants_differ_in_the_number_loss_alone(compared):
    first, second = variants(COMPARED).values()
    assert first.loss == LossConfig(ce=1.0, was=0.0)
    assert second == COMPARED
    assert changed(first, loss=second.loss) == second
    one, two = (
        next(r for r in read_metrics(compared / run) if r["kind"] == "train")
        for run in ("ce", "ce-0.3was")
    )
    assert one["loss"] == pytest.approx(one["ce"], rel=1e-5)
    assert two["loss"] == pytest.approx(two["ce"] + 0.3 * two["was"], rel=1e-5)


def test_training_taught_something(compared):
    for run in ("ce", "ce-0.3was"):
        rows = [r for r in read_metrics(compared / run) if r["kind"] == "train"]
        assert rows[-1]["ce"] < 0.8 * rows[0]["ce"]


def test_loss_names():
    assert loss_name(LossConfig(ce=1.0, was=0.3)) == "ce+0.3was"
    assert loss_name(LossConfig(ce=0.5, was=0.0, mse=2.0)) == "0.5ce+2mse"
    assert loss_name(LossConfig(ce=None, mae=1.0)) == "1mae"


def test_cross_entropy_is_not_compared_with_itself():
    with pytest.raises(ConfigError, match="set a number loss"):
        variants(changed(COMPARED, loss__was=None))
