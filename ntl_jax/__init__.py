"""Number token losses for JAX, and Flax models and tokenizers to train with them.

``import ntl_jax`` loads jax, numpy and jaxtyping, and nothing else. Import the
submodules that need more by name: ``ntl_jax.models``, ``ntl_jax.hf``,
``ntl_jax.tokenization``.
"""

from ntl_jax.losses import NumberSpans as NumberSpans
from ntl_jax.losses import NumberStats as NumberStats
from ntl_jax.losses import Objective as Objective
from ntl_jax.losses import Term as Term
from ntl_jax.losses import cross_entropy as cross_entropy
from ntl_jax.losses import cross_entropy_from_stats as cross_entropy_from_stats
from ntl_jax.losses import digit_weights as digit_weights
from ntl_jax.losses import distances as distances
from ntl_jax.losses import gaussian_cross_entropy as gaussian_cross_entropy
from ntl_jax.losses import (
    gaussian_cross_entropy_from_stats as gaussian_cross_entropy_from_stats,
)
from ntl_jax.losses import gaussian_targets as gaussian_targets
from ntl_jax.losses import ntl_dot_product as ntl_dot_product
from ntl_jax.losses import ntl_dot_product_from_stats as ntl_dot_product_from_stats
from ntl_jax.losses import ntl_huber as ntl_huber
from ntl_jax.losses import ntl_huber_from_stats as ntl_huber_from_stats
from ntl_jax.losses import ntl_mae as ntl_mae
from ntl_jax.losses import ntl_mae_from_stats as ntl_mae_from_stats
from ntl_jax.losses import ntl_mse as ntl_mse
from ntl_jax.losses import ntl_mse_from_stats as ntl_mse_from_stats
from ntl_jax.losses import ntl_optimal_transport as ntl_optimal_transport
from ntl_jax.losses import (
    ntl_optimal_transport_from_stats as ntl_optimal_transport_from_stats,
)
from ntl_jax.losses import ntl_was as ntl_was
from ntl_jax.losses import ntl_was_cdf as ntl_was_cdf
from ntl_jax.losses import ntl_was_cdf_from_stats as ntl_was_cdf_from_stats
from ntl_jax.losses import ntl_was_from_stats as ntl_was_from_stats
from ntl_jax.losses import number_level_loss as number_level_loss
from ntl_jax.losses import number_level_loss_from_stats as number_level_loss_from_stats
from ntl_jax.losses import number_spans as number_spans
from ntl_jax.losses import objective_from_hidden as objective_from_hidden
from ntl_jax.losses import place_weights as place_weights  # its former name
from ntl_jax.losses import predict_numbers as predict_numbers
from ntl_jax.losses import predict_numbers_from_stats as predict_numbers_from_stats
from ntl_jax.losses import shift_labels as shift_labels
from ntl_jax.losses import stats_from_hidden as stats_from_hidden
from ntl_jax.losses import stats_from_logits as stats_from_logits
from ntl_jax.losses import weighted_mean as weighted_mean
from ntl_jax.losses import weighted_sum_and_count as weighted_sum_and_count
from ntl_jax.numbers.vocab import NumberVocab as NumberVocab
