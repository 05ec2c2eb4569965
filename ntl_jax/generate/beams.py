"""Beam search: the W likeliest answers so far, of every row, side by side.

Beams do not move in the cache. `ancestry` [B, W, T] says which beam's slot holds each
earlier token of a beam, for the model, which looks no further than a beam's own
ancestors, and for the answers, which are read off at the end.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from ntl_jax.generate.decoder import Decoder
from ntl_jax.generate.ending import Ending
from ntl_jax.generate.top_k import top_k
from ntl_jax.sharding.spmd import row_by_row

EarlyStopping = bool | Literal["never"]
_WORST = -1e9


class _Finished(NamedTuple):
    """The best W answers that have ended, best first."""

    scores: Float32[Array, "B W"]
    real: Bool[Array, "B W"]  # false: a place that no answer has taken yet
    lengths: Int32[Array, "B W"]
    last: Int32[Array, "B W"]  # their last token
    ancestry: Int32[Array, "B W T"]


class _State(NamedTuple):
    count: Int32[Array, ""]
    tokens: Int32[Array, "B W"]
    scores: Float32[Array, "B W"]
    ancestry: Int32[Array, "B W T"]  # by position of a token that went in
    inputs: Int32[Array, "B W T"]  # what went into each slot
    finished: _Finished
    closed: Bool[Array, "B"]  # rows that no further step can better
    cache: PyTree


class _Candidates(NamedTuple):
    """The best 2W continuations of a row, best first."""

    scores: Float32[Array, "B 2W"]
    parents: Int32[Array, "B 2W"]
    tokens: Int32[Array, "B 2W"]


def search(
    decoder: Decoder,
    ending: Ending,
    *,
    divisors: Float32[Array, "T+1"],
    favours_long: Bool[Array, ""],
    early_stopping: EarlyStopping,
) -> tuple[Int32[Array, "B T"], Float32[Array, "B"]]:
    """The best answer of every row.

    Args:
        decoder: has read the input; W beams.
        ending: which token ends an answer, and how long answers may get.
        divisors: an answer of n tokens is worth its log-probability over divisors[n].
        favours_long: whether the divisors rise.
        early_stopping: True: a row is done once W answers have ended. False: once no
            beam, over the divisor of its length, beats the worst of W ended answers.
            `"never"`: as False, over the divisor at which it would be worth most.

    Returns:
        tokens [B, T], pad ids after the end, and scores [B], over the divisor.
    """

    def choose(state: _State, hidden) -> _State:
        logits = decoder.logits(hidden, ending.vocab_size)  # [B, W, V]
        candidates = _continuations(state, logits, ending)
        count = state.count + 1
        stops = (candidates.tokens == ending.token) | (count >= ending.longest)
        finished = _finish(state, candidates, stops, divisors[count])
        tokens, scores, parents = _go_on(candidates, stops)
        best = ending.longest if early_stopping == "never" else count
        best = divisors[jnp.where(favours_long, best, count)]
        full = jnp.all(finished.real, axis=1)
        # Short of W answers the last one's score is the worst there is.
        closed = full & (scores[:, 0] / best <= finished.scores[:, -1])
        return state._replace(
            count=count,
            tokens=tokens,
            scores=scores,
            ancestry=_take(state.ancestry, parents),
            finished=finished,
            closed=state.closed | (full if early_stopping is True else closed),
            cache=decoder.move(state.cache, parents),
        )

    def unfinished(state: _State):
        return (state.count < ending.longest) & ~jnp.all(state.closed)

    def step(state: _State) -> _State:
        inputs, ancestry = _enter(state)
        hidden, cache = decoder.step(state.tokens, state.count, state.cache, ancestry)
        state = state._replace(inputs=inputs, ancestry=ancestry, cache=cache)
        return choose(state, hidden)

    state = _start(decoder, ending)
    if decoder.hidden is not None:
        state = choose(state, decoder.hidden)
    return _answers(jax.lax.while_loop(unfinished, step, state), ending)


def _start(decoder: Decoder, ending: Ending) -> _State:
    batch, beams = decoder.batch, decoder.beams
    none = jnp.zeros((batch, beams), jnp.int32)
    table = jnp.zeros((batch, beams, ending.longest), jnp.int32)
    worst = jnp.full((batch, beams), _WORST, jnp.float32)
    return _State(
        count=jnp.int32(0),
        tokens=none if decoder.tokens is None else decoder.tokens,
        scores=worst.at[:, 0].set(0),  # all beams are alike yet: one goes on
        ancestry=table,
        inputs=table,
        finished=_Finished(worst, none.astype(bool), none, none, table),
        closed=jnp.zeros((batch,), bool),
        cache=decoder.cache,
    )


def _enter(state: _State) -> tuple[Int32[Array, "B W T"], Int32[Array, "B W T"]]:
    """Inputs and ancestry once each beam's token stands in that beam's own slot."""
    own = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)[None, :, None]
    own = jnp.broadcast_to(own, (*state.tokens.shape, 1))
    write = jax.lax.dynamic_update_slice_in_dim
    inputs = write(state.inputs, state.tokens[..., None], state.count, axis=2)
    return inputs, write(state.ancestry, own, state.count, axis=2)


def _continuations(state: _State, logits, ending: Ending) -> _Candidates:
    batch, beams, columns = logits.shape
    if columns < 2:
        raise ValueError(f"beam search needs 2 columns of logits; there are {columns}")
    # The best 2W of all are among the best 2W of each beam.
    held = ending.held_off(logits, state.count)
    best, ids = top_k(held, min(2 * beams, columns))  # [B, W, k]
    log_sums = _log_sums(logits, best[..., :1], ending)
    scores = (best - log_sums + state.scores[..., None]).reshape(batch, -1)
    scores, places = _best(scores, 2 * beams)
    tokens = _take(ids.reshape(batch, -1), places)
    return _Candidates(scores, places // best.shape[-1], tokens)


def _log_sums(logits, best, ending: Ending) -> Float32[Array, "B W 1"]:
    """`logsumexp`, without another pass in search of the largest logit."""
    if ending.shortest > 0:  # it may be the end token's, held off
        end = jnp.full_like(best, ending.token, jnp.int32)
        end = jnp.take_along_axis(logits, end, axis=-1, mode="clip")
        best = jnp.maximum(best, end)
    sums = jnp.sum(jnp.exp(logits - best), axis=-1, keepdims=True)
    return best + jnp.log(sums)


def _finish(state: _State, candidates: _Candidates, stops, divisor) -> _Finished:
    """The best of the answers that had ended and of those that end now."""
    before, beams = state.finished, state.tokens.shape[1]
    # The second half of the candidates only replaces what ends among the first.
    first = jnp.arange(2 * beams, dtype=jnp.int32)[None] < beams
    real = stops & first & ~state.closed[:, None]
    scores = jnp.where(real, candidates.scores / divisor, _WORST)
    scores, places = _best(jnp.concatenate([before.scores, scores], 1), beams)

    def merged(old, new):
        return _take(jnp.concatenate([old, new], axis=1), places)

    new_rows = jnp.full_like(candidates.tokens, state.count + 1)
    old_slots = jnp.arange(beams, dtype=jnp.int32)[None]
    slots = merged(
        jnp.broadcast_to(old_slots, before.last.shape), beams + candidates.parents
    )
    tables = jnp.concatenate([before.ancestry, state.ancestry], axis=1)
    return _Finished(
        scores,
        merged(before.real, real),
        merged(before.lengths, new_rows),
        merged(before.last, candidates.tokens),
        _take(tables, slots),
    )


def _go_on(candidates: _Candidates, stops):
    """Tokens, scores and parents of the best W candidates that do not end."""
    beams = stops.shape[1] // 2
    scores = candidates.scores + jnp.where(stops, jnp.float32(_WORST), 0)
    scores, places = _best(scores, beams)
    tokens = _take(candidates.tokens, places)
    return tokens, scores, _take(candidates.parents, places)


def _answers(state: _State, ending: Ending):
    best = jax.tree.map(lambda leaf: leaf[:, 0], state.finished)
    tokens = jnp.take_along_axis(state.inputs, best.ancestry[:, None], axis=1)[:, 0]
    # What was generated as token g went in at position g + 1.
    tokens = jnp.roll(tokens, -1, axis=1)
    place = jnp.arange(ending.longest, dtype=jnp.int32)[None]
    end = best.lengths[:, None] - 1
    tokens = jnp.where(place < end, tokens, ending.pad)
    tokens = jnp.where(place == end, best.last[:, None], tokens)
    return tokens, best.scores


def _best(scores, count: int):
    return row_by_row(partial(jax.lax.top_k, k=count), scores)


def _take(table, places):
    """Rows `places` [B, P] of axis 1 of a table [B, Q, ...]."""
    places = places.reshape(*places.shape, *[1] * (table.ndim - 2))
    return jnp.take_along_axis(table, places, axis=1)
