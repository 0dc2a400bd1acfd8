"""Parquet: damage of a row group and the footer, and how often a row group is read."""

import gc
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.storages import parquet
from penstock.datasets.storages.arrays import NpyShards
from penstock.datasets.storages.parquet import ParquetStorage
from tests.contracts.storage import check_storage, read_all
from tests.datasets.storages.tables import hub_records, hub_table, images, write_parquet

rng = np.random.default_rng(0)


def test_contract_with_a_damaged_row_group_between_good_ones(tmp_path):
    encoded = images(30)
    path = tmp_path / "a.parquet"
    write_parquet(hub_table(encoded), path, write_page_checksum=True)
    storage = ParquetStorage(str(path))
    assert len(storage) == 30
    chunk = pq.read_metadata(path).row_group(1).column(0)
    content, status = bytearray(path.read_bytes()), path.stat()
    content[chunk.dictionary_page_offset + chunk.total_compressed_size // 2] ^= 8
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as when a disk fails
    records = hub_records(encoded)
    check_storage(
        lambda: storage,
        [(key, None if 10 <= i < 20 else fields) for i, (key, fields) in enumerate(records)],
        processes=("new",),
    )
    [bad] = storage.read(np.array([12]))
    assert isinstance(bad, BadRecord)
    assert "a.parquet, group 1: damaged" in bad.cause


def test_a_batch_reads_each_row_group_once_and_only_its_columns(tmp_path, monkeypatch):
    write_parquet(hub_table(images(50), other=["x"] * 50), tmp_path / "a.parquet")
    found, read = [], parquet.ParquetFile.read

    def counted(file, group, columns):
        found.append((group, tuple(columns)))
        return read(file, group, columns)

    monkeypatch.setattr(parquet.ParquetFile, "read", counted)
    storage = ParquetStorage(str(tmp_path), columns=["image"], cache_bytes=0)
    storage.read(rng.permutation(50))
    assert found == [(part, ("image",)) for part in range(5)]
    found.clear()
    for start in range(0, 50, 4):  # in order: a group that two batches share is read once
        storage.read(np.arange(start, min(start + 4, 50)))
    assert [part for part, _ in found] == [0, 1, 2, 3, 4]


MANY = {
    "x_{}.parquet": (ParquetStorage, lambda path, n: write_parquet(pa.table({"x": [n]}), path)),
    "x_{}.npy": (NpyShards, lambda path, n: np.save(path, np.array([n]))),
}


@pytest.mark.parametrize("name", MANY)
def test_many_files_take_few_descriptors(tmp_path, name):
    make, write = MANY[name]
    for n in range(400):
        write(tmp_path / name.format(n), n)
    storage = make(str(tmp_path))
    assert len(storage) == 400
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        assert sorted(record.fields["x"] for record in read_all(storage)) == list(range(400))
        assert len(os.listdir("/proc/self/fd")) < before + 200
    finally:
        gc.enable()


def test_a_damaged_footer_does_not_end_the_process(tmp_path):
    """The library throws C++ exceptions, for sizes of levels among others."""
    pq.write_table(pa.table({"x": [[1, 2], [3]]}), tmp_path / "a.parquet", store_schema=False)
    good, refused = (tmp_path / "a.parquet").read_bytes(), 0
    footer = int.from_bytes(good[-8:-4], "little")
    for at, bit in [(at, 1) for at in range(-230, -180)] + [(at, 32) for at in range(-footer, -8)]:
        data = bytearray(good)
        data[at] ^= bit
        (tmp_path / "a.parquet").write_bytes(data)
        try:
            storage = ParquetStorage(str(tmp_path))
            refused += isinstance(storage.read(np.arange(len(storage)))[0], BadRecord)
        except ValueError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 10
