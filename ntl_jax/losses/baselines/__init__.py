"""Published losses that compete with the number token loss, from their formulas.

All have the form of the other losses here, ``loss(logits, labels, vocab, ...)`` and
``loss_from_stats``. What they are called, and the weight that their authors give them
beside a cross-entropy of weight 1:

================ ======================================= ========================
`digit_entropy`  DEL (arXiv 2605.20369)                  0.01 or 0.1; as run 1.28
`dist2`          DIST2Loss (ICLR 2026)                   0.1
`ntil`           NTIL (ACL 2025)                         0.3, by `ntil_total`
`raft`           RAFT (ICLR 2025), TRACT (ACL 2025)      1, without CE on the score
`smmd`           SMMD (ICML 2026)                        not known
================ ======================================= ========================

Gaussian cross-entropy, `ntl_jax.losses.gaussian_cross_entropy`, takes the place of
cross-entropy.
"""

from ntl_jax.losses.baselines.digit_entropy import digit_entropy as digit_entropy
from ntl_jax.losses.baselines.digit_entropy import (
    digit_entropy_from_stats as digit_entropy_from_stats,
)
from ntl_jax.losses.baselines.dist2 import dist2 as dist2
from ntl_jax.losses.baselines.dist2 import dist2_from_stats as dist2_from_stats
from ntl_jax.losses.baselines.ntil import ntil as ntil
from ntl_jax.losses.baselines.ntil import ntil_from_stats as ntil_from_stats
from ntl_jax.losses.baselines.ntil import ntil_total as ntil_total
from ntl_jax.losses.baselines.raft import raft as raft
from ntl_jax.losses.baselines.raft import (
    raft_cross_entropy_weights as raft_cross_entropy_weights,
)
from ntl_jax.losses.baselines.raft import raft_from_stats as raft_from_stats
from ntl_jax.losses.baselines.raft import score_positions as score_positions
from ntl_jax.losses.baselines.smmd import smmd as smmd
from ntl_jax.losses.baselines.smmd import smmd_from_stats as smmd_from_stats
from ntl_jax.losses.baselines.smmd import smmd_matrix as smmd_matrix
