"""Scores of generated text: token accuracy, BLEU and ROUGE."""

import importlib
from collections.abc import Sequence
from types import ModuleType

import numpy as np

_ROUGE = ("rouge1", "rouge2", "rougeL")
_PAPER_EXTRA_TOKENS = 10


def token_accuracy(
    predictions: Sequence[Sequence[int]],
    references: Sequence[Sequence[int]],
    *,
    paper_compat: bool = False,
    batch_size: int = 64,
) -> float:
    """Share of reference tokens that the prediction has at the same position.

    Args:
        predictions: N rows of generated token ids, without padding and start token.
        references: N rows of label ids, likewise.
        paper_compat: the paper's number. It pads both rows to the longest reference of
            the batch plus 10, counts equal padding as correct, and averages batches
            whatever their size.
        batch_size: for `paper_compat` only.

    Returns:
        A share in [0, 1]. Tokens after the end of the reference count only under
        `paper_compat`.

    Raises:
        ValueError: lengths differ, or there is no reference token.

    Example:
        >>> predictions, references = [[5, 3, 1], [5, 7, 1]], [[5, 4, 1], [5, 8, 1]]
        >>> round(token_accuracy(predictions, references), 3)
        0.667
        >>> round(token_accuracy(predictions, references, paper_compat=True), 3)
        0.923

    Source: *Regress, Don't Guess* (ICML 2025), its evaluation code.
    """
    _check_lengths(predictions, references)
    if paper_compat:
        means = []
        for rows in _batches(len(references), batch_size):
            width = max(map(len, references[rows])) + _PAPER_EXTRA_TOKENS
            right = [
                _hits(p[:width], y) + width - max(len(p[:width]), len(y))
                for p, y in zip(predictions[rows], references[rows], strict=True)
            ]
            means.append(np.mean(right) / width)
        return float(np.mean(means))
    total = sum(map(len, references))
    if not total:
        raise ValueError(
            f"{len(references)} references without tokens: give at least one token."
        )
    pairs = zip(predictions, references, strict=True)
    return sum(_hits(p, y) for p, y in pairs) / total


def sequence_accuracy(predictions: Sequence, references: Sequence) -> float:
    """Share of predictions, texts or token ids, that equal their whole reference.

    >>> sequence_accuracy(["3 apples", "4"], ["3 apples", "4.0"])
    0.5
    """
    _check_lengths(predictions, references)
    pairs = zip(predictions, references, strict=True)
    return sum(p == y for p, y in pairs) / len(references)


def corpus_bleu(
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    paper_compat: bool = False,
    batch_size: int = 64,
) -> float:
    """Corpus BLEU by sacrebleu with its defaults, one reference per prediction.

    Args:
        predictions: N generated texts.
        references: N answers.
        paper_compat: the mean BLEU over batches, as in the paper's code.
        batch_size: for `paper_compat` only.

    Returns:
        BLEU in [0, 100].

    Raises:
        ImportError: sacrebleu is not installed.
        ValueError: lengths differ or are zero.

    Source: sacrebleu `corpus_bleu`.
    """
    sacrebleu = _package("sacrebleu")
    _check_lengths(predictions, references)
    scores = [
        sacrebleu.corpus_bleu(list(predictions[rows]), [list(references[rows])]).score
        for rows in _batches(len(references), batch_size if paper_compat else None)
    ]
    return float(np.mean(scores))


def rouge(
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    paper_compat: bool = False,
    batch_size: int = 64,
) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L: F1 of stemmed words, averaged over the N pairs.

    Args:
        predictions: N generated texts.
        references: N answers.
        paper_compat: the mean over batches of their means. The paper's code took the
            median of bootstrapped means per batch, which is this plus noise.
        batch_size: for `paper_compat` only.

    Returns:
        ``rouge1``, ``rouge2``, ``rougeL``, in [0, 1].

    Raises:
        ImportError: rouge_score is not installed.
        ValueError: lengths differ or are zero.

    Source: rouge_score `RougeScorer`.
    """
    scorer = _package("rouge_score.rouge_scorer").RougeScorer(_ROUGE, use_stemmer=True)
    _check_lengths(predictions, references)
    scores = [
        scorer.score(target=reference, prediction=prediction)
        for prediction, reference in zip(predictions, references, strict=True)
    ]
    f1 = {name: np.array([score[name].fmeasure for score in scores]) for name in _ROUGE}
    batches = _batches(len(references), batch_size if paper_compat else None)
    return {
        name: float(np.mean([values[rows].mean() for rows in batches]))
        for name, values in f1.items()
    }


def text_metrics(
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    paper_compat: bool = False,
    batch_size: int = 64,
) -> dict[str, float]:
    """Scores of texts: ``sequence_accuracy``, ``bleu`` and the three of `rouge`.

    Args:
        predictions: N generated texts.
        references: N answers.
        paper_compat: BLEU and ROUGE as means over batches.
        batch_size: for `paper_compat` only.

    Returns:
        Shares and F1 in [0, 1], BLEU in [0, 100].

    Raises:
        ImportError: sacrebleu or rouge_score is not installed.
        ValueError: lengths differ or are zero.

    Source: *Regress, Don't Guess* (ICML 2025), table of MultiRC.
    """
    batches = {"paper_compat": paper_compat, "batch_size": batch_size}
    return {
        "sequence_accuracy": sequence_accuracy(predictions, references),
        "bleu": corpus_bleu(predictions, references, **batches),
        **rouge(predictions, references, **batches),
    }


def _hits(prediction: Sequence[int], reference: Sequence[int]) -> int:
    return sum(int(p) == int(y) for p, y in zip(prediction, reference, strict=False))


def _batches(n: int, batch_size: int | None) -> list[slice]:
    """Slices of `batch_size` rows, or one slice of all."""
    size = n if batch_size is None else batch_size
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    return [slice(start, start + size) for start in range(0, n, size)]


def _check_lengths(predictions: Sequence, references: Sequence) -> None:
    if len(predictions) != len(references) or not len(references):
        raise ValueError(
            f"{len(predictions)} predictions for {len(references)} references; "
            "give one prediction per reference, at least one"
        )


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ImportError(
            f"this metric needs the package {package}: pip install {package}, or "
            "ntl_jax[train]"
        ) from error
