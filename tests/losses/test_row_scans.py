"""Neighbours and nearest positions, by a loop, for short rows and for long ones."""

import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax.losses import row_scans as rows

FAR = np.iinfo(np.int32).max // 2


def draw(width: int):
    rng = np.random.default_rng(width)
    mask = rng.random((3, width)) < 0.3
    mask[2] = False
    return mask, np.cumsum(rng.integers(0, 3, (3, width)), axis=1, dtype=np.int32)


@pytest.mark.parametrize("width", [0, 1, 7, 512, 513])
def test_the_nearest_masked_position(width):
    mask, x = draw(width)
    before, after, count = np.full_like(x, -1), np.full_like(x, FAR), np.zeros_like(x)
    for row in range(3):
        for t in range(width):
            seen = np.flatnonzero(mask[row, : t + 1])
            count[row, t] = len(seen)
            before[row, t] = x[row, seen[-1]] if len(seen) else -1
            coming = np.flatnonzero(mask[row, t:])
            after[row, t] = x[row, t + coming[0]] if len(coming) else FAR
    mask, x = jnp.asarray(mask), jnp.asarray(x)
    np.testing.assert_array_equal(rows.at_or_before(mask, x), before)
    np.testing.assert_array_equal(rows.at_or_after(mask, x), after)
    np.testing.assert_array_equal(rows.running_count(mask), count)


@pytest.mark.parametrize("width", [0, 1, 7, 512, 513])
def test_the_marks_around_and_the_count_since_one(width):
    mask, x = draw(width)
    marks = np.where(mask, x + np.arange(width), -1).astype(np.int32)  # rising
    begins = mask.copy()
    begins[:, :1] = True
    counted = draw(width + 1)[0][:, 1:]
    before, after, since = np.full_like(x, -1), np.full_like(x, FAR), np.zeros_like(x)
    for row in range(3):
        for t in range(width):
            before[row, t] = marks[row, : t + 1].max()
            coming = marks[row, t + 1 :][mask[row, t + 1 :]]
            after[row, t] = coming[0] if len(coming) else FAR
            begin = np.flatnonzero(begins[row, : t + 1])[-1]
            since[row, t] = counted[row, begin : t + 1].sum()
    found = rows.nearest_marks(jnp.asarray(marks))
    np.testing.assert_array_equal(found[0], before)
    np.testing.assert_array_equal(found[1], after)
    count = rows.count_since(jnp.asarray(begins), jnp.asarray(counted))
    np.testing.assert_array_equal(count, since)


def test_shifts_fill_what_comes_from_beyond():
    x = jnp.array([[1, 2, 3]])
    assert rows.shift(x, 1, 9).tolist() == [[9, 1, 2]]
    assert rows.shift(x, -2, 9).tolist() == [[3, 9, 9]]
    assert rows.shift(x, 3, 9).tolist() == [[9, 9, 9]]
