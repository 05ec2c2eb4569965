"""What losses say of input that they cannot use, and what they make of none."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from ntl_jax import NumberVocab, Objective, objective_from_hidden, stats_from_logits
from ntl_jax.losses import (
    cross_entropy,
    cross_entropy_from_stats,
    digit_weights,
    gaussian_cross_entropy,
    gaussian_cross_entropy_from_stats,
    gaussian_targets,
    ntl_dot_product,
    ntl_huber,
    ntl_optimal_transport,
    ntl_was,
    ntl_was_cdf,
    ntl_was_from_stats,
    number_level_loss,
    number_level_loss_from_stats,
    number_spans,
    shift_labels,
    stats_from_hidden,
)
from ntl_jax.losses.baselines import (
    digit_entropy,
    digit_entropy_from_stats,
    dist2,
    dist2_from_stats,
    ntil,
    ntil_from_stats,
    raft,
    raft_from_stats,
    smmd,
    smmd_matrix,
)

TOKENS = {"<pad>": 0, "=": 1, ".": 2, "-": 3} | {str(d): d + 4 for d in range(10)}
VOCAB = NumberVocab.from_mapping(TOKENS, vocab_size=14)
LABELS = jnp.array([[1, 8, 5], [1, 6, -100]])
LOGITS = jnp.zeros((2, 3, 14))


def transport(epsilon):
    target = gaussian_targets(LABELS, VOCAB)
    return ntl_optimal_transport(LOGITS, LABELS, VOCAB, target=target, epsilon=epsilon)


# Everything that takes one number for an option, by the name of that option.
TAKERS = {
    "sigma": lambda x: gaussian_cross_entropy(LOGITS, LABELS, VOCAB, sigma=x),
    "tau": lambda x: dist2(LOGITS, LABELS, VOCAB, tau=x),
    "delta": lambda x: ntl_huber(LOGITS, LABELS, VOCAB, delta=x),
    "epsilon": transport,
    "base": lambda x: digit_weights(LABELS, VOCAB, base=x),
    "alpha": lambda x: smmd_matrix(VOCAB, alpha=x),
    "place_base": lambda x: ntil(LOGITS, LABELS, VOCAB, place_base=x),
    "token_weight": lambda x: ntil(LOGITS, LABELS, VOCAB, token_weight=x),
    "temperature": lambda x: ntil(LOGITS, LABELS, VOCAB, temperature=x),
}


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("length", [1, 3, len(VOCAB)])
def test_a_vector_is_no_scalar(name, length, unhooked):
    # Without strict rank promotion, as users run it, 10 of them would fit the numbers.
    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(ValueError, match=rf"{name} .*\({length},\)"),
    ):
        TAKERS[name](jnp.ones(length))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name, call",
    [
        ("delta", TAKERS["delta"]),
        ("base", TAKERS["base"]),
        ("alpha", TAKERS["alpha"]),
        ("z_loss", lambda x: cross_entropy(LOGITS, LABELS, z_loss=x)),
        *(
            (name, partial(lambda name, x: fused(**{name: x}), name))
            for name in ("soft_cap", "logit_scale")
        ),
    ],
)
def test_what_is_not_finite(name, call, value, unhooked):
    with pytest.raises(ValueError, match=rf"{name} .*{value}"):
        call(value)


def fused(labels=LABELS, **options):
    hidden, kernel = jnp.ones((2, 3, 4)), jnp.ones((4, 14))
    return stats_from_hidden(hidden, kernel, labels, VOCAB, **options)


def test_a_scalar_array_is_a_soft_cap(unhooked):
    capped = fused(soft_cap=jnp.float32(3.0))
    assert (capped.lse == fused(soft_cap=3.0).lse).all()


@pytest.mark.parametrize(
    "loss", [cross_entropy, *(partial(x, vocab=VOCAB) for x in (ntl_huber, raft, ntil))]
)
def test_lists_are_no_arrays(loss, unhooked):
    with pytest.raises(TypeError, match=r"labels .* list.*jnp"):
        loss(LOGITS, labels=LABELS.tolist())
    with pytest.raises(TypeError, match=r"logits .* list.*jnp"):
        loss(LOGITS.tolist(), labels=LABELS)


def squared_mean(prediction, target):
    return jnp.mean((prediction - target) ** 2)


def with_an_axis(prediction, target):
    return jnp.abs(prediction - target)[None]


LISTS = {
    "hidden": lambda: stats_from_hidden([[1.0]], HEAD[1], LABELS, VOCAB),
    "kernel": lambda: stats_from_hidden(HEAD[0], [[1.0]], LABELS, VOCAB),
    "bias": lambda: stats_from_hidden(*HEAD, LABELS, VOCAB, bias=[0.0] * 14),
    "costs": lambda: ntl_was(LOGITS, LABELS, VOCAB, distance=[[0.0] * 10] * 10),
    "target": lambda: ntl_was_cdf(LOGITS, LABELS, VOCAB, target=[[[1.0]]]),
    "matrix": lambda: smmd(LOGITS, LABELS, VOCAB, matrix=[[1.0]]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_in_the_place_of_other_arrays(name, unhooked):
    with pytest.raises(TypeError, match=rf"{name} .* list.*jnp"):
        LISTS[name]()


def test_segments_of_another_shape_that_no_term_reads(unhooked):
    stats = stats_from_logits(LOGITS, LABELS, VOCAB)
    with pytest.raises(ValueError, match=r"segment_ids .*\(2, 2\)"):
        Objective()(stats, LABELS, VOCAB, segment_ids=LABELS[:, 1:])


@pytest.mark.parametrize("penalty", [squared_mean, with_an_axis])
def test_a_penalty_is_elementwise(penalty, unhooked):
    # A mean of its own would be the loss of every position, without a word.
    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(ValueError, match=r"predictions .*\(2, 3\)"),
    ):
        ntl_dot_product(LOGITS, LABELS, VOCAB, penalty=penalty)


def test_lists_of_labels_and_segments(unhooked):
    with pytest.raises(TypeError, match=r"labels .* list"):
        gaussian_targets(LABELS.tolist(), VOCAB)
    with pytest.raises(TypeError, match=r"labels .* list"):
        digit_weights(LABELS.tolist(), VOCAB)
    with pytest.raises(TypeError, match=r"labels .* list"):
        fused(LABELS.tolist())
    with pytest.raises(TypeError, match=r"segment_ids .* list"):
        digit_weights(LABELS, VOCAB, segment_ids=[[0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("loss", [number_level_loss, digit_entropy, ntil, raft])
@pytest.mark.parametrize("rows, length", [(0, 3), (2, 0)])
def test_rows_of_nothing(loss, rows, length):
    logits, labels = jnp.zeros((rows, length, 14)), jnp.zeros((rows, length), int)
    total = partial(loss, labels=labels, vocab=VOCAB, reduction="mean")
    value, gradient = jax.jit(jax.value_and_grad(total))(logits)
    assert value == 0 and gradient.shape == logits.shape


@pytest.mark.parametrize("rows, length", [(0, 3), (2, 0)])
def test_an_objective_of_rows_of_nothing(rows, length):
    labels = jnp.zeros((rows, length), int)
    hidden, kernel = jnp.zeros((rows, length, 4)), jnp.ones((4, 14))
    objective = Objective(number_level=0.1, raft=0.1)

    @jax.jit
    def dense(hidden, kernel):
        stats = stats_from_logits(hidden @ kernel, labels, VOCAB)
        return objective.total(objective(stats, labels, VOCAB))

    assert dense(hidden, kernel) == 0

    def total(hidden, kernel):
        return objective_from_hidden(objective, hidden, kernel, labels, VOCAB)[0]

    both = jax.jit(jax.value_and_grad(total, (0, 1)))
    value, (_, gradient) = both(hidden, kernel)
    assert value == 0 and not gradient.any()


@pytest.mark.parametrize("counts", [{}, {"ce": 4.0}])
def test_counts_of_another_objective(counts, unhooked):
    objective = Objective()
    terms = objective(stats_from_logits(LOGITS, LABELS, VOCAB), LABELS, VOCAB)
    with pytest.raises(ValueError, match=r"was .*(ce|none)"):
        objective.total(terms, counts)


def test_a_coefficient_is_a_scalar(unhooked):
    objective = Objective(ce=jnp.ones(3))
    terms = objective(stats_from_logits(LOGITS, LABELS, VOCAB), LABELS, VOCAB)
    with pytest.raises(ValueError, match=r"ce .*\(3,\)"):
        objective.total(terms)


def test_plain_numbers_are_counts(unhooked):
    objective, hidden = Objective(), jnp.ones((2, 3, 4))
    common = objective, hidden, jnp.ones((4, 14)), LABELS, VOCAB
    plain, _ = objective_from_hidden(*common, counts={"ce": 5, "was": 3.0})
    assert plain == objective_from_hidden(*common)[0]


def test_integer_logits_of_a_head(unhooked):
    with pytest.raises(TypeError, match=r"logits_dtype .*int8"):
        fused(logits_dtype="int8")


def test_a_swept_temperature_of_0_has_a_gradient():
    # 0 is the label alone, and so is what lies below it, which nobody sees traced.
    def total(tau):
        return dist2(LOGITS, LABELS, VOCAB, tau=tau, reduction="mean")

    values, gradients = jax.vmap(jax.value_and_grad(total))(jnp.array([0.0, -1.0, 1.0]))
    assert jnp.isfinite(gradients).all() and gradients[2] < 0
    assert jnp.allclose(values[:2], total(0.0), rtol=1e-6)


HEAD = jnp.zeros((2, 3, 8)), jnp.zeros((8, 14))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats_from_logits(LOGITS, LABELS, {"1": 1}), "NumberVocab.*dict"),
        (lambda: stats_from_hidden(*HEAD, LABELS, None), "NumberVocab.*NoneType"),
        (lambda: number_spans(LABELS, "1"), "NumberVocab.*str"),
        (lambda: Objective().counts(LABELS, None), "NumberVocab.*NoneType"),
        (lambda: Objective()(LOGITS, LABELS, VOCAB), "stats_from_logits"),
        (lambda: ntl_was_from_stats(LOGITS, LABELS, VOCAB), "stats_from_logits"),
        (lambda: objective_from_hidden(1.0, *HEAD, LABELS, VOCAB), "float"),
        (lambda: stats_from_hidden(*HEAD, LABELS, VOCAB, tile_tokens=2.5), "2.5"),
        (lambda: stats_from_hidden(*HEAD, LABELS, VOCAB, row_groups=1.0), "1.0"),
        (lambda: stats_from_hidden(*HEAD, LABELS, VOCAB, tile_tokens=True), "True"),
        (
            lambda: digit_weights(LABELS, VOCAB, segment_ids=jnp.ones((2, 3))),
            "segment_ids .*float32",
        ),
    ],
)
def test_what_is_given_is_named_with_the_remedy(call, message, unhooked):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy_from_stats,
        gaussian_cross_entropy_from_stats,
        ntl_was_from_stats,
        number_level_loss_from_stats,
        digit_entropy_from_stats,
        dist2_from_stats,
        ntil_from_stats,
        raft_from_stats,
        Objective(),
    ],
)
def test_stats_of_other_positions(loss, unhooked):
    # As users run it, one row of labels would be compared with both rows of stats.
    stats = stats_from_logits(LOGITS, LABELS, VOCAB)
    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(ValueError, match=r"\(2, 3\).*\(1, 3\)"),
    ):
        loss(stats, LABELS[:1], VOCAB)


@pytest.mark.parametrize("length", [0, -1, 1.5])
def test_numbers_have_a_digit_at_least(length, unhooked):
    with pytest.raises(ValueError, match=rf"1.*{length}"):
        number_level_loss(
            LOGITS, LABELS, VOCAB, mode="ntloss", max_number_length=length
        )


def test_labels_that_are_shifted_are_integers(unhooked):
    with pytest.raises(TypeError, match=r"labels .*float32"):
        shift_labels(LABELS.astype(jnp.float32))
