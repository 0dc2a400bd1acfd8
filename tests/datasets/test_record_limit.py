"""A record above the size limit is bad in one line, and never read."""

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
    """Limit the process to 1 GB beyond its present memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + GB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def folder(root: Path) -> ImageFolder:
    (root / "a").mkdir()
    for name, size in (("1", 5), ("2", 20 * GB)):
        (root / f"a/{name}.jpg").write_bytes(b"small"[:size])
        os.truncate(root / f"a/{name}.jpg", size)
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


def header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def tar(root: Path) -> WebDatasetStorage:
    start = header("1.jpg", 5) + b"small".ljust(512, b"\0") + header("2.jpg", 12 * GB)
    (root / "a.tar").write_bytes(start)
    os.truncate(root / "a.tar", len(start) + 12 * GB + 1024)  # its content is a hole
    return WebDatasetStorage(str(root / "a.tar"))


def parquet(root: Path) -> ParquetStorage:
    with pq.ParquetWriter(root / "a.parquet", pa.schema([("image", pa.binary())])) as file:
        for value in (b"small", bytes(4 * MB)):
            file.write_table(pa.table({"image": pa.array([value], pa.binary())}))
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


def test_the_remedy_of_the_limit_works(tmp_path):
    (tmp_path / "1.jpg").write_bytes(bytes(2000))
    recipe = StorageRecipe(ImageFolder, {"path": str(tmp_path), "labels": None})

    def read(**given):
        dataset = open_map(recipe, decode=RawDecoder(), transform=lambda sample, rng: sample,
                           val_fraction=0, seed=0, split="train", **given)  # fmt: skip
        return dataset.storage.read(np.zeros(1, np.int64))[0]

    assert read(max_record_bytes=1999).cause.endswith("or set dataset.max_record_bytes=2000")
    assert len(read(max_record_bytes=2000).fields["image"]) == 2000


@pytest.mark.parametrize("size", [12 * GB, 1 << 60])
def test_a_large_member_of_a_pipe_is_skipped(tmp_path, size):
    """The pipe ends within the member, which is not read into memory."""
    content = header("1.jpg", 5) + b"small".ljust(512, b"\0") + header("2.jpg", size)
    (tmp_path / "a").write_bytes(content + bytes(4096))
    source = WebDatasetSource(f"pipe:cat {tmp_path / 'a'}")
    shard = source.read(source.shards(0)[0], 0)
    assert source.load(next(shard)).fields == {"image": b"small"}
    with pytest.raises(RuntimeError, match=r"a: broke off after .* bytes, too early"):
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
    assert second.cause.startswith("'2.jpg' has 4,194,304 bytes, more than dataset.max_record_")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_large_record_among_small_ones_is_bad_alone(tmp_path, form):
    large, path = np.random.default_rng(0).bytes(4 * MB), str(tmp_path / f"a.{form}")
    values = pa.table({"image": pa.array([large, *[b"small"] * 99], pa.large_binary())})
    if form == "parquet":
        pq.write_table(values, path, compression="zstd")
        storage = ParquetStorage(path)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(path, values.schema, options=options) as file:
            file.write_table(values)
        storage = ArrowStorage(path)
    storage.max_record_bytes = MB
    first, *others = storage.read(np.arange(100))
    assert first.cause.startswith("has 4,194,3") and len(first.cause.splitlines()) == 1
    assert all(record.fields["image"] == b"small" for record in others)
