"""The paper's Table 1: T5-base on 13 modules of mathematics, CE + 0.3 NTL-WAS.

Command:   python -m train paper-mathematics
Offline:   add --init-from FOLDER (T5-base) and --data.raw-dir FOLDER, which holds
           mathematics_dataset/SPLIT/MODULE.txt of release v1.0; or --data.generate
"""

import dataclasses

from configs.paper_arithmetic import CONFIG as ARITHMETIC
from ntl_jax.models import T5Config
from train.config import DataConfig

CONFIG = dataclasses.replace(
    ARITHMETIC,
    name="paper-mathematics",
    data=DataConfig(name="mathematics", subset="paper", batch_size=32),
    model=T5Config.base(),
    init_from="google-t5/t5-base",
    steps=1_050_000,
)
