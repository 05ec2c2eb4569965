"""What options may be, checked before anything is traced."""

import math
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from ntl_jax.generate.number_choice import RULES
from ntl_jax.losses.checks import check_vocab


def check_rule(numbers, vocab, *, alone: bool) -> None:
    """`alone`: whether tokens are chosen by likelihood, one after another."""
    if numbers not in RULES:
        raise ValueError(f"numbers is {numbers!r}; choose one of {list(RULES)}")
    if numbers == "argmax":
        return
    if vocab is None:
        raise ValueError(f"numbers={numbers!r} needs vocab, a NumberVocab")
    check_vocab(vocab)
    if not alone:
        raise ValueError(
            f"numbers={numbers!r} is for greedy decoding; leave out num_beams and "
            "do_sample, or numbers"
        )


def check_beams(num_beams, length_penalty, early_stopping, do_sample) -> None:
    """For beam search, or that nothing of it is asked for without it."""
    if not isinstance(num_beams, int) or num_beams < 1:
        raise ValueError(f"num_beams is {num_beams!r}; it must be at least 1")
    if not (early_stopping is True or early_stopping in (False, "never")):
        raise ValueError(
            f"early_stopping is {early_stopping!r}; choose True, False or 'never'"
        )
    if do_sample and num_beams > 1:
        raise ValueError(
            f"do_sample=True draws one answer a row; num_beams is {num_beams}: take 1"
        )
    if not isinstance(length_penalty, Tracer) and not math.isfinite(length_penalty):
        raise ValueError(f"length_penalty is {length_penalty}; it must be finite")
    plain = not isinstance(length_penalty, jax.Array) and length_penalty == 1.0
    if num_beams == 1 and not (plain and early_stopping is False):
        raise ValueError(
            "length_penalty and early_stopping are for beam search; num_beams is 1"
        )


def check_sampling(do_sample, key, temperature, top_k, top_p) -> None:
    """For sampling, or that nothing of it is asked for without it."""
    given = {"key": key, "top_k": top_k, "top_p": top_p}
    given = [name for name, value in given.items() if value is not None]
    if isinstance(temperature, jax.Array) or temperature != 1.0:
        given.append("temperature")
    if not do_sample:
        if given:
            raise ValueError(
                f"{', '.join(given)}: only for sampling; pass do_sample=True"
            )
        return
    if key is None:
        raise ValueError("do_sample=True needs key, jax.random.key(seed)")
    if not isinstance(temperature, Tracer) and not temperature > 0:
        raise ValueError(
            f"temperature is {temperature}; it must be above 0. Decode greedily for "
            "the limit at 0"
        )
    if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"top_k is {top_k!r}; it must be at least 1, or None")
    if not isinstance(top_p, Tracer | None) and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; it must lie in (0, 1], or be None")


def check_source(config: Any, input_ids, attention_mask) -> None:
    """That the input can be read and gone on from, as far as the host sees it."""
    end = getattr(config, "eos_token_id", None)
    if not isinstance(end, int | np.integer | None):
        raise ValueError(
            f"eos_token_id is {end}, but one number is needed: dataclasses.replace("
            "config, eos_token_id=...)"
        )
    shape = np.shape(input_ids)
    if len(shape) == 2 and 0 in shape:
        raise ValueError(
            f"input_ids of shape {shape} hold nothing to answer; give a row or more, "
            "each of a token or more"
        )
    _check_axes("input_ids", input_ids)
    _check_axes("attention_mask", attention_mask)
    reads_padding = config.decoder_only
    if isinstance(input_ids, jax.Array) and not reads_padding:
        return  # nothing is left to look at, and nothing to fetch from a device
    mask = _on_host(attention_mask)
    _check_ids(config, input_ids, mask)
    if mask is None or not reads_padding:
        return
    if mask.ndim != 2:
        raise ValueError(f"attention_mask must be [B, S]; its shape is {mask.shape}")
    open_end = np.flatnonzero(mask[:, -1] == 0)
    if len(open_end):
        raise ValueError(
            f"{len(open_end)} prompts, the first in row {open_end[0]}, are padded on "
            "the right; tokens are written after the last column: pad on the left"
        )


def _check_axes(name: str, array) -> None:
    """That an array is not split along Explicit axes, JAX's own default for meshes."""
    if not isinstance(array, jax.Array):
        return
    split = [axis for axis in jax.typeof(array).sharding.spec if axis is not None]
    if split:
        raise ValueError(
            f"{name} are split along {split}, which are Explicit; make the mesh by "
            "ntl_jax.sharding.make_mesh, or with axis_types of AxisType.Auto"
        )


def _on_host(array) -> np.ndarray | None:
    """What an array holds; None for none, a traced one, or one of other hosts too."""
    if isinstance(array, Tracer | None):
        return None
    if isinstance(array, jax.Array):
        return jax.device_get(array) if array.is_fully_addressable else None
    return np.asarray(array)


def _check_ids(config: Any, input_ids, mask: np.ndarray | None) -> None:
    """That ids of the host, which tables would clip, are tokens where they are seen."""
    if isinstance(input_ids, jax.Array):
        return
    ids = np.asarray(input_ids)
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"input_ids must be integers, not {ids.dtype}")
    outside = (ids < 0) | (ids >= config.vocab_size)
    if mask is not None and mask.shape == ids.shape:
        outside &= mask != 0
    if outside.any():
        raise ValueError(
            f"{outside.sum()} input_ids, the first {ids[outside][0]}, are no tokens of "
            f"the model's {config.vocab_size}; is it another model's tokenizer?"
        )
