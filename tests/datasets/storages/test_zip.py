"""ZIP archives of other programs: hidden files, long headers, labels and refused members."""

from __future__ import annotations

import struct
import zipfile

import numpy as np
import pytest

from penstock.datasets.storages.zip import ZipStorage
from tests.contracts.storage import check_storage, summary
from tests.datasets.storages.checks import check_with_copy, keys, refusal

rng = np.random.default_rng(0)


def put(path, files, method=zipfile.ZIP_STORED, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            for option, value in options.items():
                setattr(info, option, value)
            archive.writestr(info, content)
    return str(path)


def images(n, seed=0):
    """Return images that deflate well, others that do not, and an empty one."""
    random = np.random.default_rng(seed)
    return {
        f"{'dog' if i % 3 else 'cat'}/{i:02d}.jpg": bytes(i * 50) if i % 2 else random.bytes(i * 9)
        for i in range(n)
    }


def expected(files):
    return [
        (key, {"image": content, "label": ("cat", "dog").index(key.split("/")[0])})
        for key, content in sorted(files.items())
    ]


def test_contract_over_several_archives(tmp_path):
    first, second = images(12), {"cat/ünï 日本.PNG": b"more", "dog/deep/er/x.webp": b"x" * 5000}
    put(tmp_path / "a/1.zip", first)
    put(tmp_path / "a/2.zip", second | {"README.txt": b"", "cat/.hidden.jpg": b"",
        "__MACOSX/cat/._1.jpg": b"", "dog/": b""}, zipfile.ZIP_DEFLATED)  # fmt: skip
    records = expected(first) + expected(second)
    check_with_copy(ZipStorage, tmp_path / "a", records, copied="*.zip")
    assert sum(p.is_file() for p in tmp_path.rglob("*")) == 2, "nothing is written there"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_contract_with_a_damaged_member_between_good_ones(tmp_path, method):
    files = images(12)
    path = put(tmp_path / "a.zip", files, method)
    storage = ZipStorage(path)
    row = keys(storage).index("dog/10.jpg")
    at = int(storage.index.column("offset")[row]) + 30 + len("dog/10.jpg") + 20
    content = bytearray(open(path, "rb").read())
    content[at] ^= 1
    (tmp_path / "a.zip").write_bytes(content)
    want = [(key, None if key == "dog/10.jpg" else f) for key, f in expected(files)]
    check_storage(lambda: storage, want, processes=("new",))
    assert "a.zip: its bytes are not those" in storage.read(np.array([row]))[0].cause


def test_places_with_long_headers_and_bytes_before_the_archive(tmp_path):
    files = images(6)
    extra = struct.pack("<HH", 0x9999, 300) + bytes(300)
    path = put(tmp_path / "a.zip", files, extra=extra)
    assert summary(ZipStorage(path).read(np.arange(6))) == [
        (i, *record) for i, record in enumerate(expected(files))
    ]
    content = open(path, "rb").read()
    with open(path, "wb") as file:
        file.write(b"#!/bin/sh\nexit\n" + content)
    assert len(ZipStorage(path).read(np.arange(6))) == 6


def test_a_folder_inside_and_other_labels(tmp_path):
    files = {"set/train/cat/1.jpg": b"1", "set/train/dog/2.jpg": b"2", "set/val/cat/3.jpg": b"3"}
    path = put(tmp_path / "a.zip", files)
    storage = ZipStorage(path, folder="set/train")
    assert keys(storage) == ["cat/1.jpg", "dog/2.jpg"]
    assert storage.index.class_names == ("cat", "dog")
    names = ZipStorage(path, labels="filename", label_pattern=r"(\d)\.")
    assert names.index.class_names == ("1", "2", "3")
    refusal(ZipStorage(path), "folder=set/train")
    assert ZipStorage(path, labels=None).read(np.array([2]))[0].fields == {"image": b"3"}
    (tmp_path / "l.csv").write_text("key,label\nset/train/cat/1,a\nset/train/dog/2,b\n")
    part = ZipStorage(path, labels="l.csv")
    assert [record.fields["image"] for record in part.read(np.arange(2))] == [b"1", b"2"]
    few = ZipStorage(path, folder="set/train", classes=["cat"])
    refusal(few, "class 'dog' is not among the 1 classes")


def test_members_that_are_refused(tmp_path):
    packed = put(tmp_path / "b.zip", {"a/1.jpg": b"x" * 100}, zipfile.ZIP_BZIP2)
    refusal(ZipStorage(packed), "by method 12; expected 0")
    secret = bytearray(open(put(tmp_path / "e.zip", {"a/1.jpg": b"x"}), "rb").read())
    secret[secret.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "e.zip").write_bytes(secret)
    refusal(ZipStorage(str(tmp_path / "e.zip")), "'a/1.jpg' is encrypted")


def test_a_member_that_says_it_is_huge_takes_no_memory(tmp_path):
    bomb = put(tmp_path / "a.zip", {"a/1.jpg": bytes(50_000_000)}, zipfile.ZIP_DEFLATED)
    content = bytearray(open(bomb, "rb").read())
    at = content.index(b"PK\x01\x02")
    causes = []
    for size in (100, 0x3000_0000, 0xFFFF_FFF0):
        struct.pack_into("<I", content, at + 24, size)
        (tmp_path / "b.zip").write_bytes(content)
        [bad] = ZipStorage(str(tmp_path / "b.zip")).read(np.array([0]))
        causes.append(bad.cause)
    said = ("should have 100", "should have 805,306,368", "more than dataset.max_record_bytes")
    assert all(words in cause for words, cause in zip(said, causes, strict=True))
