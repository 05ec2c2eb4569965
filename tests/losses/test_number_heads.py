"""Squared error and xVal's losses against PyTorch's own functions."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.losses.number_heads import squared_error, xval_loss

NUM = 7


def case(seed=0):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 8, (3, 6), dtype=np.int32)
    labels[0, :2] = NUM
    labels[1, 3:] = -100
    return {
        "logits": draw.standard_normal((3, 6, 8), np.float32),
        "numbers": draw.standard_normal((3, 6), np.float32),
        "labels": labels,
        "values": 3 * draw.standard_normal((3, 6), np.float32),
    }


def terms_of(data, **options):
    arrays = {name: jnp.asarray(value) for name, value in data.items()}
    return xval_loss(**arrays, num_id=NUM, **options)


def total(logits, numbers, labels, values, **options):
    return xval_loss(logits, numbers, labels, values, num_id=NUM, **options).total(0.7)


def torch_total(logits, numbers, labels, values):
    """Both losses and their gradients, from torch's functional forms."""
    import torch

    labels = torch.tensor(labels).long()
    logits, numbers = (torch.tensor(x, requires_grad=True) for x in (logits, numbers))
    ce = torch.nn.functional.cross_entropy(logits.mT, labels, ignore_index=-100)
    here = labels == NUM
    mse = torch.nn.functional.mse_loss(numbers[here], torch.tensor(values)[here])
    loss = ce + 0.7 * mse
    loss.backward()
    gradients = [x.grad for x in (logits, numbers)]
    return loss.item(), tuple(g.numpy() for g in gradients if g is not None)


def test_values_and_gradients_equal_pytorch():
    pytest.importorskip("torch")
    data = case()
    want, want_grads = torch_total(**data)
    compute = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))
    got, grads = compute(*data.values())
    assert abs(got - want) < 1e-5
    chex.assert_trees_all_close(grads, want_grads, atol=1e-6)
    data["labels"][2, 0] = 3 if data["labels"][2, 0] == NUM else NUM
    wrong, wrong_grads = compute(*data.values())
    assert abs(wrong - want) > 1e-3
    assert np.abs(wrong_grads[1] - want_grads[1]).max() > 1e-3


def test_sums_and_counts_of_parts_add_up():
    data = case()
    whole = terms_of(data)
    parts = [
        terms_of({name: x[rows] for name, x in data.items()})
        for rows in (slice(0, 1), slice(1, 3))
    ]
    added = jax.tree.map(jnp.add, *parts)
    chex.assert_trees_all_close(added, whole, rtol=1e-6)
    assert float(whole.ce.count) == (data["labels"] != -100).sum()
    assert float(whole.mse.count) == (data["labels"] == NUM).sum()


def test_weights_choose_positions():
    data = case()
    keep = np.zeros((3, 6), np.float32)
    keep[0, :3] = 1
    weighted = terms_of(data, weights=jnp.asarray(keep))
    cut = {name: x[:1, :3] for name, x in data.items()}
    chex.assert_trees_all_close(weighted, terms_of(cut), rtol=1e-6)
    twice = terms_of(data, weights=jnp.asarray(2 * keep))
    chex.assert_trees_all_close(twice.total(), weighted.total(), rtol=1e-6)
    assert twice.mse.count == 2 * weighted.mse.count


@pytest.mark.parametrize("labels", [[[1, 2]], [[-100, -100]]])
def test_no_number_is_no_loss_and_no_gradient(labels):
    logits, numbers = jnp.zeros((1, 2, 8)), jnp.full((1, 2), jnp.nan)
    values, grads = jax.value_and_grad(
        lambda numbers: (
            xval_loss(
                logits, numbers, jnp.array(labels), jnp.ones((1, 2)), num_id=NUM
            ).mse.mean
        )
    )(numbers)
    assert values == 0
    assert not grads.any()


def test_one_number_alone_has_a_gradient():
    """Standardised together with its label, it has none."""
    grads = jax.grad(lambda p: squared_error(p, jnp.array([3.0])).mean)
    assert grads(jnp.array([1.0])) == pytest.approx(-4)


def test_padded_columns_have_no_share():
    data = case()
    wide = np.pad(data["logits"], ((0, 0), (0, 0), (0, 3)), constant_values=9.0)
    got = terms_of(data | {"logits": wide}, vocab_size=8)
    chex.assert_trees_all_close(got, terms_of(data), rtol=1e-6)


def test_half_precision_is_computed_in_float32():
    predictions = jnp.array([257.0, 2.0], jnp.bfloat16)
    term = squared_error(predictions, jnp.array([256.5, 2.0]))
    assert term.sum.dtype == jnp.float32
    assert term.sum == (float(predictions[0]) - 256.5) ** 2


def test_shapes_and_types_are_checked(unhooked):
    one = jnp.ones(2)
    with pytest.raises(ValueError, match=r"\(2,\).*targets .*\(1,"):
        squared_error(one, one[:1])
    with pytest.raises(ValueError, match="weight"):
        squared_error(one, one, weights=jnp.ones(3))
    with pytest.raises(TypeError, match=r"targets .*int32"):
        squared_error(one, jnp.ones(2, jnp.int32))
    with pytest.raises(TypeError, match="list"):
        squared_error([1.0, 2.0], one)  # pyright: ignore[reportArgumentType]
