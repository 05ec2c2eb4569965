"""Makes granite_{dense,biased,experts}.npz: tiny random Granites as PyTorch runs them.

Run with `python -m tests.golden.make_granite`, where torch and transformers are
installed. Each file holds the config, the tensors under the names that files give them,
a batch with padding on the left and one with padding on the right, and what
transformers makes of each: logits and every gradient of the mean cross-entropy (with
experts, the routers' loss added at its coefficient); for the first one greedy tokens.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.tiny_gpt2 import batch, run_torch
from tests.tiny_granite import KINDS, gradients, tensors, torch_model

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "embedding_multiplier": 0.3,  # larger, and each token would call for itself again
}
FOLDER = Path(__file__).parent
NEW_TOKENS = 12
LENGTH = 48  # three rows are too many tokens for all experts to see all


def make(kind: str) -> dict[str, np.ndarray]:
    """One file's arrays."""
    model = torch_model(kind, seed=11, gain=16.0, **SIZES)
    options = {"output_router_logits": True} if kind == "experts" else {}
    arrays = {f"tensor/{name}": x for name, x in tensors(model).items()}
    for padding in ("left", "right"):
        data = batch(padding, seed=11, length=LENGTH)
        model.zero_grad()
        outputs = run_torch(model, data, **options)
        outputs.loss.backward()
        arrays |= {f"{padding}/batch/{name}": x for name, x in data.items()}
        arrays |= {f"{padding}/gradient/{k}": x for k, x in gradients(model).items()}
        arrays[f"{padding}/logits"] = outputs.logits.detach().numpy()
    prompts = batch("left", seed=11, length=LENGTH)
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
        "tokens": tokens[:, LENGTH:].numpy().astype(np.int32),
        "versions": np.array(f"torch {torch.__version__}, {transformers.__version__}"),
    }


if __name__ == "__main__":
    for kind in KINDS:
        np.savez_compressed(FOLDER / f"granite_{kind}.npz", **make(kind))
