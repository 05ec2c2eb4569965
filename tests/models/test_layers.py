"""The shared layers: norms and products in float32, stacks, what is recomputed."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from ntl_jax import cross_entropy, models
from ntl_jax.kernels.dropout import Dropout
from ntl_jax.kernels.einsum import einsum_float32
from ntl_jax.models import GPT2Config
from ntl_jax.models import remat as recompute
from ntl_jax.models.layers import (
    Embedding,
    Linear,
    RMSNorm,
    head_logits,
    run_layers,
    stack_layers,
)
from ntl_jax.sharding.mesh import make_mesh, on_mesh
from tests.collectives import lines_of

KEY = jax.random.key(7)


def test_rms_norm_is_computed_in_float32():
    norm = RMSNorm(256, eps=1e-6)
    x = 3e5 * jax.random.normal(jax.random.key(0), (2, 256))
    exact = np.asarray(x, np.float64)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6)
    chex.assert_trees_all_close(norm(x), exact, rtol=1e-5)
    low = norm(x.astype(jnp.bfloat16))
    assert low.dtype == jnp.bfloat16
    chex.assert_trees_all_close(np.asarray(low, np.float64), exact, rtol=2**-7)


def test_products_accumulate_in_float32():
    a = jax.random.normal(jax.random.key(0), (2, 3, 256))
    b = jax.random.normal(jax.random.key(1), (2, 5, 256))
    cotangent = jax.random.normal(jax.random.key(2), (2, 3, 5))
    low_a, low_b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    exact_a, exact_b = low_a.astype(jnp.float32), low_b.astype(jnp.float32)

    def product(a, b):
        return einsum_float32("BTH,BSH->BTS", a, b)

    out, pull = jax.vjp(product, low_a, low_b)
    want, want_pull = jax.vjp(product, exact_a, exact_b)
    assert out.dtype == jnp.float32
    chex.assert_trees_all_close(out, want, atol=1e-4)
    for low, exact in zip(pull(cotangent), want_pull(cotangent), strict=True):
        assert low.dtype == jnp.bfloat16
        error = np.abs(np.asarray(low, np.float32) - exact).max()
        assert error < 0.02 * np.abs(exact).max()


def test_no_product_mixes_dtypes():
    low = jnp.ones((2, 3, 4), jnp.bfloat16)

    def loss(a, b):
        return jnp.sum(einsum_float32("BTH,BSH->BTS", a, b) ** 2)

    jaxpr = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(low, low))
    assert jaxpr.count("dot_general") >= 3
    lowered = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(low, low)
    for line in lines_of(lowered, "dot_general"):
        operands = line.split(":")[-1].split("->")[0]
        assert "f32" not in operands.replace("bf16", ""), line


def test_float32_products_have_forward_derivatives():
    a = jnp.arange(6.0).reshape(2, 3)
    tangent = jax.jvp(lambda a: einsum_float32("AB,CB->AC", a, a), (a,), (a,))[1]
    chex.assert_trees_all_close(tangent, 2 * a @ a.T)


def test_modules_hold_no_random_state():
    norm = RMSNorm(4, eps=1e-6)
    assert not nnx.state(norm, nnx.RngState)


@pytest.mark.parametrize("tied", [True, False])
def test_columns_added_for_speed_change_no_loss(tied):
    keys = jax.random.split(KEY, 3)
    hidden = jax.random.normal(keys[0], (2, 3, 8), jnp.bfloat16)
    weight = jax.random.normal(keys[1], (51, 8) if tied else (8, 51))
    labels = jax.random.randint(keys[2], (2, 3), 0, 51)

    def loss(hidden, weight, aligned):
        logits = head_logits(hidden, weight, tied=tied, aligned=aligned)
        return cross_entropy(logits, labels, vocab_size=51, reduction="mean")

    wide = head_logits(hidden, weight, tied=tied, aligned=True)
    assert wide.shape == (2, 3, 128) and not wide[..., 51:].any()
    pull = jax.value_and_grad(loss, (0, 1))
    chex.assert_trees_all_close(
        pull(hidden, weight, True), pull(hidden, weight, False), rtol=1e-2
    )
    # Not of float32, nor where devices share out the columns.
    exact = hidden.astype(jnp.float32)
    assert head_logits(exact, weight, tied=tied, aligned=True).shape == (2, 3, 51)


def test_columns_that_devices_share_out_stay_as_many():
    hidden, weight = jnp.ones((4, 3, 8), jnp.bfloat16), jnp.ones((8, 52))

    def columns(mesh):
        def logits(hidden):
            with on_mesh(mesh):
                return head_logits(hidden, weight, tied=False, aligned=True)

        return jax.eval_shape(logits, hidden).shape[-1]

    assert columns(make_mesh(4, 2, 1)) == 128 and columns(make_mesh(2, 2, 2)) == 52


class Inner(nnx.Module):
    """A feed-forward layer with activations much wider than its products."""

    def __init__(self, rngs: nnx.Rngs):
        self.wi = Linear(32, 64, std=0.2, rngs=rngs)
        self.wo = Linear(64, 32, std=0.2, rngs=rngs)

    def __call__(self, x, dropout: Dropout):
        h = self.wi(x)
        h = dropout(jnp.tanh(h) * jax.nn.sigmoid(h), 0)
        return x + self.wo(h)


def test_what_is_recomputed_changes_memory_and_no_gradient():
    graph, params = nnx.split(stack_layers(Inner, 8, nnx.Rngs(params=0)))
    x = jax.random.normal(KEY, (16, 64, 32))
    grads, scratch = {}, {}
    for remat in (False, "matmuls", "gathered", True):

        def loss(params, remat=remat):
            def step(layer, index, x):
                return layer(x, Dropout(0.1, KEY, layer=index))

            layers = nnx.merge(graph, params)
            y = run_layers(layers, 8, step, x, unroll=False, remat=remat)
            return jnp.mean(jnp.square(y))

        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        grads[remat] = compiled(params)
        scratch[remat] = compiled.memory_analysis().temp_size_in_bytes
    for other in ("matmuls", "gathered", True):
        for got, want in zip(
            *map(jax.tree.leaves, (grads[other], grads[False])), strict=True
        ):
            assert jnp.linalg.norm(got - want) < 1e-6 * jnp.linalg.norm(want)
    products = x.nbytes * 8 * 3  # of wi and wo, of all layers
    assert scratch[True] < scratch["matmuls"] - 0.6 * products
    assert scratch["matmuls"] < scratch[False] - 0.6 * products


@pytest.mark.parametrize(
    ("platform", "unroll", "remat", "written_out"),
    [
        ("gpu", "auto", False, True),
        ("gpu", "auto", "matmuls", True),
        ("gpu", "auto", True, False),
        ("gpu", False, False, False),
        ("cpu", "auto", False, False),
        ("tpu", "auto", "matmuls", False),
        ("tpu", True, True, True),
    ],
)
def test_where_layers_are_written_out(
    platform, unroll, remat, written_out, monkeypatch
):
    monkeypatch.setattr(models.layers, "traced_platform", lambda: platform)
    layers = stack_layers(Inner, 3, nnx.Rngs(params=0))

    def run(x):
        def step(layer, index, x):
            return layer(x, Dropout(0.1, KEY, layer=index))

        return run_layers(layers, 3, step, x, unroll=unroll, remat=remat)

    lowered = jax.jit(run).lower(jnp.ones((2, 4, 32)))
    assert bool(lines_of(lowered, "stablehlo.while")) != written_out


@pytest.mark.parametrize(
    ("platform", "remat", "compiler_can", "in_one_piece"),
    [
        ("tpu", True, True, True),
        ("tpu", "matmuls", True, True),
        ("tpu", False, True, False),
        ("tpu", True, False, False),
        ("tpu", "gathered", False, True),
        ("gpu", True, True, False),
        ("gpu", "gathered", True, True),
    ],
)
def test_where_kernels_are_gathered_in_one_piece(
    platform, remat, compiler_can, in_one_piece, monkeypatch
):
    monkeypatch.setattr(recompute, "traced_platform", lambda: platform)
    monkeypatch.setattr(recompute, "_TPUS_GATHER", compiler_can)
    linear = Linear(32, 64, std=1.0, rngs=nnx.Rngs(params=0))
    linear.gather = recompute.gather_inwards(remat)
    with on_mesh(make_mesh(1, 8, 1)):
        program = str(jax.make_jaxpr(linear)(jnp.ones((8, 32))))
    assert ("sharding_constraint" in program) == in_one_piece


def test_another_word_for_auto_is_refused():
    with pytest.raises(ValueError, match=r"unroll_layers .*'gpu'"):
        GPT2Config(unroll_layers="gpu")  # pyright: ignore[reportArgumentType]


def test_other_words_for_what_is_recomputed_are_refused():
    with pytest.raises(ValueError, match=r"remat .*'all'.*'matmuls'"):
        GPT2Config(remat="all")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("mesh", [None, (8, 1, 1), (4, 2, 1), (2, 2, 2)], ids=str)
def test_the_gradient_of_a_table_that_was_cast_is_summed_in_float32(mesh):
    # A bfloat16 sum of ones ends at 256.
    ids = jnp.asarray([[0, 1, 0], [0, 0, 0]] * 512)
    weights = jnp.asarray([[1.0, 0.5, 1.0], [1.0, 1.0, 1.0]] * 512)

    def loss(values, ids):
        table = Embedding(4, 8, std=1.0, rngs=nnx.Rngs(params=0))
        table.embedding = nnx.Param(values)
        rows = table(ids, "bfloat16").astype(jnp.float32)
        return jnp.sum(rows * weights[..., None])

    mesh = make_mesh(*mesh or (1, 1, 1), devices=None if mesh else jax.devices()[:1])
    values = jnp.zeros((4, 8), jnp.bfloat16)
    placed = jax.device_put((values, ids), NamedSharding(mesh, PartitionSpec()))
    with on_mesh(mesh):
        gradient = jax.jit(jax.grad(loss))(*placed)
    assert gradient.dtype == jnp.bfloat16
    want = jnp.broadcast_to(jnp.asarray([[2560.0], [256.0], [0.0], [0.0]]), (4, 8))
    chex.assert_trees_all_equal(gradient.astype(jnp.float32), want)


def test_the_gradient_of_a_float64_table_is_summed_in_float64():
    with jax.enable_x64(True):
        weights = jnp.asarray([[1.0], [2.0**-40]], jnp.float64)

        def loss(values):
            table = Embedding(2, 3, std=1.0, rngs=nnx.Rngs(params=0))
            table.embedding = nnx.Param(values)
            rows = table(jnp.asarray([0, 0]), "float64")
            return jnp.sum(rows * weights)

        gradient = jax.grad(loss)(jnp.zeros((2, 3), jnp.float64))
        assert gradient.dtype == jnp.float64
        want = np.asarray([[1.0 + 2.0**-40] * 3, [0.0] * 3])
        np.testing.assert_array_equal(gradient, want)
