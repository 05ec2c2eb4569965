"""What comes through where the hub cannot be asked."""

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError

from ntl_jax.hf import load_config
from ntl_jax.hub import fetch
from ntl_jax.tokenization import load_tokenizer


@pytest.mark.parametrize("kind", HfHubHTTPError.__bases__)
def test_a_proxy_that_refuses_is_told_as_any_hub_out_of_reach(kind, monkeypatch):
    def refuse(name, **_):
        raise kind("403 Forbidden")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(OSError, match="403 Forbidden"):
        fetch("some/model", ["*.json"])
    with pytest.raises(ValueError, match=r"hub id 'some/model' .*403 Forbidden"):
        load_tokenizer("some/model")
    with pytest.raises(FileNotFoundError, match=r"'some/model'.*without a network"):
        load_config("some/model")


def test_a_bug_is_no_hub_out_of_reach(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(TypeError):
        fetch("some/model", ["*.json"])
