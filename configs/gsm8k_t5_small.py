"""T5-small from scratch on GSM8K, digits split, CE and CE + 0.3 NTL-WAS.

Command:   python -m train gsm8k-t5-small
Offline:   add --tokenizer FOLDER (T5's tokenizer) and --data.raw-dir FOLDER, which
           holds gsm8k/train.jsonl and gsm8k/test.jsonl
Pretrained weights instead: add --init-from google-t5/t5-small
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
    name="gsm8k-t5-small",
    data=DataConfig(name="gsm8k", batch_size=32),
    model=T5Config.small(dtype="bfloat16"),
    loss=LossConfig(was=0.3),
    optimizer=OptimizerConfig(learning_rate=5e-4, schedule="cosine", warmup_steps=200),
    evaluation=EvalConfig(batch_size=256, max_new_tokens=320),
    tokenizer="google-t5/t5-small",
    cross_entropy_baseline=True,
    steps=2000,
    log_every=50,
    checkpoint_every=1000,
)
