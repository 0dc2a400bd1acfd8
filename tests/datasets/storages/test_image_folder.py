"""Image folders: what is found, how it is labelled, cached and read."""

from __future__ import annotations

import errno
import logging
import os
import shutil

import numpy as np
import pytest

from penstock.core.sample import BadRecord, Record
from penstock.datasets.files import access as file_access
from penstock.datasets.records import folder_storage
from penstock.datasets.storages.image_folder import ImageFolder, ImageFolderWriter
from penstock.datasets.storages.lmdb import LmdbStorage
from penstock.datasets.storages.lmdb.writer import LmdbWriter
from penstock.datasets.writing import write_storage
from tests.contracts.storage import check_storage
from tests.datasets.writers.writer_contract import ListedRecords, assert_equal_records, check_writer


def put(root, files):
    for name, content in files.items():
        path = os.path.join(os.fsencode(root), name if isinstance(name, bytes) else name.encode())
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    return str(root)


def keys(storage):
    return storage.index.keys(np.arange(len(storage)))


def expected(files, labels):
    return [
        (key, {"image": content, "label": labels[key.split("/")[0]]})
        for key, content in sorted(files.items(), key=lambda item: item[0].encode())
    ]


FILES = {
    "dog/b.jpg": b"dog b",
    "dog/a.JPG": b"dog a",
    "dog/deep/er/c.jpeg": b"dog c",
    "cat/with space.png": b"cat 1",
    "cat/ünïcode-日本.webp": b"cat 2",
    "cat/empty.jpg": b"",
    "äpfel/1.tiff": b"apple",
}
LABELS = {"cat": 0, "dog": 1, "äpfel": 2}


def test_contract(tmp_path):
    root = put(tmp_path / "a", FILES)
    copy = str(tmp_path / "b")
    shutil.copytree(root, copy)
    check_storage(
        lambda: ImageFolder(root), expected(FILES, LABELS), make_copy=lambda: ImageFolder(copy)
    )


def test_contract_with_a_vanished_file_between_good_ones(tmp_path):
    root = put(tmp_path, FILES)
    storage = ImageFolder(root)
    assert len(storage) == 7
    os.unlink(tmp_path / "dog/a.JPG")
    want = [(key, None if key == "dog/a.JPG" else f) for key, f in expected(FILES, LABELS)]
    check_storage(lambda: storage, want, processes=("new",))


def test_order_and_hidden_files(tmp_path):
    root = put(tmp_path, {"x/b.jpg": b"", "x/.h.jpg": b"", ".d/a.jpg": b"", "x.y/a.jpg": b"",
                          "x/notes.txt": b"", "x/jpg": b"", "x-/a.jpg": b""})  # fmt: skip
    assert keys(ImageFolder(root)) == ["x-/a.jpg", "x.y/a.jpg", "x/b.jpg"]
    assert keys(ImageFolder(root, hidden=True, labels=None)) == [
        ".d/a.jpg", "x-/a.jpg", "x.y/a.jpg", "x/.h.jpg", "x/b.jpg"]  # fmt: skip
    assert keys(ImageFolder(root, endings=("txt",))) == ["x/notes.txt"]


def test_names_that_are_not_utf8(tmp_path):
    root = put(tmp_path, {b"a/caf\xe9.jpg": b"one", b"a/b.jpg": b"two"})
    storage = ImageFolder(root)
    assert keys(storage) == ["a/b.jpg", "a/caf\\xe9.jpg"]
    assert [r.fields["image"] for r in storage.read(np.array([1, 0]))] == [b"one", b"two"]


def test_symlinks(tmp_path, caplog):
    root = put(tmp_path / "data", {"a/1.jpg": b"1"})
    put(tmp_path / "else", {"2.jpg": b"2", "3.jpg": b"3"})
    os.symlink(tmp_path / "else", f"{root}/b")
    os.symlink(tmp_path / "else/2.jpg", f"{root}/a/link.jpg")
    os.symlink("..", f"{root}/a/up")
    os.symlink(root, f"{root}/a/root.jpg")
    os.symlink("nowhere", f"{root}/a/dangling.jpg")
    os.mkfifo(f"{root}/a/pipe.jpg")
    os.symlink("pipe.jpg", f"{root}/a/pipe2.jpg")
    with caplog.at_level(logging.WARNING):
        storage = ImageFolder(root)
        assert keys(storage) == ["a/1.jpg", "a/dangling.jpg", "a/link.jpg", "b/2.jpg", "b/3.jpg"]
    assert "a/up/ leads back" in caplog.text
    records = storage.read(np.arange(5))
    assert isinstance(records[1], BadRecord)
    assert "No such file" in records[1].cause
    assert [r.fields["image"] for r in records if isinstance(r, Record)] == [b"1", b"2", b"2", b"3"]
    assert keys(ImageFolder(root, follow_symlinks=False)) == ["a/1.jpg"]


