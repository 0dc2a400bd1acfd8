"""Image files in class folders: what can be such files, and what cannot."""

from __future__ import annotations

import os

import numpy as np
import pytest

from datasets.storages.image_folder import ImageFolder
from datasets.storages.lmdb import LmdbStorage
from datasets.writers.image_folder import ImageFolderWriter
from datasets.writers.lmdb import LmdbWriter
from datasets.writing import write_storage
from tests.contracts.writer import ListedRecords, assert_equal_records, check_writer


def small() -> ImageFolderWriter:
    writer = ImageFolderWriter()
    writer.part_records = 5
    return writer


def test_contract(tmp_path):
    check_writer(small, tmp_path)


def test_folders_that_were_packed_come_back_file_by_file(tmp_path):
    names = [b"cat/1.jpg", b"cat/sub/2.PNG", "dög/ü.jpeg".encode(), b"dog/\xff.jpg", b"dog/1.jpg"]
    for name in names:
        file = os.path.join(os.fsencode(tmp_path / "files"), name)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "wb") as opened:
            opened.write(name * 3)
    source = ImageFolder(str(tmp_path / "files"))
    write_storage(LmdbWriter(), tmp_path / "lmdb", source)
    write_storage(small(), tmp_path / "back", LmdbStorage(str(tmp_path / "lmdb")))
    back = ImageFolder(str(tmp_path / "back"))
    assert_equal_records(back, source)
    assert back.fingerprint() == source.fingerprint()
    assert back.index.raw_keys(np.arange(5)) == sorted(names)


def listed(keys, *, names=("a", "b"), **more):
    fields = {"image": b"jpeg", **more}
    by_name = {name: i for i, name in enumerate(names)}
    keys = sorted(keys)
    return ListedRecords(
        {key: {**fields, "label": by_name.get(key.partition("/")[0], 0)} for key in keys}, names
    )


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["a/../../b/1.jpg"], "is not <class>/<name>"),
        (["/a/1.jpg"], "is not <class>/<name>"),
        (["a//1.jpg"], "is not <class>/<name>"),
        (["1.jpg"], "is not <class>/<name>"),
        (["a/.1.jpg"], "is not <class>/<name>"),
        (["a/1.txt"], "does not end in .jpg"),
        (["a/.jpg"], "is not <class>/<name>"),
        (["a/x\0.jpg"], "has a control character"),
        (["a/x\\y.jpg"], "has a control character or a backslash"),
        ([f"a/{'x' * 252}.jpg"], "is too long"),
        (["a/" + "x/" * 2000 + "1.jpg"], "is too long"),
        (["a/1.jpg", "a/1.JPG"], "the files 'a/1.JPG' and 'a/1.jpg' may be one"),
        (["a/Ä.jpg", "a/a\u0308.jpg"], "may be one"),
        (["a/X/1.jpg", "a/x/2.jpg"], "the folders 'a/X' and 'a/x' may be one"),
        (["a/1.jpg", "a/1.jpg/2.jpg"], "'a/1.jpg' would be a file and a folder"),
        (["c/1.jpg"], "the class 'a' has no file"),
    ],
)
def test_keys_that_are_no_files(tmp_path, keys, said):
    with pytest.raises(ValueError) as error:
        write_storage(small(), tmp_path / "out", listed([*keys, "b/9.jpg"]))
    assert said in str(error.value) and "pack.to=zip" in str(error.value)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


def test_records_that_are_no_files(tmp_path):
    keys = ["a/1.jpg", "b/1.jpg"]
    for source, said in (
        (listed(keys, boxes=np.ones((1, 4))), "'a/1.jpg' has a field 'boxes'"),
        (listed(keys, image=np.ones((2, 2, 3), np.uint8)), "has no image that is an encoded file"),
        (listed(keys, names=("b", "a")), "classes are not as folders sort them"),
        (listed(keys, names=("a", "b", "c")), "the class 'c' has no file"),
    ):
        with pytest.raises(ValueError, match=said):
            write_storage(small(), tmp_path / "out", source)
    wrong = listed(keys)
    wrong.records["a/1.jpg"]["label"] = 1
    with pytest.raises(ValueError, match=r"'a/1\.jpg' is of the class 'b' and in the folder 'a'"):
        write_storage(small(), tmp_path / "out", wrong)
    assert os.listdir(tmp_path) == []
