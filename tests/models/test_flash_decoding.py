"""The kernel of decoding's attention, interpreted, against the plain program."""

import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ntl_jax.generate import generate
from ntl_jax.generate.programs import by_beams
from ntl_jax.models import T5Config, flash_decoding, init_params, t5_decoding
from ntl_jax.models.flash_decoding import attend_to_cache

# Later versions of JAX announce the end of Pallas' way to Triton.
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend")
TOLERANCE = 1e-5
ROWS, BEAMS, HEADS, WIDTH = 2, 3, 4, 16
interpreted = partial(attend_to_cache, keys_a_tile=16, interpret=True)


def drawn(sources: int, dtype="float32", rows: int = ROWS):
    """Queries, keys, values and a bias."""
    draw = np.random.default_rng(7).standard_normal
    shapes = (rows, BEAMS, HEADS, WIDTH), *[(rows, HEADS, sources, WIDTH)] * 2
    q, keys, values = (jnp.asarray(draw(shape), dtype) for shape in shapes)
    return q, keys, values, jnp.asarray(draw((1, HEADS, 1, sources)), jnp.float32)


def seen_by(beams: int, sources: int, rows: int = ROWS):
    """Every beam sees other keys; the first key is seen by all."""
    draw = np.random.default_rng(8).random((rows, 1, beams, sources))
    return jnp.asarray(draw > 0.4).at[..., 0].set(True)


def plain(q, keys, values, *, bias=None, seen=None):
    return t5_decoding._attend(q, keys, values, bias, seen)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_over_a_cache_that_is_filled_in_part(dtype):
    sources, end = 44, 21  # two tiles of three, and none of them full
    q, keys, values, bias = drawn(sources, dtype)
    filled = (jnp.arange(sources) < end)[None, None, None]
    seen = seen_by(BEAMS, sources) & filled
    want = plain(q, keys, values, bias=bias, seen=seen)
    # Tiles without a filled key are not even read.
    unread = (jnp.arange(sources) >= 32)[None, None, :, None]
    keys, values = (jnp.where(unread, jnp.nan, x) for x in (keys, values))
    run = jax.jit(interpreted)
    got = run(q, keys, values, bias=bias, seen=seen, end=jnp.int32(end))
    assert got.dtype == want.dtype
    largest = float(jnp.abs(want.astype(jnp.float32)).max())
    tolerance = TOLERANCE if dtype == "float32" else 0.01 * largest
    chex.assert_trees_all_close(*_float32(got, want), atol=tolerance)
    # Another beam's keys give something else: the comparison can fail.
    other = run(q, keys, values, bias=bias, seen=seen[:, :, ::-1], end=jnp.int32(end))
    assert jnp.abs(jnp.subtract(*_float32(other, want))).max() > 10 * tolerance


def _float32(*arrays):
    return [x.astype(jnp.float32) for x in arrays]


@pytest.mark.parametrize("sources", [37, 48])
def test_over_a_source_that_all_beams_see_alike(sources):
    q, keys, values, _ = drawn(sources)
    seen = seen_by(1, sources).at[1].set(False)  # a row that sees nothing
    for given in (seen, None):
        got = interpreted(q, keys, values, seen=given)
        want = plain(q, keys, values, seen=given)
        chex.assert_trees_all_close(got, want, atol=TOLERANCE)


def test_under_vmap():
    q, keys, values, bias = (jnp.stack([x, 2 * x]) for x in drawn(20))

    def both(attend):
        return jax.vmap(lambda *x: attend(*x[:3], bias=x[3]))(q, keys, values, bias)

    chex.assert_trees_all_close(both(interpreted), both(plain), atol=TOLERANCE)


@pytest.mark.parametrize("shape", [(2, 4), pytest.param((8, 1), marks=pytest.mark.slow)])
def test_devices_attend_with_their_own_rows_and_heads(shape):
    mesh = jax.make_mesh(shape, ("data", "tensor"), (AxisType.Auto,) * 2)
    operands, seen = drawn(20, rows=8), seen_by(BEAMS, 20, rows=8)
    q, rest, across = P("data", None, "tensor"), P("data", "tensor"), P(None, "tensor")
    placed = [
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip((*operands, seen), (q, rest, rest, across, P("data")))
    ]

    def attend(q, keys, values, bias, seen):
        return interpreted(q, keys, values, bias=bias, seen=seen, end=jnp.int32(20))

    program = jax.jit(attend).lower(*placed).compile()
    assert not re.search("all-|reduce-scatter|collective-permute", program.as_text())
    got = program(*placed)
    assert got.sharding.is_equivalent_to(NamedSharding(mesh, q), 4)
    want = plain(*operands[:3], bias=operands[3], seen=seen)
    chex.assert_trees_all_close(got, want, atol=TOLERANCE)


def test_beams_found_with_the_kernel_are_the_plain_program_s(monkeypatch):
    config = T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=16,
        d_ff=32,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=2,
        dtype="float32",
    )
    params = init_params(config, jax.random.key(0))
    ids = np.random.default_rng(1).integers(2, 50, (3, 9), dtype=np.int32)
    mask = np.arange(9) < np.array([[9], [4], [7]])

    def found():
        by_beams.clear_cache()  # of what was traced with the other program
        options = {"num_beams": 3, "return_scores": True, "max_new_tokens": 7}
        return generate(config, params, ids, attention_mask=mask, **options)

    want = found()
    calls = []

    def attend(*operands, **options):
        calls.append(options)
        return interpreted(*operands, **options)

    monkeypatch.setattr(t5_decoding.T5Steps, "_chooses_kernel", lambda self: True)
    monkeypatch.setattr(flash_decoding, "attend_to_cache", attend)
    got = found()
    assert len(calls) == 4  # of each layer: over the cache, over the source
    chex.assert_trees_all_close(got, want, atol=TOLERANCE)


CARD = jax.sharding.AbstractMesh(
    (1,),
    ("card",),
    (AxisType.Auto,),
    abstract_device=jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu"),
)


@pytest.mark.parametrize(("width", "dtype"), [(64, "bfloat16"), (128, "float32")])
def test_the_kernel_is_translated_for_cuda(width, dtype):
    keys = jax.ShapeDtypeStruct((2, 4, 100, width), dtype)
    q = jax.ShapeDtypeStruct((2, 5, 4, width), dtype)
    bias = jax.ShapeDtypeStruct((1, 4, 1, 100), jnp.float32)
    seen = jax.ShapeDtypeStruct((2, 1, 5, 100), bool)
    end = jax.ShapeDtypeStruct((), jnp.int32)

    def attend(q, keys, bias, seen, end):
        own = attend_to_cache(q, keys, keys, bias=bias, seen=seen, end=end)
        return own + attend_to_cache(q, keys, keys, seen=seen[:, :, :1])

    with jax.sharding.use_abstract_mesh(CARD):
        traced = jax.jit(attend).trace(q, keys, bias, seen, end)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count('name = "ntl_attention_to_cache"') == 2