def test_labels_from_file_names_and_number_order(tmp_path):
    root = put(tmp_path, {f"s{i % 2}/{c}_{i}.jpg": b"" for i, c in enumerate(["10", "9", "100"])})
    storage = ImageFolder(root, labels="filename", label_pattern=r"^(\d+)_")
    assert storage.index.class_names == ("9", "10", "100")
    assert dict(zip(keys(storage), storage.index.column("label").tolist(), strict=True)) == {
        "s0/10_0.jpg": 1, "s1/9_1.jpg": 0, "s0/100_2.jpg": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (None, "needs a label_pattern"),
        ("(", "is not a regular expression"),
        ("abc", "lacks a group"),
        ("^(zebra)", "finds no label in 'a_1.jpg'"),
    ],
)
def test_wrong_label_patterns(tmp_path, pattern, message):
    root = put(tmp_path, {"x/a_1.jpg": b""})
    with pytest.raises(ValueError, match=message) as error:
        len(ImageFolder(root, labels="filename", label_pattern=pattern))
    assert "\n" not in str(error.value)


def test_labels_from_csv(tmp_path):
    root = put(tmp_path / "d", {"b.jpg": b"", "a.jpg": b"", "sub/c.jpg": b""})
    table = tmp_path / "labels.csv"
    rows = ["label,key,more", '"cat, big",a.jpg,1', "dog,b,2", "", "dog,sub/c.jpg,", "x,gone,1"]
    table.write_text("\ufeff" + "\r\n".join(rows), encoding="utf-8", newline="")
    storage = ImageFolder(root, labels=str(table))
    assert storage.index.class_names == ("cat, big", "dog")
    assert storage.index.column("label").tolist() == [0, 1, 1]
    inside = shutil.copy(table, f"{root}/inside.csv")
    assert ImageFolder(root, labels="inside.csv").fingerprint() == storage.fingerprint()
    os.utime(inside, ns=(0, 0))
    with open(table, "w") as file:
        file.write("key,label\na,dog\nb,cat\nsub/c,dog\n")
    assert ImageFolder(root, labels=str(table)).index.column("label").tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; expected 'folder', 'filename', null or"),
        ("", "t.csv: it is empty"),
        ("name,class\n", r"columns: 'name', 'class'; .*dataset\.storage\.label_columns=\["),
        ("key,label\na.jpg,cat,x\n", "line 2: got 3 values, expected 2"),
        ("key,label\na.jpg,\n", "line 2: the label is empty"),
        ("key,label\nb.jpg,1\n,2\n", "line 3: 'key' is empty"),
        ("key,label\na.jpg,1\na.jpg,2\n", "line 3: 'a.jpg' is '2' here and '1' above"),
        ("key,label\nc.jpg,1\n", "1 of 1 names match no record, such as 'c.jpg'"),
        (b"key,label\n\xff\xfe,1\n", "cannot be read as a CSV"),
    ],
)
def test_wrong_csv_files(tmp_path, text, message):
    root = put(tmp_path / "d", {"a.jpg": b"", "b.jpg": b""})
    if text is not None:
        (tmp_path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message) as error:
        len(ImageFolder(root, labels=str(tmp_path / "t.csv")))
    assert "\n" not in str(error.value)


def test_a_csv_may_name_its_columns_and_a_part_of_the_files(tmp_path, caplog):
    root = put(tmp_path / "d", {f"{name}.jpg": b"" for name in "abcd"})
    (tmp_path / "t.csv").write_text("class,more,file name\ncat,1,d\ndog,2,b.jpg\n")
    labels = {"labels": str(tmp_path / "t.csv"), "label_columns": ("file name", "class")}
    storage = ImageFolder(root, **labels)
    assert [record.key for record in storage.read(np.arange(2))] == ["b.jpg", "d.jpg"]
    assert storage.index.column("label").tolist() == [1, 0]
    assert "2 of 4 records have no row" in caplog.text
    assert "'a.jpg', 'c.jpg', and are left out" in caplog.text
    assert "dataset.storage.unlabelled=error refuses" in caplog.text
    with pytest.raises(ValueError, match=r"type dataset.storage.unlabelled=leave_out: then"):
        len(ImageFolder(root, **labels, unlabelled="error"))
    numbered = ImageFolder(root, pattern="{}.jpg", count=2, **labels, unlabelled="leave_out")
    with pytest.raises(ValueError, match="2 of 2 names match no record"):
        len(numbered)
    put(tmp_path / "d", {f"{name}.jpg": b"" for name in "efg"})
    with pytest.raises(ValueError, match="5 of 7 records have no row"):
        len(ImageFolder(root, **labels))
    caplog.clear()
    assert len(ImageFolder(root, **labels, unlabelled="leave_out")) == 2
    assert not caplog.text


