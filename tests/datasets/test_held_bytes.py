"""The memory of records after reading."""

import numpy as np
import pytest

from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.records.views import AnnotatedStorage, Subset
from penstock.datasets.storages.lmdb import LmdbStorage
from penstock.pipeline.loader.compute import pieces_of
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.raw import RawDecoder
from tests.building import build_step
from tests.datasets.storages.lmdb_files import Listed
from tests.packed import write_lmdb

MEGABYTES = 3
FILE = bytes(MEGABYTES << 20)


@pytest.fixture
def files(tmp_path):
    """Files of 3 MB and of 1 byte in turn."""
    fields = {f"{i}": {"image": b"x" if i % 2 else FILE} for i in range(6)}
    write_lmdb(tmp_path / "packed", Listed(fields))
    return LmdbStorage(str(tmp_path / "packed"))


def over(storage):
    transform = Stack({}, build_step=build_step)
    return MapDataset(storage, decode=RawDecoder(), transform=transform, seed=0)


def test_views_and_mixes_know_the_memory_of_records(files):
    size = len(FILE)
    assert over(files).held_bytes(np.arange(6)).tolist() == [size, 1] * 3
    subset = over(Subset(files, np.array([1, 2, 5])))
    assert subset.held_bytes(np.array([2, 1])).tolist() == [1, size]
    annotated = over(AnnotatedStorage(files, []))
    assert annotated.held_bytes(np.array([3, 0])).tolist() == [1, size]


def test_small_records_are_read_in_one_piece_with_the_batch(files):
    data = over(files)
    for rows, pieces in (([1, 3, 5], 1), ([0, 2, 4], 3)):
        assert len(pieces_of(data.held_bytes(np.array(rows)), 3)) == pieces
