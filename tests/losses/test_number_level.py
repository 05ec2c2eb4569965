"""The losses on whole numbers: against a float64 loop, and by hand."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import (
    NumberVocab,
    number_level_loss,
    number_level_loss_from_stats,
    stats_from_logits,
)
from tests.losses.number_level_cases import VOCAB as BARE
from tests.losses.number_level_loop import (
    ROWS,
    confident,
    loop,
    loop_gradient,
    random_logits,
    run,
)
from tests.losses.number_text import COLUMNS, TOKENS, VOCAB, encode

OPTIONS = [{}, {"log_space": True}, {"signs": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_decimal_mode_is_the_loop(options):
    for text in ROWS:
        logits = random_logits(text)
        actual = run(logits, text, **options)
        expected = loop(logits, text, **options), loop_gradient(logits, text, **options)
        for ours, theirs in zip(actual, expected, strict=True):
            chex.assert_trees_all_close(
                np.asarray(ours[0], np.float64), theirs, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        (lambda text: text.replace("12.34", "12234"), {}),
        (lambda text: text.replace("(-5", "(a5"), {}),
        (lambda text: text, {"log_space": True}),
    ],
)
def test_another_number_is_seen(wrong, options):
    text = ROWS[0]
    logits = random_logits(text)
    actual, _ = run(logits, text)
    expected = loop(logits, wrong(text), **options)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(actual[0], np.float32(expected), atol=1e-3)


def loss_of(guess, truth, **options):
    """The sum of the losses of one text where another was predicted."""
    value, _ = run(confident(guess), truth, **options)
    return float(value.sum())


@pytest.mark.parametrize(
    ("guess", "truth", "relative", "log_space"),
    [
        ("12.34", "12.34", 0, 0),
        ("12.35", "12.34", 0.01 / 22.34, np.log(13.35 / 13.34)),
        ("352", "347", 5 / 447, np.log(353 / 348)),
        ("8", "0", 8, np.log(9)),
        ("0", "8", 8 / 9, np.log(9)),
        (".7", ".5", 0.2 / 0.6, np.log(1.7 / 1.5)),
        ("-5", "-5", 0, 0),
        ("a5", "-5", 10 / 6, 2 * np.log(6)),
        ("-5", "a5", 0, 0),  # nothing is asked where no sign is
        ("1.3.3", "1.2.3", 0.1 / 2.2, np.log(2.3 / 2.2)),
        ("2..2", "1..2", 1 / 2, np.log(3 / 2)),
        ("9" * 25, "9" * 25, 0, 0),
        ("8" + "9" * 24, "9" * 25, 1 / 11, np.log(10 / 9)),
        ("00", "99", 99 / 109, np.log(100)),
    ],
)
def test_worked_examples(guess, truth, relative, log_space):
    assert loss_of(guess, truth) == pytest.approx(relative, rel=1e-4, abs=1e-5)
    given = loss_of(guess, truth, log_space=True)
    assert given == pytest.approx(log_space, rel=1e-4, abs=1e-5)


def test_expected_digits_of_three_places():
    # A logit of 5 on 3, on 5 and on 2, 0.01 elsewhere: 361.458983 for 347.
    digits = {str(d): d for d in range(10)}
    vocab = NumberVocab.from_mapping(digits | {"a": 10}, vocab_size=11)
    logits = jnp.full((3, 11), 0.01).at[jnp.arange(3), jnp.array([3, 5, 2])].set(5.0)
    labels = jnp.array([3, 4, 7])
    for options, expected in (
        ({}, 14.458983 / 447),
        ({"log_space": True}, np.log(362.458983 / 348)),
        ({"mode": "ntloss"}, 14.458983 / (347 + 361.458983)),
    ):
        loss = jax.jit(partial(number_level_loss, vocab=vocab, **options))
        assert loss(logits, labels).tolist() == pytest.approx(
            [expected, 0, 0], rel=1e-5
        )


def test_commas_join_where_asked():
    logits = np.zeros((5, COLUMNS))
    plain, joined = run(logits, "1,234")[0], run(logits, "1,234", commas=True)[0]
    assert plain[0] == pytest.approx([3.5 / 2, 0, 265.5 / 334, 0, 0], rel=1e-5)
    assert joined[0] == pytest.approx([3765.5 / 2234, 0, 0, 0, 0], rel=1e-5)


@pytest.mark.parametrize("text", ["9" * 60, "1" + "0" * 59, "0" * 60, "-" + "7" * 60])
@pytest.mark.parametrize("options", [{}, {"log_space": True}, {"mode": "ntloss"}])
def test_sixty_digits_do_not_overflow(text, options):
    text = text.rjust(61, "(")
    logits = random_logits(text, seed=1)
    value, gradient = run(logits, text, **options)
    chex.assert_tree_all_finite((value, gradient))
    assert int((value != 0).sum()) == 1
    if options.get("mode") == "ntloss":
        return
    expected = loop(logits, text, **options)
    if "0" * 60 in text and options:  # 30 leading zeros at most count as such
        assert 30 * np.log(10) < float(value.max()) < expected.max()
    else:
        chex.assert_trees_all_close(value[0], np.float32(expected), rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"log_space": True}])
@pytest.mark.parametrize("truth", ["0", "00", "0.0"])
def test_a_zero_has_a_gradient(truth, options):
    logits = jnp.zeros((1, len(truth), COLUMNS))
    value, gradient = run(logits, truth, **options)
    assert 0 < float(value.sum()) < 10
    chex.assert_tree_all_finite(gradient)
    assert float(gradient[0, 0, TOKENS["9"]]) > 0.05
    assert float(gradient[0, 0, TOKENS["0"]]) < -0.05
    _, none = run(logits, truth, **MODES[2])
    assert float(jnp.abs(none).max()) < 1e-6


def test_a_sign_is_learnt_and_a_number_without_one_asks_for_none():
    logits = random_logits("(-5").astype(np.float32)[None]
    _, gradient = run(logits, "(-5")
    assert float(gradient[0, 1, TOKENS["-"]]) < -1e-3
    _, gradient = run(logits, "(a5")
    assert not gradient[0, 1].any()
    _, gradient = run(logits, "(-5", signs=False)
    assert not gradient[0, 1].any()


MODES = [{}, {"log_space": True}, {"mode": "ntloss", "float_level": True}]


@pytest.mark.parametrize("options", MODES, ids=str)
def test_values_sit_at_first_digits_and_weigh_what_those_weigh(options):
    text = "a12.3(-45"
    labels, logits = encode(text), jnp.asarray(random_logits(text), jnp.float32)[None]
    weights = jnp.linspace(0.5, 1.5, len(text))[None]

    @jax.jit
    def everything(logits):
        stats = stats_from_logits(logits, labels, BARE)
        given = {"weights": weights, **options}
        pair = number_level_loss_from_stats(stats, labels, BARE, **given)
        reduced = [
            number_level_loss(logits, labels, BARE, reduction=reduction, **given)
            for reduction in (None, "sum", "mean")
        ]
        return *pair, reduced

    value, weight, reduced = everything(logits)
    firsts = np.zeros(labels.shape, bool)
    firsts[0, [1, 7]] = True
    assert ((value != 0) == firsts).all()
    chex.assert_trees_all_equal(weight, jnp.where(firsts, weights, 0.0))
    total = (value * weight).sum()
    expected = [value * weight, total, total / weight.sum()]
    chex.assert_trees_all_close(reduced, expected, rtol=1e-6)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_what_does_not_count_has_no_value_and_no_gradient(options):
    text = "_a12.3a7a"
    logits = random_logits(text)[None]
    weights = np.ones((1, len(text)))
    weights[0, 7] = 0  # all of the 7
    bad = logits.copy()
    bad[0, [0, 1, 6, 7, 8]] = np.nan
    value, gradient = run(bad, text, weights=weights, **options)
    expected = run(logits, text, weights=weights, **options)
    chex.assert_trees_all_equal((value, gradient), expected)
    assert np.flatnonzero(value[0]).tolist() == [2]
    rows = np.flatnonzero(np.abs(np.asarray(gradient[0])).sum(axis=-1))
    assert rows.tolist() == [2, 3, 5]


@pytest.mark.parametrize("options", MODES[:2], ids=str)
def test_a_digit_or_a_sign_without_weight_counts_as_right(options):
    text, guess = "(-3.7", "(-8.9"
    weights = np.ones((1, len(text)), np.float32)
    weights[0, [1, 2]] = 0.0, 1.0
    weights[0, 4] = 0
    logits = confident(guess)[None]
    logits[0, [1, 4]] = np.nan
    value, gradient = run(logits, text, weights=weights, **options)
    assert float(value.sum()) == pytest.approx(
        loss_of("(-8.7", text, **options), rel=1e-5
    )
    chex.assert_tree_all_finite(gradient)
    assert not gradient[0, [1, 4]].any()


@pytest.mark.parametrize("options", MODES, ids=str)
def test_borders_and_gaps_part_numbers(options):
    logits = jnp.asarray(random_logits("12345"), jnp.float32)[None]
    segments = jnp.array([[0, 0, 1, 1, 1]])
    value, gradient = run(logits, "12345", segment_ids=segments, **options)
    alone = [
        run(logits[:, cut], text, **options)
        for cut, text in ((slice(0, 2), "12"), (slice(2, 5), "345"))
    ]
    parts = [jnp.concatenate(part, axis=1) for part in zip(*alone, strict=True)]
    chex.assert_trees_all_close([value, gradient], parts, rtol=1e-5, atol=1e-7)
    value, _ = run(logits, "12_45", **options)
    assert np.flatnonzero(value[0]).tolist() == [0, 3]


@pytest.mark.parametrize("options", MODES, ids=str)
def test_extreme_logits_give_finite_results(options):
    text = "(-12.3a0"
    base = random_logits(text).astype(np.float32)
    rows = [base * 1e3, np.sign(base) * 1e30, np.where(base > 0, base, -np.inf)]
    for row in rows:
        chex.assert_tree_all_finite(run(row, text, **options))


@pytest.mark.parametrize("options", MODES, ids=str)
def test_half_precision_shapes_vmap_and_one_trace(options):
    texts = ["12.5(-3", "0.25a77", "(.5-1a9"]
    labels, traces = encode(*texts), []
    logits = jnp.stack([jnp.asarray(random_logits(t, 2), jnp.bfloat16) for t in texts])

    @jax.jit
    def losses(logits, labels):
        traces.append(labels.shape)
        loss = partial(number_level_loss, vocab=BARE, **options)
        value, pull = jax.vjp(lambda z: loss(z, labels), logits)
        mapped = jax.vmap(loss)(logits, labels)
        wide = loss(logits.astype(jnp.float32), labels)
        return value, pull(jnp.ones_like(value))[0], mapped, wide

    value, gradient, mapped, wide = losses(logits, labels)
    assert value.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16
    chex.assert_trees_all_close(mapped, value, rtol=1e-6)
    chex.assert_trees_all_close(wide, value, rtol=1e-6)
    losses(logits, labels[::-1])
    assert len(traces) == 1


def test_tokens_that_begin_a_word_begin_a_number():
    # The stats are read off VOCAB, in which the marked 7 is a digit too.
    loss = jax.jit(partial(number_level_loss, vocab=VOCAB))
    value = loss(jnp.zeros((3, COLUMNS)), encode("4#2")[0])
    assert np.flatnonzero(value).tolist() == [0, 1]


def test_impossible_options_are_named():
    logits, labels = jnp.zeros((1, COLUMNS)), encode("1")[0]
    run = partial(number_level_loss, logits, labels, BARE)
    with pytest.raises(ValueError, match=r"log_space.*mode='decimal'"):
        run(mode="ntloss", log_space=True)
    with pytest.raises(ValueError, match=r"signs=False: .*'decimal'"):
        run(mode="ntloss", signs=False)
    with pytest.raises(ValueError, match=r"float_level, reweigh: .*'ntloss'"):
        run(float_level=True, reweigh=True)
    with pytest.raises(ValueError, match="max_number_length"):
        run(max_number_length=10)


def test_an_unknown_mode_and_tokens_of_two_digits_are_named(unhooked):
    logits, labels = jnp.zeros((1, 4)), jnp.array([1])
    mapping = {"7": 1, "12": 2, "a": 3}
    vocab = NumberVocab.from_mapping(mapping, vocab_size=4, policy="numbers")
    with pytest.raises(ValueError, match=r"token 2 .*12"):
        number_level_loss(logits, labels, vocab)
    with pytest.raises(ValueError, match="'exact'"):
        number_level_loss(logits, labels, vocab, mode="exact")


def test_a_number_far_behind_its_first_digit_counts_in_log_space():
    # 7 where 3 is said, behind nineteen zeros: log 8 - log 4.
    labels = encode("0" * 19 + "7")
    said = encode("0" * 19 + "3")
    logits = 1e4 * jax.nn.one_hot(said, COLUMNS, dtype=jnp.float32)
    options = {"vocab": VOCAB, "log_space": True, "reduction": "sum"}
    loss = jax.jit(partial(number_level_loss, **options))(logits, labels)
    assert float(loss) == pytest.approx(np.log(2), rel=1e-5)
