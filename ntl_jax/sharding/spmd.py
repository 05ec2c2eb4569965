"""Programs that each device of a mesh runs on its own part of sharded arrays.

XLA's partitioner cannot look into a Pallas kernel, and splits no sort and no `top_k`:
left alone, it hands every device the whole batch.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ntl_jax.sharding.mesh import BATCH_AXES, TENSOR_AXIS, current_mesh, data_shards

Axes = dict[str, tuple[str, ...]]
"""The mesh axes that shard a dimension, by its letter; () where it is whole."""


def shardable(
    run: Callable[..., tuple[Any, ...]],
    rule: Callable[..., str],
    *,
    batch: str,
    tensor: str,
    free: str = "",
    reduced: str = "",
    partly: bool = False,
    on_tpus: bool = False,
    vmap: Callable[[Callable], Callable] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """A program whose operands may be sharded, and batched by `vmap`.

    On a mesh of `on_mesh` each device runs its part by ``shard_map``. On any other,
    whose axes are not known here, `custom_partitioning` tells XLA's partitioner how to
    split the program (but the persistent compilation cache then never finds it, since
    its key holds the addresses of the partitioner's callbacks). The compiler for TPUs
    does not take `custom_partitioning` (jax 0.10): there XLA splits what it can. Inside
    a ``shard_map`` operands are parts already.

    Not to be differentiated: a custom VJP runs it forward and backward.

    Args:
        run: `run(axes, *operands) -> results`, on a device's parts. It sums partial
            results over `axes[letter]` with `psum`.
        rule: `rule(*operands)`, the letters of the dimensions of operands and results,
            such as "b t v, b t -> b t".
        batch: letters sharded by the data-parallel axes. Those after the first are of
            operands that examples share, and not sharded where their size is 1.
        tensor: letters sharded by the `tensor` axis.
        free: letters that the partitioner may shard, each by itself.
        reduced: letters that the partitioner is told are summed over.
        partly: on a known mesh, whether a dimension that does not divide is not
            sharded; otherwise the whole program is then left to the partitioner.
        on_tpus: whether TPUs run the program too.
        vmap: how the program is batched, such as `merge_batches`; None: each device
            runs `run` under `vmap`, and other meshes leave it to the partitioner.
    """
    program = _Program(run, rule, batch, tensor, free, reduced, partly, on_tpus)

    @lru_cache(maxsize=256)
    def vmapped_inside(text: str) -> Callable[..., tuple[Any, ...]]:
        return _vmap_inside(program.on_one_device(text), program.partitioned(text))

    if vmap is None:  # `vmap` can trace a `shard_map`
        batched = partial(program.placed, vmapped_inside)
    else:
        batched = vmap(partial(program.placed, program.partitioned))

    def call(*arrays):
        if jax.sharding.get_abstract_mesh().are_all_axes_manual:
            return program.on_one_device(rule(*arrays))(*arrays)
        return batched(*arrays)

    return call


def merge_batches(run: Callable) -> Callable:
    """`run` under `vmap`: several batches are concatenated along axis 0."""

    def merged(call, *arrays):
        size = arrays[0].shape[0]
        out = call(*(x.reshape(-1, *x.shape[2:]) for x in arrays))
        return tuple(x.reshape(size, -1, *x.shape[1:]) for x in out)

    return add_batch_axis(run, through=merged)


def add_batch_axis(
    run: Callable,
    *,
    shared: tuple[int, ...] = (),
    through: Callable = lambda call, *arrays: call(*arrays),
) -> Callable:
    """`run` under `vmap`: operands have one more leading axis.

    Args:
        run: takes and returns arrays with any number of leading axes.
        shared: positions of operands that are never batched.
        through: `through(run, *arrays)` calls it.
    """
    call = custom_vmap(run)

    @call.def_vmap
    def _(size, in_batched, *arrays):
        arrays = [
            x if batched or i in shared else jnp.broadcast_to(x, (size, *x.shape))
            for i, (x, batched) in enumerate(zip(arrays, in_batched, strict=True))
        ]
        out = through(call, *arrays)
        return out, (True,) * len(out)

    return call


def _vmap_inside(alone: Callable, run: Callable) -> Callable:
    """`run`; under `vmap`, `alone`, which `vmap` can trace."""
    call = custom_vmap(run)

    @call.def_vmap
    def _(_, in_batched, *arrays):
        in_axes = tuple(0 if batched else None for batched in in_batched)
        out = jax.vmap(alone, in_axes=in_axes)(*arrays)
        return out, (True,) * len(out)

    return call


def psum(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The sum over the devices along some axes, on each of them; `x` for none."""
    return jax.lax.psum(x, axes) if axes else x


def sum_over_replicas(
    run: Callable[[jax.Array, jax.Array], jax.Array], ids: jax.Array, states: jax.Array
) -> jax.Array:
    """`run(ids, states)`, a sum over the batch, each device on its own examples.

    Args:
        run: returns [V, D]; each column depends on that of `states` alone.
        ids: [B, T].
        states: [B, T, D].

    Returns:
        `run(ids, states)`, sharded along D by `fsdp`; without a mesh, with a `tensor`
        axis, with other dimensions and where sizes do not divide, called directly.
    """
    mesh = current_mesh()
    if mesh is None or mesh.shape[TENSOR_AXIS] > 1 or ids.ndim != 2:
        return run(ids, states)
    if ids.shape[0] % mesh.shape["data"] or states.shape[-1] % mesh.shape["fsdp"]:
        return run(ids, states)
    mapped = jax.shard_map(
        lambda *parts: jax.lax.psum(run(*parts), "data"),
        mesh=mesh,
        in_specs=(PartitionSpec("data"), PartitionSpec("data", None, "fsdp")),
        out_specs=PartitionSpec(None, "fsdp"),
        check_vma=False,  # a transpose makes zeros that vary over no axis
    )
    return mapped(ids, states)


def row_by_row(
    run: Callable[[jax.Array], Any], x: jax.Array, *, parts: int | None = None
) -> Any:
    """`run(x)`, each device on its own rows.

    Args:
        run: takes an array like `x`, returns arrays with its leading axes; the results
            for a row, or for a part of a row, depend on it alone.
        x: [B, ...].
        parts: the axis of a row's parts, if the `tensor` axis shards it.

    Returns:
        `run(x)`; without a mesh and where sizes do not divide, called directly.
    """
    mesh = current_mesh()
    if mesh is None or x.ndim < 2 or x.shape[0] % data_shards(mesh):
        return run(x)
    names: list[Any] = [BATCH_AXES, *[None] * (x.ndim - 1)]
    if parts is not None:
        if x.shape[parts] % mesh.shape[TENSOR_AXIS]:
            return run(x)
        names[parts] = TENSOR_AXIS
    spec = PartitionSpec(*names)
    return jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)(x)


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """The arguments of `shardable`, and the programs made of them, by their rules."""

    run: Callable[..., tuple[Any, ...]]
    rule: Callable[..., str]
    batch: str
    tensor: str
    free: str
    reduced: str
    partly: bool
    on_tpus: bool

    def on_one_device(self, text: str) -> Callable[..., tuple[Any, ...]]:
        return partial(self.run, dict.fromkeys(_letters(text), ()))

    def placed(self, otherwise: Callable[[str], Callable], *arrays) -> tuple[Any, ...]:
        """By `shard_map` on a known mesh that divides the arrays, or `otherwise`."""
        text, mesh = self.rule(*arrays), current_mesh()
        if mesh is None:
            return otherwise(text)(*arrays)
        wanted: Axes = dict.fromkeys(self.batch, BATCH_AXES)
        wanted |= dict.fromkeys(self.tensor, (TENSOR_AXIS,))
        axes, divides = self._divide(mesh, text, arrays, wanted)
        if not (divides or self.partly):
            return otherwise(text)(*arrays)
        operands, results = _specs(text, axes)
        mapped = jax.shard_map(
            partial(self.run, axes),
            mesh=mesh,
            in_specs=operands,
            out_specs=results,
            check_vma=False,  # JAX does not know which sums make results alike
        )
        return mapped(*arrays)

    @lru_cache(maxsize=1024)  # noqa: B019 - programs live as long as the process
    def partitioned(self, text: str) -> Callable[..., tuple[Any, ...]]:
        """For XLA's partitioner to split."""
        whole = self.on_one_device(text)
        program = custom_partitioning(lambda *arrays: whole(*arrays))

        def partition(mesh, arrays, _):
            axes = self._divide(mesh, text, arrays, _axes_of(text, arrays))[0]

            def shard(*parts):
                # Kernels ask which GPU they are for; the compiler does not say.
                with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                    return self.run(axes, *parts)

            operands, results = (
                tuple(NamedSharding(mesh, spec) for spec in specs)
                for specs in _specs(text, axes)
            )
            return mesh, shard, results, operands

        split = self.batch + self.tensor + self.free
        program.def_partition(
            partition=partition,
            infer_sharding_from_operands=lambda *given: partition(*given)[2],
            sharding_rule=text,
            reduction_factors=tuple(self.reduced),
            need_replication_factors=tuple(x for x in _letters(text) if x not in split),
        )
        if not self.on_tpus:
            return program
        return lambda *x: jax.lax.platform_dependent(*x, tpu=whole, default=program)

    def _divide(
        self, mesh: Mesh | AbstractMesh, text: str, arrays: Sequence[Any], wanted: Axes
    ) -> tuple[Axes, bool]:
        """The axes of each letter, and whether there is a batch and all divide."""
        sizes: dict[str, int] = {}
        for term, x in zip(_terms(text)[0], arrays, strict=True):
            sizes |= dict(zip(term, x.shape, strict=True))
        axes: Axes = dict.fromkeys(_letters(text), ())
        axes |= {x: wanted.get(x, ()) for x in self.free if x in sizes}
        all_divide, taken = self.batch[0] in sizes, ()
        for group in (self.batch, self.tensor):
            # Rows of a batch that others share stay whole where there is one of them.
            alone = [x for x in self.batch[1:] if sizes.get(x) == 1]
            letters = [x for x in group if x in sizes and x not in alone]
            names = wanted[letters[0]] if letters else ()
            if set(names) & set(taken):  # an axis shards one of the two
                names = ()
            count = math.prod(mesh.shape[name] for name in names)
            if any(sizes[x] % count for x in letters):
                names, all_divide = (), False
            axes |= dict.fromkeys(letters, names)
            taken = names
        return axes, all_divide


def _letters(text: str) -> list[str]:
    return [letter for letter in dict.fromkeys(text) if letter.isalpha()]


def _terms(text: str) -> list[list[list[str]]]:
    """The letters of each operand's and of each result's dimensions."""
    return [[term.split() for term in x.split(",")] for x in text.split("->")]


def _specs(text: str, axes: Axes) -> list[tuple[PartitionSpec, ...]]:
    """Of the operands and of the results."""
    return [
        tuple(PartitionSpec(*(axes[x] or None for x in term)) for term in terms)
        for terms in _terms(text)
    ]


def _axes_of(text: str, arrays: Sequence[Any]) -> Axes:
    """How each letter is sharded in the first array that has it."""
    axes: Axes = {}
    for term, x in zip(_terms(text)[0], arrays, strict=True):
        entries = (*x.sharding.spec, *(None,) * len(term))
        for letter, entry in zip(term, entries, strict=False):
            names = (entry,) if isinstance(entry, str) else tuple(entry or ())
            axes.setdefault(letter, names)
    return axes
