"""Token ids cached on disk, so that data is tokenised once and not in every run.

Their key is a hash of all that they depend on: every question and answer, the
tokenizer's files, and the settings.
"""

import hashlib
import json
import logging
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Sequence

import numpy as np

from ntl_jax.tokenization.hugging_face import Tokenizer
from train.data.files import DataError
from train.data.rows import Row

_FORMAT = 1  # raise it when the same rows become other ids
_ROWS_AT_ONCE = 8192
_PROBE = "0123456789 1,234.5 -6 x = 7%"  # whether digits are split is in no file

Arrays = dict[str, np.ndarray]
logger = logging.getLogger("train")


def cached(
    folder: str | pathlib.Path,
    rows: Sequence[Row],
    tokenizer: Tokenizer,
    settings: dict[str, object],
    make: Callable[[], Arrays],
    names: Sequence[str],
) -> Arrays:
    """What `make` returns, or what the folder has of an earlier run.

    Args:
        folder: on this machine; created if it is missing.
        rows: all questions and answers.
        tokenizer: that encodes them.
        settings: whatever else the arrays depend on, as JSON.
        make: computes the arrays.
        names: of the arrays.

    Returns:
        The arrays by name; those on disk are memory-mapped.

    Raises:
        DataError: the folder cannot be created. A failure to write is only a warning.
    """
    folder = pathlib.Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"--token-cache {folder} cannot be used ({error.strerror}): name a folder."
        ) from error
    place = folder / _key(rows, tokenizer, settings)
    found = _read(place, names)
    if found is not None:
        logger.info("%s rows: token ids from %s", f"{len(rows):,}", place)
        return found
    arrays = make()
    _write(place, arrays)
    return arrays


def _key(rows: Sequence[Row], tokenizer: Tokenizer, settings: dict[str, object]) -> str:
    digest = hashlib.sha256(json.dumps([_FORMAT, settings], sort_keys=True).encode())
    kind, probe = type(tokenizer).__qualname__, tokenizer.encode(_PROBE)
    digest.update(json.dumps([kind, probe]).encode())
    with tempfile.TemporaryDirectory() as name:
        tokenizer.save(name)
        for path in sorted(pathlib.Path(name).rglob("*")):
            if path.is_file():
                digest.update(
                    path.name.encode() + hashlib.sha256(path.read_bytes()).digest()
                )
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        chunk = rows[start : start + _ROWS_AT_ONCE]
        texts = [[row["question"], row["answer"]] for row in chunk]
        digest.update(json.dumps(texts).encode())
    return digest.hexdigest()[:32]


def _read(place: pathlib.Path, names: Sequence[str]) -> Arrays | None:
    """The arrays of a finished folder; None, with a warning, if they are damaged."""
    if not place.is_dir():
        return None
    try:
        return {name: np.load(place / f"{name}.npy", mmap_mode="r") for name in names}
    except (OSError, ValueError) as error:
        logger.warning("%s is damaged (%s): tokenising instead", place, error)
        shutil.rmtree(place)
        return None


def _write(place: pathlib.Path, arrays: Arrays) -> None:
    """Writes atomically: the folder is renamed once all files are written."""
    unfinished = pathlib.Path(tempfile.mkdtemp(prefix="unfinished-", dir=place.parent))
    try:
        for name, array in arrays.items():
            np.save(unfinished / f"{name}.npy", array)
        unfinished.rename(place)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not place.is_dir():  # another process may have been faster
            logger.warning(
                "the token ids cannot be kept in %s (%s): the next run tokenises "
                "instead",
                place,
                error.strerror,
            )
