"""Text in single characters, for tests of numbers made of several tokens."""

import jax.numpy as jnp
import numpy as np

from ntl_jax import NumberVocab

CHARS = "5a0.1,2-8)3(7%6b4\u22129"  # digits out of order, and both minus signs
TOKENS = {char: i for i, char in enumerate(CHARS)}
TOKENS |= {"▁": 19, "▁-": 20, "▁.": 21, "▁7": 22}
SHORT = {" ": "▁", "~": "▁-", ":": "▁.", "#": "▁7"}  # one character for each
COLUMNS = 24  # one of them without a token
IGNORED = -100


def digit_or_marked_seven(token):
    """The "digits" policy, and a digit that begins a word."""
    return float(token[-1]) if token in (*"0123456789", "▁7") else None


VOCAB = NumberVocab.from_mapping(
    TOKENS, vocab_size=COLUMNS, policy=digit_or_marked_seven
)


def encode(*texts: str, width: int | None = None):
    """i32[len(texts), width]: "_" is an ignored label, as all after the text are."""
    width = max(map(len, texts)) if width is None else width
    labels = np.full((len(texts), width), IGNORED, np.int32)
    for row, text in zip(labels, texts, strict=True):
        ids = [IGNORED if c == "_" else TOKENS[SHORT.get(c, c)] for c in text]
        row[: len(ids)] = ids
    return jnp.asarray(labels)
