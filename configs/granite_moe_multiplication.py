"""A small Granite with routed experts multiplies numbers of 1 to 5 digits.

Command:   python -m train granite-moe-multiplication
On a CPU:  add --data.digits 2 --model.hidden-size 128 --model.intermediate-size 128
           --model.num-hidden-layers 4 --model.dtype float32 --steps 3000
"""

import dataclasses

from configs.granite_multiplication import CONFIG as GRANITE

CONFIG = dataclasses.replace(
    GRANITE,
    name="granite-moe-multiplication",
    model=dataclasses.replace(
        GRANITE.model,
        intermediate_size=512,
        num_local_experts=8,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.01,
    ),
)
