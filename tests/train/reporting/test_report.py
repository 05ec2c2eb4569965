"""Tables and figures of a comparison."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from tests.train.helpers import COMPARED, changed
from train.__main__ import main, named_runs
from train.config import ConfigError, LossConfig
from train.reporting.compare import loss_name, variants
from train.reporting.figures import error_figure, error_shares, offset_distribution
from train.reporting.metrics_writer import read_metrics
from train.reporting.report import read_evaluation, report
from train.reporting.tables import (
    COLUMNS,
    DIFFERENCES,
    _cell,
    markdown_table,
    paired_comparisons,
)

SETS = ["interpolation", "extrapolation"]


LOSSES = ["ce", "ce+0.3was"]


def sections(text: str) -> dict[str, list[list[str]]]:
    """The cells of every table of comparison.md, the rule left out, by its title."""
    found = {}
    for section in text.removeprefix("## ").split("\n## "):
        title, *lines = section.strip().splitlines()
        header, rule, *rows = (line for line in lines if line)
        assert set(rule) == {"|", "-"}
        found[title] = [cells(line) for line in (header, *rows)]
    return found


@pytest.fixture(scope="module")
def tables(compared):
    return sections((compared / "comparison.md").read_text())


@pytest.fixture(scope="module")
def evaluations(compared):
    runs = {loss: compared / loss.replace("+", "-") for loss in LOSSES}
    return {loss: read_evaluation(run) for loss, run in runs.items()}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_set_run_and_baseline_has_its_scores(tables, evaluations):
    header, *rows = tables["Scores"]
    assert header == ["set", "trained with", "n", *COLUMNS.values()]
    named = [tuple(row[:2]) for row in rows]
    baselines = ["always the mean", "always the median", "always the mode"]
    expected = [(name, who) for name in SETS for who in (*LOSSES, *baselines)]
    assert [(name, who.split(",")[0]) for name, who in named] == expected
    for (name, who), row in zip(named, rows, strict=True):
        shown = dict(zip(header, row, strict=True))
        if who in LOSSES:
            result = evaluations[who][name]
            metrics, bounds = result["metrics"], result["intervals"]
            for column in ("number_accuracy", "mae"):
                low, high = bounds[column]
                cell = f"{metrics[column]:.4g} ({low:.3g} to {high:.3g})"
                assert shown[COLUMNS[column]] == cell
            assert shown["NTL-WAS"] == f"{metrics['was']:.4g}"
        else:
            kind, answer = who.removeprefix("always the ").split(", ")
            baseline = evaluations["ce"][name]["baselines"][kind]
            metrics = baseline["scores"]
            assert answer == f"{baseline['answer']:.4g}"
            assert shown["MAE"] == f"{metrics['mae']:.4g}"
            assert shown["CE"] == "-"
        assert shown["n"] == str(metrics["n"])
        assert shown["unparsable"] == f"{metrics['unparsable_rate']:.4g}"


def test_differences_are_those_of_the_written_predictions(tables, compared):
    rows = tables["Differences"][1:]
    texts = {
        run: [
            json.loads(line)
            for line in (compared / run / "predictions.jsonl").read_text().splitlines()
        ]
        for run in ("ce", "ce-0.3was")
    }
    assert [row[:4] for row in rows] == [
        [name, "ce+0.3was", "ce", score]
        for name in SETS
        for score in DIFFERENCES.values()
    ]
    for name in SETS:
        right = {
            run: np.array(
                [r["prediction"] == r["answer"] for r in answers if r["set"] == name]
            )
            for run, answers in texts.items()
        }
        row = next(r for r in rows if r[0] == name and r[3] == "accuracy")
        expected = right["ce-0.3was"].mean() - right["ce"].mean()
        assert float(row[4]) == pytest.approx(expected, abs=5e-4)
        low, high = map(float, row[5].split(" to "))
        assert low <= expected <= high and 0 < float(row[6]) <= 1


def test_other_tables_hold_the_evaluations(tables, evaluations):
    result = evaluations["ce"]["interpolation"]
    rates = {
        row[2]: row
        for row in tables["Which way answers miss"]
        if row[:2] == ["interpolation", "ce"]
    }
    for kind, rate in result["error_rates"].items():
        _, _, _, n, exact, *_ = rates[kind.replace("_", " ")]
        assert n == str(rate["n"])
        value = rate["exact"] and rate["exact"]["value"]
        assert exact.split(" (")[0] == _cell(value)
    lengths = [row for row in tables["Lengths of the operands"] if row[1] == "ce"]
    assert lengths[0][:3] == ["interpolation", "ce", "1x1"]
    assert lengths[0][3] == str(result["cells"]["1x1"]["n"])
    first = tables["Digits by place"][1]
    place, score = next(iter(result["digit_accuracy"].items()))
    assert first[:4] == ["interpolation", "ce", f"10^{place}", str(score["n"])]
    assert first[4].startswith(f"{score['accuracy']['value']:.4g} (")
    header, *rows = tables["More scores"]
    shown = dict(zip(header, rows[0], strict=True))
    assert shown["within 10%"] == f"{result['metrics']['number_accuracy_1e-1']:.4g}"
    assert shown["MAPE"] == _cell(result["metrics"]["mape"])
    assert "BLEU" not in header, "answers without a word have no BLEU"


def test_a_run_with_itself_differs_in_nothing():
    rows = [
        {"question": f"{i}", "answer": f"{i}", "prediction": text}
        for i, text in enumerate(["0", "2", "?", "3", "none", "50"])
    ]
    for result in paired_comparisons(rows, rows).values():
        assert result == (0.0, 0.0, 0.0, 1.0)
    better = [row | {"prediction": row["answer"]} for row in rows]
    compared = paired_comparisons(rows, better)
    assert compared["number_accuracy"].difference == pytest.approx(4 / 6)
    # Silent answers count as the farthest label: 2 as 5, 4 as 0.
    assert compared["mae_penalised"].difference == pytest.approx(-(1 + 3 + 4 + 45) / 6)
    assert compared["unparsable_rate"].difference == pytest.approx(-2 / 6)
    words = [row | {"answer": "yes"} for row in rows]
    assert paired_comparisons(words, words) == {}
    with pytest.raises(ValueError, match="different questions"):
        paired_comparisons(rows, words)


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


@pytest.mark.parametrize("name", ["comparison.png", "errors.png"])
def test_the_figures_are_pngs(compared, name):
    pytest.importorskip("matplotlib")
    data = (compared / name).read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 10_000


def test_shares_of_errors_are_of_all_answers_with_a_last_digit(evaluations, tmp_path):
    histograms = {
        "counts": [[2, 1]] + [[0, 0]] * 9,
        "below": [3] + [0] * 9,
        "above": [1] + [0] * 9,
        "unparsable": [3] + [0] * 9,
    }
    shares = error_shares(histograms)
    np.testing.assert_allclose(shares[0], [0.2, 0.1])
    assert not shares[1:].any()
    whole = evaluations["ce"]["interpolation"]["error_histograms"]
    assert (error_shares(whole).sum(axis=1) <= 1).all()
    words = {"ce": {"test": {"metrics": {}}}}
    assert not error_figure(words, tmp_path / "errors.png")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_there_is_the_table_alone(compared, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "train.reporting.report.importlib.util.find_spec", lambda _: None
    )
    text = report({"ce": compared / "ce"}, tmp_path)
    assert "no figure: matplotlib is not installed" in text
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.md"]


def test_runs_are_named_by_the_part_that_tells_them_apart():
    named = named_runs(["a/ce", "b/mse/"])
    assert named == {"ce": pathlib.Path("a/ce"), "mse": pathlib.Path("b/mse")}
    assert list(named_runs(["a/ce", "b/ce"])) == ["a/ce", "b/ce"]
    with pytest.raises(ConfigError, match="named twice"):
        named_runs(["a/ce", "a/b/../ce"])


def test_unfinished_runs_and_other_sets_are_refused(compared, tmp_path):
    with pytest.raises(ConfigError, match=r"has no evaluation\.json"):
        report({"none": tmp_path}, tmp_path)
    with pytest.raises(ConfigError, match=r"name the runs in it, .*ce, .*ce-"):
        report({"both": compared}, tmp_path)
    evaluation = json.loads((compared / "ce" / "evaluation.json").read_text())
    runs = {"ce": compared / "ce", "other": tmp_path}
    changes = {
        "written by an older version": {"interpolation": {"metrics": {}}},
        "different sets": {"interpolation": evaluation["interpolation"]},
        r"evaluated with --evaluation\.paper-compat": {
            name: result | {"paper_compat": True} for name, result in evaluation.items()
        },
        r"has no predictions\.jsonl": evaluation,
    }
    for message, content in changes.items():
        (tmp_path / "evaluation.json").write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=message):
            report(runs, tmp_path)
    lines = (compared / "ce" / "predictions.jsonl").read_text().splitlines()
    (tmp_path / "predictions.jsonl").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(ConfigError, match="different questions"):
        report(runs, tmp_path)


def test_sets_in_another_order_are_compared_by_name(compared, tables, tmp_path):
    second = shutil.copytree(compared / "ce-0.3was", tmp_path / "second")
    path = second / "evaluation.json"
    sets = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(sets.items()))))
    runs = dict(zip(LOSSES, (compared / "ce", second), strict=True))
    report(runs, tmp_path / "out")
    assert sections((tmp_path / "out" / "comparison.md").read_text()) == tables


def test_damaged_files_are_named_with_the_remedy(compared, tmp_path):
    folder, run = tmp_path / "out", tmp_path / "run"
    run.mkdir()
    names = ("evaluation.json", "predictions.jsonl")
    whole = {name: (compared / "ce" / name).read_bytes() for name in names}
    evaluation, answers = whole.values()
    line = answers.splitlines(keepends=True)[2]
    cases = [
        (names[0], evaluation[:5000], r"evaluation\.json is damaged \(Expecting"),
        (names[0], evaluation[:99] + b"\xff" + evaluation[100:], "is damaged .*utf-8"),
        (names[0], b"[1]", "holds no JSON object"),
        (names[1], answers + line[:40], rf"line {answers.count(10) + 1} is damaged"),
        (names[1], answers + b"{}\n", "not an object with the texts set, question"),
        (
            names[1],
            line.replace(b'"set": ', b'"set": [], "a": '),
            "line 1 .*not an object",
        ),
        (names[1], line.replace(b'"answer": ', b'"answer": 7, "a": '), "not an object"),
        (names[1], line.replace(SETS[0].encode(), b"more"), "line 1 .*'more'"),
    ]
    for name, content, message in cases:
        for file, data in (whole | {name: content}).items():
            (run / file).write_bytes(data)
        with pytest.raises(ConfigError, match=message) as caught:
            report({"run": run}, folder)
        assert f"`python -m train evaluate {run}`" in str(caught.value)
        assert not folder.exists()
    with pytest.raises(ConfigError, match="is a file: name a folder"):
        report({"ce": compared / "ce"}, run / "evaluation.json")


@pytest.mark.parametrize(
    "change",
    [
        1,
        [],
        "text",
        None,
        {"paper_compat": []},
        {"metrics": 1},
        {"metrics": {"mae": "1"}},
        {"baselines": [1]},
        {"number_tokens": "text"},
        {"number_values": None},
    ],
)
def test_json_of_another_kind_is_named_with_the_remedy(change, evaluations, tmp_path):
    whole = evaluations["ce"]["interpolation"]
    result = whole | change if isinstance(change, dict) else change
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps({"interpolation": result}))
    with pytest.raises(ConfigError) as caught:
        read_evaluation(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path} holds no results of the set 'interpolation': ")
    assert "evaluate the run with" in message


def test_a_run_in_the_place_of_the_folder_is_refused(compared, capsys):
    before = sorted(path.name for path in (compared / "ce").iterdir())
    assert main(["report", f"{compared / 'ce'}", f"{compared / 'ce-0.3was'}"]) == 1
    assert "name a folder for the report first" in capsys.readouterr().err
    assert sorted(path.name for path in (compared / "ce").iterdir()) == before


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
