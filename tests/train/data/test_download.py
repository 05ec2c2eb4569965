"""Data sets that are downloaded and prepared where no folder of raw files is named."""

import dataclasses
import gzip
import http.server
import pathlib
import tarfile
import threading
import zipfile

import pytest

from tests.train.data.helpers import jsonl, passages
from train.config import DataConfig
from train.data import DataError, load_splits


@pytest.fixture
def site(tmp_path, monkeypatch) -> pathlib.Path:
    """The folder that this machine serves in the place of the data sets' hosts."""
    from train.data import builders  # imports tfds, which takes seconds

    folder = tmp_path / "site"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, directory=str(folder), **kwargs)

        def log_message(self, *args):
            pass

    monkeypatch.delenv("NTL_DATA_DIR", raising=False)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{httpd.server_address[1]}"
        for builder, file in {
            builders.Gsm8k: "{split}.jsonl",
            builders.Mathematics: "m.tar.gz",
            builders.RJokes: "{split}.tsv.gz",
            builders.MultiRC: "m.zip",
        }.items():
            monkeypatch.setattr(builder, "url", f"{url}/{file}")
        yield folder
        httpd.shutdown()


def test_rjokes(site):
    for split in ("train", "dev", "test"):
        (site / f"{split}.tsv.gz").write_bytes(gzip.compress(f"4\t{split}".encode()))
    splits = load_splits(DataConfig(name="rjokes"))
    assert list(splits.train) == [{"question": "train", "answer": "4"}]
    assert splits.evaluation.keys() == {"dev", "test"}


def test_multirc(site):
    with zipfile.ZipFile(site / "m.zip", "w") as archive:
        for split in ("train", "val", "test"):
            archive.writestr(f"MultiRC/{split}.jsonl", passages([(split, 1)]))
    splits = load_splits(DataConfig(name="multirc"))
    assert [row["answer"] for row in splits.train] == ["train"] * 3
    third = splits.evaluation["validation"][2]
    assert third["question"] == "Question: Who?\n\nIt is I."
    splits = load_splits(DataConfig(name="multirc", paper_form=True))
    third = splits.evaluation["validation"][2]
    assert third["question"] == "It is I.\n\nQuestion: Who?"


def test_gsm8k(site):
    _, rows = jsonl(site / "train.jsonl", 5)
    jsonl(site / "test.jsonl", 2)
    splits = load_splits(DataConfig(name="gsm8k"))
    assert list(splits.train) == rows and len(splits.evaluation["test"]) == 2
    splits = load_splits(DataConfig(name="gsm8k", validation_fraction=0.4))
    both = [*splits.train, *splits.evaluation["validation"]]
    assert len(splits.train) == 3 and splits.train[1:][0] == splits.train[1]
    assert sorted(both, key=rows.index) == rows


def test_mathematics(site, tmp_path):
    inside = tmp_path / "mathematics_dataset-v1.0"
    modules = {"m__a": ("train-easy", "interpolate"), "m__b": ("extrapolate",)}
    for module, folders in modules.items():
        for folder in folders:
            (inside / folder).mkdir(parents=True, exist_ok=True)
            (inside / folder / f"{module}.txt").write_text(f"{folder}?\n1\n")
    with tarfile.open(site / "m.tar.gz", "w:gz") as archive:
        archive.add(inside, inside.name)
    data = DataConfig(
        name="mathematics",
        modules=("m__a",),
        extrapolation_modules=("m__b",),
        difficulties=("train-easy",),
    )
    splits = load_splits(data)
    assert list(splits.train) == [{"question": "train-easy?", "answer": "1"}]
    assert splits.evaluation["extrapolation"][0]["question"] == "extrapolate?"

    with pytest.raises(DataError, match=r"no folder holds m__c\.txt; check the module"):
        load_splits(dataclasses.replace(data, modules=("m__c",)))
    with pytest.raises(DataError, match=r"m__a.* has no split 'extrapolate', only"):
        load_splits(dataclasses.replace(data, extrapolation_modules=("m__a",)))


def test_a_file_that_is_gone(site):
    with pytest.raises(DataError, match=r"cannot download .*name it as raw_dir"):
        load_splits(DataConfig(name="gsm8k"))
