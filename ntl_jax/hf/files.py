"""The folders of checkpoints: found or fetched, their tensors opened, written."""

import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ntl_jax.hf.blocks import StoredTensor
from ntl_jax.hf.tensors import FORMATS, find_format
from ntl_jax.hub import fetch

_SAFETENSORS = FORMATS[0]
_METADATA = {"format": "pt"}  # transformers refuses files without it

logger = logging.getLogger(__name__)


def resolve_folder(source: str | Path) -> Path:
    """The local folder of a checkpoint, downloaded if `source` is a hub id.

    Of a hub repository only configs and one format of weights are fetched, and no
    code.

    Raises:
        FileNotFoundError: neither a folder with a config.json nor a reachable hub id.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folder} has no config.json")
        return folder
    try:
        for known in FORMATS:
            folder = fetch(str(source), ["*.json", known.pattern])
            if find_format(folder):
                break
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{str(source)!r} is no local folder, and the Hugging Face hub did not "
            f"give it ({type(error).__name__}); without a network, download the "
            "checkpoint elsewhere and pass its folder"
        ) from error
    return resolve_folder(folder)


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        ValueError: the file holds no JSON, or something else than an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not UTF-8
        raise ValueError(f"{path} is damaged: {error}; fetch it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a JSON object")
    return content


def open_tensors(
    folder: Path, stack: ExitStack
) -> tuple[list[str], Callable[[str], StoredTensor]]:
    """All tensor names of a folder, and a function that finds one by its name.

    Args:
        folder: holds the weights in one of `tensors.FORMATS`, in one file or in shards
            that an index lists.
        stack: keeps the files open for as long as the tensors are needed.

    Raises:
        FileNotFoundError: no weights, or a listed shard is missing.
        ValueError: a file is damaged, or the index and a shard disagree on what the
            shard holds.
    """
    known = find_format(folder)
    if known is None:
        wanted_files = " nor ".join(f.one_file for f in FORMATS)
        raise FileNotFoundError(
            f"{folder} holds no weights: neither {wanted_files}, nor an index of shards"
        )
    wanted = None
    files = {known.one_file}
    if not (folder / known.one_file).is_file():
        wanted = read_json(folder / known.index).get("weight_map")
        if not isinstance(wanted, dict):
            raise ValueError(
                f"{folder / known.index} has no weight_map; fetch it again"
            )
        wanted = {known.name(key): file for key, file in wanted.items()}
        files = set(wanted.values())
    missing = sorted(file for file in files if not (folder / file).is_file())
    if missing:
        raise FileNotFoundError(f"{folder} lacks files that its index lists: {missing}")
    if known is not _SAFETENSORS:
        logger.info("%s holds no safetensors: reading %s", folder, known.pattern)
    held = {file: known.open(folder / file, stack) for file in sorted(files)}
    holder = {name: file for file, tensors in held.items() for name in tensors}
    if wanted is not None and wanted != holder:
        differing = sorted(set(wanted.items()) ^ set(holder.items()))
        raise ValueError(
            f"{folder / known.index} and its files disagree on {differing}"
        )
    return list(holder), lambda name: held[holder[name]][name]


def write_safetensors(
    folder: Path, tensors: dict[str, np.ndarray], max_shard_bytes: int
) -> None:
    """Writes tensors as one file, or as shards with an index, and no stale others."""
    one_file, index_file = _SAFETENSORS.one_file, _SAFETENSORS.index
    for stale in (*folder.glob("model*.safetensors"), folder / index_file):
        stale.unlink(missing_ok=True)
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > max_shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    if len(shards) == 1:
        save_file(tensors, folder / one_file, metadata=_METADATA)
        return
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata=_METADATA)
        weight_map |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / index_file).write_text(json.dumps(index, indent=2) + "\n")
