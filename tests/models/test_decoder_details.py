"""What single decoder-only models have: parts of GPT-2, and what each refuses."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.losses import (
    cross_entropy_from_stats,
    ntl_was_from_stats,
    stats_from_hidden,
    stats_from_logits,
)
from ntl_jax.models import GPT2Config, GraniteConfig, bind
from ntl_jax.models.attention import token_positions
from ntl_jax.numbers.vocab import NumberVocab
from tests.models.cases import (
    TINY,
    batch,
    ours,
    real,
    torch_logits,
    torch_model,
)
from tests.models.running import TOLERANCE, assert_close, lively, run

GPT2 = TINY["gpt2_tied"]


@pytest.mark.parametrize("part", range(3), ids=["q", "k", "v"])
def test_parts_of_the_fused_projection_are_told_apart(part):
    model = torch_model("gpt2_tied")
    config, params = ours(model)
    data = batch("none")
    want = torch_logits(model, data)
    for name in ("kernel", "bias"):
        leaf = np.array(params["layers"]["attention"]["qkv"][name])
        index = (0, part, 3) if name == "bias" else (0, 2, part, 3)
        leaf[index] += 1.0
        flat = dict(params["layers"]["attention"]["qkv"]) | {name: leaf}
        wrong = dict(params, layers=dict(params["layers"]))
        wrong["layers"]["attention"] = dict(params["layers"]["attention"], qkv=flat)
        error = np.abs(run(config, wrong, data) - want).max() / np.abs(want).max()
        if name == "bias" and part == 1:  # one number more for all of a query's scores
            assert error < TOLERANCE
        else:
            assert error > 2 * TOLERANCE


def test_positions_count_no_padding_and_restart():
    mask = jnp.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    want = [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 3, 3]]
    chex.assert_trees_all_equal(token_positions(6, mask), jnp.array(want))
    segments = jnp.array([[4, 4, 4, 2, 2, 0], [1, 2, 3, 3, 3, 3]])
    want = [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 2, 3]]
    chex.assert_trees_all_equal(token_positions(6, None, segments), jnp.array(want))
    both = token_positions(6, mask.at[0, 4].set(0), segments)
    want = [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    chex.assert_trees_all_equal(both, jnp.array(want))
    chex.assert_trees_all_equal(token_positions(3), jnp.array([[0, 1, 2]]))


@pytest.mark.parametrize("fused", [False, True], ids=["logits", "hidden"])
def test_losses_are_the_same_over_a_padded_vocabulary(fused):
    digits = {str(digit): digit + 3 for digit in range(10)}
    vocab = NumberVocab.from_mapping(digits | {"": 50}, vocab_size=51)
    data, wide = batch(), lively(GPT2.pad_vocab(64))
    labels = jnp.asarray(data["labels"])
    counted = real(data)[:, :, None]
    wide["wte"]["embedding"] = wide["wte"]["embedding"].at[51:].set(9.0)

    def total(params, config):
        model = bind(config, params)
        ids, mask = data["input_ids"], data["attention_mask"]
        hidden = model.hidden(ids, attention_mask=mask)
        hidden = jnp.where(counted, hidden, 0.0)  # of no meaning in padding
        if fused:
            stats = stats_from_hidden(hidden, model.head, labels, vocab)
        else:
            stats = stats_from_logits(model.logits(hidden), labels, vocab)
        weight = (labels != -100).astype(jnp.float32)
        cross = cross_entropy_from_stats(stats, labels, vocab, label_smoothing=0.1)[0]
        return jnp.sum((cross + ntl_was_from_stats(stats, labels, vocab)[0]) * weight)

    step = jax.jit(jax.value_and_grad(total), static_argnums=1)
    want, want_grads = step(lively(GPT2), GPT2)
    got, grads = step(wide, GPT2.pad_vocab(64))
    assert_close(got, want, 1e-5)
    table = grads["wte"]["embedding"]
    assert not table[51:].any()
    assert_close(table[:51], want_grads["wte"]["embedding"], 1e-4)


def test_padding_is_logged(caplog):
    with caplog.at_level("INFO"):
        assert GPT2Config.small().pad_vocab().vocab_rows == 50304
    assert "50257" in caplog.text and "50304" in caplog.text


@pytest.mark.parametrize("name", ["gpt2_tied", "granite_dense"])
def test_shapes_that_disagree_are_named(name):
    model = bind(TINY[name], lively(TINY[name]))
    ids = jnp.ones((2, 5), jnp.int32)
    with pytest.raises(ValueError, match=r"\(2, 5\).*\(2, 4\)"):
        model(ids, attention_mask=ids[:, :4])
    with pytest.raises(ValueError, match=r"\(2, 5\).*\(1, 5\)"):
        model(ids, segment_ids=ids[:1])
    with pytest.raises(ValueError, match=r"\(5,\)"):
        model(ids[0])


def test_rows_beyond_the_positions_are_refused():
    model = bind(GPT2, lively(GPT2))
    with pytest.raises(ValueError, match=r"49 .*n_positions = 48"):
        model(jnp.ones((1, 49), jnp.int32))
    with pytest.raises(ValueError, match=r"40 .*9 .*49"):
        model.prefill(jnp.ones((1, 40), jnp.int32), None, 9)
    granite = bind(TINY["granite_dense"], lively(TINY["granite_dense"]))
    with pytest.raises(ValueError, match=r"5 .*92 .*97.*= 96"):
        granite.prefill(jnp.ones((2, 5), jnp.int32), None, 92)


EXPERTS = GraniteConfig.granite_3_1_1b_a400m()
GRANITE = GraniteConfig.granite_3_2_2b()


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (GPT2, {"dtype": "float16"}, "float16"),
        (GPT2, {"activation_function": "swish"}, "swish"),
        (GPT2, {"n_head": 5}, "n_embd 32 .*n_head 5"),
        (GPT2, {"n_layer": 0}, "n_layer is 0"),
        (GPT2, {"attn_pdrop": 1.0}, r"attn_pdrop is 1\.0"),
        (GPT2, {"n_inner": 0}, "n_inner is 0"),
        (GPT2Config.small(), {"vocab_rows": 50000}, "vocab_rows is 50000.*50257"),
        (GRANITE, {"hidden_size": 30}, "hidden_size 30 .*num_attention_heads 32"),
        (GRANITE, {"num_key_value_heads": 5}, "num_key_value_heads 5"),
        (GRANITE, {"num_local_experts": 4}, "num_experts_per_tok is 0 .*experts 4"),
        (GRANITE, {"num_experts_per_tok": 4}, "is 4 of num_local_experts 0"),
        (GRANITE, {"logits_scaling": 0.0}, r"logits_scaling is 0\.0"),
        (GRANITE, {"dtype": "float16"}, "float16"),
        (GRANITE, {"vocab_rows": 49000}, "vocab_rows is 49000.*49155"),
        (GRANITE, {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        (GRANITE, {"attention_dropout": 1.0}, r"attention_dropout is 1\.0"),
        (EXPERTS, {"mlp_bias": True}, "bias"),
    ],
)
def test_impossible_configs_are_refused(config, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **change)
