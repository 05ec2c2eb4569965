"""Intervals by hand and their promised coverage; tests of known differences."""

import itertools
import statistics

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from scipy import stats

from ntl_jax.metrics import bootstrap, bootstrap_interval, compare_runs
from ntl_jax.metrics import wilson_interval as wilson


@hypothesis.given(st.integers(1, 500), st.data(), st.sampled_from([0.5, 0.9, 0.99]))
def test_wilson_is_its_formula(n, data, confidence):
    k = data.draw(st.integers(0, n))
    z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    s = k / n
    centre, spread = s + z * z / (2 * n), np.sqrt(s * (1 - s) / n + (z / (2 * n)) ** 2)
    expected = [(centre + side * z * spread) / (1 + z * z / n) for side in (-1, 1)]
    value, low, high = wilson(k, n, confidence=confidence)
    assert value == s
    assert (low, high) == pytest.approx(expected, abs=1e-9)
    assert 0 <= low <= value <= high <= 1
    other = stats.binomtest(k, n).proportion_ci(confidence, method="exact")
    assert (low, high) != pytest.approx((other.low, other.high), abs=1e-12)


def test_wilson_at_the_ends():
    assert wilson(0, 0) is None
    assert wilson(0, 7).low == 0.0 and wilson(7, 7).high == 1.0
    assert wilson(0, 7).high == pytest.approx(1 - wilson(7, 7).low)
    with pytest.raises(ValueError, match="8 successes in 7 trials"):
        wilson(8, 7)
    with pytest.raises(ValueError, match="between 0 and 1, got 95"):
        wilson(1, 7, confidence=95)


STATISTICS = {
    "mean": bootstrap.mean,
    "rmse": bootstrap.root_mean_square,
    "median": bootstrap.median,
}


@pytest.mark.parametrize("name", STATISTICS)
def test_bounds_are_quantiles_of_resampled_scores(name):
    x = np.random.default_rng(0).gamma(2.0, size=200)
    statistic = STATISTICS[name]
    interval = bootstrap_interval(x, statistic=statistic, resamples=20_000, seed=3)
    scores = statistic(x[np.random.default_rng(3).integers(0, 200, (20_000, 200))])
    expected = np.quantile(scores, (0.025, 0.975))
    assert interval.value == pytest.approx(float(statistic(x)), rel=1e-12)
    assert interval[1:] == pytest.approx(tuple(expected), rel=1e-12)
    narrow = bootstrap_interval(x, statistic=statistic, confidence=0.5)
    assert narrow.high - narrow.low < 0.5 * (interval.high - interval.low)


def test_one_example_is_its_own_interval():
    assert bootstrap_interval(np.array([2.0])) == (2.0, 2.0, 2.0)
    assert compare_runs(np.array([2.0]), np.array([5.0])) == (3.0, 3.0, 3.0, 1.0)


def test_a_statistic_of_two_arrays_keeps_examples_together():
    rng = np.random.default_rng(2)
    y = rng.normal(size=300)
    p = y + 0.5 * rng.normal(size=300)

    def pearson(p, y):
        p = p - p.mean(-1, keepdims=True)
        y = y - y.mean(-1, keepdims=True)
        return (p * y).sum(-1) / np.sqrt((p * p).sum(-1) * (y * y).sum(-1))

    value, low, high = bootstrap_interval(p, y, statistic=pearson)
    assert value == pytest.approx(stats.pearsonr(p, y).statistic)
    assert low < value < high and high - low < 0.1
    # Were p and y drawn apart, the resampled correlations would lie around 0.
    apart = bootstrap_interval(p, rng.permutation(y), statistic=pearson)
    assert apart.high < low


def test_intervals_cover_as_often_as_promised():
    rng = np.random.default_rng(3)
    hits = dict.fromkeys((0.8, 0.95), 0)
    for trial in range(400):
        x = rng.normal(1.0, 2.0, 60)
        for confidence in hits:
            interval = bootstrap_interval(
                x, confidence=confidence, resamples=400, seed=trial
            )
            hits[confidence] += interval.low <= 1.0 <= interval.high
    for confidence, count in hits.items():
        spread = 4 * np.sqrt(confidence * (1 - confidence) / 400)
        assert abs(count / 400 - confidence) < spread + 0.02, confidence


