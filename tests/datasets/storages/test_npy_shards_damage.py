"""Shards of arrays that are damaged, hostile, or do not fit together."""

import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.storages.npy_shards import open_npy_shards
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import summary
from tests.datasets.storages.npy_arrays import (
    DEPTH,
    IMAGES,
    LABELS,
    N,
    made,
    message,
    write,
    write_npz,
)

rng = np.random.default_rng(0)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickles_are_refused_and_never_loaded(tmp_path):
    trap = tmp_path / "trap"
    objects = np.array([Hostile(trap)], object)
    shards = tmp_path / "shards"
    shards.mkdir()
    np.save(shards / "x_0.npy", objects, allow_pickle=True)
    assert "x_0.npy holds Python objects (pickled), which are never loaded" in message(shards)
    (shards / "x_0.npy").write_bytes(pickle.dumps(Hostile(trap)))
    assert "x_0.npy is no .npy file, or a damaged one" in message(shards)
    (shards / "x_0.npy").unlink()
    np.savez(shards / "0.npz", x=objects)
    assert "x.npy holds Python objects (pickled)" in message(shards)
    assert not trap.exists()


def test_wrong_data(tmp_path):
    assert "nothing there" in message(tmp_path / "none")
    assert "no file found" in message(tmp_path)
    np.save(tmp_path / "images_0.npy", IMAGES)
    np.save(tmp_path / "labels_0.npy", LABELS[:4])
    assert "0: image has 23 rows and label has 4, expected the same number" in message(tmp_path)
    np.save(tmp_path / "labels_0.npy", LABELS)
    np.save(tmp_path / "images_1.npy", IMAGES)
    assert "0 has the field 'label' and 1 has not" in message(tmp_path)
    np.save(tmp_path / "labels_1.npy", LABELS - 5)
    assert "label -5" in message(tmp_path) or "label -" in message(tmp_path)
    np.save(tmp_path / "labels_1.npy", LABELS * 1.5)
    assert "expected integers" in message(tmp_path)
    np.save(tmp_path / "labels_1.npy", LABELS)
    np.save(tmp_path / "labels-1.npy", LABELS)
    assert "are both the field 'label' of one shard" in message(tmp_path)
    (tmp_path / "labels-1.npy").unlink()
    np.save(tmp_path / "images_1.npy", np.asfortranarray(IMAGES))
    assert "is in Fortran order" in message(tmp_path)
    np.save(tmp_path / "images_1.npy", IMAGES.transpose(0, 3, 1, 2).copy())
    assert "put the channels last" in message(tmp_path)
    np.save(tmp_path / "images_1.npy", np.int8(3))
    assert "holds one number" in message(tmp_path)
    np.save(tmp_path / "images_1.npy", IMAGES)
    np.save(tmp_path / "index_1.npy", LABELS)
    assert "would be a field 'index'" in message(tmp_path)


def test_files_cut_short_anywhere(tmp_path):
    folder = write(tmp_path / "shards", arrays={"x": DEPTH})
    path = folder / "x_003.npy"
    content = path.read_bytes()
    for size in (0, 1, 5, 6, 8, 9, 10, 64, 127, 128, 200, len(content) - 1):
        path.write_bytes(content[:size])
        text = message(folder)
        assert "damaged" in text or "cut short" in text
    folder = write_npz(tmp_path / "npz")
    path = folder / "3.npz"
    content = path.read_bytes()
    for size in (0, 3, 30, 100, len(content) // 2, len(content) - 22, len(content) - 1):
        path.write_bytes(content[:size])
        assert "damaged or no ZIP archive" in message(folder)


def test_a_file_cut_while_it_is_open_spoils_its_samples_alone(tmp_path):
    folder = write(tmp_path / "shards")
    storage = open_npy_shards(str(folder))
    assert storage.take(np.arange(N), {"image"}) is not None
    os.truncate(folder / "images_003.npy", 200)
    for one in (storage, pickle.loads(pickle.dumps(storage))):
        records = one.read(np.arange(N))
        bad = [i for i, record in enumerate(records) if isinstance(record, BadRecord)]
        assert bad == list(range(8, 20)) and "images_003.npy" in records[8].cause
        assert one.take(np.arange(N), {"image"}) is None
        assert one.take(np.arange(7), {"image"}) is not None
    os.unlink(folder / "images_003.npy")
    bad = pickle.loads(pickle.dumps(storage)).read(np.array([8]))[0]
    assert "No such file" in bad.cause


def test_headers_that_ask_for_gigabytes(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%s,), }"
    for shape in (b"99999999999", b"9" * 400, b"1 << 60", b"-4"):
        text = header % shape
        text += b" " * (-(len(text) + 11) % 64) + b"\n"
        (tmp_path / "x_0.npy").write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text)
        text = message(tmp_path)
        assert "cut short" in text or "damaged" in text
    folder = tmp_path / "npz"
    np.savez_compressed(made(folder) / "0.npz", x=np.zeros(10_000_000))
    content = bytearray((folder / "0.npz").read_bytes())
    at = content.index(b"PK\x01\x02")
    struct.pack_into("<I", content, at + 24, 0xFFFF_FFF0)
    (folder / "0.npz").write_bytes(content)
    bad = open_npy_shards(str(folder)).read(np.array([0]))[0]
    assert "cannot hold" in bad.cause


def test_hostile_member_names(tmp_path):
    for name, text in (("../x.npy", "leads elsewhere"), ("a/x.npy", "would be a field 'a/x'"),
                       ("x;y.npy", "would be a field")):  # fmt: skip
        with zipfile.ZipFile(tmp_path / "0.npz", "w") as archive, archive.open(name, "w") as file:
            np.save(file, LABELS)
        assert text in message(tmp_path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_flipped_bytes_are_an_error_or_bad_records(tmp_path, save):
    folder = write_npz(tmp_path / "shards", save)
    path = folder / "3.npz"
    wanted = summary(open_npy_shards(str(folder)).read(np.arange(N)))
    noticed = 0
    for _ in flipped(path, rng.integers(0, path.stat().st_size, 60), rng):
        found = unless_refused(
            lambda: summary(open_npy_shards(str(folder), checksums=True).read(np.arange(N)))
        )
        noticed += found != wanted
        if found is not None:
            assert all(f == w or f[2] is None for f, w in zip(found, wanted, strict=True))
    assert noticed > 40
