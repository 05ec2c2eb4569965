"""AdamW, clipping, schedules and reduce-on-plateau against PyTorch."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.config import OptimizerConfig
from train.optimizer import learning_rate_schedule, make_optimizer, make_plateau

PARAMS = {
    "mlp": {"wi": {"kernel": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}},
    "norm": {"scale": np.ones(3, np.float32)},
    "relative_bias": {"embedding": np.full((2, 2), 0.5, np.float32)},
}


def our_adamw(config: OptimizerConfig, grads: list) -> dict:
    optimizer = make_optimizer(config, steps=len(grads))
    params = jax.tree.map(jnp.asarray, PARAMS)
    state = optimizer.init(params)
    for grad in grads:
        updates, state = optimizer.update(grad, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params


def random_gradients(count: int) -> list:
    rng = np.random.default_rng(0)
    scales = [0.05, 3.0, 0.2, 3.0, 1.0][:count]  # Adam forgets a common scale
    return [
        jax.tree.map(
            lambda p, s=s: s * rng.standard_normal(p.shape, np.float32), PARAMS
        )
        for s in scales
    ]


def torch_adamw(config: OptimizerConfig, grads: list, *, decay_norms=False) -> list:
    torch = pytest.importorskip("torch")
    leaves, _ = jax.tree.flatten(PARAMS)
    tensors = [torch.nn.Parameter(torch.tensor(leaf)) for leaf in leaves]
    decays = [True, decay_norms, decay_norms]
    groups = [
        {"params": [t], "weight_decay": config.weight_decay if d else 0.0}
        for t, d in zip(tensors, decays, strict=True)
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.b1, config.b2),
        eps=config.eps,
    )
    for grad in grads:
        for tensor, leaf in zip(tensors, jax.tree.leaves(grad), strict=True):
            tensor.grad = torch.tensor(leaf)
        torch.nn.utils.clip_grad_norm_(tensors, config.clip_norm)
        optimizer.step()
    return [t.detach().numpy() for t in tensors]


CONFIG = OptimizerConfig(learning_rate=0.05, weight_decay=0.3)


def test_adamw_equals_torch_with_clipping_and_decay_mask():
    grads = random_gradients(5)
    ours = jax.tree.leaves(our_adamw(CONFIG, grads))
    chex.assert_trees_all_close(ours, torch_adamw(CONFIG, grads), atol=1e-5)


@pytest.mark.parametrize("change", [{"b2": 0.99}, {"clip_norm": 2.0}])
def test_the_adamw_comparison_can_fail(change):
    grads = random_gradients(5)
    ours = jax.tree.leaves(our_adamw(dataclasses.replace(CONFIG, **change), grads))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(ours, torch_adamw(CONFIG, grads), atol=1e-5)


def test_decaying_the_norms_would_be_seen():
    grads = random_gradients(5)
    ours = jax.tree.leaves(our_adamw(CONFIG, grads))
    with pytest.raises(AssertionError):
        theirs = torch_adamw(CONFIG, grads, decay_norms=True)
        chex.assert_trees_all_close(ours, theirs, atol=1e-5)


LOSSES = [3, 2, 2, 2.1, 2, 1.9999, 1.99, 1.99, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1.1, 1.1, 1.1]


@functools.cache
def our_scales(patience: int) -> list[float]:
    plateau = make_plateau(OptimizerConfig(plateau_patience=patience))
    state, scales = plateau.init({"p": jnp.zeros(())}), []
    update = jax.jit(plateau.update)
    for loss in LOSSES:
        _, state = update({}, state, value=jnp.float32(loss))
        scales.append(float(state.scale))
    return scales


def torch_scales(patience: int) -> list[float]:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=patience
    )
    scales = []
    for loss in LOSSES:
        scheduler.step(loss)
        scales.append(optimizer.param_groups[0]["lr"])
    return scales


@pytest.mark.parametrize("patience", [0, 1, 2, 5])
def test_plateau_equals_torch(patience):
    assert our_scales(patience) == torch_scales(patience)
    assert our_scales(patience)[-1] < 1.0


def test_the_plateau_comparison_can_fail():
    assert our_scales(2) != torch_scales(3)


def test_schedules():
    def rates(name, **kw):
        config = OptimizerConfig(learning_rate=1.0, schedule=name, **kw)
        schedule = learning_rate_schedule(config, steps=10)
        return [round(float(schedule(step)), 4) for step in range(11)]

    assert rates("constant", warmup_steps=4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates("linear") == [round(1 - i / 10, 4) for i in range(11)]
    cosine = rates("cosine", warmup_steps=2, final_fraction=0.1)
    assert cosine[1:3] == [1.0, 1.0]
    assert cosine[-1] == 0.1
    assert rates("cosine", warmup_steps=1)[0] == 1.0


def test_a_first_moment_in_bfloat16_takes_half_the_bytes_and_nearly_the_same_steps():
    grads = random_gradients(5)
    small = dataclasses.replace(CONFIG, mu_dtype="bfloat16")
    exact, near = our_adamw(CONFIG, grads), our_adamw(small, grads)
    chex.assert_trees_all_close(near, exact, atol=0.02 * 5 * CONFIG.learning_rate)
    assert any(
        np.any(a != b)
        for a, b in zip(jax.tree.leaves(near), jax.tree.leaves(exact), strict=True)
    )
    for config, size in ((CONFIG, 4), (small, 2)):
        state = make_optimizer(config, steps=5).init(PARAMS)
        assert {leaf.dtype.itemsize for leaf in jax.tree.leaves(state[1][0].mu)} == {
            size
        }
        assert {leaf.dtype for leaf in jax.tree.leaves(state[1][0].nu)} == {
            jnp.dtype("float32")
        }
