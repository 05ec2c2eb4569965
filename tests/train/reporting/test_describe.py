"""`describe` of every preset, against counts made row by row."""

import json
import pathlib
import re

import numpy as np
import pytest

from train.__main__ import main, parse_config
from train.config.presets import load_preset, preset_names
from train.data import DataError, load_splits, pack, tokenize_rows
from train.data.inputs import load_inputs, open_tokenizer
from train.reporting.describe import describe

SMALL = ["--data.train-size", "120", "--data.eval-size", "20"]


def written(folder: pathlib.Path, n: int) -> str:
    """A jsonl file of n rows of different lengths."""
    rows = [
        {"question": "How many? " + "one and " * (i % 7), "answer": f"It is {i * 37}."}
        for i in range(n)
    ]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def flags(preset: str, data_dir: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Little data, all of it on this machine."""
    config = load_preset(preset)[0]
    more = list(SMALL)
    if config.tokenizer != "builtin" or config.init_from is not None:
        more += ["--tokenizer", str(data_dir / "tokenizers" / "t5")]
    if config.data.name in ("jsonl", "tsv"):
        more = [*more[4:], "--data.train-file", written(folder, 30)]
    if config.data.name == "rjokes":  # whose training file is the largest
        more += ["--data.train-split", "dev"]
    return more


def numbers(line: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.?\d*", line)]


def line_of(text: str, start: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith(start))
    return line.removeprefix(start)


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_is_described(preset, data_dir, tmp_path):
    try:
        text = describe(
            parse_config(preset, flags(preset, data_dir, tmp_path), "describe")
        )
    except DataError as error:
        pytest.skip(f"no data: {error}")
    assert line_of(text, "train source") and line_of(text, "train target")
    if "numformer" in preset:
        assert "each number is one token, [NUM]" in text
    else:
        assert "number tokens" in text and "coverage" in text
    ways = ["padded", "--data.buckets", "--data.packing"]
    if "numformer" in preset:
        ways.remove("--data.packing")  # which it does not take
    assert ("--data.packing" in text) == ("--data.packing" in ways)
    for way in ways:
        *_, padding, _ = numbers(line_of(text, way))
        assert 0 <= padding < 100
    assert ("source: " in text) != ("withheld" in text)


def test_the_figures_are_those_of_the_rows(tmp_path, capsys):
    path = written(tmp_path, 50)
    arguments = ["--data.train-file", path, "--data.max-source-length", "14"]
    arguments += ["--data.batch-size", "4", "--data.packed-length", "96"]
    arguments += ["--data.packing"]
    assert main(["describe", "finetune", *arguments]) == 0
    text = capsys.readouterr().out

    config = parse_config("finetune", arguments)
    rows = load_splits(config.data).train
    tokenizer = open_tokenizer("builtin", True)
    lengths = [
        np.array([len(tokenizer.encode(row[side])) for row in rows])
        for side in ("question", "answer")
    ]
    mean, median, *_, longest, limit, cut, share = numbers(
        line_of(text, "train source")
    )
    assert mean == round(lengths[0].mean(), 1)
    assert (median, longest, limit) == (np.median(lengths[0]), lengths[0].max(), 14)
    assert cut == (lengths[0] > 14).sum() > 0
    assert share == round(100 * cut / 50, 1)

    digits = sum(sum(c.isdigit() for c in row["answer"]) for row in rows)
    assert f"{digits / lengths[1].sum():.1%} of target tokens" in text
    assert "coverage: 100.0% of the digits of the first 50 answers" in text

    real = np.minimum(lengths[0], 14).sum() + lengths[1].sum()
    assert numbers(line_of(text, "padded"))[:3] == [
        16,
        16,
        round(100 * (1 - real / (50 * 32)), 1),
    ]
    packed = pack(
        tokenize_rows(rows, tokenizer, max_source_length=14, max_target_length=512),
        seed=0,
        length=96,
    )
    assert numbers(line_of(text, "--data.packing")) == [
        *packed.shape,
        round(100 * (1 - real / (len(packed) * sum(packed.shape))), 1),
        round(50 / len(packed), 2),
    ]
    assert f"target: {rows[2]['answer']!r}" in text


@pytest.mark.parametrize(
    ("preset", "more"),
    [
        ("three-digit-numformer", []),
        ("gpt2-multiplication", []),
        ("gpt2-multiplication", ["--data.max-source-length", "7"]),
    ],
)
def test_padding_is_that_of_the_rows_as_they_are_trained(preset, more):
    """Question and answer share a row, each cut for itself."""
    config = parse_config(preset, [*SMALL, *more])
    data = load_inputs(config, config.model).train
    *length, padding, _ = numbers(line_of(describe(config), "padded"))
    assert length == [*data.shape] and len(length) == 1
    real = data.lengths().sum() / (len(data) * length[0])
    assert padding == round(100 * (1 - real), 1) > 0


@pytest.mark.parametrize("name", ["rjokes", "multirc"])
def test_rows_that_may_not_be_republished_are_withheld(name, tmp_path):
    folder = tmp_path / name.upper()
    folder.mkdir()
    text = describe(
        parse_config("finetune", ["--data.train-file", written(folder, 20)])
    )
    assert f"examples: withheld, the licence of {name}" in text
    assert "It is" not in text and "How many" not in text


def test_of_many_rows_some_are_looked_at(monkeypatch):
    monkeypatch.setattr("train.reporting.describe.MOST_ROWS", 50)
    text = describe(parse_config("quickstart", SMALL))
    assert re.search(r"train +120 +50 of them below", text)


def test_a_tokenizer_without_digits_is_said(monkeypatch):
    config = parse_config("quickstart", SMALL)
    monkeypatch.setattr("train.reporting.describe.number_vocab", _without_numbers)
    assert "no number tokens: none there" in describe(config)


def _without_numbers(*_, **__):
    raise ValueError("none there")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--data.seed", "-1"),
        ("--data.batch-size", "0"),
        ("--data.max-source-length", "0"),
        ("--data.buckets", "0"),
        ("--data.packed-length", "64"),
    ],
)
def test_what_a_run_refuses_is_refused(flag, value, capsys):
    assert main(["describe", "quickstart", *SMALL, flag, value]) == 1
    assert re.fullmatch(rf"error: {flag}.*\n", capsys.readouterr().err)


def test_describe_needs_a_preset(capsys):
    assert main(["describe"]) == 1
    assert main(["describe", "nothing"]) == 1
    assert "no preset is called 'nothing'" in capsys.readouterr().err
