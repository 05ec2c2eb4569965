"""An odd vocabulary on a mesh that does not divide it, from training to the file."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.train.helpers import changed
from tests.train.test_decoder_only import CAUSAL, MODELS
from train.config import MeshConfig
from train.evaluation.predict import export
from train.loop import run

TOKENS = 513


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "granite"])
def test_padding_is_trained_around_and_not_exported(tmp_path, family):
    config = changed(
        CAUSAL,
        model=MODELS[family],
        model__vocab_size=TOKENS,
        mesh=MeshConfig(data=2, fsdp=2, tensor=2),
        fused_head=True,
        accumulate=2,
        steps=2,
    )
    result = run(config, tmp_path / "run")
    table = result.state.params["wte" if family == "gpt2" else "embed"]["embedding"]
    assert table.shape[0] == 640
    assert not np.asarray(table)[TOKENS:].any()
    assert np.asarray(table)[:TOKENS].any(axis=1).all()

    export(tmp_path / "run", tmp_path / "exported")
    written = load_file(tmp_path / "exported" / "model.safetensors")
    (name,) = (n for n in written if n.endswith(("wte.weight", "embed_tokens.weight")))
    np.testing.assert_array_equal(written[name], np.asarray(table)[:TOKENS])
    fields = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert fields["vocab_size"] == TOKENS
