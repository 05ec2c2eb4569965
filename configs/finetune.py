"""Fine-tune a Hugging Face T5, GPT-2 or Granite on your own jsonl of questions.

Command:   python -m train finetune --init-from google-t5/t5-small \
               --data.train-file train.jsonl --data.eval-file eval.jsonl
Each line: {"question": "What is 12 plus 30?", "answer": "42"}
Or question, tab, answer: add --data.name tsv

The optimizer is the paper's: AdamW at 1e-4, no warm-up, clipped at 1.
"""

from train.config import DataConfig, EvalConfig, LossConfig, TrainConfig

CONFIG = TrainConfig(
    name="finetune",
    data=DataConfig(name="jsonl", batch_size=32),
    loss=LossConfig(was=0.3),
    evaluation=EvalConfig(batch_size=64, max_new_tokens=64),
    steps=1000,
    log_every=20,
    checkpoint_every=500,
)
