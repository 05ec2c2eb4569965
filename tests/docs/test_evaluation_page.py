"""docs/evaluation.md names every score and table that an evaluation writes."""

import pathlib
import re

from train.config import EvalConfig
from train.evaluation.evaluator import _SURE
from train.evaluation.scores import Answers, answer_metrics, answer_tables

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
NAMED = set(re.findall(r"`(\w[\w-]*)`", PAGE))
WRITTEN = ["12 apples", "63", "?", "81"]
ROWS = [
    {"question": "3*4=", "answer": "12 apples"},
    {"question": "12*5=", "answer": "60"},
    {"question": "7*8=", "answer": "56"},
    {"question": "9*9=", "answer": "81"},
]


def test_every_score_is_named():
    ids = [list(map(ord, text)) for text in WRITTEN]
    labels = [list(map(ord, row["answer"])) for row in ROWS]
    scores = set(answer_metrics(Answers(ROWS, WRITTEN, ids, labels), EvalConfig()))
    assert {"mape", "bleu", "rounded_accuracy"} <= scores
    short = {f"number_accuracy{end}" for end in ("_1e-2", "_1e-1")}
    assert short <= scores and {"_1e-2", "_1e-1"} <= NAMED
    unnamed = scores - NAMED - short
    assert {
        name for name in unnamed if not name.endswith(("_penalised", "_se"))
    } == set()
    assert {"mae_se", "log_mae_se", "number_accuracy_se"} <= NAMED


def test_every_table_and_teacher_forced_score_is_named():
    tables = answer_tables(ROWS, WRITTEN)
    assert set(tables) | {"number_tokens", "number_values"} <= NAMED
    assert set(tables["error_rates"]) | set(tables["baselines"]) <= NAMED
    for name in _SURE:
        assert name in NAMED or name.removeprefix("number_token") in NAMED
