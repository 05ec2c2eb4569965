"""The weight table and config.json of T5 with a regression head, both ways."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ntl_jax.hf import t5
from ntl_jax.hf.rules import Rule, Table
from ntl_jax.models.baselines.t5_regression import T5RegressionConfig

ARCHITECTURE = "T5ForSequenceClassification"
NAMES = (ARCHITECTURE,)
_BODY, _HEAD = "transformer.", "classification_head."


def table(config: T5RegressionConfig) -> Table:
    """The weight table of T5ForSequenceClassification with one label."""
    body = t5.table(dataclasses.replace(config, tie_word_embeddings=True))
    rules = [dataclasses.replace(rule, key=_BODY + rule.key) for rule in body.rules]
    for name, key in (("dense", "dense"), ("out", "out_proj")):
        kernel, bias = f"head/{name}/kernel", f"head/{name}/bias"
        rules.append(Rule(kernel, f"{_HEAD}{key}.weight", transpose=True))
        rules.append(Rule(bias, f"{_HEAD}{key}.bias"))
    copies = {
        _BODY + copy: _BODY + original
        for copy, original in body.duplicates.items()
        if copy != "lm_head.weight"  # there is none
    }
    ignored = tuple(f"transformer\\.{pattern}" for pattern in body.ignored)
    return Table(tuple(rules), copies, ignored)


def read_config(
    raw: dict[str, Any],
    names: list[str],
    read: Callable[[str], np.ndarray],
    **changes: Any,
) -> T5RegressionConfig:
    """A T5RegressionConfig from the config.json of a T5ForSequenceClassification.

    Args:
        raw: the parsed config.json.
        names: the checkpoint's tensor names.
        read: gives a tensor by its name.
        **changes: fields to set otherwise.

    Returns:
        The config. Its `tie_word_embeddings` and `scale_decoder_outputs` concern a
        language-model head, which is not there.

    Raises:
        ValueError: the model has several labels, or a field has a value that the model
            does not have.
    """
    labels = raw.get("id2label") or {}
    if len(labels) > 1 or raw.get("num_labels", 1) != 1:
        raise ValueError(
            f"the checkpoint has {max(len(labels), raw.get('num_labels', 1))} labels; "
            "a regression head has one"
        )
    ours = {"classifier_dropout": raw.get("classifier_dropout", 0.0)}
    ours |= {name: changes.pop(name) for name in list(ours) if name in changes}
    body = t5.read_config(raw, names, read, **changes)
    return T5RegressionConfig.from_t5(body, **ours)


def write_config(config: T5RegressionConfig) -> dict[str, Any]:
    """A config.json that transformers opens as a T5ForSequenceClassification."""
    tied = dataclasses.replace(config, tie_word_embeddings=config.scale_decoder_outputs)
    return t5.write_config(tied) | {
        "architectures": [ARCHITECTURE],
        "classifier_dropout": config.classifier_dropout,
        "problem_type": "regression",
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }


def written_copies(
    config: T5RegressionConfig, tensors: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """No tensor is repeated."""
    return {}
