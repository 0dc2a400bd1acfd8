"""LMDB files that packing wrote: the contract, the writer and the classes."""

import os
import shutil
import subprocess
import sys
import zlib
from unittest.mock import Mock

import lmdb
import numpy as np
import pytest

from penstock.datasets.records.table import Table
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.lmdb import LmdbStorage
from penstock.datasets.storages.lmdb import writer as lmdb_packed
from tests.contracts.storage import check_storage, summary
from tests.datasets.storages.lmdb_files import Listed, images
from tests.packed import write_lmdb


def test_contract(tmp_path):
    records = images(40)
    write_lmdb(tmp_path / "a", Listed(records))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: LmdbStorage(str(tmp_path / "a")),
        list(records.items()),
        make_copy=lambda: LmdbStorage(str(tmp_path / "b")),
    )
    assert sorted(os.listdir(tmp_path / "a")) == ["data.mdb", "index.npz"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    env = lmdb.open(str(tmp_path / "a"), readonly=True, lock=False)
    with env.begin() as transaction:
        assert transaction.get(b"0000000009") == list(records.values())[9]["image"]
    env.close()


def test_all_kinds_of_fields_come_back(tmp_path):
    full = {
        "image": b"jpeg", "label": 1, "text": "ü", "score": 0.5, "n": np.int64(3), "none": None,
        "boxes": np.arange(8, dtype=np.float32).reshape(2, 4), "raw": b"\0\1", "list": [1, "a"],
        "empty": np.zeros((0, 4), np.float32),
    }  # fmt: skip
    source = Listed({"x": full, "y": {"image": b"", "label": 0}, "z": {"tokens": np.arange(3),
                     "label": 2}}, height=np.array([3, 4, 5]))  # fmt: skip
    write_lmdb(tmp_path / "a", source)
    storage = LmdbStorage(str(tmp_path / "a"))
    records = storage.read(np.arange(3))
    assert summary(records) == summary(source.read(np.arange(3)))
    assert records[0].fields["boxes"].flags.writeable
    assert storage.index.column("height").tolist() == [3, 4, 5]
    with pytest.raises(ValueError, match="'k': field 'o' is a object"):
        write_lmdb(tmp_path / "b", Listed({"k": {"image": b"", "o": object()}}))
    assert sorted(os.listdir(tmp_path)) == ["a"], "nothing is left of what failed"


def test_the_map_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_packed, "_FIRST_MAP_BYTES", 1 << 16)
    records = images(300)
    write_lmdb(tmp_path / "a", Listed(records))
    storage = LmdbStorage(str(tmp_path / "a"))
    assert [r.fields for r in storage.read(np.arange(300))] == list(records.values())


def test_the_writer_is_whole_or_nothing_and_deletes_nothing(tmp_path):
    records = images(5)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="is there already"):
        write_lmdb(tmp_path / "there", Listed(records))
    with pytest.raises(ValueError, match="'bad' gone; repair or remove it"):
        write_lmdb(tmp_path / "new", Listed({"good": {"image": b"1"}, "bad": None}))
    assert sorted(os.listdir(tmp_path)) == ["there"]
    assert (tmp_path / "there/mine.txt").read_text() == "mine"


def test_packing_an_image_folder_keeps_keys_labels_and_damage(tmp_path):
    for name, content in {"a/1.jpg": b"1", "b/2.png": b"", "b/ü.jpg": b"text"}.items():
        (tmp_path / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / name).write_bytes(content)
    with open(os.fsencode(tmp_path) + b"/f/a/\xff.jpg", "wb") as file:
        file.write(b"latin")
    folder = ImageFolder(str(tmp_path / "f"))
    write_lmdb(tmp_path / "packed", folder)
    packed = LmdbStorage(str(tmp_path / "packed"))
    assert summary(packed.read(np.arange(4))) == summary(folder.read(np.arange(4)))
    assert packed.fingerprint() == folder.fingerprint()


def test_class_ids_follow_the_classes_given(tmp_path):
    write_lmdb(tmp_path / "a", Listed(images(6)))
    storage = LmdbStorage(str(tmp_path / "a"), classes=["x", "c", "b", "a"])
    assert storage.index.column("label").tolist() == [3, 2, 1, 3, 2, 1]
    assert [r.fields["label"] for r in storage.read(np.array([2, 0]))] == [1, 3]
    with pytest.raises(ValueError, match="class 'c' is not among the 2 classes"):
        len(LmdbStorage(str(tmp_path / "a"), classes=["a", "b"]))


def test_wrong_paths(tmp_path):
    with pytest.raises(ValueError, match=r"nothing there; set dataset.storage.path"):
        len(LmdbStorage(str(tmp_path / "no")))
    with pytest.raises(ValueError, match=r"a folder without data.mdb"):
        len(LmdbStorage(str(tmp_path)))
    (tmp_path / "f.txt").write_bytes(b"hello" * 100)
    with pytest.raises(ValueError, match="no LMDB file"):
        len(LmdbStorage(str(tmp_path / "f.txt"), key_format="sorted"))


def test_a_worker_needs_neither_pyarrow_nor_lmdb(tmp_path):
    write_lmdb(tmp_path / "a", Listed(images(6)))
    import pickle

    recipe = pickle.dumps(LmdbStorage(str(tmp_path / "a")))
    code = (
        "import pickle, sys; s = pickle.loads(sys.stdin.buffer.read()); r = s.read(range(6));"
        "assert len(r) == 6; print([m for m in ('pyarrow', 'lmdb', 'torch') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], input=recipe, capture_output=True)
    assert answer.stdout.decode().strip() == "[]", answer.stderr.decode()
    assert isinstance(LmdbStorage(str(tmp_path / "a")).index, Table)


def read_and_count(storage, indices):
    """How many checksums reading takes."""
    with pytest.MonkeyPatch.context() as patch:
        counted = Mock(side_effect=zlib.crc32)
        patch.setattr("penstock.datasets.storages.lmdb.storage.zlib", Mock(crc32=counted))
        storage.read(np.asarray(indices))
    return counted.call_count


def test_a_process_verifies_a_record_once(tmp_path):
    write_lmdb(tmp_path / "a", Listed(images(40)))
    storage = LmdbStorage(str(tmp_path / "a"))
    assert read_and_count(storage, range(5, 25)) == 20
    assert read_and_count(storage, range(40)) == 20
    assert read_and_count(storage, range(40)) == 0
    assert read_and_count(LmdbStorage(str(tmp_path / "a"), checksums=False), range(40)) == 0
