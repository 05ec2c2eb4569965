"""Prints how far models that answer with numbers are from PyTorch twins, as a table.

Run as ``python -m tests.parity.variants_table``. Models are tiny, random and in
float32, on CPU; half of the tokens are numbers, and batches have padding. Figures are
largest differences relative to the largest entry: of what the model puts out, and of
the worst parameter's gradient.
"""

from collections.abc import Callable

import jax
import numpy as np

from ntl_jax.hf.mapping import unflatten
from ntl_jax.models import RegressionTransformerConfig, init_params
from tests import tiny_t5
from tests.models import (
    test_numformer,
    test_regression_transformer,
    test_t5_regression,
)

Differences = dict[str, float]
"""{"outputs", "gradients"}: relative differences of one model."""


def relative(got, want) -> float:
    """The largest difference relative to the largest entry."""
    return float(np.abs(np.asarray(got) - want).max() / np.abs(want).max())


def worst(got, want) -> float:
    """The largest relative difference of any parameter's gradient."""
    return max(test_numformer.relative_errors(got, want).values())


def of_regression_head() -> Differences:
    """T5 with a regression head, and transformers' class."""
    model, data = test_t5_regression.torch_model("v1_0"), test_t5_regression.questions()
    config, params = test_t5_regression.ours(model)
    theirs = test_t5_regression.run_torch(model, data, test_t5_regression.TARGETS)
    theirs.loss.backward()
    named = {name: p.grad.numpy() for name, p in model.named_parameters()}
    _, grads = test_t5_regression.loss_and_gradient(config, params, data)
    got = test_t5_regression.run(config, params, data)
    return {
        "outputs": relative(got, theirs.logits.detach().numpy()[:, 0]),
        "gradients": worst(grads, test_t5_regression.to_params(config, named)),
    }


def of_regression_transformer() -> Differences:
    """T5 with number encodings, and transformers' T5 on the embeddings."""
    here = test_regression_transformer
    model = tiny_t5.torch_model("v1_0", vocab_size=here.ROWS)
    plain, params = tiny_t5.ours(model)
    config = RegressionTransformerConfig.from_t5(plain, first_number_id=here.FIRST)
    data = here.numeric_batch()
    theirs = here.run_torch(model, data, "reference")
    theirs.loss.backward()
    named = {name: p.grad.numpy() for name, p in model.named_parameters()}
    logits, grads = here.logits_and_gradient(config, params, data)
    return {
        "outputs": relative(logits, theirs.logits.detach().numpy()),
        "gradients": worst(grads, tiny_t5.to_params(plain, named)),
    }


def of_numformer() -> Differences:
    """The Numformer, and PyTorch's own encoder layers."""
    here = test_numformer
    params = here.numbers_of(init_params(here.CONFIG, jax.random.key(0)))
    data = here.rows()
    twin = here.TorchNumformer(params)
    logits, numbers = twin(data)
    mask = data["mask"]
    seen = twin.torch.tensor(mask)
    (logits[seen].sin().sum() + numbers[seen].sin().sum()).backward()
    want = {path: leaf.grad.numpy() for path, leaf in twin.leaves.items()}
    output, grads = here.output_and_gradient(here.CONFIG, params, data)
    pairs = ((output.logits, logits), (output.numbers, numbers))
    return {
        "outputs": max(
            relative(np.asarray(got)[mask], theirs.detach().numpy()[mask])
            for got, theirs in pairs
        ),
        "gradients": worst(grads, unflatten(want)),
    }


VARIANTS: dict[str, Callable[[], Differences]] = {
    "T5, regression head": of_regression_head,
    "T5, Regression Transformer": of_regression_transformer,
    "Numformer": of_numformer,
}


def main() -> None:
    columns = ("outputs", "gradients")
    print("|", " | ".join(["model", *columns]), "|")
    print("| --- " * (1 + len(columns)) + "|")
    for name, differences in VARIANTS.items():
        found = differences()
        print("|", " | ".join([name, *(f"{found[c]:.1e}" for c in columns)]), "|")


if __name__ == "__main__":
    main()
