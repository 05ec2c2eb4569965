"""Characters that a tokenizer has no token for: counted and named, once."""

import json
import logging

import numpy as np
import pytest

from ntl_jax.models import NumformerConfig
from ntl_jax.tokenization import (
    DigitTokenizer,
    RegressionTransformerTokenizer,
    XvalTokenizer,
    builtin_tokenizer,
    load_tokenizer,
)
from tests.train.helpers import TINY, changed
from train.config import DataConfig
from train.data import row_checks, tokenize_rows
from train.data.inputs import load_inputs
from train.data.row_checks import count_unknown

TRAIN = [
    ("What is 2^3?", "2^3 = 8"),  # twice in a row: counted once
    ("1 plus 2", "3"),
    ("{1, 2} and ~2 < 4", "5"),
    ("What is 6?", "6 \\ 7"),
    ("3 < 4", "`x`"),
]


@pytest.fixture(scope="module")
def t5(data_dir):
    return load_tokenizer(str(data_dir / "tokenizers" / "t5"))


@pytest.fixture(autouse=True)
def _logged(monkeypatch):
    logger = logging.getLogger("train")  # the command line's own handler shows it
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(logger, "handlers", [])


def written(path, rows) -> str:
    keys = ("question", "answer")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    path.write_text("\n".join(lines))
    return str(path)


def inputs_of(folder, data_dir, train, test, tokenizer="t5", **changes):
    files = {
        "train_file": written(folder / "train.jsonl", train),
        "eval_file": written(folder / "eval.jsonl", test),
    }
    if tokenizer != "builtin":
        tokenizer = str(data_dir / "tokenizers" / tokenizer)
    config = changed(
        TINY,
        data=DataConfig(name="jsonl", **files),
        tokenizer=tokenizer,
        model__vocab_size=50_000,
        **changes,
    )
    return config, load_inputs(config, config.model)


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if "unknown token" in r.getMessage()]


@pytest.mark.parametrize("packing", [False, True])
def test_rows_with_unknown_characters_are_counted_once(
    tmp_path, data_dir, caplog, packing
):
    test = [("1", "2"), ("x^2", "3")]
    inputs_of(tmp_path, data_dir, TRAIN, test, data__packing=packing)
    (warning,) = warnings(caplog)
    assert "4 of 5 rows of 'train', 1 of 2 rows of 'eval' hold char" in warning
    assert "('^', '{', '}', '~', '<')" in warning  # five of the seven


def test_what_a_tokenizer_spells_is_not_counted(tmp_path, data_dir, caplog):
    plain = [("What is 1 plus 2?", "3")]
    inputs_of(tmp_path, data_dir, plain, plain)
    inputs_of(tmp_path, data_dir, [*TRAIN, ("π \n", "1")], plain, tokenizer="builtin")
    assert not warnings(caplog)


def test_of_the_sets_without_any_nothing_is_said(tmp_path, data_dir, caplog):
    inputs_of(tmp_path, data_dir, [("1", "2")], [("π", "3")])
    (warning,) = warnings(caplog)
    assert warning.startswith("1 of 1 rows of 'eval' hold") and "('π')" in warning


def test_which_tokenizers_have_an_unknown_token(t5, data_dir):
    granite = data_dir / "tokenizers" / "granite-3.1-1b-a400m-instruct"
    assert load_tokenizer(str(granite)).unk_token_id is None
    assert builtin_tokenizer().unk_token_id is None
    plain = load_tokenizer(str(data_dir / "tokenizers" / "t5"), split_digits=False)
    for tokenizer in (
        plain,
        DigitTokenizer(plain),
        RegressionTransformerTokenizer(plain),
        XvalTokenizer(plain),
    ):
        assert tokenizer.unk_token_id == 2
        assert 2 in tokenizer.encode("2^3") and 2 not in tokenizer.encode("2 + 3")


def test_rows_of_a_numformer_are_counted_too(tmp_path, data_dir, caplog):
    model = NumformerConfig(vocab_size=50_000, num_id=32_100, d_model=16, num_heads=2)
    rows = TRAIN[:4]
    inputs_of(tmp_path, data_dir, rows, rows[:1], model=model, head="numformer")
    assert "3 of 4 rows of 'train', 1 of 1 rows of 'eval'" in warnings(caplog)[0]


def test_parts_and_rows_without_tokens_are_told_apart(t5, monkeypatch, caplog):
    """Ids are compared part by part, and an empty question shifts no count."""
    rows = [{"question": question, "answer": answer} for question, answer in TRAIN]
    dataset = tokenize_rows(rows, t5, max_source_length=64, max_target_length=64)
    for at_once in (1, 7, 2**24):
        monkeypatch.setattr(row_checks, "_TOKENS_AT_ONCE", at_once)
        caplog.clear()
        count_unknown({"all": (rows, dataset)}, t5)
        assert warnings(caplog)[0].startswith("4 of 5 rows of 'all'")
    texts = type(dataset.targets)(np.array([2, 5, 2]), np.array([0, 1, 1, 3]))
    assert row_checks._rows_with(2, texts).tolist() == [0, 2]
