"""The attention kernels are translated for CUDA, where no device is needed."""

import jax
import jax.numpy as jnp
import pytest

from ntl_jax.kernels.attention import gpu
from ntl_jax.kernels.attention.tiles import (
    Operands,
    Options,
    Tile,
    Tiles,
    default_tiles,
)

# Later versions of JAX announce the end of Pallas' way to Triton.
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend")
CARD = jax.sharding.AbstractMesh(
    (1,),
    ("card",),
    (jax.sharding.AxisType.Auto,),
    abstract_device=jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu"),
)
NAMES = ("ntl_attention", "ntl_attention_dq", "ntl_attention_dkv")


def operands_of(
    width, dtype, *, queries=200, sources=200, groups=2, bias=True, mask=2, hashed=True
):
    rows, heads = 2, 4

    def zeros(*shape, dtype=dtype):
        return jnp.zeros(shape, dtype)

    shape = (rows, queries, sources) if mask == 3 else (rows, sources)
    return Operands(
        zeros(rows, queries, heads, width),
        *[zeros(rows, sources, groups, width)] * 2,
        zeros(1, heads, queries, sources, dtype=jnp.float32) if bias else None,
        zeros(*shape, dtype=jnp.int8) if mask else None,
        (zeros(rows, dtype=jnp.uint32),) * 3 if hashed else None,
    )


def translated(x: Operands, options: Options) -> str:
    def both(x, cotangent):
        out, log_sums = gpu.forward(x, options)
        return gpu.backward(x, out + cotangent, log_sums, log_sums, options)

    with jax.sharding.use_abstract_mesh(CARD):
        traced = jax.jit(both).trace(x, x.q)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [16, 64, 128])
def test_with_every_option(width, dtype):
    x = operands_of(width, dtype)
    tiles = default_tiles(width, x.q.dtype.itemsize)
    text = translated(x, Options(0.1, True, 0.1, tiles))
    for name in (*NAMES, "ntl_attention_dbias"):
        assert f'name = "{name}"' in text, name


@pytest.mark.parametrize("causal", [True, False])
def test_without_options_and_on_full_tiles(causal):
    x = operands_of(
        64, "bfloat16", queries=256, sources=256, bias=False, mask=0, hashed=False
    )
    text = translated(x, Options(0.1, causal, 0.0, default_tiles(64, 2)))
    assert all(f'name = "{name}"' in text for name in NAMES)
    assert "dbias" not in text


def test_rows_shorter_than_a_tile():
    x = operands_of(64, "bfloat16", queries=3, sources=40, mask=3)
    text = translated(x, Options(0.1, False, 0.1, default_tiles(64, 2)))
    assert 'name = "ntl_attention_dbias"' in text


def test_tiles_that_are_no_power_of_two_are_refused():
    x = operands_of(64, "bfloat16")
    tiles = Tiles(*[Tile(48, 48)] * 4)
    with pytest.raises(Exception, match="power of 2"):
        translated(x, Options(0.1, False, 0.1, tiles))
