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
from penstock.datasets.storages import image_folder
from penstock.datasets.storages.image_folder import ImageFolder, ImageFolderWriter
from penstock.datasets.writing import write_storage
from tests.contracts.records import ListedRecords
from tests.datasets.storages.checks import check_with_copy, keys, refusal


def put(root, files):
    for name, content in files.items():
        path = os.path.join(os.fsencode(root), name if isinstance(name, bytes) else name.encode())
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    return str(root)


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
    check_with_copy(ImageFolder, put(tmp_path, FILES), expected(FILES, LABELS))


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


def test_labels_from_file_names_and_number_order(tmp_path):
    root = put(tmp_path, {f"{label}_{n}.jpg": b"" for n, label in enumerate(["10", "9", "100"])})
    storage = ImageFolder(root, labels="filename", label_pattern=r"^(\d+)_")
    assert storage.index.class_names == ("9", "10", "100")
    assert keys(storage) == ["100_2.jpg", "10_0.jpg", "9_1.jpg"]
    assert storage.index.column("label").tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (None, "label_pattern None"),
        ("(", "unterminated subpattern .*expected a regular expression with a group"),
        ("a_", "no such group; expected a regular expression with a group"),
        ("^(zebra)", "finds no label in 'a_1.jpg'"),
    ],
)
def test_wrong_label_patterns(tmp_path, pattern, message):
    root = put(tmp_path, {"x/a_1.jpg": b""})
    refusal(ImageFolder(root, labels="filename", label_pattern=pattern), message)


def test_labels_from_csv(tmp_path):
    root = put(tmp_path / "d", {"b.jpg": b"", "a.jpg": b"", "sub/c.jpg": b""})
    table = tmp_path / "labels.csv"
    rows = ["label,key,more", '"cat, big",a.jpg,1', "dog,b,2", "", "dog,sub/c.jpg,", "x,gone,1"]
    table.write_text("\ufeff" + "\r\n".join(rows), encoding="utf-8", newline="")
    storage = ImageFolder(root, labels=str(table))
    assert storage.index.class_names == ("cat, big", "dog")
    assert storage.index.column("label").tolist() == [0, 1, 1]
    shutil.copy(table, f"{root}/inside.csv")
    assert ImageFolder(root, labels="inside.csv").fingerprint() == storage.fingerprint()
    table.write_text("key,label\na,dog\nb,cat\nsub/c,dog\n")
    assert ImageFolder(root, labels=str(table)).index.column("label").tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; expected 'folder', 'filename', null or"),
        ("", "t.csv: it is empty"),
        ("name,class\n", r"'name', 'class'; .*dataset\.storage\.label_columns=\["),
        ("key,label\na.jpg,cat,x\n", "line 2: got 3 values, expected 2"),
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
    refusal(ImageFolder(root, labels=str(tmp_path / "t.csv")), message)


def test_a_csv_may_name_its_columns_and_a_part_of_the_files(tmp_path, caplog):
    root = put(tmp_path / "d", {f"{name}.jpg": b"" for name in "abcd"})
    (tmp_path / "t.csv").write_text("class,more,file name\ncat,1,d\ndog,2,b.jpg\n")
    labels = {"labels": str(tmp_path / "t.csv"), "label_columns": ("file name", "class")}
    storage = ImageFolder(root, **labels)
    assert [record.key for record in storage.read(np.arange(2))] == ["b.jpg", "d.jpg"]
    assert storage.index.column("label").tolist() == [1, 0]
    for said in (
        "2 of 4 records",
        "'a.jpg', 'c.jpg'; they are left out",
        "dataset.storage.unlabelled=leave_out",
    ):
        assert said in caplog.text
    refusal(ImageFolder(root, **labels, unlabelled="error"), "type .*unlabelled=leave_out")
    put(tmp_path / "d", {f"{name}.jpg": b"" for name in "efg"})
    refusal(ImageFolder(root, **labels), "5 of 7 records")
    caplog.clear()
    assert len(ImageFolder(root, **labels, unlabelled="leave_out")) == 2
    assert not caplog.text


