"""Strict two-way tables between Hugging Face checkpoints and parameter trees.

A table is a list of `Rule`s. Reading fills every parameter exactly once from named
tensors, and every tensor of a checkpoint is either used, a known duplicate of another,
or on the table's ignore list; writing walks the same rules the other way.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ntl_jax.hf.blocks import StoredTensor, place, read_block
from ntl_jax.hf.rules import CheckpointError, NewTokens, Rule, Table, Tree


def flatten(tree: Tree) -> dict[str, Any]:
    """A nested dict of arrays as {path joined by "/": array}."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(k, simple=True, separator="/"): v for k, v in leaves}


def unflatten(flat: Mapping[str, np.ndarray]) -> Tree:
    """The inverse of `flatten`.

    >>> unflatten({"a/b": 1, "a/c": 2})
    {'a': {'b': 1, 'c': 2}}
    """
    tree: Tree = {}
    for path, leaf in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def read_params(
    table: Table,
    names: list[str],
    read: Callable[[str], StoredTensor],
    shapes: Tree,
    *,
    shardings: Tree | None = None,
    new_tokens: NewTokens = "refuse",
) -> Tree:
    """Parameters made from named tensors.

    Args:
        table: the model's table.
        names: every tensor name of the checkpoint.
        read: gives a tensor by its name.
        shapes: the parameter tree with anything that has a `.shape` at its leaves.
        shardings: a tree like `shapes` of shardings, or None.
        new_tokens: what becomes of tokens that the model has and the file has not:
            "refuse", or "mean", which gives each the mean of the file's rows.

    Returns:
        A tree like `shapes`: contiguous float32 NumPy arrays, or, with `shardings`,
        float32 arrays of which every device holds its own shards and no more.

    Raises:
        CheckpointError: tensors are missing, unknown, misshapen or of a type that is
            no float, or copies differ from their originals; all are listed.
    """
    table = table.as_named(names)
    want = {path: tuple(leaf.shape) for path, leaf in flatten(shapes).items()}
    problems = _table_problems(table, want) + _name_problems(table, names)
    present = set(names)
    for rule in table.rules:
        if rule.path not in want:
            continue  # is listed already, and so are tensors that are not there
        for key in present.intersection(rule.names()):
            problems += _tensor_problems(rule, key, read(key), want, new_tokens)
    for copy, original in table.duplicates.items():
        if {copy, original} <= present and not same_values(read(copy), read(original)):
            problems.append(f"{copy} is tied to {original} but differs from it")
    if problems:
        raise CheckpointError(_listing(problems))
    places = {} if shardings is None else flatten(shardings)
    params = {}
    for rule in table.rules:
        shape = want[rule.path]
        if shardings is None:
            whole = (slice(None),) * len(shape)
            params[rule.path] = read_block(rule, read, shape, whole)
        else:
            params[rule.path] = place(rule, read, shape, places[rule.path])
    return unflatten(params)


def write_tensors(table: Table, params: Tree, shapes: Tree) -> dict[str, np.ndarray]:
    """Named tensors made from parameters: `read_params` the other way.

    Args:
        table: the model's table.
        params: a tree of arrays.
        shapes: the tree that the model has, with a `.shape` at its leaves.

    Returns:
        {tensor name: contiguous float32 array}, duplicates left out.

    Raises:
        CheckpointError: the tree lacks a parameter, has one too many, or one of
            another shape or of a type that is no float; all are listed.
    """
    flat = flatten(params)
    want = {path: tuple(leaf.shape) for path, leaf in flatten(shapes).items()}
    problems = _table_problems(table, want)
    problems += [f"no parameter {path}" for path in want if path not in flat]
    problems += [f"unknown parameter {path}" for path in flat if path not in want]
    for path in sorted(want.keys() & flat.keys()):
        if flat[path].shape != want[path]:
            problems.append(
                f"{path} is {flat[path].shape}, the config asks for {want[path]}"
            )
        if not _is_float(flat[path].dtype):
            problems.append(f"{path} holds {flat[path].dtype}, not floating point")
    if problems:
        raise CheckpointError(_listing(problems))
    tensors = {}
    for rule in table.rules:
        leaf = np.asarray(flat[rule.path], np.float32)
        parts = [leaf] if rule.layers is None else list(leaf)
        for key, part in zip(rule.names(), parts, strict=True):
            # safetensors writes the memory as it lies: a view would be scrambled.
            tensors[key] = np.ascontiguousarray(rule.as_in_file(part))
    return tensors


def _table_problems(table: Table, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Where a model's table and its parameters do not match one to one."""
    paths = [rule.path for rule in table.rules]
    problems = [f"two rules fill {p}" for p in sorted(set(paths)) if paths.count(p) > 1]
    problems += [
        f"no rule for parameter {path}" for path in shapes if path not in paths
    ]
    problems += [f"no parameter {path}" for path in paths if path not in shapes]
    for rule in table.rules:
        shape = shapes.get(rule.path)
        if shape and rule.layers is not None and shape[0] != rule.layers:
            problems.append(f"{rule.path} stacks {shape[0]} layers, not {rule.layers}")
    return problems


def _tensor_problems(
    rule: Rule,
    key: str,
    tensor: StoredTensor,
    want: Mapping[str, tuple[int, ...]],
    new_tokens: NewTokens,
) -> list[str]:
    if not _is_float(tensor.dtype):
        return [f"{key} holds {tensor.dtype}, not floating point"]
    shape, asked = tuple(tensor.shape), rule.file_shape(want[rule.path])
    may_grow = new_tokens == "mean" and rule.rows is not None
    if may_grow and shape[1:] == asked[1:] and 0 < shape[0] <= asked[0]:
        return []
    if shape == asked:
        return []
    return [f"{key} is {shape}, the config asks for {asked}"]


def _name_problems(table: Table, names: list[str]) -> list[str]:
    used = {key for rule in table.rules for key in rule.names()}
    problems = [f"missing tensor {key}" for key in sorted(used.difference(names))]
    for name in sorted(set(names) - used - set(table.duplicates)):
        if not any(re.fullmatch(pattern, name) for pattern in table.ignored):
            problems.append(f"unknown tensor {name}")
    return problems


def _is_float(dtype: np.dtype) -> bool:
    # Floats of 8 bits mean nothing without scales that are kept elsewhere.
    return jax.numpy.issubdtype(dtype, jax.numpy.floating) and dtype.itemsize > 1


def same_values(a: StoredTensor, b: StoredTensor) -> bool:
    """Whether two tensors hold the same numbers, whatever types they are stored in."""
    return a.shape == b.shape and np.array_equal(_float32(a), _float32(b))


def _float32(tensor: StoredTensor) -> np.ndarray:
    return np.asarray(tensor[(slice(None),) * len(tensor.shape)]).astype(np.float32)


def _listing(problems: list[str]) -> str:
    return f"{len(problems)} problem(s):" + "".join(f"\n  - {p}" for p in problems)
