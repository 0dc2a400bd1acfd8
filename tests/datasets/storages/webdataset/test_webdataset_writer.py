"""Tar shards as packing writes them: read by the webdataset library too."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import webdataset

from penstock.datasets.storages.webdataset.storage import WebDatasetStorage, WebDatasetWriter
from penstock.datasets.writing import write_storage
from tests.contracts.packing import assert_equal
from tests.contracts.records import ListedRecords
from tests.encoded_images import JPEGS, OTHERS

BOXES = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_the_library_reads_the_same_samples(tmp_path):
    images = {"jpg": JPEGS["420"], "png": OTHERS["PNG RGB"], "webp": OTHERS["WebP RGB"],
              "image.bin": b"?"}  # fmt: skip
    records = {
        f"dir.x/{n}": {"image": image, "label": n % 2, "boxes": BOXES + n, "extra": b"\0" * n,
                       "score": n / 3, "text": "ünï", "a": [None, {"b": [1]}]}
        for n, image in enumerate(images.values())
    }  # fmt: skip
    source = ListedRecords(records, ("cat", "dog"))
    write_storage(WebDatasetWriter(shard_records=2), tmp_path / "a", source)
    shards = [str(tmp_path / f"a/shard-{n:06d}.tar") for n in range(2)]
    theirs = webdataset.WebDataset(shards, shardshuffle=False)
    for sample, ending, (key, fields) in zip(theirs, images, records.items(), strict=True):
        assert sample["__key__"] == key and sample["cls"] == b"%d" % fields["label"]
        assert sample[ending] == fields["image"] and sample["extra.bin"] == fields["extra"]
        assert np.array_equal(np.load(io.BytesIO(sample["boxes.npy"])), fields["boxes"])
        items = {"score": fields["score"], "text": "ünï", "a": fields["a"]}
        assert json.loads(sample["json"]) == items
    assert_equal(WebDatasetStorage(str(tmp_path / "a")), source.records)


def test_keys_and_fields_of_any_characters(tmp_path):
    keys = [
        "c/001.JPG", "c/001.png", "c/001", "c/%63/001", "a.b.c", "a.b", ".hidden", "../up", "a/",
        "/abs/x.jpg", "a//b", "./a", "__meta__", "__meta__/a.jpg", "%", "%41", "nul\0.jpg", "",
        "line\nfeed", "x" * 300 + ".jpg", "é" * 60, "\udcff.jpg", "a.tar.gz", " ", ".",
    ]  # fmt: skip
    names = ["image", "json", "cls", "npy", "a-b", "a" * 200]
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


def test_what_cannot_be_held(tmp_path):
    image = {"image": b""}
    for fields, classes, message in (
        ({"": 1}, None, "a field is called '', which shards cannot hold"),
        ({"valid": 1}, None, "a field is called 'valid', which shards cannot hold"),
        ({"A.b": b""}, None, "a field is called 'A.b', which shards cannot hold"),
        ({"label": 0}, ("a\nb",), r"class name 'a\\nb' is blank"),
        ({"x": {1, 2}}, None, "a field of x: .*set is not JSON"),
    ):
        source = ListedRecords({"a": image | fields}, classes)
        with pytest.raises(ValueError, match=message):
            write_storage(WebDatasetWriter(), tmp_path / "a", source)
        assert not (tmp_path / "a").exists()
