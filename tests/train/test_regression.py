"""Training a T5 with a regression head."""

import json

import jax
import numpy as np
import pytest

from ntl_jax.hf import load_checkpoint, save_checkpoint
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import T5RegressionConfig, init_params
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.tokenization import builtin_tokenizer
from tests.train.conftest import standard_promotion
from tests.train.helpers import SHALLOW, changed, tiny_task
from train.config import ConfigError, DataConfig, validate
from train.data import DataError, RowError
from train.data.inputs import load_inputs, naming
from train.data.number_tokens import make_vocab
from train.evaluation.predict import export, load_run, predict
from train.heads import head_of
from train.heads.number import fitted, written
from train.heads.regression import NumberDataset, last_numbers
from train.loop import run
from train.pretrained import pretrained_params

HEAD = changed(
    SHALLOW,
    head="regression",
    value_scale="log1p",
    optimizer__learning_rate=1e-2,
    model__dropout_rate=0.0,
    steps=30,
    log_every=10,
)
MODEL = T5RegressionConfig.from_t5(HEAD.model)


def tokenized(rows, config, tokenizer):
    return head_of(MODEL).encode_rows(rows, config, MODEL, tokenizer, None)[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("regression")
    with standard_promotion():
        return run_dir, run(HEAD, run_dir)


@pytest.mark.slow
def test_the_run_learns_and_its_answers_are_numbers(trained):
    run_dir, result = trained
    for name, scores in result.results.items():
        assert np.isfinite(scores.metrics["loss"]), name
        assert scores.metrics["unparsable_rate"] == 0
        assert scores.numbers is None
    first = next(iter(result.results.values()))
    answers = np.array([float(text) for text in first.predictions])
    assert len(np.unique(answers)) > 3
    loaded = load_run(run_dir)
    assert isinstance(loaded.model, T5RegressionConfig)
    assert np.isfinite(float(predict(run_dir, "What is 3 plus 4?").split(": ")[1]))


@pytest.mark.slow
def test_the_loss_falls(trained):
    run_dir, _ = trained
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if "grad_norm" in row]
    assert losses[-1] < losses[0] / 2


@pytest.mark.slow
def test_an_exported_folder_is_a_sequence_classifier(trained, tmp_path):
    run_dir, result = trained
    export(run_dir, tmp_path / "out")
    config, params = load_checkpoint(tmp_path / "out")
    assert isinstance(config, T5RegressionConfig)
    trained_params = jax.device_get(result.state.params)
    assert flatten(params).keys() == flatten(trained_params).keys()
    head = "head/dense/kernel"
    assert np.array_equal(flatten(params)[head], flatten(trained_params)[head])


@pytest.mark.slow
def test_a_pretrained_t5_gets_a_fresh_head(tmp_path):
    body = init_params(HEAD.model, jax.random.key(7))
    save_checkpoint(tmp_path, HEAD.model, body)
    builtin_tokenizer().save(tmp_path)
    config = changed(HEAD, init_from=str(tmp_path), model=MODEL)
    params = pretrained_params(tiny_task(config))
    assert params is not None
    assert params.keys() == body.keys() | {"head"}
    kept = flatten(params)["shared/embedding"]
    assert np.array_equal(kept, flatten(body)["shared/embedding"])


def test_batches_hold_the_scaled_numbers_of_their_rows():
    inputs = load_inputs(HEAD, MODEL)
    assert isinstance(inputs.train, NumberDataset)
    rows = np.array([5, 0, 9])
    batch = inputs.train.batch(rows)
    answers = [float(inputs.splits.train[int(row)]["answer"]) for row in rows]
    assert batch["targets"].dtype == np.float32
    want = np.sign(answers) * np.log1p(np.abs(answers))
    np.testing.assert_allclose(batch["targets"], want, rtol=1e-6)


def test_answers_without_a_number_or_too_large_are_refused():
    inputs = load_inputs(HEAD, MODEL)
    rows = [{"question": "a", "answer": "5"}, {"question": "b", "answer": "none"}]
    with pytest.raises(DataError, match=r"row 2, 'none', holds no number.*--head lm"):
        tokenized(rows, HEAD, inputs.tokenizer)
    rows = [{"question": "a", "answer": "1e99"}]
    with pytest.raises(DataError, match=r"row 1, '1e99', .*--value-scale log1p"):
        tokenized(rows, changed(HEAD, value_scale="none"), inputs.tokenizer)
    assert len(tokenized(rows, HEAD, inputs.tokenizer)) == 1
    for answer in ("-" + "9" * 400, "9" * 400 + "/7"):
        rows = [{"question": "a", "answer": answer}]
        what = r"row 1, '-?9+\.\.\.9+(/7)?', ends with .*float32 .*leave the row out"
        with pytest.raises(DataError, match=what):
            tokenized(rows, HEAD, inputs.tokenizer)


def test_a_refused_answer_is_told_by_its_set_and_file(tmp_path):
    paths = {}
    for name, answers in (("good", "1"), ("words", "none"), ("large", "9" * 400)):
        lines = [json.dumps({"question": "a", "answer": a}) for a in ("2", answers)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        paths[name] = str(tmp_path / name)

    def refusal(train: str, held_out: str) -> str:
        files = {"train_file": paths[train], "eval_file": paths[held_out]}
        data = DataConfig(name="jsonl", **files)
        with pytest.raises(DataError) as refused:
            load_inputs(changed(HEAD, data=data), MODEL)
        return str(refused.value)

    told = refusal("words", "good")
    assert told.startswith(f"training set, of {paths['words']}: the answer of row 2, ")
    told = refusal("good", "large")
    where = f"evaluation set 'eval', of {paths['large']}: the answer of row 2, "
    assert told.startswith(where)


def test_generated_sets_have_no_file():
    refused = pytest.raises(DataError, match=r"^evaluation set 'interpolation': row 1")
    with refused, naming("interpolation", DataConfig()):
        raise RowError("row 1 is none")


def test_numbers_are_written_as_they_are_read():
    scale = ValueScale("log1p")
    scaled = scale.apply(np.array([12.0, -3.5, 0.0])).astype(np.float32)
    read = [float(text) for text in written(scaled, scale)]
    np.testing.assert_allclose(read, [12.0, -3.5, 0.0], rtol=1e-6, atol=1e-6)
    assert written(np.array([1e3], np.float32), scale) == [""]  # beyond any float


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"number_tokens": "places"}, "--number-tokens places"),
        ({"cross_entropy_baseline": True}, "--cross-entropy-baseline"),
        ({"data__packing": True}, "--data.packing"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, what):
    with pytest.raises(ConfigError, match=f"--head regression does not go with {what}"):
        validate(changed(HEAD, **changes), 8)


def test_the_scale_is_that_of_the_training_answers_and_the_loss_is_said(caplog):
    config = changed(HEAD, value_scale="minmax5")
    inputs = load_inputs(config, MODEL)
    answers = [float(row["answer"]) for row in inputs.splits.train]
    assert (inputs.scale.low, inputs.scale.high) == (min(answers), max(answers))
    assert isinstance(inputs.train, NumberDataset)
    assert np.ptp(inputs.train.numbers) == 10
    with caplog.at_level("INFO", logger="train"):
        make_vocab(config, MODEL, inputs)
    assert "in which --loss has no part" in caplog.text
    assert "number tokens" not in caplog.text
    one = [inputs.splits.train[0]] * 3
    with pytest.raises(ConfigError, match=r"--value-scale minmax5: .* two different"):
        fitted(config, last_numbers(one))
