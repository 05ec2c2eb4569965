"""Hugging Face checkpoints as configs and parameter trees, and back.

`load_checkpoint` reads a folder or a hub id, `save_checkpoint` writes a folder that
transformers opens. Neither needs PyTorch.
"""

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from ntl_jax.hf import gpt2, granite, t5
from ntl_jax.hf.files import (
    open_tensors,
    read_json,
    resolve_folder,
    write_safetensors,
)
from ntl_jax.hf.mapping import CheckpointError as CheckpointError
from ntl_jax.hf.mapping import read_params, write_tensors
from ntl_jax.models import (
    Config,
    GPT2Config,
    GraniteConfig,
    Params,
    T5Config,
    init_params,
)

# By config.json's model_type, and by the config's class.
_FAMILIES: dict[str, ModuleType] = {
    "gpt2": gpt2,
    "granite": granite,
    "granitemoe": granite,
    "t5": t5,
}
_FAMILY_OF_CONFIG: dict[type, ModuleType] = {
    GPT2Config: gpt2,
    GraniteConfig: granite,
    T5Config: t5,
}


def load_checkpoint(
    source: str | Path, *, dtype: str = "float32", **changes: Any
) -> tuple[Any, Params]:
    """Reads a checkpoint from a folder or from the Hugging Face hub.

    Args:
        source: a folder with config.json and safetensors files (one, or several with
            their index), or a hub id such as "google-t5/t5-small".
        dtype: what the model computes in, "float32" or "bfloat16".
        **changes: config fields to set otherwise, such as `dropout_rate=0.0`.

    Returns:
        The config, of the class that the checkpoint's kind of model has, and the
        parameters as float32 NumPy arrays on the host, whatever
        type they are stored in. `jax.device_put(params, shardings)` spreads them.

    Raises:
        FileNotFoundError: there is no such folder, hub repository or file.
        CheckpointError: tensors and config disagree; every problem is listed.
        ValueError: the model's kind, or a field of its config, is not known.
    """
    folder = resolve_folder(source)
    raw = read_json(folder / "config.json")
    family = _FAMILIES.get(raw.get("model_type", ""))
    if family is None:
        raise ValueError(
            f"{folder / 'config.json'} has model_type {raw.get('model_type')!r}; "
            f"readable are {sorted(_FAMILIES)}"
        )
    with ExitStack() as stack:
        names, read = open_tensors(folder, stack)
        config = family.read_config(raw, names, read, dtype=dtype, **changes)
        shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
        try:
            params = read_params(family.table(config), names, read, shapes)
        except CheckpointError as error:
            raise CheckpointError(f"cannot load {folder}: {error}") from None
    return config, params


def save_checkpoint(
    folder: str | Path,
    config: Config,
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
    family = _FAMILY_OF_CONFIG[type(config)]
    raw = family.write_config(config)
    tensors = write_tensors(family.table(config), params)
    tensors |= family.written_copies(config, tensors)
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


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
