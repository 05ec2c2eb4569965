"""A tiny Numformer on random rows, and the same in PyTorch's own layers."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntl_jax.hf.mapping import flatten, unflatten
from ntl_jax.models import NumformerConfig, bind

CONFIG = NumformerConfig(
    vocab_size=24,
    num_id=20,
    d_model=32,
    d_ff=48,
    num_layers=2,
    num_heads=4,
    max_positions=16,
)


def rows():
    """Half of the tokens are numbers; two rows are padded on the right."""
    draw = np.random.default_rng(0)
    ids = draw.integers(2, 20, (4, 12), dtype=np.int32)
    values = np.ones((4, 12), np.float32)
    is_number = draw.random((4, 12)) < 0.5
    ids[is_number] = 20
    values[is_number] = draw.normal(0, 3, is_number.sum())
    mask = np.ones((4, 12), bool)
    mask[1, 9:], mask[2, 4:] = False, False
    ids[~mask], values[~mask] = 0, 1.0
    return {"ids": ids, "values": values, "mask": mask}


def numbers_of(params, seed=1):
    """The parameters, constant ones moved: constants would hide a swap."""
    draw = np.random.default_rng(seed)
    flat = {
        path: np.asarray(leaf) + 0.2 * draw.standard_normal(leaf.shape, np.float32)
        for path, leaf in flatten(params).items()
    }
    return unflatten(flat)


class TorchNumformer:
    """The same model, written in PyTorch: its layers are nn.TransformerEncoderLayer."""

    def __init__(self, params):
        import torch

        self.torch = torch
        self.leaves: dict[str, Any] = {
            path: torch.tensor(np.asarray(leaf), requires_grad=True)
            for path, leaf in flatten(params).items()
        }

    def layer(self, index):
        """One layer, as a module and the parameters that it is to be called with."""
        torch = self.torch
        module = torch.nn.TransformerEncoderLayer(
            CONFIG.d_model,
            CONFIG.num_heads,
            CONFIG.d_ff,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        own = {
            path.removeprefix("layers/"): leaf[index]
            for path, leaf in self.leaves.items()
            if path.startswith("layers/")
        }
        width = CONFIG.d_model
        parameters = {
            "self_attn.in_proj_weight": own["attention/qkv/kernel"]
            .reshape(width, -1)
            .T,
            "self_attn.in_proj_bias": own["attention/qkv/bias"].reshape(-1),
            "self_attn.out_proj.weight": own["attention/o/kernel"].T,
            "self_attn.out_proj.bias": own["attention/o/bias"],
            "linear1.weight": own["mlp/wi/kernel"].T,
            "linear1.bias": own["mlp/wi/bias"],
            "linear2.weight": own["mlp/wo/kernel"].T,
            "linear2.bias": own["mlp/wo/bias"],
            "norm1.weight": own["attention/norm/scale"],
            "norm1.bias": own["attention/norm/bias"],
            "norm2.weight": own["mlp/norm/scale"],
            "norm2.bias": own["mlp/norm/bias"],
        }
        return module, parameters

    def __call__(self, data):
        torch, leaves = self.torch, self.leaves
        ids, values = torch.tensor(data["ids"]).long(), torch.tensor(data["values"])
        x = leaves["embed/embedding"][ids] * values[..., None]
        x = x + leaves["positions/embedding"][: ids.shape[1]]
        padded = ~torch.tensor(data["mask"])
        for index in range(CONFIG.num_layers):
            module, parameters = self.layer(index)
            x = torch.func.functional_call(
                module, parameters, (x,), {"src_key_padding_mask": padded}
            )
        h = torch.nn.functional.gelu(x @ leaves["lm_head/wi/kernel"])
        logits = h @ leaves["lm_head/wo/kernel"]
        h = x @ leaves["number_head/wi/kernel"] + leaves["number_head/wi/bias"]
        h = torch.nn.functional.gelu(h)
        numbers = h @ leaves["number_head/wo/kernel"] + leaves["number_head/wo/bias"]
        return logits, numbers[..., 0]


@partial(jax.jit, static_argnums=0)
def run(config, params, data, dropout_key=None, row_offset=0):
    return bind(config, params)(
        data["ids"],
        data["values"],
        attention_mask=data["mask"],
        dropout_key=dropout_key,
        row_offset=row_offset,
    )


@partial(jax.jit, static_argnums=0)
def output_and_gradient(config, params, data):
    def score(params):
        output = run(config, params, data)
        seen = data["mask"].astype(jnp.float32)
        logits = jnp.sum(jnp.sin(output.logits) * seen[..., None])
        return logits + jnp.sum(jnp.sin(output.numbers) * seen), output

    grads, output = jax.grad(score, has_aux=True)(params)
    return output, grads
