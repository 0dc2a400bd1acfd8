"""Members to samples by the rule of the webdataset library, and samples to fields."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import pytest
import webdataset.tariterators

from penstock.core.arrays import read_npy, write_npy
from penstock.core.sample import RecordError
from penstock.datasets.storages.webdataset.layout import SampleFields, iter_samples, split_name
from tests.contracts.storage import plain


def test_keys_and_extensions_are_those_of_the_library():
    for name in ("a.jpg", "a.seg.png", "d.ir/a.b/c.x.y", "d/a.", "noext", "d.x/noext", ".hidden",
                 "ünï.txt", "A.JPG", "a b/c d.e f"):  # fmt: skip
        key, extension = webdataset.tariterators.base_plus_ext(name)
        ours = split_name(name.encode())
        if key is None or not extension:
            assert ours is None
        else:
            assert ours == (key.encode(), extension.encode())


def test_names_that_belong_to_no_sample():
    for name in ("d/.hidden", "__meta__", "__meta__/a.json", "d/._a.jpg"):
        assert split_name(name.encode()) is None
    assert split_name(b"././a.jpg") == (b"a", b"jpg")
    assert split_name(b"__a.jpg") == (b"__a", b"jpg")
    assert split_name(b"\xff.jpg") == (b"\xff", b"jpg")


def test_grouping_is_that_of_the_library():
    names = ["a.cls", "a.jpg", "README", "a.seg.png", "b.JPG", "a.txt", "d/a.txt", "__x__", "d/a.x"]
    files = [{"fname": name, "data": b"", "__url__": ""} for name in names]
    theirs = [
        (sample["__key__"], [name for name in sample if name[:2] != "__"])
        for sample in webdataset.tariterators.group_by_keys(files)
    ]
    ours = [
        (key.decode(), list(sample))
        for key, sample in iter_samples((name.encode(), b"", n) for n, name in enumerate(names))
    ]
    assert ours == theirs
    with pytest.raises(RecordError, match=r"the member 'a.JPG' stands twice"):
        list(iter_samples([(b"a.jpg", b"", 0), (b"a.JPG", b"", 1)]))


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
    assert fields.read({"png": b"p", "jpg": b"j", "cls": b"1", "json": b'{"a": 1}', "x": b""}) == {
        "image": b"j", "label": 1, "note": {"a": 1},
    }  # fmt: skip
    assert [fields.takes(name) for name in ("jpg", "png", "cls", "x")] == [True] * 3 + [False]
    with pytest.raises(ValueError, match=r"no jpg or png for the field 'image', only cls, json"):
        fields.read({"cls": b"1", "json": b"1"})
    assert SampleFields({"label": "json"}).read({"json": b'{"label": 4}'}) == {"label": 4}
    with pytest.raises(ValueError, match="its json lacks a label"):
        SampleFields({"label": "json"}).read({"json": b"{}"})
    with pytest.raises(ValueError, match="'key' is the framework's own"):
        SampleFields({"key": "txt"})


def test_where_labels_come_from():
    fields = SampleFields()
    assert fields.layout(("json", "cls")).label == "cls"
    assert fields.layout(("json", "jpg")).label == "json"
    assert fields.layout(("jpg", "x.json")).label is None
    assert fields.label("json", b'{"a": 1}') is None
    assert fields.label("json", b'{"label": "cat"}') == "cat"
    assert fields.read({"json": b'{"label": [1]}', "cls": b"?"}, label=False) == {"label": [1]}
    chosen = SampleFields({"label": "x;y", "image": "jpg"})
    assert chosen.layout(("y",)).label == "y"
    assert chosen.read({"jpg": b"1"}, label=False) == {"image": b"1"}


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


def test_arrays_come_back_as_they_were():
    for array in (np.arange(6).reshape(2, 3).T, np.zeros((0, 4), "f4"), np.array(True),
                  np.array(["a", "ünï"]), np.array(["2020-01-01"], "M8[D]"),
                  np.zeros(2, [("a", "i4"), ("b", ">f8")])):  # fmt: skip
        back = read_npy(write_npy(array))
        assert back.dtype == array.dtype
        assert back.flags.writeable
        assert np.array_equal(back, array)
    file = io.BytesIO()
    np.save(file, np.asfortranarray(np.arange(6).reshape(2, 3)))
    assert np.array_equal(read_npy(file.getvalue()), np.arange(6).reshape(2, 3))


def test_arrays_that_are_pickled_or_lie_about_their_size():
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        read_npy(file.getvalue())
    data = write_npy(np.zeros(3, "u1"))
    for shape in (b"(9,)", b"(4000000000000,)", b"(-3,)"):
        lying = data.replace(b"(3,), }" + b" " * (len(shape) - 4), shape + b", }")
        assert lying != data
        with pytest.raises(ValueError, match="expected"):
            read_npy(lying)
    rng = np.random.default_rng(0)
    for _ in range(300):
        flipped = bytearray(data)
        flipped[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        try:
            read_npy(bytes(flipped))
        except ValueError as error:
            assert "\n" not in str(error)


def test_all_formats_that_are_decoded_are_images():
    for extension in ("gif", "avif", "jp2", "j2k"):
        assert SampleFields().read({extension: b"x", "seg.gif": b"y"}) == {
            "image": b"x",
            "mask": b"y",
        }
    chosen = SampleFields({"animation": "gif", "image": "jpg"})
    assert chosen.read({"gif": b"x", "jpg": b"y"}) == {"animation": b"x", "image": b"y"}
    with pytest.raises(
        ValueError, match=r"both the field 'image'; say which is: dataset.storage.fields="
    ):
        SampleFields().read({"jpg": b"y", "gif": b"x"})
