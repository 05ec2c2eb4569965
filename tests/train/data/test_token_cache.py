"""Token ids that are kept on disk are those that would be recomputed."""

import logging
import pathlib

import numpy as np
import pytest

from ntl_jax.tokenization import DigitTokenizer
from ntl_jax.tokenization.builtin import builtin_tokenizer
from train.data import DataError, tokenize_rows
from train.data.transforms import TokenizedDataset

ROWS = [
    {"question": f"What is {a} plus {b}?", "answer": str(a + b)}
    for a in range(40)
    for b in (1, 250)
]


class NoIds:
    """A tokenizer that fails to encode batches."""

    def __init__(self, base) -> None:
        self._base = base

    def __getattr__(self, name):
        return getattr(self._base, name)

    def encode_batch(self, texts):
        raise AssertionError("tokenised twice")


NoIds.__qualname__ = "HuggingFaceTokenizer"


@pytest.fixture(autouse=True)
def _logged(monkeypatch):
    monkeypatch.setattr(logging.getLogger("train"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("train"), "handlers", [])


def made(
    cache: pathlib.Path | None,
    *,
    rows=ROWS,
    tokenizer=None,
    limits=(8, 3),
    separator=None,
) -> TokenizedDataset:
    return tokenize_rows(
        rows,
        tokenizer or builtin_tokenizer(),
        max_source_length=limits[0],
        max_target_length=limits[1],
        separator=separator,
        cache=None if cache is None else str(cache),
    )


def assert_same(one: TokenizedDataset, other: TokenizedDataset) -> None:
    assert type(one) is type(other) and one.shape == other.shape
    for name in ("sources", "targets"):
        for field in ("values", "offsets"):
            a, b = (getattr(getattr(x, name), field) for x in (one, other))
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    assert one.truncated_sources == other.truncated_sources > 0
    assert one.truncated_targets == other.truncated_targets
    chosen = np.array([3, 0, 77])
    for name, array in one.batch(chosen).items():
        np.testing.assert_array_equal(array, other.batch(chosen)[name])


@pytest.mark.parametrize("separator", [None, " = "])
def test_made_once(tmp_path, separator):
    plain = made(None, separator=separator)
    assert_same(plain, made(tmp_path, separator=separator))
    cached = made(tmp_path, separator=separator, tokenizer=NoIds(builtin_tokenizer()))
    assert_same(plain, cached)
    assert len(list(tmp_path.iterdir())) == 1


def test_whatever_changes_the_ids_is_another_entry(tmp_path):
    other = [*ROWS[:-1], {"question": ROWS[-1]["question"], "answer": "290"}]
    moved = [{"question": "What is 0 plus 1?1", "answer": ""}, *ROWS[1:]]
    split = DigitTokenizer(builtin_tokenizer())
    for number, change in enumerate(
        [
            {},
            {"rows": other},
            {"rows": moved},
            {"rows": ROWS[:-1]},
            {"limits": (7, 3)},
            {"limits": (8, 2)},
            {"separator": ""},
            {"separator": " "},
            {"tokenizer": split},
        ],
        start=1,
    ):
        assert_same(made(None, **change), made(tmp_path, **change))
        assert len(list(tmp_path.iterdir())) == number, change


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_damaged_ids_are_made_anew(tmp_path, caplog, damage):
    made(tmp_path)
    (file,) = tmp_path.glob("*/targets.npy")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-4])
    else:
        file.unlink()
    assert_same(made(None), made(tmp_path))
    assert "is damaged" in caplog.text
    assert_same(made(None), made(tmp_path, tokenizer=NoIds(builtin_tokenizer())))


def test_a_folder_that_cannot_be_one_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"--token-cache .*file cannot be used"):
        made(tmp_path / "file")


def test_without_room_nothing_is_lost(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert_same(made(None), made(tmp_path))
    assert "cannot be kept" in caplog.text and "No space left" in caplog.text
    assert not list(tmp_path.iterdir())