def test_wrong_folders(tmp_path):
    with pytest.raises(ValueError, match=r"image_folder .*/no: expected a folder .*nothing there"):
        len(ImageFolder(str(tmp_path / "no")))
    put(tmp_path, {"f.txt": b""})
    with pytest.raises(ValueError, match=r"got a file"):
        len(ImageFolder(str(tmp_path / "f.txt")))
    with pytest.raises(ValueError, match=r"no image found, among 1 .txt; expected names that end"):
        len(ImageFolder(str(tmp_path)))
    put(tmp_path, {"a/1.Raw": b"1", "a/2.raw": b"2", "b/3": b"3"})
    with pytest.raises(ValueError, match=r"among 2 .raw, 1 .txt, 1 without .* type dataset.stora.*"
                                         r"endings=\[raw\]; else"):  # fmt: skip
        len(ImageFolder(str(tmp_path)))
    os.unlink(tmp_path / "f.txt")
    assert len(ImageFolder(str(tmp_path), endings=("raw",))) == 2
    put(tmp_path, {"f.jpg": b"", "x/g.jpg": b""})
    with pytest.raises(
        ValueError, match=r"1 of 2 files are outside class folders, such as 'f.jpg'"
    ):
        len(ImageFolder(str(tmp_path)))
    os.unlink(tmp_path / "f.jpg")
    with pytest.raises(ValueError, match="class 'x' is not among the 2 classes"):
        len(ImageFolder(str(tmp_path), classes=["y", "z"]))


def test_generated_names(tmp_path):
    root = put(tmp_path, {f"img_{i:07d}.jpg": b"%d" % i for i in (5, 6, 8)})
    storage = ImageFolder(root, pattern="img_{:07d}.jpg", count=4, start=5)
    check_storage(
        lambda: storage,
        [(f"img_{i:07d}.jpg", None if i == 7 else {"image": b"%d" % i}) for i in (5, 6, 7, 8)],
        processes=("forked",),
    )
    big = ImageFolder(root, pattern="img_{:07d}.jpg", count=10**9)
    assert len(big) == 10**9
    assert keys_at(big, [10**9 - 1]) == ["img_999999999.jpg"]
    assert os.path.getsize(big.index.path) < 2000
    labelled = ImageFolder(root, pattern="img_{:07d}.jpg", count=3, start=5, labels="filename",
                           label_pattern=r"(\d)\.")  # fmt: skip
    assert labelled.index.class_names == ("5", "6", "7")
    for pattern, count in (("a{}.jpg", None), (None, 3), ("a.jpg", 2), ("{:q}", 2), ("{} {}", 2)):
        with pytest.raises(ValueError, match="image_folder"):
            ImageFolder(root, pattern=pattern, count=count)


def keys_at(storage, indices):
    return storage.index.keys(np.array(indices))


class CountedScans:
    def __init__(self, monkeypatch):
        self.n = 0
        scan = folder_storage.scan_files

        def counted(*args, **kwargs):
            self.n += 1
            return scan(*args, **kwargs)

        monkeypatch.setattr(folder_storage, "scan_files", counted)


def test_a_second_start_does_not_scan_until_the_data_changes(tmp_path, monkeypatch, cache):
    root = put(tmp_path / "d", FILES)
    before = sorted(map(str, (tmp_path / "d").rglob("*")))
    scans = CountedScans(monkeypatch)
    first = ImageFolder(root).fingerprint()
    assert ImageFolder(root).fingerprint() == first
    assert scans.n == 1
    assert sorted(map(str, (tmp_path / "d").rglob("*"))) == before, "nothing written there"
    put(root, {"dog/deep/er/new.jpg": b"new"})
    assert len(ImageFolder(root)) == 8
    os.unlink(f"{root}/dog/deep/er/new.jpg")
    assert ImageFolder(root).fingerprint() == first
    with open(f"{root}/dog/b.jpg", "ab") as file:
        file.write(b"longer")
    assert ImageFolder(root).fingerprint() != first
    assert scans.n == 4
    assert len(ImageFolder(root, labels=None)) == 7
    assert scans.n == 5


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "flip"])
def test_a_damaged_cache_is_made_again(tmp_path, monkeypatch, damage, cache):
    root = put(tmp_path, FILES)
    first = ImageFolder(root).fingerprint()
    [path] = (cache / "penstock/computed").glob("*.npz")
    content = bytearray(path.read_bytes())
    flipped = content.index(b"dog/deep/er/c")
    content[flipped] ^= 1
    path.write_bytes({"empty": b"", "cut": content[: len(content) // 2],
                      "garbage": os.urandom(500), "flip": content}[damage])  # fmt: skip
    scans = CountedScans(monkeypatch)
    assert ImageFolder(root).fingerprint() == first
    assert keys(ImageFolder(root)) == [key for key, _ in expected(FILES, LABELS)]
    assert scans.n == 1


def test_passing_trouble_is_retried_then_raised(tmp_path, monkeypatch):
    root = put(tmp_path, FILES)
    storage = ImageFolder(root)
    assert len(storage) == 7
    monkeypatch.setattr(file_access, "_PAUSES_S", (0, 0, 0))
    calls = []
    real = file_access._read

    def trouble(path, *limits):
        calls.append(path)
        if len(calls) <= failures:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path, *limits)

    monkeypatch.setattr(file_access, "_read", trouble)
    failures = 3
    assert isinstance(storage.read(np.array([0]))[0], Record)
    assert len(calls) == 4
    calls.clear()
    failures = 4
    with pytest.raises(OSError, match="after 4 attempts"):
        storage.read(np.array([0]))


