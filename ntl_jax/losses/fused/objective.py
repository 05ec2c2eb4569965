"""An Objective straight from hidden states, its gradient made on the way forward."""

from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int

from ntl_jax.kernels.logit_stats.dispatch import AxisName
from ntl_jax.losses.checks import scalar
from ntl_jax.losses.fused import tiles
from ntl_jax.losses.fused.gradients import GroupedGradients, add_number_gradients
from ntl_jax.losses.fused.head import check_head, make_head
from ntl_jax.losses.fused.stats import cast_gradients, read_sums
from ntl_jax.losses.fused.tiles import Head, LogitSums
from ntl_jax.losses.objective import Objective
from ntl_jax.losses.reduction import Term
from ntl_jax.losses.stats import NumberStats
from ntl_jax.losses.targets import clip_labels
from ntl_jax.numbers.vocab import NumberVocab
from ntl_jax.sharding.auto_axes import on_auto_axes


@on_auto_axes(labels=3)
def objective_from_hidden(
    objective: Objective,
    hidden: Float[Array, "*B D"],
    kernel: Float[Array, "D V"],
    labels: Int[Array, "*B"],
    vocab: NumberVocab,
    *,
    weights: Float[Array, "*B"] | Bool[Array, "*B"] | None = None,
    segment_ids: Int[Array, "*B"] | None = None,
    counts: dict[str, Float32[Array, ""]] | None = None,
    bias: Float[Array, "V"] | None = None,
    logit_scale: float = 1.0,
    soft_cap: float | None = None,
    tile_tokens: int = 4096,
    row_groups: int = 1,
    logits_dtype: DTypeLike | None = None,
    axis_name: AxisName = None,
) -> tuple[Float32[Array, ""], dict[str, Term]]:
    """The objective of a head's logits, which never exist all at once.

    total = sum_i c_i (sum of loss i) / (count of loss i), as `Objective.total` has it

    The number logits are computed first. What is left of the losses then needs only
    the lse, the label's logit and the sum of the logits of each position, so a tile of
    tokens is pushed forward and pulled back before the next one: three matrix products
    in all, like the dense path, where `stats_from_hidden` has four. Without a gradient
    there is one.

    This asks that, given all number logits, the gradient by the lse, label logit and
    logit sum of a position depends on those of no other: true of every loss of an
    Objective, those of whole numbers included.

    Args:
        objective: what to minimise. Its ``ignore_index`` holds.
        hidden: [*B, D] of any floating dtype.
        kernel: [D, V]; columns from ``vocab.vocab_size`` on are padding.
        labels: token ids [*B].
        vocab: the number tokens.
        weights: non-negative weights [*B]; 1 where None.
        segment_ids: [*B], where rows are packed: numbers end with their segment.
        counts: what `Objective.counts` returns for the whole step, where this is a part
            of it: a micro-batch or a device.
        bias, logit_scale, soft_cap: as in `stats_from_hidden`.
        tile_tokens, row_groups, logits_dtype, axis_name: as there.

    Returns:
        (total, terms): a float32 scalar, with gradients for all floating arrays, in
        their dtypes; and ``{name: Term(sum, count)}`` of these positions, without
        gradient.

    Raises:
        TypeError, ValueError: as `stats_from_hidden` does.

    >>> digits = {str(i): i for i in range(10)} | {"a": 10}
    >>> vocab = NumberVocab.from_mapping(digits, vocab_size=11)
    >>> hidden, kernel = jnp.ones((1, 3, 8)), jnp.zeros((8, 11))
    >>> labels = jnp.array([[4, 10, -100]])
    >>> total, terms = objective_from_hidden(
    ...     Objective(ce=1.0, was=0.3), hidden, kernel, labels, vocab
    ... )
    >>> round(float(total), 3), float(terms["was"].count)  # log 11 + 0.3 * 2.5
    (3.148, 1.0)
    """
    if not isinstance(objective, Objective):
        raise TypeError(
            f"objective must be an Objective, not {type(objective).__name__}: "
            "Objective(ce=1.0, was=0.3), say."
        )
    ignore_index = objective.ignore_index
    head = make_head(
        vocab,
        logit_scale,
        soft_cap,
        ignore_index,
        tile_tokens,
        row_groups,
        logits_dtype=logits_dtype,
        axis_name=axis_name,
    )
    check_head(head, hidden, kernel, labels, bias)
    if hidden.ndim == 1:  # a single position
        hidden, labels = hidden[None], labels[None]
        weights = None if weights is None else jnp.asarray(weights)[None]
        segment_ids = None if segment_ids is None else segment_ids[None]
    if weights is not None:
        weights = jnp.asarray(weights).astype(jnp.float32)
    if counts is None:
        counts = objective.counts(labels, vocab, weights, segment_ids)
    counts = {name: scalar(f"counts[{name!r}]", x) for name, x in counts.items()}
    objective = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), objective)
    objective, kernel, bias, weights, counts = tiles.vary_like(
        (objective, kernel, bias, weights, counts), hidden
    )
    result = _fused_total(
        head, objective, hidden, kernel, bias, labels, weights, segment_ids, counts
    )
    total, terms = cast(tuple[Array, dict[str, Term]], result)
    return total, jax.lax.stop_gradient(terms)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused_total(
    head: Head, objective, hidden, kernel, bias, labels, weights, segment_ids, counts
):
    ids = clip_labels(labels, head.vocab.vocab_size, ignore_index=head.ignore_index)
    sums = read_sums(head, hidden, kernel, bias, ids)
    stats = sums.stats(tiles.number_logits_of(head, hidden, kernel, bias))
    terms = objective(
        stats, labels, head.vocab, weights=weights, segment_ids=segment_ids
    )
    return objective.total(terms, counts), terms


