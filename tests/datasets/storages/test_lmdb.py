"""LMDB: our own layout, those of others, and files that are damaged anywhere at all."""

import json
import os
import shutil
import struct
import subprocess
import sys

import lmdb
import numpy as np
import pytest

from datasets.formats import lmdb_packed
from datasets.formats.lmdb_pages import scan_lmdb
from datasets.index import Index
from datasets.memory_index import MemoryIndex
from datasets.sample import BadRecord, Record
from datasets.storages.image_folder import ImageFolder
from datasets.storages.lmdb import LmdbStorage
from tests.contracts.storage import check_storage, summary
from tests.packed import write_lmdb

rng = np.random.default_rng(0)


class Listed:
    """A storage of given fields."""

    def __init__(self, records, class_names=("a", "b", "c"), **columns):
        self.records = records
        labels = [f["label"] for f in records.values() if f and "label" in f]
        if labels:
            columns["label"] = np.array(labels)
        self.index = MemoryIndex(list(records), columns, class_names if labels else None)

    def __len__(self):
        return len(self.records)

    def read(self, indices):
        items = list(self.records.items())
        return [
            BadRecord(i, items[i][0], "gone") if items[i][1] is None else Record(i, *items[i])
            for i in np.asarray(indices).tolist()
        ]

    def fingerprint(self):
        return self.index.fingerprint()


def images(n, seed=0):
    """Sizes that lie in the page and outside of it, and none."""
    random = np.random.default_rng(seed)
    sizes = [0, 1, 100, 2000, 2030, 2040, 4080, 4096, 5000, 30_000]
    return {
        f"c{i % 3}/{i:03d}.jpg": {"image": random.bytes(sizes[i % len(sizes)]), "label": i % 3}
        for i in range(n)
    }


def foreign(path, items, **options):
    env = lmdb.open(str(path), map_size=1 << 26, **options)
    database = env.open_db(b"inner") if options.get("max_dbs") else None
    with env.begin(write=True) as transaction:
        for key, value in items.items():
            transaction.put(key, value, db=database)
    env.close()
    return str(path)


def test_contract(tmp_path):
    records = images(40)
    write_lmdb(tmp_path / "a", Listed(records))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: LmdbStorage(str(tmp_path / "a")),
        list(records.items()),
        make_copy=lambda: LmdbStorage(str(tmp_path / "b")),
    )
    assert sorted(os.listdir(tmp_path / "a")) == ["data.mdb", "index.arrow"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    env = lmdb.open(str(tmp_path / "a"), readonly=True, lock=False)
    with env.begin() as transaction:
        assert transaction.get(b"0000000009") == list(records.values())[9]["image"]
    env.close()


def test_all_kinds_of_fields_come_back(tmp_path):
    full = {
        "image": b"jpeg", "label": 1, "text": "ü", "score": 0.5, "n": np.int64(3), "none": None,
        "boxes": np.arange(8, dtype=np.float32).reshape(2, 4), "raw": b"\0\1", "list": [1, "a"],
        "empty": np.zeros((0, 4), np.float32),
    }  # fmt: skip
    source = Listed({"x": full, "y": {"image": b"", "label": 0}, "z": {"tokens": np.arange(3),
                     "label": 2}}, height=np.array([3, 4, 5]))  # fmt: skip
    write_lmdb(tmp_path / "a", source)
    storage = LmdbStorage(str(tmp_path / "a"))
    records = storage.read(np.arange(3))
    assert summary(records) == summary(source.read(np.arange(3)))
    assert records[0].fields["boxes"].flags.writeable
    assert storage.index.column("height").tolist() == [3, 4, 5]
    with pytest.raises(ValueError, match="'k': field 'o' is a object"):
        write_lmdb(tmp_path / "b", Listed({"k": {"image": b"", "o": object()}}))
    assert sorted(os.listdir(tmp_path)) == ["a"], "nothing is left of what failed"


def test_the_map_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_packed, "_FIRST_MAP_BYTES", 1 << 16)
    records = images(300)
    write_lmdb(tmp_path / "a", Listed(records))
    storage = LmdbStorage(str(tmp_path / "a"))
    assert [r.fields for r in storage.read(np.arange(300))] == list(records.values())


