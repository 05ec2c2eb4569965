"""Attention's kernels on a mesh, and under ``vmap``.

XLA's partitioner cannot look into a kernel. Rows of the batch may be cut, and heads
where the key heads divide: on a mesh of `sharding.on_mesh` by ``shard_map``; on others,
whose axes are not known here, `custom_partitioning` tells the partitioner so (but the
persistent compilation cache then finds no program again, for the partitioner's rules
are part of its key by their address). A bias that the rows share has its gradient
summed over the devices that share them out. Under ``vmap`` the models' batches are one
longer batch.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from ntl_jax.kernels.attention import gpu
from ntl_jax.kernels.attention.tiles import Operands, Options
from ntl_jax.sharding.mesh import BATCH_AXES, TENSOR_AXIS, current_mesh, data_shards


class _Sizes(NamedTuple):
    """Of the operands, what decides along which axes they can be cut."""

    batch: int
    groups: int  # of heads, as many as key heads
    members: int  # query heads of a group
    bias_rows: int  # 0: no bias
    mask_rows: int  # 0: no mask
    mask_dims: int
    hashed: bool


def forward(x: Operands, options: Options) -> tuple[Array, Array]:
    """As `gpu.forward`, of operands that may be sharded."""
    leaves, tree = jax.tree.flatten(x)
    if _on_one_device():
        return gpu.forward(x, options)
    return _program(_forward, _forward_places, tree, options)(*leaves)


def backward(x: Operands, cotangent, log_sums, means, options: Options):
    """As `gpu.backward`, of operands that may be sharded."""
    if _on_one_device():
        return gpu.backward(x, cotangent, log_sums, means, options)
    leaves, tree = jax.tree.flatten((x, cotangent, log_sums, means))
    return _program(_backward, _backward_places, tree, options)(*leaves)


def _on_one_device() -> bool:
    """Inside a ``shard_map`` operands are what lies on a device."""
    return jax.sharding.get_abstract_mesh().are_all_axes_manual


def _forward(options: Options, x: Operands):
    return gpu.forward(x, options)


def _backward(options: Options, given):
    x, cotangent, log_sums, means = given
    return gpu.backward(x, cotangent, log_sums, means, options)


def _forward_places(x: Operands, rows, heads):
    """Specs of the results, and of the mesh axes to sum them over."""
    return (P(rows, None, heads), P(rows, heads)), (None, None)


def _backward_places(given, rows, heads):
    x, whole = given[0], P(rows, None, heads)
    specs: tuple = (whole, whole, whole)
    if x.bias is None:
        return specs, (None,) * 3
    shared = x.bias.shape[0] == 1
    bias = P(None if shared else rows, heads)
    return (*specs, bias), (*(None,) * 3, rows if shared else None)


@lru_cache(maxsize=256)
def _program(run: Callable, places: Callable, tree: Any, options: Options) -> Callable:
    """`run(options, operands)` of flat operands, split over devices and batched."""

    @custom_vmap
    def call(*leaves):
        given = jax.tree.unflatten(tree, leaves)
        sizes = _sizes_of(given)
        mesh = current_mesh()
        if mesh is None:
            return _partitioned(run, places, tree, options, sizes)(*leaves)
        rows = BATCH_AXES if sizes.batch % data_shards(mesh) == 0 else None
        rows, heads = _cuts(mesh, P(rows, None, TENSOR_AXIS), sizes)
        local, placed, specs = _local(run, places, options, given, rows, heads)
        # A bias's gradient is alike everywhere by a sum that JAX is not told of.
        mapped = jax.shard_map(
            local, mesh=mesh, in_specs=placed, out_specs=specs, check_vma=False
        )
        return mapped(*leaves)

    @call.def_vmap
    def _(size, in_batched, *leaves):
        # Axis 0 of every operand is a batch's, or that of what a batch's rows share.
        longer = [
            x if batched else jnp.broadcast_to(x, (size, *x.shape))
            for x, batched in zip(leaves, in_batched, strict=True)
        ]
        out = call(*(x.reshape(-1, *x.shape[2:]) for x in longer))
        out = tuple(x.reshape(size, -1, *x.shape[1:]) for x in out)
        return out, (True,) * len(out)

    return call


def _operands(given) -> Operands:
    return given if isinstance(given, Operands) else given[0]


def _sizes_of(given) -> _Sizes:
    x = _operands(given)
    groups = x.k.shape[2]
    return _Sizes(
        batch=x.q.shape[0],
        groups=groups,
        members=x.q.shape[2] // groups,
        bias_rows=0 if x.bias is None else x.bias.shape[0],
        mask_rows=0 if x.mask is None else x.mask.shape[0],
        mask_dims=0 if x.mask is None else x.mask.ndim,
        hashed=x.hashes is not None,
    )


@lru_cache(maxsize=256)
def _partitioned(run, places, tree, options: Options, sizes: _Sizes) -> Callable:
    """`run`, which XLA's partitioner may cut by rows and by heads."""

    def whole(*leaves):
        return run(options, jax.tree.unflatten(tree, leaves))

    def cut(mesh, arguments):
        given = jax.tree.unflatten(tree, arguments)
        rows, heads = _cuts(mesh, arguments[0].sharding.spec, sizes)
        return _local(run, places, options, given, rows, heads)

    rule = _rule(run, sizes)
    letters = dict.fromkeys(rule.split("->")[0])  # in order, as the rule numbers them
    return partitioned(whole, cut, rule, tuple(x for x in letters if x in "tshcm"))


