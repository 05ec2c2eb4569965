"""From text to numbers and back: a Numformer learns to fill in sums."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntl_jax.losses.number_heads import xval_loss
from ntl_jax.metrics import rounded_accuracy
from ntl_jax.models import NumformerConfig, bind, init_params
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.tokenization import XvalTokenizer, builtin_tokenizer, mask_last_number

TOKENIZER = XvalTokenizer(builtin_tokenizer())
NUM = TOKENIZER.num_id
CONFIG = NumformerConfig(
    vocab_size=len(TOKENIZER),
    num_id=NUM,
    d_model=32,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    max_positions=16,
    dropout_rate=0.0,
)


def sums(rows):
    """Masked questions as arrays [rows, T], with the scale of their numbers."""
    pairs = np.random.default_rng(0).integers(0, 50, (rows, 2))
    masked = [
        mask_last_number(
            TOKENIZER.encode_numbers(f"{a} + {b} = {a + b}"),
            num_id=NUM,
            mask_id=TOKENIZER.mask_id,
        )
        for a, b in pairs.tolist()
    ]
    scale = ValueScale.fit("minmax5", pairs.sum(axis=1))
    ids, labels = (
        np.array([getattr(row, name) for row in masked], np.int32)
        for name in ("ids", "labels")
    )
    values, targets = (
        np.where(at == NUM, scale.apply(numbers), 1.0).astype(np.float32)
        for at, numbers in (
            (ids, np.array([row.values for row in masked])),
            (labels, np.array([row.label_values for row in masked])),
        )
    )
    return (ids, values, labels, targets), scale


@pytest.mark.slow
def test_sums_of_unseen_pairs_are_filled_in():
    data, scale = sums(2000)
    optimizer = optax.adam(2e-3)

    @jax.jit
    def step(params, state, batch):
        ids, values, labels, targets = batch

        def loss(params):
            output = bind(CONFIG, params)(ids, values)
            terms = xval_loss(
                output.logits, output.numbers, labels, targets, num_id=NUM
            )
            return terms.total()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    def test_score(params):
        ids, values, labels, targets = (jnp.asarray(array[1500:]) for array in data)
        output = bind(CONFIG, params)(ids, values)
        asked = np.asarray(labels == NUM)
        assert (np.asarray(output.numbers).shape, asked.sum()) == (ids.shape, 500)
        y = scale.invert(np.asarray(targets)[asked])
        p = scale.invert(np.asarray(output.numbers)[asked])
        r2 = 1 - np.square(y - p).sum() / np.square(y - y.mean()).sum()
        return r2, rounded_accuracy(p, y), rounded_accuracy(p, y, decimals=0)

    params = init_params(CONFIG, jax.random.key(0))
    untrained = test_score(params)
    state, draw = optimizer.init(params), np.random.default_rng(1)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for _ in range(400):
            rows = draw.integers(0, 1500, 128)
            params, state = step(params, state, tuple(x[rows] for x in data))
    r2, exact, whole = test_score(params)
    assert untrained[0] < 0.5 < 0.99 < r2
    assert exact < whole  # a number head is never exact
