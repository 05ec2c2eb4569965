"""Which labels make up a number: by hand, and against the grammar of text."""

from decimal import Decimal
from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ntl_jax import NumberVocab, number_spans
from ntl_jax.losses.span_sums import broadcast_first_digit, span_sum
from ntl_jax.numbers.grammar import find_numbers
from tests.losses.number_text import VOCAB, encode

MODES = [("never", False), ("one", False), ("one", True), ("between", False)]
MODES += [("always", False)]
WIDTH = 20


@cache
def compiled(points, commas):
    return jax.jit(partial(number_spans, vocab=VOCAB, points=points, commas=commas))


def spans_of(text, points="one", commas=False, width=WIDTH, **options):
    """The spans of one row, as NumPy arrays [len(text)]."""
    find = compiled(points, commas)
    spans = find(encode(text, width=width), **options)
    return jax.tree.map(lambda x: np.asarray(x)[0, : len(text)], spans)


def runs_of(text, **options):
    """The text of each run, a minus sign before it where it has one."""
    spans, runs = spans_of(text, **options), {}
    for t in np.flatnonzero(spans.inside):
        begin = "-" if spans.negative[t] else ""
        runs[spans.run[t]] = runs.get(spans.run[t], begin) + text[t]
    assert list(runs) == list(range(len(runs)))
    return list(runs.values())


# text: runs with points "never", "one", "between" and "always".
RUNS = {
    "12.34": ("12 34", "12.34", "12.34", "12.34"),
    "7": ("7", "7", "7", "7"),
    "1.2.3": ("1 2 3", "1.2 3", "1.2.3", "1.2.3"),
    "1.2.3.4": ("1 2 3 4", "1.2 3.4", "1.2.3.4", "1.2.3.4"),
    ".5": ("5", ".5", "5", ".5"),
    "1..2": ("1 2", "1 2", "1 2", "1..2"),
    "12.": ("12", "12", "12", "12."),
    "..5": ("5", "5", "5", "..5"),
    "a.5": ("5", "5", "5", ".5"),
    "a:5": ("5", ":5", "5", ":5"),  # a point that begins a word
    "1:5": ("1 5", "1 :5", "1 5", "1 :5"),
    ".": ("", "", "", "."),
    "3a45": ("3 45", "3 45", "3 45", "3 45"),
    "3_45": ("3 45", "3 45", "3 45", "3 45"),
    "1._2": ("1 2", "1 2", "1 2", "1. 2"),
    "45#2": ("45 #2", "45 #2", "45 #2", "45 #2"),  # a digit that begins a word
    "1.#": ("1 #", "1 #", "1 #", "1. #"),
    "1,234": ("1 234", "1 234", "1 234", "1 234"),
    "9" * 19: ("9" * 19,) * 4,
    "a": ("",) * 4,
}


@pytest.mark.parametrize("text", RUNS)
def test_runs(text):
    for points, expected in zip(
        ("never", "one", "between", "always"), RUNS[text], strict=True
    ):
        assert runs_of(text, points=points) == expected.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234,567.5", "1,234,567.5"),
        ("12,345", "12,345"),
        ("1234,567", "1234 567"),
        ("1,23", "1 23"),
        ("1,2345", "1 2345"),
        ("1.234,567", "1.234 567"),
        ("0,123", "0 123"),
        ("1,000,5", "1,000 5"),
        ("1,_234", "1 234"),
        ("-1,234", "-1,234"),
    ],
)
def test_commas(text, expected):
    assert runs_of(text, commas=True) == expected.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-5", "-5"),
        ("\u22125", "-5"),
        ("5-3", "5 3"),
        ("(2)-1", "2 1"),
        ("2%-1", "2 1"),
        ("5 -3", "5 3"),
        ("5~3", "5 3"),
        ("5~", "5"),
        ("a-3", "3"),
        ("a~3", "-3"),
        ("a -3", "-3"),
        ("(-3)", "-3"),
        ("--3", "-3"),
        ("-.5", "-.5"),
        ("-a5", "5"),
        ("-#", "#"),
        ("-12.5,-3", "-12.5 -3"),
        ("5_-3", "5 -3"),
        ("-_3", "3"),
    ],
)
def test_signs(text, expected):
    assert runs_of(text) == expected.split()


