"""The command line as a user meets it: real processes, one message an error."""

import errno
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from tests.train.helpers import TINY
from train.__main__ import main

ROOT = pathlib.Path(__file__).parents[2]
TINY_FLAGS = {
    "steps": 4,
    "log-every": 2,
    "data.batch-size": 8,
    "evaluation.batch-size": 8,
    "model.d-model": 16,
    "model.d-kv": 8,
    "model.d-ff": 16,
    "model.num-heads": 2,
    "optimizer.warmup-steps": 1,
}


def flags(**changes) -> list[str]:
    return [f"--{name}={value}" for name, value in (TINY_FLAGS | changes).items()]


def run(*arguments: str, cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """`python -m train ...` in another folder, with one CPU device."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("NTL_DATA_DIR", None)
    return subprocess.run(
        [sys.executable, "-m", "train", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def jsonl(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("jsonl")
    rows = [
        {"question": f"What is {i} plus 1?", "answer": f"{i + 1}"} for i in range(9)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(text)
    (folder / "eval.jsonl").write_text(text)
    (folder / "no_answer.jsonl").write_text(text + '{"question": "What is 2?"}\n')
    (folder / "no_digits").mkdir()
    _write_tokenizer_without_digits(folder / "no_digits")
    return folder


def _write_tokenizer_without_digits(folder: pathlib.Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocab = {"<pad>": 0, "</s>": 1, "<unk>": 2, "What": 3}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    ).save_pretrained(folder)


ERRORS = {
    "wrong preset": (["quickstat"], "no preset is called 'quickstat'"),
    "misspelt override": (["quickstart", "--stepz", "3"], "--stepz"),
    "wrong value": (["quickstart", "--steps", "many"], "--steps"),
    "no such file": (
        ["finetune", *flags(**{"data.train-file": "absent.jsonl"})],
        "absent.jsonl",
    ),
    "line without answer": (
        ["finetune", *flags(**{"data.train-file": "no_answer.jsonl"})],
        "no_answer.jsonl",
    ),
    "no digits": (
        [
            "finetune",
            *flags(**{"data.train-file": "train.jsonl", "tokenizer": "./no_digits"}),
        ],
        "./no_digits",
    ),
    "no digits, unsplit": (
        [
            "finetune",
            "--no-split-digits",
            *flags(**{"data.train-file": "train.jsonl", "tokenizer": "./no_digits"}),
        ],
        "--tokenizer ./no_digits",
    ),
    "no tokenizer": (["quickstart", "--tokenizer", "./absent"], "./absent"),
    "no pretrained model": (
        ["finetune", "--init-from", "./absent", "--data.train-file", "train.jsonl"],
        "./absent",
    ),
    "no run": (["predict", "runs/absent", "What is 1 plus 1?"], "runs/absent"),
    "nothing to resume": (["quickstart", "--resume"], "no run called quickstart"),
    "empty batch": (
        ["quickstart", "--data.batch-size", "0"],
        "--data.batch-size is 0",
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_one_message_and_a_status(case, jsonl):
    arguments, named = ERRORS[case]
    done = run(*arguments, cwd=jsonl)
    assert done.returncode != 0
    assert named in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert not (jsonl / "runs").exists()


@pytest.mark.slow
def test_finetune_predict_and_export_from_own_jsonl(jsonl, tmp_path):
    files = {
        "data.train-file": jsonl / "train.jsonl",
        "data.eval-file": jsonl / "eval.jsonl",
    }
    done = run("finetune", *flags(**files), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "eval: loss" in done.stdout
    text = (tmp_path / "runs/finetune/predictions.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["answer"] for row in rows] == [f"{i + 1}" for i in range(9)]

    asked = run("predict", "runs/finetune", "What is 1 plus 1?", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr

    done = run("export", "runs/finetune", "exported", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = run(
        "finetune",
        *flags(**files, **{"init-from": "exported", "steps": 2}),
        cwd=tmp_path,
    )
    assert again.returncode == 0, again.stderr


def test_list_names_every_preset(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} >= {"quickstart", "finetune"}


@pytest.mark.parametrize("asked", [["list"], ["quickstart", "--help"]])
def test_a_reader_may_leave_before_the_end(asked):
    command = [sys.executable, "-m", "train", *asked]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as listing:
        listing.stdout.close()
        assert (listing.stderr.read(), listing.wait()) == (b"", 0)


def test_help_without_arguments(capsys):
    assert main([]) == 0
    assert "python -m train list" in capsys.readouterr().out


def test_help_of_a_preset_says_all_and_fetches_no_checkpoint(capsys, monkeypatch):
    monkeypatch.setattr("train.__main__.adopt_checkpoint", None)
    monkeypatch.setenv("COLUMNS", "80")  # one column of flags
    with pytest.raises(SystemExit) as ended:
        main(["paper-rjokes", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "Offline:" in out and "--data.train-split dev" in out
    assert "--model.d-model" in out
    assert "checkpoints and evaluations end a row too." in out
    with pytest.raises(TypeError):
        main(["paper-rjokes"])


def test_a_full_device_is_one_message_with_the_remedy(tmp_path, capsys, monkeypatch):
    def too_large(*_):
        return jax.jit(lambda: jnp.zeros(2**46))()  # 256 TiB

    monkeypatch.setattr("train.__main__._train_in", too_large)
    assert main(["quickstart", "--run-dir", str(tmp_path / "run")]) == 1
    *_, error, remedy = capsys.readouterr().err.splitlines()
    assert error.startswith("error: a device's memory is full: RESOURCE_EXHAUSTED")
    assert "--mesh.fsdp" in remedy and "--evaluation.batch-size" in remedy


def test_ctrl_c_where_no_step_is_taken_is_one_line(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("train.__main__._train_in", interrupted)
    assert main(["quickstart", "--run-dir", str(tmp_path / "run")]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/a/config.json"),
            "error: /a/config.json: Permission denied",
        ),
        (OSError(errno.ENOSPC, "No space left"), "error: No space left"),
    ],
)
def test_what_folders_do_not_allow_is_one_line(error, line, capsys, monkeypatch):
    def refused(*_):
        raise error

    monkeypatch.setattr("train.__main__.predict", refused)
    assert main(["predict", "runs/a", "What is 1 plus 1?"]) == 1
    assert capsys.readouterr().err == line + "\n"


def test_other_errors_of_the_system_are_bugs(monkeypatch):
    def reset(*_):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset")

    monkeypatch.setattr("train.__main__.predict", reset)
    with pytest.raises(ConnectionResetError):
        main(["predict", "runs/a", "What is 1 plus 1?"])


def test_tiny_is_no_preset(capsys):
    assert main([TINY.name]) == 1
    assert "no preset is called 'tiny'" in capsys.readouterr().err
