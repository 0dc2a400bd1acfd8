"""TFRecord: the contract of storages on what a library wrote, checksums, damage, refusals."""

from __future__ import annotations

import gzip
import shutil
import sys

import numpy as np
import pytest

from penstock.core.sample import BadRecord
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, plain, read_all
from tests.encoded_images import RGB, encode

N = 13
IMAGES = [encode(RGB.resize((20 + i, 20)), "JPEG") for i in range(N)]


def features(i):
    return {
        "image/encoded": (IMAGES[i], "byte"), "image/class/label": (i % 3, "int"),
        "text": (f"číslo {i}".encode(), "byte"), "big": (-(2**62) + i, "int"),
        "score": (i / 4, "float"), "boxes": ([i / 2] * i, "float"),
        "tokens": ([7**k for k in range(i + 1)], "int"), "parts": ([b"a", b"b"][: i % 3], "byte"),
    }  # fmt: skip


def fields(i):
    return {
        "image": IMAGES[i], "label": i % 3, "text": f"číslo {i}", "big": -(2**62) + i,
        "score": i / 4, "boxes": np.full(i, i / 2, np.float32),
        "tokens": np.array([7**k for k in range(i + 1)]), "parts": [b"a", b"b"][: i % 3],
    }  # fmt: skip


EXPECTED = [(str(i), fields(i)) for i in range(N)]


def write(folder, *, per_file=5, made=features):
    writer = pytest.importorskip("tfrecord").TFRecordWriter
    folder.mkdir()
    for start in range(0, N, per_file):
        file = writer(str(folder / f"train-{start:05d}.tfrecord"))
        for i in range(start, min(start + per_file, N)):
            file.write(made(i))
        file.close()
    return folder


@pytest.fixture
def storage(imported):
    return imported("plugins/penstock_tfrecord.py").TfRecordStorage


@pytest.mark.ecosystem
def test_it_is_a_storage(storage, tmp_path):
    folder = str(write(tmp_path / "a"))
    copy = shutil.copytree(folder, tmp_path / "b")
    check_storage(lambda: storage(folder), EXPECTED, make_copy=lambda: storage(str(copy)))
    assert storage(folder).shards().tolist() == [0, 5, 10]
    [record] = storage(folder, fields={"photo": "image/encoded"}).read(np.array([3]))
    assert record.fields == {"photo": IMAGES[3]}
    named = storage(folder, fields={"label": "text"})
    assert named.index.class_names[:2] == ("číslo 0", "číslo 1")


@pytest.mark.ecosystem
def test_files_compressed_by_gzip_are_read_as_the_others(storage, tmp_path):
    folder = write(tmp_path / "a")
    for file in folder.iterdir():
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    records = read_all(storage(str(folder)))
    assert [plain(record.fields) for record in records] == [plain(f) for _, f in EXPECTED]


@pytest.mark.ecosystem
def test_flipped_bits_are_bad_records_or_refused_in_one_line(storage, tmp_path):
    folder = write(tmp_path / "a", per_file=N)
    path, rng = folder / "train-00000.tfrecord", np.random.default_rng(0)
    whole, bad = storage(str(folder)), []
    offsets = whole.index.column("offset")
    for at in flipped(path, rng.integers(12, path.stat().st_size, 60), rng):
        records = unless_refused(lambda: read_all(storage(str(folder))))
        bad += [r for r in records or () if isinstance(r, BadRecord)]
        wrong = [r.index for r in read_all(whole) if isinstance(r, BadRecord)]
        assert wrong in ([], [np.searchsorted(offsets, at, "right") - 1]), "its own record alone"
    assert bad and all(record.cause.endswith("are not those that were written") for record in bad)


@pytest.mark.ecosystem
def test_what_is_refused_is_said_in_one_line(storage, tmp_path):
    folder = write(tmp_path / "a")
    path = folder / "train-00005.tfrecord"
    whole = path.read_bytes()
    for content, said in {
        whole[:-3]: "train-00005.tfrecord: it is cut short: 3 bytes are missing; copy it again",
        whole + b"\0": "it is cut short within a record",
        b"x" * 99: "it is no TFRecord, plain or by gzip, or damaged at byte 0; copy it again",
        gzip.compress(whole)[:-20]: "copy it again",
    }.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=said) as error:
            len(storage(str(folder)))
        assert "\n" not in str(error.value)
    path.write_bytes(whole)
    for chosen, said in {
        "nonsense": "no record has the feature 'nonsense', the features are big, boxes, image/cl",
        "score": "label is a float, expected a class id or a name in each; set dataset.storage.fie",
        "boxes": "label is in 12 of 13 records, expected a class id or a name in each",
    }.items():
        with pytest.raises(ValueError, match=said):
            len(storage(str(folder), fields={"label": chosen}))
    with pytest.raises(ValueError, match=r"nothing there: .*a folder of .tfrecord"):
        len(storage(str(tmp_path / "a" / "x*")))


def test_without_the_library_of_the_checksum_it_is_named(storage, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ValueError, match=r"is missing; run: pip install google-crc32c$"):
        len(storage(str(tmp_path)))
