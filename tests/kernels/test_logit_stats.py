"""The kernels of `logit_stats` against the plain program."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab, stats_from_logits
from ntl_jax.kernels.logit_stats import dispatch as column_passes
from ntl_jax.kernels.logit_stats import gpu
from ntl_jax.kernels.logit_stats import reference as columns
from ntl_jax.kernels.logit_stats.reference import MASKED_LOGIT, ColumnCotangents

IDS = np.array([0, 3, 2047, 2048, 2051, 2060], np.int32)  # on both sides of a block
NARROW = np.array([7, 8, 9], np.int32)
DTYPES = (jnp.float32, jnp.bfloat16)


def draw_batch(tokens, size, dtype=jnp.float32, vocab_size=None, numbers=6):
    rng = np.random.default_rng(size)
    logits = rng.normal(size=(tokens, size)).astype(np.float32) * 3
    logits[0, ::3] = -np.inf
    labels = rng.integers(0, vocab_size or size, size=tokens).astype(np.int32)
    labels[-1] = (vocab_size or size) - 1
    cotangents = [rng.normal(size=tokens) for _ in range(3)]
    cotangents[0][1] = 0.0
    cotangents.append(rng.normal(size=(tokens, numbers)))
    cotangents = (jnp.asarray(c, jnp.float32) for c in cotangents)
    return (
        jnp.asarray(logits, dtype),
        jnp.asarray(labels),
        ColumnCotangents(*cotangents),
    )


def both_passes(module, logits, labels, cotangents, *, vocab_size, token_ids):
    sums = module.logit_stats(logits, labels, token_ids, 0, vocab_size=vocab_size)
    log_sum = jnp.log(sums.exp_sum)
    table = columns.column_to_number_index(logits.shape[-1], token_ids)
    gradient = module.logit_stats_vjp(
        logits, labels, sums.top, log_sum, cotangents, table, 0, vocab_size=vocab_size
    )
    return sums._replace(exp_sum=log_sum), gradient


class Interpreted:
    """The kernels, run by the interpreter."""

    logit_stats = staticmethod(partial(gpu.logit_stats, interpret=True))

    @staticmethod
    def logit_stats_vjp(*args, **options):
        numbers = np.flatnonzero(np.asarray(args[5]) < args[4].number_logits.shape[-1])
        span = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
        span = span if isinstance(args[6], int) else (0, 2**20)
        return gpu.logit_stats_vjp(
            *args, span=span, padded=True, interpret=True, **options
        )


@pytest.fixture(scope="module")
def interpreted():
    return Interpreted


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("size", "vocab_size", "ids"),
    [(2048, 2048, IDS[:2]), (4099, 4099, IDS), (4100, 4090, NARROW), (2500, 2500, [])],
    ids=str,
)
def test_the_kernels_are_the_plain_program(interpreted, dtype, size, vocab_size, ids):
    ids = np.asarray(ids, np.int32)
    batch = draw_batch(5, size, dtype, vocab_size, len(ids))
    options = {"vocab_size": vocab_size, "token_ids": ids}
    expected = both_passes(columns, *batch, **options)
    actual = both_passes(interpreted, *batch, **options)
    chex.assert_trees_all_equal_dtypes(actual, expected)
    chex.assert_trees_all_close(actual[0], expected[0], rtol=1e-5, atol=1e-5)
    half_ulp = 2**-8 if dtype == jnp.bfloat16 else 1e-5
    wide = [g.astype(jnp.float32) for g in (actual[1], expected[1])]
    chex.assert_trees_all_close(*wide, rtol=half_ulp, atol=1e-5)
    assert not np.asarray(wide[0])[0, ::3].any()  # at logits of -inf


@pytest.mark.parametrize("first", [0, 2048, 4096])
def test_a_shard_of_the_columns(interpreted, first):
    logits, labels, cotangents = draw_batch(4, 3 * 2048, vocab_size=6100)
    options = {"vocab_size": 6100, "token_ids": IDS}
    shard = logits[:, first : first + 2048]
    whole = both_passes(columns, logits, labels, cotangents, **options)
    table = columns.column_to_number_index(3 * 2048, IDS)[first : first + 2048]
    for module in (columns, interpreted):
        sums = module.logit_stats(shard, labels, IDS, jnp.int32(first), vocab_size=6100)
        here = (labels >= first) & (labels < first + 2048)
        picked = jnp.where(here, whole[0].label_logit, 0.0)
        np.testing.assert_allclose(sums.label_logit, picked, rtol=1e-6)
        inside = (first <= IDS) & (first + 2048 > IDS)
        numbers = np.where(inside, whole[0].number_logits, 0.0)
        np.testing.assert_allclose(sums.number_logits, numbers, rtol=1e-6)
        gradient = module.logit_stats_vjp(
            shard,
            labels,
            whole[0].top,
            whole[0].exp_sum,
            cotangents,
            table,
            jnp.int32(first),
            vocab_size=6100,
        )
        expected = whole[1][:, first : first + 2048]
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


def test_a_kernel_keeps_nan_at_home(interpreted):
    logits, labels, cotangents = draw_batch(3, 2500)
    logits = logits.at[1].set(jnp.nan)
    silent = jax.tree.map(lambda c: c.at[1].set(0.0), cotangents)
    options = {"vocab_size": 2500, "token_ids": IDS}
    sums, gradient = both_passes(interpreted, logits, labels, silent, **options)
    assert jnp.isnan(sums.top[1]) and jnp.isfinite(sums.top[0])
    assert not gradient[1].any() and jnp.isfinite(gradient).all()


def test_a_position_without_a_finite_logit(interpreted):
    logits = jnp.full((2, 2050), -jnp.inf)
    labels = jnp.zeros(2, jnp.int32)
    options = {"vocab_size": 2049, "token_ids": NARROW}
    _, _, cotangents = draw_batch(2, 2050, numbers=3)
    for module in (columns, interpreted):
        sums, gradient = both_passes(module, logits, labels, cotangents, **options)
        assert (sums.top == MASKED_LOGIT).all()
        np.testing.assert_allclose(sums.exp_sum, np.log(2050), rtol=1e-3)
        assert not gradient.any()


def gpus(count):
    """A mesh of GPUs that are not here."""
    card = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    axes = (jax.sharding.AxisType.Auto,)
    return jax.sharding.AbstractMesh((count,), ("data",), axes, abstract_device=card)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
def test_the_kernels_are_translated_for_cuda(dtype):
    batch = draw_batch(4, 5000, dtype)

    def passes(logits, labels, cotangents):
        sums = gpu.logit_stats(logits, labels, IDS, 0, vocab_size=4990)
        return gpu.logit_stats_vjp(
            logits,
            labels,
            sums.top,
            jnp.log(sums.exp_sum),
            cotangents,
            columns.column_to_number_index(5000, IDS),
            0,
            vocab_size=4990,
            span=(0, 2060),
            padded=True,
        )

    with jax.sharding.use_abstract_mesh(gpus(1)):
        traced = jax.jit(passes).trace(*batch)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "ntl_read_columns" in text and "ntl_write_columns" in text


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
def test_the_kernels_are_translated_under_vmap():
    tokens = {str(i): i for i in range(10)} | {f"t{i}": i for i in range(10, 4096)}
    vocab = NumberVocab.from_mapping(tokens, vocab_size=4096)

    def total(logits, labels):
        return sum(map(jnp.sum, stats_from_logits(logits, labels, vocab)))

    batches = jnp.zeros((3, 4, 4096)), jnp.zeros((3, 4), jnp.int32)
    with jax.sharding.use_abstract_mesh(gpus(1)):
        traced = jax.jit(jax.vmap(jax.grad(total))).trace(*batches)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "ntl_read_columns" in text and "ntl_write_columns" in text


def test_what_the_kernels_take():
    assert gpu.fits((3, 2048), jnp.bfloat16)
    assert not gpu.fits((3, 2047), jnp.bfloat16)
    assert not gpu.fits((0, 2048), jnp.float32)
    assert not gpu.fits((2**20, 2**11), jnp.bfloat16)
    assert not gpu.fits((3, 2048), jnp.float64)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
def test_without_the_backend_gpus_run_the_plain_program(monkeypatch):
    logits, labels = jnp.zeros((2, 4096)), jnp.zeros(2, jnp.int32)

    def traced() -> str:
        def sums(logits):
            return column_passes.logit_stats(4096, None, None, logits, labels)

        return str(jax.make_jaxpr(sums)(logits))

    assert "platform_index" not in traced()
    with jax.sharding.use_abstract_mesh(gpus(2)):
        assert "platform_index" in traced()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "platform_index" in traced()
    monkeypatch.setattr(column_passes, "has_triton", lambda: False)
    assert "platform_index" not in traced()
