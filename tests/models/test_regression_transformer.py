"""T5 with number encodings against transformers' T5 on the embeddings themselves."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.generate import greedy
from ntl_jax.hf import load_checkpoint, save_checkpoint
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import (
    RegressionTransformerConfig,
    T5Config,
    bind,
    init_params,
)
from tests.models.cases import ours, perturbed, to_params, torch_model
from tests.models.regression_transformer_cases import (
    FIRST,
    ROWS,
    logits_and_gradient,
    numeric_batch,
    run_torch,
)
from tests.models.running import TOLERANCE, relative_errors


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("t5_v1_0", "reference"),
        pytest.param("t5_v1_1", "paper", marks=pytest.mark.slow),
    ],
)
def test_logits_and_gradients_equal_pytorch(kind, formula):
    model: Any = torch_model(kind, vocab_size=ROWS)
    plain, params = ours(model)
    config = RegressionTransformerConfig.from_t5(
        plain, first_number_id=FIRST, number_formula=formula
    )
    data = numeric_batch()
    output = run_torch(model, data, formula)
    want = output.logits.detach().numpy()
    output.loss.backward()
    want_grads = to_params(
        plain, {name: p.grad.numpy() for name, p in model.named_parameters()}
    )
    logits, grads = logits_and_gradient(config, params, data)
    chex.assert_trees_all_close(logits, want, atol=TOLERANCE)
    errors = relative_errors(grads, want_grads)
    assert max(errors.values()) < TOLERANCE, errors

    data["input_ids"][0, 0] = 0  # so that the table's first row is in use
    want = run_torch(model, data, formula).logits.detach().numpy()
    wrong = perturbed(params, "shared/embedding")
    wrong_logits, wrong_grads = logits_and_gradient(config, wrong, data)
    assert np.abs(wrong_logits - want).max() > 2 * TOLERANCE
    assert max(relative_errors(wrong_grads, want_grads).values()) > 2 * TOLERANCE


CONFIG = RegressionTransformerConfig(
    vocab_size=ROWS,
    d_model=32,
    d_kv=12,
    d_ff=48,
    num_layers=1,
    num_decoder_layers=1,
    num_heads=4,
    first_number_id=FIRST,
)


def test_other_formulas_scales_and_places_give_other_logits():
    params, data = init_params(CONFIG, jax.random.key(0)), numeric_batch()
    embed = {}
    for changes in (
        {},
        {"number_formula": "paper"},
        {"number_scale": "linear"},
        {"first_number_id": 41},
    ):
        config = dataclasses.replace(CONFIG, **changes)
        embed[str(changes)] = np.asarray(bind(config, params).embed(data["input_ids"]))
    first, *others = embed.values()
    for name, other in zip(list(embed)[1:], others, strict=True):
        assert np.abs(first - other).max() > 1e-2, name
    learned = np.asarray(params["shared"]["embedding"])[data["input_ids"]]
    is_number = (data["input_ids"] >= FIRST) & (data["input_ids"] < FIRST + 320)
    assert np.array_equal(first[~is_number], learned[~is_number])


def test_cached_decoding_reads_the_encodings_too():
    config = dataclasses.replace(
        CONFIG, tie_word_embeddings=False, scale_decoder_outputs=False
    )
    params, data = init_params(config, jax.random.key(1)), numeric_batch()
    source, mask = data["input_ids"], data["attention_mask"]
    tokens = greedy(config, params, source, attention_mask=mask, max_new_tokens=9)
    assert (np.asarray(tokens) >= FIRST).sum() > 9
    logits, _ = logits_and_gradient(config, params, data | {"labels": tokens})
    assert np.array_equal(logits.argmax(-1), tokens)


def test_pretrained_embeddings_are_kept(tmp_path):
    """What growing the vocabulary must not do is to draw the old rows again."""
    small = T5Config.from_t5(CONFIG, vocab_size=50)
    pretrained = init_params(small, jax.random.key(2))
    save_checkpoint(tmp_path, small, pretrained)
    grown, params = load_checkpoint(tmp_path, vocab_size=ROWS, new_tokens="mean")
    config = RegressionTransformerConfig.from_t5(grown, first_number_id=50)
    kept = flatten(params)["shared/embedding"][:50]
    assert np.array_equal(kept, flatten(pretrained)["shared/embedding"])
    logits = bind(config, params)(jnp.array([[3, 60]]), jnp.array([[0]]))
    assert np.isfinite(logits).all()


def test_folders_read_back_and_transformers_refuses_them(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = dataclasses.replace(CONFIG, number_formula="paper", number_scale="linear")
    params = init_params(config, jax.random.key(0))
    save_checkpoint(tmp_path, config, params)
    again, same = load_checkpoint(tmp_path)
    assert again == config
    chex.assert_trees_all_equal(flatten(same), flatten(params))
    with pytest.raises((ValueError, KeyError), match="t5-regression-transformer"):
        transformers.AutoConfig.from_pretrained(tmp_path)


def test_configs_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"32100 .*32419.*32128"):
        RegressionTransformerConfig()
    assert RegressionTransformerConfig(vocab_size=32448).first_number_id == 32100
    with pytest.raises(ValueError, match="float32"):
        dataclasses.replace(CONFIG, number_scale="none")
    with pytest.raises(ValueError, match=r"'paper'.*'reference'"):
        dataclasses.replace(CONFIG, number_formula="sine")