def test_fields_of_a_decimal_number():
    spans = spans_of("a-12.34")
    digits = spans.digit
    assert digits.tolist() == [False, False, True, True, False, True, True]
    assert spans.first.tolist() == [False, False, True] + [False] * 4
    assert spans.run.tolist() == [WIDTH] * 2 + [0] * 5
    assert spans.start.tolist() == [0, 1] + [2] * 5
    assert spans.end.tolist() == [0, 1] + [6] * 5
    assert spans.length[digits].tolist() == [4] * 4
    assert spans.left[digits].tolist() == [0, 1, 2, 3]
    assert spans.right[digits].tolist() == [3, 2, 1, 0]
    assert spans.place[digits].tolist() == [1, 0, -1, -2]
    assert spans.exponent[2:].tolist() == [1, 0, -1, -2, -3]
    assert not spans.leads.any()


@pytest.mark.parametrize(
    ("text", "exponents", "places"),
    [
        ("347", [2, 1, 0], [2, 1, 0]),
        ("0.5", [0, -2], [0, -1]),
        ("1.2.3", [0, -2, -4], [0, -1, -2]),
        ("12.", [1, 0], [1, 0]),
        (".55", [-2, -3], [-1, -2]),
    ],
)
def test_exponents_count_positions_and_places_digits(text, exponents, places):
    spans = spans_of(text, points="always")
    assert spans.exponent[spans.digit].tolist() == exponents
    assert spans.place[spans.digit].tolist() == places
    assert spans.leads.all() == text.startswith(".")


def test_a_border_of_segments_ends_a_number_and_hides_the_label_before_a_sign():
    text = "12.34-5"
    for border, expected in (
        (1, "1 2.34 5"),
        (2, "12 .34 5"),
        (3, "12 34 5"),
        (5, "12.34 -5"),
        (6, "12.34 5"),
    ):
        segments = (jnp.arange(WIDTH) >= border).astype(jnp.int32)[None]
        assert runs_of(text, segment_ids=segments) == expected.split()


def test_a_border_hides_the_label_before_the_blank_before_a_sign():
    for border, expected in ((0, "5 3"), (1, "5 -3"), (2, "5 -3")):
        segments = (jnp.arange(WIDTH) >= border).astype(jnp.int32)[None]
        assert runs_of("5 -3", segment_ids=segments) == expected.split()


def numbers_in(text, spans):
    """The numbers that spans put together, as decimals."""
    numbers = {}
    for t in np.flatnonzero(spans.digit):
        digit = Decimal(text[t]).scaleb(int(spans.place[t]))
        sign = -1 if spans.negative[t] else 1
        numbers[spans.run[t]] = numbers.get(spans.run[t], 0) + sign * digit
    return list(numbers.values())


# The grammar also takes a sign apart from its number, and looks over many spaces.
TEXTS = st.text("0123456789" * 2 + "....,,,--()% ab", max_size=WIDTH).filter(
    lambda text: "- " not in text and "  " not in text
)


@settings(max_examples=200, deadline=None)
@example("1,000,0000")  # the second comma joins nothing
@example("1,000,00")
@example("0000,000")
@example("0,0,000")  # no comma joins: a number begins with no zero
@example("0,000,000")
@example("0,100,000,000")
@given(TEXTS)
def test_numbers_are_those_of_the_grammar(text):
    expected = [number.value for number in find_numbers(text)]
    assert numbers_in(text, spans_of(text, commas=True)) == expected


def test_a_number_read_without_its_commas_is_seen():
    text = "1,234"
    expected = [number.value for number in find_numbers(text)]
    assert numbers_in(text, spans_of(text, commas=True)) == expected
    assert numbers_in(text, spans_of(text, commas=False)) != expected


@settings(max_examples=80, deadline=None)
@given(st.text("0123456789..,-_a #:", max_size=WIDTH), st.sampled_from(MODES))
def test_fields_agree_with_a_loop_over_the_runs(text, mode):
    points, commas = mode
    spans = spans_of(text, points=points, commas=commas)
    for t in range(len(text)):
        members = [
            u
            for u in range(len(text))
            if spans.inside[u] and spans.run[u] == spans.run[t]
        ]
        if not spans.inside[t]:
            assert spans.run[t] == WIDTH and spans.start[t] == spans.end[t] == t
            continue
        assert members == list(range(spans.start[t], spans.end[t] + 1))
        digits = [u for u in members if spans.digit[u]]
        dots = [u for u in members if text[u] in ".:"]
        assert spans.leads[t] == (dots[:1] == members[:1])
        if not spans.digit[t]:
            continue
        dot = dots[0] if dots else members[-1] + 1
        whole = sum(u < dot for u in digits)
        assert spans.first[t] == (t == digits[0]) and spans.head[t] == digits[0]
        assert spans.length[t] == len(digits)
        assert spans.left[t] == digits.index(t)
        assert spans.right[t] == len(digits) - 1 - digits.index(t)
        assert spans.place[t] == whole - 1 - digits.index(t)
        assert spans.exponent[t] == dot - 1 - t


