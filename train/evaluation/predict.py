"""Ask a trained run: its answer, and how sure it was of every digit."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from safetensors import SafetensorError

from ntl_jax import NumberVocab
from ntl_jax.generate import greedy, number_distributions
from ntl_jax.hf import save_checkpoint
from ntl_jax.models import AnyConfig, NumformerConfig, T5RegressionConfig, bind
from ntl_jax.numbers.value_scales import ValueScale
from ntl_jax.sharding.mesh import mesh_of, on_mesh
from ntl_jax.tokenization import DigitTokenizer, Tokenizer, XvalTokenizer
from train.checkpointing.restore import (
    fitting_mesh,
    open_mesh,
    refuse_several_hosts,
    restored_params,
)
from train.checkpointing.rundir import (
    CONFIG_FILE,
    read_config,
    trained_runs,
    value_scale_of,
)
from train.checkpointing.storage import AnyPath, make_folder, write_remedy
from train.config import ConfigError, MeshConfig
from train.data.inputs import open_tokenizer
from train.data.masked import question_row
from train.data.number_tokens import number_vocab
from train.heads.families import is_decoder_only, model_of_dict
from train.heads.regression import written
from train.state import Params

_NEEDED = {
    "data",
    "evaluation",
    "number_policy",
    "resolved_model",
    "resolved_tokenizer",
    "split_digits",
}
"""What is read from a run's config.json."""


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A run's parameters with what is needed to use them."""

    model: AnyConfig
    params: Params
    tokenizer: Tokenizer
    vocab: NumberVocab
    max_source_length: int
    max_new_tokens: int
    separator: str
    scale: ValueScale

    def encode(self, question: str) -> list[int]:
        """The ids that the model answers."""
        if not is_decoder_only(self.model):
            return self.tokenizer.encode(question)
        return self.tokenizer.encode(question + self.separator)[:-1]


