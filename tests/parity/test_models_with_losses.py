"""The objective's gradient through every model, against CE + ntloss in PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntl_jax import NumberVocab, Objective, shift_labels, stats_from_logits
from ntl_jax.hf.mapping import flatten
from ntl_jax.models import T5Config, bind
from tests.models.cases import (
    batch,
    gradients,
    ours,
    run_torch,
    t5_batch,
    to_params,
    torch_model,
)
from tests.parity.loss_cases import DIGITS

TOLERANCE = 1e-4  # of the largest entry of a leaf
IDS = np.array([DIGITS.ids[str(digit)] for digit in range(10)], np.int32)
MODELS = ("t5_v1_0", "t5_v1_1", "gpt2_tied", "granite_dense", "granite_experts")


def data_of(name) -> dict:
    """A batch of the family, with padding; about half of its labels are digits."""
    data = t5_batch() if name.startswith("t5") else batch("left")
    if name.startswith("t5"):
        data["labels"][0, -2:] = -100
    draw = np.random.default_rng(1)
    data["labels"] = np.where(
        (data["labels"] != -100) & (draw.random(data["labels"].shape) < 0.5),
        draw.choice(IDS, data["labels"].shape),
        data["labels"],
    )
    return data


def gradients_of_pytorch(model, data) -> dict[str, np.ndarray]:
    torch, ntloss = pytest.importorskip("torch"), pytest.importorskip("ntloss")
    labels = torch.from_numpy(data["labels"]).long()
    logits = run_torch(model, data).logits
    if not model.config.is_encoder_decoder:
        logits, labels = logits[:, :-1], labels[:, 1:]
    size = logits.shape[-1]
    ntl = ntloss.NTLoss(DIGITS, vocab_size=size, reweigh=False)
    ce = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    (ce + 0.3 * ntl(logits, labels)).backward()
    return gradients(model)


def our_gradients(config, params, data, objective):
    vocab = NumberVocab.from_mapping(DIGITS.ids, vocab_size=config.vocab_size)
    inputs = {name: jnp.asarray(x) for name, x in data.items() if name != "labels"}
    labels = jnp.asarray(data["labels"])
    if isinstance(config, T5Config):
        before = jnp.where(labels[:, :-1] < 0, config.pad_token_id, labels[:, :-1])
        inputs["decoder_input_ids"] = jnp.pad(before, ((0, 0), (1, 0)))
    else:
        labels = shift_labels(labels)

    @jax.jit
    @jax.grad
    def gradient(params):
        stats = stats_from_logits(bind(config, params)(**inputs), labels, vocab)
        return objective.total(objective(stats, labels, vocab))

    return flatten(gradient(params))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_through_the_model(name):
    model, data = torch_model(name), data_of(name)
    config, params = ours(model)
    want = flatten(to_params(config, gradients_of_pytorch(model, data)))

    def errors(objective):
        got = our_gradients(config, params, data, objective)
        assert got.keys() == want.keys()
        return [np.abs(got[k] - want[k]).max() / np.abs(want[k]).max() for k in want]

    assert max(errors(Objective(ce=1.0, was=0.3))) < TOLERANCE
    assert min(errors(Objective(ce=1.0, was=0.31))) > TOLERANCE  # and it can fail
