"""Models of every family run, differentiated and decoded, and what is compared."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ntl_jax.hf.mapping import flatten
from ntl_jax.kernels.dropout import NO_DROPOUT
from ntl_jax.models import GraniteConfig, T5Config, bind, init_params, shift_right
from ntl_jax.models.attention import Visible, make_attention_mask, token_positions
from ntl_jax.models.granite.model import rotation

TOLERANCE = 1e-4  # a model in float32, of the largest
BLOCK_TOLERANCE = 1e-5  # a block
PROMPT, STEPS = 12, 8


def _inputs(config, data):
    inputs = {k: v for k, v in data.items() if k != "labels"}
    if isinstance(config, T5Config):
        before = shift_right(data["labels"], start_id=0, pad_id=0)
        inputs["decoder_input_ids"] = before
    return inputs


@partial(jax.jit, static_argnums=0)
def run(config, params, data, dropout_key=None, row_offset=0):
    """Logits of a batch, whose labels only a decoder of an encoder's looks at."""
    model = bind(config, params)
    inputs = _inputs(config, data)
    return model(**inputs, dropout_key=dropout_key, row_offset=row_offset)


def loss(params, config, data, dropout_key=None):
    """Mean cross-entropy and, with experts, the routers' loss at its coefficient.

    Returns the loss, and the logits with the routers' loss (0 without experts).
    """
    router_loss, coefficient = jnp.float32(0), 0.0
    labels = jnp.asarray(data["labels"])
    if getattr(config, "num_local_experts", 0):
        model = bind(config, params)
        hidden, router_loss = model.hidden_and_router_loss(
            **_inputs(config, data), dropout_key=dropout_key
        )
        logits = model.logits(hidden)
        coefficient = config.router_aux_loss_coef
    else:
        logits = run(config, params, data, dropout_key)
    predictions = logits
    if not isinstance(config, T5Config):
        predictions, labels = logits[:, :-1], labels[:, 1:]
    log_probabilities = jax.nn.log_softmax(predictions)
    index = jnp.maximum(labels, 0)[..., None]
    picked = jnp.take_along_axis(log_probabilities, index, axis=-1)[..., 0]
    counted = (labels != -100).astype(jnp.float32)
    entropy = -jnp.sum(picked * counted) / jnp.sum(counted)
    return entropy + coefficient * router_loss, (logits, router_loss)


@partial(jax.jit, static_argnums=0)
def step(config, params, data, dropout_key=None):
    """Logits, the routers' loss, and the gradient of `loss`."""
    grads, (logits, router_loss) = jax.grad(loss, has_aux=True)(
        params, config, data, dropout_key
    )
    return logits, router_loss, grads


def logits_and_gradient(config, params, data, dropout_key=None):
    """`step` without the routers' loss."""
    logits, _, grads = step(config, params, data, dropout_key)
    return logits, grads


def gradient(config, params, data, dropout_key=None):
    """The gradient of `loss`."""
    return step(config, params, data, dropout_key)[2]


def relative_errors(got, want):
    """The largest difference of each leaf, relative to the leaf's largest entry."""
    got, want = flatten(got), flatten(want)
    assert got.keys() == want.keys()
    return {k: np.abs(got[k] - want[k]).max() / np.abs(want[k]).max() for k in want}


def assert_close(got, want, tolerance=TOLERANCE):
    """Every difference is within the tolerance, relative to the largest entry."""
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


def logit_error(config, got, want, seen=slice(None)):
    """The largest difference: T5's as it is, others' relative to the largest entry."""
    scale = (
        1.0 if isinstance(config, T5Config) else np.abs(np.asarray(want)[seen]).max()
    )
    return np.abs(np.asarray(got)[seen] - np.asarray(want)[seen]).max() / scale


def lively(config, seed=0):
    """Fresh parameters, but no bias 0 and no scale 1."""

    def move(path, leaf):
        if path[-1].key not in ("bias", "scale"):
            return leaf
        key = jax.random.key(len(jax.tree_util.keystr(path)))
        return leaf + 0.3 * jax.random.normal(key, leaf.shape)

    params = init_params(config, jax.random.key(seed))
    return jax.tree_util.tree_map_with_path(move, params)


def layer_of(layers, number: int):
    """One layer of a stack."""
    return jax.tree.map(lambda leaf: leaf[number], layers)


def states_of(blocks) -> list:
    """Hooks PyTorch's blocks: what goes in and what comes out of each, once run."""
    states = []

    def record(block, arguments, output):
        output = output[0] if isinstance(output, tuple) else output
        states.append((arguments[0].detach().numpy(), output.detach().numpy()))

    for block in blocks:
        block.register_forward_hook(record)
    return states


def blocks_of(model):
    """The blocks of a decoder-only PyTorch model."""
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


@partial(jax.jit, static_argnums=(0, 4))
def run_block(config, layer, x, attention_mask=None, rope_theta=None):
    """The states behind one block of a decoder-only model."""
    visible = Visible(make_attention_mask(attention_mask), causal=True)
    if not isinstance(config, GraniteConfig):
        return layer.finish(x, *layer.project(x), visible, NO_DROPOUT)
    positions = token_positions(x.shape[1], attention_mask)
    angles = rotation(positions, config.head_dim, rope_theta or config.rope_theta)
    projected = layer.attention.project(x, angles)
    return layer.finish(x, *projected, visible, NO_DROPOUT)[0]


@partial(jax.jit, static_argnums=(0, 3))
def prefill(config, params, data, length):
    """Logits after the prompts, and a cache with room for `length` tokens more."""
    model = bind(config, params)
    hidden, cache = model.prefill(data["input_ids"], data.get("attention_mask"), length)
    return model.logits(hidden)[:, 0], cache


@partial(jax.jit, static_argnums=0)
def decode(config, params, tokens, cache):
    """Logits after one token more, and the cache."""
    model = bind(config, params)
    hidden, cache = model.decode_step(tokens, cache)
    return model.logits(hidden)[:, 0], cache


def decoded(config, params, data, tokens):
    """Logits after the prompt and after each of the tokens, [1 + STEPS, B, V]."""
    logits, cache = prefill(config, params, data, STEPS)
    steps = [logits]
    for token in tokens.T:
        logits, cache = decode(config, params, jnp.asarray(token), cache)
        steps.append(logits)
    return np.stack(steps)


def whole(data, tokens):
    """The prompt with the tokens behind it."""
    longer = {"input_ids": np.concatenate([data["input_ids"], tokens], axis=1)}
    if "attention_mask" in data:
        ones = np.ones_like(tokens)
        longer["attention_mask"] = np.concatenate([data["attention_mask"], ones], 1)
    return longer


def random_tokens(rows):
    """STEPS tokens for each row."""
    return np.random.default_rng(4).integers(0, 50, (rows, STEPS), dtype=np.int32)
