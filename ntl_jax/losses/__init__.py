"""Losses that take the values of number tokens into account.

To use one in your own project, build a `NumberVocab` once, on the host, and add the
loss to your objective:

>>> import jax, jax.numpy as jnp
>>> from ntl_jax import NumberVocab
>>> from ntl_jax.losses import cross_entropy, ntl_was
>>> tokens = {"<pad>": 0, "=": 1} | {str(d): d + 2 for d in range(10)}
>>> vocab = NumberVocab.from_mapping(tokens, vocab_size=12)
>>> def loss_fn(logits, labels):
...     ce = cross_entropy(logits, labels, reduction="mean")
...     return ce + 0.3 * ntl_was(logits, labels, vocab, reduction="mean")
>>> labels = jnp.array([[1, 6, -100]])  # "=", "4" and an ignored position
>>> loss, grads = jax.jit(jax.value_and_grad(loss_fn))(jnp.zeros((1, 3, 12)), labels)
>>> print(f"{loss:.3f}", grads.shape)  # log 12 + 0.3 * 2.5
3.235 (1, 3, 12)

With a Hugging Face tokenizer, use ``NumberVocab.from_tokenizer(tokenizer,
vocab_size=...)``, where vocab_size is the number of columns of the model's logits.
``vocab.coverage(tokenizer, texts)`` is the share of your digits that the losses will
see.

Every loss accepts any leading shape and any floating dtype, computes in float32, and
runs under ``jit``, ``vmap``, ``grad`` and ``shard_map``, traced once whatever the
labels contain. Value and gradient are exactly 0 where the label is ignored, has weight
0 or, for the number losses, is not a number. Logits and labels belong to the same
position: for a decoder-only model, shift the labels first with `shift_labels`.

To combine several losses at the cost of one softmax, compute `NumberStats` from the
logits once and pass them to an `Objective`.

`ntl_jax.losses.baselines` has losses from other papers to compare with.
"""

from ntl_jax.losses import distances as distances
from ntl_jax.losses.cross_entropy import cross_entropy as cross_entropy
from ntl_jax.losses.cross_entropy import (
    cross_entropy_from_stats as cross_entropy_from_stats,
)
from ntl_jax.losses.digit_weights import digit_weights as digit_weights
from ntl_jax.losses.dot_product import ntl_dot_product as ntl_dot_product
from ntl_jax.losses.dot_product import (
    ntl_dot_product_from_stats as ntl_dot_product_from_stats,
)
from ntl_jax.losses.dot_product import ntl_huber as ntl_huber
from ntl_jax.losses.dot_product import ntl_huber_from_stats as ntl_huber_from_stats
from ntl_jax.losses.dot_product import ntl_mae as ntl_mae
from ntl_jax.losses.dot_product import ntl_mae_from_stats as ntl_mae_from_stats
from ntl_jax.losses.dot_product import ntl_mse as ntl_mse
from ntl_jax.losses.dot_product import ntl_mse_from_stats as ntl_mse_from_stats
from ntl_jax.losses.fused.objective import (
    objective_from_hidden as objective_from_hidden,
)
from ntl_jax.losses.fused.stats import stats_from_hidden as stats_from_hidden
from ntl_jax.losses.gaussian import gaussian_cross_entropy as gaussian_cross_entropy
from ntl_jax.losses.gaussian import (
    gaussian_cross_entropy_from_stats as gaussian_cross_entropy_from_stats,
)
from ntl_jax.losses.gaussian import gaussian_targets as gaussian_targets
from ntl_jax.losses.number_level import number_level_loss as number_level_loss
from ntl_jax.losses.number_level import (
    number_level_loss_from_stats as number_level_loss_from_stats,
)
from ntl_jax.losses.objective import Objective as Objective
from ntl_jax.losses.optimal_transport import (
    ntl_optimal_transport as ntl_optimal_transport,
)
from ntl_jax.losses.optimal_transport import (
    ntl_optimal_transport_from_stats as ntl_optimal_transport_from_stats,
)
from ntl_jax.losses.predict_numbers import predict_numbers as predict_numbers
from ntl_jax.losses.predict_numbers import (
    predict_numbers_from_stats as predict_numbers_from_stats,
)
from ntl_jax.losses.reduction import Term as Term
from ntl_jax.losses.reduction import weighted_mean as weighted_mean
from ntl_jax.losses.reduction import weighted_sum_and_count as weighted_sum_and_count
from ntl_jax.losses.spans import NumberSpans as NumberSpans
from ntl_jax.losses.spans import number_spans as number_spans
from ntl_jax.losses.stats import NumberStats as NumberStats
from ntl_jax.losses.stats import stats_from_logits as stats_from_logits
from ntl_jax.losses.targets import shift_labels as shift_labels
from ntl_jax.losses.wasserstein import ntl_was as ntl_was
from ntl_jax.losses.wasserstein import ntl_was_cdf as ntl_was_cdf
from ntl_jax.losses.wasserstein import ntl_was_cdf_from_stats as ntl_was_cdf_from_stats
from ntl_jax.losses.wasserstein import ntl_was_from_stats as ntl_was_from_stats

place_weights = digit_weights  # its former name
