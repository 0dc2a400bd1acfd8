"""ZIP archives as they are written in parts, and as other programs see them."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from datasets.sample import BadRecord
from datasets.storages.zip import ZipStorage
from datasets.writers.zip import ZipWriter
from datasets.writing import write_storage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import read_all
from tests.contracts.writer import ListedRecords, assert_equal_records, check_writer

rng = np.random.default_rng(0)


def test_contract(tmp_path):
    check_writer(lambda: ZipWriter(part_records=5), tmp_path)


def test_others_see_image_files_in_class_folders(tmp_path):
    keys = ["dog/a.jpg", "b", "../x.png", "c/d.PNG", "a:b", "b.jpg", ".hidden.jpg", ""]
    images = [b"\xff\xd8 %d" % i for i in range(len(keys))]
    fields = {key: {"image": image, "label": i % 2, "boxes": np.ones((i, 4))}
              for i, (key, image) in enumerate(zip(keys, images, strict=True))}  # fmt: skip
    source = ListedRecords(fields, ("dog", "a/cat"))
    write_storage(ZipWriter(), tmp_path / "z", source)
    [file] = (tmp_path / "z").iterdir()
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        names = ["dog/a.jpg", "a_cat/b.jpg", "dog/00000002.jpg", "a_cat/c/d.PNG",
                 "dog/00000004.jpg", "a_cat/b.jpg", "dog/00000006.jpg", "a_cat/00000007.jpg",
                 ".penstock.arrow"]  # fmt: skip
        names[5] = "00000005/a_cat/b.jpg"
        assert archive.namelist() == names
        assert [archive.read(name) for name in names[:-1]] == images
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    assert_equal_records(ZipStorage(str(tmp_path / "z")), source)
    files = ZipStorage(str(tmp_path / "z"), labels=None, endings=("jpg", "png"))
    assert len(files) == 8, "as an archive of files"


def test_damage_since_the_index_was_made_is_told_of_every_record(tmp_path):
    found = {str(i): {"image": b"image %d" % i, "n": i} for i in range(3)}
    write_storage(ZipWriter(), tmp_path / "z", ListedRecords(found))
    [file] = (tmp_path / "z").iterdir()
    storage = ZipStorage(str(tmp_path / "z"))
    assert len(storage) == 3
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"ARROW1", b"ARROW2"))
    cause = "part-00000-of-00001.zip, .penstock.arrow: its bytes are not those that were packed"
    assert [record.cause[: len(cause)] for record in storage.read(np.arange(3))] == [cause] * 3
    file.write_bytes(whole.replace(b"image 1", b"imagE 1"))
    good, bad, _ = storage.read(np.arange(3))
    assert good.fields == found["0"]
    assert bad.cause.startswith("part-00000-of-00001.zip: its bytes are not those")


def test_a_flipped_bit_anywhere_is_an_error_or_a_bad_record(tmp_path):
    found = {str(i): {"image": b"image %d" % i, "n": i, "a": np.full(3, i)} for i in range(30)}
    source = ListedRecords(found)
    write_storage(ZipWriter(), tmp_path / "z", source)
    [file] = (tmp_path / "z").iterdir()
    whole = file.read_bytes()
    storage = ZipStorage(str(tmp_path / "z"))
    assert len(storage) == 30
    refused = bad = 0
    for _ in flipped(file, rng.integers(0, len(whole), 60), rng):
        for opened in (storage, None):
            records = unless_refused(
                lambda opened=opened: read_all(opened or ZipStorage(str(tmp_path / "z")))
            )
            refused += records is None
            for record in records or []:
                if isinstance(record, BadRecord):
                    bad += 1
                elif record.key in found:
                    assert record.fields["n"] == found[record.key]["n"]
    assert refused > 5 and bad > 5
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged or no ZIP archive"):
            len(ZipStorage(str(tmp_path / "z")))
