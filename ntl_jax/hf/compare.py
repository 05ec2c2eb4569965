"""Logits of a checkpoint here and in transformers' PyTorch model, on random tokens."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntl_jax.models import (
    Config,
    Params,
    bind,
    family_of,
    shift_right,
)

TOLERANCE = 1e-4
"""Of the largest logit: what float32 may differ by."""


def differences(checkpoint: str, config: Config, params: Params) -> tuple[float, float]:
    """The largest difference of two logits, and the largest logit, of real tokens.

    Both in float32, all of its digits in products too.

    Args:
        checkpoint: a Hugging Face folder or hub id, for PyTorch.
        config: what was read from it here.
        params: its parameters.

    Raises:
        ImportError: PyTorch or transformers is not installed.
        ValueError: transformers has no language model of the config's kind.
    """
    if config.head != "lm" or not family_of(config).in_transformers:
        raise ValueError(
            f"check compares logits with transformers' language models; {checkpoint} "
            f"holds a {type(config).__name__}"
        )
    inputs, compared = _inputs(config)
    model: Any = bind(config, params)
    # By default GPUs and TPUs round the factors of float32 products.
    with jax.default_matmul_precision("highest"):
        ours = np.asarray(model(**{k: jnp.asarray(v) for k, v in inputs.items()}))
    # Columns of padding are in no file.
    ours = ours[compared][:, : config.vocab_size]
    theirs = torch_logits(checkpoint, inputs)[compared]
    if ours.shape != theirs.shape:
        raise ValueError(
            f"logits are {ours.shape} here and {theirs.shape} in PyTorch: another model"
        )
    return float(np.abs(ours - theirs).max()), float(np.abs(theirs).max())


def _inputs(config: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Two rows, one of them padded, and which of the places compare."""
    draw = np.random.default_rng(0)
    length = min(48, config.longest_row or 48)
    input_ids = draw.integers(0, config.vocab_size, (2, length), dtype=np.int32)
    attention_mask = np.arange(length) < np.array([[length], [length * 3 // 5]])
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    if config.decoder_only:
        # Padded on the left; what a padded position predicts is of no meaning.
        inputs["attention_mask"] = compared = attention_mask[:, ::-1].copy()
        return inputs, compared
    labels = draw.integers(0, config.vocab_size, (2, 16), dtype=np.int32)
    shifted = shift_right(
        jnp.asarray(labels),
        start_id=config.decoder_start_token_id,
        pad_id=config.pad_token_id,
    )
    return inputs | {"decoder_input_ids": np.array(shifted)}, np.ones((2, 16), bool)


def torch_logits(checkpoint: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Logits of transformers' PyTorch model, as a float32 NumPy array.

    Args:
        checkpoint: a folder or a hub id; code that it holds is not run.
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
    model = kind.from_pretrained(
        checkpoint, dtype=torch.float32, trust_remote_code=False
    )
    with torch.no_grad():
        return model.eval()(**tensors).logits.numpy()
