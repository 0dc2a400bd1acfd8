"""Members to samples by the rule of the webdataset library, and samples to fields."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import webdataset.tariterators

from penstock.core.arrays import write_npy
from penstock.core.sample import RecordError
from penstock.datasets.storages.webdataset.headers import Member
from penstock.datasets.storages.webdataset.layout import SampleFields, iter_samples
from tests.contracts.storage import plain


def member(name):
    return Member(name.encode(), b"", 0, 0, 0, None)


def test_samples_are_those_of_the_library():
    names = ["a.cls", "a.jpg", "README", "a.seg.png", "b.JPG", "a.txt", "d/a.txt", "__x__", "d/a.x",
             "d.ir/a.b/c.x.y", "d/a.", "noext", "d.x/noext", ".hidden", "ünï.txt",
             "a b/c d.e f"]  # fmt: skip
    files = [{"fname": name, "data": b"", "__url__": ""} for name in names]
    theirs = [
        (sample["__key__"], [name for name in sample if name[:2] != "__" and name])
        for sample in webdataset.tariterators.group_by_keys(files)
    ]
    ours = [(key.decode(), list(sample)) for key, sample in iter_samples(map(member, names))]
    assert ours == [(key, extensions) for key, extensions in theirs if extensions]
    with pytest.raises(RecordError, match=r"the member 'a.JPG' stands twice"):
        list(iter_samples(map(member, ("a.jpg", "a.JPG"))))


def test_usual_extensions():
    boxes = np.arange(8, dtype=">f4").reshape(2, 4)
    members = {
        "jpeg": b"jpeg", "seg.png": b"png", "cls": b" 7\n", "txt": "ünï".encode(), "boxes.npy":
        write_npy(boxes), "npy": write_npy(np.float16(3)), "caption.txt": b"c", "mp4": b"\0",
        "raw.bin": b"r", "pyd": pickle.dumps([1]), "meta.json": b'{"label": 3}', "id": b"5",
        "json": json.dumps({"label": "dog", "text": "no", "score": 1.5, "key": 3}).encode(),
        "index": b"3",
    }  # fmt: skip
    views = {name: memoryview(content) for name, content in members.items()}
    assert plain(SampleFields().read(views)) == plain({
        "image": b"jpeg", "mask": b"png", "label": 7, "text": "ünï", "boxes": boxes,
        "array": np.array(3, np.float16), "caption": "c", "mp4": b"\0", "raw": b"r",
        "pyd": members["pyd"], "meta": {"label": 3}, "id": b"5", "score": 1.5,
    })  # fmt: skip
    assert SampleFields().read({"json": b"[1, 2]"}) == {"json": [1, 2]}
    assert SampleFields().read({"cls": b"golden retriever"}) == {"label": "golden retriever"}


def test_chosen_extensions():
    fields = SampleFields({"image": "jpg; png", "label": ".cls", "note": "json"})
    for extension in ("jpg", "png"):
        members = {extension: b"j", "cls": b"1", "json": b'{"a": 1}', "x": b""}
        assert fields.read(members) == {"image": b"j", "label": 1, "note": {"a": 1}}
    with pytest.raises(ValueError, match=r"lacks jpg for the field 'image', and has cls, json"):
        fields.read({"cls": b"1", "json": b"1"})
    assert SampleFields({"label": "json"}).read({"json": b'{"label": 4}'}) == {"label": 4}
    with pytest.raises(ValueError, match="its json lacks a label"):
        SampleFields({"label": "json"}).read({"json": b"{}"})


@pytest.mark.parametrize(
    ("members", "message"),
    [({"cls": b""}, "its cls: '' is neither"), ({"cls": b"\xff"}, "its cls: 'utf-8' codec"),
     ({"txt": b"\xff"}, "its txt: 'utf-8' codec"), ({"json": b"{"}, "its json: Expecting"),
     ({"json": b"[" * 100_000}, "its json: it is nested too deeply"),
     ({"json": b'{"label": [1]}'}, "its label is .1., expected a class id"),
     ({"json": b'{"label": true}'}, "its label is True"),
     ({"npy": b"\x93NUMPY"}, "its npy: is no .npy file"), ({"npy": b""}, "its npy: is no .npy"),
     ({"jpg": b"", "png": b""}, "jpg and png are both the field 'image'; say which")],
)  # fmt: skip
def test_damaged_members(members, message):
    with pytest.raises(ValueError, match=message) as error:
        SampleFields().read(members)
    assert "\n" not in str(error.value)
