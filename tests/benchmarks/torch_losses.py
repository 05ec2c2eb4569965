"""The same losses in PyTorch: cross-entropy, and ntloss beside it, eager and compiled.

Called by ``python -m tests.benchmarks.losses --peers`` on a CUDA device with torch and
ntloss.
"""

import statistics

import ntloss
import torch
import torch.nn.functional as F  # noqa: N812

from tests.benchmarks.losses import FIRST_DIGIT, LENGTH, ROWS


class DigitTokenizer:
    """What ntloss asks of a tokenizer, with the digits at ids 100 to 109."""

    def __init__(self, size: int):
        self.size = size
        self.vocab = {f"w{i}": i for i in range(size)}
        for digit in range(10):
            del self.vocab[f"w{FIRST_DIGIT + digit}"]
            self.vocab[str(digit)] = FIRST_DIGIT + digit

    def __len__(self) -> int:
        return self.size

    def get_vocab(self) -> dict[str, int]:
        return self.vocab

    def add_tokens(self, tokens) -> int:
        return 0


def time_step(step, runs: int = 20) -> float:
    """Median milliseconds by CUDA events, after a warm-up."""
    for _ in range(5):
        step()
    times = []
    for _ in range(runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def measure(size: int, dtype: str) -> dict:
    """{name: ms} forward and backward, mean over 8,192 tokens, 80% digits."""
    generator = torch.Generator("cuda").manual_seed(0)
    draw = {"device": "cuda", "generator": generator}
    shape = (ROWS, LENGTH)
    logits = torch.randn(*shape, size, dtype=getattr(torch, dtype), **draw)
    logits.requires_grad_()
    text = torch.randint(0, size, shape, **draw)
    digits = FIRST_DIGIT + torch.randint(0, 10, shape, **draw)
    labels = torch.where(torch.rand(shape, **draw) < 0.8, digits, text)
    was = ntloss.NTLoss(DigitTokenizer(size), vocab_size=size, reweigh=False)

    def ce():
        return F.cross_entropy(logits.view(-1, size), labels.view(-1))

    def ce_and_was():
        return ce() + 0.3 * was(logits, labels)

    times = {}
    for name, loss in {
        "torch CE": ce,
        "torch CE + ntloss WAS": ce_and_was,
        "torch CE, compiled": torch.compile(ce),
        "torch CE + ntloss WAS, compiled": torch.compile(ce_and_was),
    }.items():

        def step(loss=loss):
            logits.grad = None
            loss().backward()

        times[name] = time_step(step)
    torch._dynamo.reset()
    return {"V": size, "dtype": dtype, "ms": times}