def test_wrong_folders(tmp_path):
    root = str(tmp_path)
    refusal(ImageFolder(f"{root}/no"), "/no: expected a folder .*nothing there")
    put(tmp_path, {"f.txt": b""})
    refusal(ImageFolder(f"{root}/f.txt"), "got a file")
    refusal(ImageFolder(root), "no image found, among 1 .txt; expected names that end")
    put(tmp_path, {"a/1.Raw": b"1", "a/2.raw": b"2", "b/3": b"3"})
    refusal(ImageFolder(root), r"among 2 .raw, 1 .txt, 1 without .*endings=\[\.\.\.\]")
    os.unlink(tmp_path / "f.txt")
    assert len(ImageFolder(root, endings=("raw",))) == 2
    put(tmp_path, {"f.jpg": b"", "x/g.jpg": b""})
    refusal(ImageFolder(root), "1 of 2 files are outside class folders, such as 'f.jpg'")
    os.unlink(tmp_path / "f.jpg")
    refusal(ImageFolder(root, classes=["y", "z"]), "class 'x' is not among the 2 classes")


def test_a_second_start_scans_only_changed_data(tmp_path, monkeypatch):
    root = put(tmp_path, FILES)
    before = sorted(map(str, tmp_path.rglob("*")))
    first = ImageFolder(root).fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr(image_folder, "scan_files", pytest.fail)
        assert ImageFolder(root).fingerprint() == first
    assert sorted(map(str, tmp_path.rglob("*"))) == before, "nothing written there"
    put(root, {"dog/deep/er/new.jpg": b"new"})
    assert len(ImageFolder(root)) == 8
    os.unlink(f"{root}/dog/deep/er/new.jpg")
    assert ImageFolder(root).fingerprint() == first
    assert len(ImageFolder(root, labels=None)) == 7


def test_a_temporary_error_is_retried_then_raised(tmp_path, monkeypatch):
    root = put(tmp_path, FILES)
    storage = ImageFolder(root)
    assert len(storage) == 7
    monkeypatch.setattr(file_access, "_PAUSES_S", (0, 0, 0))
    calls = []

    def trouble(path, *mode, **buffering):
        calls.append(path)
        if len(calls) <= failures:
            raise OSError(errno.ESTALE, "Stale file handle")
        return open(path, *mode, **buffering)

    monkeypatch.setattr(file_access, "open", trouble, raising=False)
    failures = 3
    assert isinstance(storage.read(np.array([0]))[0], Record)
    assert len(calls) == 4
    calls.clear()
    failures = 4
    with pytest.raises(OSError, match="after 4 attempts"):
        storage.read(np.array([0]))


def small() -> ImageFolderWriter:
    writer = ImageFolderWriter()
    writer.part_records = 5
    return writer


def listed(keys, *, names=("a", "b"), **more):
    fields = {"image": b"jpeg", **more}
    by_name = {name: i for i, name in enumerate(names)}
    keys = sorted(keys)
    return ListedRecords(
        {key: {**fields, "label": by_name.get(key.partition("/")[0], 0)} for key in keys}, names
    )


@pytest.mark.parametrize(
    "key",
    ["a/../../b/1.jpg", "/a/1.jpg", "a//1.jpg", "1.jpg", "a/.1.jpg", "a/1.txt", "a/x\0.jpg",
     "a/x\\y.jpg", f"a/{'x' * 252}.jpg", "a/" + "x/" * 2000 + "1.jpg", "c/1.jpg"],
)  # fmt: skip
def test_keys_that_cannot_be_paths(tmp_path, key):
    with pytest.raises(ValueError, match="pack it as webdataset") as error:
        write_storage(small(), tmp_path / "out", listed([key, "b/9.jpg"]))
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


def test_records_that_differ_from_image_files(tmp_path):
    with pytest.raises(ValueError, match="the classes None differ from the folders"):
        write_storage(small(), tmp_path / "out", ListedRecords({"a/1.jpg": {"image": b"jpeg"}}))
    keys = ["a/1.jpg", "b/1.jpg"]
    for source, said in (
        (listed(keys, boxes=np.ones((1, 4))), "'a/1.jpg' has a field 'boxes'"),
        (listed(keys, image=np.ones((2, 2, 3), np.uint8)), "lacks an image that is an encoded"),
        (listed(keys, names=("b", "a")), "differ from the folders"),
    ):
        with pytest.raises(ValueError, match=said):
            write_storage(small(), tmp_path / "out", source)
    wrong = listed(keys)
    wrong.records["a/1.jpg"]["label"] = 1
    with pytest.raises(ValueError, match=r"'a/1\.jpg' is of the class 'b' and in the folder 'a'"):
        write_storage(small(), tmp_path / "out", wrong)
    assert os.listdir(tmp_path) == []


def test_a_folder_without_class_folders_has_no_labels(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"x")
    storage = ImageFolder(str(tmp_path))
    assert storage.index.class_names is None and "label" not in storage.index.columns
    assert [record.fields for record in storage.read(np.arange(2))] == [{"image": b"x"}] * 2
