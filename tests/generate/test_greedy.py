"""Greedy decoding against transformers, and against the model without a cache."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ntl_jax.generate import greedy
from ntl_jax.generate.programs import greedy_program
from ntl_jax.models import T5Config, init_params
from tests.models.cases import T5_CASES, ours, perturbed, torch_model
from tests.models.cases import t5_batch as batch

CONFIG = T5Config(
    vocab_size=50,
    d_model=32,
    d_kv=12,
    d_ff=48,
    num_layers=2,
    num_decoder_layers=2,
    num_heads=4,
    tie_word_embeddings=False,  # a tied random model echoes its last token
)
NEW_TOKENS = 16


def generate(config, params, data, **options):
    tokens = greedy(
        config,
        params,
        data["input_ids"],
        attention_mask=data["attention_mask"],
        max_new_tokens=options.pop("max_new_tokens", NEW_TOKENS),
    )
    return np.asarray(tokens)


def generate_torch(model, data):
    import torch

    torch.set_num_threads(1)  # threads wait for each other longer than they compute
    tokens = model.generate(
        torch.from_numpy(data["input_ids"]).long(),
        attention_mask=torch.from_numpy(data["attention_mask"]).long(),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
    )[:, 1:].numpy()  # without the start token
    missing = NEW_TOKENS - tokens.shape[1]
    return np.pad(tokens, ((0, 0), (0, missing)), constant_values=0)


def lively(kind, seed):
    """A random model whose answers differ and, at times, end."""
    model = torch_model(kind, seed)
    model.shared.weight.data.mul_(0.3 if kind == "t5_v1_0" else 1.0)
    return model


@pytest.mark.parametrize("kind", T5_CASES)
def test_tokens_equal_transformers(kind):
    ended, seen, differed = 0, set(), 0
    for seed in range(10):
        model, data = lively(kind, seed), batch(seed, rows=4)
        config, params = ours(model)
        want, got = generate_torch(model, data), generate(config, params, data)
        assert np.array_equal(got, want), seed
        ended += (want == config.eos_token_id).any(axis=1).sum()
        seen |= set(want.reshape(-1).tolist())
        path = "decoder/final_norm/scale"
        wrong = generate(config, perturbed(params, path), data)
        differed += not np.array_equal(wrong, want)
    assert ended > 0 and len(seen) > 8  # the answers are worth comparing
    assert differed > 0  # and the comparison can fail


def test_rows_are_padded_after_their_end_and_the_loop_stops():
    params, data = init_params(CONFIG, jax.random.key(0)), batch()
    free = generate(CONFIG, params, data)
    # The row's third token is declared to be the end.
    ending = dataclasses.replace(CONFIG, eos_token_id=int(free[0, 2]))
    tokens = generate(ending, params, data)
    first = int(np.argmax(free[0] == free[0, 2]))
    assert np.array_equal(tokens[0, : first + 1], free[0, : first + 1])
    assert (tokens[0, first + 1 :] == CONFIG.pad_token_id).all()
    for row, other in zip(tokens, free, strict=True):
        end = np.flatnonzero(other == ending.eos_token_id)
        upto = end[0] + 1 if len(end) else NEW_TOKENS
        assert np.array_equal(row[:upto], other[:upto])
        assert (row[upto:] == CONFIG.pad_token_id).all()


def test_answers_do_not_depend_on_the_batch_or_its_padding():
    params, data = init_params(CONFIG, jax.random.key(0)), batch()
    together = generate(CONFIG, params, data)
    length = int(data["attention_mask"][1].sum())
    alone = greedy(
        CONFIG, params, data["input_ids"][1:2, :length], max_new_tokens=NEW_TOKENS
    )
    assert np.array_equal(alone[0], together[1])


def test_shorter_answers_are_prefixes():
    params, data = init_params(CONFIG, jax.random.key(0)), batch()
    whole = generate(CONFIG, params, data)
    assert np.array_equal(
        generate(CONFIG, params, data, max_new_tokens=1), whole[:, :1]
    )


def test_sharded_batch_gives_the_same_tokens():
    params, data = init_params(CONFIG, jax.random.key(0)), batch(rows=8)
    want = generate(CONFIG, params, data)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows, everywhere = (
        NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ())
    )
    got = generate(
        CONFIG, jax.device_put(params, everywhere), jax.device_put(data, rows)
    )
    assert np.array_equal(got, want)


def test_one_program_serves_every_batch_of_a_shape():
    params = init_params(CONFIG, jax.random.key(0))
    before = greedy_program._cache_size()
    for seed in range(3):
        generate(CONFIG, params, batch(seed, rows=5))
    assert greedy_program._cache_size() == before + 1


def test_bfloat16_decodes():
    low = dataclasses.replace(CONFIG, dtype="bfloat16")
    params, data = init_params(low, jax.random.key(0)), batch()
    tokens = generate(low, params, data)
    assert ((tokens >= 0) & (tokens < 50)).all()
    assert (tokens[:, 0] == generate(CONFIG, params, data)[:, 0]).mean() > 0.5


def test_wrong_arguments_are_explained():
    params, data = init_params(CONFIG, jax.random.key(0)), batch()
    with pytest.raises(ValueError, match=r"max_new_tokens .*0"):
        generate(CONFIG, params, data, max_new_tokens=0)
    data["attention_mask"] = data["attention_mask"][:, 1:]
    with pytest.raises(ValueError, match="attention_mask"):
        generate(CONFIG, params, data)
