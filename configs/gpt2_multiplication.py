"""A small GPT-2 multiplies numbers of 1 to 5 digits, with and without NTL.

Command:   python -m train gpt2-multiplication
On a CPU:  add --data.digits 2 --model.n-embd 128 --model.n-layer 4 --model.dtype
           float32 --steps 3000
"""

from ntl_jax.models import GPT2Config
from train.config import (
    DataConfig,
    EvalConfig,
    LossConfig,
    OptimizerConfig,
    TrainConfig,
)

CONFIG = TrainConfig(
    name="gpt2-multiplication",
    data=DataConfig(
        name="multiplication",
        train_size=1_000_000,
        digits=5,
        separator="",
        batch_size=512,
        max_source_length=16,
        max_target_length=16,
    ),
    model=GPT2Config(
        vocab_size=512,
        n_positions=32,
        n_embd=384,
        n_layer=6,
        n_head=6,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
        dtype="bfloat16",
    ),
    loss=LossConfig(was=0.3),
    optimizer=OptimizerConfig(
        learning_rate=1e-3, schedule="cosine", warmup_steps=200, b2=0.98
    ),
    evaluation=EvalConfig(batch_size=1024, max_new_tokens=14),
    tokenizer="builtin",
    cross_entropy_baseline=True,
    steps=20_000,
    log_every=100,
    checkpoint_every=5_000,
)
