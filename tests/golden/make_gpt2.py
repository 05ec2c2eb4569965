"""Makes gpt2_tied.npz and gpt2_untied.npz: tiny random GPT-2s as PyTorch runs them.

Run with `python -m tests.golden.make_gpt2`, where torch and transformers are installed.
Each file holds the config, the tensors under their Hugging Face names, a batch with
padding on the left and one with padding on the right, and what transformers makes of
each: logits and every gradient of the mean cross-entropy; for the first one greedy
tokens too.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.tiny_gpt2 import KINDS, batch, run_torch, tensors, torch_model

SMALLER = {"n_embd": 16, "n_layer": 2, "n_head": 2}
FOLDER = Path(__file__).parent
NEW_TOKENS = 12


def make(kind: str) -> dict[str, np.ndarray]:
    """One file's arrays."""
    model = torch_model(kind, seed=11, gain=20.0, **SMALLER)
    arrays = {f"tensor/{name}": x for name, x in tensors(model).items()}
    for padding in ("left", "right"):
        data = batch(padding, seed=11)
        model.zero_grad()
        outputs = run_torch(model, data)
        outputs.loss.backward()
        arrays |= {f"{padding}/batch/{name}": x for name, x in data.items()}
        arrays |= {
            f"{padding}/gradient/{name}": p.grad.numpy()
            for name, p in model.named_parameters()
        }
        arrays[f"{padding}/logits"] = outputs.logits.detach().numpy()
    prompts = batch("left", seed=11)
    tokens = model.generate(
        input_ids=torch.from_numpy(prompts["input_ids"]).long(),
        attention_mask=torch.from_numpy(prompts["attention_mask"]).long(),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=50,
    )
    return arrays | {
        "config": np.array(json.dumps(model.config.to_dict(), default=str)),
        "tokens": tokens[:, prompts["input_ids"].shape[1] :].numpy().astype(np.int32),
        "versions": np.array(f"torch {torch.__version__}, {transformers.__version__}"),
    }


if __name__ == "__main__":
    for kind in KINDS:
        np.savez_compressed(FOLDER / f"gpt2_{kind}.npz", **make(kind))
