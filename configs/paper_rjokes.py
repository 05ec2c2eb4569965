"""The paper's rating of jokes: T5-small on rJokes, CE + 2 NTL-WAS.

Command:   python -m train paper-rjokes
Offline:   add --init-from FOLDER (T5-small) and --data.raw-dir FOLDER, which holds
           rjokes/{train,dev,test}.tsv; without train.tsv also --data.train-split dev
Expected:  always answering the mean scores an RMSE of 1.829 on the test set, always
           answering 0 an accuracy of 0.3455; the paper reports 1.81 and 0.30
"""

import dataclasses

from configs.paper_arithmetic import CONFIG as ARITHMETIC
from train.config import DataConfig, EvalConfig, LossConfig

CONFIG = dataclasses.replace(
    ARITHMETIC,
    name="paper-rjokes",
    data=DataConfig(name="rjokes", batch_size=32, max_target_length=16),
    loss=LossConfig(was=2.0),
    evaluation=EvalConfig(every=25_000, batch_size=64, max_new_tokens=8, beams=4),
)
