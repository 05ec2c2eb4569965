"""The whole-number loss as a loop in float64, and ours, compiled once an option."""

import re
from functools import cache

import jax
import numpy as np

from ntl_jax import number_level_loss
from tests.losses.number_level_cases import VOCAB as BARE
from tests.losses.number_text import COLUMNS, TOKENS, encode

# The loss as a loop over the numbers of a text in float64.
NUMBER = re.compile(r"(?:(?<![\dab)])-)?(?:\d+(?:\.\d+)?|\.\d+)")
ROWS = ("12.34a7(-5a0", "(.5(-.25a10-3", "-120.5a007a(3)-1", "9" * 16, "-0a00(-00.0")


def softmax(z):
    powers = np.exp(z - z.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def loop(logits, text, log_space=False, signs=True):
    """The losses of a text [T], of float64 logits [T, V]."""
    result = np.zeros(len(text))
    for match in NUMBER.finditer(text):
        spelled = match[0].lstrip("-")
        at = match.end() - len(spelled)
        digits = [at + i for i, c in enumerate(spelled) if c != "."]
        whole = len(spelled.split(".")[0])
        powers = [10.0 ** (whole - 1 - i) for i in range(len(digits))]
        q = softmax(logits[digits][:, BARE.token_ids])
        guess = float(np.dot(q @ BARE.values.astype(np.float64), powers))
        truth = float(np.dot([float(text[t]) for t in digits], powers))
        if signs and match[0] != spelled:
            minus = softmax(logits[at - 1])[TOKENS["-"]]
            guess, truth = (1 - 2 * minus) * guess, -truth
        error = abs(guess - truth) / (abs(truth) + powers[0])
        if log_space:
            pair = np.array([guess, truth])
            error = abs(np.diff(np.sign(pair) * np.log1p(np.abs(pair)))[0])
        result[digits[0]] = error
    return result


def loop_gradient(logits, text, **options):
    """d sum(loop) / d logits by central differences."""
    step, gradient = 1e-6, np.zeros_like(logits)
    for index in np.ndindex(logits.shape):
        ends = []
        for way in (step, -step):
            moved = logits.copy()
            moved[index] += way
            ends.append(loop(moved, text, **options).sum())
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient


@cache
def compiled(**options):
    @jax.jit
    def run(logits, labels, weights, segment_ids):
        def total(z):
            value = number_level_loss(
                z, labels, BARE, weights=weights, segment_ids=segment_ids, **options
            )
            return value.sum(), value

        (_, value), gradient = jax.value_and_grad(total, has_aux=True)(logits)
        return value, gradient

    return run


def run(logits, *texts, weights=None, segment_ids=None, width=64, **options):
    """(value, gradient) of rows of at most ``width`` labels: one program an option."""
    rows, length = len(texts), np.shape(logits)[-2]
    z = np.zeros((rows, width, COLUMNS), np.float32)
    z[:, :length] = logits
    w, segments = np.ones((rows, width), np.float32), np.zeros((rows, width), np.int32)
    if weights is not None:
        w[:, :length] = weights
    if segment_ids is not None:
        segments[:, :length] = segment_ids
    labels = encode(*texts, width=width)
    value, gradient = compiled(**options)(z, labels, w, segments)
    assert not value[:, length:].any() and not gradient[:, length:].any()
    return np.asarray(value[:, :length]), np.asarray(gradient[:, :length])


def random_logits(text, seed=0):
    """Real columns of confidence 3 [T, V]; the one without a token too."""
    return 3 * np.random.default_rng(seed).normal(size=(len(text), COLUMNS))


def confident(text):
    """Logits [T, V] that give a text's digits and signs practically all mass."""
    logits = np.zeros((len(text), COLUMNS), np.float32)
    for t, char in enumerate(text):
        logits[t, TOKENS[char]] = 50
    return logits