def test_a_seed_gives_the_same_and_blocks_change_nothing_of_note(monkeypatch):
    x = np.random.default_rng(4).normal(size=50)
    one = bootstrap_interval(x, seed=7)
    assert bootstrap_interval(x, seed=7) == one
    assert bootstrap_interval(x, seed=8) != one
    monkeypatch.setattr(bootstrap, "_BLOCK", 50)  # one resample a block
    assert bootstrap_interval(x, seed=7).value == one.value
    assert bootstrap_interval(x, seed=7).low == pytest.approx(one.low, abs=0.05)


def test_pairing_sees_what_two_intervals_do_not():
    rng = np.random.default_rng(5)
    hard = rng.normal(0.0, 10.0, 200)  # what an example adds to either run
    a, b = hard + rng.normal(0, 0.5, 200), hard + 0.3 + rng.normal(0, 0.5, 200)
    result = compare_runs(a, b)
    assert result.difference == pytest.approx(b.mean() - a.mean())
    assert result.low > 0 and result.p_value < 0.001
    alone = [bootstrap_interval(x) for x in (a, b)]
    assert alone[0].high > alone[1].low, "apart, the intervals overlap"
    back = compare_runs(b, a)
    assert back.difference == pytest.approx(-result.difference)
    assert back.high < 0


@pytest.mark.parametrize("name", STATISTICS)
def test_p_values_are_shares_of_swaps(name):
    rng = np.random.default_rng(6)
    a = rng.normal(size=10)
    b = 0.9 * a + 0.1 + 0.5 * rng.normal(size=10)
    statistic = STATISTICS[name]
    swaps = np.array(list(itertools.product((False, True), repeat=10)))
    swapped = statistic(np.where(swaps, a, b)) - statistic(np.where(swaps, b, a))
    observed = abs(statistic(b) - statistic(a))
    share = (np.abs(swapped) >= observed * (1 - 1e-9)).mean()
    exact = compare_runs(a, b, statistic=statistic, resamples=1024).p_value
    assert exact == pytest.approx(share, rel=1e-12)
    sampled = [
        compare_runs(a, b, statistic=statistic, resamples=1023, seed=seed).p_value
        for seed in range(20)
    ]
    assert np.mean(sampled) == pytest.approx(share, abs=0.01)
    assert len(set(sampled)) > 1 and 0.02 < share < 0.98, "any test would agree"


def test_p_values_of_equal_runs_are_uniform_and_of_the_same_run_one():
    rng = np.random.default_rng(8)
    p_values = [
        compare_runs(*rng.normal(size=(2, 30)), resamples=199, seed=k).p_value
        for k in range(300)
    ]
    assert stats.kstest(p_values, "uniform").pvalue > 0.001
    x = rng.random(30)
    assert compare_runs(x, x).p_value == 1.0


def test_no_p_value_is_zero():
    a = np.zeros(40)
    assert compare_runs(a, a + 1, resamples=99).p_value == 1 / 100


def test_ties_of_accuracies_count_as_far():
    a = np.array([1.0, 0.0, 0.0])
    b = np.array([1.0, 1.0, 1.0])
    # Of four ways to swap two differing rows, two give a difference as far.
    assert compare_runs(a, b, resamples=4000).p_value == pytest.approx(0.5, abs=0.03)


def test_runs_of_tuples():
    rng = np.random.default_rng(9)
    y = rng.normal(size=100)
    good, bad = y + 0.1 * rng.normal(size=100), y + rng.normal(size=100)

    def rmse(p, y):
        return np.sqrt(np.square(p - y).mean(-1))

    result = compare_runs((good, y), (bad, y), statistic=rmse)
    assert 0.5 < result.low < result.difference < result.high < 1.5


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ((np.ones(3), np.ones(4)), r"\(3,\), \(4,\)"),
        ((np.ones((2, 3)),), r"\(2, 3\)"),
        ((np.ones(0),), r"\(0,\)"),
        ((), r"shapes \[\]"),
    ],
)
def test_impossible_samples_are_named(samples, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(*samples)


def test_impossible_arguments_are_named():
    x = np.ones(3)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        bootstrap_interval(x, resamples=0)
    with pytest.raises(ValueError, match=r"got 1\.5"):
        compare_runs(x, x, confidence=1.5)
    with pytest.raises(ValueError, match="1 arrays of run a, 2 of run b"):
        compare_runs(x, (x, x))
    with pytest.raises(ValueError, match=r"\(3,\), \(4,\)"):
        compare_runs(x, np.ones(4))