def load_run(run_dir: AnyPath, mesh: MeshConfig | None = None) -> TrainedModel:
    """Reads the newest checkpoint of a run, each device its shards.

    Args:
        run_dir: the run's folder.
        mesh: of all devices that are here; None is the run's own, or what fits.

    Raises:
        ConfigError: `run_dir` holds no finished checkpoint, or one that is damaged, or
            the mesh does not fit.
    """
    config = read_config(run_dir)
    lacking = sorted(_NEEDED - config.keys())
    if lacking:
        raise ConfigError(f"{run_dir / CONFIG_FILE} lacks {', '.join(lacking)}.")
    model = model_of_dict(config["resolved_model"])
    if mesh is None:
        mesh = fitting_mesh(MeshConfig(**config.get("mesh", {})), model)
    params = restored_params(run_dir, model, open_mesh(mesh, model))
    tokenizer = open_tokenizer(
        config["resolved_tokenizer"],
        config["split_digits"],
        config.get("number_tokens", "digits"),
        config.get("head", "lm"),
    )
    vocab = number_vocab(tokenizer, model.vocab_size, config["number_policy"])
    return TrainedModel(
        # A question may have any length, and be asked of any machine.
        dataclasses.replace(model, attention="auto"),
        params,
        tokenizer,
        vocab,
        max_source_length=config["data"]["max_source_length"],
        max_new_tokens=config["evaluation"]["max_new_tokens"],
        separator=config["data"].get("separator", ""),
        scale=value_scale_of(config),
    )


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices for a finished run."""

    mesh: MeshConfig
    """How many devices each mesh axis takes; by default as in training, or what fits
    the devices that are here."""


def asked_mesh(command: str, arguments: Sequence[str]) -> MeshConfig | None:
    """The mesh that flags ask for; None without any."""
    refuse_several_hosts(command.split()[0])
    if not arguments:
        return None
    return tyro.cli(
        Placement,
        default=Placement(MeshConfig()),
        args=list(arguments),
        prog=f"python -m train {command}",
    ).mesh


def predict(path: AnyPath, question: str, arguments: Sequence[str] = ()) -> str:
    """Answers a question with every trained run in `path`, as a printable report.

    Args:
        path: a run, or a folder of runs.
        question: one of the kind that they were trained on.
        arguments: flags of `Placement`.
    """
    mesh = asked_mesh("predict RUN QUESTION", arguments)
    if not question.strip():
        raise ConfigError("the question is empty: write one in quotes.")
    return "\n\n".join(
        f"{name}: {answer_report(load_run(run_dir, mesh), question)}"
        for name, run_dir in trained_runs(path).items()
    )


def answer_report(trained: TrainedModel, question: str) -> str:
    """The greedy answer, then a row a digit: probabilities over the number tokens.

    The probabilities are the softmax over the number tokens alone, as in the loss.
    """
    encoded = trained.encode(question)
    if len(encoded) > trained.max_source_length:
        raise ConfigError(
            f"the question is {len(encoded)} tokens long, and the run was trained on "
            f"at most {trained.max_source_length} (--data.max-source-length): shorten "
            "it."
        )
    ids = jnp.asarray([encoded], jnp.int32)  # [1, S]
    if isinstance(trained.model, T5RegressionConfig):
        number = _output(trained, ids)
        return written(np.asarray(number), trained.scale)[0]
    if isinstance(trained.model, NumformerConfig):
        return _filled_in(trained, question)
    tokens = greedy(
        trained.model, trained.params, ids, max_new_tokens=trained.max_new_tokens
    )
    answer = trained.tokenizer.decode(np.asarray(tokens)[0].tolist())
    probabilities = number_probabilities(trained, ids, tokens)  # [T, K]
    is_number = trained.vocab.row[np.asarray(tokens)[0]] >= 0
    values = " ".join(f"{value:>5g}" for value in trained.vocab.values)
    lines = [answer, f"  digit | {values}"]
    for token, row in zip(
        np.asarray(tokens)[0][is_number], probabilities[is_number], strict=True
    ):
        value = trained.vocab.values[trained.vocab.row[token]]
        cells = " ".join(f"{probability:5.3f}" for probability in row)
        lines.append(f"  {value:>5g} | {cells}")
    return "\n".join(lines) if is_number.any() else f"{answer} (no digit in it)"


def _filled_in(trained: TrainedModel, question: str) -> str:
    """What a Numformer fills in behind a question."""
    model, tokenizer = trained.model, trained.tokenizer
    assert isinstance(model, NumformerConfig) and isinstance(tokenizer, XvalTokenizer)
    row = question_row(question, tokenizer)
    if len(row.ids) > model.max_positions:
        raise ConfigError(
            f"the question takes {len(row.ids)} tokens with its answer, and the model "
            f"has {model.max_positions} positions: shorten it."
        )
    ids = np.asarray([row.ids], np.int32)
    values = trained.scale.apply(np.asarray([row.values]))
    values = np.where(ids == model.num_id, values, 1.0).astype(np.float32)
    output = _output(trained, jnp.asarray(ids), jnp.asarray(values))
    asked = np.asarray([row.labels]) == model.num_id
    return written(np.asarray(output.numbers)[asked], trained.scale)[0]


def _output(trained: TrainedModel, *inputs: jax.Array) -> Any:
    """What the model itself makes of its inputs, on the mesh that it lies on."""
    mesh = mesh_of(trained.params)

    @jax.jit
    def run(params: Params, inputs: tuple[jax.Array, ...]) -> Any:
        with on_mesh(mesh):
            return bind(trained.model, params)(*inputs)

    return run(trained.params, inputs)


def number_probabilities(
    trained: TrainedModel, input_ids: jax.Array, tokens: jax.Array
) -> np.ndarray:
    """Softmax over number tokens where each answer token was chosen.

    Args:
        trained: the model.
        input_ids: i32 [1, S].
        tokens: i32 [1, T], the answer, fed back as decoder input.

    Returns:
        f32 [T, K], each row summing to 1 up to the end of the answer, to 0 beyond.
    """
    q = number_distributions(
        trained.model, trained.params, input_ids, tokens, trained.vocab
    )
    return np.asarray(q[0])


def export(path: AnyPath, folder: pathlib.Path, arguments: Sequence[str] = ()) -> None:
    """Writes a run's newest checkpoint and its tokenizer as a Hugging Face folder.

    No device holds more than its shards: they meet in the host's memory.

    Args:
        path: a run.
        folder: a new one.
        arguments: flags of `Placement`.

    Raises:
        ConfigError: no run, several runs, or a folder that is not empty.
    """
    mesh = asked_mesh("export RUN FOLDER", arguments)
    runs = trained_runs(path)
    if len(runs) > 1:
        raise ConfigError(f"{path} holds several runs, name one: {', '.join(runs)}.")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} is a file or is not empty: name a new folder.")
    trained = load_run(next(iter(runs.values())), mesh)
    if isinstance(trained.model, NumformerConfig):
        raise ConfigError(
            f"{path} is a Numformer's, for which Hugging Face has no format: use its "
            "checkpoint with train.evaluation.predict.load_run."
        )
    make_folder(folder)
    try:
        save_checkpoint(folder, trained.model, trained.params)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        remedy = write_remedy(int(number[1])) if number else "look at its disk"
        raise ConfigError(
            f"{folder} cannot be written ({error}): {remedy}, or name another folder."
        ) from error
    trained.tokenizer.save(folder)
    print(f"wrote {folder}")
    if isinstance(trained.tokenizer, DigitTokenizer):
        print(
            "Its tokenizer does not split numbers into digits, as the run did: take "
            "ids from ntl_jax.tokenization.DigitTokenizer(AutoTokenizer."
            f"from_pretrained({str(folder)!r}))."
        )
