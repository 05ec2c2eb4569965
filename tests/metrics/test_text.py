"""Text metrics against their packages, and the paper's ways of averaging."""

import sys

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ntl_jax.metrics import (
    corpus_bleu,
    rouge,
    sequence_accuracy,
    text_metrics,
    token_accuracy,
)

REFERENCES = [
    "the cat sat on the mat and looked at the dog",
    "he has 12 apples and gives 5 of them away",
    "there are 7 days in a week",
    "she was running to the station in the rain",
]
PREDICTIONS = [
    "the cat sat on a mat and looked at the dog",
    "he has 12 apples and gave 6 of them away",
    "there are 7 days in a week",
    "he runs to stations",
]


def test_bleu_is_sacrebleus():
    sacrebleu = pytest.importorskip("sacrebleu")
    expected = sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score
    assert corpus_bleu(PREDICTIONS, REFERENCES) == expected
    assert 0 < expected < 100
    assert corpus_bleu(REFERENCES, REFERENCES) == pytest.approx(100)
    assert corpus_bleu(REFERENCES, PREDICTIONS) != expected, "the roles differ"


def test_the_papers_bleu_is_a_mean_over_batches():
    sacrebleu = pytest.importorskip("sacrebleu")
    batches = [
        sacrebleu.corpus_bleu(PREDICTIONS[rows], [REFERENCES[rows]]).score
        for rows in (slice(0, 3), slice(3, 4))
    ]
    compat = corpus_bleu(PREDICTIONS, REFERENCES, paper_compat=True, batch_size=3)
    assert compat == pytest.approx(np.mean(batches))
    assert abs(compat - corpus_bleu(PREDICTIONS, REFERENCES)) > 5


def test_rouge_is_rouge_scores():
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    names = ["rouge1", "rouge2", "rougeL"]
    stemmed = scorer.RougeScorer(names, use_stemmer=True)
    plain = scorer.RougeScorer(names, use_stemmer=False)
    found = rouge(PREDICTIONS, REFERENCES)
    for name in names:
        pairs = list(zip(REFERENCES, PREDICTIONS, strict=True))
        expected = [stemmed.score(*pair)[name].fmeasure for pair in pairs]
        assert found[name] == pytest.approx(np.mean(expected))
        other = [plain.score(*pair)[name].fmeasure for pair in pairs]
        assert np.mean(other) != pytest.approx(np.mean(expected)) or name == "rouge2"
    compat = rouge(PREDICTIONS, REFERENCES, paper_compat=True, batch_size=3)
    first, last = (
        rouge(PREDICTIONS[:3], REFERENCES[:3]),
        rouge(PREDICTIONS[3:], REFERENCES[3:]),
    )
    for name in names:
        assert compat[name] == pytest.approx((first[name] + last[name]) / 2)
        assert compat[name] != pytest.approx(found[name])


def test_rouge_by_hand():
    found = rouge(["a b c d"], ["a c b d"])
    assert found == {"rouge1": 1.0, "rouge2": 0.0, "rougeL": 0.75}


def test_text_metrics_are_their_parts():
    found = text_metrics(PREDICTIONS, REFERENCES)
    assert found["sequence_accuracy"] == 0.25
    assert found["bleu"] == corpus_bleu(PREDICTIONS, REFERENCES)
    assert {k: v for k, v in found.items() if "rouge" in k} == rouge(
        PREDICTIONS, REFERENCES
    )
    compat = text_metrics(PREDICTIONS, REFERENCES, paper_compat=True, batch_size=3)
    assert compat["bleu"] != found["bleu"] and compat["rouge1"] != found["rouge1"]


def test_empty_texts_have_scores():
    assert text_metrics([""], [""])["sequence_accuracy"] == 1.0
    assert set(text_metrics(["", ""], REFERENCES[:2]).values()) == {0.0}


@pytest.mark.parametrize(
    ("name", "metric"),
    [("sacrebleu", corpus_bleu), ("rouge_score.rouge_scorer", rouge)],
)
def test_a_missing_package_is_named(monkeypatch, name, metric):
    monkeypatch.setitem(sys.modules, name, None)
    package = name.split(".")[0]
    with pytest.raises(ImportError, match=f"pip install {package}, or ntl_jax.train"):
        metric(PREDICTIONS, REFERENCES)


def test_token_accuracy_by_hand():
    # Two labels of three tokens whose only digit is wrong.
    predictions, references = [[5, 3, 1], [5, 7, 1]], [[5, 4, 1], [5, 8, 1]]
    assert token_accuracy(predictions, references) == pytest.approx(4 / 6)
    compat = token_accuracy(predictions, references, paper_compat=True)
    assert compat == pytest.approx(24 / 26)
    assert token_accuracy([[5], [5, 8, 1, 9]], references) == pytest.approx(4 / 6)
    assert token_accuracy([[], []], references) == 0.0
    # In the paper's batches of one row: 12/13 and 13/13 of wide, 11/11 of short rows.
    rows = [[5, 3, 1], [1]], [[5, 4, 1], [1]]
    compat = token_accuracy(*rows, paper_compat=True, batch_size=1)
    assert compat == pytest.approx((12 / 13 + 1) / 2)
    assert token_accuracy(*rows, paper_compat=True) == pytest.approx(25 / 26)
    assert token_accuracy(*rows) == pytest.approx(3 / 4)


TOKENS = st.lists(st.integers(1, 4), min_size=1, max_size=8)


@hypothesis.given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=9))
def test_token_accuracy_agrees_with_padded_arrays(rows):
    predictions, references = zip(*rows, strict=True)
    width = max(map(len, references)) + 10
    p, y = np.zeros((2, len(rows), width), int)
    for row, (prediction, reference) in enumerate(rows):
        p[row, : len(prediction)] = prediction
        y[row, : len(reference)] = reference
    compat = token_accuracy(predictions, references, paper_compat=True)
    assert compat == pytest.approx((p == y).mean())
    batches = []
    for start in range(0, len(rows), 2):
        some = slice(start, start + 2)
        narrow = max(map(len, references[some])) + 10
        batches.append((p == y)[some, :narrow].mean())
    twos = token_accuracy(predictions, references, paper_compat=True, batch_size=2)
    assert twos == pytest.approx(np.mean(batches))
    found = token_accuracy(predictions, references)
    assert found == pytest.approx((p == y)[y > 0].mean())
    assert compat >= found - 1e-12 or (p[y == 0] > 0).any()


def test_sequence_accuracy_takes_texts_and_ids():
    assert sequence_accuracy([[1, 2], [3]], [[1, 2], [4]]) == 0.5
    assert sequence_accuracy(["a"], ["a "]) == 0.0


def test_errors_name_the_numbers():
    for metric in (token_accuracy, sequence_accuracy, corpus_bleu, rouge):
        with pytest.raises(ValueError, match="1 predictions for 2 references"):
            metric(["a"], ["a", "b"])
        with pytest.raises(ValueError, match="0 predictions for 0 references"):
            metric([], [])
    with pytest.raises(ValueError, match="2 references without tokens"):
        token_accuracy([[1], [2]], [[], []])
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        corpus_bleu(["a"], ["a"], paper_compat=True, batch_size=0)