def partitioned(
    run: Callable, cut: Callable, rule: str, uncut: tuple[str, ...]
) -> Callable:
    """A kernel's program, which XLA's partitioner may cut.

    Args:
        run: takes and gives arrays.
        cut: of a mesh and the operands, what a device runs, the specs of operands and
            those of results.
        rule: which axes of operands and results are one, a letter each.
        uncut: the letters of axes that stay whole, in the rule's order.
    """
    whole = custom_partitioning(run)

    def partition(mesh, arguments, _):
        local, placed, specs = cut(mesh, arguments)

        def shard(*leaves):
            # Which GPU it is, where the compiler has none to ask.
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return local(*leaves)

        results = tuple(NamedSharding(mesh, spec) for spec in specs)
        placed = tuple(NamedSharding(mesh, spec) for spec in placed)
        return mesh, shard, results, placed

    whole.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, arguments, _: partition(
            mesh, arguments, None
        )[2],
        sharding_rule=rule,
        need_replication_factors=uncut,
    )
    return whole


def _local(run: Callable, places: Callable, options: Options, given, rows, heads):
    """What a device runs, and the specs of its operands and results."""
    tree = jax.tree.structure(given)
    specs, sums = places(given, rows, heads)

    def local(*leaves):
        out = run(options, _with_first_place(jax.tree.unflatten(tree, leaves), heads))
        return tuple(
            x if axes is None else jax.lax.psum(x, axes)
            for x, axes in zip(out, sums, strict=True)
        )

    return local, tuple(_place(given, rows, heads, _sizes_of(given))), specs


def _rule(run: Callable, sizes: _Sizes) -> str:
    """Which axes of operands and results are one."""
    # Heads in groups have a letter of their own, although key heads are cut as they
    # are: said to the partitioner, it cuts a mesh axis in two where groups are few.
    heads = "k" if sizes.members == 1 else "n"
    q, keys = f"b t {heads} h", "b s k h"
    operands = [q, keys, keys]
    if sizes.bias_rows:
        rows = "b" if sizes.bias_rows == sizes.batch else "c"
        operands.append(f"{rows} {heads} t s")
    if sizes.mask_rows:
        rows = "b" if sizes.mask_rows == sizes.batch else "m"
        operands.append(f"{rows} t s" if sizes.mask_dims == 3 else f"{rows} s")
    operands += ["b"] * 3 * sizes.hashed
    results = [q, f"b {heads} t"]
    if run is _backward:
        results = operands[: 4 if sizes.bias_rows else 3]
        operands += [q, *[f"b {heads} t"] * 2]
    return f"{', '.join(operands)} -> {', '.join(results)}"


def _cuts(mesh, spec, sizes: _Sizes):
    """The mesh axes that cut rows and heads."""
    rows, _, heads, _ = (*spec, *(None,) * (4 - len(spec)))

    def count(axes) -> int:
        names = (axes,) if isinstance(axes, str) else axes or ()
        return math.prod(mesh.shape[name] for name in names)

    for shared in (sizes.bias_rows, sizes.mask_rows):
        if shared > 1 and shared % count(rows):
            rows = None  # a device would need parts of several rows' bias
    if sizes.groups % count(heads):
        heads = None
    return rows, heads


def _place(given, rows, heads, sizes: _Sizes) -> list[P]:
    """Specs of all operands, in their order."""
    whole = P(rows, None, heads)
    specs = [whole] * 3
    if sizes.bias_rows:
        specs.append(P(rows if sizes.bias_rows > 1 else None, heads))
    if sizes.mask_rows:
        specs.append(P(rows if sizes.mask_rows > 1 else None))
    specs += [P(rows)] * 3 * sizes.hashed
    if not isinstance(given, Operands):
        specs += [whole, P(rows, heads), P(rows, heads)]
    return specs


def _with_first_place(given, heads):
    """Operands of which dropout knows how many heads lie on the devices before."""
    x = _operands(given)
    if x.hashes is None or heads is None:
        return given
    first, second, begin = x.hashes
    places = x.q.shape[1] * x.q.shape[2] * x.k.shape[1]
    device = jax.lax.axis_index(heads).astype(jnp.uint32)
    begin = begin + device * np.uint32(places % 2**32)
    x = x._replace(hashes=(first, second, begin))
    return x if isinstance(given, Operands) else (x, *given[1:])
