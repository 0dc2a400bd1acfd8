"""LMDB files that others wrote: their keys, labels and databases."""

import json
import os
import struct

import lmdb
import numpy as np
import pytest

from penstock.datasets.storages.lmdb import LmdbStorage
from penstock.datasets.storages.lmdb.pages import scan_lmdb
from tests.contracts.storage import check_storage
from tests.datasets.storages.lmdb_files import data_of, foreign, read_all
from tests.packed import write_lmdb


def test_the_page_reader_agrees_with_the_library(tmp_path):
    random = np.random.default_rng(3)
    env = lmdb.open(str(tmp_path / "a"), map_size=1 << 28)
    for _ in range(5):  # transactions that put and delete leave old pages behind
        with env.begin(write=True) as transaction:
            for _ in range(600):
                size = int(random.choice([0, 10, 1000, 2020, 2050, 9000]))
                transaction.put(random.bytes(int(random.integers(1, 30))), random.bytes(size))
            for key in list(transaction.cursor().iternext(values=False))[::4]:
                transaction.delete(key)
    with env.begin() as transaction:
        wanted = list(transaction.cursor())
    env.close()
    content = (tmp_path / "a/data.mdb").read_bytes()
    entries = list(scan_lmdb(str(tmp_path / "a/data.mdb")))
    assert [(e.key, content[e.offset : e.offset + e.size_bytes]) for e in entries] == wanted
    assert list(scan_lmdb(data_of(foreign(tmp_path / "empty", {})))) == []


def test_text_recognition_layout(tmp_path):
    items = {b"num-samples": b"12"}
    for i in range(1, 13):
        items[b"image-%09d" % i] = b"jpeg%d" % i
        items[b"label-%09d" % i] = f"wörd {i}".encode()
    path = foreign(tmp_path / "a", items)
    storage = LmdbStorage(path, key_format="image-%09d", text_key="label-%09d")
    want = [(f"image-{i:09d}", {"image": b"jpeg%d" % i, "text": f"wörd {i}"}) for i in range(1, 13)]
    check_storage(lambda: storage, want, processes=("new",))
    assert sorted(os.listdir(path)) == ["data.mdb", "lock.mdb"], "the index went to the cache"
    with pytest.raises(ValueError, match="lacks the key 'tag-000000001'"):
        len(LmdbStorage(path, key_format="image-%09d", label_key="tag-%09d"))
    with pytest.raises(ValueError, match=r"no key fits key_format '\{:05d\}'; the file has 25"):
        len(LmdbStorage(path, key_format="{:05d}"))


def test_numbered_keys_with_labels_in_the_value(tmp_path):
    path = foreign(tmp_path / "a", {b"%d" % i: struct.pack("<I", i % 3 * 2) + b"img" for i in
                                    range(12)} | {b"__len__": b"12"})  # fmt: skip
    storage = LmdbStorage(path, key_format="{}", value_format="label:uint32+image")
    assert read_all(storage) == [(str(i), {"image": b"img", "label": i % 3 * 2}) for i in range(12)]
    assert storage.index.class_names == ("0", "1", "2", "3", "4")
    big = foreign(tmp_path / "b", {b"k%d" % i: b"img" + struct.pack(">H", i) for i in range(3)})
    assert read_all(LmdbStorage(big, key_format="sorted", value_format="image+label:uint16be")) == [
        (f"k{i}", {"image": b"img", "label": i}) for i in range(3)
    ]
    for wrong in ("pickle", "label:float32+image", "label:uint8+image+label:uint8", "label:uint8"):
        with pytest.raises(ValueError, match="expected 'image', 'label:<type>"):
            LmdbStorage(path, key_format="{}", value_format=wrong)


def test_sorted_keys_with_labels_in_the_key_in_another_key_or_in_json(tmp_path):
    items = {b"cat_1": b"1", b"dog_2": b"2", b"\xff\x00": b"3"}
    path = foreign(tmp_path / "a", items)
    storage = LmdbStorage(path, key_format="sorted", label_pattern=r"^(cat|dog|\\xff)")
    assert storage.index.class_names == ("\\xff", "cat", "dog")
    assert storage.index.keys(np.arange(3)) == ["cat_1", "dog_2", "\\xff\x00"]
    path = foreign(tmp_path / "b", {b"x": b"1", b"x.cls": b"dog\n", b"y": b"2", b"y.cls": b"cat"})
    storage = LmdbStorage(path, key_format="sorted", label_key="{}.cls")
    assert read_all(storage) == [
        ("x", {"image": b"1", "label": 1}), ("y", {"image": b"2", "label": 0})]  # fmt: skip
    about = {"label": "owl", "boxes": [[0, 0, 1, 1]], "text": "ü", "image": "owl.jpg"}
    path = foreign(tmp_path / "c", {b"7": b"i", b"7.json": json.dumps(about).encode()})
    storage = LmdbStorage(path, key_format="{}", metadata_key="{}.json")
    assert read_all(storage) == [("7", {**about, "image": b"i", "label": 0})]
    assert storage.index.class_names == ("owl",)
    write_lmdb(tmp_path / "packed", storage)
    assert read_all(LmdbStorage(str(tmp_path / "packed"))) == read_all(storage)


def test_pickles_are_refused_and_never_run(tmp_path):
    path = foreign(tmp_path / "a", {b"0": b"\x80\x04cos\nsystem\n(S'touch /tmp/x'\ntR."})
    with pytest.raises(ValueError, match="look pickled"):
        len(LmdbStorage(path, key_format="sorted"))


def test_named_databases_single_files_and_duplicates(tmp_path):
    path = foreign(tmp_path / "a", {b"1": b"x" * 9000, b"2": b"y"}, max_dbs=2)
    assert read_all(LmdbStorage(path, key_format="{}", database="inner")) == [
        ("1", {"image": b"x" * 9000}), ("2", {"image": b"y"})]  # fmt: skip
    with pytest.raises(ValueError, match="no database 'other'; it has: 'inner'"):
        len(LmdbStorage(path, key_format="{}", database="other"))
    single = foreign(tmp_path / "one.lmdb", {b"1": b"x"}, subdir=False)
    assert read_all(LmdbStorage(single, key_format="{}")) == [("1", {"image": b"x"})]


def test_a_foreign_file_that_is_written_to_is_looked_at_again(tmp_path):
    path = foreign(tmp_path / "a", {b"1": b"x"})
    assert len(LmdbStorage(path, key_format="{}")) == 1
    foreign(path, {b"2": b"y"})
    assert len(LmdbStorage(path, key_format="{}")) == 2


def test_a_key_format_that_formats_no_number_is_named(tmp_path):
    path = tmp_path / "numbers.lmdb"
    with lmdb.open(str(path), map_size=1 << 20) as environment, environment.begin(write=True) as t:
        t.put(b"00000001", b"x")
    with pytest.raises(ValueError, match=r"key_format '\{:08q\}' does not format a number"):
        len(LmdbStorage(str(path), key_format="{:08q}"))


def test_a_file_of_engine_1_is_called_that(tmp_path):
    try:
        path = foreign(tmp_path / "a", {b"1": b"x"}, lib_version=1)
    except (TypeError, lmdb.Error):
        pytest.skip("py-lmdb 3 has both engines")
    with pytest.raises(ValueError, match=r"engine 1.0 of LMDB wrote it, expected .* 0.9; copy"):
        len(LmdbStorage(path, key_format="sorted"))
