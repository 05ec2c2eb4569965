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
from tests.models import (
    numformer_cases,
    regression_transformer_cases,
    t5_regression_cases,
)
from tests.models.cases import ours, to_params, torch_model
from tests.models.running import relative_errors

Differences = dict[str, float]
"""{"outputs", "gradients"}: relative differences of one model."""


def relative(got, want) -> float:
    """The largest difference relative to the largest entry."""
    return float(np.abs(np.asarray(got) - want).max() / np.abs(want).max())


def worst(got, want) -> float:
    """The largest relative difference of any parameter's gradient."""
    return max(relative_errors(got, want).values())


def of_regression_head() -> Differences:
    """T5 with a regression head, and transformers' class."""
    model, data = (
        t5_regression_cases.torch_model("t5_v1_0"),
        t5_regression_cases.questions(),
    )
    config, params = t5_regression_cases.ours(model)
    theirs = t5_regression_cases.run_torch(model, data, t5_regression_cases.TARGETS)
    theirs.loss.backward()
    named = {name: p.grad.numpy() for name, p in model.named_parameters()}
    _, grads = t5_regression_cases.loss_and_gradient(config, params, data)
    got = t5_regression_cases.run(config, params, data)
    return {
        "outputs": relative(got, theirs.logits.detach().numpy()[:, 0]),
        "gradients": worst(grads, t5_regression_cases.to_params(config, named)),
    }


def of_regression_transformer() -> Differences:
    """T5 with number encodings, and transformers' T5 on the embeddings."""
    here = regression_transformer_cases
    model = torch_model("t5_v1_0", vocab_size=here.ROWS)
    plain, params = ours(model)
    config = RegressionTransformerConfig.from_t5(plain, first_number_id=here.FIRST)
    data = here.numeric_batch()
    theirs = here.run_torch(model, data, "reference")
    theirs.loss.backward()
    named = {name: p.grad.numpy() for name, p in model.named_parameters()}
    logits, grads = here.logits_and_gradient(config, params, data)
    return {
        "outputs": relative(logits, theirs.logits.detach().numpy()),
        "gradients": worst(grads, to_params(plain, named)),
    }


def of_numformer() -> Differences:
    """The Numformer, and PyTorch's own encoder layers."""
    here = numformer_cases
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
