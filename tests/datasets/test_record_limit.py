"""A record that is absurdly large is bad in one line, and never read."""

from __future__ import annotations

import io
import os
import re
import resource
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.map_dataset import open_map
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.splits import StorageRecipe
from penstock.datasets.storages.arrow import ArrowStorage
from penstock.datasets.storages.csv import CsvStorage
from penstock.datasets.storages.hdf5 import Hdf5Storage
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.npy_shards import open_npy_shards
from penstock.datasets.storages.parquet import ParquetStorage
from penstock.datasets.storages.webdataset import WebDatasetSource, WebDatasetStorage
from penstock.datasets.storages.zip import ZipStorage, ZipWriter
from penstock.datasets.writing import write_storage
from penstock.transforms.decode.raw import RawDecoder
from tests.contracts.records import ListedRecords

MB, GB = 1 << 20, 1 << 30


@pytest.fixture(autouse=True)
def little_memory():
    """No more than 1 GB beyond what the process has already."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    leave_a_gigabyte()
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def leave_a_gigabyte() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + GB, hard))


def sparse(path: Path, size_bytes: int) -> Path:
    path.write_bytes(b"")
    os.truncate(path, size_bytes)
    return path


def folder(root: Path) -> ImageFolder:
    (root / "a").mkdir()
    (root / "a/1.jpg").write_bytes(b"small")
    sparse(root / "a/2.jpg", 20 * GB)
    return ImageFolder(str(root))


def csv(root: Path) -> CsvStorage:
    folder(root)
    (root / "a.csv").write_text("image,label\na/1.jpg,0\na/2.jpg,1\n")
    return CsvStorage(str(root / "a.csv"))


def zip_(root: Path) -> ZipStorage:
    with zipfile.ZipFile(root / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("1.jpg", b"small")
        file.writestr("2.jpg", bytes(4 * MB), compresslevel=1)
    return ZipStorage(str(root / "a.zip"), labels=None)


def tar(root: Path) -> WebDatasetStorage:
    with tarfile.open(root / "a.tar", "w") as file:
        for name, size in ("1.jpg", 5), ("2.jpg", 12 * GB):
            info = tarfile.TarInfo(name)
            info.size = size
            place = file.offset
            if size == 5:
                file.addfile(info, io.BytesIO(b"small"))
            else:
                file.fileobj.write(info.tobuf(file.format))  # its content is a hole
            header = len(info.tobuf())
        end = place + header + 12 * GB
    with open(root / "a.tar", "r+b") as file:
        file.truncate(end + 1024)
    return WebDatasetStorage(str(root / "a.tar"))


def parquet(root: Path) -> ParquetStorage:
    values = pa.array([b"small"], pa.binary()), pa.array([bytes(4 * MB)], pa.binary())
    with pq.ParquetWriter(root / "a.parquet", pa.schema([("image", pa.binary())])) as file:
        for value in values:
            file.write_table(pa.table({"image": value}))
    return ParquetStorage(str(root / "a.parquet"))


@pytest.mark.parametrize("make", [folder, csv, tar, zip_, parquet])
def test_a_large_record_is_bad_and_the_next_is_not(tmp_path, make):
    storage = make(tmp_path)
    if make in (zip_, parquet):
        storage.max_record_bytes = MB
    good, bad = storage.read(np.arange(2))
    assert good.fields["image"] == b"small"
    assert isinstance(bad, BadRecord) and "\n" not in bad.cause
    assert "bytes, more than dataset.max_record_bytes=" in bad.cause


def test_the_line_says_what_to_type(tmp_path):
    (tmp_path / "1.jpg").write_bytes(bytes(2000))
    recipe = StorageRecipe(ImageFolder, {"path": str(tmp_path), "labels": None})

    def read(**given):
        dataset = open_map(recipe, decode=RawDecoder(), transform=lambda sample, rng: sample,
                           val_fraction=0, seed=0, split="train", **given)  # fmt: skip
        return dataset.storage.read(np.zeros(1, np.int64))[0]

    said = read(max_record_bytes=1999).cause
    assert said.endswith("or set dataset.max_record_bytes=2000")
    assert len(read(max_record_bytes=2000).fields["image"]) == 2000


@pytest.mark.parametrize("size", [12 * GB, 1 << 60])
def test_a_large_member_of_a_pipe_is_passed_over(tmp_path, size):
    """Without reading it into memory; here the pipe ends before it does."""
    small, large = tarfile.TarInfo("1.jpg"), tarfile.TarInfo("2.jpg")
    small.size, large.size = 5, size
    content = small.tobuf() + b"small".ljust(512, b"\0") + large.tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "a").write_bytes(content + bytes(4096))
    source = WebDatasetSource(f"pipe:cat {tmp_path / 'a'}")
    shard = source.read(source.shards(0)[0], 0)
    assert source.load(next(shard)).fields == {"image": b"small"}
    with pytest.raises(RuntimeError, match=r"a: ended after .* bytes too early: it broke off"):
        next(shard)
    shard.close()


def test_a_large_member_of_a_compressed_archive_is_bad(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", compresslevel=1) as file:
        for name, size in ("1.jpg", 5), ("2.jpg", 4 * MB), ("3.jpg", 5):
            info = tarfile.TarInfo(name)
            info.size = size
            file.addfile(info, io.BytesIO(bytes(size)))
    source = WebDatasetSource(str(tmp_path / "a.tar.gz"))
    source.max_record_bytes = MB
    first, second, third = map(source.load, source.read(source.shards(0)[0], 0))
    assert first.fields == third.fields == {"image": bytes(5)}
    assert second.cause.startswith("its jpg has 4,194,304 bytes, more than dataset.max_record_")


ZEROS = bytes(4 * MB)
SMALL = 99


def parquet_group(root: Path, large: bytes = ZEROS) -> ParquetStorage:
    """A page that is nothing once compressed, among rows whose average is small."""
    values = pa.table({"image": pa.array([large, *[b"small"] * SMALL], pa.binary())})
    pq.write_table(values, root / "a.parquet", compression="zstd")
    return ParquetStorage(str(root / "a.parquet"))


def parquet_equal(root: Path) -> ParquetStorage:
    """A value that stands for many: the file holds it once."""
    lists = pa.array([[0.0] * 600_000, *[[0.0]] * SMALL], pa.list_(pa.float64()))
    pq.write_table(pa.table({"x": lists}), root / "a.parquet")
    return ParquetStorage(str(root / "a.parquet"))


def arrow(root: Path, large: bytes = ZEROS, *, stream: bool = False, old: bool = False) -> Any:
    values = pa.table({"image": pa.array([large, *[b"small"] * SMALL], pa.large_binary())})
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_legacy_format=old)
    write = pa.ipc.new_stream if stream else pa.ipc.new_file
    with write(str(root / "a.arrow"), values.schema, options=options) as file:
        file.write_table(values)
    return ArrowStorage(str(root / "a.arrow"))


def arrow_dictionary(root: Path) -> ArrowStorage:
    values = pa.array([ZEROS.decode(), *["small"] * SMALL]).dictionary_encode()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    table = pa.table({"x": values})
    with pa.ipc.new_file(str(root / "a.arrow"), table.schema, options=options) as file:
        file.write_table(table)
    return ArrowStorage(str(root / "a.arrow"))


def npz_shard(root: Path) -> IndexedStorage:
    np.savez_compressed(root / "a.npz", x=np.zeros((100, 1 << 16), np.uint8))
    return open_npy_shards(str(root))


def npz_sample(root: Path) -> IndexedStorage:
    np.savez_compressed(root / "a.npz", x=np.zeros(4 * MB, np.uint8))
    return open_npy_shards(str(root), rows=False, labels=None)


def hdf5_chunk(root: Path) -> Hdf5Storage:
    with h5py.File(root / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((100, 1 << 16), np.uint8), chunks=(100, 1 << 16),
                            compression="gzip")  # fmt: skip
    return Hdf5Storage(str(root / "a.h5"))


def hdf5_hollow(root: Path) -> Hdf5Storage:
    """A chunk of 4 MB for 100 numbers, which was never written: the library fills all of it."""
    with h5py.File(root / "a.h5", "w") as file:
        file.create_dataset("x", (100, 1), np.uint8, chunks=(2048, 2048), maxshape=(None, None),
                            fillvalue=0)  # fmt: skip
    return Hdf5Storage(str(root / "a.h5"))


def zip_packed(root: Path, *, long_key: bool = False) -> ZipStorage:
    """A hidden member that is nothing once compressed: fields of a record, or the table of all."""
    records = {str(n): {"x": b"small"} for n in range(SMALL)}
    records |= {"0" * (4 * MB): {"x": b"small"}} if long_key else {"a": {"x": ZEROS}}
    write_storage(ZipWriter(), root / "packed", ListedRecords(records))
    [packed] = (root / "packed").iterdir()
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(root / "a.zip", "w") as file:
        for name in old.namelist():
            file.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
    return ZipStorage(str(root / "a.zip"))


COMPRESSED = [
    parquet_group, parquet_equal, arrow, partial(arrow, stream=True),
    partial(arrow, old=True), arrow_dictionary, npz_shard,
    npz_sample, hdf5_chunk, hdf5_hollow, zip_packed, partial(zip_packed, long_key=True),
]  # fmt: skip


@pytest.mark.parametrize("make", COMPRESSED)
def test_what_is_nothing_until_it_is_decompressed_is_not(tmp_path, make, monkeypatch):
    monkeypatch.setattr("penstock.core.sample._HARMLESS_BYTES", 0)
    said = causes(make(tmp_path), MB)
    assert len(said) == 1 and "\n" not in said[0]
    shown = "has 4,1|has 4,8|has 6,|takes more than"
    assert re.search(shown, said[0])


def causes(storage: Any, limit: int) -> list[str]:
    """What reading all of a storage says."""
    storage.max_record_bytes = limit
    try:
        rows = storage.read(np.arange(len(storage)))
    except ValueError as error:  # where the file is looked through at once
        return [str(error)]
    return list({row.cause for row in rows if isinstance(row, BadRecord)})


@pytest.mark.parametrize("make", COMPRESSED)
def test_the_limit_that_the_line_says_is_enough(tmp_path, make):
    limit = MB
    for attempt in range(3):  # of a record alone, and of all that are read with it
        (folder := tmp_path / str(attempt)).mkdir()
        said = causes(make(folder), limit)
        if not said:
            break
        limit = int(re.findall(r"dataset.max_record_bytes=(\d+)", said[0])[-1])
    assert said == []


@pytest.mark.parametrize("make", [parquet_group, arrow])
def test_a_large_record_among_small_ones_is_bad_alone(tmp_path, make):
    storage = make(tmp_path, np.random.default_rng(0).bytes(4 * MB))
    storage.max_record_bytes = MB
    first, *others = storage.read(np.arange(100))
    assert first.cause.startswith("has 4,194,3") and len(first.cause.splitlines()) == 1
    assert all(record.fields["image"] == b"small" for record in others)


@pytest.mark.slow
@pytest.mark.parametrize("make", [parquet_group, arrow])
def test_two_gigabytes_of_zeros_take_no_memory(tmp_path, make):
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    make(tmp_path, bytes(2 * GB - 4096))
    pa.default_memory_pool().release_unused()
    leave_a_gigabyte()
    kind = ParquetStorage if make is parquet_group else ArrowStorage
    storage = kind(str(tmp_path))
    [said] = causes(storage, storage.max_record_bytes)
    assert "bytes and has 2,147,4" in said


def test_a_low_limit_of_a_record_is_none_for_many_that_are_alike(tmp_path):
    labels = np.zeros(100_000, np.int64)
    table = pa.table({"label": labels, "value": labels.astype(float)})
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd", use_dictionary=False)
    storage = ParquetStorage(str(tmp_path / "t.parquet"))
    storage.max_record_bytes = 10_000
    assert not causes(storage, 10_000)
