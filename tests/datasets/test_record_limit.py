"""A record that is absurdly large is bad in one line, and never read."""

from __future__ import annotations

import io
import os
import resource
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.map_dataset import open_map
from penstock.datasets.records.splits import StorageRecipe
from penstock.datasets.storages.arrow import ArrowStorage
from penstock.datasets.storages.csv import CsvStorage
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.parquet import ParquetStorage
from penstock.datasets.storages.webdataset import WebDatasetSource, WebDatasetStorage
from penstock.datasets.storages.zip import ZipStorage
from penstock.transforms.decode.raw import RawDecoder

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


SMALL = 99


def parquet_group(root: Path, large: bytes) -> ParquetStorage:
    """A large value among rows whose average is small."""
    values = pa.table({"image": pa.array([large, *[b"small"] * SMALL], pa.binary())})
    pq.write_table(values, root / "a.parquet", compression="zstd")
    return ParquetStorage(str(root / "a.parquet"))


def arrow(root: Path, large: bytes) -> ArrowStorage:
    values = pa.table({"image": pa.array([large, *[b"small"] * SMALL], pa.large_binary())})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(root / "a.arrow"), values.schema, options=options) as file:
        file.write_table(values)
    return ArrowStorage(str(root / "a.arrow"))


@pytest.mark.parametrize("make", [parquet_group, arrow])
def test_a_large_record_among_small_ones_is_bad_alone(tmp_path, make):
    storage = make(tmp_path, np.random.default_rng(0).bytes(4 * MB))
    storage.max_record_bytes = MB
    first, *others = storage.read(np.arange(100))
    assert first.cause.startswith("has 4,194,3") and len(first.cause.splitlines()) == 1
    assert all(record.fields["image"] == b"small" for record in others)


def test_a_low_limit_of_a_record_is_none_for_many_that_are_alike(tmp_path):
    labels = np.zeros(100_000, np.int64)
    table = pa.table({"label": labels, "value": labels.astype(float)})
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd", use_dictionary=False)
    storage = ParquetStorage(str(tmp_path / "t.parquet"))
    storage.max_record_bytes = 10_000
    assert not any(isinstance(row, BadRecord) for row in storage.read(np.arange(len(storage))))
