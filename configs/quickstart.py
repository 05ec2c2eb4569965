"""A small T5 learns sums in words, with cross entropy alone and with NTL-WAS added.

Command:   python -m train quickstart
Time:      under 3 minutes on 2 CPU cores
"""

from ntl_jax.models import T5Config
from train.config import (
    DataConfig,
    EvalConfig,
    LossConfig,
    OptimizerConfig,
    TrainConfig,
)

CONFIG = TrainConfig(
    name="quickstart",
    data=DataConfig(
        name="arithmetic",
        train_size=20_000,
        eval_size=500,
        max_operand=49,
        batch_size=64,
        max_source_length=32,
        max_target_length=8,
    ),
    model=T5Config(
        vocab_size=512,
        d_model=64,
        d_kv=16,
        d_ff=256,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        unroll_layers=True,
    ),
    loss=LossConfig(was=0.3),
    optimizer=OptimizerConfig(
        name="adafactor",
        learning_rate=2e-2,
        schedule="cosine",
        warmup_steps=50,
        weight_decay=0.0,
    ),
    evaluation=EvalConfig(batch_size=256, max_new_tokens=8),
    tokenizer="builtin",
    cross_entropy_baseline=True,
    steps=1500,
    log_every=50,
)
