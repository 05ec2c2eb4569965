"""Command line: `python -m ntl_jax.hf {import,export,check} CHECKPOINT ...`.

import CHECKPOINT [FOLDER]   reads a Hugging Face checkpoint strictly, says what it is,
                             and writes it for JAX: orbax parameters and a config
export CHECKPOINT FOLDER     writes a float32 safetensors folder, from what import wrote
                             or from any Hugging Face checkpoint (such as old pickles)
check CHECKPOINT             compares logits with transformers' PyTorch model

A tokenizer's files in CHECKPOINT go along. What exists is never overwritten.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ntl_jax.hf import read_any, save_checkpoint
from ntl_jax.hf.compare import TOLERANCE, differences
from ntl_jax.hf.files import resolve_folder
from ntl_jax.hf.native import is_native, write_native
from ntl_jax.hf.tensors import FLAX, find_format
from ntl_jax.models import count_parameters

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        source = options.checkpoint
        if options.command == "check" and is_native(source):
            raise ValueError(_export_first(source))
        folder = getattr(options, "folder", None)
        if folder is not None:
            _refuse_to_overwrite(Path(folder))
        given = Path(source) if is_native(source) else resolve_folder(source)
        if options.command == "check" and find_format(given) is FLAX:
            raise ValueError(_export_first(source))
        config, params = read_any(given)
        print(f"{source}: {count_parameters(params, config):,} parameters")
        print(config)
        if options.command == "check":
            return _check(source, config, params)
        if folder is not None:
            write = save_checkpoint if options.command == "export" else write_native
            write(folder, config, params)
            copied = _copy_tokenizer(given, Path(folder))
            print(f"written to {folder}", *(["with its tokenizer"] if copied else []))
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m ntl_jax.hf",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("import", "read a checkpoint strictly, and write it for JAX programs"),
        ("export", "write a checkpoint as a float32 safetensors folder"),
        ("check", "compare logits with transformers' PyTorch model"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("checkpoint", help="a folder or a hub id")
        if name != "check":
            optional = "?" if name == "import" else None
            command.add_argument("folder", nargs=optional, help="where to write")
    return parser


def _export_first(source: str) -> str:
    return f"export {source} first: PyTorch cannot read it"


def _refuse_to_overwrite(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"{folder} is a file or is not empty; name a new folder")


def _copy_tokenizer(source: Path, folder: Path) -> list[str]:
    found = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in found:
        shutil.copy(source / name, folder / name)
    return found


def _check(checkpoint: str, config: Any, params: Any) -> int:
    error, scale = differences(checkpoint, config, params)
    bound = TOLERANCE * scale
    agree = error <= bound and np.isfinite(error)
    print(
        f"logits {'agree' if agree else 'DISAGREE'}: largest difference {error:.2e}, "
        f"allowed {bound:.2e}"
    )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
