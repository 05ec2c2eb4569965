"""Weight files as named tensors: safetensors, Flax's msgpack, PyTorch's pickles.

None of the readers executes code that a file holds. All give tensors by the names that
PyTorch's models have.
"""

import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from flax import serialization
from safetensors import SafetensorError, safe_open

from ntl_jax.hf.blocks import Spans, StoredTensor

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(bool),
}


class Format(NamedTuple):
    """A kind of weight file: one file, or several that an index lists."""

    one_file: str
    index: str
    pattern: str  # of all its files
    open: Callable[[Path, ExitStack], dict[str, StoredTensor]]
    name: Callable[[str], str]  # of a tensor, from its key in the index


class _InSafetensors:
    """A tensor that stays in its file until a part of it is asked for."""

    def __init__(self, path: Path, file: Any, name: str):
        self._path, self._slice = path, file.get_slice(name)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._slice.get_shape())

    @property
    def dtype(self) -> np.dtype:
        stored = self._slice.get_dtype()
        if stored not in _DTYPES:
            raise ValueError(f"{self._path} holds {stored}, which is no known type")
        return _DTYPES[stored]

    def __getitem__(self, index: Spans) -> np.ndarray:
        return self._slice[index if index else ...]


def open_safetensors(path: Path, stack: ExitStack) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, which `stack` keeps open.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        file = stack.enter_context(safe_open(path, framework="numpy"))
    except SafetensorError as error:
        raise ValueError(
            f"{path} is incomplete or damaged ({error}); fetch it again"
        ) from error
    names = file.keys()
    return {name: _InSafetensors(path, file, name) for name in names}


def open_msgpack(path: Path, stack: ExitStack) -> dict[str, StoredTensor]:
    """The tensors of a file that transformers' Flax models wrote; all are read.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        tree = serialization.msgpack_restore(path.read_bytes())
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is incomplete or damaged ({error}); fetch it again"
        ) from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path} holds a {type(tree).__name__}, not named tensors")
    return dict(_named(tree, ""))


def _named(tree: dict, prefix: str) -> Iterator[tuple[str, StoredTensor]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _named(value, f"{prefix}{key}/")
        else:
            is_kernel = key.rpartition("/")[2] == "kernel"
            tensor = np.asarray(value)
            # Flax models keep every kernel the other way round than PyTorch's.
            yield flax_name(prefix + key), tensor.T if is_kernel else tensor


def flax_name(path: str) -> str:
    """PyTorch's name of a parameter of transformers' Flax models.

    >>> flax_name("transformer/h/0/ln_1/scale"), flax_name("shared/embedding")
    ('transformer.h.0.ln_1.weight', 'shared.weight')
    """
    *parents, last = path.split("/")
    last = "weight" if last in ("kernel", "scale", "embedding") else last
    return ".".join([*parents, last])


def open_pickle(path: Path, stack: ExitStack) -> dict[str, StoredTensor]:
    """The tensors of a PyTorch pickle, of which only tensors are unpickled.

    Raises:
        ValueError: PyTorch is not installed, or the file is damaged, or holds more
            than named tensors.
    """
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"{path} is a PyTorch pickle, and reading it needs PyTorch: pip install "
            "torch, or convert it once elsewhere by python -m ntl_jax.hf export "
            f"{path.parent} NEW_FOLDER"
        ) from error
    # What a mapped file holds is read from the disk when it is used.
    in_place = zipfile.is_zipfile(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=in_place)
    except _DAMAGED_PICKLE as error:
        # PyTorch's own message advises to let the file run its code.
        raise ValueError(
            f"{path} is damaged, or holds more than tensors, and no code in it is run "
            f"({type(error).__name__}); fetch it again, or find it as safetensors"
        ) from error
    if not isinstance(state, dict) or not all(map(torch.is_tensor, state.values())):
        raise ValueError(f"{path} holds more than named tensors")
    return {name: _from_torch(tensor.detach()) for name, tensor in state.items()}


def _from_torch(tensor: Any) -> np.ndarray:
    if str(tensor.dtype) != "torch.bfloat16":
        return tensor.numpy()
    import torch

    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


# What PyTorch raises, by trial, for files of which bytes are missing or changed, or
# that are something else, such as the pointers that git keeps instead of large files.
_DAMAGED_PICKLE = (
    pickle.UnpicklingError,
    struct.error,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)

FLAX = Format(
    "flax_model.msgpack",
    "flax_model.msgpack.index.json",
    "flax_model*.msgpack",
    open_msgpack,
    flax_name,
)
FORMATS = (
    Format(
        "model.safetensors",
        "model.safetensors.index.json",
        "*.safetensors",
        open_safetensors,
        str,
    ),
    FLAX,
    Format(
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "pytorch_model*.bin",
        open_pickle,
        str,
    ),
)
"""In the order in which they are looked for: those first that need no PyTorch."""


def find_format(folder: Path) -> Format | None:
    """The first format that a folder has the weights in."""
    for known in FORMATS:
        if any((folder / name).is_file() for name in (known.one_file, known.index)):
            return known
    return None
