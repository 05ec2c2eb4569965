"""Makes t5_v1_0.npz and t5_v1_1.npz: tiny random T5 models as PyTorch runs them.

Run with `python -m tests.golden.make_t5`, where torch and transformers are installed.
Each file holds the config, the tensors under their Hugging Face names, a batch, and
what transformers makes of it: logits, every gradient of the mean cross-entropy, and
greedy tokens.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.tiny_t5 import KINDS, batch, tensors, torch_model

SMALLER = {"d_model": 16, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 2}
FOLDER = Path(__file__).parent
NEW_TOKENS = 12


def make(kind: str) -> dict[str, np.ndarray]:
    """One file's arrays."""
    model, data = torch_model(kind, seed=11, **SMALLER), batch(seed=11, source=30)
    inputs = {name: torch.from_numpy(x).long() for name, x in data.items()}
    outputs = model(**inputs)
    outputs.loss.backward()
    del inputs["labels"]
    tokens = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
    arrays = {f"batch/{name}": x for name, x in data.items()}
    arrays |= {f"tensor/{name}": x for name, x in tensors(model).items()}
    arrays |= {
        f"gradient/{name}": p.grad.numpy() for name, p in model.named_parameters()
    }
    config = json.dumps(model.config.to_dict(), default=str)
    return arrays | {
        "config": np.array(config),
        "logits": outputs.logits.detach().numpy(),
        "tokens": tokens[:, 1:].numpy().astype(np.int32),
        "versions": np.array(f"torch {torch.__version__}, {transformers.__version__}"),
    }


if __name__ == "__main__":
    for kind in KINDS:
        np.savez_compressed(FOLDER / f"t5_{kind}.npz", **make(kind))
