"""The options of a fused head, checked, and whether its arrays go together."""

import math

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from ntl_jax.kernels.logit_stats.dispatch import AxisName
from ntl_jax.losses.checks import check_floating, check_labels, check_vocab
from ntl_jax.losses.fused.tiles import Backward, Head
from ntl_jax.numbers.vocab import NumberVocab


def make_head(
    vocab: NumberVocab,
    logit_scale: float,
    soft_cap: float | None,
    ignore_index: int,
    tile_tokens: int,
    row_groups: int,
    backward: Backward = "tokens",
    logits_dtype: DTypeLike | None = None,
    axis_name: AxisName = None,
) -> Head:
    """The static options of a head, checked."""
    check_vocab(vocab)
    if soft_cap is not None:
        if not 0 < soft_cap < math.inf:
            raise ValueError(
                f"soft_cap must be positive and finite, or None, not {soft_cap}."
            )
        soft_cap = float(soft_cap)
    if not math.isfinite(logit_scale):
        raise ValueError(f"logit_scale must be finite, not {logit_scale}.")
    for name, value in (("tile_tokens", tile_tokens), ("row_groups", row_groups)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be a Python integer, not {value!r}.")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}.")
    if backward not in ("tokens", "columns"):
        raise ValueError(f"backward must be 'tokens' or 'columns', not {backward!r}.")
    if axis_name is not None and backward == "columns":
        raise ValueError(
            f"backward='columns' slices columns that axis {axis_name!r} shares out: "
            "take backward='tokens'."
        )
    dtype = None if logits_dtype is None else jnp.dtype(logits_dtype)
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"logits_dtype must be floating point, not {dtype}.")
    return Head(
        vocab,
        float(logit_scale),
        soft_cap,
        ignore_index,
        tile_tokens,
        row_groups,
        backward,
        dtype,
        axis_name,
    )


def check_head(
    head: Head, hidden: Array, kernel: Array, labels: Array, bias: Array | None
) -> None:
    """Raises unless dtypes and shapes of a head go together."""
    check_floating("kernel", kernel)
    if bias is not None:
        check_floating("bias", bias)
    check_labels(hidden, labels, name="hidden")
    if kernel.ndim != 2 or kernel.shape[0] != hidden.shape[-1]:
        raise ValueError(
            f"hidden of shape {hidden.shape} asks for a kernel of shape "
            f"[{hidden.shape[-1]}, V], not {list(kernel.shape)}; transpose an "
            "embedding table that is tied to the head."
        )
    if bias is not None and bias.shape != kernel.shape[1:]:
        raise ValueError(
            f"a kernel of shape {kernel.shape} asks for a bias of shape "
            f"{kernel.shape[1:]}, not {bias.shape}."
        )
    head.vocab.check_columns(kernel.shape[1] * head.shards())
    groups = head.row_groups
    if groups > 1 and (labels.ndim < 2 or labels.shape[0] % groups):
        raise ValueError(
            f"row_groups={groups} asks for labels [B, ..., T] with B a multiple of it, "
            f"not of shape {labels.shape}."
        )
