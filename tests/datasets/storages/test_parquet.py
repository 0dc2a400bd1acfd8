"""Parquet: what the hubs and others write, how often a row group is read, and damage anywhere."""

import gc
import os
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.sample import BadRecord
from penstock.datasets.storages import parquet
from penstock.datasets.storages.parquet import ParquetStorage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, read_all, summary
from tests.datasets.storages.tables import CLASSES, hub_records, hub_table, images

rng = np.random.default_rng(0)


def put(path, table, rows=10, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows, **options)
    return str(path)


def everything(storage):
    return summary(read_all(storage))


def wanted(records):
    return [(i, key, fields) for i, (key, fields) in enumerate(records)]


def test_contract_over_shards_in_folders(tmp_path):
    encoded = images(64)
    put(tmp_path / "a/data/x-0.parquet", hub_table(encoded[:33]), rows=7)
    put(tmp_path / "a/data/x-1.parquet", hub_table(encoded[33:33]))
    put(tmp_path / "a/data/x-2.parquet", hub_table(encoded[33:]), rows=100, compression="zstd")
    (tmp_path / "a/README.md").write_text("nothing")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: ParquetStorage(str(tmp_path / "a")),
        hub_records(encoded[:33]) + hub_records(encoded[33:], start=33),
        make_copy=lambda: ParquetStorage(str(tmp_path / "b/data/x-*.parquet")),
    )
    assert ParquetStorage(str(tmp_path / "a")).index.class_names == CLASSES


def test_contract_with_a_damaged_row_group_between_good_ones(tmp_path):
    encoded = images(30)
    path = put(tmp_path / "a.parquet", hub_table(encoded), write_page_checksum=True)
    storage = ParquetStorage(path)
    assert len(storage) == 30
    chunk = pq.read_metadata(path).row_group(1).column(0)
    flip(path, chunk.dictionary_page_offset + chunk.total_compressed_size // 2)
    records = hub_records(encoded)
    check_storage(
        lambda: storage,
        [(key, None if 10 <= i < 20 else fields) for i, (key, fields) in enumerate(records)],
        processes=("new",),
    )
    [bad] = storage.read(np.array([12]))
    assert isinstance(bad, BadRecord)
    assert "a.parquet, group 1: damaged" in bad.cause


def flip(path, at, bit=3):
    """Flip a bit as a failing disk does, which keeps the file's times."""
    times = os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns
    with open(path, "r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ 1 << bit]))
    os.utime(path, ns=times)


def test_a_batch_reads_each_row_group_once_and_only_its_columns(tmp_path, monkeypatch):
    path = put(tmp_path / "a.parquet", hub_table(images(50), other=["x"] * 50))
    found, read = [], parquet.ParquetFile.read

    def counted(file, group, columns):
        found.append((group, tuple(columns)))
        return read(file, group, columns)

    monkeypatch.setattr(parquet.ParquetFile, "read", counted)
    storage = ParquetStorage(path, columns=["image"], cache_bytes=0)
    storage.read(rng.permutation(50))
    assert found == [(part, ("image",)) for part in range(5)]
    found.clear()
    for start in range(0, 50, 4):  # in order: a group that two batches share is read once
        storage.read(np.arange(start, min(start + 4, 50)))
    assert [part for part, _ in found] == [0, 1, 2, 3, 4]


def test_many_files_take_few_descriptors(tmp_path):
    for n in range(240):
        put(tmp_path / f"{n:03d}.parquet", pa.table({"x": [n]}))
    storage = ParquetStorage(str(tmp_path), cache_bytes=0)
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        assert [record.fields["x"] for record in read_all(storage)] == list(range(240))
        assert len(os.listdir("/proc/self/fd")) < before + 200
    finally:
        gc.enable()


def test_only_new_and_changed_files_are_scanned(tmp_path, monkeypatch):
    put(tmp_path / "set/a.parquet", pa.table({"label": ["x", "y"], "count": [1, None]}))
    put(tmp_path / "set/b.parquet", pa.table({"label": ["y"], "count": [2]}))
    first = ParquetStorage(str(tmp_path / "set")).fingerprint()
    opened = []
    init = parquet.ParquetFile.__init__

    def counted(file, ranges, *more):
        opened.append(os.path.basename(ranges.path))
        init(file, ranges, *more)

    monkeypatch.setattr(parquet.ParquetFile, "__init__", counted)
    assert ParquetStorage(str(tmp_path / "set")).fingerprint() == first
    assert not opened
    put(tmp_path / "set/c.parquet", pa.table({"label": ["a"], "count": [3]}))
    storage = ParquetStorage(str(tmp_path / "set"))
    assert storage.index.column("label").tolist() == [1, 2, 2, 0]
    assert opened == ["c.parquet"]
    assert [type(record.fields["count"]) for record in read_all(storage)] == [float] * 4
    assert storage.fingerprint() != first


def test_a_file_cut_short_or_gone_while_it_is_open(tmp_path):
    encoded = images(30)
    path = put(tmp_path / "a.parquet", hub_table(encoded))
    storage = ParquetStorage(path, cache_bytes=0)
    assert len(storage) == 30
    chunk = pq.read_metadata(path).row_group(2).column(0)
    storage.read(np.array([0]))
    os.truncate(path, chunk.dictionary_page_offset)
    first, last = storage.read(np.array([19, 20]))
    assert first.fields["image"] == encoded[19]
    assert "the file ends" in last.cause
    os.unlink(path)
    elsewhere = pickle.loads(pickle.dumps(storage))
    assert "No such file" in elsewhere.read(np.array([3]))[0].cause


def test_a_flipped_bit_anywhere_is_an_error_or_spoils_its_row_group(tmp_path):
    encoded = images(40)
    path = put(tmp_path / "a.parquet", hub_table(encoded), write_page_checksum=True)
    content = open(path, "rb").read()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    records = wanted(hub_records(encoded))
    seen = 0
    places = [*rng.integers(0, footer, 60), *rng.integers(footer, len(content), 60)]
    for at in flipped(path, places, rng):
        found = unless_refused(lambda: everything(ParquetStorage(path)))
        seen += found is None
        if found is not None and at < footer:
            wrong = [n for n, row in enumerate(found) if row != records[n]]
            assert all(found[n][2] is None for n in wrong)
            assert len({n // 10 for n in wrong}) <= 1
            seen += bool(wrong)
    assert seen > 60


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
