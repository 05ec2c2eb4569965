"""Damaged downloads and ArrayRecord files are named, and the remedy with them."""

import io
import os
import tarfile
import zipfile

import pytest

from train.data import DataError

GOOD = {"question": "q", "answer": "1"}


def write(path, data):
    path.write_bytes(data)
    return path


def prepared(tmp_path, n=300):
    from train.data import builders

    for split in ("train", "test"):
        line = b'{"question": "q", "answer": "1"}\n'
        write(tmp_path / f"{split}.jsonl", line * n)
    folders = {"raw_dir": str(tmp_path), "data_dir": str(tmp_path / "out")}
    builder = builders.prepare(builders.Gsm8k(**folders))
    (file,) = (tmp_path / "out").rglob("*train.array_record*")
    return builder, file


def damaged(data: bytes, damage: str) -> bytes:
    if damage == "flipped":
        middle = data.index(b"question")
        return data[:middle] + b"quastion" + data[middle + 8 :]
    return data[: {"half": len(data) // 2, "end": -9, "empty": 0}[damage]]


@pytest.mark.parametrize("damage", ["half", "end", "empty", "flipped", "gone"])
def test_a_damaged_array_record_is_named(tmp_path, damage):
    from train.data import builders

    builder, file = prepared(tmp_path)
    assert list(builders.ArrayRecordRows(builder, "train")) == [GOOD] * 300
    data = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(damaged(data, damage))
    rows = builders.ArrayRecordRows(builder, "train")
    for read in (lambda: rows[0], lambda: rows[:5], lambda: list(rows)):
        with pytest.raises(
            DataError, match=r"train: .* delete .*ntl_gsm8k.* and restart"
        ):
            read()


def archive(kind: str) -> bytes:
    text, packed = os.urandom(20_000), io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("a.txt", text)
    else:
        info = tarfile.TarInfo("a.txt")
        info.size = len(text)
        with tarfile.open(fileobj=packed, mode="w:gz") as file:
            file.addfile(info, io.BytesIO(text))
    return packed.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_damaged_archive_is_named_and_leaves_nothing(tmp_path, kind):
    from train.data.builders import _extracted

    whole = archive(kind)
    flipped = whole[:9000] + bytes([whole[9000] ^ 1]) + whole[9001:]
    for n, data in enumerate([b"<html>", b"", whole[:9000], whole[:-9], flipped]):
        path = write(tmp_path / f"{n}.archive", data)
        with pytest.raises(DataError, match=r"\d\.archive: incomplete.* delete it"):
            _extracted(path)
    assert len(list(tmp_path.iterdir())) == 5
    good = _extracted(write(tmp_path / "good.archive", whole))
    assert [file.stat().st_size for file in good.iterdir()] == [20_000]


@pytest.mark.parametrize("damage", ["half", "gone"])
def test_damaged_notes_beside_array_records_are_named(tmp_path, damage):
    from train.data import builders

    prepared(tmp_path, n=3)
    (notes,) = (tmp_path / "out").rglob("dataset_info.json")
    text = notes.read_bytes()
    notes.unlink()
    if damage == "half":
        notes.write_bytes(text[: len(text) // 2])
    with pytest.raises(DataError, match=r"dataset_info\.json .*delete .*restart"):
        builder = builders.prepare(
            builders.Gsm8k(raw_dir=str(tmp_path), data_dir=str(tmp_path / "out"))
        )
        builders.ArrayRecordRows(builder, "train")
