"""Tokenizers by name; failures are reported at once, in one line."""

import json
import sys
import time

import huggingface_hub
import pytest
import transformers

from ntl_jax.tokenization import builtin_tokenizer, load_tokenizer


def test_load_errors_are_one_line_that_names_the_remedy(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer folder '/no/such'"):
        load_tokenizer("/no/such")
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({}))
    with pytest.raises(ValueError, match=r"tokenizer\.json' is a file"):
        load_tokenizer(str(file))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ValueError, match=r"model'.*tokenizer\.json; or"):
        load_tokenizer(str(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"from the folder .*name 'builtin'") as error:
        load_tokenizer(str(tmp_path))  # whose tokenizer.json is empty
    assert "\n" not in str(error.value)

    with pytest.raises(ValueError, match=r"from the hub id 'no model'.*id must use al"):
        load_tokenizer("no model")


def test_a_vocabulary_alone_asks_for_the_config_of_its_model(tmp_path):
    words = ["<|endoftext|>", *map(chr, range(33, 127)), "12"]
    vocabulary = {word: row for row, word in enumerate(words)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n1 2\n")
    what = (
        r'has no tokenizer\.json: add .* config\.json.*\{"model_type": "gpt2"\}\), or'
    )
    with pytest.raises(ValueError, match=what):
        load_tokenizer(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    ids = load_tokenizer(str(tmp_path), split_digits=False).encode("12")
    assert ids[0] == vocabulary["12"]


def test_a_sentencepiece_model_asks_for_what_reads_it(tmp_path, monkeypatch):
    def cannot(*_, **__):
        raise ValueError("no backend")

    # As where sentencepiece is not installed, wherever this runs.
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", cannot)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    (tmp_path / "spiece.model").write_bytes(b"pieces")
    both = (
        r'\{"model_type": "t5"\}\) and pip install sentencepiece, .*spiece\.model, or'
    )
    with pytest.raises(ValueError, match=both):
        load_tokenizer(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ValueError, match=r"no tokenizer\.json: pip install sentencepi"):
        load_tokenizer(str(tmp_path))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The cache of a hub that is out of reach; waiting for it is an error."""

    def wait(seconds):
        raise AssertionError(f"waits {seconds} s")

    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", "http://localhost:9")  # nobody listens
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "sleep", wait)
    return tmp_path


def test_a_hub_out_of_reach_is_told_at_once(hub, capfd):
    with pytest.raises(
        ValueError, match=r"hub id 'no/model' .*Connect.*'builtin'"
    ) as e:
        load_tokenizer("no/model")
    assert "\n" not in str(e.value)
    assert capfd.readouterr().err == ""


def test_what_was_fetched_before_needs_no_hub(hub, capfd):
    stored = hub / "models--some--model"
    files = stored / "snapshots" / ("0" * 40)
    files.mkdir(parents=True)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(files.name)
    (files / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ValueError, match=r"'some/model'.*tokenizer\.json; or"):
        load_tokenizer("some/model")
    builtin_tokenizer().save(files)
    ids = load_tokenizer("some/model").encode("What is 12 plus 3?")
    assert ids == builtin_tokenizer().encode("What is 12 plus 3?")
    assert capfd.readouterr().err == ""
