"""Folders that any JAX program reads: parameters by orbax, the config as JSON.

    FOLDER/config.json    the config's class and fields
    FOLDER/params         an orbax checkpoint of the parameter tree

Shapes and types are in orbax's own metadata, so that a program without `ntl_jax`
restores the tree, onto whatever devices it has.
"""

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from ntl_jax.hf.files import read_json
from ntl_jax.hf.mapping import flatten
from ntl_jax.hf.rules import CheckpointError, Tree
from ntl_jax.models import Config, Params, init_params

_CONFIG, _PARAMS = "config.json", "params"


def is_native(folder: str | Path) -> bool:
    """Whether `write_native` wrote the folder."""
    folder = Path(folder).expanduser()
    return (folder / _CONFIG).is_file() and (folder / _PARAMS).is_dir()


def write_native(folder: str | Path, config: Config, params: Params) -> None:
    """Writes a config and its parameters, of NumPy or spread over devices.

    Args:
        folder: made if it is not there.
        config: the model's config.
        params: its parameters.

    Raises:
        ValueError: parameters lie in the folder already.
    """
    folder = Path(folder).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"class": type(config).__name__, **dataclasses.asdict(config)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / _PARAMS, params)
    (folder / _CONFIG).write_text(json.dumps(fields, indent=2) + "\n")


def read_native(
    folder: str | Path, classes: dict[str, type], *, shardings: Tree | None = None
) -> tuple[Any, Params]:
    """Reads what `write_native` wrote.

    Args:
        folder: of `write_native`.
        classes: the configs that it may hold, by the names of their classes.
        shardings: a tree like the parameters, or None for NumPy arrays on the host.

    Returns:
        The config and the parameters.

    Raises:
        CheckpointError: the parameters are not those of the config.
        ValueError: the config is of no known class, or has other fields than its.
    """
    folder = Path(folder).expanduser().absolute()
    fields = read_json(folder / _CONFIG)
    name = fields.pop("class", None)
    if name not in classes:
        raise ValueError(
            f"{folder / _CONFIG} is of class {name!r}; known are {sorted(classes)}"
        )
    try:
        config = classes[name](**fields)
    except TypeError as error:
        raise ValueError(
            f"{folder / _CONFIG} was written by another version: {error}"
        ) from error
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    with ocp.PyTreeCheckpointer() as checkpointer:
        metadata = checkpointer.metadata(folder / _PARAMS).item_metadata
        if metadata is None:
            raise CheckpointError(
                f"{folder / _PARAMS} is incomplete or damaged; import the checkpoint "
                "again, into a new folder"
            )
        _check_shapes(folder, metadata.tree, shapes)
        how = _restore_args(shapes, shardings)
        params = checkpointer.restore(folder / _PARAMS, restore_args=how)
    return config, params


def _restore_args(shapes: Tree, shardings: Tree | None) -> Tree:
    if shardings is None:
        return jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), shapes)
    return jax.tree.map(
        lambda leaf, sharding: ocp.ArrayRestoreArgs(
            sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype
        ),
        shapes,
        shardings,
    )


def _check_shapes(folder: Path, stored: Tree, shapes: Tree) -> None:
    have = {path: tuple(leaf.shape) for path, leaf in flatten(stored).items()}
    want = {path: tuple(leaf.shape) for path, leaf in flatten(shapes).items()}
    wrong = [
        f"{path} is {have.get(path)}, the config asks for {want.get(path)}"
        for path in sorted(have.keys() | want.keys())
        if have.get(path) != want.get(path)
    ]
    if wrong:
        listing = "".join(f"\n  - {line}" for line in wrong)
        raise CheckpointError(f"{folder}: {len(wrong)} problem(s):{listing}")
