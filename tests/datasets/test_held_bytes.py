"""What memory records take when they have been read: none where they are views of a map."""

import numpy as np
import pytest

from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.mix import MixDataset
from penstock.datasets.records.annotated_storage import AnnotatedStorage
from penstock.datasets.records.subset import Subset
from penstock.datasets.records.table import Table
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.lmdb import LmdbStorage
from penstock.datasets.storages.memmap.storage import MemmapStorage
from penstock.pipeline.loader.compute.by_sample import pieces_of
from penstock.transforms.cpu.stack import build_stack
from penstock.transforms.decode.raw import RawDecoder
from tests.building import build_step
from tests.datasets.storages.lmdb_files import Listed
from tests.memory_storage import MemoryStorage
from tests.packed import write_lmdb

MEGABYTES = 3
FILE = bytes(MEGABYTES << 20)


@pytest.fixture
def half_raw(tmp_path):
    """Files and decoded images in turn, of 3 MB each."""
    pixels = np.zeros((1024, MEGABYTES << 10, 1), np.uint8)
    fields = {f"{i}": {"image": pixels if i % 2 else FILE} for i in range(6)}
    write_lmdb(tmp_path / "packed", Listed(fields))
    return LmdbStorage(str(tmp_path / "packed"))


def over(storage):
    transform = build_stack({}, build_step=build_step)
    return MapDataset(storage, decode=RawDecoder(), transform=transform, seed=0)


def held_bytes(storage):
    return over(storage).held_bytes


def cut(data, indices):
    known = data.held_bytes
    return pieces_of(known and known(indices), len(indices))


def test_decoded_images_of_an_lmdb_take_none(half_raw):
    assert held_bytes(half_raw)(np.arange(6)).tolist() == [len(FILE), 0] * 3
    assert not half_raw.read(np.array([1]))[0].fields["image"].flags.owndata
    assert held_bytes(Subset(half_raw, np.array([1, 2, 5])))(np.array([2, 1])).tolist() == [
        0,
        len(FILE),
    ]
    assert held_bytes(AnnotatedStorage(half_raw, []))(np.array([3, 0])).tolist() == [0, len(FILE)]


def test_they_are_read_in_one_piece_with_the_batch(half_raw):
    data = over(half_raw)
    assert len(cut(data, np.array([1, 3, 5]))) == 1
    assert len(cut(data, np.array([0, 2, 4]))) == 3
    mix = MixDataset({"a": data, "b": over(half_raw)})
    assert mix.held_bytes(np.array([9, 0, 6])).tolist() == [0, len(FILE), len(FILE)]
    assert len(cut(mix, np.array([9, 1, 3, 11]))) == 1


def test_arrays_in_a_map_take_none(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((4, 1024, 1024, 3), np.uint8))
    storage = MemmapStorage(str(tmp_path))
    assert storage.index.values("size_bytes", np.array([0])) == [3 << 20]
    assert cut(over(storage), np.arange(4)) == [slice(0, 4)]


def test_files_take_their_sizes_which_are_looked_up_for_these_alone(tmp_path, monkeypatch):
    for i in range(3):
        (tmp_path / f"{i}.jpg").write_bytes(bytes(i + 1))
    storage = ImageFolder(str(tmp_path), labels=None)
    assert len(storage) == 3  # scanned
    known = held_bytes(storage)
    monkeypatch.setattr(Table, "column", None)
    assert known(np.array([2, 0])).tolist() == [3, 1]


def test_what_is_not_known_is_said_so():
    storage = MemoryStorage([{"image": b"1"}] * 3)
    assert held_bytes(storage)(np.arange(3)) is None
    assert cut(over(storage), np.arange(3)) == [slice(0, 3)]
