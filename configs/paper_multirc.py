"""The paper's test on text: T5-small on MultiRC as generation, CE + 2 NTL-WAS.

Command:   python -m train paper-multirc
Offline:   add --init-from FOLDER (T5-small) and --data.raw-dir FOLDER, which holds
           multirc/{train,val}.jsonl
With the question after the passage, as in the paper: add --data.paper-form
"""

import dataclasses

from configs.paper_arithmetic import CONFIG as ARITHMETIC
from train.config import DataConfig, EvalConfig, LossConfig

CONFIG = dataclasses.replace(
    ARITHMETIC,
    name="paper-multirc",
    data=DataConfig(name="multirc", batch_size=32),
    loss=LossConfig(was=2.0),
    evaluation=EvalConfig(every=25_000, batch_size=64, max_new_tokens=128, beams=4),
)