@pytest.mark.parametrize("size", [0, 1, 4, 6, 3_000_000])
def test_a_file_written_over_since_it_was_indexed_is_read_whole(tmp_path, size):
    storage = ImageFolder(put(tmp_path, {"a/1.jpg": b"five."}))
    assert storage.index.column("size_bytes").tolist() == [5]
    (tmp_path / "a/1.jpg").write_bytes(content := os.urandom(size))
    assert storage.read(np.array([0]))[0].fields["image"] == content


def test_a_data_set_that_is_gone_as_a_whole_is_trouble_and_not_bad_records(tmp_path, monkeypatch):
    root = put(tmp_path / "d", FILES)
    storage = ImageFolder(root)
    assert len(storage) == 7
    monkeypatch.setattr(file_access, "_PAUSES_S", (0,))
    shutil.rmtree(root)
    with pytest.raises(OSError, match="the storage has trouble"):
        storage.read(np.array([0]))


def test_damaged_files_beside_good_ones_stay_records(tmp_path):
    jpeg = bytes.fromhex("ffd8ffe000104a46494600010100000100010000") + os.urandom(200)
    damaged = {"bad/cut.jpg": jpeg[:50], "bad/empty.jpg": b"", "bad/text.jpg": b"hello",
               "bad/flip.jpg": b"\xff\xd9" + jpeg[2:], "bad/gif.jpg": b"GIF89a....."}  # fmt: skip
    root = put(tmp_path, {"good/1.jpg": jpeg, **damaged})
    records = ImageFolder(root).read(np.arange(6))
    assert {r.key: r.fields["image"] for r in records} == {"good/1.jpg": jpeg, **damaged}


def test_a_class_given_twice_is_refused(tmp_path):
    folder = tmp_path / "twice"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "1.jpg").write_bytes(b"x")
    with pytest.raises(ValueError, match="class 'a' stands twice in classes"):
        len(ImageFolder(str(folder), classes=["a", "b", "a"]))


def small() -> ImageFolderWriter:
    writer = ImageFolderWriter()
    writer.part_records = 5
    return writer


def test_contract_of_the_writer(tmp_path):
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
        (["c/1.jpg"], "the class 'a' lacks files"),
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
        (listed(keys, image=np.ones((2, 2, 3), np.uint8)), "lacks an image that is an encoded"),
        (listed(keys, names=("b", "a")), "classes are not as folders sort them"),
        (listed(keys, names=("a", "b", "c")), "the class 'c' lacks files"),
    ):
        with pytest.raises(ValueError, match=said):
            write_storage(small(), tmp_path / "out", source)
    wrong = listed(keys)
    wrong.records["a/1.jpg"]["label"] = 1
    with pytest.raises(ValueError, match=r"'a/1\.jpg' is of the class 'b' and in the folder 'a'"):
        write_storage(small(), tmp_path / "out", wrong)
    assert os.listdir(tmp_path) == []


def test_all_formats_that_are_decoded_count_as_images(tmp_path):
    names = ["a/1.gif", "a/2.AVIF", "b/3.jp2", "b/4.j2k", "b/5.jpg"]
    root = put(tmp_path / "a", {name: b"x" for name in [*names, "a/notes.txt", "b/clip.mp4"]})
    assert keys(ImageFolder(root)) == names
    before = ImageFolder(root, endings=(".jpg", ".png"))
    assert keys(before) == ["b/5.jpg"] and before.index.class_names == ("b",)


def test_a_folder_without_class_folders_has_no_labels(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"x")
    storage = ImageFolder(str(tmp_path))
    assert storage.index.class_names is None and "label" not in storage.index.columns
    assert [record.fields for record in storage.read(np.arange(2))] == [{"image": b"x"}] * 2
