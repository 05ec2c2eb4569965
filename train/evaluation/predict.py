"""Ask a trained run: its answer, and how sure it was of every digit."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence

import tyro
from safetensors import SafetensorError

from ntl_jax.hf import save_checkpoint
from ntl_jax.models import family_of
from ntl_jax.tokenization import DigitTokenizer
from train.checkpointing.model_dict import model_of_dict
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
from train.data.number_tokens import number_vocab
from train.evaluation.trained import TrainedModel
from train.heads import head_of

_NEEDED = {
    "data",
    "evaluation",
    "number_policy",
    "resolved_model",
    "resolved_tokenizer",
    "split_digits",
}
"""What is read from a run's config.json."""


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
    """The answer as the head of the model gives it, see `Head.answer`."""
    length = len(trained.encode(question))
    if length > trained.max_source_length:
        raise ConfigError(
            f"the question is {length} tokens long, and the run was trained on at most "
            f"{trained.max_source_length} (--data.max-source-length): shorten it."
        )
    return head_of(trained.model).answer(trained, question)


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
    if family_of(trained.model).table is None:
        kind = type(trained.model).__name__
        raise ConfigError(
            f"{path} is of a {kind}, for which Hugging Face has no format: use its "
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
