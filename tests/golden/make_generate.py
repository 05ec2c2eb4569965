"""Makes generate.npz: a tiny random T5 and what PyTorch's beam search answers.

Run with `python -m tests.golden.make_generate`, where torch and transformers are
installed. The file holds the config, the tensors under their Hugging Face names, a
batch, and for each set of options the tokens (0 after the end) and the scores.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.generate.answers import inputs_of, lively_t5, torch_answers
from tests.models.cases import t5_batch as batch
from tests.models.cases import tensors

SEED = 3
ROWS = 6
OPTIONS = {
    "greedy": {},
    "beams": {"num_beams": 4},
    "early": {"num_beams": 4, "early_stopping": True},
    "never": {"num_beams": 3, "early_stopping": "never", "length_penalty": 2.0},
    "short": {"num_beams": 4, "length_penalty": -1.0, "min_new_tokens": 3},
}


def make() -> dict[str, np.ndarray]:
    """The file's arrays."""
    model, data = lively_t5("t5_v1_1", SEED), batch(SEED, rows=ROWS)
    arrays = {f"batch/{name}": x for name, x in inputs_of(data).items()}
    arrays |= {f"tensor/{name}": x for name, x in tensors(model).items()}
    for name, options in OPTIONS.items():
        tokens, scores = torch_answers(model, data, **options)
        arrays[f"tokens/{name}"] = tokens
        if scores is not None:
            arrays[f"scores/{name}"] = scores
    config = json.dumps(model.config.to_dict(), default=str)
    return arrays | {
        "config": np.array(config),
        "options": np.array(json.dumps(OPTIONS)),
        "versions": np.array(f"torch {torch.__version__}, {transformers.__version__}"),
    }


if __name__ == "__main__":
    path = Path(__file__).parent / "generate.npz"
    np.savez_compressed(path, **make())
