"""docs/porting.md: every block runs, other trainers' where these are installed."""

import doctest
import inspect
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from ntl_jax import NumberVocab, Objective, cross_entropy, ntl_was

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "porting.md").read_text()
TOKENS = {"<pad>": 0, "+": 1, "=": 2} | {str(d): d + 3 for d in range(10)}
VOCAB = NumberVocab.from_mapping(TOKENS, vocab_size=13)
OBJECTIVE = Objective(ce=1.0, was=0.3)


def blocks(section: str) -> list[str]:
    """The Python blocks of a section that are no doctests."""
    parts = re.split(rf"^## {section}$", PAGE, flags=re.MULTILINE)
    assert len(parts) == 2, f"{len(parts) - 1} sections {section}"
    text = re.split(r"^## ", parts[1], flags=re.MULTILINE)[0]
    return re.findall(r"```python\n((?!>>>).*?)```", text, re.DOTALL)


def run_block(source: str) -> dict:
    """The names that a block defines."""
    names = {"vocab": VOCAB, "objective": OBJECTIVE}
    exec(compile(source, "porting.md", "exec"), names)
    return names


def test_plain_jax_and_linen_print_what_the_page_says():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        test = doctest.DocTestParser().get_doctest(PAGE, {}, "porting", None, 0)
        runner = doctest.DocTestRunner()
        runner.run(test)
    assert runner.tries > 20 and runner.failures == 0


class Model(nnx.Module):
    """A model as Tunix calls it."""

    def __init__(self):
        self.embed = nnx.Embed(13, 8, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(8, 16, rngs=nnx.Rngs(1))  # with padded columns

    def __call__(self, tokens, positions, cache, attention_mask):
        return self.head(self.embed(tokens)), cache


def tunix_batch():
    ids = jnp.array([[4, 1, 5, 2, 6, 0], [4, 4, 1, 5, 2, 7]])
    return {
        "input_tokens": ids,
        "input_mask": jnp.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]),
        "positions": jnp.broadcast_to(jnp.arange(6), ids.shape),
        "attention_mask": jnp.ones((2, 6, 6), bool),
    }


def test_the_loss_for_tunix_is_that_of_the_next_tokens():
    (source,) = blocks("Tunix")
    batch = tunix_batch()
    loss = run_block(source)["number_loss"](Model(), **batch)
    logits, _ = Model()(batch["input_tokens"], None, None, None)
    rows = [(0, 5), (1, 6)]  # a row and its length
    ce = sum(
        cross_entropy(logits[r, : n - 1, :13], batch["input_tokens"][r, 1:n]).sum()
        for r, n in rows
    )
    was = sum(
        ntl_was(logits[r, : n - 1, :13], batch["input_tokens"][r, 1:n], VOCAB).sum()
        for r, n in rows
    )
    digits = 2 + 3  # of "1+2=3" and "11+2=4", but for what begins a row
    np.testing.assert_allclose(loss, ce / 9 + 0.3 * was / digits, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")  # of Tunix's own
def test_tunix_trains_with_it(tmp_path):
    peft_trainer = pytest.importorskip("tunix.sft.peft_trainer")
    (source,) = blocks("Tunix")
    number_loss = run_block(source)["number_loss"]
    own = inspect.signature(peft_trainer._default_loss_fn).parameters
    assert list(inspect.signature(number_loss).parameters) == list(own)[:5]
    model, batch = Model(), tunix_batch()
    before = float(number_loss(model, **batch))
    config = peft_trainer.TrainingConfig(eval_every_n_steps=100, max_steps=20)
    trainer = peft_trainer.PeftTrainer(model, optax.adam(0.05), config)
    trainer = trainer.with_loss_fn(number_loss).with_gen_model_input_fn(lambda x: x)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        trainer.train([batch] * 20)
    assert float(number_loss(model, **batch)) < 0.7 * before


def maxtext_batch():
    targets = jnp.array([[1, 5, 2, 6, 1, 5, 2, 7], [2, 9, 0, 0, 0, 0, 0, 0]])
    segments = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2], [1, 1, 0, 0, 0, 0, 0, 0]])
    logits = jax.random.normal(jax.random.key(0), (2, 8, 16))
    return logits, {"targets": targets, "targets_segmentation": segments}


def test_the_terms_for_maxtext_are_those_of_real_targets():
    _, source = blocks("MaxText")
    logits, data = maxtext_batch()
    terms = run_block(source)["objective_terms"](logits, data)
    real = (data["targets_segmentation"] != 0).astype(jnp.float32)
    each = cross_entropy(logits[..., :13], data["targets"])
    np.testing.assert_allclose(terms["ce"].sum, (each * real).sum(), rtol=1e-6)
    assert (int(terms["ce"].count), int(terms["was"].count)) == (10, 5)


@pytest.mark.filterwarnings("ignore")  # of MaxText's own
def test_maxtexts_cross_entropy_with_numbers(monkeypatch):
    max_utils = pytest.importorskip("maxtext.utils.max_utils")
    original = max_utils.cross_entropy_with_logits
    monkeypatch.setattr(max_utils, "cross_entropy_with_logits", original)
    source, _ = blocks("MaxText")
    run_block(source)
    logits, data = maxtext_batch()
    logits = logits[..., :13]  # MaxText's own softmax has no padded columns
    targets = jax.nn.one_hot(data["targets"], 13)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        xent, z = max_utils.cross_entropy_with_logits(logits, targets, z_loss=1e-4)
        plain, plain_z = original(logits, targets, z_loss=1e-4)
    want = plain + 0.3 * ntl_was(logits, data["targets"], VOCAB)
    np.testing.assert_allclose(xent, want, rtol=1e-6)
    np.testing.assert_array_equal(z, plain_z)
    train = pytest.importorskip("maxtext.trainers.pre_train.train")
    called = inspect.getsource(train.loss_fn)
    assert "max_utils.cross_entropy_with_logits(logits, one_hot_targets" in called
    assert 'data["targets_segmentation"] != 0' in called
