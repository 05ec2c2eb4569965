"""Several texts in one row of a T5: each as if it were alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.models import T5Config, bind, init_params, shift_right

CONFIG = T5Config(
    vocab_size=40,
    d_model=16,
    d_kv=8,
    d_ff=24,
    num_layers=2,
    num_decoder_layers=2,
    num_heads=2,
    relative_attention_num_buckets=6,
    relative_attention_max_distance=8,
)
SOURCES, TARGETS = (7, 4, 2), (3, 6, 2)  # lengths of three texts
ROW = (16, 12)


@pytest.fixture(scope="module")
def params():
    return init_params(CONFIG, jax.random.key(0))


def texts():
    draw = np.random.default_rng(0)
    return [
        (draw.integers(2, 40, source), draw.integers(2, 40, target))
        for source, target in zip(SOURCES, TARGETS, strict=True)
    ]


def batches():
    """The texts in rows of their own, and in one row; padded to the same shapes."""
    source, segments = np.zeros((2, 4, ROW[0]), np.int32)
    labels, target_segments = np.zeros((2, 4, ROW[1]), np.int32)
    labels[:] = -100
    at = [0, 0]
    for number, (question, answer) in enumerate(texts(), start=1):
        for row, places in ((number - 1, [0, 0]), (3, at)):
            s = slice(places[0], places[0] + len(question))
            t = slice(places[1], places[1] + len(answer))
            source[row, s], segments[row, s] = question, number
            labels[row, t], target_segments[row, t] = answer, number
        at = [at[0] + len(question), at[1] + len(answer)]
    return tuple(map(jnp.asarray, (source, labels, segments, target_segments)))


@partial(jax.jit, static_argnames="segmented")
def run(params, source, labels, segments, target_segments, segmented=True):
    own = target_segments if segmented else None
    shifted = shift_right(labels, start_id=0, pad_id=0, segment_ids=own)
    return bind(CONFIG, params)(
        source,
        shifted,
        attention_mask=segments > 0,
        segment_ids=segments if segmented else None,
        target_segment_ids=own,
    )


def pieces(row):
    """A packed row's leaf, cut into the texts."""
    ends = np.cumsum(TARGETS)
    return [row[end - size : end] for end, size in zip(ends, TARGETS, strict=True)]


def test_logits_of_a_packed_row_are_those_of_the_texts(params):
    logits = np.asarray(run(params, *batches()))
    for number, packed in enumerate(pieces(logits[3])):
        alone = logits[number, : TARGETS[number]]
        np.testing.assert_allclose(packed, alone, rtol=1e-5, atol=1e-5)


def test_segments_change_nothing_where_a_row_is_one_text(params):
    rows = [leaf[:3] for leaf in batches()]
    with_, without = (run(params, *rows, segmented=flag) for flag in (True, False))
    for number, size in enumerate(TARGETS):
        np.testing.assert_allclose(
            with_[number, :size], without[number, :size], rtol=1e-5, atol=1e-5
        )


def test_where_a_segment_ends_is_seen(params):
    """The first test can fail: texts that are run together see each other."""
    source, labels, segments, target_segments = batches()
    together = np.minimum(segments, 1), np.minimum(target_segments, 1)
    logits, joined = (
        np.asarray(run(params, source, labels, *ids))[3]
        for ids in ((segments, target_segments), together)
    )
    for separate, other in zip(pieces(logits), pieces(joined), strict=True):
        assert np.abs(separate - other).max() > 1e-2


def test_other_texts_tokens_move_no_logit(params):
    """To the last bit: what is masked is not there, not merely small."""
    rows, table = batches(), params["shared"]["embedding"]
    own = [set(question) | set(answer) for question, answer in texts()]
    before = pieces(np.asarray(run(params, *rows))[3])
    for wanted in range(3):
        others = set().union(*(ids for i, ids in enumerate(own) if i != wanted))
        foreign = sorted(others - own[wanted])
        assert len(foreign) > 2
        moved = params | {"shared": {"embedding": table.at[np.array(foreign)].add(1.0)}}
        after = pieces(np.asarray(run(moved, *rows))[3])
        # The head is the same table: columns of moved rows do change.
        columns = np.setdiff1d(np.arange(40), foreign)
        np.testing.assert_array_equal(
            before[wanted][:, columns], after[wanted][:, columns]
        )
        neighbour = (wanted + 1) % 3
        assert np.abs(before[neighbour] - after[neighbour])[:, columns].max() > 1e-3


@pytest.mark.parametrize("missing", ["segment_ids", "target_segment_ids"])
def test_segments_of_one_side_are_refused(params, missing):
    source, labels, segments, target_segments = batches()
    both = {"segment_ids": segments, "target_segment_ids": target_segments}
    with pytest.raises(ValueError, match="segment_ids"):
        bind(CONFIG, params)(source, labels, **(both | {missing: None}))
    wrong = both | {missing: both[missing][:, :-1]}
    with pytest.raises(ValueError, match=r"\(4, 16\)"):
        bind(CONFIG, params)(source, labels, **wrong)
