"""Training a Numformer from the command line's config."""

import json
import math

import chex
import jax
import numpy as np
import pytest

from ntl_jax.models import NumformerConfig
from ntl_jax.numbers.grammar import find_numbers
from ntl_jax.sharding.mesh import batch_sharding, make_mesh
from tests.train.conftest import standard_promotion
from tests.train.helpers import SHALLOW, changed
from train.config import ConfigError, LossConfig, validate
from train.data import MaskedDataset, load_splits
from train.data.inputs import load_inputs, open_tokenizer
from train.data.number_tokens import make_vocab
from train.evaluation.evaluate_run import evaluate
from train.evaluation.predict import export, load_run, predict
from train.heads import HEADS
from train.heads.number import total_loss
from train.loop import run
from train.loss import loss_and_grads
from train.pretrained import fit_vocabulary
from train.state import init_state, make_task, state_shardings

TINY = changed(
    SHALLOW,
    head="numformer",
    loss=LossConfig(),
    value_scale="minmax5",
    mask_rate=0.4,
    optimizer__learning_rate=1e-2,
    steps=6,
    log_every=2,
)
SUMS = changed(
    TINY,
    mask_rate=None,
    model__d_model=32,
    model__d_ff=64,
    model__num_layers=2,
    model__num_heads=4,
    model__dropout_rate=0.0,
    data__train_size=4000,
    data__eval_size=200,
    data__max_operand=50,
    data__batch_size=64,
    optimizer__learning_rate=3e-3,
    steps=600,
    log_every=50,
)


def task_and_inputs(config=TINY, sizes=(1, 1, 1)):
    tokenizer = open_tokenizer("builtin", True, head="numformer")
    model = fit_vocabulary(config.model, len(tokenizer), 1, grow=True)
    model = HEADS["numformer"].fit_model(model, tokenizer)
    inputs = load_inputs(config, model, tokenizer)
    mesh = make_mesh(*sizes, devices=jax.devices()[: math.prod(sizes)])
    vocab = make_vocab(config, model, inputs)
    return make_task(config, model, vocab, mesh, inputs.scale), inputs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("numformer") / "run"
    with standard_promotion():
        return run_dir, run(TINY, run_dir)


def test_a_run_trains_evaluates_answers_and_keeps_its_scale(trained):
    run_dir, result = trained
    for name, scores in result.results.items():
        metrics = scores.metrics
        assert metrics["loss"] == pytest.approx(
            metrics["ce"] + metrics["squared_error"]
        )
        assert 0 <= metrics["rounded_accuracy"] <= 1, name
        assert metrics["unparsable_rate"] == 0
        assert len(scores.predictions) == 20
        assert [float(text) for text in scores.predictions]
    content = json.loads((run_dir / "config.json").read_text())
    scale = content["resolved_value_scale"]
    texts = [text for row in load_splits(TINY.data).train for text in row.values()]
    numbers = [float(n.value) for text in texts for n in find_numbers(text)]
    ends = min(numbers), max(numbers)
    assert (scale["kind"], scale["low"], scale["high"]) == ("minmax5", *ends)
    loaded = load_run(run_dir)
    assert isinstance(loaded.model, NumformerConfig)
    assert (loaded.scale.low, loaded.scale.high) == ends
    assert np.isfinite(float(predict(run_dir, "What is 3 plus 4?").split(": ")[1]))
    with pytest.raises(ConfigError, match="Hugging Face has no format"):
        export(run_dir, run_dir / "out")


def test_a_resumed_run_ends_with_the_same_bits(trained, tmp_path):
    _, result = trained
    config = changed(TINY, steps=4)
    run(config, tmp_path)
    resumed = run(changed(TINY, resume=True), tmp_path)
    chex.assert_trees_all_equal(
        jax.device_get(resumed.state.params), jax.device_get(result.state.params)
    )


@pytest.mark.slow
def test_a_finished_run_is_evaluated_anew_to_the_same_scores(trained):
    run_dir, result = trained
    evaluate(run_dir, ["--out", str(run_dir / "again")])
    again = json.loads((run_dir / "again" / "evaluation.json").read_text())
    for name, scores in result.results.items():
        for metric in ("loss", "mae", "rounded_accuracy"):
            assert again[name]["metrics"][metric] == pytest.approx(
                scores.metrics[metric]
            )


