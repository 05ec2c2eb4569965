"""The paper's ablations: T5-small on 100,000 sums of several terms, CE + 0.3 NTL-WAS.

Command:   python -m train paper-arithmetic
Offline:   add --init-from FOLDER (T5-small) and --data.raw-dir FOLDER, which holds
           mathematics_dataset/SPLIT/MODULE.txt of release v1.0; or --data.generate
Other losses: --loss.was None --loss.mse 0.3, and so on; cross entropy alone:
           --loss.was None; with T5's own tokenizer, as the paper's row of cross
           entropy: also --no-split-digits
"""

from train.config import (
    DataConfig,
    EvalConfig,
    LossConfig,
    OptimizerConfig,
    TrainConfig,
)

CONFIG = TrainConfig(
    name="paper-arithmetic",
    data=DataConfig(name="mathematics", subset="arithmetic", batch_size=32),
    loss=LossConfig(was=0.3),
    optimizer=OptimizerConfig(learning_rate=1e-4, schedule="plateau"),
    evaluation=EvalConfig(every=25_000, batch_size=64, max_new_tokens=32, beams=4),
    init_from="google-t5/t5-small",
    steps=2_500_000,
    log_every=2_000,
    checkpoint_every=25_000,
)
