"""Training with digits that name their place: the Regression Transformer's."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.models import GPT2Config, RegressionTransformerConfig, bind
from ntl_jax.tokenization import RegressionTransformerTokenizer
from tests.train.conftest import standard_promotion
from tests.train.helpers import SHALLOW, changed
from train.config import ConfigError, validate
from train.evaluation.predict import load_run, predict
from train.loop import run

PLACES = changed(SHALLOW, number_tokens="places", steps=3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("places")
    with standard_promotion():
        return run_dir, run(PLACES, run_dir)


@pytest.mark.slow
def test_the_run_trains_evaluates_and_is_loaded_again(trained):
    run_dir, result = trained
    metrics = next(iter(result.results.values())).metrics
    assert np.isfinite(metrics["loss"])
    assert metrics["was"] > 0
    loaded = load_run(run_dir)
    assert isinstance(loaded.model, RegressionTransformerConfig)
    assert loaded.model.first_number_id == 512
    assert loaded.model.vocab_size == 896  # 512 + 320, to a multiple of 128
    assert isinstance(loaded.tokenizer, RegressionTransformerTokenizer)
    assert np.array_equal(loaded.vocab.values, np.tile(np.arange(10.0), 32))
    assert predict(run_dir, "What is 3 plus 4?")


@pytest.mark.slow
def test_answers_are_tokens_with_places(trained):
    run_dir, _ = trained
    loaded = load_run(run_dir)
    ids = loaded.tokenizer.encode("12")
    assert [i - 512 for i in ids[:-1]] == [10 * 13 + 1, 10 * 12 + 2]
    assert isinstance(loaded.model, RegressionTransformerConfig)
    embedded = bind(loaded.model, loaded.params).embed(jnp.array([ids]))
    learned = np.asarray(loaded.params["shared"]["embedding"])[ids]
    moved = np.abs(embedded[0] - learned).max(-1) > 0.01
    assert moved.tolist() == [True, True, False]


@pytest.mark.slow
def test_the_config_says_so(trained):
    run_dir, _ = trained
    config = json.loads((run_dir / "config.json").read_text())
    assert config["number_tokens"] == "places"
    assert config["resolved_model"]["class"] == "RegressionTransformerConfig"


def test_other_models_are_refused():
    with pytest.raises(ConfigError, match="--number-tokens places is a T5's"):
        validate(changed(PLACES, model=GPT2Config.small()), 8)