def test_the_writer_is_whole_or_nothing_and_deletes_nothing(tmp_path):
    records = images(5)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="is there already"):
        write_lmdb(tmp_path / "there", Listed(records))
    with pytest.raises(ValueError, match="'bad' gone; repair or remove it"):
        write_lmdb(tmp_path / "new", Listed({"good": {"image": b"1"}, "bad": None}))
    assert sorted(os.listdir(tmp_path)) == ["there"]
    assert (tmp_path / "there/mine.txt").read_text() == "mine"


def test_packing_an_image_folder_keeps_keys_labels_and_damage(tmp_path):
    for name, content in {"a/1.jpg": b"1", "b/2.png": b"", "b/ü.jpg": b"text"}.items():
        (tmp_path / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / name).write_bytes(content)
    with open(os.fsencode(tmp_path) + b"/f/a/\xff.jpg", "wb") as file:
        file.write(b"latin")
    folder = ImageFolder(str(tmp_path / "f"))
    write_lmdb(tmp_path / "packed", folder)
    packed = LmdbStorage(str(tmp_path / "packed"))
    assert summary(packed.read(np.arange(4))) == summary(folder.read(np.arange(4)))
    assert packed.fingerprint() == folder.fingerprint()


def test_a_flipped_bit_anywhere_spoils_at_most_the_record_it_is_in(tmp_path):
    records = images(30)
    write_lmdb(tmp_path / "a", Listed(records))
    data = tmp_path / "a/data.mdb"
    content = data.read_bytes()
    wanted = list(records.values())
    spoilt_runs = 0
    for at in rng.integers(0, len(content), 300).tolist():
        flipped = bytearray(content)
        flipped[at] ^= 1 << (at % 8)
        data.write_bytes(flipped)
        found = LmdbStorage(str(tmp_path / "a")).read(np.arange(30))
        bad = [r for r in found if isinstance(r, BadRecord)]
        assert len(bad) <= 1
        assert all("checksum" in r.cause for r in bad)
        assert all(r.fields == wanted[r.index] for r in found if isinstance(r, Record))
        spoilt_runs += len(bad)
    assert spoilt_runs > 50


def test_a_file_cut_short_is_one_clear_error(tmp_path):
    write_lmdb(tmp_path / "a", Listed(images(30)))
    data = tmp_path / "a/data.mdb"
    content = data.read_bytes()
    storage = LmdbStorage(str(tmp_path / "a"))
    assert len(storage) == 30
    for size in (0, 1, 100, 4096, 8192, len(content) // 2, len(content) - 1):
        data.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"cut short: data.mdb has") as error:
            len(LmdbStorage(str(tmp_path / "a")))
        assert "\n" not in str(error.value)
        # Cut while it is open: bad records, and no bus error.
        if size <= len(content) // 2:
            assert isinstance(storage.read(np.array([29]))[0], BadRecord)


def test_a_damaged_index_is_one_clear_error(tmp_path):
    write_lmdb(tmp_path / "a", Listed(images(30)))
    index = tmp_path / "a/index.arrow"
    content = index.read_bytes()
    for size in (0, 10, len(content) // 2, len(content) - 1):
        index.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"index.arrow: damaged or no index file"):
            len(LmdbStorage(str(tmp_path / "a")))
    wanted = [f for f in images(30).values()]
    for at in rng.integers(0, len(content), 300).tolist():
        flipped = bytearray(content)
        flipped[at] ^= 1 << (at % 8)
        index.write_bytes(flipped)
        try:
            found = LmdbStorage(str(tmp_path / "a")).read(np.arange(30))
        except ValueError as error:
            assert "index.arrow: damaged" in str(error) or "cut short" in str(error)
        else:
            assert all(r.fields == wanted[r.index] for r in found if isinstance(r, Record))
    index.unlink()
    with pytest.raises(ValueError, match=r"no index.arrow beside data.mdb.*key_format"):
        len(LmdbStorage(str(tmp_path / "a")))


