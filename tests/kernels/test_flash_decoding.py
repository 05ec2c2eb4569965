"""The kernel of decoding's attention, interpreted, against the plain program."""

import dataclasses
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
from ntl_jax.generate.programs import beam_search_program
from ntl_jax.kernels.attention import decoding as flash_decoding
from ntl_jax.kernels.attention.decoding import attend_to_cache, attend_to_source
from ntl_jax.models import T5Config, init_params
from ntl_jax.models.t5 import decoding as t5_decoding
from ntl_jax.sharding.mesh import make_mesh, on_mesh

# Later versions of JAX announce the end of Pallas' way to Triton.
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend")
TOLERANCE = 1e-5
ROWS, BEAMS, HEADS, WIDTH, LENGTH = 2, 3, 4, 16, 14
SLOTS = BEAMS * LENGTH  # two tiles of 16 and a part of one
INTERPRETED = {"keys_a_tile": 16, "interpret": True}
over_cache = partial(attend_to_cache, **INTERPRETED)
over_source = partial(attend_to_source, **INTERPRETED)


def drawn(sources: int, dtype="float32", rows: int = ROWS, beams: int = BEAMS):
    """q, k and v of new tokens in one; keys and values; a bias."""
    draw = np.random.default_rng(7).standard_normal
    shapes = (rows, beams, 3, HEADS, WIDTH), *[(rows, HEADS, sources, WIDTH)] * 2
    arrays = [jnp.asarray(draw(shape), dtype) for shape in shapes]
    return *arrays, jnp.asarray(draw((1, HEADS, 1, sources)), jnp.float32)


def seen_by(beams: int, sources: int, rows: int = ROWS):
    """Every beam sees other keys."""
    draw = np.random.default_rng(8).random((rows, 1, beams, sources))
    return jnp.asarray(draw > 0.4)


def plain_over_cache(new, keys, values, *, position, bias, seen):
    q, k, v = (new[:, :, i] for i in range(3))
    keys, values = (
        t5_decoding._write(half, of_new, position)
        for half, of_new in ((keys, k), (values, v))
    )
    beams, slots = new.shape[1], jnp.arange(keys.shape[2])[None]
    own = slots == position * beams + jnp.arange(beams)[:, None]
    seen = (seen & (slots < position * beams)[None, None]) | own[None, None]
    return t5_decoding._attend(q, keys, values, bias=bias, seen=seen), keys, values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("position", [0, 6, LENGTH - 1])
def test_over_a_cache(position, dtype):
    *operands, bias = drawn(SLOTS, dtype)
    given = {"position": jnp.int32(position), "bias": bias}
    seen = seen_by(BEAMS, SLOTS)
    want = plain_over_cache(*operands, **given, seen=seen)
    got = over_cache(*operands, **given, seen=seen)
    assert [x.dtype for x in got] == [x.dtype for x in want]
    tolerance = TOLERANCE if dtype == "float32" else 0.02
    chex.assert_trees_all_close(got[0], want[0], atol=tolerance)
    assert all(np.array_equal(g, w) for g, w in zip(got[1:], want[1:], strict=True))
    if position:  # what other beams see gives something else: it can fail
        other = over_cache(*operands, **given, seen=seen[:, :, ::-1])
        assert jnp.abs(other[0] - want[0]).max() > 10 * tolerance


def test_more_beams_than_a_program_takes():
    beams, slots = 20, 60
    *operands, bias = drawn(slots, beams=beams)
    given = {"position": jnp.int32(2), "bias": bias, "seen": seen_by(beams, slots)}
    want = plain_over_cache(*operands, **given)
    chex.assert_trees_all_close(over_cache(*operands, **given), want, atol=TOLERANCE)


def test_slots_that_are_not_filled_are_not_read():
    *operands, bias = drawn(SLOTS)
    given = {"position": jnp.int32(6), "bias": bias, "seen": seen_by(BEAMS, SLOTS)}
    want = over_cache(*operands, **given)[0]
    empty = (np.arange(SLOTS) >= 6 * BEAMS)[None, None, :, None]
    operands[1:] = [jnp.where(empty, jnp.nan, half) for half in operands[1:]]
    assert np.array_equal(over_cache(*operands, **given)[0], want)


@pytest.mark.parametrize("sources", [37, 48])
def test_over_a_source_that_all_beams_see_alike(sources):
    new, keys, values, _ = drawn(sources)
    q = new[:, :, 0]
    seen = seen_by(1, sources).at[1].set(False)  # a row that sees nothing
    for given in (seen, None):
        got = over_source(q, keys, values, seen=given)
        want = t5_decoding._attend(q, keys, values, seen=given)
        chex.assert_trees_all_close(got, want, atol=TOLERANCE)


def test_under_vmap():
    *operands, bias = (jnp.stack([x, 2 * x]) for x in drawn(SLOTS))
    seen = seen_by(BEAMS, SLOTS)

    def both(attend):
        def one(*x):
            return attend(*x[:-1], position=jnp.int32(4), bias=x[-1], seen=seen)

        return jax.vmap(one)(*operands, bias)

    chex.assert_trees_all_close(both(over_cache), both(plain_over_cache), atol=1e-5)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("shape", [(2, 4), pytest.param((8, 1), marks=SLOW)])
