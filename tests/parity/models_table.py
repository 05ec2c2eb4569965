"""Prints how far every model is from transformers' PyTorch model, as a markdown table.

Run as ``python -m tests.parity.models_table``. Models are tiny, random and in float32,
on CPU; batches have padding. Figures are largest differences, relative to the largest
entry of what they are compared with: of all logits; of the worst parameter's gradient
of the mean cross entropy (with experts, the routers' loss added); of the states that
one block makes of PyTorch's.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ntl_jax.kernels.dropout import NO_DROPOUT
from ntl_jax.models import bind
from ntl_jax.models.attention import Visible, make_attention_mask, token_positions
from ntl_jax.models.granite.model import rotation
from tests import tiny_gpt2, tiny_granite, tiny_t5
from tests.models import test_gpt2, test_granite, test_t5
from tests.parity import variants_table

FAMILIES = {
    "T5 v1.0": ("t5", "v1_0"),
    "T5 v1.1, Flan-T5": ("t5", "v1_1"),
    "GPT-2": ("gpt2", "tied"),
    "GPT-2, head of its own": ("gpt2", "untied"),
    "Granite": ("granite", "dense"),
    "Granite, with biases": ("granite", "biased"),
    "Granite MoE": ("granite", "experts"),
}


def largest_differences(family: str, kind: str) -> dict[str, float]:
    """{"logits", "gradients", "blocks"}: relative differences of one model."""
    return {"t5": of_t5, "gpt2": of_gpt2, "granite": of_granite}[family](kind)


def relative(got, want) -> float:
    """The largest difference relative to the largest entry."""
    return float(np.abs(np.asarray(got) - want).max() / np.abs(want).max())


def states_of(blocks) -> list:
    """Hooks every block: what goes in first and what comes out first, once run."""
    states = []

    def record(block, arguments, output):
        output = output[0] if isinstance(output, tuple) else output
        states.append((arguments[0].detach().numpy(), output.detach().numpy()))

    for block in blocks:
        block.register_forward_hook(record)
    return states


def layer_of(layers, number: int):
    """One layer of a stack."""
    return jax.tree.map(lambda leaf: leaf[number], layers)


def of_t5(kind: str) -> dict[str, float]:
    """T5, encoder and decoder blocks."""
    model, data = tiny_t5.torch_model(kind), tiny_t5.batch()
    config, params = tiny_t5.ours(model)
    outputs = test_t5.run_torch(model, data)
    outputs.loss.backward()
    named = {name: p.grad.numpy() for name, p in model.named_parameters()}
    logits, grads = test_t5.logits_and_gradient(config, params, data)
    errors = test_t5.relative_errors(grads, tiny_t5.to_params(config, named))

    data["attention_mask"][:] = 1
    encoder = states_of(model.encoder.block)
    decoder = states_of(model.decoder.block)
    encoded = test_t5.run_torch(model, data).encoder_last_hidden_state
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
    return {
        "logits": relative(logits, outputs.logits.detach().numpy()),
        "gradients": max(errors.values()),
        "blocks": max(blocks),
    }


def of_gpt2(kind: str) -> dict[str, float]:
    """GPT-2."""
    model, data = tiny_gpt2.torch_model(kind), tiny_gpt2.batch()
    config, params = tiny_gpt2.ours(model)
    states = states_of(model.transformer.h)
    outputs = tiny_gpt2.run_torch(model, data)
    outputs.loss.backward()
    named = {name: p.grad.numpy() for name, p in model.named_parameters()}
    logits, grads = test_gpt2.logits_and_gradient(config, params, data)
    errors = test_gpt2.relative_errors(grads, tiny_gpt2.to_params(config, named))

    def block(layer, x, mask):
        return layer.finish(x, *layer.project(x), mask, NO_DROPOUT)

    return causal(config, params, data, outputs, logits, errors, states, block)


def of_granite(kind: str) -> dict[str, float]:
    """Granite, dense or with experts; rows so long that tokens are routed."""
    model = tiny_granite.torch_model(kind)
    data = tiny_gpt2.batch(length=tiny_granite.LONG)
    config, params = tiny_granite.ours(model)
    states = states_of(model.model.layers)
    options = {"output_router_logits": True} if kind == "experts" else {}
    outputs = tiny_gpt2.run_torch(model, data, **options)
    outputs.loss.backward()
    logits, _, grads = test_granite.logits_and_gradient(config, params, data)
    want = tiny_granite.to_params(config, tiny_granite.gradients(model))
    errors = test_granite.relative_errors(grads, want)
    positions = token_positions(tiny_granite.LONG, jnp.asarray(data["attention_mask"]))
    angles = rotation(positions, config.head_dim, config.rope_theta)

    def block(layer, x, mask):
        projected = layer.attention.project(x, angles)
        return layer.finish(x, *projected, mask, NO_DROPOUT)[0]

    return causal(config, params, data, outputs, logits, errors, states, block)


def causal(config, params, data, outputs, logits, errors, states, block):
    """The differences of a decoder-only model, where there is no padding."""
    seen = tiny_gpt2.real(data)
    mask = Visible(
        make_attention_mask(jnp.asarray(data["attention_mask"])), causal=True
    )
    layers = bind(config, params).layers
    run_block = jax.jit(partial(block, mask=mask))
    blocks = [
        relative(
            np.asarray(run_block(layer_of(layers, n), jnp.asarray(given)))[seen],
            want[seen],
        )
        for n, (given, want) in enumerate(states)
    ]
    want = outputs.logits.detach().numpy()[seen]
    return {
        "logits": relative(np.asarray(logits)[seen], want),
        "gradients": max(errors.values()),
        "blocks": max(blocks),
    }


def main() -> None:
    columns = ("logits", "gradients", "blocks")
    print("|", " | ".join(["model", *columns]), "|")
    print("| --- " * (1 + len(columns)) + "|")
    for name, (family, kind) in FAMILIES.items():
        found = largest_differences(family, kind)
        print("|", " | ".join([name, *(f"{found[c]:.1e}" for c in columns)]), "|")
    print()
    variants_table.main()


if __name__ == "__main__":
    main()
