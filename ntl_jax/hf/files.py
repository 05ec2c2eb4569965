"""The files of a checkpoint: safetensors, whole or in shards, and the hub's folders."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_METADATA = {"format": "pt"}  # transformers refuses files without it


def resolve_folder(source: str | Path) -> Path:
    """The local folder of a checkpoint, downloaded if `source` is a hub id.

    Raises:
        FileNotFoundError: neither a folder with a config.json nor a reachable hub id.
    """
    folder = Path(source)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folder} has no config.json")
        return folder
    try:
        patterns = ["*.json", "*.safetensors"]
        name = huggingface_hub.snapshot_download(str(source), allow_patterns=patterns)
    except (OSError, ValueError) as error:  # the hub's own errors are of these kinds
        raise FileNotFoundError(
            f"{str(source)!r} is no local folder, and the Hugging Face hub did not "
            f"give it ({type(error).__name__}); without a network, download the "
            "checkpoint elsewhere and pass its folder"
        ) from error
    return resolve_folder(Path(name))


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
) -> tuple[list[str], Callable[[str], np.ndarray]]:
    """All tensor names of a folder, and a function that reads one by its name.

    Args:
        folder: holds model.safetensors, or the shards that an index lists.
        stack: keeps the files open for as long as the reader is needed.

    Raises:
        FileNotFoundError: no safetensors, or a listed shard is missing.
        ValueError: a file is damaged, or the index and a shard disagree on what the
            shard holds.
    """
    if (folder / _ONE_FILE).is_file():
        wanted = None
        files = {_ONE_FILE}
    elif (folder / _INDEX).is_file():
        wanted = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(wanted, dict):
            raise ValueError(f"{folder / _INDEX} has no weight_map; fetch it again")
        files = set(wanted.values())
    else:
        raise FileNotFoundError(_no_safetensors(folder))
    missing = sorted(file for file in files if not (folder / file).is_file())
    if missing:
        raise FileNotFoundError(f"{folder} lacks files that its index lists: {missing}")
    opened = {
        file: stack.enter_context(_open_safetensors(folder / file))
        for file in sorted(files)
    }
    held = {file: opened[file].keys() for file in opened}
    holder = {name: file for file, names in held.items() for name in names}
    if wanted is not None and wanted != holder:
        differing = sorted(set(wanted.items()) ^ set(holder.items()))
        raise ValueError(f"{folder / _INDEX} and its files disagree on {differing}")
    return list(holder), lambda name: opened[holder[name]].get_tensor(name)


def _open_safetensors(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise ValueError(
            f"{path} is incomplete or damaged ({error}); fetch it again"
        ) from error


def write_safetensors(
    folder: Path, tensors: dict[str, np.ndarray], max_shard_bytes: int
) -> None:
    """Writes tensors as one file, or as shards with an index, and no stale others."""
    for stale in (*folder.glob("model*.safetensors"), folder / _INDEX):
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
        save_file(tensors, folder / _ONE_FILE, metadata=_METADATA)
        return
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata=_METADATA)
        weight_map |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _no_safetensors(folder: Path) -> str:
    message = f"{folder} holds neither {_ONE_FILE} nor {_INDEX}"
    pickles = sorted(p.name for p in folder.glob("*.bin"))
    if not pickles:
        return message
    return (
        f"{message}, but PyTorch pickles, which are not read here: {pickles}. Convert "
        "them once, where PyTorch is installed, by transformers' AutoModelForSeq2SeqLM "
        f"(T5) or AutoModelForCausalLM (others): .from_pretrained({str(folder)!r})"
        ".save_pretrained(NEW_FOLDER)"
    )
