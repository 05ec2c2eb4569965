"""Prints how far every model is from transformers' PyTorch model, as a markdown table.

Run as ``python -m tests.parity.models_table``. Models are tiny, random and in float32,
on CPU; batches have padding. Figures are largest differences, relative to the largest
entry of what they are compared with: of all logits; of the worst parameter's gradient
of the mean cross entropy (with experts, the routers' loss added); of the states that
one block makes of PyTorch's.
"""

import jax.numpy as jnp
import numpy as np

from ntl_jax.kernels.dropout import NO_DROPOUT
from ntl_jax.models import bind
from tests.models.cases import (
    CASES,
    T5_CASES,
    batch,
    gradients,
    ours,
    real,
    run_torch,
    t5_batch,
    to_params,
    torch_model,
)
from tests.models.running import (
    blocks_of,
    layer_of,
    logits_and_gradient,
    relative_errors,
    run_block,
    states_of,
)
from tests.parity import variants_table

FAMILIES = {
    "T5 v1.0": "t5_v1_0",
    "T5 v1.1, Flan-T5": "t5_v1_1",
    "GPT-2": "gpt2_tied",
    "GPT-2, head of its own": "gpt2_untied",
    "Granite": "granite_dense",
    "Granite, with biases": "granite_biased",
    "Granite MoE": "granite_experts",
}


def relative(got, want) -> float:
    """The largest difference relative to the largest entry."""
    return float(np.abs(np.asarray(got) - want).max() / np.abs(want).max())


def largest_differences(name: str) -> dict[str, float]:
    """{"logits", "gradients", "blocks"}: relative differences of one case."""
    model = torch_model(name)
    length = CASES[name].long if name.startswith("granite") else 20  # tokens are routed
    data = t5_batch() if name in T5_CASES else batch(length=length)
    config, params = ours(model)
    states = [] if name in T5_CASES else states_of(blocks_of(model))
    outputs = run_torch(model, data)
    outputs.loss.backward()
    logits, grads = logits_and_gradient(config, params, data)
    errors = relative_errors(grads, to_params(config, gradients(model)))
    seen = real(data)
    if name in T5_CASES:
        blocks = t5_blocks(model, data, config, params)
    else:
        mask, layers = jnp.asarray(data["attention_mask"]), bind(config, params).layers
        blocks = []
        for number, (given, want) in enumerate(states):
            layer = layer_of(layers, number)
            got = run_block(config, layer, jnp.asarray(given), mask)
            blocks.append(relative(np.asarray(got)[seen], want[seen]))
    want = outputs.logits.detach().numpy()[seen]
    return {
        "logits": relative(np.asarray(logits)[seen], want),
        "gradients": max(errors.values()),
        "blocks": max(blocks),
    }


def t5_blocks(model, data, config, params) -> list[float]:
    """Differences of T5's encoder and decoder blocks, on rows without padding."""
    data["attention_mask"][:] = 1
    encoder = states_of(model.encoder.block)
    decoder = states_of(model.decoder.block)
    encoded = run_torch(model, data).encoder_last_hidden_state
    encoded = jnp.asarray(encoded.detach().numpy())
    t5, blocks = bind(config, params), []
    for stack, states in ((t5.encoder, encoder), (t5.decoder, decoder)):
        for number, (given, want) in enumerate(states):
            layer = layer_of(stack.layers, number)
            places = jnp.arange(given.shape[1], dtype=jnp.int32)
            bias, x = stack.relative_bias(places, places), jnp.asarray(given)
            if stack is t5.encoder:
                got = layer(x, bias, None, NO_DROPOUT)
            else:
                memory = layer.cross_attention.project(encoded)
                got = layer(x, bias, None, memory, None, NO_DROPOUT)
            blocks.append(relative(got, want))
    return blocks


def main() -> None:
    columns = ("logits", "gradients", "blocks")
    print("|", " | ".join(["model", *columns]), "|")
    print("| --- " * (1 + len(columns)) + "|")
    for name, case in FAMILIES.items():
        found = largest_differences(case)
        print("|", " | ".join([name, *(f"{found[c]:.1e}" for c in columns)]), "|")
    print()
    variants_table.main()


if __name__ == "__main__":
    main()
