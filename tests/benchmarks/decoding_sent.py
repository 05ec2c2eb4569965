"""What a step of decoding sends between eight devices, beside the parameters' size.

    JAX_PLATFORMS=cpu python -m tests.benchmarks.decoding_sent

Programs are compiled for simulated devices and read, not run: four decoder layers of
the real widths, `fsdp` 8, 64 rows, bfloat16. Arrays count once, as a device has them.
"""

import functools
import math
import pathlib
import tempfile

import jax
import jax.numpy as jnp

from ntl_jax.generate.programs import greedy_program
from ntl_jax.models import GraniteConfig, T5Config, init_params
from ntl_jax.sharding.mesh import batch_sharding, make_mesh
from ntl_jax.sharding.rules import param_shardings
from tests.collectives import Sent, sent_by

LAYERS, ROWS, SOURCE, NEW = 4, 64, 128, 32
BYTES = {"bf16": 2, "f32": 4, "s32": 4, "u32": 4, "pred": 1}
GRANITE = {"num_hidden_layers": LAYERS, "dtype": "bfloat16"}
MODELS = {
    "T5-3B": T5Config.t5_3b(num_layers=1, num_decoder_layers=LAYERS, dtype="bfloat16"),
    "Granite 3.2 2B": GraniteConfig.granite_3_2_2b(**GRANITE).pad_vocab(),
    "Granite 3.1 1B, experts": GraniteConfig.granite_3_1_1b_a400m(
        **GRANITE
    ).pad_vocab(),
}


def lowered(config):
    """Greedy decoding on a mesh of eight, without arrays."""
    mesh = make_mesh(1, 8, 1)
    shapes = jax.eval_shape(functools.partial(init_params, config), jax.random.key(0))
    params = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding
        ),
        shapes,
        param_shardings(config, shapes, mesh),
    )
    rows = functools.partial(
        jax.ShapeDtypeStruct, (ROWS, SOURCE), sharding=batch_sharding(mesh)
    )
    options = {"max_new_tokens": NEW, "min_new_tokens": 0, "vocab_size": None}
    options |= {"numbers": "argmax", "vocab": None, "scored": False, "mesh": mesh}
    return greedy_program.lower(
        config, params, rows(jnp.int32), attention_mask=rows(bool), **options
    )


def bytes_a_layer(found: list[Sent], scanned: bool) -> float:
    """Bytes that the layers of a step send, a layer."""
    total = 0
    for sent in found:
        if "decoder_step" in sent.name:
            times = LAYERS if scanned and sent.name.count("while/body") > 1 else 1
            total += times * math.prod(sent.shape) * BYTES[sent.dtype]
    return total / LAYERS


def main() -> None:
    """Prints a row a model."""
    jax.config.update("jax_num_cpu_devices", 8)
    print("| model | sent a layer and step, MB | its parameters, MB |\n|---|---:|---:|")
    for name, config in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = sent_by(lowered(config), pathlib.Path(folder))
        shapes = jax.eval_shape(lambda c=config: init_params(c, jax.random.key(0)))
        is_t5 = isinstance(config, T5Config)
        layers = shapes["decoder"]["layers"] if is_t5 else shapes["layers"]
        own = 2 * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(layers))
        sent = bytes_a_layer(found, scanned=not is_t5)
        print(f"| {name} | {sent / 1e6:.1f} | {own / LAYERS / 1e6:.0f} |")


if __name__ == "__main__":
    main()
