"""Command line: `python -m ntl_jax.hf {import,export,check} CHECKPOINT`.

import   reads a checkpoint strictly and says what it is.
export   reads a checkpoint and writes it as a float32 safetensors folder.
check    compares logits with transformers' PyTorch model on random tokens.
"""

import argparse
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

from ntl_jax.hf import load_checkpoint, save_checkpoint
from ntl_jax.models import (
    Config,
    Params,
    T5Config,
    bind,
    count_parameters,
    shift_right,
)

TOLERANCE = 1e-4  # of the largest logit


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; the exit status."""
    parser = argparse.ArgumentParser("python -m ntl_jax.hf")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("import", "read a checkpoint strictly and say what it is"),
        ("export", "write a checkpoint as a float32 safetensors folder"),
        ("check", "compare logits with transformers' PyTorch model"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("checkpoint", help="a folder or a hub id")
        if name == "export":
            command.add_argument("folder", help="where to write")
    options = parser.parse_args(arguments)
    try:
        config, params = load_checkpoint(options.checkpoint)
        print(f"{options.checkpoint}: {count_parameters(params):,} parameters")
        print(config)
        if options.command == "export":
            save_checkpoint(options.folder, config, params)
            print(f"written to {options.folder}, and read back the same")
        if options.command == "check":
            return _check(options.checkpoint, config, params)
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _check(checkpoint: str, config: Config, params: Params) -> int:
    draw = np.random.default_rng(0)
    input_ids = draw.integers(0, config.vocab_size, (2, 48), dtype=np.int32)
    attention_mask = np.arange(48) < np.array([[48], [29]])
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    if isinstance(config, T5Config):
        labels = draw.integers(0, config.vocab_size, (2, 16), dtype=np.int32)
        inputs["decoder_input_ids"] = np.array(
            shift_right(
                jnp.asarray(labels),
                start_id=config.decoder_start_token_id,
                pad_id=config.pad_token_id,
            )
        )
        compared = np.ones(labels.shape, bool)
    else:
        # Padded on the left; what a padded position predicts is of no meaning.
        inputs["attention_mask"] = compared = attention_mask[:, ::-1].copy()
    ours = np.asarray(_logits(config, params, inputs))[compared]
    theirs = torch_logits(checkpoint, inputs)[compared]
    error = float(np.abs(ours - theirs).max())
    bound = TOLERANCE * float(np.abs(theirs).max())
    verdict = "agree" if error <= bound else "DISAGREE"
    print(f"logits {verdict}: largest difference {error:.2e}, allowed {bound:.2e}")
    return 0 if error <= bound else 1


def _logits(config: Any, params: Params, inputs: dict[str, np.ndarray]):
    return bind(config, params)(**{k: jnp.asarray(v) for k, v in inputs.items()})


def torch_logits(checkpoint: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Logits of transformers' PyTorch model, as a float32 NumPy array.

    Args:
        checkpoint: a folder or a hub id.
        inputs: `input_ids` and `attention_mask`; and `decoder_input_ids`, without
            which the model is taken to be decoder-only, its padding on the left.

    Raises:
        ImportError: PyTorch or transformers is not installed.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ImportError(
            "check compares with PyTorch; pip install torch transformers"
        ) from error
    tensors = {k: torch.from_numpy(v).long() for k, v in inputs.items()}
    if "decoder_input_ids" in inputs:
        kind = transformers.AutoModelForSeq2SeqLM
    else:
        kind = transformers.AutoModelForCausalLM
        # Left to itself, the model would count padding as positions.
        positions = tensors["attention_mask"].cumsum(1) - 1
        tensors["position_ids"] = positions.clamp(min=0)
    model = kind.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        return model.eval()(**tensors).logits.numpy()


if __name__ == "__main__":
    sys.exit(main())
