"""T5-3B on GSM8K, CE + 0.3 NTL-WAS: the paper's largest run, for a slice or a node.

Command:   python -m train gsm8k-t5-3b --init-from google-t5/t5-3b
Hardware:  2,851,598,336 parameters; with AdamW 32 GiB of state in all, so at least one
           GPU of 80 GB, or eight TPU v5e chips: see docs/scaling.md. Parameters
           and optimizer are sharded over all devices.
"""

from ntl_jax.models import T5Config
from train.config import (
    DataConfig,
    EvalConfig,
    LossConfig,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
)

CONFIG = TrainConfig(
    name="gsm8k-t5-3b",
    data=DataConfig(
        name="gsm8k", batch_size=128, max_source_length=512, max_target_length=256
    ),
    model=T5Config.t5_3b(dtype="bfloat16", remat=True),
    loss=LossConfig(was=0.3),
    optimizer=OptimizerConfig(learning_rate=1e-4),
    mesh=MeshConfig(data=1, fsdp=-1),
    evaluation=EvalConfig(batch_size=128, max_new_tokens=256),
    tokenizer="google-t5/t5-3b",
    steps=2000,
    log_every=10,
    checkpoint_every=500,
)
