"""A small T5 multiplies all numbers of three digits, as the comparison with xVal does.

Command:   python -m train three-digit-multiplication
With the paper's split, in which training shows most test products in the other order:
           add --data.paper-form
"""

import dataclasses

from configs.arithmetic_t5_tiny import CONFIG as TINY
from train.config import DataConfig, EvalConfig

CONFIG = dataclasses.replace(
    TINY,
    name="three-digit-multiplication",
    data=DataConfig(
        name="three_digits", batch_size=256, max_source_length=32, max_target_length=8
    ),
    evaluation=EvalConfig(every=3_000, batch_size=1_024, max_new_tokens=8),
)
