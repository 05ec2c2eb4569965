"""README and the pages of docs/: their links, names, files and commands exist."""

import doctest
import importlib
import importlib.util
import pathlib
import re
import shlex

import jax
import pytest

from train.__main__ import parse_config
from train.config.presets import preset_names

ROOT = pathlib.Path(__file__).parents[2]
PAGES = {path.name: path for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
SUBCOMMANDS = ("aot", "describe", "evaluate", "export", "list", "predict", "report")


def anchors_of(page):
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings}


def commands_of(text):
    """The arguments of each `python -m train` in a page's blocks and inline code."""
    blocks = "\n".join(re.findall(r"^```(?:sh|text)\n(.*?)^```", text, re.M | re.S))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = blocks.replace("\\\n", " ").splitlines()
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    found = [line.partition("python -m train ")[2] for line in lines]
    # Without the comment beside a command, and what encloses one within another.
    found = [re.split(r" {2,}(?![ -])| &$|(?<=\d)\"$", line)[0] for line in found]
    return [shlex.split(line) for line in found if line]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[name].read_text()):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        path = PAGES[name].parent / file if file else PAGES[name]
        assert path.is_file(), target
        assert not anchor or anchor in anchors_of(path.read_text()), target


@pytest.mark.parametrize("name", PAGES)
def test_names_and_files_exist(name):
    text = PAGES[name].read_text()
    for dotted in set(
        re.findall(r"(?<![\w.])(?:ntl_jax|train)(?:\.\w+)+(?![\w/])", text)
    ):
        if dotted.endswith((".jsonl", ".tsv")):
            continue
        parts = dotted.split(".")
        module = importlib.import_module(parts[0])
        for i, part in enumerate(parts[1:], 2):
            if not hasattr(module, part):
                importlib.import_module(".".join(parts[:i]))
            module = getattr(module, part)
    for module in set(re.findall(r"python\s-m\s(tests[\w.]+\w)", text)):
        assert importlib.util.find_spec(module) is not None, module
    for path in set(re.findall(r"`((?:ntl_jax|train|tests|configs)/[\w/.*]+)`", text)):
        assert list(ROOT.glob(path)), path


@pytest.mark.parametrize("name", PAGES)
def test_commands_parse(name):
    for command, *rest in commands_of(PAGES[name].read_text()):
        assert command in (*SUBCOMMANDS, *preset_names()), command
        if command in ("aot", "describe") and rest:
            command, *rest = rest
        elif command in SUBCOMMANDS:
            continue
        given = [word.replace("$i", "0") for word in rest if word != "--help"]
        for flag in ("--init-from", "--topology"):  # of a checkpoint, and of aot alone
            if flag in given:
                del given[given.index(flag) : given.index(flag) + 2]
        parse_config(command, given, "describe")


def test_commands_are_found_and_a_wrong_one_is_noticed():
    commands = [c for page in PAGES.values() for c in commands_of(page.read_text())]
    assert len(commands) > 40
    with pytest.raises(SystemExit):
        parse_config("quickstart", ["--loss.wass", "1"], "describe")


def test_the_examples_of_the_models_page_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = doctest.testfile(str(PAGES["models.md"]), module_relative=False)
    assert found.attempted >= 3 and found.failed == 0
