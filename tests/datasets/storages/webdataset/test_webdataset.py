"""Tar shards: what the webdataset library writes, labels, odd names and paths."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset

from penstock.datasets.storages.webdataset import WebDatasetStorage
from tests.contracts.storage import check_storage
from tests.datasets.storages.checks import check_with_copy, keys, refusal
from tests.datasets.storages.webdataset.tar_samples import expected, put, read, samples

rng = np.random.default_rng(0)


def test_contract_over_several_shards(tmp_path):
    content = samples(20)
    put(tmp_path / "a/s-000.tar", content[:9])
    put(tmp_path / "a/s-001.tar", content[9:10], tarfile.PAX_FORMAT, pax_headers={"comment": "ü"})
    put(tmp_path / "a/s-002.tar", [])
    put(tmp_path / "a/s-003.tar", [("README", b"no sample"), *content[10:]])
    pattern = "s-{000..003}.tar"
    check_with_copy(WebDatasetStorage, tmp_path / "a", expected(content), copied=pattern)
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 4, "nothing is written there"


@pytest.mark.parametrize("kind", ["USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT"])
def test_shards_of_the_library_hold_what_it_reads_from_them(tmp_path, kind):
    image = np.random.default_rng(0).integers(0, 255, (9, 7, 3), np.uint8)
    pattern = str(tmp_path / "%03d.tar")
    with webdataset.ShardWriter(pattern, maxcount=5, verbose=0, format=kind) as writer:
        for i in range(12):
            writer.write({
                "__key__": f"a/b.c/{i:04d}", "png": image + np.uint8(i), "cls": i % 4,
                "json": {"score": i / 3, "name": "ünï"}, "txt": f"ünï {i}",
                "seg.png": image[..., 0], "bin": b"\0" * i,
            })  # fmt: skip
    theirs = webdataset.WebDataset([pattern % n for n in range(3)], shardshuffle=False)
    ours = read(WebDatasetStorage(str(tmp_path / "{000..002}.tar")))
    for i, (record, sample) in enumerate(zip(ours, theirs, strict=True)):
        assert record.key == sample["__key__"]
        assert record.fields == {
            "image": sample["png"], "mask": sample["seg.png"], "label": i % 4, "bin": b"\0" * i,
            "text": f"ünï {i}", "score": i / 3, "name": "ünï",
        }  # fmt: skip


def test_labels_by_number_by_name_and_from_json(tmp_path):
    path = put(tmp_path / "n/a.tar", [("1", {"cls": b"2"}), ("2", {"cls": b" 0\n"})])
    assert WebDatasetStorage(path).index.column("label").tolist() == [2, 0]
    assert WebDatasetStorage(path).index.class_names == ("0", "1", "2")
    (tmp_path / "n/classes.txt").write_text("ash\nbirch\ncedar\n")
    assert WebDatasetStorage(path).index.class_names == ("ash", "birch", "cedar")
    other = WebDatasetStorage(path, classes=["cedar", "ash"])
    assert [record.fields for record in read(other)] == [{"label": 0}, {"label": 1}]
    named = [("1", {"json": b'{"label": "dog", "n": 1}'}), ("2", {"json": b'{"label": "cat"}'})]
    storage = WebDatasetStorage(put(tmp_path / "j/a.tar", named))
    assert storage.index.class_names == ("cat", "dog")
    assert [record.fields for record in read(storage)] == [{"label": 1, "n": 1}, {"label": 0}]
    (tmp_path / "n/classes.txt").write_text("ash\n")
    refusal(WebDatasetStorage(path), "label 2, but the data names 1 classes")


def test_labels_that_are_not_there(tmp_path):
    path = put(tmp_path / "a.tar", [("1", {"jpg": b"a", "cls": b"1"}), ("2", {"jpg": b"b"})])
    refusal(WebDatasetStorage(path), "1 of 2 samples lack a label, such as '2'; add them")
    storage = WebDatasetStorage(path, fields={"image": "jpg"})
    assert storage.index.class_names is None
    assert [record.fields for record in read(storage)] == [{"image": b"a"}, {"image": b"b"}]
    damaged = WebDatasetStorage(put(tmp_path / "b.tar", [("1", {"json": b"{"})]))
    refusal(damaged, "b.tar: sample '1': its json: Expecting")


def test_keys_that_stand_twice(tmp_path):
    put(tmp_path / "0.tar", samples(3))
    put(tmp_path / "1.tar", samples(3))
    both = WebDatasetStorage(str(tmp_path))
    refusal(both, "'dir/000' stands twice, in 0.tar and 1.tar; .*shard_keys")
    storage = WebDatasetStorage(str(tmp_path), shard_keys=True)
    assert keys(storage)[2:4] == ["0/dir/002", "1/dir/000"]
    assert [record.fields for record in read(storage)] == [f for _, f in expected(samples(3))] * 2
    parted = [("1", {"a": b""}), ("2", {"a": b""}), ("1", {"b": b""})]
    parted = WebDatasetStorage(put(tmp_path / "a.tar", parted))
    refusal(parted, "'1' stands twice, in a.tar and a.tar; .* --sort=name")


def test_contract_with_a_damaged_sample_between_good_ones(tmp_path):
    content = samples(20)
    path = put(tmp_path / "a.tar", content)
    storage = WebDatasetStorage(path)
    at = int(storage.index.column("offset")[7]) + 20
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"?")
    want = [(key, None if n == 7 else f) for n, (key, f) in enumerate(expected(content))]
    check_storage(lambda: storage, want, processes=("new",))
    assert read(storage, 7)[0].cause == "a.tar: a header is damaged (bad checksum); copy it again"


LONG = "deep/" * 30 + "x" * 120
NAMES = ["a", "dir/b", "ünï 日本", "d" * 90, "p" * 90 + "/" + "q" * 90, LONG]


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_names_and_sizes_in_every_format(tmp_path, kind):
    names = NAMES[:-1] if kind == tarfile.USTAR_FORMAT else NAMES
    images = [rng.bytes(size) for size in (0, 1, 511, 512, 513, 2000)]
    content = [(f"{name}.jpg", image) for name, image in zip(names, images, strict=False)]
    path = put(tmp_path / "a.tar", content, kind, pax_headers={"comment": "ünï\nmore"})
    found = [(f"{r.key}.jpg", r.fields["image"]) for r in read(WebDatasetStorage(path))]
    assert found == content


def test_one_block_of_the_end_mark_is_enough_and_can_be_added(tmp_path):
    path = Path(put(tmp_path / "a.tar", samples(6)))
    end = len(path.read_bytes().rstrip(b"\0"))
    end += -end % 512
    os.truncate(path, end + 512)
    assert len(WebDatasetStorage(str(path))) == 6
    os.truncate(path, end)
    said = refusal(WebDatasetStorage(str(path)), "without an end mark .*; copy it again")
    [typed] = re.findall(r"type (truncate .*) FILE", said)
    subprocess.run([*typed.split(), path], check=True)
    assert len(WebDatasetStorage(str(path))) == 6


def header(kind, content=b"", **options):
    """Return a header of a kind, and its content in whole blocks."""
    info = tarfile.TarInfo("h.jpg")
    info.type, info.size = kind, len(content)
    for option, value in options.items():
        setattr(info, option, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        *((header(bytes([kind])), "is a link, a device or a sparse file") for kind in b"1236Z"),
        (header(b"0", size=-5), "a header has the size -5"),
        (header(b"x", b"13 size=-123\n"), "a header has the size -123"),
        (header(b"x", b"0 path=a\n"), "a header is damaged"),
        (header(b"x", size=8_589_934_591), "an extended header of 8,589,934"),
        (header(b"x", b"9 path=a\n") + bytes(1024), "a header is damaged"),
        (header(b"L", b"a\0") * 5000, "a header is damaged"),
    ],
)  # fmt: skip
def test_members_that_are_not_plain_files_are_refused(tmp_path, data, said):
    path = Path(put(tmp_path / "a.tar", samples(1)))
    path.write_bytes(data + path.read_bytes())
    refusal(WebDatasetStorage(str(path)), said)