def test_rows_do_not_see_one_another():
    labels = encode("12.34", "-7.", ".5", "1,234", width=WIDTH)
    alone = jax.jit(jax.vmap(partial(number_spans, vocab=VOCAB)))(labels)
    for row, label in enumerate(labels):
        together = compiled("one", False)(label[None])
        chex.assert_trees_all_equal(
            *(
                jax.tree.map(lambda x, i=i: x[i], spans)
                for i, spans in ((row, alone), (0, together))
            )
        )


def test_shapes_and_one_trace_for_all_labels():
    traces = []

    @jax.jit
    def find(labels):
        traces.append(labels.shape)
        return number_spans(labels, VOCAB).place

    labels = encode("12.34", "a", "-7 55")
    flat = find(labels)
    find(labels[::-1])
    assert len(traces) == 1
    chex.assert_trees_all_equal(find(labels[:, None, :])[:, 0], flat)
    chex.assert_trees_all_equal(find(labels[0]), flat[0])
    assert find(labels[:, :1]).tolist() == [[0], [0], [0]]
    assert find(labels[:, :0]).shape == (3, 0)


@pytest.mark.parametrize(("width", "reach"), [(7, 3), (16, 4), (25, 4), (25, None)])
def test_sums_over_runs(width, reach):
    rng = np.random.default_rng(width)
    texts = ["".join(rng.choice(list("12345..a"), width)) for _ in range(3)]
    spans = compiled("one", False)(encode(*texts))
    x = rng.normal(size=(3, width)).astype(np.float32)
    near = (
        np.ones((3, width), bool) if reach is None else np.asarray(spans.left < reach)
    )
    x = np.where(near, x, 0)  # what lies further on may or may not count
    cotangent = rng.normal(size=(3, width)).astype(np.float32)
    expected, gradient = np.zeros((2, 3, width))
    for row in range(3):
        for t in np.flatnonzero(spans.digit[row]):
            same = spans.first[row] & (spans.run[row] == spans.run[row, t])
            first = int(np.flatnonzero(same)[0])
            expected[row, first] += x[row, t]
            gradient[row, t] = cotangent[row, first]

    @jax.jit
    def sums_and_gradient(x, cotangent):
        sums, pull = jax.vjp(lambda x: span_sum(x, spans, reach=reach), x)
        return sums, pull(cotangent)[0]

    sums, actual = sums_and_gradient(x, cotangent)
    chex.assert_trees_all_close(sums, expected.astype(np.float32), atol=1e-6)
    chex.assert_trees_all_close(actual, gradient.astype(np.float32), atol=1e-6)


def test_a_flag_of_the_first_digit_reaches_its_number_alone():
    spans = compiled("one", False)(encode("12.34a56.a7"))
    flag = jnp.zeros((1, 11), bool).at[0, jnp.array([0, 7, 10])].set(True)
    marked = np.flatnonzero(broadcast_first_digit(flag, spans)[0])
    assert marked.tolist() == [0, 1, 3, 4, 10]  # 7 is the second digit of 56


def test_impossible_arguments_are_named(unhooked):
    labels = encode("12")
    with pytest.raises(ValueError, match=r"'one', 'between'.*'some'"):
        number_spans(labels, VOCAB, points="some")
    with pytest.raises(ValueError, match=r"\(1, 3\).*\(1, 2\)"):
        number_spans(labels, VOCAB, segment_ids=jnp.zeros((1, 3), jnp.int32))
    with pytest.raises(ValueError, match="row axis"):
        number_spans(labels[0, 0], VOCAB)


def test_an_ignored_digit_is_no_number():
    find = jax.jit(partial(number_spans, vocab=VOCAB), static_argnames="ignore_index")
    labels = encode("5a")[0]
    assert find(labels).inside.tolist() == [True, False]
    five = int(labels[0])
    assert find(labels, ignore_index=five).inside.tolist() == [False, False]


def test_a_vocabulary_without_points_or_signs_has_numbers_all_the_same():
    vocab = NumberVocab.from_mapping({"1": 0, "2": 1, "a": 2}, vocab_size=3)
    find = jax.jit(lambda labels: number_spans(labels, vocab).run)
    assert find(jnp.array([0, 1, 2, 1])).tolist() == [0, 0, 4, 1]