# As in `fused`: else each call outside of `jit` would compile its scan.
@partial(jax.jit, static_argnums=0, inline=True)
def _forward(
    head: Head, objective, hidden, kernel, bias, labels, weights, segment_ids, counts
):
    numbers = tiles.number_logits_of(head, hidden, kernel, bias)

    def total(stats, objective, weights, counts):
        terms = objective(
            stats, labels, head.vocab, weights=weights, segment_ids=segment_ids
        )
        return objective.total(terms, counts), terms

    def total_of_stats(stats):
        return total(stats, objective, weights, counts)[0]

    sums, d_hidden, gradients = _pull_tiles(
        head, total_of_stats, hidden, kernel, bias, labels, numbers
    )
    value, pull, terms = jax.vjp(
        total, sums.stats(numbers), objective, weights, counts, has_aux=True
    )
    d_stats, d_objective, d_weights, d_counts = pull(jnp.ones_like(value))
    d_hidden, gradients = add_number_gradients(
        head, d_hidden, gradients, hidden, kernel, numbers, d_stats.number_logits
    )
    d_kernel, d_bias = cast_gradients(gradients, kernel, bias)
    of_inputs = d_objective, d_hidden, d_kernel, d_bias, None, d_weights, None, d_counts
    return (value, terms), of_inputs


def _pull_tiles(head: Head, total_of_stats, hidden, kernel, bias, labels, numbers):
    """The sums of all tokens, and the gradients that go through the tiles."""
    axis, length = labels.ndim - 1, labels.shape[-1]
    tiling = head.tiling(labels.shape)
    columns = kernel.shape[1]
    kernel, bias = tiles.aligned(head, kernel, bias, hidden.dtype)
    ids = clip_labels(labels, head.vocab.vocab_size, ignore_index=head.ignore_index)
    cotangent_of = _tile_cotangent(total_of_stats, numbers, tiling)

    def push_and_pull(gradients, tile):
        i, h, y = tile
        z = tiles.logits_of(head, h, kernel, bias)
        sums = tiles.sums_of(head, z, y)
        cotangent = cotangent_of(sums, i)
        grad = tiles.gradient_of(head, z, y, sums, cotangent)
        live = tiles.is_live(cotangent)[..., None]
        h = jnp.where(live, h, jnp.zeros((), h.dtype))
        d_hidden = tiles.hidden_gradient(grad, kernel).astype(h.dtype)
        return gradients.add(h, grad), (sums, d_hidden)

    h, y = jax.tree.map(lambda x: tiles.split(x, tiling, axis), (hidden, ids))
    start = GroupedGradients.zeros(head, kernel, bias, kernel)
    order = jnp.arange(tiling[0], dtype=jnp.int32)
    gradients, outputs = jax.lax.scan(push_and_pull, start, (order, h, y))
    sums, d_hidden = jax.tree.map(lambda x: tiles.join(x, length, axis), outputs)
    return sums, d_hidden, gradients.summed(columns)


def _tile_cotangent(total_of_stats, numbers, tiling):
    """A function from the sums of tile i to the cotangent of their NumberStats.

    The gradient of the objective with this tile's log sum, label logit and logit sum
    filled in. What stands for those of other tiles does not matter, as long as it is
    finite.
    """
    axis, length = numbers.ndim - 2, numbers.shape[-2]
    highest = jnp.max(numbers, axis=-1)  # the least that top can be
    elsewhere = jnp.full_like(highest, jnp.log(numbers.shape[-1]))

    def cotangent_of(sums: LogitSums, i) -> NumberStats:
        start = i * tiling[1]

        def fill(whole, part):
            whole = tiles.lengthen(whole, tiling, axis)
            whole = jax.lax.dynamic_update_slice_in_dim(whole, part, start, axis)
            return jax.lax.slice_in_dim(whole, 0, length, axis=axis)

        def cut(whole):
            whole = tiles.lengthen(whole, tiling, axis)
            return jax.lax.dynamic_slice_in_dim(whole, start, tiling[1], axis)

        nothing, top = jnp.zeros_like(highest), fill(highest, sums.top)
        stats = NumberStats(
            fill(elsewhere, sums.log_sum),
            fill(nothing, sums.label_logit),
            numbers - top[..., None],
            fill(nothing, sums.logit_sum),
            top,
        )
        gradient = jax.grad(total_of_stats)(stats)
        gradient = gradient._replace(number_logits=None, top=None)
        return jax.tree.map(cut, gradient)

    return cotangent_of


def _backward(head: Head, of_inputs, cotangents):
    of_total, _ = cotangents

    def scale(gradient):
        return (gradient.astype(jnp.float32) * of_total).astype(gradient.dtype)

    return jax.tree.map(scale, of_inputs)


_fused_total.defvjp(_forward, _backward)
