"""Makes flax_t5/ and flax_gpt2/: checkpoints as transformers 4 wrote its Flax models.

Run with `python tests/golden/make_flax.py` where transformers 4.44, flax 0.8.5, jax
0.4.31 and numpy 1 are installed: the last releases of transformers that have these
classes need them. T5's weights are cut into shards with an index. Each folder's
logits.npz holds the token ids and the model's logits.
"""

import pathlib

import numpy as np
from transformers import (
    FlaxGPT2LMHeadModel,
    FlaxT5ForConditionalGeneration,
    GPT2Config,
    T5Config,
)

FOLDER = pathlib.Path(__file__).parent
IDS = np.arange(1, 13).reshape(2, 6)
ANSWER = np.arange(8).reshape(2, 4)
T5 = T5Config(
    vocab_size=32,
    d_model=8,
    d_kv=6,
    d_ff=12,
    num_layers=2,
    num_heads=2,
    feed_forward_proj="gated-gelu",
    tie_word_embeddings=False,
)
GPT2 = GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=2, n_head=2)


def make(name, model, *, shard_size, **inputs) -> None:
    """One folder."""
    model.save_pretrained(FOLDER / name, max_shard_size=shard_size)
    (FOLDER / name / "generation_config.json").unlink()
    logits = np.asarray(model(**inputs).logits)
    np.savez_compressed(FOLDER / name / "logits.npz", logits=logits, **inputs)


if __name__ == "__main__":
    make(
        "flax_t5",
        FlaxT5ForConditionalGeneration(T5, seed=0),
        shard_size="6kB",
        input_ids=IDS,
        decoder_input_ids=ANSWER,
    )
    gpt2 = FlaxGPT2LMHeadModel(GPT2, seed=0)
    make("flax_gpt2", gpt2, shard_size="1MB", input_ids=IDS)
