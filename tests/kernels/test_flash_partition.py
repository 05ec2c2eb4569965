"""The attention kernels split over eight simulated devices equal one device's."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ntl_jax.kernels.attention import partition
from ntl_jax.kernels.attention.flash import flash_attention
from ntl_jax.sharding.mesh import make_mesh, on_mesh
from tests.kernels.flash_cases import KEY, Case, tiles_of

GROUPS = Case(rows=8, queries=20, sources=20, heads=8, groups=4)
ROWS = Case(rows=8, queries=20, sources=20, heads=8, groups=8, bias_rows=8, mask_dims=3)


def placed(case: Case, mesh):
    """The case's operands, rows over `data` and, where they divide, heads."""
    *operands, cotangent = case.draw()
    tensor = mesh.shape["tensor"]
    queries, keys = (
        P("data", None, None if heads % tensor else "tensor")
        for heads in (case.heads, case.groups)
    )
    bias = P("data" if case.bias_rows > 1 else None, queries[2])
    specs = (queries, keys, keys, bias, P("data"), queries)
    return [
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip((*operands, cotangent), specs, strict=True)
    ]


def mesh_of(data: int, tensor: int):
    return jax.make_mesh((data, tensor), ("data", "tensor"), (AxisType.Auto,) * 2)


def relative_error(got, want) -> float:
    """The largest difference, relative to a leaf's largest number."""
    errors = jax.tree.map(
        lambda g, w: jnp.abs(g - w).max() / jnp.abs(w).max(), got, want
    )
    return max(jax.tree.leaves(jax.device_get(errors)))


TOLERANCE = 1e-5
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        pytest.param(GROUPS, (2, 4), id="groups"),
        pytest.param(GROUPS, (8, 1), id="groups-rows", marks=SLOW),
        pytest.param(GROUPS, (1, 8), id="fewer-groups-than-devices", marks=SLOW),
        pytest.param(ROWS, (4, 2), id="bias-of-each-row", marks=SLOW),
        pytest.param(ROWS, (1, 8), id="bias-of-each-row-heads", marks=SLOW),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_split_kernels_equal_one_devices(case, shape, known):
    want = case.flash(*case.draw(), KEY)
    mesh = make_mesh(shape[0], 1, shape[1]) if known else mesh_of(*shape)
    operands = placed(case, mesh)

    def run(*operands):
        with on_mesh(mesh if known else None):
            return case.flashed(*operands)

    lowered = jax.jit(run).lower(*operands, KEY)
    # By an address, which is another in every process: no cache finds the program.
    assert ("CustomSPMDPartitioning" in lowered.as_text()) is not known
    compiled = lowered.compile()
    out, gradients = got = compiled(*operands, KEY)
    assert relative_error(got, want) < TOLERANCE
    spread = case.groups % shape[1] == 0
    assert ("all-gather" in compiled.as_text()) is not spread
    if spread:
        where = NamedSharding(mesh, P("data", None, "tensor"))
        for x in (out, *gradients[:3]):
            assert x.sharding.is_equivalent_to(where, 4)


@SLOW
def test_heads_on_other_devices_have_dropout_masks_of_their_own(monkeypatch):
    """So the comparison with one device's sees a mask of the wrong heads."""
    case = GROUPS
    monkeypatch.setattr(partition, "_with_first_place", lambda given, heads: given)
    want = case.flash(*case.draw(), KEY)[0]
    # Other options than in the test before, whose program is kept.
    run = partial(_out_only, tiles=tiles_of(16, 32))
    got = jax.jit(run)(*placed(case, mesh_of(2, 4))[:5], KEY)
    first = slice(0, 2)  # of eight heads over four devices
    chex.assert_trees_all_close(got[:, :, first], want[:, :, first], atol=1e-5)
    for head in range(2, 8):
        assert np.abs(got[:, :, head] - want[:, :, head]).max() > 0.1


def _out_only(q, k, v, bias, mask, key, *, tiles):
    def attention(*operands, **options):
        return flash_attention(*operands, tiles=tiles, interpret=True, **options)

    return GROUPS.run(attention, q, k, v, bias, mask, q, key)[0]


@pytest.mark.slow
def test_inside_shard_map_each_device_runs_its_own_rows():
    case = Case(rows=8, queries=20, sources=20, rate=0.0)
    *operands, _ = case.draw()
    mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))

    def local(q, k, v, bias, mask):
        return flash_attention(
            q, k, v, scale=0.3, bias=bias, mask=mask, causal=True, interpret=True
        )

    def total(attention, *operands):
        return jnp.sum(attention(*operands) ** 2)

    rows = P("data")
    split = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(rows, rows, rows, P(), rows),
        out_specs=rows,
        check_vma=False,  # the interpreter does not say over which axes it varies
    )
    arguments = (0, 1, 2, 3)
    got = jax.jit(jax.grad(partial(total, split), arguments))(*operands)
    want = jax.jit(jax.grad(partial(total, local), arguments))(*operands)
    assert relative_error(got, want) < TOLERANCE
