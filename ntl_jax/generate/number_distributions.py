"""What a model thought of the numbers while it wrote an answer."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from ntl_jax.generate.decoder import Mask, compute_params
from ntl_jax.kernels.einsum import einsum_float32
from ntl_jax.models import Params, bind, shift_right
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.mesh import mesh_of, on_mesh


def number_distributions(
    config: Any,
    params: Params,
    input_ids: Int[Array, "B S"],
    tokens: Int[Array, "B T"],
    vocab: NumberVocab,
    *,
    attention_mask: Mask | None = None,
) -> Float32[Array, "B T K"]:
    """Probabilities of the number tokens at every position of given answers.

    q_k = softmax of the K number logits. One pass over whole answers, in which the
    head has K columns: cheap beside the decoding, whatever way the tokens were chosen.

    Args:
        config: the model's config.
        params: the model's parameters.
        input_ids: sources, or prompts padded on the left.
        tokens: the answers, as `generate` gives them.
        vocab: the number tokens.
        attention_mask: of the input, as in `generate`.

    Returns:
        [B, T, K], in the order of `vocab.token_ids`; sums of 1 up to and at a row's end
        token, 0 after it.
    """
    given = (config, params, input_ids, tokens, vocab, attention_mask)
    return _distributions(*given, mesh=mesh_of(params))


@partial(jax.jit, static_argnames=("config", "vocab", "mesh"))
def _distributions(config, params, input_ids, tokens, vocab, attention_mask, *, mesh):
    with on_mesh(mesh):
        given = (config, params, input_ids, tokens, vocab, attention_mask)
        return _teacher_forced(*given)


def _teacher_forced(config, params, input_ids, tokens, vocab, attention_mask):
    model = bind(config, compute_params(params, config.dtype))
    if not config.decoder_only:
        start, pad = config.decoder_start_token_id, config.pad_token_id
        inputs = shift_right(tokens, start_id=start, pad_id=pad)
        hidden = model.hidden(input_ids, inputs, attention_mask=attention_mask)
    else:
        whole = jnp.concatenate([input_ids, tokens[:, :-1]], axis=1)
        mask = attention_mask
        if mask is not None:
            mask = jnp.concatenate([mask, jnp.ones_like(mask, shape=whole.shape)], 1)
            mask = mask[:, : whole.shape[1]]
        hidden = model.hidden(whole, attention_mask=mask)
        hidden = hidden[:, input_ids.shape[1] - 1 :]  # [B, T, D]
    vocab.check_columns(model.head.shape[1])
    columns = model.head[:, jnp.asarray(vocab.token_ids)].astype(hidden.dtype)
    q = jax.nn.softmax(einsum_float32("BTD,DK->BTK", hidden, columns), axis=-1)
    if config.eos_token_id is None:
        return q
    ends = (tokens == config.eos_token_id).astype(jnp.int32)
    before = jnp.cumsum(ends, axis=1) - ends  # [B, T]
    return jnp.where(before[..., None] == 0, q, 0)
