"""Blocks of a parameter, cut out of stored tensors: a device reads its shard alone."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from ntl_jax.hf.rules import Rule

Spans = tuple[slice, ...]


class StoredTensor(Protocol):
    """A tensor of a checkpoint; a NumPy array is one, and so is a place in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def read_block(
    rule: Rule,
    read: Callable[[str], StoredTensor],
    shape: tuple[int, ...],
    index: Spans,
) -> np.ndarray:
    """One block of a parameter.

    Args:
        rule: the parameter's rule.
        read: gives a stored tensor by its name.
        shape: the whole parameter's.
        index: a slice an axis of the parameter, steps of 1.

    Returns:
        The block, contiguous float32. Rows that the file lacks are the mean of those
        it has, up to the rule's `rows`, and zero beyond.
    """
    pairs = zip(index, shape, strict=True)
    spans = tuple(slice(*span.indices(size)[:2]) for span, size in pairs)
    block = np.zeros([span.stop - span.start for span in spans], np.float32)
    names = rule.names()
    if rule.layers is None:
        _fill(rule, block, spans, shape, read(names[0]))
        return block
    for part, name in zip(block, names[spans[0]], strict=True):
        _fill(rule, part, spans[1:], shape[1:], read(name))
    return block


def place(
    rule: Rule,
    read: Callable[[str], StoredTensor],
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
) -> jax.Array:
    """A parameter spread over devices; only the shards of this process are read."""
    blocks: dict[Any, np.ndarray] = {}  # replicas are read once

    def block(index: Any) -> np.ndarray:  # Spans, but jax types it more widely
        key = tuple((span.start, span.stop) for span in index)
        if key not in blocks:
            blocks[key] = read_block(rule, read, shape, index)
        return blocks[key]

    return jax.make_array_from_callback(shape, sharding, block)


def _fill(rule: Rule, part: np.ndarray, spans: Spans, shape, tensor: StoredTensor):
    """Writes one tensor's share of a block into `part`, a view of the block."""
    if rule.transpose:
        part, spans = part.T, spans[::-1]
    if rule.shape is not None:
        part[...] = _regrouped(tensor, rule.shape, shape, spans)
    elif rule.rows is None:
        part[...] = tensor[spans]
    else:
        _fill_rows(part, spans, tensor, rule.rows)


def _fill_rows(part: np.ndarray, spans: Spans, tensor: StoredTensor, rows: int):
    wanted, *rest = spans
    stored = tensor.shape[0]
    here = slice(wanted.start, max(wanted.start, min(wanted.stop, stored)))
    count = here.stop - here.start
    part[:count] = tensor[(here, *rest)]
    new = slice(count, max(count, min(wanted.stop, rows) - wanted.start))
    if new.start < new.stop:
        known = np.asarray(tensor[(slice(0, stored), *rest)])
        part[new] = np.mean(known, axis=0, dtype=np.float64)


def _regrouped(tensor: StoredTensor, file_shape, shape, spans: Spans) -> np.ndarray:
    """The block of a tensor of which an axis stands for several of the parameter's."""
    index, sizes, inner = [], [], []
    axes = iter(zip(spans, shape, strict=True))
    for size in file_shape:
        group = [next(axes)]
        while math.prod(length for _, length in group) < size:
            group.append(next(axes))
        if len(group) == 1:
            ((span, _),) = group
            index.append(span)
            sizes.append(span.stop - span.start)
            inner.append(slice(None))
        else:  # the axis is read whole: the block's places in it lie scattered
            index.append(slice(0, size))
            sizes += [length for _, length in group]
            inner += [span for span, _ in group]
    return np.asarray(tensor[tuple(index)]).reshape(sizes)[tuple(inner)]