def test_in_parts_and_over_devices_loss_and_gradient_stay_the_same():
    task, inputs = task_and_inputs()
    assert isinstance(inputs.train, MaskedDataset)
    batch = inputs.train.train_batch(np.arange(8), np.arange(8), seed=0)
    state = init_state(task)
    key = jax.random.key(3)
    want = jax.jit(lambda p, b: loss_and_grads(p, b, task, key))(state.params, batch)
    hidden = int((batch["labels"] == 512).sum())
    assert 0 < hidden < (batch["labels"] != -100).sum()
    terms = want[1]
    assert terms["ce"].count == (batch["labels"] != -100).sum()
    assert terms["squared_error"].count == hidden
    assert want[0] == pytest.approx(float(total_loss(terms)), rel=1e-6)
    in_parts = changed(TINY, accumulate=4)
    for config, sizes in ((in_parts, (1, 1, 1)), (TINY, (2, 1, 1))):
        other, _ = task_and_inputs(config, sizes)
        params = jax.device_put(state.params, state_shardings(other).params)
        step = jax.jit(lambda p, b, task=other: loss_and_grads(p, b, task, key))
        got = step(params, jax.device_put(batch, batch_sharding(other.mesh)))
        chex.assert_trees_all_close(
            jax.device_get(want), jax.device_get(got), rtol=1e-4, atol=1e-5
        )


def test_every_gradient_leaf_equals_one_devices():
    wide = changed(
        TINY, model__d_model=32, model__d_ff=64, model__num_layers=2, model__num_heads=4
    )
    task, inputs = task_and_inputs(wide)
    assert isinstance(inputs.train, MaskedDataset)
    batch = inputs.train.train_batch(np.arange(8), np.arange(8), seed=0)
    params, key = jax.device_get(init_state(task).params), jax.random.key(3)
    found = []
    for sizes in ((1, 1, 1), (2, 2, 2)):
        other, _ = task_and_inputs(wide, sizes)
        spread = jax.device_put(params, state_shardings(other).params)
        rows = jax.device_put(batch, batch_sharding(other.mesh))
        step = jax.jit(lambda p, b, task=other: loss_and_grads(p, b, task, key))
        found.append(jax.device_get(step(spread, rows)))
    chex.assert_trees_all_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__packing": True}, "--head numformer does not go with --data.packing"),
        ({"init_from": "t5"}, "does not go with --init-from"),
        ({"number_tokens": "places"}, "does not go with --number-tokens places"),
        ({"cross_entropy_baseline": True}, "does not go with --cross-entropy-baseline"),
        ({"fused_head": True}, "does not go with --fused-head"),
        ({"evaluation__beams": 4}, "does not go with --evaluation.beams"),
        (
            {"loss": LossConfig(was=0.3)},
            "--loss.was 0.3 has no part: give --loss.was N",
        ),
        ({"mask_rate": 1.0}, r"--mask-rate is 1.0: it must be above 0 and below 1"),
        ({"head": "lm", "mask_rate": None}, "--value-scale minmax5 is for --head"),
        ({"head": "regression"}, "--mask-rate 0.4 is for --head numformer"),
        ({"head": "lm", "model": NumformerConfig()}, "give --head numformer"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        validate(changed(TINY, **changes), 8)


def test_sizes_that_no_numformer_has_are_refused():
    tokenizer = open_tokenizer("builtin", True, head="numformer")
    odd = changed(TINY, model__num_heads=3).model
    with pytest.raises(ConfigError, match="16 does not divide into 3 heads"):
        HEADS["numformer"].fit_model(odd, tokenizer)
    task, _ = task_and_inputs()
    assert isinstance(task.model, NumformerConfig)
    assert (task.model.num_id, task.model.vocab_size) == (512, 640)
    short = NumformerConfig(vocab_size=640, num_id=512, max_positions=8)
    with pytest.raises(ConfigError, match="more than the model's 8 positions"):
        load_inputs(TINY, short, tokenizer)


@pytest.mark.slow
def test_sums_are_learned(tmp_path):
    result = run(SUMS, tmp_path)
    first = result.results["interpolation"].metrics
    assert first["r2"] > 0.9
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if "grad_norm" in row]
    assert losses[-1] < losses[0] / 4
    answer = float(predict(tmp_path, "What is 31 plus 12?").split(": ")[1])
    assert abs(answer - 43) < 5
