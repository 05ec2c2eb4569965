"""A Numformer, xVal's encoder, multiplies all numbers of three digits.

Command:   python -m train three-digit-numformer
With the paper's split, in which training shows most test products in the other order:
           add --data.paper-form
With xVal's own masks, of random tokens: add --mask-rate 0.15
Hardware:  one GPU; 85 million parameters in the layers. Not run at this size yet.
Expected:  R2 0.9986 (the paper's figure for xVal, on its own split)

Sizes, optimizer and the logarithm are those of the paper's baseline; the tokenizer is
the built-in one. `three-digit-multiplication` is the T5 to compare with.
"""

from ntl_jax.models import NumformerConfig
from train.config import (
    DataConfig,
    EvalConfig,
    LossConfig,
    OptimizerConfig,
    TrainConfig,
)

CONFIG = TrainConfig(
    name="three-digit-numformer",
    data=DataConfig(
        name="three_digits", batch_size=32, max_source_length=32, max_target_length=8
    ),
    model=NumformerConfig(vocab_size=640, num_id=512),
    head="numformer",
    value_scale="log1p",
    loss=LossConfig(),
    optimizer=OptimizerConfig(learning_rate=1e-4, weight_decay=0.01, clip_norm=None),
    evaluation=EvalConfig(every=10_000, batch_size=1_024),
    steps=1_050_000,
    log_every=1_000,
    checkpoint_every=10_000,
)
