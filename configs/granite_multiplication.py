"""A small dense Granite multiplies numbers of 1 to 5 digits, with and without NTL.

Command:   python -m train granite-multiplication
On a CPU:  add --data.digits 2 --model.hidden-size 128 --model.intermediate-size 256
           --model.num-hidden-layers 4 --model.dtype float32 --steps 3000
"""

import dataclasses

from configs.gpt2_multiplication import CONFIG as GPT2
from ntl_jax.models import GraniteConfig

CONFIG = dataclasses.replace(
    GPT2,
    name="granite-multiplication",
    model=GraniteConfig(
        vocab_size=512,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        embedding_multiplier=12.0,
        attention_multiplier=1 / 64,
        residual_multiplier=0.4,
        logits_scaling=4.0,
        initializer_range=0.05,
        attention_dropout=0.0,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
        dtype="bfloat16",
    ),
)
