"""Tiny random models whose answers are worth comparing, and PyTorch's answers."""

import numpy as np

from tests.models.cases import torch_model

SMALLER = {
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 20,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
}
NEW_TOKENS = 12
END = 1
PAD = 0


def lively_t5(kind: str, seed: int):
    """A random T5 in PyTorch whose answers differ and, at times, end."""
    model = torch_model(kind, seed, **SMALLER)
    if kind == "t5_v1_0":
        model.shared.weight.data.mul_(0.3)
    else:  # the softmax is so sharp otherwise that no beam is left for another
        model.lm_head.weight.data.mul_(0.2)
        model.lm_head.weight.data[END].mul_(4)
    return model


def torch_answers(model, data, *, end=END, pad=PAD, new_tokens=NEW_TOKENS, **options):
    """Tokens [B, T] that PyTorch generates, `pad` after the end, and their scores.

    Where the pad id is 0 transformers fills up beams with the end token instead: what
    stands after the first end token is replaced.
    """
    import torch

    torch.set_num_threads(1)  # threads wait for each other longer than they compute
    inputs = {k: torch.from_numpy(v).long() for k, v in data.items() if k != "labels"}
    options = {"do_sample": False, "max_new_tokens": new_tokens} | options
    out = model.generate(
        **inputs, **options, return_dict_in_generate=True, output_scores=True
    )
    skipped = 1 if model.config.is_encoder_decoder else data["input_ids"].shape[1]
    tokens = out.sequences[:, skipped:].numpy()
    missing = new_tokens - tokens.shape[1]
    tokens = np.pad(tokens, ((0, 0), (0, missing)), constant_values=pad)
    ends = (tokens == end).astype(int)
    tokens = np.where(ends.cumsum(axis=1) - ends > 0, pad, tokens)
    scores = getattr(out, "sequences_scores", None)
    return tokens.astype(np.int32), None if scores is None else scores.numpy()


def inputs_of(data) -> dict:
    """What a model is asked: the batch without its labels."""
    return {k: v for k, v in data.items() if k != "labels"}
