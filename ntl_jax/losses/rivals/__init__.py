"""Published losses that compete with the number token loss, from their formulas.

All have the form of the other losses here, ``loss(logits, labels, vocab, ...)`` and
``loss_from_stats``; each says what it is added to and with which weight.
"""

from ntl_jax.losses.rivals.digit_entropy import digit_entropy as digit_entropy
from ntl_jax.losses.rivals.digit_entropy import (
    digit_entropy_from_stats as digit_entropy_from_stats,
)
from ntl_jax.losses.rivals.dist2 import dist2 as dist2
from ntl_jax.losses.rivals.dist2 import dist2_from_stats as dist2_from_stats
from ntl_jax.losses.rivals.ntil import ntil as ntil
from ntl_jax.losses.rivals.ntil import ntil_from_stats as ntil_from_stats
from ntl_jax.losses.rivals.ntil import ntil_total as ntil_total
from ntl_jax.losses.rivals.raft import raft as raft
from ntl_jax.losses.rivals.raft import (
    raft_cross_entropy_weights as raft_cross_entropy_weights,
)
from ntl_jax.losses.rivals.raft import raft_from_stats as raft_from_stats
from ntl_jax.losses.rivals.raft import score_positions as score_positions
from ntl_jax.losses.rivals.smmd import smmd as smmd
from ntl_jax.losses.rivals.smmd import smmd_from_stats as smmd_from_stats
from ntl_jax.losses.rivals.smmd import smmd_matrix as smmd_matrix
