"""The paper's word problems: T5-3B on 85% of GSM8K's training set, CE + 0.3 NTL-WAS.

Command:   python -m train paper-gsm8k
Offline:   add --init-from FOLDER (T5-3B) and --data.raw-dir FOLDER, which holds
           gsm8k/train.jsonl and gsm8k/test.jsonl
With the numbers that the paper's clean-up damaged: add --data.paper-form
Which step: the paper's code keeps the one with the lowest evaluation loss, a run here
           the last one: see evaluation/validation in metrics.jsonl, and set --steps
"""

import dataclasses

from configs.paper_arithmetic import CONFIG as ARITHMETIC
from ntl_jax.models import T5Config
from train.config import DataConfig, EvalConfig

CONFIG = dataclasses.replace(
    ARITHMETIC,
    name="paper-gsm8k",
    data=DataConfig(name="gsm8k", validation_fraction=0.15, batch_size=32),
    model=T5Config.t5_3b(),
    evaluation=EvalConfig(every=25_000, batch_size=64, max_new_tokens=328, beams=4),
    init_from="google-t5/t5-3b",
)
