"""LMDB files, packed and in the layouts of other writers."""

import os
import pickle
import struct
import subprocess
import sys

import lmdb
import numpy as np
import pytest

from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.lmdb import LmdbStorage
from tests.contracts.storage import check_storage, summary
from tests.datasets.storages.checks import check_with_copy, refusal
from tests.datasets.storages.lmdb_files import Listed, foreign, images, packed_file, read_all
from tests.packed import write_lmdb


def test_packed_files_are_a_storage_that_other_programs_open(tmp_path):
    records = images(40)
    write_lmdb(tmp_path / "a", Listed(records))
    check_with_copy(LmdbStorage, tmp_path / "a", list(records.items()))
    assert sorted(os.listdir(tmp_path / "a")) == ["classes.txt", "part-00000-of-00001.lmdb"]
    env = lmdb.open(str(packed_file(tmp_path / "a")), subdir=False, readonly=True, lock=False)
    with env.begin() as transaction:
        assert transaction.get(b"0000000009") == list(records.values())[9]["image"]
    env.close()


def test_columns_of_the_source_are_kept_and_odd_values_are_refused(tmp_path):
    source = Listed({"x": {"tokens": np.arange(3)}, "y": {"image": b""}}, length=np.array([3, 0]))
    write_lmdb(tmp_path / "a", source)
    storage = LmdbStorage(str(tmp_path / "a"))
    assert summary(storage.read(np.arange(2))) == summary(source.read(np.arange(2)))
    assert storage.index.column("length").tolist() == [3, 0]
    with pytest.raises(ValueError, match="'k': field 'o' is a object"):
        write_lmdb(tmp_path / "b", Listed({"k": {"image": b"", "o": object()}}))
    assert sorted(os.listdir(tmp_path)) == ["a"], "nothing is left of what failed"


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


def test_wrong_paths(tmp_path):
    refusal(LmdbStorage(str(tmp_path / "no")), "nothing there.*set dataset.storage.path")
    refusal(LmdbStorage(str(tmp_path)), "nothing there.*folder of .lmdb files")
    (tmp_path / "f.txt").write_bytes(b"hello" * 100)
    refusal(LmdbStorage(str(tmp_path / "f.txt"), key_format="sorted"), "no LMDB file")
    packed = LmdbStorage(foreign(tmp_path / "a", {b"1": b"x"}))
    refusal(packed, "not packed by this version.*key_format")


def test_a_worker_needs_neither_pyarrow_nor_lmdb(tmp_path):
    write_lmdb(tmp_path / "a", Listed(images(6)))
    recipe = pickle.dumps(LmdbStorage(str(tmp_path / "a")))
    code = (
        "import pickle, sys; s = pickle.loads(sys.stdin.buffer.read()); r = s.read(range(6));"
        "assert len(r) == 6; print([m for m in ('pyarrow', 'lmdb', 'torch') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], input=recipe, capture_output=True)
    assert answer.stdout.decode().strip() == "[]", answer.stderr.decode()


def test_a_file_of_many_transactions_is_read_as_by_the_library(tmp_path):
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
    storage, rows = LmdbStorage(str(tmp_path / "a"), key_format="sorted"), np.arange(len(wanted))
    values = [record.fields["image"] for record in storage.read(rows)]
    assert list(zip(storage.index.raw_keys(rows), values, strict=True)) == wanted


def test_text_recognition_layout(tmp_path):
    items = {b"num-samples": b"12"}
    for i in range(1, 13):
        items[b"image-%09d" % i] = b"jpeg%d" % i
        items[b"label-%09d" % i] = f"wörd {i}".encode()
    path = foreign(tmp_path / "a", items)
    storage = LmdbStorage(path, key_format="image-{}", text_key="label-{}")
    want = [(f"image-{i:09d}", {"image": b"jpeg%d" % i, "text": f"wörd {i}"}) for i in range(1, 13)]
    check_storage(lambda: storage, want, processes=("new",))
    assert sorted(os.listdir(path)) == ["data.mdb", "lock.mdb"], "the index went to the cache"
    tags = LmdbStorage(path, key_format="image-{}", label_key="tag-{}")
    refusal(tags, "lacks the key b'tag-000000001'")
    for wrong in ("{:05d}", "image", "picture-{}"):
        refusal(LmdbStorage(path, key_format=wrong), "no key fits key_format .*; the file has 25")
    single = foreign(tmp_path / "one.lmdb", {b"1": b"x"}, subdir=False)
    assert read_all(LmdbStorage(single, key_format="{}")) == [("1", {"image": b"x"})]


def test_sorted_keys_with_labels_in_another_key(tmp_path):
    items = {b"\xff": b"1", b"\xff.cls": b"dog\n", b"y": b"2", b"y.cls": b"cat"}
    path = foreign(tmp_path / "b", items)
    storage = LmdbStorage(path, key_format="sorted", label_key="{}.cls")
    assert read_all(storage) == [
        ("y", {"image": b"2", "label": 0}), ("\\xff", {"image": b"1", "label": 1})]  # fmt: skip
    write_lmdb(tmp_path / "packed", storage)
    assert read_all(LmdbStorage(str(tmp_path / "packed"))) == read_all(storage)


def test_a_foreign_file_is_scanned_again_after_another_program_wrote_to_it(tmp_path):
    path = foreign(tmp_path / "a", {b"1": b"x"})
    assert len(LmdbStorage(path, key_format="{}")) == 1
    foreign(path, {b"2": b"y"})
    storage = LmdbStorage(path, key_format="{}")
    assert len(storage) == 2
    os.truncate(f"{path}/data.mdb", 100)
    with pytest.raises(ValueError, match=f"^{storage}: data.mdb: .*cut short"):
        storage.read(np.arange(2))


def test_a_page_that_leads_back_to_itself_is_damaged(tmp_path):
    path = foreign(tmp_path / "a", {b"%04d" % n: bytes(40) for n in range(400)})
    content = bytearray((tmp_path / "a/data.mdb").read_bytes())
    [page] = (n for n in range(len(content) // 4096) if content[n * 4096 + 10] == 1)
    [place] = struct.unpack_from("<H", content, page * 4096 + 16)
    struct.pack_into("<HHH", content, page * 4096 + place, page, 0, 0)
    (tmp_path / "a/data.mdb").write_bytes(content)
    refusal(LmdbStorage(path, key_format="sorted"), "page . is damaged")
