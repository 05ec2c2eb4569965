"""Makes the models' files, t5_*.npz, gpt2_*.npz, granite_*.npz, as PyTorch runs them.

Run with `python -m tests.golden.make_models`, where torch and transformers are
installed. Each file holds a tiny random model's config, its tensors under the names
that files give them, batches, and what transformers makes of each: logits and every
gradient of the mean cross-entropy (with experts, the routers' loss added at its
coefficient); for the first batch greedy tokens too. Decoder-only models have a batch
with padding on the left and one with padding on the right.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.models.cases import (
    CASES,
    T5_CASES,
    batch,
    gradients,
    run_torch,
    t5_batch,
    tensors,
    torch_model,
)

T5 = {"d_model": 16, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 2}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2}
GRANITE = {
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "embedding_multiplier": 0.3,  # larger, and each token would call for itself again
}
# Sizes, gain, and length of rows: three of 48 are too many for all experts to see all.
SMALLER = {"t5": (T5, None, 30), "gpt2": (GPT2, 20.0, 20), "granite": (GRANITE, 16, 48)}
FOLDER = Path(__file__).parent
NEW_TOKENS = 12


def make(name: str) -> dict[str, np.ndarray]:
    """One file's arrays."""
    sizes, gain, length = SMALLER[name.split("_")[0]]
    model = torch_model(name, seed=11, gain=gain, **sizes)
    prompts = {}
    if name in T5_CASES:
        data = {"": t5_batch(seed=11, source=length)}
    else:
        data = {f"{p}/": batch(p, seed=11, length=length) for p in ("left", "right")}
        prompts = {"eos_token_id": None, "pad_token_id": 50}
    arrays = {f"tensor/{key}": x for key, x in tensors(model).items()}
    for prefix, inputs in data.items():
        model.zero_grad()
        outputs = run_torch(model, inputs)
        outputs.loss.backward()
        arrays |= {f"{prefix}batch/{key}": x for key, x in inputs.items()}
        arrays |= {f"{prefix}gradient/{k}": x for k, x in gradients(model).items()}
        arrays[f"{prefix}logits"] = outputs.logits.detach().numpy()
    first = next(iter(data.values()))
    tokens = model.generate(
        input_ids=torch.from_numpy(first["input_ids"]).long(),
        attention_mask=torch.from_numpy(first["attention_mask"]).long(),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        **prompts,
    )
    before = 1 if name in T5_CASES else length
    return arrays | {
        "config": np.array(json.dumps(model.config.to_dict(), default=str)),
        "tokens": tokens[:, before:].numpy().astype(np.int32),
        "versions": np.array(f"torch {torch.__version__}, {transformers.__version__}"),
    }


if __name__ == "__main__":
    for name in CASES:
        np.savez_compressed(FOLDER / f"{name}.npz", **make(name))
