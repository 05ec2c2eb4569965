"""Hugging Face checkpoints as configs and parameter trees, and back.

`load_checkpoint` reads a folder or a hub id, in one go or as `load_config` and
`load_params`, which can read straight into the shards of many devices;
`save_checkpoint` writes a folder that transformers opens. None runs a checkpoint's
code, and only PyTorch's own pickles need PyTorch.
"""

import json
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from ntl_jax.hf.blocks import StoredTensor
from ntl_jax.hf.files import open_tensors, read_json, resolve_folder, write_safetensors
from ntl_jax.hf.mapping import read_params, write_tensors
from ntl_jax.hf.rules import CheckpointError as CheckpointError
from ntl_jax.hf.rules import NewTokens, Tree
from ntl_jax.models import FAMILIES, AnyConfig, Params, init_params

_TABLES: dict[type, ModuleType] = {
    family.config: import_module(f"ntl_jax.hf.{family.table}")
    for family in FAMILIES
    if family.table is not None
}
"""What reads and writes a family's checkpoints, by the class of its config."""
_BY_NAME = {name: table for table in _TABLES.values() for name in table.NAMES}
"""By a config.json's model_type or, before it, its architecture."""


def load_checkpoint(
    source: str | Path,
    *,
    dtype: str = "float32",
    new_tokens: NewTokens = "refuse",
    **changes: Any,
) -> tuple[Any, Params]:
    """Reads a checkpoint from a folder or from the Hugging Face hub.

    Args:
        source: a folder with config.json and weights (safetensors, else Flax's msgpack,
            else PyTorch's pickles; in one file, or several with their index), or a
            hub id such as "google-t5/t5-small".
        dtype: what the model computes in, "float32" or "bfloat16".
        new_tokens: see `load_params`; for a larger `vocab_size` among the changes.
        **changes: config fields to set otherwise, such as `dropout_rate=0.0`.

    Returns:
        The config, of the class that the checkpoint's kind of model has, and the
        parameters as float32 NumPy arrays on the host, whatever type they are stored
        in.

    Raises:
        FileNotFoundError: there is no such folder, hub repository or file.
        CheckpointError: tensors and config disagree; every problem is listed.
        ValueError: the model's kind, or a field of its config, is not known.
    """
    folder = resolve_folder(source)
    config = load_config(folder, dtype=dtype, **changes)
    return config, load_params(folder, config, new_tokens=new_tokens)


def load_config(source: str | Path, *, dtype: str = "float32", **changes: Any) -> Any:
    """A checkpoint's config alone; arguments, result and errors as `load_checkpoint`.

    The names of the weights are looked at too: T5's say whether its head is tied.
    """
    folder = resolve_folder(source)
    raw = read_json(folder / "config.json")
    table = None
    for name in (raw.get("model_type"), *(raw.get("architectures") or ())):
        table = _BY_NAME.get(name, table)
    if table is None:
        raise ValueError(
            f"{folder / 'config.json'} has model_type {raw.get('model_type')!r}; "
            f"readable are {sorted(_BY_NAME)}"
        )
    with ExitStack() as stack:
        names, read = open_tensors(folder, stack)
        return table.read_config(raw, names, read, dtype=dtype, **changes)


def load_params(
    source: str | Path,
    config: AnyConfig,
    *,
    shardings: Tree | None = None,
    new_tokens: NewTokens = "refuse",
) -> Params:
    """A checkpoint's parameters for a config that `load_config` gave.

    Args:
        source: as in `load_checkpoint`.
        config: `vocab_size` may have been raised and `vocab_rows` set since.
        shardings: a `NamedSharding` for each parameter, see
            `ntl_jax.sharding.param_shardings`; None reads to the host.
        new_tokens: what becomes of tokens that the config has and the file has not:
            "refuse", or "mean", which gives each the mean of the file's rows, in the
            table and in the head. Zeros would make them the likeliest tokens of a
            model whose logits are all negative.

    Returns:
        A tree of float32 NumPy arrays; with `shardings`, of arrays spread over
        devices, each of which holds its own shards only: shards are cut out of the
        file, and the host holds one parameter at a time.

    Raises:
        FileNotFoundError: there is no such folder, hub repository or file.
        CheckpointError: tensors and config disagree; every problem is listed.
    """
    folder = resolve_folder(source)
    table = _table_of(config).table(config)
    with ExitStack() as stack:
        names, read = open_tensors(folder, stack)
        try:
            params = read_params(
                table,
                names,
                read,
                _shapes(config),
                shardings=shardings,
                new_tokens=new_tokens,
            )
        except CheckpointError as error:
            raise CheckpointError(f"cannot load {folder}: {error}") from None
    return params


def _table_of(config: AnyConfig) -> ModuleType:
    if type(config) not in _TABLES:
        kind = type(config).__name__
        raise ValueError(f"Hugging Face has no format for the model of a {kind}")
    return _TABLES[type(config)]


def _shapes(config: AnyConfig) -> Tree:
    return jax.eval_shape(partial(init_params, config), jax.random.key(0))


def read_any(source: str | Path) -> tuple[Any, Params]:
    """Config and parameters of a Hugging Face checkpoint, or of `native.write_native`.

    Raises as `load_checkpoint` and `native.read_native` do.
    """
    from ntl_jax.hf.native import is_native, read_native  # orbax is slow to import

    if is_native(source):
        return read_native(source, {c.__name__: c for c in _TABLES})
    return load_checkpoint(source)


def save_checkpoint(
    folder: str | Path,
    config: AnyConfig,
    params: Params,
    *,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes a folder that transformers' `from_pretrained` opens.

    Args:
        folder: made if it is not there.
        config: the model's config.
        params: its parameters; arrays spread over devices are gathered one by one.
        max_shard_bytes: start another safetensors file beyond this size.

    Raises:
        CheckpointError: parameters and config disagree; every problem is listed.
        ValueError: the config has no form in Hugging Face's.
        OSError: what was written does not read back the same.
    """
    table = _table_of(config)
    raw = table.write_config(config)
    tensors = write_tensors(table.table(config), params, _shapes(config))
    tensors |= table.written_copies(config, tensors)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    write_safetensors(folder, tensors, max_shard_bytes)
    _check_written(folder, tensors)


def _check_written(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    with ExitStack() as stack:
        names, read = open_tensors(folder, stack)
        wrong = sorted(set(names) ^ set(tensors))
        wrong += [n for n in tensors if n in names and not _same(read(n), tensors[n])]
    if wrong:
        raise OSError(f"{folder} does not read back as it was written: {wrong}")


def _same(stored: StoredTensor, tensor: np.ndarray) -> bool:
    if stored.dtype != tensor.dtype or stored.shape != tensor.shape:
        return False
    return stored[(slice(None),) * tensor.ndim].tobytes() == tensor.tobytes()
