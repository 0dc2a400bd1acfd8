"""Tar shards as packing writes them: read by the webdataset library too."""

from __future__ import annotations

import numpy as np
import pytest
import webdataset

from penstock.core.sample import BadRecord
from penstock.datasets.storages.webdataset.layout import pack_key, unpack_key
from penstock.datasets.storages.webdataset.storage import WebDatasetStorage
from penstock.datasets.storages.webdataset.writer import WebDatasetWriter
from penstock.datasets.writing import write_storage
from tests.contracts.damage import flipped
from tests.datasets.writers.writer_contract import ListedRecords, assert_equal_records, check_writer
from tests.encoded_images import JPEGS, OTHERS

BOXES = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_contract(tmp_path):
    check_writer(lambda: WebDatasetWriter(shard_records=5), tmp_path)


def test_the_library_reads_the_same_samples(tmp_path):
    images = [
        JPEGS["420"],
        OTHERS["PNG RGB"],
        OTHERS["WebP RGB"],
        OTHERS["BMP RGB"],
        b"?",
        b"GIF89a",
        b"\0\0\0 ftypavif",
        b"\0\0\0\x0cjP  ",
    ]
    records = {
        f"dir.x/{n}": {"image": image, "label": n % 2, "boxes": BOXES + n, "Mask": BOXES[:1],
                       "extra": b"\0" * n, "score": n / 3, "text": "ünï", "a": [None, {"b": [1]}]}
        for n, image in enumerate(images)
    }  # fmt: skip
    source = ListedRecords(records, ("cat", "dog"))
    write_storage(WebDatasetWriter(shard_records=2), tmp_path / "a", source)
    shards = sorted(map(str, (tmp_path / "a").glob("*.tar")))
    assert [shard[-16:] for shard in shards] == [f"shard-{n:06d}.tar" for n in range(4)]
    theirs = webdataset.WebDataset(shards, shardshuffle=False).decode()
    undecoded = webdataset.WebDataset(shards, shardshuffle=False)
    endings = ("jpg", "png", "webp", "bmp", "image.bin", "gif", "avif", "jp2")
    for sample, raw, ending, (key, fields) in zip(
        theirs, undecoded, endings, records.items(), strict=True
    ):
        assert (sample["__key__"], sample["cls"]) == (key, fields["label"])
        assert raw[ending] == fields["image"]
        assert np.array_equal(sample["boxes.npy"], fields["boxes"])
        assert np.array_equal(sample["%4d%61%73%6b.npy"], fields["Mask"])
        assert sample["json"] == {"score": fields["score"], "text": "ünï", "a": fields["a"]}
        assert raw["extra.bin"] == fields["extra"]
    assert_equal_records(WebDatasetStorage(str(tmp_path / "a")), source)


def test_keys_and_fields_of_any_characters(tmp_path):
    keys = [
        "c/001.JPG", "c/001.png", "c/001", "c/%63/001", "a.b.c", "a.b", ".hidden", "../up", "a/",
        "/abs/x.jpg", "a//b", "./a", "__meta__", "__meta__/a.jpg", "%", "%41", "nul\0.jpg", "",
        "line\nfeed", "x" * 300 + ".jpg", "é" * 60, "\udcff.jpg", "a.tar.gz", " ", ".",
    ]  # fmt: skip
    names = ["seg", "A.b/c", "é", "%41", "image", "json", "cls", "npy", " ", "a" * 200]
    fields = {name: np.full(2, n, "i2") for n, name in enumerate(names)}
    records = {key: {**fields, "data": key.encode(errors="replace")} for key in keys}
    source = ListedRecords(records)
    write_storage(WebDatasetWriter(shard_records=100), tmp_path / "a", source)
    storage = WebDatasetStorage(str(tmp_path / "a"))
    rows = np.arange(len(keys))
    raw = [key.encode(errors="surrogateescape") for key in keys]
    assert storage.index.raw_keys(rows) == raw
    for record, given in zip(storage.read(rows), records.values(), strict=True):
        assert {n: v.tolist() if n in fields else v for n, v in record.fields.items()} == {
            n: v.tolist() if n in fields else v for n, v in given.items()
        }
    before = b""
    for key in raw:
        stem, owner = pack_key(key, before=before)
        assert (unpack_key(stem, owner), stem != before) == (key, True)
        before = stem


def test_what_cannot_be_held(tmp_path):
    image = {"image": b""}
    for fields, classes, message in (
        ({"": 1}, None, "a field is called '', which shards cannot hold"),
        ({"valid": 1}, None, "a field is called 'valid', which shards cannot hold"),
        ({"label": 0}, ("a\nb",), r"class 'a\\nb' has a line feed in its name"),
        ({"x": {1, 2}}, None, "field.* x is .*no JSON|field 'x' is a set"),
    ):
        source = ListedRecords({"a": image | fields}, classes)
        with pytest.raises(ValueError, match=message):
            write_storage(WebDatasetWriter(), tmp_path / "a", source)
        assert not (tmp_path / "a").exists()


def test_a_flipped_bit_anywhere_is_seen(tmp_path):
    records = {f"{n}.jpg": {"image": bytes([n]) * 700, "label": n % 2, "n": n} for n in range(6)}
    source = ListedRecords(records, ("a", "b"))
    write_storage(WebDatasetWriter(), tmp_path / "a", source)
    storage = WebDatasetStorage(str(tmp_path / "a"))
    path = tmp_path / "a/shard-000000.tar"
    rng = np.random.default_rng(0)
    seen = 0
    assert len(storage) == 6
    for _ in flipped(path, rng.integers(0, path.stat().st_size - 1024, 400), rng):
        found = storage.read(np.arange(6))
        bad = [record for record in found if isinstance(record, BadRecord)]
        assert len(bad) <= 1
        seen += len(bad)
        good = (record for record in found if not isinstance(record, BadRecord))
        assert all(record.fields == records[record.key] for record in good)
    assert seen > 150, "the others are in labels, which the index has, and in zeros behind content"


def test_a_damaged_label_is_seen_by_the_index(tmp_path):
    source = ListedRecords({"a": {"label": 1}, "b": {"label": 1}}, ("x", "y"))
    write_storage(WebDatasetWriter(), tmp_path / "a", source)
    path = tmp_path / "a/shard-000000.tar"
    data = bytearray(path.read_bytes())
    data[512] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="sample 'a': its label is not what was packed"):
        len(WebDatasetStorage(str(tmp_path / "a")))


def test_shards_are_the_same_bytes_of_moderate_size(tmp_path):
    records = {f"{n:02d}": {"image": bytes(1000)} for n in range(20)}
    write_storage(WebDatasetWriter(shard_records=7), tmp_path / "a", ListedRecords(records))
    write_storage(WebDatasetWriter(shard_records=7), tmp_path / "b", ListedRecords(records))
    for name in ("shard-000000.tar", "shard-000001.tar", "shard-000002.tar"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a/shard-000000.tar").stat().st_size == 7 * (512 + 1024) + 1024