def test_a_foreign_file_damaged_anywhere_never_ends_the_interpreter(tmp_path):
    items = {b"%08d" % i: np.random.default_rng(i).bytes(i * 37 % 6000) for i in range(200)}
    path = foreign(tmp_path / "f", items)
    data = tmp_path / "f/data.mdb"
    content = data.read_bytes()
    # Most pages are values; the first and the branch and leaf pages are where the danger is.
    pages = [n for n in range(len(content) // 4096) if content[n * 4096 + 10] in (1, 2, 8)]
    for n, at in enumerate(rng.integers(0, 4096, 200).tolist()):
        flipped = bytearray(content)
        flipped[pages[n % len(pages)] * 4096 + at] ^= 1 << (at % 8)
        data.write_bytes(flipped)
        try:
            storage = LmdbStorage(path, key_format="sorted")
            storage.read(np.arange(len(storage)))
        except ValueError as error:
            assert "\n" not in str(error)
    for size in (0, 1, 5000, len(content) // 2, len(content) - 4096):
        data.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"cut short|too few"):
            len(LmdbStorage(path, key_format="sorted"))


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


def data_of(path):
    return os.path.join(path, "data.mdb")


def read_all(storage):
    return [(r.key, r.fields) for r in storage.read(np.arange(len(storage)))]


def test_text_recognition_layout(tmp_path):
    items = {b"num-samples": b"12"}
    for i in range(1, 13):
        items[b"image-%09d" % i] = b"jpeg%d" % i
        items[b"label-%09d" % i] = f"wörd {i}".encode()
    path = foreign(tmp_path / "a", items)
    storage = LmdbStorage(path, key_format="image-%09d", text_key="label-%09d")
    want = [(f"image-{i:09d}", {"image": b"jpeg%d" % i, "text": f"wörd {i}"}) for i in range(1, 13)]
    check_storage(lambda: storage, want, start_methods=("spawn",))
    assert sorted(os.listdir(path)) == ["data.mdb", "lock.mdb"], "the index went to the cache"
    with pytest.raises(ValueError, match="has no key 'tag-000000001'"):
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


def test_class_ids_follow_the_classes_given(tmp_path):
    write_lmdb(tmp_path / "a", Listed(images(6)))
    storage = LmdbStorage(str(tmp_path / "a"), classes=["x", "c", "b", "a"])
    assert storage.index.column("label").tolist() == [3, 2, 1, 3, 2, 1]
    assert [r.fields["label"] for r in storage.read(np.array([2, 0]))] == [1, 3]
    with pytest.raises(ValueError, match="class 'c' is not among the 2 classes"):
        len(LmdbStorage(str(tmp_path / "a"), classes=["a", "b"]))


def test_wrong_paths(tmp_path):
    with pytest.raises(ValueError, match=r"nothing there; set dataset.storage.path"):
        len(LmdbStorage(str(tmp_path / "no")))
    with pytest.raises(ValueError, match=r"a folder without data.mdb"):
        len(LmdbStorage(str(tmp_path)))
    (tmp_path / "f.txt").write_bytes(b"hello" * 100)
    with pytest.raises(ValueError, match="no LMDB file"):
        len(LmdbStorage(str(tmp_path / "f.txt"), key_format="sorted"))


def test_a_worker_needs_neither_pyarrow_nor_lmdb(tmp_path):
    write_lmdb(tmp_path / "a", Listed(images(6)))
    import pickle

    recipe = pickle.dumps(LmdbStorage(str(tmp_path / "a")))
    code = (
        "import pickle, sys; s = pickle.loads(sys.stdin.buffer.read()); r = s.read(range(6));"
        "assert len(r) == 6; print([m for m in ('pyarrow', 'lmdb', 'torch') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], input=recipe, capture_output=True)
    assert answer.stdout.decode().strip() == "[]", answer.stderr.decode()
    assert isinstance(LmdbStorage(str(tmp_path / "a")).index, Index)


def test_a_key_format_that_formats_no_number_is_named(tmp_path):
    path = tmp_path / "numbers.lmdb"
    with lmdb.open(str(path), map_size=1 << 20) as environment, environment.begin(write=True) as t:
        t.put(b"00000001", b"x")
    with pytest.raises(ValueError, match=r"key_format '\{:08q\}' does not format a number"):
        len(LmdbStorage(str(path), key_format="{:08q}"))
