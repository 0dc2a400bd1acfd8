"""Parts raise trouble of the machine and do not take it for damage of a record."""

from __future__ import annotations

import contextlib
import errno
import os
import resource

import numpy as np
import pytest
from PIL import ImageFile
from torch.utils.data import Dataset

from penstock.core.arrays import read_npy, write_npy
from penstock.core.json_text import parse_json
from penstock.core.record_codec import pack_fields, unpack_fields
from penstock.core.sample import Record
from penstock.core.user_errors import in_one_line
from penstock.datasets.annotations.voc import VocAnnotations
from penstock.datasets.files import access
from penstock.datasets.torch_dataset import open_torch
from penstock.transforms.decode.image import ImageDecoder
from tests.datasets.annotations.annotated import open_annotated, write_images
from tests.datasets.storages.sqlite_tables import at, put_samples
from tests.encoded_images import JPEGS, RGB, encode
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader

NO_DESCRIPTORS = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.xml")


def fails(error):
    def call(*_, **__):
        raise error

    return call


@pytest.mark.parametrize("error", [MemoryError(), SystemError("AST recursion depth mismatch")])
def test_an_array_is_not_damaged(monkeypatch, error):
    data = write_npy(np.arange(6))
    monkeypatch.setattr("penstock.core.arrays._header", fails(error))
    with pytest.raises(type(error)):
        read_npy(data)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="nested too deep"):  # which the parser says by the same
        read_npy(b"\x93NUMPY\1\0" + (9901).to_bytes(2, "little") + b"-" * 9900 + b"\n")


def test_packed_fields_are_not_damaged(monkeypatch):
    packed = pack_fields({"a": [1]}, key="a")
    monkeypatch.setattr("penstock.core.record_codec.parse_json", fails(MemoryError()))
    with pytest.raises(MemoryError):
        unpack_fields(packed)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_is_not_damaged(monkeypatch, kind):
    data = JPEGS["420"] if kind == "JPEG" else encode(RGB, "PNG")
    error = ValueError("Insufficient memory (case 4)")  # as libjpeg says it
    monkeypatch.setattr("simplejpeg.decode_jpeg", fails(error))
    said = OSError("out of memory when reading image file")  # as Pillow does
    monkeypatch.setattr(ImageFile.ImageFile, "load", fails(said))
    with pytest.raises((MemoryError, OSError), match="memory"):
        ImageDecoder()(Record(0, "a", {"image": data}))


def test_a_label_file_is_not_damaged_and_not_missing(tmp_path, monkeypatch):
    write_images(tmp_path, ["a.jpg"])
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/a.xml").write_text("<annotation></annotation>")
    monkeypatch.setattr(access, "_PAUSES_S", ())
    stat = os.stat

    def stat_of_others(path, **given):
        return fails(NO_DESCRIPTORS)() if str(path).endswith(".xml") else stat(path, **given)

    for broken, call in ((access, "open"), fails(NO_DESCRIPTORS)), ((os, "stat"), stat_of_others):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="Too many open files"):
            patched.setattr(*broken, call, raising=False)
            open_annotated(tmp_path, VocAnnotations(missing="empty"))


def test_a_database_is_not_damaged(tmp_path, monkeypatch):
    storage = at(put_samples(tmp_path / "t.db", [b"x"]))
    assert len(storage) == 1
    monkeypatch.setattr("penstock.datasets.storages.sql.server._PAUSES_S", ())
    with without_descriptors(), pytest.raises(OSError, match="Too many open files"):
        storage.read(np.zeros(1, np.int64))
    assert storage.read(np.zeros(1, np.int64))[0].fields


@contextlib.contextmanager
def without_descriptors():
    """No file can be opened inside."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Troubled(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        if number == 2:
            raise NO_DESCRIPTORS
        return np.zeros((2, 2, 3), np.uint8), 0


def test_an_item_of_a_users_dataset_is_not_damaged():
    dataset = open_torch(target=Troubled, val_fraction=0.0, split="train", seed=0)
    with pytest.raises(OSError, match="Too many open files"):
        dataset.fetch(np.array([2]), np.array([0]), 0)


class _WithoutMemory(FakeDataset):
    def fetch(self, indices, positions, epoch):
        if 5 in indices.tolist():
            raise MemoryError
        return super().fetch(indices, positions, epoch)


@pytest.mark.parametrize("engine", ["inline", "torch"])
def test_want_of_memory_is_one_line_of_what_to_lower(engine):
    with (
        make_loader(_WithoutMemory(8), engine=engine, num_workers=2) as loader,
        pytest.raises(MemoryError) as raised,
    ):
        digests(loader)
    line = in_one_line(raised.value)
    assert "\n" not in line and "memory ran out" in line and "; lower loader.batch_size" in line


@pytest.mark.parametrize(
    "said", ["DefaultCPUAllocator: can't allocate memory: you tried", "CUDA out of memory. Tried"]
)
def test_want_of_memory_is_found_in_what_libraries_say(said):
    try:
        try:
            raise RuntimeError(said)
        except RuntimeError as error:
            raise RuntimeError("decoding failed") from error
    except RuntimeError as error:
        assert f"({said})" in in_one_line(error)
    assert in_one_line(RuntimeError("unlucky")) is None
    ours = "loader: no memory for it; lower loader.batch_size"
    assert in_one_line(MemoryError(ours)) == ours


def test_json_that_is_nested_too_deeply_is_refused():
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json("[" * 100_000 + "]" * 100_000)
