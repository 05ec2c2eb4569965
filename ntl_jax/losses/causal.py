"""Labels for models that predict the next token."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from ntl_jax.losses.explicit_axes import takes_explicit_axes
from ntl_jax.losses.positions import check_integers


@takes_explicit_axes
def shift_labels(
    labels: Int[Array, "*B T"], *, ignore_index: int = -100
) -> Int[Array, "*B T"]:
    """Moves labels one step left, so that position t is asked for token t + 1.

    A causal model's logits at t predict token t + 1. Losses here compare logits and
    labels of the same position, as an encoder-decoder model needs it; give them
    ``shift_labels(tokens)`` for a decoder-only model. The last position has nothing to
    predict and is ignored, so the result equals that of ``logits[:, :-1]`` and
    ``labels[:, 1:]`` while shapes stay as they are.

    Args:
        labels: token ids [*B, T].
        ignore_index: what to put at the last position.

    Returns:
        token ids [*B, T], in the dtype of labels.

    Raises:
        TypeError: for labels that are no integers.
        ValueError: for a dtype that cannot hold ``ignore_index``.

    >>> shift_labels(jnp.array([[5, 6, 7]])).tolist()
    [[6, 7, -100]]
    """
    check_integers("labels", labels)
    bounds = jnp.iinfo(labels.dtype)
    if not bounds.min <= ignore_index <= bounds.max:
        raise ValueError(
            f"labels of dtype {labels.dtype} cannot hold ignore_index={ignore_index}: "
            "take labels.astype(jnp.int32)."
        )
    last = jnp.full_like(labels[..., :1], ignore_index)
    return jnp.concatenate([labels[..., 1:], last], axis=-1)