@pytest.mark.parametrize("known", [True, False])
def test_devices_attend_with_their_own_rows_and_heads(shape, known):
    mesh = jax.make_mesh(shape, ("data", "tensor"), (AxisType.Auto,) * 2)
    if known:
        mesh = make_mesh(shape[0], 1, shape[1])
    mixed, keys = P("data", None, "tensor"), P("data", "tensor")
    new, across = P("data", None, None, "tensor"), P(None, "tensor")
    specs = [new, keys, keys, across, P("data")]
    *operands, bias, seen = (
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip(
            (*drawn(SLOTS, rows=8), seen_by(BEAMS, SLOTS, rows=8)), specs, strict=True
        )
    )

    def attend(*x, bias, seen):
        with on_mesh(mesh if known else None):
            own = over_cache(*x, position=jnp.int32(6), bias=bias, seen=seen)
            return *own, over_source(own[0], *own[1:], seen=seen[:, :, :1])

    program = jax.jit(attend).lower(*operands, bias=bias, seen=seen).compile()
    assert not re.search("all-|reduce-scatter|collective-permute", program.as_text())
    got = program(*operands, bias=bias, seen=seen)
    for array, spec in zip(got, (mixed, keys, keys, mixed), strict=True):
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, spec), 4)
    want = plain_over_cache(*operands, position=6, bias=bias, seen=seen)
    cross = t5_decoding._attend(*want, seen=seen[:, :, :1])
    chex.assert_trees_all_close(got, (*want, cross), atol=TOLERANCE)


CONFIG = T5Config(
    vocab_size=50,
    d_model=16,
    d_kv=16,
    d_ff=32,
    num_layers=2,
    num_decoder_layers=2,
    num_heads=2,
    dtype="float32",
)


def test_beams_found_with_the_kernels_are_the_plain_program_s(monkeypatch):
    params = init_params(CONFIG, jax.random.key(0))
    ids = np.random.default_rng(1).integers(2, 50, (3, 9), dtype=np.int32)
    mask = np.arange(9) < np.array([[9], [4], [7]])

    def found():
        beam_search_program.clear_cache()  # of what was traced with the other program
        options = {"num_beams": 3, "return_scores": True, "max_new_tokens": 7}
        return generate(CONFIG, params, ids, attention_mask=mask, **options)

    want = found()
    calls = []

    def counted(attend):
        def call(*operands, **given):
            calls.append(attend)
            return attend(*operands, **given)

        return call

    monkeypatch.setattr(t5_decoding.T5Steps, "_chooses_kernel", lambda self: True)
    monkeypatch.setattr(flash_decoding, "attend_to_cache", counted(over_cache))
    monkeypatch.setattr(flash_decoding, "attend_to_source", counted(over_source))
    got = found()
    assert calls == [over_cache, over_source] * 2  # in each layer
    chex.assert_trees_all_close(got, want, atol=TOLERANCE)


CARD = jax.sharding.AbstractMesh(
    (1,),
    ("card",),
    (AxisType.Auto,),
    abstract_device=jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu"),
)


@pytest.mark.parametrize(("width", "dtype"), [(64, "bfloat16"), (128, "float32")])
def test_the_kernels_are_translated_for_cuda(width, dtype):
    new = jax.ShapeDtypeStruct((2, 20, 3, 4, width), dtype)
    keys = jax.ShapeDtypeStruct((2, 4, 100, width), dtype)
    bias = jax.ShapeDtypeStruct((1, 4, 1, 100), jnp.float32)
    seen = jax.ShapeDtypeStruct((2, 1, 20, 100), bool)
    position = jax.ShapeDtypeStruct((), jnp.int32)

    def attend(new, keys, bias, seen, position):
        given = {"position": position, "bias": bias, "seen": seen}
        own, *cache = attend_to_cache(new, keys, keys, **given)
        return own, cache, attend_to_source(own, *cache, seen=seen[:, :, :1])

    with jax.sharding.use_abstract_mesh(CARD):
        traced = jax.jit(attend).trace(new, keys, bias, seen, position)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    for name in ("ntl_attention_to_cache", "ntl_attention_to_source"):
        assert text.count(f'name = "{name}"') == 1


@pytest.mark.parametrize(
    ("beams", "changes", "count"),
    [
        (2, {"attention": "triton"}, 4),
        (2, {"attention": "triton", "dtype": "float32"}, 4),
        (2, {}, 4),
        (2, {"dtype": "float32"}, 0),
        (2, {"attention": "xla"}, 0),
        (1, {}, 0),
    ],
)
def test_several_beams_take_the_kernels(beams, changes, count):
    config = dataclasses.replace(CONFIG, **{"dtype": "bfloat16"} | changes)
    params = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    ids = jax.ShapeDtypeStruct((3, 9), jnp.int32)

    def answer(params, ids):
        return generate(config, params, ids, max_new_tokens=5, num_beams=beams).tokens

    with jax.sharding.use_abstract_mesh(CARD):
        traced = jax.jit(answer).trace(params, ids)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count('name = "ntl_attention_to_') == count
