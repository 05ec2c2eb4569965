"""A tokenizer by name: built in, from a folder, or from the Hugging Face hub."""

import importlib.util
import pathlib

from ntl_jax.hub import fetch
from ntl_jax.tokenization.builtin import builtin_tokenizer
from ntl_jax.tokenization.digits import DigitTokenizer
from ntl_jax.tokenization.hugging_face import Tokenizer, from_transformers

_FILES = ["*.json", "*.model", "*.txt", "*.jinja"]
_NAMING = ("tokenizer_config.json", "config.json")
"""Files that name the type of the model."""


def load_tokenizer(name: str, *, split_digits: bool = True) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        name: ``"builtin"``; a local folder (or one with a leading ``~``) that
            `transformers` can read; or a hub id such as ``"google-t5/t5-small"``.
        split_digits: whether numbers become single digits, as the built-in tokenizer's
            always do.

    Returns:
        A tokenizer that ends every encoded text with end-of-sequence.

    Raises:
        ValueError: there is no such folder or hub id, or the hub cannot be reached.
        ImportError: a folder or hub id needs `transformers`, which is not installed.

    Example:
        >>> len(load_tokenizer("builtin"))
        512
    """
    if name == "builtin":
        return builtin_tokenizer()
    folder = pathlib.Path(name).expanduser()
    if not folder.exists():
        if folder.is_absolute() or name.startswith(("~", ".")):
            raise ValueError(f"no tokenizer folder {name!r}; check the path")
        try:
            # AutoTokenizer would retry an unreachable hub twelve times, for a minute,
            # and log each attempt.
            folder = fetch(name, _FILES)
        except (OSError, ValueError) as error:
            raise _cannot_load("hub id", name, error) from error
    if not folder.is_dir():
        raise ValueError(f"{name!r} is a file; name the folder that contains it")
    if not any(map(_is_of_tokenizer, folder.iterdir())):
        raise ValueError(
            f"{name!r} contains no tokenizer (tokenizer.json; or, with a config.json, "
            "spiece.model or vocab.json ...); name a folder or a hub id that does"
        )

    from transformers import AutoTokenizer  # slow to import, and optional

    try:
        base = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    # transformers raises these for files that it cannot load.
    except (OSError, ValueError, KeyError) as error:
        if lacking := _lacking(folder):
            raise ValueError(
                f"{name!r} has no tokenizer.json: {' and '.join(lacking)}, or name a "
                "folder or a hub id that has one"
            ) from error
        raise _cannot_load("folder", name, error) from error
    wrapped = from_transformers(base)
    return DigitTokenizer(wrapped) if split_digits else wrapped


def _cannot_load(place: str, name: str, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return ValueError(
        f"cannot load a tokenizer from the {place} {name!r} ({reason}); name "
        "'builtin', a folder with tokenizer.json and tokenizer_config.json, or an id "
        "that exists on the hub"
    )


def _lacking(folder: pathlib.Path) -> list[str]:
    """Advice on what transformers needs to read a tokenizer without tokenizer.json."""
    if (folder / "tokenizer.json").exists():
        return []
    advice = []
    pieces = next(folder.glob("*.model"), None)
    if not any((folder / name).exists() for name in _NAMING):
        kind = "t5" if pieces else "gpt2"
        advice.append(
            "add the model's config.json, which says how to read the rest (such as "
            f'{{"model_type": "{kind}"}})'
        )
    if pieces and importlib.util.find_spec("sentencepiece") is None:
        advice.append(f"pip install sentencepiece, which reads {pieces.name}")
    return advice


def _is_of_tokenizer(path: pathlib.Path) -> bool:
    """Whether it is a tokenizer's file; transformers reads none as an empty one."""
    return path.suffix == ".model" or path.stem.startswith(("token", "vocab"))
