"""Files of ranges: each is scanned once, and a cached scan equals a scan of all."""

from __future__ import annotations

import os

import numpy as np
import pytest

from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.files.access import RangeFile
from penstock.datasets.records.file_storage import FileStorage, Form
from penstock.datasets.records.table import Table
from penstock.datasets.storages.webdataset.storage import Tar, WebDatasetStorage
from tests.contracts.storage import read_all, summary
from tests.datasets.storages.webdataset.tar_samples import put

LABELS = {
    "names": [["dog", "cat"], ["emu", "cat"], ["ant", "dog"]],
    "numbers": [["0", "2"], ["1", "1"], ["3", "0"]],
    "codes": [["5000", "20"], ["70000", "20"], ["1", "5000"]],
    "names after numbers": [["3", "10"], ["10", "3"], ["cat", "3"]],
}


def shard(folder, n, labels):
    members = [{"jpg": b"%d" % n, "cls": label.encode()} for label in labels]
    put(folder / f"{n}.tar", [(f"{n}-{i}", each) for i, each in enumerate(members)])


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_only_new_and_changed_files_are_scanned(tmp_path, monkeypatch, labels):
    scanned = []
    scan = Tar.scan

    def counted(form, file, *more):
        scanned.append(os.path.basename(file.path))
        return scan(form, file, *more)

    monkeypatch.setattr(Tar, "scan", counted)
    folder = tmp_path / "shards"
    shard(folder, 0, labels[0])
    shard(folder, 1, labels[1])
    assert len(WebDatasetStorage(str(folder))) == 4
    assert sorted(scanned) == ["0.tar", "1.tar"]
    shard(folder, 1, [*labels[1], labels[0][0]])
    shard(folder, 2, labels[2])
    after = WebDatasetStorage(str(folder))
    assert len(after) == 7
    assert sorted(scanned[2:]) == ["1.tar", "2.tar"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    fresh = WebDatasetStorage(str(folder))
    assert len(fresh) == 7 and len(scanned) == 7
    assert summary(read_all(after)) == summary(read_all(fresh))
    assert after.index.class_names == fresh.index.class_names
    assert after.fingerprint() == fresh.fingerprint()


class Lines(Form):
    name, endings = "lines", (".txt",)

    def scan(self, file, file_bytes, name, max_bytes):
        sizes = [len(line) for line in file.read(0, file_bytes).splitlines(keepends=True)]
        offsets = np.cumsum([0, *sizes[:-1]]) if sizes else np.zeros(0, np.int64)
        keys = [f"{name}:{n}".encode() for n in range(len(sizes))]
        return Table(keys, {"offset": offsets, "span_bytes": np.array(sizes, np.int64)})

    def decode(self, data, key, row):
        text = bytes(data)
        if text.startswith(b"?"):
            raise RecordError("it is damaged")
        return {"text": int(text) if text.startswith(b"!") else text.decode().rstrip()}


def test_a_mistake_in_a_decoder_is_raised(tmp_path):
    (tmp_path / "a.txt").write_text("one\n?two\nthree\n!four\n")
    (tmp_path / "b.txt").write_text("")
    storage = FileStorage(Lines(), str(tmp_path))
    first, bad, third = storage.read(np.arange(3))
    assert isinstance(first, Record) and third.fields == {"text": "three"}
    assert isinstance(bad, BadRecord) and bad.cause == "a.txt: it is damaged"
    with pytest.raises(ValueError, match="invalid literal"):
        storage.read(np.array([0, 3]))


def test_neighbours_share_a_read_and_a_lost_file_spoils_its_own_records(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("x\n" * 100)
    storage, reads = FileStorage(Lines(), str(tmp_path)), []
    assert len(storage) == 200
    read_upto = RangeFile.read_upto
    monkeypatch.setattr(
        RangeFile, "read_upto", lambda file, *place: reads.append(place) or read_upto(file, *place)
    )
    assert len(storage.read(np.random.default_rng(0).permutation(200))) == 200
    assert reads == [(0, 200), (0, 200)]
    os.unlink(tmp_path / "a.txt")
    storage._handles = None
    lost = [record.key for record in read_all(storage) if isinstance(record, BadRecord)]
    assert lost == [f"a.txt:{n}" for n in range(100)]
