"""Cost matrices: their values, their order, what may be traced, what is refused."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab, distances, ntl_was

DIGITS = NumberVocab.from_mapping(
    {str(i): i for i in range(10)} | {"a": 10}, vocab_size=11
)
MATRICES = {
    "euclidean": distances.euclidean,
    "squashed": lambda vocab: distances.squashed(vocab, 3.0),
    "circular": lambda vocab: distances.circular(vocab, 10),
    "log-scale": distances.log_scale,
}


def vocab_of(values) -> NumberVocab:
    """Number tokens of these values, in this order, after one token of text."""
    worth = {f"n{i}": float(value) for i, value in enumerate(values)}
    tokens = {"text": 0} | {name: i + 1 for i, name in enumerate(worth)}
    return NumberVocab.from_mapping(tokens, vocab_size=len(tokens), policy=worth.get)


@pytest.mark.parametrize(
    ("factor", "row"),
    [
        (2.0, [0, *np.arange(1, 2.01, 0.125)]),
        (3.0, [0, *np.arange(1, 3.01, 0.25)]),
        (9.0, range(10)),
        (20.0, [0, *np.arange(1, 20.01, 2.375)]),
        (1.0, [0] + [1] * 9),
    ],
)
def test_known_squashed_distances(factor, row):
    matrix = distances.squashed(DIGITS, factor)
    np.testing.assert_allclose(matrix[0], np.array(row), rtol=1e-6)
    np.testing.assert_allclose(matrix[9], np.array(row)[::-1], rtol=1e-6)
    assert matrix[4, 4] == 0 and matrix[4, 6] == matrix[0, 2]


def test_rows_stand_in_the_order_of_the_token_ids(vocab):
    assert vocab.values.tolist() == [5, 0, 9, 1, 4, 2, 8, 3, 7, 6]
    digit = np.argsort(vocab.values)  # the row of each digit
    for name, build in MATRICES.items():
        np.testing.assert_array_equal(
            np.asarray(build(vocab))[np.ix_(digit, digit)], build(DIGITS), err_msg=name
        )


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_is_a_distance(name):
    vocab = vocab_of([-3.5, 0.0, 0.25, 7.0, 12.0, 100.0])
    matrix = np.asarray(MATRICES[name](vocab))
    assert matrix.dtype == np.float32 and not matrix.diagonal().any()
    np.testing.assert_array_equal(matrix, matrix.T)
    assert (matrix >= 0).all() and np.isfinite(matrix).all()
    assert (distances.check_costs(jnp.asarray(matrix), vocab) == matrix).all()


def test_euclidean_of_any_values():
    values = np.array([2.5, 100.0, -3.0, 10.0, 10.0, 0.0])
    expected = np.abs(values[:, None] - values[None, :])
    np.testing.assert_array_equal(distances.euclidean(vocab_of(values)), expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4, 4], [[0, 0], [0, 0]]),  # one value: nothing is wrong
        ([4], [[0]]),
        ([4, 7], [[0, 1], [1, 0]]),  # one difference: the smallest, which costs 1
        ([4, 7, 4], [[0, 1, 0], [1, 0, 1], [0, 1, 0]]),
    ],
)
def test_squashing_without_two_differences_divides_by_nothing(values, expected):
    vocab = vocab_of(values)
    np.testing.assert_array_equal(distances.squashed(vocab, 3.0), np.array(expected))
    slope = jax.jacobian(lambda s: distances.squashed(vocab, s))(jnp.float32(3))
    assert not np.asarray(slope).any()


def test_a_factor_of_one_charges_the_probability_of_a_wrong_number():
    logits = jax.random.normal(jax.random.key(0), (5, 11)) * 3
    labels = jnp.array([0, 3, 9, 4, 7])
    loss = ntl_was(logits, labels, DIGITS, distance=distances.squashed(DIGITS, 1))
    right = jax.nn.softmax(logits[:, :10])[np.arange(5), labels]
    np.testing.assert_allclose(loss, 1 - right, rtol=1e-5, atol=1e-6)


def test_circular_wraps_around():
    matrix = distances.circular(DIGITS, 10)
    assert matrix[9, 0] == 1 and matrix[0, 5] == 5 and matrix[1, 8] == 3
    hours = vocab_of([-1.0, 11.0, 23.0, 5.0])
    np.testing.assert_allclose(
        distances.circular(hours, 12.0),
        [[0, 0, 0, 6], [0, 0, 0, 6], [0, 0, 0, 6], [6, 6, 6, 0]],
    )
    wide = distances.circular(DIGITS, 100.0)
    np.testing.assert_array_equal(wide, distances.euclidean(DIGITS))


def test_log_scale_is_straight_near_zero_and_counts_magnitudes_beyond():
    matrix = np.asarray(distances.log_scale(vocab_of([0, 9, -9, 1e6, 1e7])))
    np.testing.assert_allclose(matrix[0, 1], np.log(10), rtol=1e-6)
    np.testing.assert_allclose(matrix[1, 2], 2 * np.log(10), rtol=1e-6)
    np.testing.assert_allclose(matrix[3, 4], np.log(10), rtol=1e-5)
    coarse = np.asarray(distances.log_scale(DIGITS, 1000.0)) * 1000
    np.testing.assert_allclose(coarse, distances.euclidean(DIGITS), rtol=0.01)


def test_one_compilation_sweeps_a_factor():
    chex.clear_trace_counter()
    logits = jax.random.normal(jax.random.key(1), (4, 11))
    labels = jnp.array([1, 10, 9, 4])

    @jax.jit
    @chex.assert_max_traces(n=1)
    def losses(knob):
        built = [
            distances.squashed(DIGITS, knob),
            distances.circular(DIGITS, knob),
            distances.log_scale(DIGITS, knob),
        ]
        return jnp.stack([ntl_was(logits, labels, DIGITS, distance=d) for d in built])

    knobs = jnp.array([1.0, 2.0, 7.5])
    swept = jax.vmap(losses)(knobs)
    for knob, values in zip(knobs.tolist(), swept, strict=True):
        built = [
            distances.squashed(DIGITS, knob),
            distances.circular(DIGITS, knob),
            distances.log_scale(DIGITS, knob),
        ]
        alone = [ntl_was(logits, labels, DIGITS, distance=d) for d in built]
        np.testing.assert_allclose(values, jnp.stack(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda v: distances.squashed(v, 0.5), ValueError, "at least 1, not 0.5"),
        (lambda v: distances.squashed(v, float("nan")), ValueError, "not nan"),
        (lambda v: distances.squashed(v, jnp.ones(2)), ValueError, r"\(2,\).*vmap"),
        (lambda v: distances.circular(v, 0), ValueError, "period .*not 0"),
        (lambda v: distances.log_scale(v, -1.0), ValueError, "unit .*not -1.0"),
        (
            lambda v: distances.check_costs(jnp.zeros((3, 10)), v),
            ValueError,
            r"\(3, 10\).*10 number tokens.*\(10, 10\)",
        ),
        (
            lambda v: distances.check_costs(jnp.zeros((10, 10), int), v),
            TypeError,
            "floating point, not int32",
        ),
        (
            lambda v: distances.check_costs(jnp.zeros((10, 10)).at[2, 7].set(-4), v),
            ValueError,
            r"-4.0 at \[2, 7\] \(the number 2 read as 7\)",
        ),
        (
            lambda v: distances.check_costs(jnp.full((10, 10), jnp.nan), v),
            ValueError,
            r"100 of the costs .*nan at \[0, 0\]",
        ),
    ],
)
def test_what_is_no_distance_is_refused(call, error, message, unhooked):
    with pytest.raises(error, match=message):
        call(DIGITS)
    if "read as" not in message and "100 of" not in message:
        with pytest.raises(error, match=message):  # at trace time too
            jax.jit(lambda: call(DIGITS))()
