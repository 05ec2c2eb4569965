"""Losses straight from hidden states: the [B, T, V] logits never exist."""

from ntl_jax.losses.fused.objective import (
    objective_from_hidden as objective_from_hidden,
)
from ntl_jax.losses.fused.stats import stats_from_hidden as stats_from_hidden
