"""A tiny T5 on the mathematics dataset's sums of several terms, with and without NTL.

Command:   python -m train arithmetic-t5-tiny
Offline:   add --data.raw-dir FOLDER, which holds mathematics_dataset/SPLIT/MODULE.txt
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
    name="arithmetic-t5-tiny",
    data=DataConfig(
        name="mathematics",
        modules=("arithmetic__add_sub_multiple",),
        extrapolation_modules=("arithmetic__add_sub_multiple_longer",),
        batch_size=256,
        max_source_length=128,
        max_target_length=16,
    ),
    model=T5Config(
        vocab_size=512,
        d_model=256,
        d_kv=32,
        d_ff=1024,
        num_layers=4,
        num_decoder_layers=4,
        num_heads=8,
        dropout_rate=0.2,
        dtype="bfloat16",
    ),
    loss=LossConfig(was=0.3),
    # AdamW at 1e-4, 3e-4 and 1e-3 did not exceed the best constant answer.
    optimizer=OptimizerConfig(
        name="adafactor",
        learning_rate=2e-2,
        schedule="cosine",
        warmup_steps=500,
        weight_decay=0.1,
    ),
    evaluation=EvalConfig(every=1500, batch_size=1024, max_new_tokens=8),
    tokenizer="builtin",
    cross_entropy_baseline=True,
    steps=9000,
    log_every=100,
    checkpoint_every=3000,
)
