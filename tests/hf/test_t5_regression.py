"""Folders of T5ForSequenceClassification with one label, both ways."""

import dataclasses
import json

import chex
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ntl_jax.hf import CheckpointError, load_checkpoint, save_checkpoint
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import T5RegressionConfig
from tests.models.cases import T5_CASES
from tests.models.cases import t5_batch as batch
from tests.models.t5_regression_cases import run, run_torch, torch_model


def question_batch():
    data = batch()
    data["input_ids"][:, 11] = 1
    return {"input_ids": data["input_ids"], "attention_mask": data["attention_mask"]}


@pytest.mark.parametrize("kind", T5_CASES)
def test_transformers_folder_loads_and_saves_back_bit_for_bit(kind, tmp_path):
    from transformers import T5ForSequenceClassification

    model = torch_model(kind, classifier_dropout=0.25)
    model.save_pretrained(tmp_path / "theirs")
    config, params = load_checkpoint(tmp_path / "theirs")
    assert isinstance(config, T5RegressionConfig)
    assert config.classifier_dropout == 0.25
    save_checkpoint(tmp_path / "ours", config, params)
    theirs, ours = (
        load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours")
    )
    chex.assert_trees_all_equal(ours, theirs)
    again, same = load_checkpoint(tmp_path / "ours")
    assert again == config
    chex.assert_trees_all_equal(flatten(same), flatten(params))

    back = T5ForSequenceClassification.from_pretrained(tmp_path / "ours").eval()
    assert back.config.num_labels == 1
    assert back.config.classifier_dropout == 0.25
    data = question_batch()
    want = run_torch(back, data).logits.detach().numpy()
    before = run_torch(model, data).logits.detach().numpy()
    chex.assert_trees_all_close(want, before, atol=1e-5)
    chex.assert_trees_all_close(run(config, params, data), want[:, 0], atol=1e-4)


def test_fields_can_be_set_otherwise(tmp_path):
    torch_model("t5_v1_0").save_pretrained(tmp_path)
    config, _ = load_checkpoint(tmp_path, classifier_dropout=0.5, dropout_rate=0.0)
    assert (config.classifier_dropout, config.dropout_rate) == (0.5, 0.0)
    assert dataclasses.replace(config, d_ff=48) == config


def test_other_heads_and_missing_weights_are_named(tmp_path):
    torch_model("t5_v1_0").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["classification_head.out_proj.bias"]
    tensors["lm_head.weight"] = np.zeros((50, 32), np.float32)
    save_file(tensors, file)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(tmp_path)
    assert "missing tensor classification_head.out_proj.bias" in str(error.value)
    assert "unknown tensor lm_head.weight" in str(error.value)
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = {"0": "no", "1": "yes", "2": "maybe"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="3 labels"):
        load_checkpoint(tmp_path)
