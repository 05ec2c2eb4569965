"""From a loss on NumberStats to the same loss on logits."""

from collections.abc import Callable

from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.losses.reduction import Reduction, reduce_tokens
from ntl_jax.losses.stats import stats_from_logits, stats_of_numbers
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes


@on_auto_axes(labels=2)
def on_logits(
    loss_from_stats: Callable[..., tuple[Array, Array]],
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    reduction: Reduction = None,
    ignore_index: int = -100,
    numbers_only: bool = False,
    **options,
) -> Float32[Array, "..."]:
    """Reads the stats off the logits, takes the loss of each position and reduces.

    Args:
        loss_from_stats: ``loss(stats, labels, vocab, *, weights, ignore_index,
            **options) -> (value, weight)``.
        logits: [*B, V] of any floating dtype; columns from ``vocab.vocab_size`` on are
            padding.
        labels: token ids [*B].
        vocab: the number tokens.
        weights: non-negative weights [*B]; 1 where None.
        reduction: None for the weighted losses [*B], "sum" for their sum, "mean" for
            the sum over the sum of the weights that the loss counts.
        ignore_index: the label that counts nothing.
        numbers_only: whether the loss reads the number logits and nothing else.
        **options: further options of the loss.

    Returns:
        float32, [*B] or a scalar.

    Raises:
        TypeError, ValueError: as `ntl_jax.losses.stats_from_logits` does, and for an
            unknown reduction.
    """
    read = stats_of_numbers if numbers_only else stats_from_logits
    stats = read(logits, labels, vocab, ignore_index=ignore_index)
    value, weight = loss_from_stats(
        stats, labels, vocab, weights=weights, ignore_index=ignore_index, **options
    )
    return reduce_tokens(value, weight, reduction)
